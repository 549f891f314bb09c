package testdb

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // registers the driver that Direct uses

	"countersign/internal/store/postgres"
)

// Variable names the PostgreSQL server that all tests of a run share. Databases whose names begin
// with Prefix are created on it and not dropped: scripts/with-postgres removes the whole server.
const (
	Variable = "COUNTERSIGN_TEST_POSTGRES"
	Prefix   = "countersign_test_"
)

// ServerURL returns the address of that server.
func ServerURL(t testing.TB) string {
	t.Helper()
	address := os.Getenv(Variable)
	if address == "" {
		t.Fatalf("%s is not set: run the tests with make test or make test-go, or under scripts/with-postgres", Variable)
	}
	return address
}

// Postgres returns a migrated database. When the test ends it is emptied and reused for another
// test, which is ten times faster than creating one.
func Postgres(t testing.TB) *Database {
	t.Helper()
	server := ServerURL(t)
	lent, ok := idle.pop()
	if !ok {
		lent = copyTemplate(t, server)
	}
	db := onServer(t, server, lent.name)
	db.lent = lent
	t.Cleanup(func() {
		if err := lent.reset(db.URL); err != nil {
			t.Logf("the database of this test is not reused: %v", err)
			lent.disconnect()
			return
		}
		idle.push(lent)
	})
	return db
}

// copied is a copy of the template. It belongs to the test that uses it.
type copied struct {
	name   string
	schema string // digest of the schema
	// conn is used to empty the database. It may be nil. It is kept from test to test, because a
	// new connection takes five times as long to read the catalog.
	conn *pgx.Conn
}

func copyTemplate(t testing.TB, server string) *copied {
	t.Helper()
	template, err := postgresTemplate()
	if err != nil {
		t.Fatalf("make the PostgreSQL template: %v", err)
	}
	name := Prefix + strings.ToLower(rand.Text())
	administer(t, server, "create database "+name+" template "+template)
	made := &copied{name: name}
	ctx, cancel := context.WithTimeout(context.Background(), connectionTimeout)
	defer cancel()
	if err := made.connect(ctx, onServer(t, server, name).URL); err != nil {
		t.Fatal(err)
	}
	if err := made.conn.QueryRow(ctx, schemaDigest).Scan(&made.schema); err != nil {
		t.Fatalf("read the schema of a new database: %v", err)
	}
	return made
}

// connect makes sure that there is a connection. A test may have terminated it along with all
// others.
func (c *copied) connect(ctx context.Context, address string) (err error) {
	if c.conn != nil && c.conn.Ping(ctx) == nil {
		return nil
	}
	c.disconnect() //nolint:contextcheck // the connection has failed, perhaps because the context has ended
	if c.conn, err = pgx.Connect(ctx, address); err != nil {
		c.conn = nil
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	return nil
}

func (c *copied) disconnect() {
	if c.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), connectionTimeout)
	defer cancel()
	_ = c.conn.Close(ctx) // it is not needed any more
	c.conn = nil
}

// EmptyPostgres creates a database without a schema and drops it when the test ends.
func EmptyPostgres(t testing.TB) *Database {
	t.Helper()
	server := ServerURL(t)
	name := Prefix + strings.ToLower(rand.Text())
	administer(t, server, "create database "+name)
	t.Cleanup(func() { administer(t, server, "drop database "+name+" with (force)") })
	return onServer(t, server, name)
}

// Copy creates another PostgreSQL database with the same content and drops it when the test ends.
// Nobody may be connected to the original.
func (d *Database) Copy(t testing.TB) *Database {
	t.Helper()
	address, err := url.Parse(d.URL)
	if err != nil || d.Kind != "postgres" {
		t.Fatal("only a PostgreSQL database can be copied")
	}
	if d.lent != nil {
		d.lent.disconnect()
	}
	server := ServerURL(t)
	name := Prefix + strings.ToLower(rand.Text())
	administer(t, server, "create database "+name+" template "+strings.TrimPrefix(address.Path, "/"))
	t.Cleanup(func() { administer(t, server, "drop database "+name+" with (force)") })
	return onServer(t, server, name)
}

func onServer(t testing.TB, server, name string) *Database {
	t.Helper()
	address, err := url.Parse(server)
	if err != nil {
		t.Fatalf("%s is not a URL", Variable) // the URL contains a password
	}
	address.Path = "/" + name
	return &Database{Kind: "postgres", URL: address.String(), Driver: "pgx", Source: address.String()}
}

// WithParameter sets a parameter of a PostgreSQL URL.
func WithParameter(t testing.TB, address, name, value string) string {
	t.Helper()
	parsed, err := url.Parse(address)
	if err != nil {
		t.Fatal("the PostgreSQL address is not a URL")
	}
	query := parsed.Query()
	query.Set(name, value)
	parsed.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20") // PostgreSQL does not decode a plus
	return parsed.String()
}

// idle holds the emptied databases that no test of this process is using.
var idle pool

type pool struct {
	mu   sync.Mutex
	free []*copied
}

