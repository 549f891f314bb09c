package storetest

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

var readerCases = []testCase{
	{name: "an unknown id is not found", run: unknownIsNotFound},
	{name: "chains are listed newest first and by filter", run: listsChains},
	{name: "chains are listed page by page", run: pagesChains},
	{name: "a chain's status moves between the lists", run: statusMovesLists},
	{name: "events are listed by sequence", run: listsEvents},
	{name: "addenda are listed by position", run: listsAddenda},
	{name: "a chain is read with the first of its rows", run: readsChainRows},
	{name: "chains are scanned in order of id", run: scansChains},
	{name: "a scan of many chains sees each once", run: scansManyChains, unaudited: true},
	{name: "chains with the smallest and the greatest id are scanned", run: scansExtremeChains, unaudited: true},
	{name: "a visitor's error ends a scan of chains", run: visitorEndsChainScan},
	{name: "a scan whose context ends is unavailable", run: contextEndsScan},
}

func unknownIsNotFound(t *testing.T, w *world) {
	m := w.join(t)
	open := w.openChain(t, m)
	reads := map[string]func() error{
		"chain":                    func() error { _, err := w.Chain(t.Context(), w.chainID()); return err },
		"rows of a chain":          func() error { _, err := w.ChainRows(t.Context(), m.org.ID, w.chainID(), 10); return err },
		"receipt":                  func() error { _, err := w.Receipt(t.Context(), w.receiptID()); return err },
		"receipt of unknown chain": func() error { _, err := w.ReceiptOfChain(t.Context(), w.chainID()); return err },
		"receipt of open chain":    func() error { _, err := w.ReceiptOfChain(t.Context(), open); return err },
		"head":                     func() error { _, err := w.Head(t.Context(), w.newOrganization().ID); return err },
	}
	for what, read := range reads {
		wantError(t, what, read(), store.ErrNotFound)
	}
	if events := must[[]*ledger.StoredEvent](t)(w.Events(t.Context(), w.chainID(), 0, 10)); len(events) != 0 {
		t.Errorf("%d events of an unknown chain", len(events))
	}
	if addenda := must[[]*ledger.Addendum](t)(w.Addenda(t.Context(), w.chainID(), 1, 10)); len(addenda) != 0 {
		t.Errorf("%d addenda of an unknown chain", len(addenda))
	}
}

// variedChains opens chains that differ in everything that lists filter by. Chain i is opened by
// key i%2 in environment i%3, every fourth has an external id, and the last two are sealed.
func (w *world) variedChains(t *testing.T, m *member, count int) ([]*store.ChainRecord, []*ledger.KeyRecord) {
	t.Helper()
	second := w.newKey(m.org.ID)
	w.mustAddKey(t, second)
	keys := []*ledger.KeyRecord{m.key, second}
	var records []*store.ChainRecord
	for i := range count {
		chain := w.draft(m)
		chain.OpenedBy = keys[i%2].ID
		chain.Environment = []string{"production", "staging", "développement"}[i%3]
		if i%4 == 0 {
			chain.ExternalID = "order/17"
		}
		records = append(records, w.record(chain, ""))
	}
	w.write(t, &store.Changes{NewChains: records})
	w.mustSeal(t, m, records[count-2].ID, records[count-1].ID)
	for _, i := range []int{count - 2, count - 1} {
		records[i] = must[*store.ChainRecord](t)(w.Chain(t.Context(), records[i].ID))
	}
	return records, keys
}

