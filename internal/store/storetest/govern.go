package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

var governCases = []testCase{
	{name: "governing loads the organization", run: governLoads},
	{name: "a change is seen by the next transaction", run: changeIsSeen},
	{name: "a change that is refused is not seen", run: refusedChangeIsNotSeen},
	{name: "governing waits for earlier holders", run: governorWaits, concurrent: true},
	{name: "no transaction decides on an outdated organization", run: holdersAndGovernors, concurrent: true},
	{name: "everything is named in crossing orders", run: crossingEverything, concurrent: true},
	{name: "a state of an unknown chain writes nothing", run: unknownState},
}

func governLoads(t *testing.T, w *world) {
	one, two, three := w.join(t), w.join(t), w.join(t)
	needs := &store.Needs{
		Govern: []ledger.OrgID{two.org.ID, one.org.ID, two.org.ID, w.newOrganization().ID},
		Orgs:   []ledger.OrgID{three.org.ID, two.org.ID},
	}
	w.look(t, needs, func(loaded *store.Loaded) {
		want := map[ledger.OrgID]*ledger.Organization{one.org.ID: one.org, two.org.ID: two.org, three.org.ID: three.org}
		assertEqual(t, "organizations", loaded.Orgs, want)
	})
}

// held reads an organization in a transaction that holds it.
func held(ctx context.Context, s store.Store, id ledger.OrgID) (org ledger.Organization, err error) {
	err = s.Transact(ctx, &store.Needs{Orgs: []ledger.OrgID{id}}, func(loaded *store.Loaded) (*store.Changes, error) {
		org = *loaded.Orgs[id]
		return &store.Changes{}, nil
	})
	return org, err
}

// changeIsSeen reads before each change, through the handle that governs and another one, to test
// stores with a cache.
func changeIsSeen(t *testing.T, w *world) {
	m := w.join(t)
	handles := []store.Store{w.Store, w.open(t), w.open(t)}
	for round := range 6 {
		at := w.now()
		changed := must[*ledger.Organization](t)(w.govern(t.Context(), handles[round%2], m.org.ID, func(org *ledger.Organization) error {
			org.Name = fmt.Sprint("round ", round)
			org.Settings.TwoPersonApproval = round%2 == 0
			org.Controls.KillSwitch = ledger.KillSwitch{Active: round%2 == 0, Reason: org.Name, ChangedAt: &at, ChangedBy: "admin"}
			org.Controls.Policy = ledger.PolicyRef{Number: int64(round), Version: "v"}
			return nil
		}))
		want := *changed
		changed.Name = "changed by the caller, after the commit"
		for i, s := range handles {
			assertEqual(t, fmt.Sprintf("round %d, handle %d", round, i), must[ledger.Organization](t)(held(t.Context(), s, m.org.ID)), want)
			assertEqual(t, "read", must[*ledger.Organization](t)(s.Organization(t.Context(), m.org.ID)), &want)
		}
	}
}

func refusedChangeIsNotSeen(t *testing.T, w *world) {
	m := w.join(t)
	taken := w.record(w.draft(m), "")
	taken.ID = w.openChain(t, m)
	changed := *m.org
	changed.Name = "Renamed"
	err := w.Transact(t.Context(), &store.Needs{Govern: []ledger.OrgID{m.org.ID}}, func(*store.Loaded) (*store.Changes, error) {
		return &store.Changes{Orgs: []*ledger.Organization{&changed}, NewChains: []*store.ChainRecord{taken}}, nil
	})
	wantError(t, "collision", err, store.ErrExists)
	assertEqual(t, "organization", must[ledger.Organization](t)(held(t.Context(), w, m.org.ID)), *m.org)
}

// governorWaits pauses a transaction that holds an organization, starts another that governs it,
// and then starts more.
func governorWaits(t *testing.T, w *world) {
	m := w.join(t)
	holder, governor, reader := w.open(t), w.open(t), w.open(t)
	opening := w.record(w.draft(m), "held")
	entered, asked := make(chan struct{}), make(chan struct{})
	var governed atomic.Bool
	group, ctx := errgroup.WithContext(t.Context())
	group.Go(func() error {
		return holder.Transact(ctx, &store.Needs{Orgs: []ledger.OrgID{m.org.ID}}, func(*store.Loaded) (*store.Changes, error) {
			close(entered)
			<-asked
			for range 20 { // gives the governor time to run if it is not blocked
				if _, err := reader.Organization(ctx, m.org.ID); err != nil {
					return nil, err
				}
				if governed.Load() {
					return nil, errors.New("the organization was governed while it was held")
				}
			}
			return &store.Changes{NewChains: []*store.ChainRecord{opening}}, nil
		})
	})
	group.Go(func() error {
		<-entered
		close(asked)
		ref := store.OpenRef{Org: m.org.ID, By: m.key.ID, Key: "held"}
		needs := &store.Needs{Govern: []ledger.OrgID{m.org.ID}, Logs: []ledger.OrgID{m.org.ID}, Opens: []store.OpenRef{ref}}
		return governor.Transact(ctx, needs, func(loaded *store.Loaded) (*store.Changes, error) {
			governed.Store(true)
			if loaded.Opens[ref] == nil {
				return nil, errors.New("governing does not see what was committed before")
			}
			stopped := *loaded.Orgs[m.org.ID]
			stopped.Controls.KillSwitch.Active = true
			changes := &store.Changes{Orgs: []*ledger.Organization{&stopped}}
			return changes, w.note(loaded.Logs[m.org.ID], &stopped, "kill_switch.activate", changes)
		})
	})
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	w.together(t, 6, func(ctx context.Context, s store.Store, _ int) error {
		org, err := held(ctx, s, m.org.ID)
		if err == nil && !org.Controls.KillSwitch.Active {
			err = errors.New("a later transaction does not see the change")
		}
		return err
	})
}

