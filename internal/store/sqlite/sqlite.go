// Package sqlite implements the storage port on one SQLite file: the embedded
// default. One process serves the file; commands may use it while a server runs.
//
// Durability: the write-ahead log with synchronous=FULL, so each commit is on disk
// before it is reported. There is one writing connection, and every write is an
// IMMEDIATE transaction, which locks the whole database: stronger than the row locks
// that the port asks for.
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

	"countersign/internal/cache"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Store is one database file.
type Store struct {
	path     string
	readers  *readers
	scanners *scanners
	// maxSnapshot is how long a scan keeps one snapshot of the file. Tests shorten it.
	maxSnapshot time.Duration

	mu     sync.Mutex  // held for the length of a write transaction; guards writer and cache
	writer *connection // nil once closed
	cache  *recordCache

	orgs        *cache.Cache[ledger.OrgID, storedOrg]
	checkpoints *checkpointer
	watchers    *watchers
	closed      sync.Once
}

var _ store.Store = (*Store)(nil)

// writerCache is in KiB. It is small because SQLite walks its whole page cache after
// a commit that moved pages, and the writer uses few pages.
const writerCache = "cache_size(-4000)"

// Open opens the file, or creates an empty one. It does not create the schema: see
// Migrate.
func Open(ctx context.Context, path string) (*Store, error) {
	if err := touch(path); err != nil {
		return nil, err
	}
	writer, err := connect(path, writerCache)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	s := &Store{
		path: path, writer: writer, cache: newRecordCache(), orgs: cache.New[ledger.OrgID, storedOrg](orgCacheBytes), readers: newReaders(path), scanners: &scanners{path: path}, maxSnapshot: maxSnapshot, watchers: newWatchers(),
	}
	if s.checkpoints, err = startCheckpointer(s); err != nil {
		return nil, errors.Join(fmt.Errorf("open database: %w", err), s.Close())
	}
	if err := s.Ping(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// touch creates the file so that only its owner can read it: records hold payloads.
func touch(path string) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600) //nolint:gosec // the operator names the file
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	return file.Close()
}

var commonPragmas = []string{
	"busy_timeout(10000)", // milliseconds
	// In bytes, of a new file; it must be set before the journal's mode, which writes the
	// first page. A receipt takes about 2 KB: a page of 4096 bytes has room for one or for
	// two, and may be half empty.
	"page_size(8192)",
	"journal_mode(wal)",
	"synchronous(full)",
	"foreign_keys(1)",
	"cache_size(-16000)",    // KiB
	"wal_autocheckpoint(0)", // see checkpointer
	// In bytes: what SQLite truncates the log's file to when it reuses the log from its
	// start.
	"journal_size_limit(33554432)",
}

// dsn is the data source name for database/sql. It contains the pragmas because
// database/sql opens connections on its own.
func dsn(path string) string {
	query := url.Values{"_pragma": commonPragmas}
	return (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(), RawQuery: query.Encode()}).String()
}

// Migrate brings the schema up to date. Repeating it is harmless.
func (s *Store) Migrate(ctx context.Context) error {
	return s.migrating(func(p *goose.Provider) error { _, err := p.Up(ctx); return err })
}

// MigrateTo brings the schema up to the given version, for tests of later migrations.
func (s *Store) MigrateTo(ctx context.Context, version int64) error {
	return s.migrating(func(p *goose.Provider) error { _, err := p.UpTo(ctx, version); return err })
}

// SchemaVersion returns the version of the file, which is 0 if it is empty, and the newest that
// the binary knows. It does not ask goose, which would read all migrations first.
func (s *Store) SchemaVersion(ctx context.Context) (current, latest int64, err error) {
	files, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil || len(files) == 0 {
		return 0, 0, errors.New("no migrations are embedded")
	}
	if latest, err = goose.NumericComponent(files[len(files)-1]); err != nil {
		return 0, 0, err
	}
	var tables int64
	err = s.read(ctx, "SELECT count(*) FROM sqlite_schema WHERE name = ?", []any{goose.DefaultTablename}, func(r row) error { return r.Scan(&tables) })
	if err != nil || tables == 0 {
		return 0, latest, err
	}
	err = s.read(ctx, "SELECT coalesce(max(version_id), 0) FROM "+goose.DefaultTablename, nil, func(r row) error { return r.Scan(&current) })
	return current, latest, err
}

// migrating calls run with a provider of migrations that has its own connection.
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

// Ping implements store.Store.
func (s *Store) Ping(ctx context.Context) error {
	return s.read(ctx, "SELECT count(*) FROM sqlite_schema", nil, func(row) error { return nil })
}

// Probe implements store.Store. It writes user_version, a number in the file's header
// that this program does not use. SQLite writes and syncs that page like any other,
// and no table is needed.
func (s *Store) Probe(ctx context.Context) error {
	return s.writing(ctx, func(tx *transaction) error { return tx.exec("PRAGMA user_version = 0") })
}

// Backup implements store.Store.
func (s *Store) Backup(ctx context.Context, path string) error {
	// SQLite accepts an empty file as a new one, so the copy is private from the start.
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600) //nolint:gosec // the operator names the file
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s exists already: %w", path, store.ErrExists)
	}
	if err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	if err := errors.Join(s.copyTo(ctx, path), file.Sync(), file.Close()); err != nil {
		return fmt.Errorf("backup: %w", errors.Join(err, os.Remove(path)))
	}
	return nil
}

// interruptPause is the time between two interruptions of a copy. One is not enough: SQLite
// forgets it if the statement has not begun.
const interruptPause = 10 * time.Millisecond

func (s *Store) copyTo(ctx context.Context, path string) error {
	source, err := connect(s.path)
	if err != nil {
		return classify(err)
	}
	copied := make(chan struct{})
	var interrupting sync.WaitGroup
	interrupting.Go(func() {
		select {
		case <-copied:
			return
		case <-ctx.Done():
		}
		for {
			source.interrupt()
			select {
			case <-copied:
				return
			case <-time.After(interruptPause):
			}
		}
	})
	err = source.exec("VACUUM INTO ?", path)
	close(copied)
	interrupting.Wait()
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", store.ErrUnavailable, ctx.Err())
	}
	return errors.Join(classify(err), source.close())
}

// Close implements store.Store.
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
