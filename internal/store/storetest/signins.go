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
	{name: "a session can be created without a link", run: createsSession},
	{name: "a session can be closed twice", run: closesSession},
	{name: "a link used concurrently opens one session", run: oneSession, concurrent: true},
}

const lifetime = 1000 // milliseconds

func (w *world) newLink(t *testing.T, name string) *store.SignIn {
	t.Helper()
	m := w.join(t)
	link := &store.SignIn{Hash: ledger.HashToken(name), Key: m.key.ID.UUID, Org: m.org.ID, ExpiresAt: w.now() + lifetime, Act: 1 << 40, MAC: everyByte()}
	if err := w.CreateSignIn(t.Context(), link); err != nil {
		t.Fatalf("create sign-in: %v", err)
	}
	return link
}

func done(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// openSession exchanges a link for a session with the given hash.
func openSession(t *testing.T, s store.Store, link *store.SignIn, session [32]byte, now, expires ledger.Time) error {
	t.Helper()
	return s.OpenSession(t.Context(), link.Hash, &store.SignIn{Hash: session, Key: link.Key, ExpiresAt: expires, Session: true}, now)
}

func linkOpensSession(t *testing.T, w *world) {
	link, bystander := w.newLink(t, "link"), w.newLink(t, "bystander")
	now := w.now()
	want := &store.SignIn{Hash: ledger.HashToken("session"), Key: link.Key, Org: link.Org, ExpiresAt: now + 5000, Session: true, SignInAs: "subject|1", Act: 1<<40 + 1, MAC: append(everyByte(), 1)}
	assertEqual(t, "link", must[*store.SignIn](t)(w.SignInLink(t.Context(), link.Hash, now)), link)
	wantError(t, "link of another key", openSession(t, w, &store.SignIn{Hash: bystander.Hash, Key: link.Key}, want.Hash, now, now+lifetime), store.ErrNotFound)
	done(t, w.OpenSession(t.Context(), link.Hash, want, now))
	s := w.open(t)
	assertEqual(t, "session", must[*store.SignIn](t)(s.Session(t.Context(), want.Hash, now)), want)
	_, err := s.SignInLink(t.Context(), link.Hash, now)
	wantError(t, "used link", err, store.ErrNotFound)
	other := ledger.HashToken("other")
	done(t, openSession(t, s, bystander, other, now, want.ExpiresAt))
	if opened := must[*store.SignIn](t)(s.Session(t.Context(), other, now)); opened.Key != bystander.Key {
		t.Error("another link opened a session of the wrong key")
	}
}

func linkIsUsedOnce(t *testing.T, w *world) {
	link := w.newLink(t, "link")
	now := w.now()
	done(t, openSession(t, w, link, ledger.HashToken("first"), now, now+lifetime))
	wantError(t, "second use", openSession(t, w, link, ledger.HashToken("second"), now, now+lifetime), store.ErrNotFound)
	_, err := w.Session(t.Context(), ledger.HashToken("second"), now)
	wantError(t, "second session", err, store.ErrNotFound)
	must[*store.SignIn](t)(w.Session(t.Context(), ledger.HashToken("first"), now))
}

// A link or session has expired at the time of its expiry, like everything else.
func expiredLink(t *testing.T, w *world) {
	link := w.newLink(t, "link")
	for _, late := range []ledger.Time{0, 1, lifetime} {
		wantError(t, "expired link", openSession(t, w, link, ledger.HashToken("session"), link.ExpiresAt+late, link.ExpiresAt+2*lifetime), store.ErrNotFound)
		_, err := w.SignInLink(t.Context(), link.Hash, link.ExpiresAt+late)
		wantError(t, "expired link", err, store.ErrNotFound)
	}
	fresh := w.newLink(t, "fresh")
	done(t, openSession(t, w, fresh, ledger.HashToken("session"), fresh.ExpiresAt-1, fresh.ExpiresAt+lifetime))
}

func expiredSession(t *testing.T, w *world) {
	link := w.newLink(t, "link")
	session, now := ledger.HashToken("session"), w.now()
	done(t, openSession(t, w, link, session, now, now+lifetime))
	must[*store.SignIn](t)(w.Session(t.Context(), session, now+lifetime-1))
	_, err := w.Session(t.Context(), session, now+lifetime)
	wantError(t, "expired session", err, store.ErrNotFound)
}

func linkIsNoSession(t *testing.T, w *world) {
	link := w.newLink(t, "link")
	session, now := ledger.HashToken("session"), w.now()
	_, err := w.Session(t.Context(), link.Hash, now)
	wantError(t, "link as a session", err, store.ErrNotFound)
	done(t, openSession(t, w, link, session, now, now+lifetime))
	asLink := &store.SignIn{Hash: session, Key: link.Key}
	wantError(t, "session as a link", openSession(t, w, asLink, ledger.HashToken("next"), now, now+lifetime), store.ErrNotFound)
	_, err = w.SignInLink(t.Context(), session, now)
	wantError(t, "session found as a link", err, store.ErrNotFound)
	must[*store.SignIn](t)(w.Session(t.Context(), session, now))
}

func collidingLink(t *testing.T, w *world) {
	link := w.newLink(t, "link")
	again := &store.SignIn{Hash: link.Hash, Key: w.join(t).key.ID.UUID, ExpiresAt: link.ExpiresAt + 1}
	wantError(t, "same link", w.CreateSignIn(t.Context(), again), store.ErrExists)
	assertEqual(t, "link", must[*store.SignIn](t)(w.SignInLink(t.Context(), link.Hash, w.now())), link)
}

func createsSession(t *testing.T, w *world) {
	m, now := w.join(t), w.now()
	old := &store.SignIn{Hash: ledger.HashToken("old"), Key: m.key.ID.UUID, Org: m.org.ID, ExpiresAt: now + lifetime, Session: true}
	done(t, w.CreateSession(t.Context(), old, now))
	want := &store.SignIn{Hash: ledger.HashToken("session"), Key: m.key.ID.UUID, Org: m.org.ID, ExpiresAt: now + 3*lifetime, Session: true, SignInAs: "alice@example.com", Act: 1<<40 + 1, MAC: everyByte()}
	done(t, w.CreateSession(t.Context(), want, now+2*lifetime))
	assertEqual(t, "session", must[*store.SignIn](t)(w.open(t).Session(t.Context(), want.Hash, now)), want)
	_, err := w.SignInLink(t.Context(), want.Hash, now)
	wantError(t, "session found as a link", err, store.ErrNotFound)
	_, err = w.Session(t.Context(), old.Hash, now)
	wantError(t, "session that had expired when another was created", err, store.ErrNotFound)
	wantError(t, "same session", w.CreateSession(t.Context(), want, now), store.ErrExists)
}

func closesSession(t *testing.T, w *world) {
	link := w.newLink(t, "link")
	session, now := ledger.HashToken("session"), w.now()
	done(t, openSession(t, w, link, session, now, now+lifetime))
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
		err := s.OpenSession(ctx, link.Hash, &store.SignIn{Hash: session(worker), Key: link.Key, ExpiresAt: now + lifetime, Session: true}, now)
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