func listsChains(t *testing.T, w *world) {
	m, other := w.join(t), w.join(t)
	w.openChains(t, other, 3)
	records, keys := w.variedChains(t, m, 24)
	filters := []struct {
		name  string
		query store.ChainQuery
		keep  func(i int) bool
	}{
		{"all", store.ChainQuery{}, func(int) bool { return true }},
		{"opened by", store.ChainQuery{OpenedBy: &keys[1].ID}, func(i int) bool { return i%2 == 1 }},
		{"active", store.ChainQuery{Status: ledger.ChainActive}, func(i int) bool { return i < 22 }},
		{"completed", store.ChainQuery{Status: ledger.ChainCompleted}, func(i int) bool { return i >= 22 }},
		{"failed", store.ChainQuery{Status: ledger.ChainFailed}, func(int) bool { return false }},
		{"environment", store.ChainQuery{Environment: "développement"}, func(i int) bool { return i%3 == 2 }},
		{"other environment", store.ChainQuery{Environment: "Production"}, func(int) bool { return false }},
		{"external id", store.ChainQuery{ExternalID: "order/17"}, func(i int) bool { return i%4 == 0 }},
		{"part of an external id", store.ChainQuery{ExternalID: "order"}, func(int) bool { return false }},
		{"before", store.ChainQuery{Before: &records[10].ID}, func(i int) bool { return i < 10 }},
		{"all filters", store.ChainQuery{
			OpenedBy: &keys[0].ID, Status: ledger.ChainActive, Environment: "production", ExternalID: "order/17", Before: &records[20].ID,
		}, func(i int) bool { return i%12 == 0 && i < 20 }},
	}
	for _, f := range filters {
		var want []*store.ChainRecord
		for i, record := range slices.Backward(records) {
			if f.keep(i) {
				want = append(want, record)
			}
		}
		f.query.Org, f.query.Limit = m.org.ID, 100
		assertEqual(t, f.name, must[[]*store.ChainRecord](t)(w.Chains(t.Context(), f.query)), want)
		f.query.Limit = 2
		assertEqual(t, f.name+", limited", must[[]*store.ChainRecord](t)(w.Chains(t.Context(), f.query)), want[:min(2, len(want))])
	}
}

func pagesChains(t *testing.T, w *world) {
	m := w.join(t)
	ids := w.openChains(t, m, 11)
	slices.Reverse(ids)
	query := store.ChainQuery{Org: m.org.ID, Limit: 3}
	var got []ledger.ChainID
	for {
		page := must[[]*store.ChainRecord](t)(w.Chains(t.Context(), query))
		for _, chain := range page {
			got = append(got, chain.ID)
		}
		if len(page) < query.Limit || len(got) > len(ids) {
			break
		}
		query.Before = &got[len(got)-1]
	}
	assertEqual(t, "ids", got, ids)
}

func statusMovesLists(t *testing.T, w *world) {
	m := w.join(t)
	id := w.openChain(t, m)
	count := func(status ledger.ChainStatus) int {
		return len(must[[]*store.ChainRecord](t)(w.Chains(t.Context(), store.ChainQuery{Org: m.org.ID, Status: status, Limit: 10})))
	}
	if active, completed := count(ledger.ChainActive), count(ledger.ChainCompleted); active != 1 || completed != 0 {
		t.Errorf("before: %d active, %d completed", active, completed)
	}
	w.mustSeal(t, m, id)
	if active, completed := count(ledger.ChainActive), count(ledger.ChainCompleted); active != 0 || completed != 1 {
		t.Errorf("after: %d active, %d completed", active, completed)
	}
}

func listsEvents(t *testing.T, w *world) {
	m := w.join(t)
	chains := w.openChains(t, m, 2)
	for _, id := range chains {
		for range 12 {
			w.mustAct(t, id, newAction(""))
		}
	}
	for _, test := range []struct {
		after       int64
		limit       int
		first, last int64
	}{{0, 100, 1, 12}, {0, 3, 1, 3}, {5, 4, 6, 9}, {11, 5, 12, 12}, {12, 5, 1, 0}, {99, 5, 1, 0}} {
		var want, got []int64
		for sequence := test.first; sequence <= test.last; sequence++ {
			want = append(want, sequence)
		}
		for _, event := range must[[]*ledger.StoredEvent](t)(w.Events(t.Context(), chains[1], test.after, test.limit)) {
			got = append(got, event.Sequence)
			if event.Chain != chains[1] {
				t.Errorf("an event of another chain is listed")
			}
		}
		assertEqual(t, "sequences", got, want)
	}
}

func listsAddenda(t *testing.T, w *world) {
	m := w.join(t)
	chains := w.openChains(t, m, 2)
	for _, id := range chains {
		w.mustAct(t, id, newAction(""), newAction(""), newAction(""), newAction(""))
		for _, sequence := range []int64{3, 1, 4} {
			w.mustReport(t, id, sequence, ledger.Unknown) // positions 5, 6, 7
		}
		w.mustReport(t, id, 3, ledger.Succeeded) // position 8
	}
	for _, test := range []struct {
		from, to int64
		want     []int64
	}{{1, 4, []int64{5, 6, 7, 8}}, {3, 3, []int64{5, 8}}, {1, 2, []int64{6}}, {2, 2, nil}, {4, 99, []int64{7}}, {5, 99, nil}} {
		var got []int64
		for _, addendum := range must[[]*ledger.Addendum](t)(w.Addenda(t.Context(), chains[0], test.from, test.to)) {
			got = append(got, addendum.Position)
		}
		assertEqual(t, "positions", got, test.want)
	}
}

