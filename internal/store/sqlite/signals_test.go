package sqlite_test

import (
	"encoding/binary"
	"errors"
	"path/filepath"
	"testing"

	"github.com/google/uuid"

	"countersign/internal/store"
)

// signals commits a transaction that announces count approvals.
func signals(t *testing.T, s store.Store, count int) {
	t.Helper()
	changes := &store.Changes{Signals: make([]uuid.UUID, count)}
	for i := range changes.Signals {
		binary.BigEndian.PutUint64(changes.Signals[i][:], uint64(i+1))
	}
	err := s.Transact(t.Context(), new(store.Needs), func(*store.Loaded) (*store.Changes, error) { return changes, nil })
	if err != nil {
		t.Fatal(err)
	}
}

// A watcher that falls far behind is told that it missed signals, and only a bounded
// number is kept for it.
//
//countersign:race
func TestWatcherThatFallsFarBehindIsTold(t *testing.T) {
	t.Parallel()
	s := open(t, filepath.Join(t.TempDir(), "test.db"))
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	entered, release, told := make(chan struct{}), make(chan struct{}), make(chan struct{}, 2)
	heard := 0
	ended := make(chan error, 1)
	go func() {
		ended <- s.Watch(t.Context(), func(uuid.UUID) {
			if heard++; heard == 1 {
				close(entered)
				<-release
			}
		}, func() { told <- struct{}{} })
	}()
	<-told
	signals(t, s, 1)
	<-entered
	for range 20 {
		signals(t, s, 1000)
	}
	close(release)
	<-told
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("watching a store that was closed: error %v, want %v", err, store.ErrUnavailable)
	}
	if heard > 10_000 {
		t.Errorf("%d signals were kept for one that did not take them", heard)
	}
}
