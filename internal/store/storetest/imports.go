package storetest

import (
	"fmt"
	"testing"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

var importCases = []testCase{
	{name: "an imported approval is stored unchanged", run: keepsImported},
	{name: "imported approvals are listed by organization and id", run: listsImported},
	{name: "imported approvals are loaded by id", run: loadsImported},
	{name: "an id is imported once, by whichever organization", run: importsOnce},
}

func (w *world) imported(org ledger.OrgID) *store.ImportedApproval {
	now := w.now()
	return &store.ImportedApproval{
		ID: w.approvalID(), Org: org, Import: uuid.New(), Key: ledger.SigningKeyID{UUID: uuid.New()}, Record: everyByte(),
		Signature: fmt.Appendf(nil, "signature %d", now), ImportedAt: now, Act: int64(now), MAC: everyByte(),
	}
}

func (w *world) putImported(t *testing.T, records ...*store.ImportedApproval) {
	t.Helper()
	w.write(t, &store.Changes{NewImported: records})
}

func keepsImported(t *testing.T, w *world) {
	m, other := w.join(t), w.join(t)
	one, two := w.imported(m.org.ID), w.imported(other.org.ID)
	w.putImported(t, one, two)
	for _, want := range []*store.ImportedApproval{one, two} {
		assertEqual(t, "approval", must[*store.ImportedApproval](t)(w.open(t).ImportedApproval(t.Context(), want.ID)), want)
	}
	_, err := w.ImportedApproval(t.Context(), w.approvalID())
	wantError(t, "an unknown one", err, store.ErrNotFound)
}

func listsImported(t *testing.T, w *world) {
	m, other := w.join(t), w.join(t)
	for range 3 {
		w.putImported(t, w.imported(m.org.ID), w.imported(other.org.ID))
	}
	smallest := w.imported(m.org.ID)
	smallest.ID = ledger.ApprovalID{}
	w.putImported(t, smallest)
	first := must[[]*store.ImportedApproval](t)(w.ImportedApprovals(t.Context(), m.org.ID, ledger.ApprovalID{}, 2))
	assertEqual(t, "with the smallest id", first[0], smallest)
	after := first[1].ID
	for n := range 3 {
		found := must[[]*store.ImportedApproval](t)(w.ImportedApprovals(t.Context(), m.org.ID, after, 1))
		if n == 2 {
			assertEqual(t, "past the end", len(found), 0)
			return
		}
		if len(found) != 1 || found[0].Org != m.org.ID || found[0].ID.String() <= after.String() {
			t.Fatalf("approval %d: found %+v", n, found)
		}
		after = found[0].ID
	}
}

func loadsImported(t *testing.T, w *world) {
	m := w.join(t)
	one, two, unnamed := w.imported(m.org.ID), w.imported(m.org.ID), w.imported(m.org.ID)
	w.putImported(t, one, two, unnamed)
	w.look(t, &store.Needs{Imported: []ledger.ApprovalID{two.ID, one.ID, w.approvalID(), one.ID}}, func(loaded *store.Loaded) {
		assertEqual(t, "approvals", loaded.Imported, map[ledger.ApprovalID]*store.ImportedApproval{one.ID: one, two.ID: two})
	})
}

func importsOnce(t *testing.T, w *world) {
	m, other := w.join(t), w.join(t)
	first, again, fresh := w.imported(m.org.ID), w.imported(other.org.ID), w.imported(other.org.ID)
	w.putImported(t, first)
	again.ID = first.ID
	wantError(t, "again", attempt(t.Context(), w, &store.Changes{NewImported: []*store.ImportedApproval{fresh, again}}), store.ErrExists)
	assertEqual(t, "the first", must[*store.ImportedApproval](t)(w.ImportedApproval(t.Context(), first.ID)), first)
	_, err := w.ImportedApproval(t.Context(), fresh.ID)
	wantError(t, "one beside it", err, store.ErrNotFound)
}
