package service_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/store"
	"countersign/internal/testdb"
)

func acting(t testing.TB, agent, kind, name string) *ledger.Action {
	t.Helper()
	return request(t, ledger.ParseAction, fmt.Sprintf(`{"agent_name":%q,"action_type":%q,"action_name":%q,"payload":{}}`, agent, kind, name))
}

// searched has chains with their receipts and approvals, an hour apart, named by letters.
type searched struct {
	*governed
	chains    map[ledger.ChainID]string
	receipts  map[int64]string
	approvals map[ledger.ApprovalID]string
}

func newSearched(t *testing.T, db *testdb.Database) *searched {
	s := &searched{govern(t, db), map[ledger.ChainID]string{}, map[int64]string{}, map[ledger.ApprovalID]string{}}
	open := func(letter, body string, actions ...*ledger.Action) ledger.ChainID {
		s.clock.Advance(time.Hour)
		chain := must[*service.ChainView](t)(s.OpenChain(t.Context(), s.who.agent, request(t, ledger.ParseChainRequest, body), "")).ID
		s.chains[chain] = letter
		for _, action := range actions {
			if recorded := s.record(chain, action); recorded.Event.Approval != (ledger.ApprovalID{}) {
				s.approvals[recorded.Event.Approval] = letter
			}
		}
		return chain
	}
	seal := func(letter string, chain ledger.ChainID) {
		s.complete(chain)
		s.receipts[int64(len(s.receipts)+1)] = letter
	}
	seal("a", open("a", `{"name":"Invoice run, March","metadata":{"customer":42,"rush":true,"team":"é&=x"}}`,
		acting(t, "clerk", "tool_call", "read_file"), acting(t, "clerk", "tool_call", "list_files")))
	open("b", `{"name":"invoice-run","metadata":{"customer":"42"},"environment":"staging"}`,
		payment(t, gatedAmount, ""), acting(t, "clerk", "http", "get_page"))
	seal("c", open("c", `{"name":"payroll","metadata":{"deep":{"customer":42}}}`, acting(t, "payer", "tool_call", "read_file"), payment(t, gatedAmount, "")))
	seal("d", open("d", `{"name":"empty run"}`))
	return s
}

func (s *searched) found(t *testing.T, caller *service.Caller, find ledger.Find, limit int) (chains, receipts, approvals string) {
	t.Helper()
	chainSearch := &service.ChainSearch{Find: find, ChainFilter: service.ChainFilter{Limit: limit}}
	for {
		page := must[*service.Found[*service.ChainView, ledger.ChainID]](t)(s.FindChains(t.Context(), caller, chainSearch))
		for _, c := range page.Items {
			chains += s.chains[c.ID]
		}
		if chainSearch.Before = page.Next; page.Next == nil {
			break
		}
	}
	receiptSearch := &service.ReceiptSearch{Find: find, Limit: limit}
	for {
		page := must[*service.Found[*ledger.StoredReceipt, int64]](t)(s.FindReceipts(t.Context(), caller, receiptSearch))
		for _, r := range page.Items {
			receipts += s.receipts[r.Sequence]
		}
		if page.Next == nil {
			break
		}
		receiptSearch.Before = *page.Next
	}
	find.Decision = ""
	approvalSearch := &service.ApprovalSearch{Find: find, ApprovalFilter: service.ApprovalFilter{Limit: limit}}
	for {
		page := must[*service.Found[*service.ApprovalView, service.ApprovalPlace]](t)(s.FindApprovals(t.Context(), caller, approvalSearch))
		for _, a := range page.Items {
			approvals += s.approvals[a.ID]
		}
		if approvalSearch.Before = page.Next; page.Next == nil {
			break
		}
	}
	return chains, receipts, approvals
}

