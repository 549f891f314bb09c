package service_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/store"
	"countersign/internal/testdb"
)

// newKey creates a key of the organization and returns its caller.
func (g *governed) newKey(request *service.KeyRequest) (*service.NewKey, *service.Caller) {
	g.t.Helper()
	key := must[*service.NewKey](g.t)(g.CreateAPIKey(g.t.Context(), g.who.admin, request))
	return key, must[*service.Caller](g.t)(g.Authenticate(g.t.Context(), key.Text.Reveal()))
}

// in returns the time after a duration from now.
func (g *governed) in(span time.Duration) *ledger.Time {
	at := ledger.TimeOf(g.clock.Now().Add(span))
	return &at
}

// A wait that outlives its key is refused, whatever the outcome of the approval.
//
//countersign:race
func TestWaitsEndWithTheirKey(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		heard := overhear(g.another())
		elsewhere := g.over(heard)
		for name, test := range map[string]struct {
			end  func(*service.NewKey)
			code fault.Code
		}{
			"expired": {func(*service.NewKey) { g.clock.Advance(time.Hour) }, fault.CodeKeyExpired},
			"revoked": {func(key *service.NewKey) {
				must[*ledger.KeyRecord](t)(g.RevokeAPIKey(t.Context(), g.who.admin, key.Record.ID))
			}, fault.CodeUnauthenticated},
			"rotated": {func(key *service.NewKey) {
				must[*service.NewKey](t)(g.RotateAPIKey(t.Context(), g.who.admin, &service.Rotation{Key: key.Record.ID}))
			}, fault.CodeKeyExpired},
			"rotated with an overlap": {func(key *service.NewKey) {
				must[*service.NewKey](t)(g.RotateAPIKey(t.Context(), g.who.admin, &service.Rotation{Key: key.Record.ID, Overlap: time.Minute}))
			}, ""},
		} {
			key, caller := g.newKey(&service.KeyRequest{Name: name, Role: ledger.RoleMember, ExpiresAt: g.in(time.Hour)})
			id := g.ask(g.open(name))
			answered := poll(t.Context(), elsewhere, caller, id, forever)
			<-heard.read
			test.end(key)
			g.approve(id)
			if got := <-answered; codeOf(got.err) != test.code {
				t.Errorf("%s: the wait ended with %v, want %q", name, got.err, test.code)
			}
			for len(heard.read) > 0 {
				<-heard.read
			}
		}
	})
}

// A wait ends as soon as its key does, even if another replica ended the key and nobody decides
// the approval. Changes that are not announced are detected, too: by a command that runs beside
// the server, and by someone who deletes a row by hand.
//
//countersign:race
func TestAKeyThatEndsWakesItsWaits(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		heard := overhear(g.another())
		elsewhere, rechecking := g.over(heard), g.over(heard)
		rechecking.RecheckKeys(time.Millisecond)
		scene := g.scene()
		for name, test := range map[string]struct {
			replica *service.Service
			end     func(*service.NewKey)
			code    fault.Code
		}{
			"revoked": {elsewhere, func(key *service.NewKey) {
				must[*ledger.KeyRecord](t)(g.RevokeAPIKey(t.Context(), g.who.admin, key.Record.ID))
			}, fault.CodeUnauthenticated},
			"rotated": {elsewhere, func(key *service.NewKey) {
				must[*service.NewKey](t)(g.RotateAPIKey(t.Context(), g.who.admin, &service.Rotation{Key: key.Record.ID}))
			}, fault.CodeKeyExpired},
			"revoked by a command": {rechecking, func(key *service.NewKey) {
				must[*ledger.KeyRecord](t)(g.over(db.Open(t)).Operator().RevokeKey(t.Context(), g.who.slug, key.Record.ID))
			}, fault.CodeUnauthenticated},
			"removed by hand": {rechecking, func(key *service.NewKey) {
				row := scene.keyRow(&service.Caller{Key: key.Record.ID})
				done(t, scene.remove(&row))
			}, fault.CodeUnauthenticated},
		} {
			key, caller := g.newKey(&service.KeyRequest{Name: name, Role: ledger.RoleMember})
			id := g.ask(g.open(name))
			answered := poll(t.Context(), test.replica, caller, id, forever)
			<-heard.read
			test.end(key)
			if got := <-answered; codeOf(got.err) != test.code || got.view != nil {
				t.Errorf("%s: the wait ended with %v and %v, want %q", name, got.view, got.err, test.code)
			}
			for len(heard.read) > 0 {
				<-heard.read
			}
		}
	})
}

