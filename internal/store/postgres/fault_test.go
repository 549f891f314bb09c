package postgres_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/store/postgres"
	"countersign/internal/testdb"
)

// tenant is an organization with a key, for chains to belong to.
type tenant struct {
	org ledger.OrgID
	key ledger.KeyID
}

func newTenant(t testing.TB, s *postgres.Store) tenant {
	t.Helper()
	who := tenant{ledger.OrgID{UUID: uuid.New()}, ledger.KeyID{UUID: uuid.New()}}
	org := &ledger.Organization{ID: who.org, Slug: "org-" + who.org.String(), Settings: ledger.DefaultSettings()}
	key := &ledger.KeyRecord{ID: who.key, Org: who.org, Role: ledger.RoleAgent, Hash: ledger.HashToken(who.key.String())}
	with := &store.Changes{NewKeys: []*ledger.KeyRecord{key}}
	if err := s.CreateOrganization(t.Context(), org, &ledger.Head{Org: who.org, MAC: []byte{}}, with); err != nil {
		t.Fatalf("create organization: %v", err)
	}
	return who
}

func (who tenant) newChain() *store.ChainRecord {
	return &store.ChainRecord{
		ID: ledger.ChainID{UUID: uuid.New()}, Org: who.org, OpenedBy: who.key, Environment: "test",
		Status: ledger.ChainActive, Body: []byte("body"), State: []byte("state"), MAC: []byte("mac"),
	}
}

func insert(ctx context.Context, s store.Store, chains ...*store.ChainRecord) error {
	return s.Transact(ctx, &store.Needs{}, func(*store.Loaded) (*store.Changes, error) {
		return &store.Changes{NewChains: chains}, nil
	})
}

func exists(t *testing.T, s store.Store, chain *store.ChainRecord) bool {
	t.Helper()
	_, err := s.Chain(t.Context(), chain.ID)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		t.Fatalf("read: %v", err)
	}
	return err == nil
}

// A commit whose result is lost is reported as unknown, and one that the server rolled back as
// failed. The store remains usable.
func TestCommitFaults(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		interfere interference
		want      error
		written   bool
	}{
		"the COMMIT is lost":            {losesCommit, store.ErrOutcomeUnknown, false},
		"the answer is lost":            {losesAnswer, store.ErrOutcomeUnknown, true},
		"the server warns":              {warns, store.ErrOutcomeUnknown, true},
		"the server answers ROLLBACK":   {rollsBack, store.ErrUnavailable, false},
		"nothing happens to the COMMIT": {func(_ *link, commit []byte) []byte { return commit }, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := newDatabase(t)
			direct := open(t, address)
			between, through := newProxy(t, address)
			s := open(t, through)
			who := newTenant(t, direct)
			chain := who.newChain()

			between.onCommit.Store(&test.interfere)
			if err := insert(t.Context(), s, chain); !errors.Is(err, test.want) {
				t.Errorf("error %v, want %v", err, test.want)
			}
			// The server may still be executing it. Locking the table waits for that.
			administer(t, address, "begin; lock table chains; commit")
			if written := exists(t, direct, chain); written != test.written {
				t.Errorf("written: %t, want %t", written, test.written)
			}
			if between.onCommit.Load() != nil {
				t.Error("no COMMIT came through the proxy")
			}
			if err := insert(t.Context(), s, who.newChain()); err != nil {
				t.Errorf("the next transaction: %v", err)
			}
			_ = s.Close()
			if cancels := between.cancels.Load(); cancels != 0 {
				t.Errorf("%d requests to cancel were sent, want none", cancels)
			}
		})
	}
}

// A caller that gives up during the commit does not cancel it and still gets its result.
func TestContextThatEndsDuringCommitChangesNothing(t *testing.T) {
	t.Parallel()
	address := newDatabase(t)
	who := newTenant(t, open(t, address))
	between, through := newProxy(t, address)
	s := open(t, through)
	ctx, cancel := context.WithCancel(t.Context())
	var interfere interference = func(_ *link, commit []byte) []byte {
		cancel()
		return commit
	}
	between.onCommit.Store(&interfere)
	chain := who.newChain()
	if err := insert(ctx, s, chain); err != nil {
		t.Errorf("error %v, want none", err)
	}
	if !exists(t, s, chain) {
		t.Error("the chain is missing")
	}
	_ = s.Close()
	if cancels := between.cancels.Load(); cancels != 0 {
		t.Errorf("%d requests to cancel were sent, want none", cancels)
	}
}

