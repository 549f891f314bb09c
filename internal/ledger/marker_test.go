package ledger

import (
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// A gap marker is an entry of the digest, but not an action and not an agent's: nothing that counts
// actions counts it.
func TestGapsAreNoActions(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	p := b.open("")
	p.gap("gap-1")
	p.record("agent", "step", `{}`, "")
	p.gap("gap-2")
	if p.state.ActionsTaken() != 1 || p.state.TotalActions() != 1 || p.state.Actions != 3 || !slices.Equal(p.state.Agents, []string{"agent"}) {
		t.Errorf("%d actions of %d events by %v", p.state.ActionsTaken(), p.state.Actions, p.state.Agents)
	}
	b.seal(p, &Completion{})
	if p.receipt.Actions != 1 || !slices.Equal(p.receipt.Agents, []string{"agent"}) {
		t.Errorf("sealed with %d actions by %v", p.receipt.Actions, p.receipt.Agents)
	}
	want := `Chain "chain 1" completed: 1 action by 1 agent, 1 allowed, 2 gaps where the client dropped events.`
	if p.receipt.Summary != want {
		t.Errorf("summary %q, want %q", p.receipt.Summary, want)
	}
	if err := supports(t, b, p); err != nil {
		t.Error(err)
	}
}

// supports checks a page's entries against its receipt.
func supports(t *testing.T, b *book, p *page) error {
	t.Helper()
	in := Inspect(b.receipts[len(b.receipts)-1], b.slug, b.keys)
	if in.Fault != "" {
		t.Fatalf("the receipt fails %s", in.Fault)
	}
	replay := NewReplay(p.chain.ID)
	for _, entry := range p.entries {
		var err error
		switch e := entry.(type) {
		case *StoredEvent:
			err = replay.Event(e)
		case *Addendum:
			err = replay.Addendum(e)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return replay.Supports(&in.Attested)
}

// Markers do not count against a chain's limits: the events before an auto-pause, the agents of a
// chain, and the actions of a lease.
func TestMarkersTakeNothingOfTheLimits(t *testing.T) {
	t.Parallel()
	settings := DefaultSettings()
	settings.AutoPause.MaxEvents = 2
	settings.AutoPause.MaxDurationSeconds = 1
	org := &Organization{Settings: settings}
	b := newBook(t)
	p := b.open("")
	for i := range 5 {
		key := string(rune('a' + i))
		gap := &Action{AgentName: key, ActionType: ActionTypeGap, ActionName: "send_payment", Source: SourceOffline, IdempotencyKey: key, Payload: []byte(`{}`)}
		gap.Facts = Facts{Categories: []string{CategoryFinancial, CategoryExternalCommunication}, RecordsModified: 3}
		r := plainly(p.chain, gap, p.state.LastAt+5000, [10]byte{byte(i)})
		r.Org = org
		event := p.state.Record(r).Event
		if event.Decision.AutoPaused || event.Decision.PolicyName != RuleGap || event.Decision.Outcome != AllowWithFlag {
			t.Errorf("gap %d: %+v", i+1, event.Decision)
		}
	}
	if m := &p.state.Metrics; p.state.Status != ChainActive || m.ExternalCommunications != 0 || m.RecordsModified != 0 || len(p.state.Agents) != 0 {
		t.Errorf("gaps were counted: %s, %+v, %v", p.state.Status, *m, p.state.Agents)
	}
	p.state.Agents = make([]string, maxAgents)
	if err := p.state.Accepts(&Action{AgentName: "one more", ActionType: ActionTypeGap}); err != nil {
		t.Errorf("a gap is refused for its agent: %v", err)
	}
	question := &Question{Org: org, Chain: p.chain, State: p.state, Action: &Action{AgentName: "agent", ActionType: "tool_call", ActionName: "step"}, Now: p.chain.StartedAt}
	if d := Decide(BuiltinPolicy, question); d.Outcome != Allow {
		t.Errorf("the first action after five gaps: %s, %s", d.Outcome, d.Reason)
	}
}

// Whether an event counts towards the limits is determined by its position even if markers precede
// it: an action before a resume does not count, one after it does.
func TestAgainCountsPastMarkers(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	p := b.open("")
	p.gap("gap-1")
	before := p.record("agent", "step", `{}`, "before")
	p.gap("gap-2")
	p.state.Status = ChainAutoPaused
	if _, err := p.state.Resume(p.chain.ID, before.ID, "admin", p.state.LastAt); err != nil {
		t.Fatal(err)
	}
	after := p.record("agent", "step", `{}`, "after")
	for name, c := range map[string]struct {
		event *Event
		want  int64 // actions since the resume, without the event
	}{"before": {before, 1}, "after": {after, 0}} {
		q := &Question{Org: &Organization{Settings: DefaultSettings()}, Chain: p.chain, State: p.state, Action: &c.event.Action, Now: p.state.LastAt}
		state := q.without(&RecordedEvent{Event: *c.event}, nil).State
		if got := state.TotalActions() - state.Granted.Actions; got != c.want {
			t.Errorf("%s: %d actions count, want %d", name, got, c.want)
		}
	}
}

// A state that counted gaps as actions, before they were distinguished, is sealed with the right
// numbers.
func TestOldStateIsSealedWithoutItsGaps(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	p := b.open("")
	p.gap("gap-1")
	p.record("agent", "step", `{}`, "")
	p.state.Markers, p.state.Agents = 0, []string{"countersign", "agent"}
	b.seal(p, &Completion{})
	if p.receipt.Actions != 1 || !slices.Equal(p.receipt.Agents, []string{"agent"}) || p.state.ActionsTaken() != 1 {
		t.Errorf("sealed with %d actions by %v", p.receipt.Actions, p.receipt.Agents)
	}
	if err := supports(t, b, p); err != nil {
		t.Error(err)
	}
}

// A receipt of the first format counted gaps as actions of an agent. It still verifies,
// and only with those numbers.
func TestFirstFormatWithGapsVerifies(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		actions int
		agent   any
		sound   bool
	}{
		"as it was made":          {2, "countersign", true},
		"without the gap":         {1, "countersign", false},
		"a gap of nobody's":       {2, nil, false},
		"as the second would say": {1, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBook(t)
			p := b.open("")
			p.gap("gap-1")
			p.record("agent", "step", `{}`, "")
			b.seal(p, &Completion{})
			stored := b.receipts[0]
			var fields map[string]any
			if err := json.Unmarshal(stored.Body, &fields); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"environment", "external_chain_id", "evaluation_mode", "signature"} {
				delete(fields, name)
			}
			delete(fields["cumulative_metrics"].(map[string]any), "unpriced_calls_count")
			fields["events_summary"].([]any)[0].(map[string]any)["agent_name"] = c.agent
			fields["format"], fields["total_actions"] = "countersign-receipt-v1", c.actions
			mac, _ := b.keys.MAC("key-1", b.org.UUID, PurposeReceipt, []byte(canonicalElsewhere(t, fields)))
			fields["signature"] = signaturePrefix + hex.EncodeToString(mac[:])
			stored.Body = []byte(canonicalElsewhere(t, fields))
			if err := supports(t, b, p); (err == nil) != c.sound {
				t.Errorf("judged as %v", err)
			}
		})
	}
}

