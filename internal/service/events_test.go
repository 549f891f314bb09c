package service_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/testdb"
)

// A page of events ends where its payloads reach PageBytes. The events after it are on the next
// page, and none of them is shown as missing.
func TestLargePayloadsAreNotMissingEvents(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		s := serve(t, service.Config{Store: db.Open(t)})
		who := newTenant(t, s, "acme")
		chain := must[*service.ChainView](t)(s.OpenChain(t.Context(), who.agent, chainNamed(t, "large"), "")).ID
		const many, limit = 12, 50
		note := strings.Repeat("x", service.PageBytes/3)
		for n := range many {
			action := request(t, ledger.ParseAction, fmt.Sprintf(
				`{"agent_name":"agent","action_type":"tool_call","action_name":"keep_note","payload":{"n":%d,"note":%q}}`, n, note))
			must[*service.Recorded](t)(s.RecordEvent(t.Context(), who.agent, chain, action))
		}
		var last int64
		for pages := 0; last < many; pages++ {
			if pages > many {
				t.Fatalf("after %d pages, the list is at event %d of %d", pages, last, many)
			}
			page := must[[]*service.EventView](t)(s.Events(t.Context(), who.member, chain, last, limit))
			bytes := 0
			for i, event := range page {
				if event.Sequence != last+1 || event.Integrity != "" || event.Facts == nil {
					t.Fatalf("event %d follows %d with integrity %q", event.Sequence, last, event.Integrity)
				}
				if bytes >= service.PageBytes {
					t.Errorf("event %d of %d follows %d bytes on its page", i+1, len(page), bytes)
				}
				bytes, last = bytes+len(event.Payload), event.Sequence
			}
		}
	})
}

// Behind the last event there is nothing, and nothing is missing, however large the number that a
// client asks for.
func TestNoEventsBehindTheLast(t *testing.T) {
	t.Parallel()
	s := serve(t, service.Config{Store: testdb.SQLite(t).Open(t)})
	who := newTenant(t, s, "acme")
	chain := must[*service.ChainView](t)(s.OpenChain(t.Context(), who.agent, chainNamed(t, "short"), "")).ID
	must[*service.Recorded](t)(s.RecordEvent(t.Context(), who.agent, chain, step(t, "look", "")))
	for _, after := range []int64{1, 2, 1 << 53, math.MaxInt64 - 1, math.MaxInt64} {
		if page := must[[]*service.EventView](t)(s.Events(t.Context(), who.member, chain, after, 10)); len(page) != 0 {
			t.Errorf("after %d: %d events, the first with the sequence %d", after, len(page), page[0].Sequence)
		}
	}
}
