package storetest

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

var loadCases = []testCase{
	{name: "needs are loaded, duplicates once", run: loadsWhatIsNamed},
	{name: "nothing named, nothing loaded", run: loadsNothing},
	{name: "missing records are absent", run: missingIsAbsent},
	{name: "a chain is found by id, whatever its organization", run: loadsAnyOwner},
	{name: "an opening is found by organization and key", run: loadsOpens},
	{name: "a repeat is found by chain and key", run: loadsRepeats},
	{name: "a repeat is found whether or not its chain is named", run: loadsRepeatsAlone},
	{name: "addenda are found by event, in order of position", run: loadsAddenda},
	{name: "events after a sequence are read in order", run: readsEventsAfter},
	{name: "addenda after a position are read in order", run: readsAddendaAfter},
	{name: "a revoked key is loaded with its moment", run: loadsRevokedKey},
	{name: "the epoch tells of commits from elsewhere", run: epochTellsOfOthers},
}

// look runs a read-only transaction.
func (w *world) look(t *testing.T, needs *store.Needs, see func(*store.Loaded)) {
	t.Helper()
	err := w.Transact(t.Context(), needs, func(loaded *store.Loaded) (*store.Changes, error) {
		see(loaded)
		return &store.Changes{}, nil
	})
	if err != nil {
		t.Fatalf("transact: %v", err)
	}
}

// names lists what was loaded, for comparison.
type names struct {
	Orgs    []ledger.OrgID
	Keys    []ledger.KeyID
	Chains  []ledger.ChainID
	Heads   []ledger.OrgID
	Opens   []store.OpenRef
	Repeats []store.EventRef
	Addenda []store.EventAt

	Logs      []ledger.OrgID
	Approvals []ledger.ApprovalID
	Webhooks  []ledger.WebhookID

	Tokens      []ledger.TokenID
	Issued      []store.TokenRef
	Rotations   []store.RotationRef
	Findings    []store.FindingRef
	Counters    []ledger.CounterID
	SigningKeys []ledger.OrgID
}

func namesOf(loaded *store.Loaded) names {
	return names{
		Orgs: keysOf(loaded.Orgs), Keys: keysOf(loaded.Keys), Chains: keysOf(loaded.Chains), Heads: keysOf(loaded.Heads),
		Opens: keysOf(loaded.Opens), Repeats: keysOf(loaded.Repeats), Addenda: keysOf(loaded.Addenda),
		Logs: keysOf(loaded.Logs), Approvals: keysOf(loaded.Approvals), Webhooks: keysOf(loaded.Webhooks),
		Tokens: keysOf(loaded.Tokens), Issued: keysOf(loaded.Issued), Rotations: keysOf(loaded.Rotations), Findings: keysOf(loaded.Findings), Counters: keysOf(loaded.Counters), SigningKeys: keysOf(loaded.SigningKeys),
	}
}

func keysOf[K comparable, V any](m map[K]V) []K { return slices.Collect(maps.Keys(m)) }