// A receipt is not sound if its format is unknown, or if its members are not where its format puts
// them: the caller's own id cannot be mistaken for them.
func TestFormatsAreTakenAtTheirWord(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		external string
		edit     func(body string) string
		sound    bool
	}{
		"as it is":       {`x`, func(body string) string { return body }, true},
		"a tricky id":    {`,"format":"countersign-receipt-v1","external_chain_id":"`, func(body string) string { return body }, true},
		"an unknown one": {`x`, func(body string) string { return strings.Replace(body, "receipt-v2", "receipt-v3", 1) }, false},
		"no external id": {`x`, func(body string) string { return strings.Replace(body, `"external_chain_id":"x",`, "", 1) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBook(t)
			p := b.open("")
			p.chain.ExternalID = c.external
			p.gap("gap-1")
			b.seal(p, &Completion{})
			unsigned := *p.receipt
			unsigned.Signature = ""
			body := c.edit(string(unsigned.encode()))
			mac, _ := b.keys.MAC("key-1", b.org.UUID, PurposeReceipt, []byte(body))
			stored := b.receipts[0]
			at := strings.LastIndex(body, string(startedMember))
			stored.Body = []byte(body[:at] + `,"signature":"` + signaturePrefix + hex.EncodeToString(mac[:]) + `"` + body[at:])
			in := Inspect(stored, b.slug, b.keys)
			if got := in.Fault == ""; got != c.sound {
				t.Errorf("fault %q", in.Fault)
			}
		})
	}
}

