package sqlite_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/nightly"
	"countersign/internal/store"
	"countersign/internal/store/sqlite"
	"countersign/internal/store/storetest"
	"countersign/internal/testdb"
)

// Scans that renew their snapshot of the file after each row keep the contract of the
// storage port.
func TestConformanceInShortTurns(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) storetest.Opener {
		path := testdb.SQLite(t).Path
		return func(t *testing.T) store.Store {
			s := open(t, path)
			s.ScanInShortTurns()
			return s
		}
	})
}

// logSize returns the size of a database's write-ahead log in bytes.
func logSize(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path + "-wal")
	if errors.Is(err, os.ErrNotExist) {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// growth writes as a server does under load: one transaction after the other, each of
// a few small rows that are far apart, so that the log grows much faster than the data.
type growth struct {
	store *sqlite.Store
	org   ledger.OrgID
	made  uint64
}

func newGrowth(t *testing.T, s *sqlite.Store) *growth {
	t.Helper()
	org := &ledger.Organization{ID: ledger.OrgID{UUID: id(0)}, Slug: "acme", Settings: ledger.DefaultSettings()}
	if err := s.CreateOrganization(t.Context(), org, &ledger.Head{Org: org.ID, MAC: []byte{}}, nil); err != nil {
		t.Fatal(err)
	}
	return &growth{store: s, org: org.ID}
}

func (g *growth) write(t *testing.T, transactions int) {
	t.Helper()
	for range transactions {
		changes := new(store.Changes)
		for range 8 {
			g.made++
			chain := &store.ChainRecord{
				Org: g.org, Environment: "production", Status: ledger.ChainActive,
				Body: bytes.Repeat([]byte("b"), 400), State: bytes.Repeat([]byte("s"), 500), MAC: bytes.Repeat([]byte("m"), 32),
			}
			binary.BigEndian.PutUint64(chain.ID.UUID[:], g.made*0x9e3779b97f4a7c15)
			changes.NewChains = append(changes.NewChains, chain)
		}
		err := g.store.Transact(t.Context(), new(store.Needs), func(*store.Loaded) (*store.Changes, error) { return changes, nil })
		if err != nil {
			t.Fatal(err)
		}
	}
}

// The write-ahead log stays below its limit while much more than that is written and
// other goroutines read and scan all the time.
//
//countersign:race
func TestLogStaysSmall(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "test.db")
	s := open(t, path)
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	g := newGrowth(t, s)
	g.write(t, 50)
	done := make(chan struct{})
	var reading sync.WaitGroup
	for range 2 {
		reading.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if err := s.ScanChains(t.Context(), g.org, func(*store.ChainRecord) error { return nil }); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	largest := int64(0)
	for range nightly.Count(12, 500) {
		g.write(t, 50)
		largest = max(largest, logSize(t, path))
	}
	close(done)
	reading.Wait()
	t.Logf("the log was at most %d MB", largest>>20)
	if largest > sqlite.MaxLog {
		t.Errorf("the log was %d MB, want at most %d", largest>>20, sqlite.MaxLog>>20)
	}
}

// A log that an earlier process left is copied and truncated when the database is opened.
func TestLogLeftBehindIsMoved(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "test.db")
	first := open(t, path) // holds the file open: SQLite would copy the log when the last connection closes
	if err := first.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	newGrowth(t, first).write(t, 100)
	if size := logSize(t, path); size < 1<<20 {
		t.Fatalf("the log has %d bytes: this test shows nothing", size)
	}
	open(t, path)
	if size := logSize(t, path); size != 0 {
		t.Errorf("after the database was opened the log has %d bytes", size)
	}
}
