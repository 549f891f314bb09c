package ledger

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"countersign/internal/fault"
)

// A receipt number holds the year in UTC and the sequence, with at least five
// digits.
func TestReceiptNumber(t *testing.T) {
	t.Parallel()
	newYear := TimeOf(time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC))
	cases := []struct {
		at       Time
		sequence int64
		want     string
	}{
		{newYear - 1, 1, "CSN-2026-00001"},
		{newYear, 2, "CSN-2027-00002"},
		{newYear, 99_999, "CSN-2027-99999"},
		{newYear, 100_000, "CSN-2027-100000"},
		{newYear, 1 << 40, "CSN-2027-1099511627776"},
	}
	for _, c := range cases {
		if got := ReceiptNumber(c.at, c.sequence); got != c.want {
			t.Errorf("receipt %d of %s is %s, want %s", c.sequence, c.at, got, c.want)
		}
	}
}

// Each receipt carries the hash of the one before, and the head counts them and
// authenticates the last.
func TestSealLinksReceipts(t *testing.T) {
	t.Parallel()
	b := filled(t, 3)
	for i, p := range b.chains {
		r := p.receipt
		if r.Sequence != int64(i+1) || r.Number != ReceiptNumber(r.GeneratedAt, r.Sequence) || r.Organization != "acme" || r.KeyID != "key-1" {
			t.Errorf("receipt %d is %s of %s under %s", i+1, r.Number, r.Organization, r.KeyID)
		}
		if i == 0 {
			if r.PreviousHash != nil || b.receipts[0].PreviousHash != nil {
				t.Error("the first receipt has a predecessor")
			}
			continue
		}
		if want := b.receipts[i-1].Hash(); *r.PreviousHash != want || [32]byte(b.receipts[i].PreviousHash) != want {
			t.Errorf("receipt %d does not carry the hash of the one before", i+1)
		}
	}
	if last := b.receipts[2].Hash(); b.head.Count != 3 || *b.head.Last != last || !b.head.Authentic(b.keys) {
		t.Errorf("the head is %+v", b.head)
	}
	if b.chains[0].receipt.Number != "CSN-2026-00001" || b.chains[2].receipt.Number != "CSN-2027-00003" {
		t.Error("the sequence does not run on over the year's end")
	}
}

// Sealing a chain ends it, and its receipt holds the agents, the summary and the
// digest of its events.
func TestSealMovesTheState(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	p := b.open(`{"ticket":"T-1"}`)
	p.record("writer", "draft", `{}`, "")
	p.record("reader", "check", `{}`, "")
	p.record("writer", "draft", `{}`, "")
	b.seal(p, &Completion{})
	s, r := p.state, p.receipt
	if s.Status != ChainCompleted || s.CompletedAt == nil || *s.CompletedAt != r.CompletedAt || *s.Receipt != r.ID || s.Failure != nil {
		t.Errorf("the sealed state is %+v", s)
	}
	if diff := cmp.Diff([]string{"writer", "reader"}, r.Agents); diff != "" {
		t.Errorf("agents (-want +got):\n%s", diff)
	}
	if want := `Chain "chain 1" completed: 3 actions by 2 agents, 3 allowed.`; r.Summary != want {
		t.Errorf("summary %q, want %q", r.Summary, want)
	}
	want := []SummaryLine{
		{"writer", "tool_call", "draft", Allow, 2, p.chain.StartedAt + 7, p.chain.StartedAt + 21},
		{"reader", "tool_call", "check", Allow, 1, p.chain.StartedAt + 14, p.chain.StartedAt + 14},
	}
	if diff := cmp.Diff(want, r.Events); diff != "" {
		t.Errorf("events summary (-want +got):\n%s", diff)
	}
	if string(r.Metadata) != `{"ticket":"T-1"}` || r.Actions != 3 || r.EventsDigest != s.Digest {
		t.Errorf("the receipt does not say what the chain was: %+v", r)
	}
}

// A receipt has all fields of its format and no others.
func TestSealedReceiptHasEveryField(t *testing.T) {
	t.Parallel()
	b := filled(t, 1)
	var fields map[string]any
	if err := json.Unmarshal(b.receipts[0].Body, &fields); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"receipt_number", "chain_id", "organization", "summary", "started_at", "completed_at", "agents_involved", "total_actions",
		"cumulative_metrics", "approvals", "events_summary", "policy_version", "previous_receipt_hash", "signature",
		"receipt_id", "generated_at", "metadata", "environment", "external_chain_id", "evaluation_mode", "events_digest", "key_id", "format",
	} {
		if _, ok := fields[name]; !ok {
			t.Errorf("%s is missing", name)
		}
		delete(fields, name)
	}
	if len(fields) > 0 {
		t.Errorf("nobody knows %v", fields)
	}
}

