package storetest

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

var approvalCases = []testCase{
	{name: "an approval is found by id", run: findsApproval},
	{name: "an unknown approval is not found", run: unknownApproval},
	{name: "approvals are loaded by id and by chain", run: loadsApprovals},
	{name: "an update moves status, body and authenticator", run: updatesApproval},
	{name: "an update of an unknown approval writes nothing", run: updatesUnknownApproval},
	{name: "approvals are listed newest first and by filter", run: listsApprovals},
	{name: "approvals of one moment are listed page by page", run: pagesApprovals},
	{name: "an approval's status moves between the lists", run: approvalMovesLists},
	{name: "organizations with approvals are listed, whatever their approvals' status", run: listsOrganizationsWithApprovals},
}

func (w *world) approvalID() ledger.ApprovalID {
	var bytes [16]byte
	// The counter comes last, so that the order of ids differs from the order of times.
	binary.LittleEndian.PutUint64(bytes[:], uint64(w.ticks.Add(1)))
	return ledger.ApprovalID{UUID: ledger.NewRandomID(bytes)}
}

// approval returns an approval for an event of a chain.
func (w *world) approval(m *member, chain ledger.ChainID, sequence int64) *store.ApprovalRecord {
	return &store.ApprovalRecord{
		ID: w.approvalID(), Org: m.org.ID, Chain: chain, Sequence: sequence, OpenedBy: m.key.ID, RequestedAt: w.now(),
		Status: ledger.ApprovalPending, Body: fmt.Appendf(nil, `{"sequence":%d}`, sequence), MAC: fmt.Appendf(nil, "mac %d", sequence),
	}
}

// chainWithEvents opens a chain and records actions in it, for approvals to refer to.
func (w *world) chainWithEvents(t *testing.T, m *member, events int) ledger.ChainID {
	t.Helper()
	id := w.openChain(t, m)
	actions := make([]*ledger.Action, events)
	for i := range actions {
		actions[i] = newAction("")
	}
	w.mustAct(t, id, actions...)
	return id
}

// ask stores approvals for the first events of a new chain.
func (w *world) ask(t *testing.T, m *member, count int) []*store.ApprovalRecord {
	t.Helper()
	chain := w.chainWithEvents(t, m, count)
	records := make([]*store.ApprovalRecord, count)
	for i := range records {
		records[i] = w.approval(m, chain, int64(i+1))
	}
	w.write(t, &store.Changes{NewApprovals: records})
	return records
}

func findsApproval(t *testing.T, w *world) {
	m := w.join(t)
	chain := w.chainWithEvents(t, m, 1)
	record := w.approval(m, chain, 1)
	record.Body, record.MAC = everyByte(), append(everyByte(), 1)
	w.write(t, &store.Changes{NewApprovals: []*store.ApprovalRecord{record}})
	assertEqual(t, "approval", must[*store.ApprovalRecord](t)(w.open(t).Approval(t.Context(), record.ID)), record)
}

func unknownApproval(t *testing.T, w *world) {
	m := w.join(t)
	w.ask(t, m, 1)
	_, err := w.Approval(t.Context(), w.approvalID())
	wantError(t, "approval", err, store.ErrNotFound)
	stranger := w.newOrganization().ID
	if found := must[[]*store.ApprovalRecord](t)(w.Approvals(t.Context(), store.ApprovalQuery{Org: stranger, Limit: 10})); len(found) != 0 {
		t.Errorf("%d approvals of an unknown organization", len(found))
	}
}

func loadsApprovals(t *testing.T, w *world) {
	m := w.join(t)
	one, two, three := w.ask(t, m, 3), w.ask(t, m, 2), w.ask(t, m, 2)
	bare := w.openChain(t, m)
	needs := &store.Needs{
		Approvals:   []ledger.ApprovalID{one[0].ID, two[1].ID, one[0].ID, w.approvalID()},
		ApprovalsOf: []ledger.ChainID{three[0].Chain, bare, three[0].Chain, w.chainID()},
	}
	w.look(t, needs, func(loaded *store.Loaded) {
		want := make(map[ledger.ApprovalID]*store.ApprovalRecord)
		for _, record := range []*store.ApprovalRecord{one[0], two[1], three[0], three[1]} {
			want[record.ID] = record
		}
		assertEqual(t, "approvals", loaded.Approvals, want)
	})
	// An approval that is needed for two reasons is loaded once.
	w.look(t, &store.Needs{Approvals: []ledger.ApprovalID{two[0].ID}, ApprovalsOf: []ledger.ChainID{two[0].Chain}}, func(loaded *store.Loaded) {
		if len(loaded.Approvals) != len(two) {
			t.Errorf("%d approvals were loaded, want %d", len(loaded.Approvals), len(two))
		}
	})
}

