package ledger

import (
	"errors"
	"slices"
	"testing"

	"countersign/internal/fault"
)

// A chain's state is refused when a byte of it or any field of its chain was
// changed, or its key is missing.
func TestChainStateIsBoundToItsChain(t *testing.T) {
	t.Parallel()
	b, p := eventful(t)
	body, mac := p.state.Encode(b.keys, p.chain)
	if _, err := DecodeChainState(body, mac, b.keys, p.chain); err != nil {
		t.Fatal(err)
	}
	changes := map[string]func(*Chain){
		"id": func(c *Chain) { c.ID = ChainID{} }, "org": func(c *Chain) { c.Org = OrgID{} }, "opener": func(c *Chain) { c.OpenedBy = KeyID{} },
		"name": func(c *Chain) { c.Name = "other" }, "external id": func(c *Chain) { c.ExternalID = "x" },
		"environment": func(c *Chain) { c.Environment = "x" }, "metadata": func(c *Chain) { c.Metadata = []byte(`{}`) },
		"policy": func(c *Chain) { c.PolicyConfig = []byte(`{}`) }, "approvers": func(c *Chain) { c.FallbackApprovers = []string{"x"} },
		"fail modes": func(c *Chain) { c.FailModes = []byte(`{}`) }, "fast path": func(c *Chain) { c.FastPath = false },
		"start": func(c *Chain) { c.StartedAt++ }, "idempotency key": func(c *Chain) { c.IdempotencyKey = "x" },
	}
	for name, change := range changes {
		other := *p.chain
		change(&other)
		stored := must(DecodeChain(other.Encode()))
		if _, err := DecodeChainState(body, mac, b.keys, stored); !errors.Is(err, ErrStateTampered) {
			t.Errorf("%s changed: %v, want ErrStateTampered", name, err)
		}
	}
	for at := range body {
		changed := slices.Clone(body)
		changed[at] ^= 1
		if _, err := DecodeChainState(changed, mac, b.keys, p.chain); err == nil {
			t.Fatalf("byte %d of the state changed, and nothing is found", at)
		}
	}
	if _, err := DecodeChainState(body, mac[:31], b.keys, p.chain); !errors.Is(err, ErrStateTampered) {
		t.Errorf("a shorter authenticator: %v", err)
	}
	if _, err := DecodeChainState(body, mac, testKeys{ids: []string{"key-2"}}, p.chain); !errors.Is(err, ErrStateTampered) {
		t.Errorf("without the key: %v", err)
	}
}

// rotatingKeys rotates to the next key each time it is asked for the current one.
type rotatingKeys struct {
	testKeys
	asked *int
}

func (k rotatingKeys) CurrentKey() string {
	*k.asked++
	return k.ids[min(*k.asked, len(k.ids))-1]
}

// A state that is encoded while the keys are rotated is authentic: it names the key that its
// authenticator was made with.
func TestChainStateOutlivesARotation(t *testing.T) {
	t.Parallel()
	_, p := eventful(t)
	keys := rotatingKeys{testKeys{ids: []string{"key-1", "key-2", "key-3"}}, new(int)}
	body, mac := p.state.Encode(keys, p.chain)
	if _, err := DecodeChainState(body, mac, keys, p.chain); err != nil {
		t.Errorf("encoded during a rotation: %v", err)
	}
}

// An outcome is recorded once. A repeat records nothing, and only "unknown" can be replaced.
func TestReportOutcomeRules(t *testing.T) {
	t.Parallel()
	report := func(result Result, detail string) *Entry {
		return &Entry{Kind: EntryOutcome, Result: result, Detail: detail}
	}
	cases := []struct {
		name    string
		earlier []*Entry
		report  *Entry
		status  EventStatus
		sealed  bool
		code    fault.Code // "" for accepted
		entered bool
	}{
		{"first", nil, report(Succeeded, ""), EventAllowed, false, "", true},
		{"repeated", []*Entry{report(Failed, "x")}, report(Failed, "x"), EventAllowed, false, "", false},
		{"repeated after sealing", []*Entry{report(Failed, "x")}, report(Failed, "x"), EventAllowed, true, "", false},
		{"other detail", []*Entry{report(Failed, "x")}, report(Failed, "y"), EventAllowed, false, fault.CodeOutcomeConflict, false},
		{"other result", []*Entry{report(Succeeded, "")}, report(Failed, ""), EventAllowed, false, fault.CodeOutcomeConflict, false},
		{"unknown settled", []*Entry{report(Unknown, "")}, report(Failed, ""), EventFlagged, false, "", true},
		{"unknown again", []*Entry{report(Unknown, "")}, report(Unknown, "why"), EventAllowed, false, fault.CodeOutcomeConflict, false},
		{"settled twice", []*Entry{report(Unknown, ""), report(Failed, "")}, report(Succeeded, ""), EventAllowed, false, fault.CodeOutcomeConflict, false},
		{"sealed", nil, report(Succeeded, ""), EventAllowed, true, fault.CodeChainSealed, false},
		{"denied", nil, report(Succeeded, ""), EventDenied, false, fault.CodeOutcomeConflict, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			state := NewChainState(firstMoment, "v1")
			if c.sealed {
				state.Status = ChainCompleted
			}
			before := *state
			event := &RecordedEvent{Event: Event{Sequence: 4, Status: c.status}}
			got, addendum, err := state.ReportOutcome(event, c.earlier, *c.report, 1)
			if c.code != "" {
				if !isCode(c.code)(err) || state.Entries != before.Entries || state.Digest != before.Digest {
					t.Errorf("error %v, want %s and nothing entered", err, c.code)
				}
				return
			}
			if err != nil || got.Result != c.report.Result || got.Detail != c.report.Detail {
				t.Fatalf("report %+v, %v", got, err)
			}
			if (addendum != nil) != c.entered || (state.Digest != before.Digest) != c.entered {
				t.Errorf("entered %v, want %t", addendum, c.entered)
			}
			if c.entered && (got.RecordedAt != firstMoment || got.Position != 1 || addendum.Sequence != 4) {
				t.Errorf("entered as %+v at %s", addendum, got.RecordedAt)
			}
		})
	}
}