// holdersAndGovernors uses a counter in the organization itself. A holder must see at least what
// was committed when it started, and nobody may govern the organization until it is done.
func holdersAndGovernors(t *testing.T, w *world) {
	const workers, each = 9, 8
	m := w.join(t)
	var committed, governing, holding atomic.Int64
	govern := func(ctx context.Context, s store.Store) error {
		changed, err := w.govern(ctx, s, m.org.ID, func(org *ledger.Organization) error {
			defer governing.Add(-1)
			if governing.Add(1) > 1 || holding.Load() > 0 {
				return errors.New("the organization is governed while another transaction has it")
			}
			runtime.Gosched()
			org.Controls.Policy.Number++
			return nil
		})
		for err == nil {
			before := committed.Load()
			if before >= changed.Controls.Policy.Number || committed.CompareAndSwap(before, changed.Controls.Policy.Number) {
				break
			}
		}
		return err
	}
	hold := func(ctx context.Context, s store.Store) error {
		before := committed.Load()
		return s.Transact(ctx, &store.Needs{Orgs: []ledger.OrgID{m.org.ID}}, func(loaded *store.Loaded) (*store.Changes, error) {
			defer holding.Add(-1)
			if holding.Add(1); governing.Load() > 0 {
				return nil, errors.New("the organization is held while another transaction governs it")
			}
			if seen := loaded.Orgs[m.org.ID].Controls.Policy.Number; seen < before {
				return nil, fmt.Errorf("decided under policy %d, after policy %d was put in force", seen, before)
			}
			return &store.Changes{NewChains: []*store.ChainRecord{w.record(w.draft(m), "")}}, nil
		})
	}
	w.together(t, workers, func(ctx context.Context, s store.Store, worker int) error {
		for range each {
			step := hold
			if worker%3 == 0 {
				step = govern
			}
			if err := step(ctx, s); err != nil {
				return err
			}
		}
		return nil
	})
	if got := must[ledger.Organization](t)(held(t.Context(), w, m.org.ID)).Controls.Policy.Number; got != workers/3*each {
		t.Errorf("%d changes are left, want %d", got, workers/3*each)
	}
}

// crossingEverything deadlocks in a store that takes locks in the order of its arguments. No call
// is retried, because none has a reason to fail.
func crossingEverything(t *testing.T, w *world) {
	const workers, each, width = 9, 10, 3
	members := []*member{w.join(t), w.join(t), w.join(t)}
	var chains []ledger.ChainID
	for _, m := range members {
		chains = append(chains, w.openChains(t, m, width)...)
	}
	w.together(t, workers, func(ctx context.Context, s store.Store, worker int) error {
		order := rand.New(rand.NewPCG(3, uint64(worker)))
		some := func() (ids []ledger.OrgID) {
			for _, i := range order.Perm(len(members))[:2] {
				ids = append(ids, members[i].org.ID)
			}
			return ids
		}
		for range each {
			needs := &store.Needs{Orgs: some(), Heads: some(), Logs: some()}
			if order.IntN(3) == 0 {
				needs.Govern = some()
			}
			for _, i := range order.Perm(len(chains))[:width] {
				needs.Chains = append(needs.Chains, chains[i])
			}
			if err := w.actOnAll(ctx, s, needs); err != nil {
				return err
			}
		}
		return nil
	})
	total := 0
	for _, id := range chains {
		total += len(must[[]*ledger.StoredEvent](t)(w.Events(t.Context(), id, 0, 10_000)))
	}
	if total != workers*each*width {
		t.Errorf("%d events, want %d", total, workers*each*width)
	}
}

func unknownState(t *testing.T, w *world) {
	m := w.join(t)
	fresh, stranger := w.record(w.draft(m), ""), w.record(w.draft(m), "")
	err := attempt(t.Context(), w, &store.Changes{NewChains: []*store.ChainRecord{fresh}, States: []*store.ChainRecord{stranger}})
	wantError(t, "state", err, store.ErrNotFound)
	_, err = w.Chain(t.Context(), fresh.ID)
	wantError(t, "chain that came with it", err, store.ErrNotFound)
}