func loadsWhatIsNamed(t *testing.T, w *world) {
	m := w.join(t)
	w.join(t)
	chain := w.record(w.draft(m), "open")
	w.write(t, &store.Changes{NewChains: []*store.ChainRecord{chain, w.record(w.draft(m), "other")}})
	w.mustAct(t, chain.ID, newAction("event"), newAction("other"))
	w.mustReport(t, chain.ID, 1, ledger.Succeeded)
	chain = must[*store.ChainRecord](t)(w.Chain(t.Context(), chain.ID))

	opening := store.OpenRef{Org: m.org.ID, By: m.key.ID, Key: "open"}
	repeat := store.EventRef{Chain: chain.ID, Key: "event"}
	place := store.EventAt{Chain: chain.ID, Sequence: 1}
	want := names{
		Orgs: []ledger.OrgID{m.org.ID}, Keys: []ledger.KeyID{m.key.ID}, Chains: []ledger.ChainID{chain.ID},
		Heads: []ledger.OrgID{m.org.ID}, Opens: []store.OpenRef{opening}, Repeats: []store.EventRef{repeat}, Addenda: []store.EventAt{place},
	}
	needs := &store.Needs{
		Orgs: slices.Repeat(want.Orgs, 2), Keys: slices.Repeat(want.Keys, 2), Chains: slices.Repeat(want.Chains, 2),
		Heads: slices.Repeat(want.Heads, 2), Opens: slices.Repeat(want.Opens, 2), Repeats: slices.Repeat(want.Repeats, 2),
		Addenda: slices.Repeat(want.Addenda, 2),
	}
	events := must[[]*ledger.StoredEvent](t)(w.Events(t.Context(), chain.ID, 0, 1))
	addenda := must[[]*ledger.Addendum](t)(w.Addenda(t.Context(), chain.ID, 1, 1))
	w.look(t, needs, func(loaded *store.Loaded) {
		assertEqual(t, "names", namesOf(loaded), want)
		assertEqual(t, "organization", loaded.Orgs[m.org.ID], m.org)
		assertEqual(t, "key", loaded.Keys[m.key.ID], m.key)
		assertEqual(t, "chain", loaded.Chains[chain.ID], chain)
		assertEqual(t, "head", loaded.Heads[m.org.ID], ledger.NewHead(m.org.ID, w.keys))
		assertEqual(t, "opening", loaded.Opens[opening], chain)
		assertEqual(t, "repeat", loaded.Repeats[repeat], events[0])
		assertEqual(t, "addenda", loaded.Addenda[place], addenda)
	})
}

func loadsNothing(t *testing.T, w *world) {
	m := w.join(t)
	w.openChain(t, m)
	w.look(t, &store.Needs{}, func(loaded *store.Loaded) { assertEqual(t, "names", namesOf(loaded), names{}) })
}

func missingIsAbsent(t *testing.T, w *world) {
	m := w.join(t)
	id := w.openChain(t, m)
	w.mustAct(t, id, newAction(""))
	stranger := w.newOrganization().ID
	needs := &store.Needs{
		Orgs: []ledger.OrgID{stranger}, Keys: []ledger.KeyID{w.newKey(stranger).ID},
		Chains: []ledger.ChainID{w.chainID(), id}, Heads: []ledger.OrgID{stranger},
		// A chain or event without a key is not found under the empty key.
		Opens:   []store.OpenRef{{Org: m.org.ID, By: m.key.ID, Key: "never used"}, {Org: m.org.ID, By: m.key.ID}},
		Repeats: []store.EventRef{{Chain: id, Key: "never used"}, {Chain: id}},
		Addenda: []store.EventAt{{Chain: id, Sequence: 1}, {Chain: id, Sequence: 2}, {Chain: w.chainID(), Sequence: 1}},
		Govern:  []ledger.OrgID{stranger}, Logs: []ledger.OrgID{stranger}, Approvals: []ledger.ApprovalID{w.approvalID()},
		ApprovalsOf: []ledger.ChainID{id, w.chainID()}, Webhooks: []ledger.WebhookID{w.webhook(stranger).ID},
		Tokens: []ledger.TokenID{w.token(stranger).ID}, SigningKeys: []ledger.OrgID{stranger, m.org.ID},
		Issued:    []store.TokenRef{{Org: m.org.ID, Key: "never used"}, {Org: m.org.ID}},
		Rotations: []store.RotationRef{{Org: m.org.ID, Key: "never used"}, {Org: m.org.ID}},
		Findings:  []store.FindingRef{{Org: m.org.ID, Name: "never found"}, {Org: m.org.ID}, {Org: stranger}},
		Counters:  []ledger.CounterID{w.counter(stranger, "b", "never counted").ID},
	}
	w.look(t, needs, func(loaded *store.Loaded) {
		assertEqual(t, "names", namesOf(loaded), names{Chains: []ledger.ChainID{id}})
	})
}

func loadsAnyOwner(t *testing.T, w *world) {
	one, two := w.join(t), w.join(t)
	ids := []ledger.ChainID{w.openChain(t, one), w.openChain(t, two)}
	w.look(t, &store.Needs{Chains: ids}, func(loaded *store.Loaded) {
		if loaded.Chains[ids[0]].Org != one.org.ID || loaded.Chains[ids[1]].Org != two.org.ID {
			t.Error("the chains do not belong to those who opened them")
		}
	})
}

