package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"countersign/internal/keyring"
	"countersign/internal/store"
	"countersign/internal/store/postgres"
	"countersign/internal/store/sqlite"
)

var randomness = rand.Reader

// storage says where records and keys are. Every command that works on a store
// has these flags.
type storage struct {
	Data     string `help:"Folder of the embedded database and the key file." default:"./data" type:"path"`
	Database string `help:"PostgreSQL address (postgres://…) to use instead of the embedded database." placeholder:"URL"`
	Keys     string `help:"File of the master keys; the default is keys.json in the data folder." type:"path" placeholder:"FILE"`
	Heads    string `help:"File that remembers which receipts were acknowledged; the default is heads.json beside the key file." type:"path" placeholder:"FILE"`
	Config   string `help:"YAML or JSON file with the flags of serve, by their names." type:"path" placeholder:"FILE"`
}

// Validate implements kong's check of a command. It repeats nothing of the address,
// which may hold a password.
func (s *storage) Validate() error {
	if s.embedded() {
		return nil
	}
	if !strings.HasPrefix(s.Database, "postgres://") && !strings.HasPrefix(s.Database, "postgresql://") {
		return errors.New("--database must have the form postgres://user@host:5432/database")
	}
	if _, err := pgxpool.ParseConfig(s.Database); err != nil {
		return errors.New("--database cannot be read: check its port and options, and that special characters in user and password are percent-encoded")
	}
	return nil
}

// migratingStore is a store with its schema's affairs.
type migratingStore interface {
	store.Store
	Migrate(ctx context.Context) error
	SchemaVersion(ctx context.Context) (current, latest int64, err error)
}

func (s *storage) keyFile() string {
	if s.Keys != "" {
		return s.Keys
	}
	return filepath.Join(s.Data, "keys.json")
}

// headsFile stands beside the keys and apart from the database, so that who puts
// an older database back does not put it back as well.
func (s *storage) headsFile() string {
	if s.Heads != "" {
		return s.Heads
	}
	return filepath.Join(filepath.Dir(s.keyFile()), "heads.json")
}

// openHeads reads the file of heads. Where that fails the heads are empty, and the
// error is a headsError.
func (s *storage) openHeads(ring *keyring.Ring) (*keyring.Heads, error) {
	heads, err := keyring.OpenHeads(s.headsFile(), ring)
	switch {
	case err == nil:
		return heads, nil
	case errors.Is(err, keyring.ErrInvalidHeads):
		return heads, &headsError{err}
	}
	return heads, &headsError{fmt.Errorf("%w; make it readable, or name another file with --heads", err)}
}

// openMemory reads what is remembered outside the database: the file of heads, and the
// journal of open chains beside it. Where that fails they are empty, and the error is a
// headsError.
func (s *storage) openMemory(o *opened) error {
	var err, chainsErr error
	o.heads, err = s.openHeads(o.ring)
	o.chains, chainsErr = keyring.OpenChains(keyring.ChainsFile(s.headsFile()), o.ring)
	if err == nil && chainsErr != nil {
		err = &headsError{fmt.Errorf("%w; make it readable, or name another file of heads with --heads", chainsErr)}
	}
	return err
}

// headsError is a fault of the file that remembers what was acknowledged.
type headsError struct{ error }

func (e *headsError) Unwrap() error { return e.error }

func (s *storage) databaseFile() string { return filepath.Join(s.Data, "countersign.db") }

func (s *storage) embedded() bool { return s.Database == "" }

// open opens the store, making an empty one where there is none.
func (s *storage) open(ctx context.Context) (migratingStore, error) {
	if !s.embedded() {
		return postgres.Open(ctx, s.Database)
	}
	if err := os.MkdirAll(s.Data, 0o700); err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	return sqlite.Open(ctx, s.databaseFile())
}

// checkExists refuses to make a database by merely asking for one.
func (s *storage) checkExists() error {
	if !s.embedded() {
		return nil
	}
	_, err := os.Stat(s.databaseFile())
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no database in %s: name its folder with --data, or make one with countersign serve", s.Data)
	}
	if err != nil {
		return fmt.Errorf("database: %w", err)
	}
	return nil
}

// openStore opens a store that is there and that this program was made for.
func (s *storage) openStore(ctx context.Context) (migratingStore, error) {
	if err := s.checkExists(); err != nil {
		return nil, err
	}
	db, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	current, latest, err := db.SchemaVersion(ctx)
	if err == nil {
		err = checkSchema(current, latest)
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

func checkSchema(current, latest int64) error {
	switch {
	case current > latest:
		return fmt.Errorf("the database's schema (version %d) is newer than this program's (%d): run the version that migrated it, or a later one", current, latest)
	case current < latest:
		return fmt.Errorf("the database's schema (version %d) is older than this program's (%d): run countersign migrate", current, latest)
	}
	return nil
}

// openMigrated opens or makes a store. An empty one gets its schema; an older
// schema is brought up to date only on request, for a server of that older
// version may be working on it.
func (s *storage) openMigrated(ctx context.Context, upgrade bool) (migratingStore, error) {
	db, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	current, latest, err := db.SchemaVersion(ctx)
	switch {
	case err != nil:
	case current == 0, upgrade && current < latest:
		err = db.Migrate(ctx)
	default:
		err = checkSchema(current, latest)
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// makeRing opens the key file, making one only for a store that no key has ever
// signed in.
func (s *storage) makeRing(ctx context.Context, db store.Store) (ring *keyring.Ring, made bool, err error) {
	ring, err = keyring.Open(s.keyFile())
	if !errors.Is(err, keyring.ErrNotFound) {
		return ring, false, err
	}
	known, checkErr := db.KeyChecks(ctx)
	if checkErr != nil {
		return nil, false, checkErr
	}
	if len(known) > 0 {
		return nil, false, fmt.Errorf("%w: this store was signed in with another key file; restore it there or point --keys at it", err)
	}
	if err := os.MkdirAll(filepath.Dir(s.keyFile()), 0o700); err != nil {
		return nil, false, fmt.Errorf("key file: %w", err)
	}
	ring, err = keyring.Create(s.keyFile(), randomness, time.Now())
	return ring, err == nil, err
}
