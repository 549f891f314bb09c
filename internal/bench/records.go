package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/store"
	"countersign/internal/store/postgres"
	"countersign/internal/store/sqlite"
)

// place is where a service keeps its records: a folder for the keys and the
// embedded database, and a PostgreSQL database if that is used instead.
type place struct {
	dir      string
	database string
	remove   func() error
}

// newPlace makes an empty place. It must be removed.
func (b *bench) newPlace(ctx context.Context, onPostgres bool) (*place, error) {
	dir, err := os.MkdirTemp(b.dir, "store-")
	if err != nil {
		return nil, fmt.Errorf("folder of a store: %w", err)
	}
	p := &place{dir: dir, remove: func() error {
		if b.Keep {
			return nil
		}
		return os.RemoveAll(dir)
	}}
	if !onPostgres {
		return p, nil
	}
	database, drop, err := newDatabase(ctx, b.Postgres)
	if err != nil {
		return nil, errors.Join(err, p.remove())
	}
	removeFolder := p.remove
	p.database = database
	p.remove = func() error { return errors.Join(drop(), removeFolder()) }
	return p, nil
}

// newDatabase makes a database on the server at address.
func newDatabase(ctx context.Context, address string) (database string, drop func() error, err error) {
	parsed, err := url.Parse(address)
	if err != nil || (parsed.Scheme != "postgres" && parsed.Scheme != "postgresql") {
		return "", nil, errors.New("the PostgreSQL address must have the form postgres://user:password@host:port/database")
	}
	name := "countersign_bench_" + strings.ToLower(rand.Text())
	if err := administer(ctx, address, "CREATE DATABASE "+name); err != nil {
		return "", nil, err
	}
	parsed.Path = "/" + name
	return parsed.String(), func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		return administer(ctx, address, "DROP DATABASE "+name+" WITH (FORCE)")
	}, nil
}

func administer(ctx context.Context, address, statement string) error {
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	_, err = conn.Exec(ctx, statement)
	if err != nil {
		err = fmt.Errorf("%s: %w", statement, err)
	}
	return errors.Join(err, conn.Close(context.WithoutCancel(ctx)))
}

// postmasterOf finds PostgreSQL's first process, whose children all the others are; 0
// if they do not run on this machine. A backend's command line holds its database,
// whose name is random: another machine's process is not mistaken for one of this.
func postmasterOf(ctx context.Context, address string) (int, error) {
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return 0, fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	parent := parentOf(int(conn.PgConn().PID()), conn.Config().Database)
	return parent, conn.Close(ctx)
}

// records is an opened place with an organization and an agent's key in it.
type records struct {
	store   store.Store
	ring    *keyring.Ring
	service *service.Service
	org     *ledger.Organization
	admin   *service.NewKey
	agent   *service.NewKey
}

func openRecords(ctx context.Context, p *place) (_ *records, err error) {
	r := &records{}
	if r.store, err = openStore(ctx, p); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	if r.ring, err = keyring.Create(filepath.Join(p.dir, "keys.json"), rand.Reader, time.Now()); err != nil {
		return nil, err
	}
	//nolint:contextcheck // the service ends with its Close, not with the context that opened it
	r.service = service.New(service.Config{Store: r.store, Keys: r.ring, Secrets: r.ring})
	operator := r.service.Operator()
	if err := operator.AdoptKeys(ctx, r.ring); err != nil {
		return nil, err
	}
	first, err := operator.Bootstrap(ctx)
	if err != nil {
		return nil, err
	}
	if first == nil {
		return nil, errors.New("the new store is not empty")
	}
	r.org, r.admin = first.Organization, first.Key
	r.agent, err = operator.CreateKey(ctx, r.org.Slug, &service.KeyRequest{Name: "bench", Role: ledger.RoleAgent})
	return r, err
}

func openStore(ctx context.Context, p *place) (store.Store, error) {
	type migrating interface {
		store.Store
		Migrate(ctx context.Context) error
	}
	var db migrating
	var err error
	if p.database != "" {
		db, err = postgres.Open(ctx, p.database)
	} else {
		db, err = sqlite.Open(ctx, filepath.Join(p.dir, "countersign.db"))
	}
	if err != nil {
		return nil, err
	}
	if err := db.Migrate(ctx); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

func (r *records) close() error {
	if r.service != nil {
		r.service.Close()
	}
	return r.store.Close()
}
