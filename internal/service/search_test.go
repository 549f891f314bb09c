package service_test

import (
	"context"
	"fmt"
	"math"
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
		for _, table := range []string{"postings", "receipt_postings"} {
			if _, err := db.Direct(t).ExecContext(t.Context(), "DELETE FROM "+table); err != nil {
				t.Fatal(err)
			}
		}
		if chains, receipts, approvals := s.found(t, s.who.member, ledger.Find{Name: "run"}, 9); chains+receipts+approvals != "" {
			t.Errorf("without an index %q, %q, %q are found", chains, receipts, approvals)
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

// Receipts are found in every block of the index and at its edges, whatever the page size, with
// the index that was written with them and with a rebuilt one.
func TestSearchReceiptsOfManyBlocks(t *testing.T) {
	t.Parallel()
	db := testdb.SQLite(t)
	g := govern(t, db)
	const receipts = 3*store.BlockSize + 1
	agent := func(n int64) string {
		switch {
		case n == 1 || n == receipts:
			return "edge"
		case n < 2*store.BlockSize:
			return fmt.Sprintf("early_%d", n%3)
		}
		return fmt.Sprintf("late_%d", n%64)
	}
	for n := int64(1); n <= receipts; n++ {
		chain := must[*service.ChainView](t)(g.OpenChain(t.Context(), g.who.agent, request(t, ledger.ParseChainRequest, `{"name":"run"}`), "")).ID
		g.record(chain, acting(t, agent(n), "tool_call", "read_file"))
		g.complete(chain)
	}
	check := func() {
		t.Helper()
		for _, find := range []ledger.Find{{Agent: "edge"}, {Agent: "early_0"}, {Agent: "early_1", Name: "run"}, {Agent: "late_63"}, {Agent: "late_0"}, {Name: "run"}} {
			var want []int64
			for n := int64(receipts); n > 0; n-- {
				if find.Agent == "" || find.Agent == agent(n) {
					want = append(want, n)
				}
			}
			for _, limit := range []int{1, 7, 100} {
				var got []int64
				for search := (&service.ReceiptSearch{Find: find, Limit: limit}); ; {
					page := must[*service.Found[*ledger.StoredReceipt, int64]](t)(g.FindReceipts(t.Context(), g.who.member, search))
					for _, receipt := range page.Items {
						got = append(got, receipt.Sequence)
					}
					if page.Next == nil {
						break
					}
					search.Before = *page.Next
				}
				if !slices.Equal(got, want) {
					t.Errorf("in pages of %d, %+v finds %v, want %v", limit, find, got, want)
				}
			}
		}
	}
	check()
	if added := must[int64](t)(g.Reindex(t.Context(), g.who.id)); added != 0 {
		t.Errorf("%d postings were missing", added)
	}
	if _, err := db.Direct(t).ExecContext(t.Context(), "DELETE FROM receipt_postings WHERE block <> 1"); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Direct(t).ExecContext(t.Context(), "UPDATE receipt_postings SET receipts = receipts & 85"); err != nil {
		t.Fatal(err)
	}
	must[int64](t)(g.Reindex(t.Context(), g.who.id))
	check()
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
		var blocks []store.ReceiptPosting
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
						for _, block := range []int64{0, 1, 9, -1, math.MinInt64, math.MaxInt64 / store.BlockSize, math.MaxInt64} {
							blocks = append(blocks, store.ReceiptPosting{Term: condition.AnyOf[0], Block: block, Receipts: math.MaxUint64})
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
		must[int64](t)(s.store.AddReceiptPostings(t.Context(), blocks))
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

// A search ends at rows of the index that name nothing, however many there are.
func TestSearchEndsAtEmptyPostings(t *testing.T) {
	t.Parallel()
	db := testdb.SQLite(t)
	g := govern(t, db)
	g.fillSearched(20 * store.BlockSize)
	must[int64](t)(g.Reindex(t.Context(), g.who.id))
	if _, err := db.Direct(t).ExecContext(t.Context(), "UPDATE receipt_postings SET receipts = 0"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	search := &service.ReceiptSearch{Find: ledger.Find{Agent: "common"}, Limit: 9}
	if page := must[*service.Found[*ledger.StoredReceipt, int64]](t)(g.FindReceipts(ctx, g.who.member, search)); len(page.Items) > 0 {
		t.Errorf("postings without receipts find %d of them", len(page.Items))
	}
}

// A chain that continues another begins no earlier than that one ended, even if this server's clock is
// behind. Searching from its beginning finds it.
func TestSearchFromTheBeginningOfASuccessor(t *testing.T) {
	t.Parallel()
	g := govern(t, testdb.SQLite(t))
	chain := g.abandoned("left", step(t, "look", ""))
	g.clock.Advance(-time.Second)
	next := must[*service.Recorded](t)(g.RecordEvent(t.Context(), g.who.agent, chain, step(t, "look_again", ""))).ContinuedBy
	if next == nil {
		t.Fatal("the chain was not continued")
	}
	since := must[*service.ChainView](t)(g.Chain(t.Context(), g.who.member, *next)).StartedAt
	for name, find := range map[string]ledger.Find{
		"time": {Since: &since}, "name": {Since: &since, Name: "left"},
	} {
		page := must[*service.Found[*service.ChainView, ledger.ChainID]](t)(g.FindChains(t.Context(), g.who.member, &service.ChainSearch{
			Find: find, ChainFilter: service.ChainFilter{Limit: 10},
		}))
		if len(page.Items) != 1 || page.Items[0].ID != *next {
			t.Errorf("searching by %s finds %d chains, want the one that began then", name, len(page.Items))
		}
	}
}
