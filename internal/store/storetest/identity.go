package storetest

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"countersign/internal/store"
)

var identityCases = []testCase{
	{name: "the ledger's identity is stored", run: keepsLedger},
	{name: "the ledger's identity is replaced only by a caller that knows it", run: replacesLedger},
	{name: "different identities put concurrently: one wins", run: oneLedger, concurrent: true},
}

func keepsLedger(t *testing.T, w *world) {
	_, err := w.Ledger(t.Context())
	wantError(t, "before there is one", err, store.ErrNotFound)
	want := &store.LedgerRecord{ID: uuid.New(), Parent: uuid.New(), CreatedAt: w.now(), MAC: everyByte()}
	done(t, w.PutLedger(t.Context(), want, uuid.Nil))
	assertEqual(t, "ledger", must[*store.LedgerRecord](t)(w.open(t).Ledger(t.Context())), want)
}

func replacesLedger(t *testing.T, w *world) {
	first := &store.LedgerRecord{ID: uuid.New(), CreatedAt: w.now(), MAC: []byte("mac")}
	second := &store.LedgerRecord{ID: uuid.New(), Parent: first.ID, CreatedAt: w.now(), MAC: []byte("another")}
	done(t, w.PutLedger(t.Context(), first, uuid.Nil))
	for _, replaces := range []uuid.UUID{uuid.Nil, uuid.New(), second.ID} {
		wantError(t, "replace another", w.PutLedger(t.Context(), second, replaces), store.ErrExists)
	}
	changed := &store.LedgerRecord{ID: first.ID, CreatedAt: w.now(), MAC: []byte("another")}
	wantError(t, "replace one with the same id", w.PutLedger(t.Context(), changed, uuid.Nil), store.ErrExists)
	assertEqual(t, "ledger", must[*store.LedgerRecord](t)(w.Ledger(t.Context())), first)
	done(t, w.PutLedger(t.Context(), second, first.ID))
	assertEqual(t, "ledger", must[*store.LedgerRecord](t)(w.open(t).Ledger(t.Context())), second)
}

func oneLedger(t *testing.T, w *world) {
	const workers = 6
	var won atomic.Int64
	w.together(t, workers, func(ctx context.Context, s store.Store, _ int) error {
		err := s.PutLedger(ctx, &store.LedgerRecord{ID: uuid.New(), MAC: []byte("mac")}, uuid.Nil)
		if err == nil {
			won.Add(1)
		}
		if errors.Is(err, store.ErrExists) {
			return nil
		}
		return err
	})
	assertEqual(t, "put", won.Load(), 1)
}