func (p *pool) pop() (last *copied, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.free) - 1
	if n < 0 {
		return nil, false
	}
	last, p.free = p.free[n], p.free[:n]
	return last, true
}

func (p *pool) push(c *copied) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, c)
}

// postgresTemplate returns the name of the migrated database that others are copied from. It is
// created once per server and schema.
var postgresTemplate = sync.OnceValues(func() (name string, err error) {
	digest, err := migrationsDigest()
	if err != nil {
		return "", err
	}
	name = Prefix + "template_" + digest
	err = connected(os.Getenv(Variable), func(ctx context.Context, conn *pgx.Conn) error {
		// The test processes of several packages run at the same time.
		const templateLock = 7_305_402
		if _, err := conn.Exec(ctx, "select pg_advisory_lock($1)", templateLock); err != nil {
			return err
		}
		var ready bool
		err := conn.QueryRow(ctx, "select exists(select from pg_database where datname = $1 and datistemplate)", name).Scan(&ready)
		if err != nil || ready {
			return err
		}
		return makeTemplate(ctx, conn, name)
	})
	return name, err
})

func makeTemplate(ctx context.Context, conn *pgx.Conn, name string) error {
	address, err := url.Parse(os.Getenv(Variable))
	if err != nil {
		return fmt.Errorf("%s is not a URL", Variable)
	}
	address.Path = "/" + name
	for _, statement := range []string{"drop database if exists " + name, "create database " + name} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	s, err := postgres.Open(ctx, address.String())
	if err != nil {
		return err
	}
	if err := errors.Join(s.Migrate(ctx), s.Close()); err != nil {
		return err
	}
	// This comes last: an unfinished template is created again.
	_, err = conn.Exec(ctx, "alter database "+name+" with is_template true allow_connections false")
	return err
}

// migrationsDigest identifies the schema that this build of the store migrates to.
func migrationsDigest() (string, error) {
	hash := sha256.New()
	err := fs.WalkDir(postgres.Migrations(), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := fs.ReadFile(postgres.Migrations(), path)
		hash.Write(text)
		return err
	})
	return hex.EncodeToString(hash.Sum(nil))[:16], err
}

// connectionTimeout bounds the work on a connection of this package.
const connectionTimeout = time.Minute

// connected calls use with a connection. It does not use the test's context, because clean-ups call
// it when that has ended.
func connected(address string, use func(context.Context, *pgx.Conn) error) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), connectionTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	return errors.Join(use(ctx, conn), conn.Close(ctx))
}

func administer(t testing.TB, server, statement string) {
	t.Helper()
	err := connected(server, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, statement)
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// reset empties a database, so that it is like a new copy. It refuses a database whose schema a
// test has changed.
func (c *copied) reset(address string) error {
	ctx, cancel := context.WithTimeout(context.Background(), connectionTimeout)
	defer cancel()
	if err := c.connect(ctx, address); err != nil {
		return err
	}
	// A process that was killed may leave connections on the server.
	if _, err := c.conn.Exec(ctx, endOthers); err != nil {
		return err
	}
	var schema string
	if err := c.conn.QueryRow(ctx, schemaDigest).Scan(&schema); err != nil {
		return err
	}
	if schema != c.schema {
		return errors.New("the test has changed the schema")
	}
	_, err := c.conn.Exec(ctx, emptyTables)
	return err
}

const (
	// The timeout of pg_terminate_backend polls every 100 ms, but a session ends within a few.
	endOthers = `do $$ begin
		for attempt in 1..2500 loop
			perform pg_terminate_backend(pid) from pg_stat_activity
				where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend';
			exit when not found;
			perform pg_sleep(0.002), pg_stat_clear_snapshot();
		end loop;
	end $$`

	schemaDigest = `select md5(string_agg(part, E'\n' order by part)) from (
		select concat_ws(' ', attrelid::regclass, attname, atttypid::regtype, attnotnull) from pg_attribute join pg_class c on c.oid = attrelid
			where attnum > 0 and not attisdropped and c.relnamespace = 'public'::regnamespace
		union all select concat_ws(' ', conrelid::regclass, conname, pg_get_constraintdef(oid)) from pg_constraint where connamespace = 'public'::regnamespace
		union all select concat_ws(' ', tgrelid::regclass, tgname, tgenabled) from pg_trigger
		union all select concat_ws(' ', 'version', version_id) from schema_versions
		union all select concat_ws(' ', proname, md5(prosrc)) from pg_proc where pronamespace = 'public'::regnamespace
	) parts(part)`

	// Deleting is much faster than truncating, because the tables of a test are small.
	emptyTables = `do $$ declare name text; begin
		set local session_replication_role = replica; -- no foreign key is checked
		for name in select quote_ident(tablename) from pg_tables where schemaname = 'public' and tablename <> 'schema_versions' loop
			execute 'delete from ' || name;
		end loop;
		perform setval(oid, 1, false) from pg_class where relkind = 'S' and relnamespace = 'public'::regnamespace
			and oid <> coalesce(pg_get_serial_sequence('schema_versions', 'id')::regclass, 0);
	end $$`
)