// Chains, receipts and approvals are found by each part of their content, newest first, whatever
// the page size. A rebuilt index finds the same as the one that was written with the records.
func TestSearch(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		s := newSearched(t, db)
		start := ledger.TimeOf(newClock().Now())
		at := func(hours int) *ledger.Time {
			moment := start + ledger.Time(hours)*3_600_000
			return &moment
		}
		tests := []struct {
			find                        ledger.Find
			chains, receipts, approvals string
		}{
			{ledger.Find{Name: "run"}, "dba", "da", "b"},
			{ledger.Find{Name: "RUN invoice"}, "ba", "a", "b"},
			{ledger.Find{Name: "invoice payroll"}, "", "", ""},
			{ledger.Find{Name: "pay"}, "", "", ""},
			{ledger.Find{Agent: "clerk"}, "ba", "a", ""},
			{ledger.Find{Agent: "payer"}, "cb", "c", "cb"},
			{ledger.Find{Agent: "Clerk"}, "", "", ""},
			{ledger.Find{ActionType: "http"}, "b", "", ""},
			{ledger.Find{ActionName: "read_file"}, "ca", "ca", ""},
			{ledger.Find{ActionName: "send_payment"}, "cb", "c", "cb"},
			{ledger.Find{Agent: "payer", ActionName: "read_file"}, "c", "c", ""},
			{ledger.Find{Decision: ledger.RequireApproval}, "cb", "c", "cb"},
			{ledger.Find{Decision: ledger.Deny}, "", "", "cb"},
			{ledger.Find{Agent: "clerk", Decision: ledger.RequireApproval}, "", "", ""},
			{ledger.Find{Agent: "payer", Decision: ledger.RequireApproval}, "cb", "c", "cb"},
			{ledger.Find{Metadata: []ledger.Pair{{Key: "customer", Value: "42"}}}, "ba", "a", "b"},
			{ledger.Find{Metadata: []ledger.Pair{{Key: "customer", Value: "42"}, {Key: "rush", Value: "true"}}}, "a", "a", ""},
			{ledger.Find{Metadata: []ledger.Pair{{Key: "team", Value: "é&=x"}}}, "a", "a", ""},
			{ledger.Find{Metadata: []ledger.Pair{{Key: "deep", Value: `{"customer":42}`}}}, "", "", ""},
			{ledger.Find{Since: at(2)}, "dcb", "dc", "cb"},
			{ledger.Find{Until: at(2)}, "a", "a", ""},
			{ledger.Find{Since: at(2), Until: at(3)}, "b", "", "b"},
			{ledger.Find{Name: "run", Since: at(2), Until: at(3)}, "b", "", "b"},
			{ledger.Find{Since: at(9)}, "", "", ""},
		}
		check := func(when string, limit int) {
			t.Helper()
			for _, test := range tests {
				chains, receipts, approvals := s.found(t, s.who.member, test.find, limit)
				if diff := cmp.Diff([]string{test.chains, test.receipts, test.approvals}, []string{chains, receipts, approvals}); diff != "" {
					t.Errorf("%s, in pages of %d, %+v finds (-want +got):\n%s", when, limit, test.find, diff)
				}
			}
		}
		check("at first", 1)
		check("at first", 50)
		if _, err := db.Direct(t).ExecContext(t.Context(), "DELETE FROM postings"); err != nil {
			t.Fatal(err)
		}
		if chains, _, _ := s.found(t, s.who.member, ledger.Find{Name: "run"}, 9); chains != "" {
			t.Errorf("without an index %q are found", chains)
		}
		added := must[int64](t)(s.Reindex(t.Context(), s.who.id))
		check("rebuilt", 2)
		if again := must[int64](t)(s.Reindex(t.Context(), s.who.id)); added == 0 || again != 0 {
			t.Errorf("the index was rebuilt with %d postings, and with %d more the second time", added, again)
		}
		stranger := newTenant(t, s.Service, "rival")
		for _, caller := range []*service.Caller{stranger.member, stranger.agent} {
			page := must[*service.Found[*service.ChainView, ledger.ChainID]](t)(s.FindChains(t.Context(), caller, &service.ChainSearch{
				Find: ledger.Find{Name: "run"}, ChainFilter: service.ChainFilter{Limit: 9},
			}))
			if len(page.Items) != 0 {
				t.Errorf("another organization's %s finds %d chains", caller.Role, len(page.Items))
			}
		}
	})
}

// The filters of the lists narrow a search as well.
func TestSearchWithinFilters(t *testing.T) {
	t.Parallel()
	s := newSearched(t, testdb.SQLite(t))
	for _, test := range []struct {
		name   string
		caller *service.Caller
		filter service.ChainFilter
		want   string
	}{
		{"active", s.who.member, service.ChainFilter{Status: ledger.ChainActive}, "b"},
		{"completed", s.who.member, service.ChainFilter{Status: ledger.ChainCompleted}, "da"},
		{"staging", s.who.member, service.ChainFilter{Environment: "staging"}, "b"},
		{"of an agent", s.who.agent, service.ChainFilter{}, "dba"},
		{"of another agent", newAgent(t, s.governed), service.ChainFilter{}, ""},
	} {
		test.filter.Limit = 9
		page := must[*service.Found[*service.ChainView, ledger.ChainID]](t)(s.FindChains(t.Context(), test.caller, &service.ChainSearch{
			Find: ledger.Find{Name: "run"}, ChainFilter: test.filter,
		}))
		got := ""
		for _, c := range page.Items {
			got += s.chains[c.ID]
		}
		if got != test.want {
			t.Errorf("%s: found %q, want %q", test.name, got, test.want)
		}
	}
	for status, want := range map[ledger.ApprovalStatus]string{ledger.ApprovalPending: "b", ledger.ApprovalCancelled: "c", ledger.ApprovalApproved: ""} {
		page := must[*service.Found[*service.ApprovalView, service.ApprovalPlace]](t)(s.FindApprovals(t.Context(), s.who.member, &service.ApprovalSearch{
			Find: ledger.Find{Agent: "payer"}, ApprovalFilter: service.ApprovalFilter{Status: status, Limit: 9},
		}))
		got := ""
		for _, a := range page.Items {
			got += s.approvals[a.ID]
		}
		if got != want {
			t.Errorf("%s approvals: found %q, want %q", status, got, want)
		}
	}
}