func readsChainRows(t *testing.T, w *world) {
	m, other := w.join(t), w.join(t)
	w.ask(t, m, 2)
	chain := w.ask(t, m, 3)[0].Chain
	for _, sequence := range []int64{3, 1, 2} {
		w.mustReport(t, chain, sequence, ledger.Unknown)
	}
	for _, limit := range []int{1, 3, 10} {
		want := &store.ChainRows{
			Chain:     must[*store.ChainRecord](t)(w.Chain(t.Context(), chain)),
			Addenda:   must[[]*ledger.Addendum](t)(w.Addenda(t.Context(), chain, 1, 3))[:min(limit, 3)],
			Events:    must[[]*ledger.StoredEvent](t)(w.Events(t.Context(), chain, 0, limit)),
			Approvals: must[[]*store.ApprovalRecord](t)(w.Approvals(t.Context(), store.ApprovalQuery{Org: m.org.ID, Chain: &chain, Limit: limit})),
		}
		assertEqual(t, "rows", must[*store.ChainRows](t)(w.ChainRows(t.Context(), m.org.ID, chain, limit)), want)
	}
	if rows := must[*store.ChainRows](t)(w.ChainRows(t.Context(), other.org.ID, chain, 10)); len(rows.Approvals) != 0 {
		t.Errorf("%d approvals of another organization", len(rows.Approvals))
	}
}

func scansChains(t *testing.T, w *world) {
	m, other := w.join(t), w.join(t)
	w.openChains(t, other, 2)
	records, _ := w.variedChains(t, m, 9)
	var got []*store.ChainRecord
	err := w.ScanChains(t.Context(), m.org.ID, func(record *store.ChainRecord) error {
		got = append(got, record)
		return nil
	})
	if err != nil {
		t.Fatalf("scan: %v", err)
	}
	assertEqual(t, "chains", got, records)
}

// scansManyChains exceeds the page size of any store.
func scansManyChains(t *testing.T, w *world) {
	m := w.join(t)
	want := w.openChains(t, m, 550)
	var got []ledger.ChainID
	err := w.ScanChains(t.Context(), m.org.ID, func(record *store.ChainRecord) error {
		got = append(got, record.ID)
		return nil
	})
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%d of %d chains were visited in order, error %v", len(got), len(want), err)
	}
}

func visitorEndsChainScan(t *testing.T, w *world) {
	m := w.join(t)
	w.openChains(t, m, 5)
	enough := errors.New("enough")
	visits := 0
	err := w.ScanChains(t.Context(), m.org.ID, func(*store.ChainRecord) error {
		visits++
		return enough
	})
	wantError(t, "scan", err, enough)
	if visits != 1 {
		t.Errorf("%d visits, want 1", visits)
	}
}

// contextEndsScan tells the end of the context from an error of the visitor.
func contextEndsScan(t *testing.T, w *world) {
	m := w.join(t)
	w.openChains(t, m, 600) // more than a page of any store
	ctx, cancel := context.WithCancel(t.Context())
	visits := 0
	err := w.ScanChains(ctx, m.org.ID, func(*store.ChainRecord) error {
		visits++
		cancel()
		return nil
	})
	wantError(t, "scan", err, store.ErrUnavailable)
	wantError(t, "scan", err, context.Canceled)
	if visits >= 600 {
		t.Errorf("%d visits after the context ended", visits)
	}
}

// scansExtremeChains stores ids that the service never makes: somebody who writes to the database
// must not be able to hide a chain behind its id.
func scansExtremeChains(t *testing.T, w *world) {
	m := w.join(t)
	want := []ledger.ChainID{{UUID: uuid.Nil}, w.chainID(), {UUID: uuid.Max}}
	for _, id := range want {
		chain := w.draft(m)
		chain.ID = id
		w.write(t, &store.Changes{NewChains: []*store.ChainRecord{w.record(chain, "")}})
		w.mustAct(t, id, newAction(""))
	}
	var got []ledger.ChainID
	err := w.ScanChains(t.Context(), m.org.ID, func(record *store.ChainRecord) error {
		got = append(got, record.ID)
		return nil
	})
	if err != nil {
		t.Fatalf("scan: %v", err)
	}
	assertEqual(t, "chains", got, want)
	got = nil
	for _, visit := range w.scanEvents(t, m.org.ID, 0) {
		got = append(got, visit.Chain.ID)
	}
	slices.Reverse(got)
	assertEqual(t, "chains of events", got, want)
}
