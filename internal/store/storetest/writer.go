package storetest

import (
	"context"
	"errors"
	"testing"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

var writerCases = []testCase{
	{name: "everything that plan returns is committed", run: commitsEverything},
	{name: "an error of plan is returned unchanged and nothing is written", run: planErrorWritesNothing},
	{name: "plan runs once", run: planRunsOnce},
	{name: "a panic of plan leaves no transaction", run: planPanics},
	{name: "a transaction may write nothing", run: mayWriteNothing},
	{name: "one transaction writes to chains of several organizations", run: writesAcrossOrganizations},
	{name: "a hundred chains move in one transaction", run: movesManyChains},
	{name: "a context that ended before writes nothing", run: endedContextWritesNothing},
	{name: "a context that ends in plan writes nothing", run: contextEndsInPlan},
	{name: "a chain is opened, filled and sealed in one transaction each", run: livesWholeLife},
	{name: "many chains are sealed in one transaction", run: sealsManyAtOnce},
}

func commitsEverything(t *testing.T, w *world) {
	m := w.join(t)
	first := w.openChain(t, m)
	w.mustAct(t, first, newAction("first"))
	fresh := w.record(w.draft(m), "open-1")

	// One transaction with a change of every kind that a chain has.
	at := store.EventAt{Chain: first, Sequence: 1}
	needs := &store.Needs{Chains: []ledger.ChainID{first}, Heads: []ledger.OrgID{m.org.ID}}
	var changes *store.Changes
	err := w.Transact(t.Context(), needs, func(loaded *store.Loaded) (*store.Changes, error) {
		o, err := w.decode(loaded.Chains[first])
		if err != nil {
			return nil, err
		}
		changes = &store.Changes{NewChains: []*store.ChainRecord{fresh}}
		w.enter(o, newAction("second"), changes)
		event, _, err := history(loaded, at)
		if err != nil {
			return nil, err
		}
		_, addendum, err := o.state.ReportOutcome(event, nil, ledger.Entry{Result: ledger.Succeeded}, w.now())
		if err != nil {
			return nil, err
		}
		changes.NewAddenda = []*ledger.Addendum{addendum}
		return changes, w.sealInPlan(loaded, m, o, changes)
	})
	if err != nil {
		t.Fatalf("transact: %v", err)
	}

	other := w.open(t)
	assertEqual(t, "new chain", must[*store.ChainRecord](t)(other.Chain(t.Context(), fresh.ID)), fresh)
	moved := must[*store.ChainRecord](t)(other.Chain(t.Context(), first))
	assertEqual(t, "state", [][]byte{moved.State, moved.MAC}, [][]byte{changes.States[0].State, changes.States[0].MAC})
	assertEqual(t, "status", moved.Status, ledger.ChainCompleted)
	assertEqual(t, "events", must[[]*ledger.StoredEvent](t)(other.Events(t.Context(), first, 1, 10)), changes.NewEvents)
	assertEqual(t, "addenda", must[[]*ledger.Addendum](t)(other.Addenda(t.Context(), first, 1, 2)), changes.NewAddenda)
	assertEqual(t, "receipt", must[*ledger.StoredReceipt](t)(other.ReceiptOfChain(t.Context(), first)), changes.NewReceipts[0])
	assertEqual(t, "head", must[*ledger.Head](t)(other.Head(t.Context(), m.org.ID)), changes.Heads[0])
}

// sealInPlan seals a chain whose newest events are still among the changes.
func (w *world) sealInPlan(loaded *store.Loaded, m *member, o *opened, changes *store.Changes) error {
	events, err := loaded.EventsAfter(o.chain.ID, 0)
	if err != nil {
		return err
	}
	summary, err := summarise(append(events, changes.NewEvents...))
	if err != nil {
		return err
	}
	head, err := loaded.Heads[m.org.ID].Open(w.keys)
	if err != nil {
		return err
	}
	_, receipt, err := ledger.Seal(&ledger.Sealing{
		Keys: w.keys, Head: head, Slug: m.org.Slug, Chain: o.chain, State: o.state, Summary: summary,
		Completion: &ledger.Completion{}, ID: w.receiptID(), Now: w.now(),
	})
	if err != nil {
		return err
	}
	changes.NewReceipts = append(changes.NewReceipts, receipt.StoredReceipt)
	changes.States = append(changes.States, w.moved(o))
	changes.Heads = append(changes.Heads, head.Sign(w.keys))
	return nil
}

func planErrorWritesNothing(t *testing.T, w *world) {
	m := w.join(t)
	fresh := w.record(w.draft(m), "")
	refusal := errors.New("refused")
	err := w.Transact(t.Context(), &store.Needs{Heads: []ledger.OrgID{m.org.ID}}, func(*store.Loaded) (*store.Changes, error) {
		return &store.Changes{NewChains: []*store.ChainRecord{fresh}}, refusal
	})
	if err != refusal { //nolint:errorlint // the promise is the error itself
		t.Errorf("error %v, want the one that plan returned", err)
	}
	_, err = w.Chain(t.Context(), fresh.ID)
	wantError(t, "chain of a refused plan", err, store.ErrNotFound)
	w.openChain(t, m) // the store still accepts writes
}

func planRunsOnce(t *testing.T, w *world) {
	m := w.join(t)
	calls := 0
	err := w.Transact(t.Context(), &store.Needs{Heads: []ledger.OrgID{m.org.ID}}, func(*store.Loaded) (*store.Changes, error) {
		calls++
		return &store.Changes{NewChains: []*store.ChainRecord{w.record(w.draft(m), "")}}, nil
	})
	if err != nil || calls != 1 {
		t.Errorf("plan ran %d times, error %v", calls, err)
	}
}

func mayWriteNothing(t *testing.T, w *world) {
	m := w.join(t)
	id := w.openChain(t, m)
	before := must[*store.ChainRecord](t)(w.Chain(t.Context(), id))
	err := w.Transact(t.Context(), &store.Needs{Chains: []ledger.ChainID{id}}, func(*store.Loaded) (*store.Changes, error) {
		return &store.Changes{}, nil
	})
	if err != nil {
		t.Fatalf("transact: %v", err)
	}
	assertEqual(t, "chain", must[*store.ChainRecord](t)(w.Chain(t.Context(), id)), before)
	w.mustAct(t, id, newAction("")) // the chain is unlocked again
}

func writesAcrossOrganizations(t *testing.T, w *world) {
	one, two := w.join(t), w.join(t)
	records := []*store.ChainRecord{w.record(w.draft(one), "same key"), w.record(w.draft(two), "same key")}
	w.write(t, &store.Changes{NewChains: records})
	for _, record := range records {
		assertEqual(t, "chain", must[*store.ChainRecord](t)(w.Chain(t.Context(), record.ID)), record)
	}
}

func movesManyChains(t *testing.T, w *world) {
	m := w.join(t)
	chains := w.openChains(t, m, 100)
	for range 3 {
		err := w.Transact(t.Context(), &store.Needs{Chains: chains}, func(loaded *store.Loaded) (*store.Changes, error) {
			changes := new(store.Changes)
			for _, id := range chains {
				o, err := w.decode(loaded.Chains[id])
				if err != nil {
					return nil, err
				}
				w.enter(o, newAction(""), changes)
				changes.States = append(changes.States, w.moved(o))
			}
			return changes, nil
		})
		if err != nil {
			t.Fatalf("transact: %v", err)
		}
	}
	for _, id := range chains {
		if events := must[[]*ledger.StoredEvent](t)(w.Events(t.Context(), id, 0, 10)); len(events) != 3 {
			t.Fatalf("a chain has %d events, want 3", len(events))
		}
	}
}

func endedContextWritesNothing(t *testing.T, w *world) {
	m := w.join(t)
	fresh := w.record(w.draft(m), "")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := attempt(ctx, w, &store.Changes{NewChains: []*store.ChainRecord{fresh}})
	if err == nil || errors.Is(err, store.ErrOutcomeUnknown) {
		t.Errorf("error %v, want one that means that nothing was written", err)
	}
	_, err = w.Chain(t.Context(), fresh.ID)
	wantError(t, "chain", err, store.ErrNotFound)
}

func contextEndsInPlan(t *testing.T, w *world) {
	m := w.join(t)
	records := []*store.ChainRecord{w.record(w.draft(m), ""), w.record(w.draft(m), "")}
	ctx, cancel := context.WithCancel(t.Context())
	err := w.Transact(ctx, &store.Needs{Heads: []ledger.OrgID{m.org.ID}}, func(*store.Loaded) (*store.Changes, error) {
		cancel()
		return &store.Changes{NewChains: records}, nil
	})
	wantError(t, "transact", err, store.ErrUnavailable)
	if errors.Is(err, store.ErrOutcomeUnknown) {
		t.Errorf("error %v: a context must not make an outcome unknown", err)
	}
	for _, record := range records {
		_, err := w.Chain(t.Context(), record.ID)
		wantError(t, "chain", err, store.ErrNotFound)
	}
	w.openChain(t, m) // no lock is left
}

func livesWholeLife(t *testing.T, w *world) {
	m := w.join(t)
	id := w.openChain(t, m)
	w.mustAct(t, id, newAction("a"), newAction("b"))
	w.mustReport(t, id, 1, ledger.Unknown)
	w.mustAct(t, id, newAction("c"))
	w.mustReport(t, id, 1, ledger.Succeeded)
	w.mustReport(t, id, 3, ledger.Failed)
	w.mustSeal(t, m, id)
	var refusal *fault.Error
	if err := w.seal(t.Context(), w, m, id); !errors.As(err, &refusal) || refusal.Code != fault.CodeChainSealed {
		t.Errorf("second seal: error %v, want %s", err, fault.CodeChainSealed)
	}
}

func sealsManyAtOnce(t *testing.T, w *world) {
	m := w.join(t)
	chains := w.openChains(t, m, 20)
	w.mustAct(t, chains[3], newAction(""))
	w.mustSeal(t, m, chains[:12]...)
	w.mustSeal(t, m, chains[12:]...)
	if head := must[*ledger.Head](t)(w.Head(t.Context(), m.org.ID)); head.Count != 20 {
		t.Errorf("the head counts %d receipts, want 20", head.Count)
	}
}

func planPanics(t *testing.T, w *world) {
	m := w.join(t)
	fresh := w.record(w.draft(m), "")
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic of plan did not reach the caller")
			}
		}()
		_ = w.Transact(t.Context(), &store.Needs{Heads: []ledger.OrgID{m.org.ID}}, func(*store.Loaded) (*store.Changes, error) {
			panic("plan")
		})
	}()
	w.write(t, &store.Changes{NewChains: []*store.ChainRecord{fresh}}) // no transaction and no lock is left
}