func newAgent(t *testing.T, g *governed) *service.Caller {
	t.Helper()
	key := must[*service.NewKey](t)(g.Operator().CreateKey(t.Context(), g.who.slug, &service.KeyRequest{Name: "other", Role: ledger.RoleAgent}))
	return servicetest.Authenticate(t, g.Service, key)
}

// Someone who can write the database can hide a record from a search, but cannot make it return a
// record that does not match, belongs to another organization, or was edited and passes as
// authentic.
func TestForgedIndexShowsNothingFalse(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		s := newSearched(t, db)
		rival := newTenant(t, s.Service, "rival")
		var places []store.Posting
		for _, find := range []ledger.Find{{Name: "run"}, {Agent: "clerk"}, {Decision: ledger.Allow}, {Metadata: []ledger.Pair{{Key: "customer", Value: "42"}}}} {
			for list, org := range map[ledger.SearchList][]ledger.OrgID{
				ledger.ListChains: {s.who.id, rival.id}, ledger.ListReceipts: {s.who.id, rival.id}, ledger.ListApprovals: {s.who.id, rival.id},
			} {
				for _, org := range org {
					for _, condition := range find.Conditions(list, org) {
						for chain := range s.chains {
							for sequence := range int64(4) {
								places = append(places, store.Posting{Term: condition.AnyOf[0], Place: chain.UUID[:], Sequence: sequence})
							}
						}
						for n := range byte(6) {
							places = append(places, store.Posting{Term: condition.AnyOf[0], Place: []byte{0, 0, 0, 0, 0, 0, 0, n}, Sequence: 1})
						}
						for _, junk := range []string{"", "\x00", "x", "\xfe", string(make([]byte, 16)), string(make([]byte, 24)), string(slices.Repeat([]byte{254}, 24))} {
							places = append(places, store.Posting{Term: condition.AnyOf[0], Place: []byte(junk), Sequence: -1})
						}
					}
				}
			}
		}
		must[int64](t)(s.store.AddPostings(t.Context(), places))
		for find, want := range map[*ledger.Find][2]string{
			{Name: "run"}:      {"dba", "da"},
			{Agent: "clerk"}:   {"ba", "a"},
			{Decision: "deny"}: {"", ""},
			{Metadata: []ledger.Pair{{Key: "customer", Value: "42"}}}: {"ba", "a"},
		} {
			chains, receipts, _ := s.found(t, s.who.member, *find, 2)
			if got := [2]string{chains, receipts}; got != want {
				t.Errorf("under a forged index %+v finds %q, want %q", *find, got, want)
			}
			if chains, receipts, approvals := s.found(t, rival.member, *find, 2); chains+receipts+approvals != "" {
				t.Errorf("under a forged index another organization finds %q, %q, %q", chains, receipts, approvals)
			}
		}
	})
}

// A search marks an edited record as a list does: it may or may not match.
func TestSearchMarksEditedRecords(t *testing.T) {
	t.Parallel()
	db := testdb.SQLite(t)
	s := newSearched(t, db)
	fresh := s.over(s.store) // remembers nothing
	direct := db.Direct(t)
	for _, edit := range []string{
		"UPDATE events SET mac = zeroblob(32)",
		"UPDATE receipts SET body = CAST(replace(CAST(body AS TEXT), 'clerk', 'Clerk') AS BLOB)",
		"UPDATE approvals SET mac = zeroblob(32)",
	} {
		if _, err := direct.ExecContext(t.Context(), edit); err != nil {
			t.Fatal(err)
		}
	}
	chains := must[*service.Found[*service.ChainView, ledger.ChainID]](t)(fresh.FindChains(t.Context(), s.who.member, &service.ChainSearch{
		Find: ledger.Find{Agent: "clerk"}, ChainFilter: service.ChainFilter{Limit: 9},
	}))
	receipts := must[*service.Found[*ledger.StoredReceipt, int64]](t)(fresh.FindReceipts(t.Context(), s.who.member, &service.ReceiptSearch{Find: ledger.Find{Agent: "clerk"}, Limit: 9}))
	approvals := must[*service.Found[*service.ApprovalView, service.ApprovalPlace]](t)(fresh.FindApprovals(t.Context(), s.who.member, &service.ApprovalSearch{
		Find: ledger.Find{Agent: "payer"}, ApprovalFilter: service.ApprovalFilter{Limit: 9},
	}))
	if len(chains.Items) != 2 || len(receipts.Items) != 1 || len(approvals.Items) != 2 {
		t.Fatalf("found %d chains, %d receipts, %d approvals", len(chains.Items), len(receipts.Items), len(approvals.Items))
	}
	for _, c := range chains.Items {
		if !c.Tampered || c.State != nil {
			t.Error("a chain whose event was edited is not marked")
		}
	}
	if !receipts.Items[0].Tampered || receipts.Items[0].Body != nil {
		t.Error("a receipt that was edited is not marked")
	}
	for _, a := range approvals.Items {
		if !a.Tampered {
			t.Error("an approval that was edited is not marked")
		}
	}
}
