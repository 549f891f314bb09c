package sqlite_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/store/storetest"
)

// When a read of plan fails, SQLite rolls back by itself. Whatever plan returns then, nothing is
// written, and the caller learns that the store is unavailable.
func TestFailedReadInPlan(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		refuse bool // plan returns the error of its read
	}{{"plan fails", true}, {"plan continues", false}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "test.db")
			filled := open(t, path)
			if err := filled.Migrate(t.Context()); err != nil {
				t.Fatal(err)
			}
			storetest.Fill(t, filled)
			organizations, err := filled.Organizations(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			org := organizations[0].ID
			chains, err := filled.Chains(t.Context(), store.ChainQuery{Org: org, Limit: 1})
			if err != nil {
				t.Fatal(err)
			}
			fresh := *chains[0]
			fresh.ID, fresh.IdempotencyKey = ledger.ChainID{UUID: ledger.NewTimedID(1, [10]byte{})}, ""

			s := open(t, path) // it has no page of the chain in memory
			err = s.Transact(t.Context(), new(store.Needs), func(loaded *store.Loaded) (*store.Changes, error) {
				restore := breakReads(t, path)
				_, err := loaded.EventsAfter(chains[0].ID, 0)
				restore()
				if !errors.Is(err, store.ErrInputOutput) {
					t.Errorf("the read: error %v, want %v", err, store.ErrInputOutput)
				}
				if test.refuse {
					return nil, err
				}
				return &store.Changes{NewChains: []*store.ChainRecord{&fresh}}, nil
			})
			if !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("transact: error %v, want %v", err, store.ErrUnavailable)
			}
			if _, err := s.Chain(t.Context(), fresh.ID); !errors.Is(err, store.ErrNotFound) {
				t.Errorf("the chain: error %v, want %v", err, store.ErrNotFound)
			}
			if err := s.Probe(t.Context()); err != nil {
				t.Errorf("the next write: %v", err)
			}
		})
	}
}

// breakReads makes the reads of all connections to a database fail until restore is called.
func breakReads(t *testing.T, path string) (restore func()) {
	t.Helper()
	unreadable, err := os.OpenFile(filepath.Join(t.TempDir(), "unreadable"), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	descriptors, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	saved := make(map[int]int) // copies of the descriptors
	replace := func(fd, by int) {
		if err := syscall.Dup3(by, fd, syscall.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
	}
	for _, descriptor := range descriptors {
		file, err := os.Readlink("/proc/self/fd/" + descriptor.Name())
		if err != nil || file != path && file != path+"-wal" {
			continue
		}
		fd, err := strconv.Atoi(descriptor.Name())
		if err != nil {
			t.Fatal(err)
		}
		if saved[fd], err = syscall.Dup(fd); err != nil {
			t.Fatal(err)
		}
		replace(fd, int(unreadable.Fd()))
	}
	return func() {
		for fd, original := range saved {
			replace(fd, original)
			_ = syscall.Close(original)
		}
		_ = unreadable.Close()
	}
}