// A chain's state lists each agent once, in order of appearance, and the policy that
// decided.
func TestRecordMovesTheState(t *testing.T) {
	t.Parallel()
	_, p := eventful(t)
	if !slices.Equal(p.state.Agents, []string{"a", "b"}) {
		t.Errorf("agents %q, want each once, in order of appearance", p.state.Agents)
	}
	first := must(DecodeEvent(p.entries[0].(*StoredEvent).Body))
	if first.Status != EventAllowed || first.Decision.Outcome != Allow || first.Decision.Source != SourceBackend || first.ID.Sequence() != 1 {
		t.Errorf("the first event is %+v", first)
	}
	if p.state.PolicyVersion != BuiltinPolicy.Version {
		t.Errorf("policy version %s", p.state.PolicyVersion)
	}
	p.state.Status = ChainFailed
	if !isCode(fault.CodeChainSealed)(p.state.Open()) {
		t.Error("a sealed chain is open")
	}
}

// An action repeats another only when everything that was sent is the same.
func TestRepeatsComparesTheWholeAction(t *testing.T) {
	t.Parallel()
	at, later := Time(5), Time(6)
	action := Action{AgentName: "a", ActionType: "b", ActionName: "c", ParentAgentName: "p", Payload: []byte(`{"n":1}`), Metadata: []byte(`{"m":1}`), ExecutedAt: &at}
	event := Event{Sequence: 1, Action: action, Decision: Decision{Source: SourceBackend}, RecordedAt: 9}
	recorded := must(DecodeEvent(event.Encode()))
	if !recorded.Repeats(&action) {
		t.Error("the same action is not recognised")
	}
	changes := []func(*Action){
		func(a *Action) { a.AgentName = "x" }, func(a *Action) { a.ActionType = "x" }, func(a *Action) { a.ActionName = "x" },
		func(a *Action) { a.ParentAgentName = "" }, func(a *Action) { a.Payload = []byte(`{"n":2}`) }, func(a *Action) { a.Metadata = nil },
		func(a *Action) { a.Source = SourceOffline }, func(a *Action) { a.ExecutedAt = nil }, func(a *Action) { a.ExecutedAt = &later },
	}
	for i, change := range changes {
		other := action
		if change(&other); recorded.Repeats(&other) {
			t.Errorf("change %d is not seen", i)
		}
	}
}

// Metrics add up exposure, cost, communications and records, and list each external
// domain once.
func TestMetricsCount(t *testing.T) {
	t.Parallel()
	amount, cost := MoneyOf(0.1), MoneyOf(0.002)
	var m Metrics
	for range 3 {
		m.Count(&Facts{Categories: []string{CategoryFinancial, CategoryExternalCommunication}, Amount: &amount, ExternalDomains: []string{"a.example", "b.example"}, RecordsModified: 2}, &cost, 0)
	}
	m.Count(&Facts{Amount: &amount, ExternalDomains: []string{"b.example"}}, nil, 0)
	if got := m.FinancialExposure.String() + " " + m.EstimatedCost.String(); got != "0.3 0.006" {
		t.Errorf("exposure and cost %s, want 0.3 0.006", got)
	}
	if m.ExternalCommunications != 3 || m.RecordsModified != 6 || !slices.Equal(m.ExternalDomains, []string{"a.example", "b.example"}) {
		t.Errorf("metrics %+v", m)
	}
}

// Each decision gives an event its status, and an unknown decision denies it.
func TestOutcomesBecomeStatuses(t *testing.T) {
	t.Parallel()
	for outcome, want := range map[Outcome]EventStatus{
		Allow: EventAllowed, AllowWithFlag: EventFlagged, RequireApproval: EventAwaiting, Deny: EventDenied, "surprise": EventDenied,
	} {
		if got := outcome.status(); got != want {
			t.Errorf("%s becomes %s, want %s", outcome, got, want)
		}
	}
}