// If the connection is lost before the commit, nothing is written, and the same call succeeds
// afterwards.
func TestConnectionLostBeforeCommit(t *testing.T) {
	t.Parallel()
	address := newDatabase(t)
	name := databaseName(t, address)
	s := open(t, testdb.WithParameter(t, address, "application_name", name))
	who := newTenant(t, s)
	chain := who.newChain()
	err := s.Transact(t.Context(), &store.Needs{Heads: []ledger.OrgID{who.org}}, func(*store.Loaded) (*store.Changes, error) {
		administer(t, testdb.ServerURL(t), "select pg_terminate_backend(pid, 10000) from pg_stat_activity where application_name = $1", name)
		return &store.Changes{NewChains: []*store.ChainRecord{chain}}, nil
	})
	if !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrOutcomeUnknown) {
		t.Errorf("error %v, want %v", err, store.ErrUnavailable)
	}
	if exists(t, s, chain) {
		t.Error("the chain was written")
	}
	if err := insert(t.Context(), s, chain); err != nil {
		t.Errorf("the same call again: %v", err)
	}
}

// A transaction that cannot lock its chain in time fails with ErrUnavailable.
func TestLockThatIsNotFreedInTime(t *testing.T) {
	t.Parallel()
	address := newDatabase(t)
	holder := open(t, address)
	waiter := open(t, testdb.WithParameter(t, address, "lock_timeout", "50ms"))
	who := newTenant(t, holder)
	chain := who.newChain()
	if err := insert(t.Context(), holder, chain); err != nil {
		t.Fatalf("insert: %v", err)
	}
	needs := &store.Needs{Chains: []ledger.ChainID{chain.ID}}
	err := holder.Transact(t.Context(), needs, func(*store.Loaded) (*store.Changes, error) {
		return &store.Changes{}, waiter.Transact(t.Context(), needs, func(*store.Loaded) (*store.Changes, error) {
			t.Error("two transactions hold one chain")
			return &store.Changes{}, nil
		})
	})
	if !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("error %v, want %v", err, store.ErrUnavailable)
	}
}

// A caller that gets no connection in time gets ErrUnavailable.
func TestPoolThatIsExhausted(t *testing.T) {
	t.Parallel()
	address := newDatabase(t)
	s := open(t, testdb.WithParameter(t, address, "pool_max_conns", "1"))
	err := s.Transact(t.Context(), &store.Needs{}, func(*store.Loaded) (*store.Changes, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 1)
		defer cancel()
		_, err := s.Organizations(ctx)
		return &store.Changes{}, err
	})
	if !errors.Is(err, store.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want %v for want of time", err, store.ErrUnavailable)
	}
}

// Open refuses a server that does not accept writes.
func TestServerThatTakesNoWrites(t *testing.T) {
	t.Parallel()
	address := testdb.WithParameter(t, newDatabase(t), "default_transaction_read_only", "on")
	s, err := postgres.Open(t.Context(), address)
	if err == nil {
		_ = s.Close()
	}
	if !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("error %v, want %v", err, store.ErrUnavailable)
	}
}

// Errors from the database contain no stored values.
func TestErrorsShowNoValues(t *testing.T) {
	t.Parallel()
	s := open(t, newDatabase(t))
	who := newTenant(t, s)
	const planted = "planted-value"
	first, second, third := who.newChain(), who.newChain(), who.newChain()
	first.IdempotencyKey, second.IdempotencyKey = planted, planted
	third.ExternalID = planted + "\x00"
	if err := insert(t.Context(), s, first); err != nil {
		t.Fatalf("insert: %v", err)
	}
	foreign := who.newChain()
	foreign.OpenedBy = ledger.KeyID{UUID: uuid.New()}
	for name, test := range map[string]struct {
		chain *store.ChainRecord
		want  error
	}{"collision": {second, store.ErrExists}, "bad text": {third, nil}, "foreign key": {foreign, nil}} {
		err := insert(t.Context(), s, test.chain)
		if err == nil || test.want != nil && !errors.Is(err, test.want) || errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s: error %v, want %v", name, err, test.want)
			continue
		}
		if text := err.Error(); strings.Contains(text, planted) || strings.Contains(text, test.chain.OpenedBy.String()) {
			t.Errorf("%s: error %q shows a value", name, text)
		}
		if exists(t, s, test.chain) {
			t.Errorf("%s: the chain was written", name)
		}
	}
}
