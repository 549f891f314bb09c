package postgres_test

import (
	"bytes"
	"fmt"
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/store/postgres"
	"countersign/internal/testdb"
)

// record adds an event to each chain, like the service.
func record(t *testing.T, s *postgres.Store, who tenant, sequence int64, chains ...*store.ChainRecord) {
	t.Helper()
	needs := &store.Needs{Orgs: []ledger.OrgID{who.org}, Keys: []ledger.KeyID{who.key}}
	for _, chain := range chains {
		needs.Chains = append(needs.Chains, chain.ID)
		needs.Repeats = append(needs.Repeats, store.EventRef{Chain: chain.ID, Key: fmt.Sprint(sequence)})
	}
	err := s.Transact(t.Context(), needs, func(loaded *store.Loaded) (*store.Changes, error) {
		changes := new(store.Changes)
		for _, chain := range loaded.Chains {
			changes.States = append(changes.States, chain)
			changes.NewEvents = append(changes.NewEvents, &ledger.StoredEvent{
				Chain: chain.ID, Sequence: sequence, IdempotencyKey: fmt.Sprint(sequence), Body: []byte("{}"),
			})
		}
		return changes, nil
	})
	if err != nil {
		t.Fatalf("transact: %v", err)
	}
}

// TestRoundTrips: the number of round trips and statements does not depend on the size of a
// transaction, and parts that it does not use cost nothing.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	address := newDatabase(t)
	between, through := newProxy(t, testdb.WithParameter(t, address, "pool_max_conns", "1"))
	s := open(t, through)
	who := newTenant(t, s)
	var chains []*store.ChainRecord
	for range 200 {
		chains = append(chains, who.newChain())
	}
	if err := insert(t.Context(), s, chains...); err != nil {
		t.Fatalf("insert: %v", err)
	}
	record(t, s, who, 1, chains...) // prepares every statement
	for i, width := range []int{1, 10, 200} {
		trips, statements := between.trips.Load(), between.statements.Load()
		record(t, s, who, int64(i+2), chains[:width]...)
		if got := between.trips.Load() - trips; got != 3 {
			t.Errorf("%d events took %d round trips, want 3: load, write, commit", width, got)
		}
		// begin, the locks of organization and chains, organization, key, repeats; states, events,
		// the timeout.
		if got := between.statements.Load() - statements; got != 9 {
			t.Errorf("%d events took %d statements beside the commit, want 9", width, got)
		}
	}
}

// bodyOf returns a chain's body as a transaction sees it. With a status it also writes the chain.
func bodyOf(t *testing.T, s *postgres.Store, id ledger.ChainID, status ledger.ChainStatus) string {
	t.Helper()
	var body []byte
	err := s.Transact(t.Context(), &store.Needs{Chains: []ledger.ChainID{id}}, func(loaded *store.Loaded) (*store.Changes, error) {
		chain := loaded.Chains[id]
		body = bytes.Clone(chain.Body)
		if status == "" {
			return nil, nil
		}
		chain.Status = status
		return &store.Changes{States: []*store.ChainRecord{chain}}, nil
	})
	if err != nil {
		t.Fatalf("transact: %v", err)
	}
	return string(body)
}

// TestChangedBodies: the cache contains only what a transaction has written and committed.
// Everything else is read from the database.
func TestChangedBodies(t *testing.T) {
	t.Parallel()
	one, two, address := replicas(t)
	who := newTenant(t, one)
	chain := who.newChain()
	if err := insert(t.Context(), one, chain); err != nil {
		t.Fatalf("insert: %v", err)
	}
	tamper := func(body string) {
		administer(t, address, "update chains set body = $1", []byte(body))
	}
	if body := bodyOf(t, two, chain.ID, ""); body != "body" {
		t.Errorf("the body is %q", body)
	}
	tamper("forged")
	for _, test := range []struct {
		name   string
		s      *postgres.Store
		status ledger.ChainStatus
		want   string
	}{
		{"the replica that opened the chain", one, "", "body"},
		{"a replica that has only read it", two, "", "forged"},
		{"a write", one, ledger.ChainActive, "body"},
		{"a seal", one, ledger.ChainCompleted, "body"},
		{"after the seal", one, "", "forged"},
	} {
		if body := bodyOf(t, test.s, chain.ID, test.status); body != test.want {
			t.Errorf("%s: the body is %q, want %q", test.name, body, test.want)
		}
	}
	found, err := one.Chain(t.Context(), chain.ID)
	if err != nil || string(found.Body) != "forged" {
		t.Errorf("a reader is shown %q, error %v", found.Body, err)
	}
	err = one.ScanChains(t.Context(), who.org, func(c *store.ChainRecord) error {
		if string(c.Body) != "forged" {
			t.Errorf("an audit is shown %q", c.Body)
		}
		return nil
	})
	if err != nil {
		t.Errorf("scan: %v", err)
	}
}

// If one of several jobs cannot be buried, none is: the caller reports those that were.
func TestJobsAreBuriedTogether(t *testing.T) {
	t.Parallel()
	address := newDatabase(t)
	s := open(t, address)
	err := s.Transact(t.Context(), &store.Needs{}, func(*store.Loaded) (*store.Changes, error) {
		return &store.Changes{NewJobs: []*store.Job{{Kind: "work", Stream: "a"}, {Kind: "work"}, {Kind: "work", Stream: "b"}}}, nil
	})
	if err != nil {
		t.Fatalf("transact: %v", err)
	}
	var jobs []*store.Job
	if err := s.ScanJobs(t.Context(), "", func(job *store.Job) error { jobs = append(jobs, job); return nil }); err != nil {
		t.Fatalf("scan: %v", err)
	}
	administer(t, address, fmt.Sprintf("alter table jobs add constraint kept check (not buried or no <> %d)", jobs[2].No))
	if err := s.BuryJobs(t.Context(), jobs, "not ours"); err == nil {
		t.Error("a job was buried that cannot be")
	}
	if waiting, buried, err := s.CountJobs(t.Context()); err != nil || waiting != 3 || buried != 0 {
		t.Errorf("%d jobs wait and %d are buried, error %v; want 3 and none", waiting, buried, err)
	}
	administer(t, address, "alter table jobs drop constraint kept")
	if err := s.BuryJobs(t.Context(), jobs, "not ours"); err != nil {
		t.Errorf("bury: %v", err)
	}
	if waiting, buried, err := s.CountJobs(t.Context()); err != nil || waiting != 0 || buried != 3 {
		t.Errorf("%d jobs wait and %d are buried, error %v; want none and 3", waiting, buried, err)
	}
}
