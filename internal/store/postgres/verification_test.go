package postgres_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/store/postgres"
	"countersign/internal/testdb"
)

func newToken(org ledger.OrgID, key string) *store.TokenRecord {
	id := ledger.TokenID{UUID: uuid.New()}
	return &store.TokenRecord{ID: id, Org: org, Hash: ledger.HashToken(id.String()), Artifact: "receipt", IdempotencyKey: key}
}

// checkVerification uses tokens, signing keys and anchors in an organization that predates them.
func checkVerification(t *testing.T, s *postgres.Store, org ledger.OrgID) {
	t.Helper()
	token := newToken(org, "issue")
	key := &store.SigningKeyRecord{ID: ledger.SigningKeyID{UUID: uuid.New()}, Org: org, Public: make([]byte, 32), Status: "historical"}
	ref := store.TokenRef{Org: org, Key: "issue"}
	needs := &store.Needs{Issued: []store.TokenRef{ref}, SigningKeys: []ledger.OrgID{org}}
	err := s.Transact(t.Context(), needs, func(loaded *store.Loaded) (*store.Changes, error) {
		if loaded.Issued[ref] != nil || len(loaded.SigningKeys[org]) != 0 {
			return nil, errors.New("there is something already")
		}
		return &store.Changes{NewTokens: []*store.TokenRecord{token}, SigningKeys: []*store.SigningKeyRecord{key}}, nil
	})
	if err != nil {
		t.Fatalf("transact: %v", err)
	}
	anchor := &store.AnchorRecord{Org: org, Subject: store.AnchorSubject{Kind: "head", ID: numbered(11)}, Sequence: 1, Method: "tsa", Status: "pending"}
	if err := s.PutAnchor(t.Context(), anchor); err != nil {
		t.Errorf("put anchor: %v", err)
	}
	if found, err := s.ActiveToken(t.Context(), token.Hash, 1); err != nil || found.ID != token.ID {
		t.Errorf("token %+v, error %v", found, err)
	}
	if found, err := s.SigningKeys(t.Context(), org); err != nil || len(found) != 1 || found[0].ID != key.ID {
		t.Errorf("signing keys %+v, error %v", found, err)
	}
	if found, err := s.HeadAnchors(t.Context(), org, 1); err != nil || len(found) != 1 || found[0].Subject != anchor.Subject {
		t.Errorf("anchors %+v, error %v", found, err)
	}
}

// TestTwoIssuesAtOnce: both transactions find nothing before either writes. One is refused, and
// finds the other's token when it retries.
//
//countersign:race
func TestTwoIssuesAtOnce(t *testing.T) {
	t.Parallel()
	address := newDatabase(t)
	one, two := open(t, address), open(t, address)
	who := newTenant(t, one)
	ref := store.TokenRef{Org: who.org, Key: "once"}
	issue := func(s *postgres.Store, wait func()) (issued ledger.TokenID, err error) {
		err = s.Transact(t.Context(), &store.Needs{Issued: []store.TokenRef{ref}}, func(loaded *store.Loaded) (*store.Changes, error) {
			wait()
			if token := loaded.Issued[ref]; token != nil {
				issued = token.ID
				return nil, nil
			}
			token := newToken(who.org, ref.Key)
			issued = token.ID
			return &store.Changes{NewTokens: []*store.TokenRecord{token}}, nil
		})
		return issued, err
	}
	bothLoaded, written := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(bothLoaded) })
	var winner ledger.TokenID
	var group errgroup.Group
	group.Go(func() (err error) {
		defer close(written)
		winner, err = issue(one, func() { <-bothLoaded })
		return err
	})
	_, refusal := issue(two, func() { release(); <-written })
	release() // in case the second did not get this far
	if err := group.Wait(); err != nil {
		t.Fatalf("the first: %v", err)
	}
	if !errors.Is(refusal, store.ErrExists) {
		t.Errorf("the second: error %v, want %v", refusal, store.ErrExists)
	}
	if found, err := issue(two, func() {}); err != nil || found != winner {
		t.Errorf("the second attempt finds %v, error %v, want %v", found, err, winner)
	}
}

