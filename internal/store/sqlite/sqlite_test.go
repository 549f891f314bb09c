package sqlite_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"countersign/internal/store"
	"countersign/internal/store/sqlite"
	"countersign/internal/store/storetest"
	"countersign/internal/testdb"
)

// The SQLite store keeps the contract of the storage port.
func TestConformance(t *testing.T) {
	t.Parallel()
	storetest.Run(t, create)
}

// The SQLite store keeps the contract of the storage port under concurrent use.
//
//countersign:race
func TestConcurrentConformance(t *testing.T) {
	t.Parallel()
	storetest.RunConcurrent(t, create, storetest.SignalsStayInHandle)
}

func create(t *testing.T) storetest.Opener {
	path := testdb.SQLite(t).Path
	return func(t *testing.T) store.Store { return open(t, path) }
}

func open(t *testing.T, path string) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// Nobody but its owner can read the database file or its write-ahead log.
func TestFileIsPrivate(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "test.db")
	if err := open(t, path).Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{path, path + "-wal"} {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if mode := info.Mode().Perm(); mode&0o077 != 0 {
			t.Errorf("%s has mode %o: others can read it", filepath.Base(name), mode)
		}
	}
}

// A backup is a complete, private database, and it overwrites no file.
func TestBackupIsACompleteStore(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	s := open(t, filepath.Join(folder, "test.db"))
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	storetest.Fill(t, s)
	copied := filepath.Join(folder, "copy.db")
	if err := s.Backup(t.Context(), copied); err != nil {
		t.Fatal(err)
	}
	storetest.VerifyFilled(t, open(t, copied))
	if err := s.Backup(t.Context(), copied); err == nil {
		t.Error("a backup overwrote an existing file")
	}
	if info, err := os.Stat(copied); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("backup mode %v, %v", info.Mode(), err)
	}
}

// A new file has pages of 8192 bytes. A file from before keeps its pages, and its log is measured in
// them; its backup is a complete store.
func TestPageSize(t *testing.T) {
	t.Parallel()
	for name, page := range map[string]int64{"a new file": 8192, "a file from before": 4096} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			path := filepath.Join(folder, "test.db")
			if page == 4096 {
				db := testdb.OpenSQL(t, "sqlite", "file:"+path+"?_pragma=page_size(4096)&_pragma=journal_mode(wal)")
				if _, err := db.ExecContext(t.Context(), "CREATE TABLE before (n INTEGER); DROP TABLE before"); err != nil {
					t.Fatal(err)
				}
			}
			s := open(t, path)
			if err := s.Migrate(t.Context()); err != nil {
				t.Fatal(err)
			}
			storetest.Fill(t, s)
			for range 2 {
				if got, frame, err := s.PageSize(t.Context()); got != page || frame != page+24 || err != nil {
					t.Errorf("pages of %d bytes, frames of %d: %v; want pages of %d", got, frame, err, page)
				}
				copied := filepath.Join(folder, "copy.db")
				if err := s.Backup(t.Context(), copied); err != nil {
					t.Fatal(err)
				}
				storetest.VerifyFilled(t, open(t, copied))
				if err := os.Remove(copied); err != nil {
					t.Fatal(err)
				}
				s = open(t, path)
			}
		})
	}
}

// A backup ends when its context does, however large the database is, and leaves no file.
//
//countersign:race
func TestBackupEndsWithItsContext(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	path, copied := filepath.Join(folder, "test.db"), filepath.Join(folder, "copy.db")
	s := open(t, path)
	tamper(t, path, "CREATE TABLE ballast (bytes BLOB)",
		"WITH RECURSIVE rows (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM rows WHERE n < 20000) INSERT INTO ballast SELECT zeroblob(4000) FROM rows")
	for range 20 {
		err := interruptedBackup(t, s, copied)
		if err == nil { // the copy was complete before the interruption
			if err := os.Remove(copied); err != nil {
				t.Fatal(err)
			}
			continue
		}
		wantEnded(t, err, copied)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		wantEnded(t, s.Backup(ctx, copied), copied)
		return
	}
	t.Error("no backup was interrupted")
}

// interruptedBackup makes a backup and cancels it once something was copied.
func interruptedBackup(t *testing.T, s *sqlite.Store, copied string) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- s.Backup(ctx, copied) }()
	for {
		select {
		case err := <-ended:
			return err
		case <-time.After(time.Millisecond):
			if info, err := os.Stat(copied); err == nil && info.Size() > 0 {
				cancel()
			}
		}
	}
}

func wantEnded(t *testing.T, err error, copied string) {
	t.Helper()
	if !errors.Is(err, store.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want %v and %v", err, store.ErrUnavailable, context.Canceled)
	}
	if err := os.Remove(copied); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an incomplete copy is left: %v", err)
	}
}