// Every allowed model call with an unknown price is counted, and no other. A receipt also says so
// in words.
func TestUnpricedCallsAreCounted(t *testing.T) {
	t.Parallel()
	price := MoneyOf(0.25)
	for name, c := range map[string]struct {
		facts Facts
		cost  *Money
		want  int64
	}{
		"priced":           {Facts{Categories: []string{CategoryLLM}, Model: "m", InputTokens: 5}, &price, 0},
		"an unknown model": {Facts{Categories: []string{CategoryLLM}, Model: "m", InputTokens: 5}, nil, 1},
		"without a model":  {Facts{Categories: []string{CategoryLLM}}, nil, 1},
		"tokens alone":     {Facts{OutputTokens: 5}, nil, 1},
		"no call":          {Facts{Categories: []string{CategoryFinancial}}, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBook(t)
			p := b.open("")
			action := &Action{AgentName: "a", ActionType: "llm_call", ActionName: "complete", Payload: []byte(`{}`), Facts: c.facts, Cost: c.cost}
			p.act(action, Shadow)
			body, mac := p.state.Encode(keyRing, p.chain)
			again, err := DecodeChainState(body, mac, keyRing, p.chain)
			if err != nil {
				t.Fatal(err)
			}
			if p.state.Metrics.UnpricedCalls != c.want || again.Metrics.UnpricedCalls != c.want {
				t.Errorf("%d calls, and %d once stored; want %d", p.state.Metrics.UnpricedCalls, again.Metrics.UnpricedCalls, c.want)
			}
			b.seal(p, &Completion{})
			if got := strings.Contains(p.receipt.Summary, ", 1 model call without a known price"); got != (c.want > 0) {
				t.Errorf("summary %q", p.receipt.Summary)
			}
		})
	}
	t.Run("once approved", func(t *testing.T) {
		t.Parallel()
		state := NewChainState(firstMoment, "")
		state.Waiting = 2
		state.Settle(&Approval{Status: ApprovalDenied, Reserved: Reservation{Tokens: 9}}, firstMoment)
		state.Settle(&Approval{Status: ApprovalApproved, Reserved: Reservation{Tokens: 9}}, firstMoment)
		if state.Metrics.UnpricedCalls != 1 {
			t.Errorf("%d calls, want the one that was approved", state.Metrics.UnpricedCalls)
		}
	})
}

// A receipt says whether its chain was decided in shadow, and what enforcing would have
// decided.
func TestReceiptTellsShadow(t *testing.T) {
	t.Parallel()
	amount := MoneyOf(9000)
	pay := Action{AgentName: "payer", ActionType: "tool_call", ActionName: "pay", Payload: []byte(`{}`), Facts: Facts{Categories: []string{CategoryFinancial}, Amount: &amount}}
	look := Action{AgentName: "payer", ActionType: "tool_call", ActionName: "look", Payload: []byte(`{}`)}
	type step struct {
		action Action
		mode   Mode
	}
	for name, c := range map[string]struct {
		steps []step
		mode  Mode
		says  string
	}{
		"nothing was done":  {nil, "", ""},
		"enforced":          {[]step{{look, Enforce}}, Enforce, ""},
		"harmless":          {[]step{{look, Shadow}}, Shadow, " Shadow mode: 1 of 1 action evaluated without being enforced; enforcing would have decided the same."},
		"would have asked":  {[]step{{pay, Shadow}, {look, Shadow}}, Shadow, " Shadow mode: 2 of 2 actions evaluated without being enforced; enforcing would have sent 1 to approval."},
		"changed meanwhile": {[]step{{pay, Shadow}, {look, Enforce}}, Shadow, " Shadow mode: 1 of 2 actions evaluated without being enforced; enforcing would have sent 1 to approval."},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBook(t)
			p := b.open("")
			for _, s := range c.steps {
				p.act(&s.action, s.mode)
			}
			b.seal(p, &Completion{})
			says := ""
			if at := strings.Index(p.receipt.Summary, " Shadow"); at >= 0 {
				says = p.receipt.Summary[at:]
			}
			if p.receipt.Mode != c.mode || says != c.says {
				t.Errorf("mode %q: %q", p.receipt.Mode, p.receipt.Summary)
			}
		})
	}
}