func loadsOpens(t *testing.T, w *world) {
	one, two := w.join(t), w.join(t)
	records := []*store.ChainRecord{w.record(w.draft(one), "k"), w.record(w.draft(two), "k"), w.record(w.draft(one), "K")}
	other := w.draft(one) // opened by another key of the same organization
	other.OpenedBy = two.key.ID
	records = append(records, w.record(other, "k"))
	w.write(t, &store.Changes{NewChains: records})
	w.mustAct(t, records[0].ID, newAction("")) // an opening has the current state
	refs := []store.OpenRef{
		{Org: one.org.ID, By: one.key.ID, Key: "k"}, {Org: two.org.ID, By: two.key.ID, Key: "k"}, {Org: one.org.ID, By: one.key.ID, Key: "K"},
		{Org: one.org.ID, By: two.key.ID, Key: "k"}, {Org: two.org.ID, By: two.key.ID, Key: "K"}, {Org: one.org.ID, By: two.key.ID, Key: "K"},
	}
	w.look(t, &store.Needs{Opens: refs}, func(loaded *store.Loaded) {
		if len(loaded.Opens) != len(records) {
			t.Errorf("%d openings were found, want %d", len(loaded.Opens), len(records))
		}
		for i, record := range records {
			now := must[*store.ChainRecord](t)(w.Chain(t.Context(), record.ID))
			assertEqual(t, "opening", loaded.Opens[refs[i]], now)
		}
	})
}

func loadsRepeats(t *testing.T, w *world) {
	m := w.join(t)
	chains := w.openChains(t, m, 2)
	w.mustAct(t, chains[0], newAction(""), newAction("k"), newAction("l"))
	w.mustAct(t, chains[1], newAction("k"))
	refs := []store.EventRef{{Chain: chains[0], Key: "k"}, {Chain: chains[1], Key: "k"}, {Chain: chains[1], Key: "l"}}
	w.look(t, &store.Needs{Chains: chains, Repeats: refs}, func(loaded *store.Loaded) {
		if len(loaded.Repeats) != 2 {
			t.Errorf("%d repeats were found, want 2", len(loaded.Repeats))
		}
		for ref, sequence := range map[store.EventRef]int64{refs[0]: 2, refs[1]: 1} {
			events := must[[]*ledger.StoredEvent](t)(w.Events(t.Context(), ref.Chain, sequence-1, 1))
			assertEqual(t, "repeat", loaded.Repeats[ref], events[0])
		}
	})
}

func loadsRepeatsAlone(t *testing.T, w *world) {
	m := w.join(t)
	id := w.openChain(t, m)
	w.mustAct(t, id, newAction("k"))
	w.mustReport(t, id, 1, ledger.Succeeded)
	ref, at := store.EventRef{Chain: id, Key: "k"}, store.EventAt{Chain: id, Sequence: 1}
	w.look(t, &store.Needs{Repeats: []store.EventRef{ref}, Addenda: []store.EventAt{at}}, func(loaded *store.Loaded) {
		if loaded.Repeats[ref] == nil || len(loaded.Addenda[at]) != 1 {
			t.Errorf("repeat %v, addenda %v: want one each", loaded.Repeats[ref], loaded.Addenda[at])
		}
	})
}

func loadsAddenda(t *testing.T, w *world) {
	m := w.join(t)
	chains := w.openChains(t, m, 2)
	for _, id := range chains {
		w.mustAct(t, id, newAction(""), newAction(""), newAction(""))
		w.mustReport(t, id, 2, ledger.Unknown)
		w.mustReport(t, id, 1, ledger.Succeeded)
		w.mustReport(t, id, 2, ledger.Failed)
	}
	var places []store.EventAt
	for _, id := range chains {
		for sequence := range int64(3) {
			places = append(places, store.EventAt{Chain: id, Sequence: sequence + 1})
		}
	}
	w.look(t, &store.Needs{Chains: chains, Addenda: places}, func(loaded *store.Loaded) {
		got := make(map[store.EventAt][]int64)
		for at, addenda := range loaded.Addenda {
			for _, addendum := range addenda {
				got[at] = append(got[at], addendum.Position)
			}
		}
		want := make(map[store.EventAt][]int64)
		for _, id := range chains {
			want[store.EventAt{Chain: id, Sequence: 1}] = []int64{5}
			want[store.EventAt{Chain: id, Sequence: 2}] = []int64{4, 6}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("positions (-want +got):\n%s", diff)
		}
	})
}

