package httpapi_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

const ledgerPath = "/v1/verification/v2/ledger"

// An admin's audit says whether the ledger is intact, names the first break and says
// what was not checked.
func TestLedgerAudit(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		audit := func(query string) ledgerAudit {
			return decode[ledgerAudit](t, s.get(t, s.acme.admin, ledgerPath+query).expect(t, http.StatusOK))
		}
		if empty := audit(""); empty.Status != "intact" || empty.Head.Count != 0 || empty.Head.Last != nil || empty.Receipts != 0 {
			t.Errorf("an empty ledger is %+v", empty)
		}
		var sealed []chain
		for range 3 {
			sealed = append(sealed, s.seal(t, s.acme.agent, "ledger"))
		}
		last := decode[receipt](t, &answer{body: sealed[2].Receipt}).Number
		for query, skipped := range map[string]bool{"": false, "?receipts_only=false": false, "?receipts_only=true": true} {
			got := audit(query)
			if got.Status != "intact" || got.Receipts != 3 || got.Head.Count != 3 || *got.Head.Last != last || slices.Contains(got.NotChecked, "events_digest") != skipped {
				t.Errorf("%s: the ledger is %+v", query, got)
			}
		}
		s.database.editReceipt(t, *sealed[1].ReceiptID, func(body string) string { return flipAfter(body, `"events_digest":"sha256:`) })
		for _, query := range []string{"", "?receipts_only=true"} {
			got := audit(query)
			if got.Status != "broken" || got.Break.Check != "signature" || got.Break.Number != last[:len(last)-1]+"2" || got.Head.Count != 3 {
				t.Errorf("%s: the broken ledger is %+v", query, got)
			}
		}
		var refusals []refusal
		for _, query := range []string{"receipts_only=", "receipts_only=1", "receipts_only=TRUE", "receipts_only=true&receipts_only=true"} {
			refusals = append(refusals, refusal{query, call{method: http.MethodGet, path: ledgerPath + "?" + query, key: s.acme.admin.text}, 422, "invalid_request", []string{"/receipts_only"}})
		}
		refusals = append(refusals, refusal{"a cursor", call{method: http.MethodGet, path: ledgerPath + "?cursor=planted-a", key: s.acme.admin.text}, 422, "invalid_request", []string{"/cursor"}})
		checkRefusals(t, s, refusals)
	})
}

// held is a store whose head can be held back, or cannot be read.
type held struct {
	store.Store
	holds, broken   atomic.Bool
	entered, opened chan struct{}
}

var errDisk = errors.New("the disk is gone")

func (h *held) Head(ctx context.Context, org ledger.OrgID) (*ledger.Head, error) {
	if h.broken.Load() {
		return nil, errDisk
	}
	if h.holds.CompareAndSwap(true, false) {
		close(h.entered)
		<-h.opened
	}
	return h.Store.Head(ctx, org)
}

// One audit runs at a time in each organization, whoever may not audit keeps
// nobody waiting, and what could not be read is not called broken.
//
//countersign:race
func TestAuditsTakeTurns(t *testing.T) {
	eachStore(t, func(t *testing.T, open func(*testing.T) *database) {
		h := &held{entered: make(chan struct{}), opened: make(chan struct{})}
		s := start(t, open(t), setup{wrap: func(inner store.Store) store.Store { h.Store = inner; return h }})
		s.seal(t, s.acme.agent, "turns")
		h.holds.Store(true)
		first := make(chan *answer)
		go func() { first <- s.get(t, s.acme.admin, ledgerPath) }()
		<-h.entered
		if got := s.get(t, s.acme.admin, ledgerPath).refuse(t, http.StatusTooManyRequests, "rate_limited"); got.header.Get("Retry-After") != "10" {
			t.Errorf("Retry-After is %q", got.header.Get("Retry-After"))
		}
		s.get(t, s.acme.member, ledgerPath).refuse(t, http.StatusForbidden, "forbidden")
		s.get(t, s.rival.admin, ledgerPath).expect(t, http.StatusOK)
		close(h.opened)
		(<-first).expect(t, http.StatusOK)
		s.get(t, s.acme.admin, ledgerPath).expect(t, http.StatusOK)
		h.broken.Store(true)
		s.get(t, s.acme.admin, ledgerPath).refuse(t, http.StatusServiceUnavailable, "storage_unavailable").without(t, "disk")
		h.broken.Store(false)
		s.get(t, s.acme.admin, ledgerPath).expect(t, http.StatusOK)
	})
}

// meddling is a store that lets something happen while an approval is verified:
// between the reading of its record and that of its chain.
type meddling struct {
	store.Store
	next atomic.Pointer[func()]
}

func (m *meddling) Addenda(ctx context.Context, chain ledger.ChainID, from, to int64) ([]*ledger.Addendum, error) {
	if act := m.next.Swap(nil); act != nil {
		(*act)()
	}
	return m.Store.Addenda(ctx, chain, from, to)
}

// What is decided while it is being verified was not tampered with.
func TestVerificationMeetsDecision(t *testing.T) {
	eachStore(t, func(t *testing.T, open func(*testing.T) *database) {
		m := &meddling{}
		s := start(t, open(t), setup{wrap: func(inner store.Store) store.Store { m.Store = inner; return m }})
		for name, steps := range map[string][2]string{
			"decided": {"pending", "/approve"}, "completed": {"pending", "complete"}, "decided, then completed": {"decided", "complete"},
		} {
			id := s.open(t, s.acme.agent, `{"name":"meets"}`)
			asked := s.ask(t, s.acme.agent, id)
			decide := func() {
				s.post(t, s.acme.member, "/v1/approvals/"+asked+"/approve", "").expect(t, http.StatusOK)
			}
			if steps[0] == "decided" {
				decide()
			}
			act := decide
			if steps[1] == "complete" {
				act = func() { s.complete(t, s.acme.agent, id, "") }
			}
			path := s.issue(t, s.acme.admin, "approval", asked).Path
			m.next.Store(&act)
			got := decode[verified](t, s.get(t, s.acme.member, "/v1/verification/v2/approvals/"+asked).expect(t, http.StatusOK))
			if got.Verdict.Overall != "verified" {
				t.Errorf("%s meanwhile, it is %+v", name, got.Verdict)
			}
			if m.next.Load() != nil {
				t.Errorf("%s: nothing happened meanwhile", name)
			}
			if public := s.publicResult(t, path)["overall_status"]; public != "verified" {
				t.Errorf("%s meanwhile, a stranger is told %s", name, public)
			}
		}
	})
}
