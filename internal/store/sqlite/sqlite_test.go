package sqlite_test

import (
	"os"
	"path/filepath"
	"testing"

	"countersign/internal/store"
	"countersign/internal/store/sqlite"
	"countersign/internal/store/storetest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	empty := migrated(t)
	storetest.Run(t, func(t *testing.T) storetest.Opener {
		path := filepath.Join(t.TempDir(), "test.db")
		if err := os.WriteFile(path, empty, 0o600); err != nil {
			t.Fatal(err)
		}
		return func(t *testing.T) store.Store { return open(t, path) }
	}, storetest.SignalsStayInHandle)
}

// migrated is the file of an empty store. Copying it takes far less time than
// bringing a new file through all migrations, for each of many cases.
func migrated(t *testing.T) []byte {
	t.Helper()
	s := open(t, filepath.Join(t.TempDir(), "template.db"))
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(t.TempDir(), "copy.db")
	if err := s.Backup(t.Context(), copied); err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(copied)
	if err != nil {
		t.Fatal(err)
	}
	return file
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