// Nobody waits longer than their secret is valid.
func TestLongestWait(t *testing.T) {
	t.Parallel()
	at := func(t ledger.Time) *ledger.Time { return &t }
	for _, test := range []struct {
		ends *ledger.Time
		want time.Duration
	}{
		{nil, time.Minute},
		{at(1000 + 60_000), time.Minute},
		{at(1000 + 59_999), 59_999 * time.Millisecond},
		{at(1000), 0},
		{at(1), 0},
		{at(253402300799999), time.Minute},
	} {
		if got := service.LongestWait(test.ends, time.Minute, 1000); got != test.want {
			t.Errorf("with an end at %v the wait is %v, want %v", test.ends, got, test.want)
		}
	}
}

// Once a rotation without overlap has returned, the old secret grants no access on any replica.
//
//countersign:race
func TestRotationAgainstUse(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		const writers, rounds = 4, 6
		g := govern(t, db)
		replicas := []*service.Service{g.Service, g.replica()}
		key, _ := g.newKey(&service.KeyRequest{Role: ledger.RoleAgent})
		texts := []ledger.Secret{key.Text} // the one of each round
		var latest atomic.Int64            // which of them is the newest whose rotation was answered
		var tried [rounds + 1]atomic.Int64 // with the text of each round
		var mu sync.RWMutex                // guards texts
		text := func(round int64) string {
			mu.RLock()
			defer mu.RUnlock()
			return texts[round].Reveal()
		}
		stop := make(chan struct{})
		var crowd sync.WaitGroup
		for i := range writers {
			crowd.Go(func() {
				s := replicas[i%2]
				for n := 0; ; n++ {
					select {
					case <-stop:
						return
					default:
					}
					// Each second try is made with the secret before.
					began := latest.Load()
					round := max(began-int64(n%2), 0)
					caller, err := s.Authenticate(context.Background(), text(round))
					if err == nil {
						_, err = s.OpenChain(context.Background(), caller, chainNamed(t, fmt.Sprint(i, "-", n)), "")
					}
					switch code := codeOf(err); {
					case round < began && code == "":
						t.Errorf("an old secret was accepted after its rotation was answered")
					case code != "" && code != fault.CodeKeyExpired && code != fault.CodeUnauthenticated:
						t.Errorf("with the secret %d of %d: %v", round, began, err)
					}
					tried[round].Add(1)
				}
			})
		}
		for round := range int64(rounds) {
			until(&tried[round], 3)
			made, err := replicas[round%2].RotateAPIKey(context.Background(), g.who.admin, &service.Rotation{Key: key.Record.ID})
			if err != nil {
				t.Fatal(err)
			}
			mu.Lock()
			texts = append(texts, made.Text)
			mu.Unlock()
			latest.Store(round + 1)
		}
		until(&tried[rounds], 3)
		close(stop)
		crowd.Wait()
		if _, err := g.Authenticate(context.Background(), text(rounds)); err != nil {
			t.Errorf("the last secret: %v", err)
		}
		checkIntact(t, replicas[1], "acme", 0)
	})
}

// Rotations and a revocation in one batch are one change of the key, and the key stays revoked.
//
//countersign:race
func TestRotationsAndRevocationTogether(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		replicas := []*service.Service{g.Service, g.replica()}
		for range 3 {
			key, _ := g.newKey(&service.KeyRequest{Role: ledger.RoleAgent})
			var crowd sync.WaitGroup
			for i := range 10 {
				crowd.Go(func() {
					var err error
					if i == 5 {
						_, err = replicas[i%2].RevokeAPIKey(context.Background(), g.who.admin, key.Record.ID)
					} else {
						_, err = replicas[i%2].RotateAPIKey(context.Background(), g.who.admin, &service.Rotation{Key: key.Record.ID, Overlap: time.Minute})
					}
					if code := codeOf(err); code != "" && code != fault.CodeAPIKeyEnded {
						t.Errorf("at once: %v", err)
					}
				})
			}
			crowd.Wait()
			if stored := must[*ledger.KeyRecord](t)(g.store.Key(context.Background(), key.Record.ID)); stored.RevokedAt == nil {
				t.Error("a rotation brought the revoked key back")
			}
		}
		checkIntact(t, g.Service, "acme", 0)
	})
}