func updatesApproval(t *testing.T, w *world) {
	m := w.join(t)
	records := w.ask(t, m, 2)
	want := *records[0]
	want.Status, want.Body, want.MAC = ledger.ApprovalApproved, []byte("decided"), []byte("other")
	err := w.Transact(t.Context(), &store.Needs{Approvals: []ledger.ApprovalID{want.ID}}, func(loaded *store.Loaded) (*store.Changes, error) {
		moved := *loaded.Approvals[want.ID]
		moved.Status, moved.Body, moved.MAC = want.Status, want.Body, want.MAC
		return &store.Changes{Approvals: []*store.ApprovalRecord{&moved}}, nil
	})
	if err != nil {
		t.Fatalf("transact: %v", err)
	}
	assertEqual(t, "updated", must[*store.ApprovalRecord](t)(w.Approval(t.Context(), want.ID)), &want)
	assertEqual(t, "other", must[*store.ApprovalRecord](t)(w.Approval(t.Context(), records[1].ID)), records[1])
}

func updatesUnknownApproval(t *testing.T, w *world) {
	m := w.join(t)
	known := w.ask(t, m, 1)[0]
	moved := *known
	moved.Status = ledger.ApprovalDenied
	stranger := w.approval(m, known.Chain, 2)
	err := attempt(t.Context(), w, &store.Changes{Approvals: []*store.ApprovalRecord{&moved, stranger}})
	wantError(t, "update", err, store.ErrNotFound)
	assertEqual(t, "known", must[*store.ApprovalRecord](t)(w.Approval(t.Context(), known.ID)), known)
	_, err = w.Approval(t.Context(), stranger.ID)
	wantError(t, "stranger", err, store.ErrNotFound)
}

// newestFirst sorts records in the order of lists.
func newestFirst(records []*store.ApprovalRecord) []*store.ApprovalRecord {
	return slices.SortedFunc(slices.Values(records), func(a, b *store.ApprovalRecord) int {
		return -cmp.Or(cmp.Compare(a.RequestedAt, b.RequestedAt), bytes.Compare(a.ID.UUID[:], b.ID.UUID[:]))
	})
}

func listsOrganizationsWithApprovals(t *testing.T, w *world) {
	asked, decided, other := w.join(t), w.join(t), w.join(t)
	w.openChain(t, other)
	listed := func() (found [3]bool) {
		t.Helper()
		orgs := must[[]ledger.OrgID](t)(w.open(t).OrganizationsWithApprovals(t.Context()))
		for i, m := range []*member{asked, decided, other} {
			found[i] = slices.Contains(orgs, m.org.ID)
		}
		return found
	}
	assertEqual(t, "before any approval", listed(), [3]bool{})
	w.ask(t, asked, 2)
	record := w.approval(decided, w.chainWithEvents(t, decided, 1), 1)
	record.Status = ledger.ApprovalDenied
	w.write(t, &store.Changes{NewApprovals: []*store.ApprovalRecord{record}})
	assertEqual(t, "with approvals", listed(), [3]bool{true, true, false})
}

