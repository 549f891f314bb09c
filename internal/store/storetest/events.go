package storetest

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

var eventCases = []testCase{
	{name: "an event is found by its place", run: findsEvent},
	{name: "every read returns an event's authenticator", run: keepsEventMACs, unaudited: true},
	{name: "events are scanned newest chain first", run: scansEvents},
	{name: "a scan begins at its moment", run: scansEventsSince},
	{name: "a scan of many events sees each once", run: scansManyEvents, unaudited: true},
	{name: "a visitor's error ends a scan of events", run: visitorEndsEventScan},
}

func findsEvent(t *testing.T, w *world) {
	m := w.join(t)
	chain := w.chainWithEvents(t, m, 3)
	other := w.chainWithEvents(t, m, 1)
	for i, want := range must[[]*ledger.StoredEvent](t)(w.Events(t.Context(), chain, 0, 10)) {
		at := store.EventAt{Chain: chain, Sequence: int64(i + 1)}
		assertEqual(t, "event", must[*ledger.StoredEvent](t)(w.Event(t.Context(), at)), want)
	}
	for _, at := range []store.EventAt{{Chain: chain, Sequence: 4}, {Chain: chain}, {Chain: other, Sequence: 2}, {Chain: w.chainID(), Sequence: 1}} {
		_, err := w.Event(t.Context(), at)
		wantError(t, "event", err, store.ErrNotFound)
	}
}

func keepsEventMACs(t *testing.T, w *world) {
	m := w.join(t)
	chain := w.openChain(t, m)
	events := []*ledger.StoredEvent{
		{Chain: chain, Sequence: 1, IdempotencyKey: "with", Body: []byte("{}"), Payload: []byte("{}"), Redactions: append(everyByte(), 1), MAC: everyByte()},
		{Chain: chain, Sequence: 2, IdempotencyKey: "without", Body: []byte("{}"), Payload: []byte("{}")},
	}
	w.write(t, &store.Changes{NewEvents: events})
	check := func(way string, got []*ledger.StoredEvent) {
		if len(got) != len(events) {
			t.Errorf("%s: %d events, want %d", way, len(got), len(events))
			return
		}
		assertEqual(t, way, [][]byte{got[0].MAC, got[1].MAC}, [][]byte{events[0].MAC, nil})
		if got[1].MAC != nil {
			t.Errorf("%s: no authenticator came back as an empty one", way)
		}
		if way == "events after" {
			return // redactions may be missing here, like payloads
		}
		assertEqual(t, way, [][]byte{got[0].Redactions, got[1].Redactions}, [][]byte{events[0].Redactions, nil})
		if got[1].Redactions != nil {
			t.Errorf("%s: no redactions came back as empty ones", way)
		}
	}
	check("events", must[[]*ledger.StoredEvent](t)(w.Events(t.Context(), chain, 0, 10)))
	refs := []store.EventRef{{Chain: chain, Key: "with"}, {Chain: chain, Key: "without"}}
	var one []*ledger.StoredEvent
	for _, event := range events {
		one = append(one, must[*ledger.StoredEvent](t)(w.Event(t.Context(), store.EventAt{Chain: chain, Sequence: event.Sequence})))
	}
	check("event", one)
	w.look(t, &store.Needs{Chains: []ledger.ChainID{chain}, Repeats: refs}, func(loaded *store.Loaded) {
		check("repeats", []*ledger.StoredEvent{loaded.Repeats[refs[0]], loaded.Repeats[refs[1]]})
		check("events after", must[[]*ledger.StoredEvent](t)(loaded.EventsAfter(chain, 0)))
	})
	check("scan", eventsOf(w.scanEvents(t, m.org.ID, 0)))
}

// visited is one call of a scan's visitor, with copies of its arguments.
type visited struct {
	Chain store.ChainRecord
	Event ledger.StoredEvent
}

func eventsOf(visits []visited) (events []*ledger.StoredEvent) {
	for i := range visits {
		events = append(events, &visits[i].Event)
	}
	return events
}

func (w *world) scanEvents(t *testing.T, org ledger.OrgID, since ledger.Time) []visited {
	t.Helper()
	var visits []visited
	err := w.ScanEvents(t.Context(), org, since, func(chain *store.ChainRecord, event *ledger.StoredEvent) error {
		v := visited{*chain, *event}
		for _, bytes := range []*[]byte{&v.Chain.Body, &v.Chain.State, &v.Chain.MAC, &v.Event.Body, &v.Event.Payload, &v.Event.Redactions, &v.Event.MAC} {
			*bytes = slices.Clone(*bytes)
		}
		visits = append(visits, v)
		return nil
	})
	if err != nil {
		t.Fatalf("scan: %v", err)
	}
	return visits
}

