package storetest

import (
	"context"
	"errors"
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

var keyCheckCases = []testCase{
	{name: "fingerprints are stored", run: keepsFingerprints},
	{name: "the same fingerprint may be added again", run: repeatsFingerprint},
	{name: "another fingerprint is refused and the first is kept", run: refusesFingerprint},
	{name: "different fingerprints added concurrently: one wins", run: oneFingerprint, concurrent: true},
}

func keepsFingerprints(t *testing.T, w *world) {
	if checks := must[map[string][32]byte](t)(w.KeyChecks(t.Context())); len(checks) != 0 {
		t.Errorf("an empty store has %d fingerprints", len(checks))
	}
	want := map[string][32]byte{"k1": ledger.HashToken("one"), "K1": ledger.HashToken("two"), "schlüssel": ledger.HashToken("three")}
	for id, fingerprint := range want {
		if err := w.AddKeyCheck(t.Context(), id, fingerprint); err != nil {
			t.Fatalf("add: %v", err)
		}
	}
	assertEqual(t, "fingerprints", must[map[string][32]byte](t)(w.open(t).KeyChecks(t.Context())), want)
}

func repeatsFingerprint(t *testing.T, w *world) {
	for range 3 {
		if err := w.AddKeyCheck(t.Context(), "k1", ledger.HashToken("one")); err != nil {
			t.Errorf("add: %v", err)
		}
	}
	assertEqual(t, "fingerprints", must[map[string][32]byte](t)(w.KeyChecks(t.Context())),
		map[string][32]byte{"k1": ledger.HashToken("one")})
}

func refusesFingerprint(t *testing.T, w *world) {
	first := ledger.HashToken("one")
	if err := w.AddKeyCheck(t.Context(), "k1", first); err != nil {
		t.Fatalf("add: %v", err)
	}
	wantError(t, "another fingerprint", w.AddKeyCheck(t.Context(), "k1", ledger.HashToken("two")), store.ErrExists)
	assertEqual(t, "fingerprints", must[map[string][32]byte](t)(w.KeyChecks(t.Context())), map[string][32]byte{"k1": first})
}

func oneFingerprint(t *testing.T, w *world) {
	const workers = 6
	var won [workers]bool
	fingerprint := func(worker int) [32]byte { return ledger.HashToken(string(rune('a' + worker))) }
	w.together(t, workers, func(ctx context.Context, s store.Store, worker int) error {
		err := s.AddKeyCheck(ctx, "k1", fingerprint(worker))
		won[worker] = err == nil
		if errors.Is(err, store.ErrExists) {
			return nil
		}
		return err
	})
	kept := must[map[string][32]byte](t)(w.KeyChecks(t.Context()))["k1"]
	for worker := range workers {
		if won[worker] != (kept == fingerprint(worker)) {
			t.Errorf("worker %d got %t, but the store disagrees", worker, won[worker])
		}
	}
}