func listsApprovals(t *testing.T, w *world) {
	m, other := w.join(t), w.join(t)
	w.ask(t, other, 3)
	key := w.newKey(m.org.ID)
	w.mustAddKey(t, key)
	chains := []ledger.ChainID{w.chainWithEvents(t, m, 12), w.chainWithEvents(t, m, 12)}
	var records []*store.ApprovalRecord
	for i := range 18 {
		record := w.approval(m, chains[i%2], int64(i/2+1))
		record.Status = []ledger.ApprovalStatus{ledger.ApprovalPending, ledger.ApprovalEscalated, ledger.ApprovalDenied}[i%3]
		if i%2 == 1 {
			record.OpenedBy = key.ID
		}
		records = append(records, record)
	}
	w.write(t, &store.Changes{NewApprovals: records})
	place := &store.ApprovalAt{RequestedAt: records[10].RequestedAt, ID: records[10].ID}
	filters := []struct {
		name  string
		query store.ApprovalQuery
		keep  func(i int) bool
	}{
		{"all", store.ApprovalQuery{}, func(int) bool { return true }},
		{"pending", store.ApprovalQuery{Status: ledger.ApprovalPending}, func(i int) bool { return i%3 == 0 }},
		{"escalated", store.ApprovalQuery{Status: ledger.ApprovalEscalated}, func(i int) bool { return i%3 == 1 }},
		{"denied", store.ApprovalQuery{Status: ledger.ApprovalDenied}, func(i int) bool { return i%3 == 2 }},
		{"approved", store.ApprovalQuery{Status: ledger.ApprovalApproved}, func(int) bool { return false }},
		{"opened by", store.ApprovalQuery{OpenedBy: &key.ID}, func(i int) bool { return i%2 == 1 }},
		{"chain", store.ApprovalQuery{Chain: &chains[0]}, func(i int) bool { return i%2 == 0 }},
		{"before", store.ApprovalQuery{Before: place}, func(i int) bool { return i < 10 }},
		{"all filters", store.ApprovalQuery{
			OpenedBy: &m.key.ID, Chain: &chains[0], Status: ledger.ApprovalPending, Before: place,
		}, func(i int) bool { return i%6 == 0 && i < 10 }},
		{"chain of another key", store.ApprovalQuery{OpenedBy: &m.key.ID, Chain: &chains[1]}, func(int) bool { return false }},
	}
	for _, f := range filters {
		var want []*store.ApprovalRecord
		for i, record := range records {
			if f.keep(i) {
				want = append(want, record)
			}
		}
		want = newestFirst(want)
		f.query.Org, f.query.Limit = m.org.ID, 100
		assertEqual(t, f.name, must[[]*store.ApprovalRecord](t)(w.Approvals(t.Context(), f.query)), want)
		f.query.Limit = 2
		assertEqual(t, f.name+", limited", must[[]*store.ApprovalRecord](t)(w.Approvals(t.Context(), f.query)), want[:min(2, len(want))])
		if f.query.Before != nil {
			continue // it means others in the other order
		}
		slices.Reverse(want)
		f.query.Oldest = true
		assertEqual(t, f.name+", oldest first", must[[]*store.ApprovalRecord](t)(w.Approvals(t.Context(), f.query)), want[:min(2, len(want))])
	}
}

func pagesApprovals(t *testing.T, w *world) {
	m := w.join(t)
	chain := w.chainWithEvents(t, m, 17)
	var records []*store.ApprovalRecord
	moments := []ledger.Time{w.now(), w.now()}
	for i := range 17 {
		record := w.approval(m, chain, int64(i+1))
		record.RequestedAt = moments[i/9] // nine of the first, eight of the second
		records = append(records, record)
	}
	w.write(t, &store.Changes{NewApprovals: records})
	want := newestFirst(records)
	for _, query := range []store.ApprovalQuery{{}, {Status: ledger.ApprovalPending}, {Oldest: true}, {Status: ledger.ApprovalPending, Oldest: true}} {
		query.Org, query.Limit = m.org.ID, 4
		var got []*store.ApprovalRecord
		for {
			page := must[[]*store.ApprovalRecord](t)(w.Approvals(t.Context(), query))
			got = append(got, page...)
			if len(page) < query.Limit || len(got) > len(records) {
				break
			}
			last := page[len(page)-1]
			query.Before = &store.ApprovalAt{RequestedAt: last.RequestedAt, ID: last.ID}
		}
		if query.Oldest {
			slices.Reverse(got)
		}
		assertEqual(t, "approvals", got, want)
	}
}

func approvalMovesLists(t *testing.T, w *world) {
	m := w.join(t)
	record := w.ask(t, m, 1)[0]
	statuses := []ledger.ApprovalStatus{
		ledger.ApprovalPending, ledger.ApprovalEscalated, ledger.ApprovalApproved, ledger.ApprovalDenied, ledger.ApprovalTimedOut, ledger.ApprovalCancelled,
	}
	for _, status := range statuses {
		record.Status = status
		w.write(t, &store.Changes{Approvals: []*store.ApprovalRecord{record}})
		for _, listed := range statuses {
			found := must[[]*store.ApprovalRecord](t)(w.Approvals(t.Context(), store.ApprovalQuery{Org: m.org.ID, Status: listed, Limit: 10}))
			if (len(found) == 1) != (listed == status) {
				t.Errorf("the list of %s has %d approvals when it is %s", listed, len(found), status)
			}
		}
	}
}
