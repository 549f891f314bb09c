package storetest

import (
	"fmt"
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

var policyCases = []testCase{
	{name: "a policy is stored unchanged", run: keepsPolicies},
	{name: "an unknown policy is not found", run: unknownPolicy},
	{name: "policies are listed newest first", run: listsPolicies},
	{name: "a policy is read inside the transaction", run: readsPolicyInside},
}

func (w *world) policy(org ledger.OrgID, number int64) *store.PolicyRecord {
	return &store.PolicyRecord{
		Org: org, Number: number, Version: fmt.Sprintf("v%d+0123456789ab", number), Format: "yaml",
		Document: []byte("rules: [] # naïve 🧾\n"), CreatedAt: w.now(), CreatedBy: "clé d'admin", MAC: []byte("authenticator"), Act: 1 << 40,
	}
}

// putPolicies stores the sets 1 to count.
func (w *world) putPolicies(t *testing.T, org ledger.OrgID, count int64) []*store.PolicyRecord {
	t.Helper()
	var records []*store.PolicyRecord
	for number := range count {
		record := w.policy(org, number+1)
		w.write(t, &store.Changes{NewPolicies: []*store.PolicyRecord{record}})
		records = append(records, record)
	}
	return records
}

func keepsPolicies(t *testing.T, w *world) {
	m, other := w.join(t), w.join(t)
	record := w.policy(m.org.ID, 1)
	record.Format, record.Document = "json", everyByte()
	same := w.policy(other.org.ID, 1) // numbers are per organization
	w.write(t, &store.Changes{NewPolicies: []*store.PolicyRecord{record, same}})
	s := w.open(t)
	assertEqual(t, "policy", must[*store.PolicyRecord](t)(s.Policy(t.Context(), m.org.ID, 1)), record)
	assertEqual(t, "other's policy", must[*store.PolicyRecord](t)(s.Policy(t.Context(), other.org.ID, 1)), same)
}

func unknownPolicy(t *testing.T, w *world) {
	m, other := w.join(t), w.join(t)
	w.putPolicies(t, m.org.ID, 1)
	for _, at := range []store.PolicyRecord{{Org: m.org.ID, Number: 2}, {Org: m.org.ID}, {Org: other.org.ID, Number: 1}} {
		_, err := w.Policy(t.Context(), at.Org, at.Number)
		wantError(t, "policy", err, store.ErrNotFound)
	}
}

func listsPolicies(t *testing.T, w *world) {
	m, other := w.join(t), w.join(t)
	w.putPolicies(t, other.org.ID, 2)
	records := w.putPolicies(t, m.org.ID, 12)
	for _, test := range []struct {
		before      int64
		limit       int
		first, last int64
	}{{0, 100, 12, 1}, {0, 3, 12, 10}, {10, 4, 9, 6}, {2, 5, 1, 1}, {1, 5, 0, 1}, {99, 1, 12, 12}} {
		var want []*store.PolicyRecord
		for number := test.first; number >= test.last; number-- {
			want = append(want, records[number-1])
		}
		got := must[[]*store.PolicyRecord](t)(w.Policies(t.Context(), m.org.ID, test.before, test.limit))
		assertEqual(t, fmt.Sprintf("%d before %d", test.limit, test.before), got, want)
	}
}

func readsPolicyInside(t *testing.T, w *world) {
	m, other := w.join(t), w.join(t)
	records := w.putPolicies(t, m.org.ID, 2)
	w.look(t, &store.Needs{Orgs: []ledger.OrgID{m.org.ID}}, func(loaded *store.Loaded) {
		for _, record := range records {
			assertEqual(t, "policy", must[*store.PolicyRecord](t)(loaded.Policy(m.org.ID, record.Number)), record)
		}
		_, err := loaded.Policy(m.org.ID, 3)
		wantError(t, "unknown number", err, store.ErrNotFound)
		_, err = loaded.Policy(other.org.ID, 1)
		wantError(t, "unknown organization", err, store.ErrNotFound)
	})
	w.openChain(t, m) // the missing policy did not break the transaction
}
