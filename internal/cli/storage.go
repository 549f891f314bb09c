package cli

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

	"countersign/internal/keyring"
	"countersign/internal/store"
)

// Storage is the flags of every command that works on a store: where the records and
// the keys are.
type Storage struct {
	Data     string `help:"Folder of the embedded database and the key file." default:"./data" type:"path"`
	Database string `help:"PostgreSQL address (postgres://…) to use instead of the embedded database." placeholder:"URL"`
	Keys     string `help:"File of the master keys; the default is keys.json in the data folder." type:"path" placeholder:"FILE"`
	Heads    string `help:"Heads file, which records the acknowledged receipts outside the database; the default is heads.json next to the key file." type:"path" placeholder:"FILE"`
	Config   string `help:"Configuration file, YAML or JSON, with flags of serve by name." type:"path" placeholder:"FILE"`
}

// Validate implements kong's check of a command. The error does not repeat the URL,
// which may hold a password. The main package checks the rest of it with the driver.
func (s *Storage) Validate() error {
	if !s.Embedded() && !strings.HasPrefix(s.Database, "postgres://") && !strings.HasPrefix(s.Database, "postgresql://") {
		return errors.New("--database must have the form postgres://user@host:5432/database")
	}
	return nil
}

// KeyFile returns the path of the key file.
func (s *Storage) KeyFile() string {
	if s.Keys != "" {
		return s.Keys
	}
	return filepath.Join(s.Data, "keys.json")
}

// HeadsFile returns the path of the heads file. By default it is next to the keys, which
// are not in a backup of the database, so that restoring an old database does not
// restore an old heads file with it.
func (s *Storage) HeadsFile() string {
	if s.Heads != "" {
		return s.Heads
	}
	return filepath.Join(filepath.Dir(s.KeyFile()), "heads.json")
}

// openHeads reads the heads file. If that fails, the heads are empty and the error is a
// HeadsError.
func (s *Storage) openHeads(ring *keyring.Ring) (*keyring.Heads, error) {
	heads, err := keyring.OpenHeads(s.HeadsFile(), ring)
	switch {
	case err == nil:
		return heads, nil
	case errors.Is(err, keyring.ErrInvalidHeads):
		return heads, &HeadsError{err}
	}
	return heads, &HeadsError{fmt.Errorf("%w; make it readable, or name another file with --heads", err)}
}

// openMemory reads the heads file and the two files next to it: the journal of open
// chains and the marks of the logs. If that fails they are empty, and the error is a
// HeadsError.
func (s *Storage) openMemory(o *Opened) error {
	var err, chainsErr, marksErr error
	o.Heads, err = s.openHeads(o.Ring)
	o.Chains, chainsErr = keyring.OpenChains(keyring.ChainsFile(s.HeadsFile()), o.Ring)
	o.marks, marksErr = keyring.OpenLogMarks(keyring.LogMarksFile(s.HeadsFile()), o.Ring)
	if beside := errors.Join(chainsErr, marksErr); err == nil && beside != nil {
		err = &HeadsError{fmt.Errorf("%w; make it readable, or name another heads file with --heads", beside)}
	}
	return err
}

// HeadsError is an error in the heads file or a file next to it.
type HeadsError struct{ error }

func (e *HeadsError) Unwrap() error { return e.error }

// DatabaseFile returns the path of the embedded database.
func (s *Storage) DatabaseFile() string { return filepath.Join(s.Data, "countersign.db") }

// Embedded reports whether the store is the embedded database.
func (s *Storage) Embedded() bool { return s.Database == "" }

// Open opens the store. It creates an empty embedded one if there is none.
func (s *Storage) Open(p *Process) (Database, error) {
	if !s.Embedded() {
		return p.Databases.OpenPostgres(p.Ctx, s.Database)
	}
	if err := os.MkdirAll(s.Data, 0o700); err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	if err := keyring.CreateOwned(s.DatabaseFile()); err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	return p.Databases.OpenSQLite(p.Ctx, s.DatabaseFile())
}

// CheckExists fails if there is no embedded database, so that commands that only read do
// not create one.
func (s *Storage) CheckExists() error {
	if !s.Embedded() {
		return nil
	}
	_, err := os.Stat(s.DatabaseFile())
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no database in %s: name its folder with --data, or create one with countersign serve", s.Data)
	}
	if err != nil {
		return fmt.Errorf("database: %w", err)
	}
	return nil
}

// OpenStore opens an existing store with the schema of this program. Like everything here that opens
// what must exist, it marks its errors as inconclusive, so that all commands exit with the same status.
func (s *Storage) OpenStore(p *Process) (db Database, err error) {
	defer func() { err = Inconclusive(err) }()
	if err := s.CheckExists(); err != nil {
		return nil, err
	}
	if db, err = s.Open(p); err != nil {
		return nil, err
	}
	current, latest, err := db.SchemaVersion(p.Ctx)
	if err == nil {
		err = CheckSchema(current, latest)
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// CheckSchema fails unless the schema of a database is the one of this program.
func CheckSchema(current, latest int64) error {
	switch {
	case current > latest:
		return fmt.Errorf("the database's schema (version %d) is newer than this program's (%d): run the version that migrated it, or a later one", current, latest)
	case current < latest:
		return fmt.Errorf("the database's schema (version %d) is older than this program's (%d): run countersign migrate", current, latest)
	}
	return nil
}

// openMigrated opens or creates a store. An empty one gets the schema. An older schema is
// migrated only if upgrade is set, since a server of the older version may be using it.
func (s *Storage) openMigrated(p *Process, upgrade bool) (Database, error) {
	db, err := s.Open(p)
	if err != nil {
		return nil, err
	}
	current, latest, err := db.SchemaVersion(p.Ctx)
	switch {
	case err != nil:
	case current == 0, upgrade && current < latest:
		err = db.Migrate(p.Ctx)
	default:
		err = CheckSchema(current, latest)
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// makeRing opens the key file. It creates one only for a store in which nothing was
// signed yet.
func (s *Storage) makeRing(ctx context.Context, db store.Store) (ring *keyring.Ring, made bool, err error) {
	ring, err = keyring.Open(s.KeyFile())
	if !errors.Is(err, keyring.ErrNotFound) {
		return ring, false, Inconclusive(err)
	}
	known, checkErr := db.KeyChecks(ctx)
	if checkErr != nil {
		return nil, false, checkErr
	}
	if len(known) > 0 {
		return nil, false, Inconclusive(fmt.Errorf("%w: this store belongs to another key file; restore it there or name it with --keys", err))
	}
	if err := os.MkdirAll(filepath.Dir(s.KeyFile()), 0o700); err != nil {
		return nil, false, fmt.Errorf("key file: %w", err)
	}
	ring, err = keyring.Create(s.KeyFile(), rand.Reader, time.Now())
	return ring, err == nil, err
}

// OpenKeys opens the key file. The error for a missing one says what cannot be done without it, which is
// loss.
func (s *Storage) OpenKeys(loss string) (*keyring.Ring, error) {
	ring, err := keyring.Open(s.KeyFile())
	if errors.Is(err, keyring.ErrNotFound) {
		err = fmt.Errorf("%w: %s; name it with --keys", err, loss)
	}
	return ring, Inconclusive(err)
}

// OpenHeads reads the heads file and the keys that it is authenticated with. It
// needs no database.
func (s *Storage) OpenHeads() (*keyring.Heads, error) {
	ring, err := s.OpenKeys("the heads file cannot be read without it")
	if err != nil {
		return nil, err
	}
	heads, err := s.openHeads(ring)
	return heads, Inconclusive(err)
}
