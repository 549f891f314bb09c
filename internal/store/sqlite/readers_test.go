package sqlite_test

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// Sequential reads share one connection with its pages and statements.
//
//countersign:race
func TestReadersAreUsedAgain(t *testing.T) {
	t.Parallel()
	s := open(t, filepath.Join(t.TempDir(), "ledger.db"))
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	look := func() error {
		_, err := s.NamedReceipt(t.Context(), ledger.ReceiptID{})
		return err
	}
	for range 50 {
		if err := look(); !errors.Is(err, store.ErrNotFound) {
			t.Fatalf("a receipt that is not there: %v", err)
		}
	}
	if idle := s.IdleReaders(); idle != 1 {
		t.Errorf("%d connections were opened, want 1", idle)
	}
	var crowd sync.WaitGroup
	for range 100 {
		crowd.Go(func() {
			if err := look(); !errors.Is(err, store.ErrNotFound) {
				t.Errorf("in a crowd: %v", err)
			}
		})
	}
	crowd.Wait()
	if idle := s.IdleReaders(); idle < 1 || idle > 16 {
		t.Errorf("a crowd left %d connections, want 1 to 16", idle)
	}
}

// A read of a closed store says that the store is unavailable.
func TestReadAfterClose(t *testing.T) {
	t.Parallel()
	s := open(t, filepath.Join(t.TempDir(), "ledger.db"))
	if err := s.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
	if _, err := s.NamedReceipt(context.Background(), ledger.ReceiptID{}); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a read of a closed store: %v, want %v", err, store.ErrUnavailable)
	}
}

// A connection whose transaction was left open would read an old state of the file. It is not used
// again.
func TestAReaderWithAnOpenTransactionIsNotUsedAgain(t *testing.T) {
	t.Parallel()
	s := open(t, filepath.Join(t.TempDir(), "ledger.db"))
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.LeaveOpen(t.Context()); err != nil {
		t.Fatal(err)
	}
	if idle := s.IdleReaders(); idle != 0 {
		t.Errorf("%d connections with an open transaction wait to be used", idle)
	}
	if _, err := s.NamedReceipt(t.Context(), ledger.ReceiptID{}); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("a read after that: %v", err)
	}
}