// Requests with one idempotency key make one rotation, however often and wherever they are sent,
// and one of them gets the text.
//
//countersign:race
func TestOneRotationForOneKey(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		replicas := []*service.Service{g.Service, g.replica()}
		key, _ := g.newKey(&service.KeyRequest{Role: ledger.RoleAgent})
		var told atomic.Int64
		var crowd sync.WaitGroup
		for i := range 10 {
			crowd.Go(func() {
				made, err := replicas[i%2].RotateAPIKey(context.Background(), g.who.admin, &service.Rotation{Key: key.Record.ID, Overlap: time.Second, IdempotencyKey: "once"})
				if err != nil {
					t.Error(err)
					return
				}
				if made.Text.Reveal() != "" {
					told.Add(1)
				}
			})
		}
		crowd.Wait()
		stored := must[*ledger.KeyRecord](t)(g.store.Key(context.Background(), key.Record.ID))
		if told.Load() != 1 || stored.Previous == nil || stored.Previous.Hash != key.Record.Hash {
			t.Errorf("%d were told a text, and the key is %+v", told.Load(), stored)
		}
	})
}

// failsOnce counts writes, and fails the first.
type failsOnce struct {
	failed atomic.Bool
	writes atomic.Int64
}

func (f *failsOnce) write() error {
	f.writes.Add(1)
	if f.failed.CompareAndSwap(false, true) {
		return errors.New("not now")
	}
	return nil
}

// unwilling fails to write uses once.
type unwilling struct {
	store.Store
	failsOnce
}

func (u *unwilling) TouchKeys(ctx context.Context, used map[ledger.KeyID]ledger.Time) error {
	if err := u.write(); err != nil {
		return err
	}
	return u.Store.TouchKeys(ctx, used)
}

// The last use of keys is written by a flush and not before, once for all keys, and a failed flush
// loses nothing. Of two replicas, the later time wins.
func TestKeyUseIsFlushed(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		u := &unwilling{Store: g.another()}
		s := g.over(u)
		key, _ := g.newKey(&service.KeyRequest{Role: ledger.RoleAgent})
		other, _ := g.newKey(&service.KeyRequest{Role: ledger.RoleAgent})
		use := func(s *service.Service, key *service.NewKey) {
			t.Helper()
			caller := must[*service.Caller](t)(s.Authenticate(t.Context(), key.Text.Reveal()))
			must[*service.ChainView](t)(s.OpenChain(t.Context(), caller, chainNamed(t, "n"), ""))
		}
		want := func(key *service.NewKey, at ledger.Time) {
			t.Helper()
			if got := must[*ledger.KeyRecord](t)(g.store.Key(t.Context(), key.Record.ID)).LastUsedAt; got == nil || *got != at {
				t.Errorf("last used at %v, want %v", got, at)
			}
		}
		g.clock.Advance(time.Minute)
		later := *g.in(0)
		for range 3 {
			use(s, key)
			use(s, other)
		}
		if u.writes.Load() != 0 {
			t.Error("a use was written before it was flushed")
		}
		if err := s.FlushKeyUse(t.Context()); err == nil {
			t.Error("the failure was not told")
		}
		if err := s.FlushKeyUse(t.Context()); err != nil {
			t.Error(err)
		}
		want(key, later)
		want(other, later)
		if err := s.FlushKeyUse(t.Context()); err != nil || u.writes.Load() != 2 {
			t.Errorf("%d writes, %v", u.writes.Load(), err)
		}
		// This replica noted an earlier use, and flushes it after.
		if err := g.FlushKeyUse(t.Context()); err != nil {
			t.Error(err)
		}
		want(key, later)
	})
}

// A key that is bound to agents never gets a lease: under one, its client could start another
// agent's action that nobody records.
func TestBoundKeysGetNoLease(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		for name, agents := range map[string][]string{"free": nil, "bound": {"agent"}} {
			_, caller := g.newKey(&service.KeyRequest{Name: name, Role: ledger.RoleAgent, Agents: agents})
			opened := must[*service.ChainView](t)(g.OpenChain(t.Context(), caller, chainNamed(t, name), ""))
			recorded := must[*service.Recorded](t)(g.RecordEvent(t.Context(), caller, opened.ID, step(t, "get_page", "")))
			for answer, terms := range map[string]service.Terms{"opening": *opened.Terms, "recording": recorded.Terms} {
				if (terms.Lease != nil) != (agents == nil) {
					t.Errorf("%s with a %s key: lease %+v", answer, name, terms.Lease)
				}
			}
		}
	})
}
