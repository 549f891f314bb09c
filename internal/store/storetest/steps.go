package storetest

import (
	"context"
	"fmt"
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// opened is a chain inside a transaction: it is read, advanced and written back.
type opened struct {
	chain *ledger.Chain
	state *ledger.ChainState
}

func (w *world) decode(record *store.ChainRecord) (*opened, error) {
	if record == nil {
		return nil, fmt.Errorf("the chain was not loaded")
	}
	chain, err := ledger.DecodeChain(record.Body)
	if err != nil {
		return nil, err
	}
	state, err := ledger.DecodeChainState(record.State, record.MAC, w.keys, chain)
	if err != nil {
		return nil, err
	}
	return &opened{chain, state}, nil
}

// moved returns the record that writes a chain's state back.
func (w *world) moved(o *opened) *store.ChainRecord {
	r := &store.ChainRecord{ID: o.chain.ID, Org: o.chain.Org, Status: o.state.Status}
	r.State, r.MAC = o.state.Encode(w.keys, o.chain)
	return r
}

func newAction(idempotencyKey string) *ledger.Action {
	return &ledger.Action{
		AgentName: "planner", ActionType: "tool_call", ActionName: "search",
		Payload: []byte(`{"query":"weather"}`), IdempotencyKey: idempotencyKey,
	}
}

// enter records an action and adds the event to the changes. The default settings allow it:
// decisions are not the store's concern.
func (w *world) enter(o *opened, action *ledger.Action, changes *store.Changes) {
	recorded := o.state.Record(&ledger.Recording{
		Keys: w.keys, Policy: ledger.BuiltinPolicy, Org: &ledger.Organization{ID: o.chain.Org, Settings: ledger.DefaultSettings()},
		Chain: o.chain, Action: action, By: o.chain.OpenedBy, Now: w.now(), Random: w.random(),
	})
	changes.NewEvents = append(changes.NewEvents, recorded.Stored)
}

// act records actions in one chain in one transaction.
func (w *world) act(ctx context.Context, s store.Store, id ledger.ChainID, actions ...*ledger.Action) error {
	return s.Transact(ctx, &store.Needs{Chains: []ledger.ChainID{id}}, func(loaded *store.Loaded) (*store.Changes, error) {
		o, err := w.decode(loaded.Chains[id])
		if err != nil {
			return nil, err
		}
		changes := new(store.Changes)
		for _, action := range actions {
			w.enter(o, action, changes)
		}
		changes.States = []*store.ChainRecord{w.moved(o)}
		return changes, nil
	})
}

func (w *world) mustAct(t *testing.T, id ledger.ChainID, actions ...*ledger.Action) {
	t.Helper()
	if err := w.act(t.Context(), w, id, actions...); err != nil {
		t.Fatalf("record: %v", err)
	}
}

// report records the outcome of an event.
func (w *world) report(ctx context.Context, s store.Store, id ledger.ChainID, sequence int64, result ledger.Result) error {
	at := store.EventAt{Chain: id, Sequence: sequence}
	needs := &store.Needs{Chains: []ledger.ChainID{id}, Addenda: []store.EventAt{at}}
	return s.Transact(ctx, needs, func(loaded *store.Loaded) (*store.Changes, error) {
		o, err := w.decode(loaded.Chains[id])
		if err != nil {
			return nil, err
		}
		event, earlier, err := history(loaded, at)
		if err != nil {
			return nil, err
		}
		_, addendum, err := o.state.ReportOutcome(event, earlier, ledger.Entry{Result: result}, w.now())
		if err != nil {
			return nil, err
		}
		return &store.Changes{States: []*store.ChainRecord{w.moved(o)}, NewAddenda: []*ledger.Addendum{addendum}}, nil
	})
}

func history(loaded *store.Loaded, at store.EventAt) (*ledger.RecordedEvent, []*ledger.Entry, error) {
	events, err := loaded.EventsAfter(at.Chain, at.Sequence-1)
	if err != nil {
		return nil, nil, err
	}
	if len(events) == 0 {
		return nil, nil, fmt.Errorf("no event %d", at.Sequence)
	}
	event, err := ledger.DecodeEvent(events[0].Body)
	if err != nil {
		return nil, nil, err
	}
	entries, err := ledger.DecodeEntries(loaded.Addenda[at])
	return event, entries, err
}

func (w *world) mustReport(t *testing.T, id ledger.ChainID, sequence int64, result ledger.Result) {
	t.Helper()
	if err := w.report(t.Context(), w, id, sequence, result); err != nil {
		t.Fatalf("report outcome: %v", err)
	}
}

// seal completes chains of one organization, one after the other, in one transaction.
func (w *world) seal(ctx context.Context, s store.Store, m *member, chains ...ledger.ChainID) error {
	needs := &store.Needs{Chains: chains, Heads: []ledger.OrgID{m.org.ID}}
	return s.Transact(ctx, needs, func(loaded *store.Loaded) (*store.Changes, error) {
		changes := new(store.Changes)
		head, err := loaded.Heads[m.org.ID].Open(w.keys)
		if err != nil {
			return nil, err
		}
		for _, id := range chains {
			if err := w.sealOne(loaded, head, m, id, changes); err != nil {
				return nil, err
			}
		}
		changes.Heads = []*ledger.Head{head.Sign(w.keys)}
		return changes, nil
	})
}

func (w *world) sealOne(loaded *store.Loaded, head *ledger.OpenHead, m *member, id ledger.ChainID, changes *store.Changes) error {
	o, err := w.decode(loaded.Chains[id])
	if err != nil {
		return err
	}
	events, err := loaded.EventsAfter(id, 0)
	if err != nil {
		return err
	}
	summary, err := summarise(events)
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
	return nil
}

func summarise(events []*ledger.StoredEvent) (*ledger.Summary, error) {
	summary := new(ledger.Summary)
	for _, stored := range events {
		event, err := ledger.DecodeEvent(stored.Body)
		if err != nil {
			return nil, err
		}
		summary.Count(&event.Event)
	}
	return summary, nil
}

func (w *world) mustSeal(t *testing.T, m *member, chains ...ledger.ChainID) {
	t.Helper()
	if err := w.seal(t.Context(), w, m, chains...); err != nil {
		t.Fatalf("seal: %v", err)
	}
}

// sealedChains opens chains with one event each and seals them one by one.
func (w *world) sealedChains(t *testing.T, m *member, count int) []ledger.ChainID {
	t.Helper()
	chains := w.openChains(t, m, count)
	for _, id := range chains {
		w.mustAct(t, id, newAction(""))
		w.mustSeal(t, m, id)
	}
	return chains
}