// The receipt of a failed chain names the error and ends its events with it.
func TestFailedChainEndsWithItsError(t *testing.T) {
	t.Parallel()
	cases := []struct {
		failure *Failure
		name    string
		summary string
	}{
		{&Failure{Type: "ValueError", Message: "x"}, "ValueError", `Chain "chain 1" failed with ValueError: 1 action by 1 agent, 1 allowed.`},
		{nil, "unknown", `Chain "chain 1" failed: 1 action by 1 agent, 1 allowed.`},
	}
	for _, c := range cases {
		b := newBook(t)
		p := b.open("")
		p.record("agent", "step", `{}`, "")
		b.seal(p, &Completion{Failed: true, Failure: c.failure})
		if p.state.Status != ChainFailed || p.state.Failure != c.failure || p.receipt.Summary != c.summary {
			t.Errorf("sealed as %s: %s", p.state.Status, p.receipt.Summary)
		}
		end := SummaryLine{ActionType: "chain_failure", ActionName: c.name, Count: 1, FirstAt: p.receipt.CompletedAt, LastAt: p.receipt.CompletedAt}
		if diff := cmp.Diff(end, p.receipt.Events[len(p.receipt.Events)-1]); len(p.receipt.Events) != 2 || diff != "" {
			t.Errorf("last line (-want +got):\n%s", diff)
		}
	}
}

// A chain without actions can be sealed, and its receipt verifies.
func TestEmptyChainIsSealed(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	p := b.open("")
	b.seal(p, &Completion{})
	if want := `Chain "chain 1" completed: 0 actions by 0 agents.`; p.receipt.Summary != want || p.receipt.Actions != 0 {
		t.Errorf("summary %q, want %q", p.receipt.Summary, want)
	}
	if in := Inspect(b.receipts[0], b.slug, b.keys); in.Fault != "" {
		t.Errorf("its receipt fails %s", in.Fault)
	}
}

// The summary of a chain counts what was allowed, flagged, sent for approval and denied, and names
// its financial exposure.
func TestSummaryTellsOutcomesAndExposure(t *testing.T) {
	t.Parallel()
	cases := map[string][]*Approval{
		"6 sent to approval (2 approved, 1 denied by a reviewer, 1 denied by a rule that changed meanwhile, 1 timed out, 1 cancelled)": {
			{Status: ApprovalDenied}, {Status: ApprovalDenied, DeniedBy: &PolicyDenial{}}, {Status: ApprovalApproved}, {Status: ApprovalTimedOut}, {Status: ApprovalApproved}, {Status: ApprovalCancelled},
		},
		"1 sent to approval (1 approved)": {{Status: ApprovalApproved}},
	}
	for asked, approvals := range cases {
		n := int64(len(approvals))
		state := &ChainState{Actions: 6 + n, Agents: []string{"a"}, Metrics: Metrics{FinancialExposure: MoneyOf(1200.5)}}
		lines := []SummaryLine{{Outcome: Allow, Count: 3}, {Outcome: AllowWithFlag, Count: 1}, {Outcome: RequireApproval, Count: n}, {Outcome: Deny, Count: 2}}
		got := (&Sealing{Chain: &Chain{Name: "a \"b\""}, State: state, Summary: &Summary{lines: lines}, Approvals: approvals, Completion: &Completion{}}).describe()
		want := fmt.Sprintf(`Chain "a \"b\"" completed: %d actions by 1 agent, 3 allowed, 1 allowed with a flag, %s, 2 denied, 1200.50 USD of financial exposure.`, 6+n, asked)
		if got != want {
			t.Errorf("summary %q, want %q", got, want)
		}
	}
}

// If the clock jumps back, no event is recorded and no chain completed before the chain started.
func TestClockThatJumpsBack(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	p := b.open("")
	event := p.state.Record(plainly(p.chain, &Action{AgentName: "a", ActionType: "b", ActionName: "c", Payload: []byte(`{}`)}, 1000, [10]byte{})).Event
	if event.RecordedAt != p.chain.StartedAt {
		t.Errorf("an event is recorded at %s, before its chain's start %s", event.RecordedAt, p.chain.StartedAt)
	}
	summary := &Summary{}
	summary.Count(event)
	receipt, _, err := Seal(b.sealing(p, summary, 5))
	if err != nil {
		t.Fatal(err)
	}
	if receipt.CompletedAt < receipt.StartedAt || receipt.GeneratedAt < receipt.StartedAt {
		t.Errorf("completed at %s, started at %s", receipt.CompletedAt, receipt.StartedAt)
	}
}