func readsEventsAfter(t *testing.T, w *world) {
	m := w.join(t)
	chains := w.openChains(t, m, 2)
	for _, id := range chains {
		w.mustAct(t, id, newAction("x"), newAction(""), newAction(""), newAction("y"))
	}
	w.look(t, &store.Needs{Chains: chains[:1]}, func(loaded *store.Loaded) {
		for after := range int64(6) {
			got := must[[]*ledger.StoredEvent](t)(loaded.EventsAfter(chains[0], after))
			want := must[[]*ledger.StoredEvent](t)(w.Events(t.Context(), chains[0], after, 10))
			for _, events := range [][]*ledger.StoredEvent{got, want} {
				for _, event := range events {
					event.Payload = nil // only the facts are guaranteed
				}
			}
			assertEqual(t, "events", got, want)
		}
	})
}

func readsAddendaAfter(t *testing.T, w *world) {
	m := w.join(t)
	chains := w.openChains(t, m, 2)
	for _, id := range chains {
		w.mustAct(t, id, newAction("x"), newAction("y"))
		for _, sequence := range []int64{2, 1} {
			w.mustReport(t, id, sequence, ledger.Succeeded)
		}
	}
	w.look(t, &store.Needs{Chains: chains[:1]}, func(loaded *store.Loaded) {
		for after, want := range [][]int64{{3, 4}, {3, 4}, {3, 4}, {4}, nil, nil} {
			var got []int64
			for _, addendum := range must[[]*ledger.Addendum](t)(loaded.AddendaAfter(chains[0], int64(after))) {
				got = append(got, addendum.Position)
				if len(addendum.Body) == 0 || addendum.Chain != chains[0] || addendum.Sequence != 5-addendum.Position {
					t.Errorf("read as %+v", addendum)
				}
			}
			assertEqual(t, "positions", got, want)
		}
	})
}

func loadsRevokedKey(t *testing.T, w *world) {
	m := w.join(t)
	revoked := must[*ledger.KeyRecord](t)(w.revoke(t.Context(), w, m.key, w.now()))
	w.look(t, &store.Needs{Keys: []ledger.KeyID{m.key.ID}}, func(loaded *store.Loaded) {
		assertEqual(t, "key", loaded.Keys[m.key.ID], revoked)
		if loaded.Keys[m.key.ID].Active(w.now()) {
			t.Error("the revoked key is still active")
		}
	})
}

// epochTellsOfOthers: the epoch of a store that has one stays the same while only this handle
// writes, and differs after every commit of another handle, whatever it wrote.
func epochTellsOfOthers(t *testing.T, w *world) {
	t.Helper()
	epoch := func() (epoch int64) {
		t.Helper()
		w.look(t, &store.Needs{}, func(loaded *store.Loaded) {
			epoch = loaded.Epoch
			assertEqual(t, "Epoch during a transaction", w.Epoch(), 0)
		})
		assertEqual(t, "Epoch after it", w.Epoch(), epoch)
		return epoch
	}
	m := w.join(t)
	seen := map[int64]bool{epoch(): true}
	for range 3 {
		before := epoch()
		w.openChains(t, m, 2)
		assertEqual(t, "epoch after the handle's own commits", epoch(), before)
	}
	if epoch() == 0 {
		return // the store cannot tell
	}
	for range 3 {
		if err := w.addKey(t.Context(), w.open(t), w.newKey(m.org.ID)); err != nil {
			t.Fatalf("add a key: %v", err)
		}
		if now := w.Epoch(); seen[now] {
			t.Errorf("epoch %d was seen before another handle committed", now)
		}
		if now := epoch(); seen[now] {
			t.Errorf("epoch %d was seen in a transaction before another handle committed", now)
		} else {
			seen[now] = true
		}
	}
}
