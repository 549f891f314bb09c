package service_test

import (
	"fmt"
	"math"
)

// forgeReceipts inserts forged receipts: before the first, after the last, far away, of another
// organization, and empty ones.
func (s *scene) forgeReceipts() {
	s.t.Helper()
	receipts, theirs, chains := s.ofOrg("receipts", "acme"), s.ofOrg("receipts", "other"), s.ofOrg("chains", "acme")
	first, last := receipts[0], receipts[len(receipts)-1]
	unsealed := chains[len(chains)-1].value("id")
	for name, forgery := range map[string]struct {
		of       row
		at       int64
		sequence int64 // where it must be found
		changes  map[string]any
	}{
		"at 0":                {first, 0, 1, nil},
		"at -5":               {first, -5, 1, nil},
		"at the very least":   {first, math.MinInt64, 1, nil},
		"after the last":      {last, nextReceipt, nextReceipt, nil},
		"far away":            {last, 1 << 60, nextReceipt, nil},
		"of another's ledger": {theirs[0], nextReceipt, nextReceipt, map[string]any{"org_id": last.value("org_id")}},
		"with nothing in it":  {last, nextReceipt, nextReceipt, map[string]any{"body": []byte("{}")}},
		"with no bytes":       {last, 20, nextReceipt, map[string]any{"body": []byte{}}},
	} {
		forged := forgery.of.with(forgery.changes).with(s.freshNumber("receipts")).with(map[string]any{
			"id": otherID(forgery.of.value("id")), "chain_id": unsealed, "previous_hash": make([]byte, 32), "sequence": forgery.at,
		})
		s.expect("receipt forged "+name, "acme", forgery.sequence, checksFor("receipts"), func() error { return s.insert(&forged) })
	}
}

// otherID returns an unused id of the same form.
func otherID(id any) any {
	if text, ok := id.(string); ok {
		return "00000000-0000-4000-8000-" + text[len(text)-12:]
	}
	return flipped(id.([]byte), 15)
}

// freshNumber returns a value for a table's own counter, if it has one.
func (s *scene) freshNumber(table string) map[string]any {
	for _, column := range s.columnsOf(table) {
		if column == "no" {
			return map[string]any{"no": int64(1_000_000)}
		}
	}
	return nil
}

// forgeEntries adds events and outcomes to sealed and open chains, and chains and states where
// there are none.
func (s *scene) forgeEntries(every int) {
	s.t.Helper()
	for _, table := range []string{"events", "addenda"} {
		for i, r := range s.rowsOf(table) {
			if i%every != 0 {
				continue
			}
			for name, at := range map[string]int64{"at the end": 50, "before the first": 0, "below zero": -3, "at the very least": math.MinInt64 + 1} {
				changes := map[string]any{"sequence": at, "idempotency_key": nil, "position": at}
				forged := r.with(changes).with(s.freshNumber(table))
				label := fmt.Sprintf("%s %d of %s repeated %s", table, i, r.org, name)
				s.expect(label, r.org, r.sequence, checksFor(table), func() error { return s.insert(&forged) })
			}
		}
	}
	for _, slug := range tamperedOrgs {
		chains, states := s.ofOrg("chains", slug), s.ofOrg("chain_states", slug)
		chain, state := chains[len(chains)-1], states[len(states)-1]
		id := otherID(chain.value("id"))
		forged := chain.with(map[string]any{"id": id, "idempotency_key": nil}).with(s.freshNumber("chains"))
		forgedState := state.with(map[string]any{"chain_no": int64(1_000_000), "chain_id": id})
		s.expect("a chain of "+slug+" forged", slug, nextReceipt, chainChecks, func() error {
			return firstError(s.insert(&forged), s.insert(&forgedState))
		})
		s.expect("a chain of "+slug+" forged without state", slug, nextReceipt, chainChecks, func() error { return s.insert(&forged) })
		s.expect("a state of "+slug+" forged without chain", slug, nextReceipt, chainChecks, func() error { return s.insert(&forgedState) })
	}
}