// TestCrossingIssues: several transactions find nothing and then issue tokens with the same keys in
// different orders. One wins, and there is no deadlock.
//
//countersign:race
func TestCrossingIssues(t *testing.T) {
	t.Parallel()
	const workers, width = 4, 1000
	address := newDatabase(t)
	s := open(t, address)
	who := newTenant(t, s)
	var loaded sync.WaitGroup
	loaded.Add(workers)
	issue := func(worker int) error {
		arrive := sync.OnceFunc(loaded.Done)
		defer arrive() // in case it did not get this far
		return s.Transact(t.Context(), &store.Needs{}, func(*store.Loaded) (*store.Changes, error) {
			changes := new(store.Changes)
			for _, i := range rand.New(rand.NewPCG(7, uint64(worker))).Perm(width) {
				changes.NewTokens = append(changes.NewTokens, newToken(who.org, fmt.Sprint("key ", i)))
			}
			arrive()
			loaded.Wait()
			return changes, nil
		})
	}
	var group errgroup.Group
	var won atomic.Int64
	for worker := range workers {
		group.Go(func() error {
			err := issue(worker)
			if errors.Is(err, store.ErrExists) {
				return nil
			}
			won.Add(1)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if won.Load() != 1 {
		t.Errorf("%d issues succeeded, want 1", won.Load())
	}
}

// TestTokenLookUpsCostTheSame: the traffic to the server does not reveal why a token was not found.
func TestTokenLookUpsCostTheSame(t *testing.T) {
	t.Parallel()
	between, through := newProxy(t, testdb.WithParameter(t, newDatabase(t), "pool_max_conns", "1"))
	s := open(t, through)
	who := newTenant(t, s)
	active, revoked, expired := newToken(who.org, ""), newToken(who.org, ""), newToken(who.org, "")
	at := ledger.Time(10)
	revoked.RevokedAt, expired.ExpiresAt = &at, &at
	err := s.Transact(t.Context(), &store.Needs{}, func(*store.Loaded) (*store.Changes, error) {
		return &store.Changes{NewTokens: []*store.TokenRecord{active, revoked, expired}}, nil
	})
	if err != nil {
		t.Fatalf("transact: %v", err)
	}
	if _, err := s.ActiveToken(t.Context(), active.Hash, at); err != nil { // prepares the statement
		t.Fatalf("active: %v", err)
	}
	for name, hash := range map[string][32]byte{"unknown": {1}, "empty": {}, "revoked": revoked.Hash, "expired": expired.Hash} {
		trips, statements := between.trips.Load(), between.statements.Load()
		if _, err := s.ActiveToken(t.Context(), hash, at); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("%s: error %v, want %v", name, err, store.ErrNotFound)
		}
		if trips, statements = between.trips.Load()-trips, between.statements.Load()-statements; trips != 1 || statements != 1 {
			t.Errorf("%s: %d round trips and %d statements, want one each", name, trips, statements)
		}
	}
}

// TestRoundTripsOfTokens: tokens and signing keys take no extra round trips.
func TestRoundTripsOfTokens(t *testing.T) {
	t.Parallel()
	between, through := newProxy(t, testdb.WithParameter(t, newDatabase(t), "pool_max_conns", "1"))
	s := open(t, through)
	who := newTenant(t, s)
	at := ledger.Time(10)
	old := newToken(who.org, "")
	write := func(changes *store.Changes) {
		t.Helper()
		needs := &store.Needs{
			Tokens: []ledger.TokenID{old.ID}, Issued: []store.TokenRef{{Org: who.org, Key: "next"}}, SigningKeys: []ledger.OrgID{who.org},
		}
		if err := s.Transact(t.Context(), needs, func(*store.Loaded) (*store.Changes, error) { return changes, nil }); err != nil {
			t.Fatalf("transact: %v", err)
		}
	}
	write(&store.Changes{NewTokens: []*store.TokenRecord{old}})
	old.RevokedAt = &at
	var trips, statements int64
	for range 2 { // the first run prepares the statements
		trips, statements = between.trips.Load(), between.statements.Load()
		write(&store.Changes{
			NewTokens: []*store.TokenRecord{newToken(who.org, ""), newToken(who.org, "")}, RevokedTokens: []*store.TokenRecord{old},
			SigningKeys: []*store.SigningKeyRecord{{ID: ledger.SigningKeyID{UUID: uuid.New()}, Org: who.org, Public: make([]byte, 32)}},
		})
		trips, statements = between.trips.Load()-trips, between.statements.Load()-statements
	}
	// begin, tokens, issues, signing keys; new tokens, the lock of the revoked and their change,
	// signing keys, the timeout.
	if trips != 3 || statements != 9 {
		t.Errorf("%d round trips and %d statements beside the commit, want 3 and 9", trips, statements)
	}
}