// No receipt can be added to a head that is not authentic.
func TestOpenRefusesAForgedHead(t *testing.T) {
	t.Parallel()
	last := [32]byte{1}
	for name, forge := range map[string]func(*Head){
		"another count":        func(h *Head) { h.Count-- },
		"another hash":         func(h *Head) { h.Last = &last },
		"no hash":              func(h *Head) { h.Last = nil },
		"another organization": func(h *Head) { h.Org = OrgID{} },
		"an unknown key":       func(h *Head) { h.KeyID = "key-9" },
		"no authenticator":     func(h *Head) { h.MAC = nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := filled(t, 2)
			forge(b.head)
			if open, err := b.head.Open(b.keys); open != nil || !errors.Is(err, ErrStateTampered) {
				t.Errorf("got %v, %v, want %v", open, err, ErrStateTampered)
			}
		})
	}
}

// A chain is not sealed a second time, or with a summary that does not match it.
func TestSealRefuses(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		spoil func(*book, *page, *Summary)
		want  func(error) bool
	}{
		"a sealed chain":       {func(b *book, p *page, _ *Summary) { b.seal(p, &Completion{}) }, isCode(fault.CodeChainSealed)},
		"a summary of less":    {func(_ *book, p *page, _ *Summary) { p.record("a", "b", `{}`, "") }, func(err error) bool { return err != nil }},
		"an approval too few":  {func(_ *book, p *page, _ *Summary) { p.state.Approvals++ }, func(err error) bool { return errors.Is(err, ErrStateTampered) }},
		"a summary of no more": {func(_ *book, _ *page, s *Summary) { s.Folded++ }, func(err error) bool { return err != nil }},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := filled(t, 1)
			p := b.open("")
			p.record("agent", "step", `{}`, "")
			summary := p.summary()
			c.spoil(b, p, summary)
			sealing, state := b.sealing(p, summary, firstMoment), *p.state
			_, _, err := Seal(sealing)
			if !c.want(err) {
				t.Errorf("error %v", err)
			}
			if diff := cmp.Diff(state, *p.state, sameMoney); diff != "" {
				t.Errorf("a refused chain has moved:\n%s", diff)
			}
			if head := sealing.Head.Sign(b.keys); head != nil {
				t.Errorf("a refused receipt was added to the head: %+v", head)
			}
		})
	}
}

// A replica seals the same bytes whether it kept a summary in memory as it recorded the
// events or folds the stored events when the chain is completed.
func TestSealIsTheSameFromMemoryAndFromStoredEvents(t *testing.T) {
	t.Parallel()
	seal := func(summarise func(p *page, recorded []*Event) *Summary) []byte {
		b := newBook(t)
		p := b.open("")
		recorded := []*Event{
			p.record("writer", "draft", `{}`, ""),
			p.act(&Action{AgentName: "writer", ActionType: "tool_call", ActionName: "delete_all", Payload: []byte(`{}`)}, Shadow),
			p.gap("gap"),
			p.record("reader", "check", `{}`, ""),
			p.record("writer", "draft", `{}`, ""),
		}
		_, stored, err := Seal(b.sealing(p, summarise(p, recorded), p.state.LastAt))
		if err != nil {
			t.Fatal(err)
		}
		return stored.Body
	}
	stored := seal(func(p *page, _ []*Event) *Summary { return p.summary() })
	memory := seal(func(_ *page, recorded []*Event) *Summary {
		summary := &Summary{}
		for _, event := range recorded {
			summary.Count(event)
		}
		return summary
	})
	if diff := cmp.Diff(string(stored), string(memory)); diff != "" {
		t.Errorf("sealed from stored events and from memory (-stored +memory):\n%s", diff)
	}
}

func isCode(code fault.Code) func(error) bool {
	return func(err error) bool {
		var own *fault.Error
		return errors.As(err, &own) && own.Code == code
	}
}

// Counting events in a copy of a summary leaves the original unchanged.
func TestSummaryClone(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	p := b.open("")
	p.record("a", "one", `{}`, "")
	before := p.summary()
	p.record("a", "one", `{}`, "")
	p.record("a", "two", `{}`, "")
	clone := before.Clone()
	for _, entry := range p.entries[1:] {
		clone.Count(&must(DecodeEvent(entry.(*StoredEvent).Body)).Event)
	}
	if before.Folded != 1 || len(before.lines) != 1 || before.lines[0].Count != 1 {
		t.Errorf("the original has moved: %+v", before)
	}
	if diff := cmp.Diff(p.summary().lines, clone.lines); diff != "" {
		t.Errorf("clone (-want +got):\n%s", diff)
	}
}
