package storetest

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

var signInCases = []testCase{
	{name: "a link opens a session", run: linkOpensSession},
	{name: "a link is used once", run: linkIsUsedOnce},
	{name: "an expired link opens nothing", run: expiredLink},
	{name: "an expired session is not found", run: expiredSession},
	{name: "a link is no session and a session no link", run: linkIsNoSession},
	{name: "a link that exists is refused", run: collidingLink},
	{name: "a closed session is gone, also the second time", run: closesSession},
	{name: "a link used by many at once opens one session", run: oneSession, concurrent: true},
}

const lifetime = 1000 // milliseconds

func (w *world) newLink(t *testing.T, name string) *store.SignIn {
	t.Helper()
	link := &store.SignIn{Hash: ledger.HashToken(name), Key: w.join(t).key.ID.UUID, ExpiresAt: w.now() + lifetime}
	if err := w.CreateSignIn(t.Context(), link); err != nil {
		t.Fatalf("create sign-in: %v", err)
	}
	return link
}

func linkOpensSession(t *testing.T, w *world) {
	link, bystander := w.newLink(t, "link"), w.newLink(t, "bystander")
	now := w.now()
	want := &store.SignIn{Hash: ledger.HashToken("session"), Key: link.Key, ExpiresAt: now + 5000}
	assertEqual(t, "opened", must[*store.SignIn](t)(w.OpenSession(t.Context(), link.Hash, want.Hash, now, want.ExpiresAt)), want)
	s := w.open(t)
	assertEqual(t, "session", must[*store.SignIn](t)(s.Session(t.Context(), want.Hash, now)), want)
	opened := must[*store.SignIn](t)(s.OpenSession(t.Context(), bystander.Hash, ledger.HashToken("other"), now, want.ExpiresAt))
	if opened.Key != bystander.Key {
		t.Error("another link opened a session of the wrong key")
	}
}

func linkIsUsedOnce(t *testing.T, w *world) {
	link := w.newLink(t, "link")
	now := w.now()
	must[*store.SignIn](t)(w.OpenSession(t.Context(), link.Hash, ledger.HashToken("first"), now, now+lifetime))
	_, err := w.OpenSession(t.Context(), link.Hash, ledger.HashToken("second"), now, now+lifetime)
	wantError(t, "second use", err, store.ErrNotFound)
	_, err = w.Session(t.Context(), ledger.HashToken("second"), now)
	wantError(t, "second session", err, store.ErrNotFound)
	must[*store.SignIn](t)(w.Session(t.Context(), ledger.HashToken("first"), now))
}

// At its last moment a link or a session has expired, as everything else here.
func expiredLink(t *testing.T, w *world) {
	link := w.newLink(t, "link")
	for _, late := range []ledger.Time{0, 1, lifetime} {
		_, err := w.OpenSession(t.Context(), link.Hash, ledger.HashToken("session"), link.ExpiresAt+late, link.ExpiresAt+2*lifetime)
		wantError(t, "expired link", err, store.ErrNotFound)
	}
	fresh := w.newLink(t, "fresh")
	must[*store.SignIn](t)(w.OpenSession(t.Context(), fresh.Hash, ledger.HashToken("session"), fresh.ExpiresAt-1, fresh.ExpiresAt+lifetime))
}

func expiredSession(t *testing.T, w *world) {
	link := w.newLink(t, "link")
	session, now := ledger.HashToken("session"), w.now()
	must[*store.SignIn](t)(w.OpenSession(t.Context(), link.Hash, session, now, now+lifetime))
	must[*store.SignIn](t)(w.Session(t.Context(), session, now+lifetime-1))
	_, err := w.Session(t.Context(), session, now+lifetime)
	wantError(t, "expired session", err, store.ErrNotFound)
}

func linkIsNoSession(t *testing.T, w *world) {
	link := w.newLink(t, "link")
	session, now := ledger.HashToken("session"), w.now()
	_, err := w.Session(t.Context(), link.Hash, now)
	wantError(t, "link as a session", err, store.ErrNotFound)
	must[*store.SignIn](t)(w.OpenSession(t.Context(), link.Hash, session, now, now+lifetime))
	_, err = w.OpenSession(t.Context(), session, ledger.HashToken("next"), now, now+lifetime)
	wantError(t, "session as a link", err, store.ErrNotFound)
	must[*store.SignIn](t)(w.Session(t.Context(), session, now))
}

func collidingLink(t *testing.T, w *world) {
	link := w.newLink(t, "link")
	again := &store.SignIn{Hash: link.Hash, Key: w.join(t).key.ID.UUID, ExpiresAt: link.ExpiresAt + 1}
	wantError(t, "same link", w.CreateSignIn(t.Context(), again), store.ErrExists)
	opened := must[*store.SignIn](t)(w.OpenSession(t.Context(), link.Hash, ledger.HashToken("session"), w.now(), link.ExpiresAt))
	if opened.Key != link.Key {
		t.Error("the link was taken over")
	}
}

func closesSession(t *testing.T, w *world) {
	link := w.newLink(t, "link")
	session, now := ledger.HashToken("session"), w.now()
	must[*store.SignIn](t)(w.OpenSession(t.Context(), link.Hash, session, now, now+lifetime))
	for range 2 {
		if err := w.CloseSession(t.Context(), session); err != nil {
			t.Errorf("close: %v", err)
		}
		_, err := w.Session(t.Context(), session, now)
		wantError(t, "closed session", err, store.ErrNotFound)
	}
}

func oneSession(t *testing.T, w *world) {
	const workers = 9
	link := w.newLink(t, "link")
	now := w.now()
	var opened atomic.Int64
	session := func(worker int) [32]byte { return ledger.HashToken(uuid.UUID{byte(worker)}.String()) }
	w.together(t, workers, func(ctx context.Context, s store.Store, worker int) error {
		_, err := s.OpenSession(ctx, link.Hash, session(worker), now, now+lifetime)
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		opened.Add(1)
		return err
	})
	found := 0
	for worker := range workers {
		if _, err := w.Session(t.Context(), session(worker), now); err == nil {
			found++
		}
	}
	if opened.Load() != 1 || found != 1 {
		t.Errorf("%d callers opened a session, %d sessions exist: want 1", opened.Load(), found)
	}
}
