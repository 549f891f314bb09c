// Package sqlite keeps Countersign's records in one SQLite file: the embedded
// default. One process serves it; the command line may work on it beside a
// running server.
//
// Durability: write-ahead log with synchronous=FULL, so each commit is on disk
// before it is reported. There is one writing connection, and every write is a
// transaction begun IMMEDIATE, which is SQLite's lock on the whole database:
// stronger than the row locks that the port asks for.
package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/pressly/goose/v3"
	_ "modernc.org/sqlite" // migrations go through database/sql

	"countersign/internal/store"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Store is one database file.
type Store struct {
	path     string
	readers  *readers
	scanners *scanners
	scanTurn time.Duration // how long a scan keeps its view of the file

	mu     sync.Mutex // held while a transaction writes
	writer *connection
	recent *recentRecords

	checkpoints *checkpointer
	watchers    *watchers
	closed      sync.Once
}

var _ store.Store = (*Store)(nil)

// writerCache is smaller than what readers have: after a commit that has moved
// pages about, SQLite goes through all of its cache, and the writer works on few.
const writerCache = "cache_size(-4000)"

// Open opens the file, making an empty one where there is none. The schema is
// Migrate's affair.
func Open(ctx context.Context, path string) (*Store, error) {
	if err := touch(path); err != nil {
		return nil, err
	}
	writer, err := connect(path, writerCache)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	s := &Store{
		path: path, writer: writer, recent: newRecentRecords(), readers: newReaders(path), scanners: &scanners{path: path}, scanTurn: scanTurn, watchers: newWatchers(),
	}
	if s.checkpoints, err = startCheckpointer(s); err != nil {
		return nil, errors.Join(fmt.Errorf("open database: %w", err), s.Close())
	}
	if err := s.Ping(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// touch makes the file with a mode of our own choosing: records hold payloads,
// and nobody else on the machine needs to read them.
func touch(path string) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600) //nolint:gosec // the operator names the file
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	return file.Close()
}

var commonPragmas = []string{
	"busy_timeout(10000)",
	"journal_mode(wal)",
	"synchronous(full)",
	"foreign_keys(1)",
	"cache_size(-16000)",
	"wal_autocheckpoint(0)", // the checkpointer's affair
	// What the file of the log is cut to when the log starts from its beginning again.
	"journal_size_limit(33554432)",
}

// dsn is for database/sql, which makes its connections when it likes: each must
// have the pragmas.
func dsn(path string) string {
	query := url.Values{"_pragma": commonPragmas}
	return (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(), RawQuery: query.Encode()}).String()
}

// Migrate brings the schema up to date. It is harmless when repeated.
func (s *Store) Migrate(ctx context.Context) error {
	return s.migrating(func(p *goose.Provider) error { _, err := p.Up(ctx); return err })
}

// MigrateTo brings the schema up to one version, for tests of later ones.
func (s *Store) MigrateTo(ctx context.Context, version int64) error {
	return s.migrating(func(p *goose.Provider) error { _, err := p.UpTo(ctx, version); return err })
}

// SchemaVersion tells which version the file has and which the binary knows.
func (s *Store) SchemaVersion(ctx context.Context) (current, latest int64, err error) {
	err = s.migrating(func(p *goose.Provider) (err error) {
		current, latest, err = p.GetVersions(ctx)
		return err
	})
	return current, latest, err
}

// migrating runs migrations on a connection of their own.
func (s *Store) migrating(run func(*goose.Provider) error) (err error) {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return fmt.Errorf("migrations: %w", err)
	}
	db, err := sql.Open("sqlite", dsn(s.path))
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	provider, err := goose.NewProvider(goose.DialectSQLite3, db, files)
	if err != nil {
		return fmt.Errorf("migrations: %w", err)
	}
	if err := run(provider); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}

// Ping answers whether the file can be read.
func (s *Store) Ping(ctx context.Context) error {
	return s.read(ctx, "SELECT count(*) FROM sqlite_schema", nil, func(row) error { return nil })
}

// Probe writes the number that a database file has for its program's own use, which
// this one makes no use of: SQLite writes and syncs the page that it stands on as any
// other, and no table is needed that somebody could write to.
func (s *Store) Probe(ctx context.Context) error {
	return s.writing(ctx, func(tx *transaction) error { return tx.exec("PRAGMA user_version = 0") })
}

// Backup writes a consistent copy to a new file while the store is in use.
func (s *Store) Backup(_ context.Context, path string) error {
	// SQLite takes an empty file for a new one, so its mode is ours from the start.
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600) //nolint:gosec // the operator names the file
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s exists already: %w", path, store.ErrExists)
	}
	if err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	if err := errors.Join(s.copyTo(path), file.Sync(), file.Close()); err != nil {
		return fmt.Errorf("backup: %w", errors.Join(err, os.Remove(path)))
	}
	return nil
}

func (s *Store) copyTo(path string) error {
	source, err := connect(s.path)
	if err != nil {
		return err
	}
	return errors.Join(source.exec("VACUUM INTO ?", path), source.close())
}

// Close waits for the transaction under way and closes the file.
func (s *Store) Close() (err error) {
	s.closed.Do(func() {
		err = s.closeWriter()
		s.watchers.close()
		if s.checkpoints != nil {
			err = errors.Join(err, s.checkpoints.close())
		}
		err = errors.Join(err, s.readers.close(), s.scanners.close())
	})
	return err
}

func (s *Store) closeWriter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.writer == nil {
		return nil
	}
	err := s.writer.close()
	s.writer = nil
	return err
}