func scansEvents(t *testing.T, w *world) {
	m, other := w.join(t), w.join(t)
	w.chainWithEvents(t, other, 2)
	chains := []ledger.ChainID{w.chainWithEvents(t, m, 3), w.openChain(t, m), w.chainWithEvents(t, m, 1), w.chainWithEvents(t, m, 2)}
	w.mustAct(t, chains[0], newAction("late")) // the scan visits an old chain's newest event with its chain
	w.mustSeal(t, m, chains[2])
	var want []visited
	for _, id := range slices.Backward(chains) {
		record := must[*store.ChainRecord](t)(w.Chain(t.Context(), id))
		for _, event := range must[[]*ledger.StoredEvent](t)(w.Events(t.Context(), id, 0, 100)) {
			want = append(want, visited{*record, *event})
		}
	}
	assertEqual(t, "visits", w.scanEvents(t, m.org.ID, 0), want)
	if visits := w.scanEvents(t, w.newOrganization().ID, 0); len(visits) != 0 {
		t.Errorf("%d events of an unknown organization", len(visits))
	}
}

// scansEventsSince opens chains like the service: a chain's id contains the time at which it was
// opened.
func scansEventsSince(t *testing.T, w *world) {
	m := w.join(t)
	moments := make([]ledger.Time, 6)
	for i := range moments {
		chain := w.draft(m)
		chain.StartedAt = w.now()
		chain.ID.UUID = ledger.NewTimedID(chain.StartedAt, w.random())
		moments[i] = chain.StartedAt
		w.write(t, &store.Changes{NewChains: []*store.ChainRecord{w.record(chain, "")}})
		w.mustAct(t, chain.ID, newAction(fmt.Sprint(i)))
	}
	for _, test := range []struct {
		since ledger.Time
		first int
	}{{moments[0] - 1, 0}, {moments[0], 0}, {moments[0] + 1, 1}, {moments[3], 3}, {moments[5], 5}, {moments[5] + 1, 6}} {
		var got, want []string
		for _, visit := range w.scanEvents(t, m.org.ID, test.since) {
			got = append(got, visit.Event.IdempotencyKey)
		}
		for i := len(moments) - 1; i >= test.first; i-- {
			want = append(want, fmt.Sprint(i))
		}
		assertEqual(t, fmt.Sprintf("since %d", test.since-moments[0]), got, want)
	}
}

// scansManyEvents exceeds the page size of any store, in chains and in events.
func scansManyEvents(t *testing.T, w *world) {
	const chains, events = 550, 1100
	m := w.join(t)
	large := w.openChain(t, m)
	changes := new(store.Changes)
	for sequence := range int64(events) {
		changes.NewEvents = append(changes.NewEvents, &ledger.StoredEvent{Chain: large, Sequence: sequence + 1, Body: []byte("{}")})
	}
	w.write(t, changes)
	ids := w.openChains(t, m, chains)
	changes = new(store.Changes)
	for _, id := range ids {
		changes.NewEvents = append(changes.NewEvents, &ledger.StoredEvent{Chain: id, Sequence: 1, Body: []byte("{}")})
	}
	w.write(t, changes)
	var want []store.EventAt
	for _, id := range slices.Backward(ids) {
		want = append(want, store.EventAt{Chain: id, Sequence: 1})
	}
	for sequence := range int64(events) {
		want = append(want, store.EventAt{Chain: large, Sequence: sequence + 1})
	}
	var got []store.EventAt
	err := w.ScanEvents(t.Context(), m.org.ID, 0, func(chain *store.ChainRecord, event *ledger.StoredEvent) error {
		if chain.ID != event.Chain {
			t.Errorf("an event of %v is shown with chain %v", event.Chain, chain.ID)
		}
		got = append(got, store.EventAt{Chain: event.Chain, Sequence: event.Sequence})
		return nil
	})
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%d of %d events were visited, in order or not, error %v", len(got), len(want), err)
	}
}

func visitorEndsEventScan(t *testing.T, w *world) {
	m := w.join(t)
	w.chainWithEvents(t, m, 3)
	w.chainWithEvents(t, m, 3)
	for _, last := range []int{1, 3, 5} {
		enough := errors.New("enough")
		visits := 0
		err := w.ScanEvents(t.Context(), m.org.ID, 0, func(*store.ChainRecord, *ledger.StoredEvent) error {
			if visits++; visits == last {
				return enough
			}
			return nil
		})
		if err != enough { //nolint:errorlint // the visitor's error is returned unchanged
			t.Errorf("error %v, want the visitor's", err)
		}
		if visits != last {
			t.Errorf("%d visits, want %d", visits, last)
		}
	}
}
