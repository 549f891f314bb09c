package ledger

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"countersign/internal/canon"
)

// SummaryLine groups the events of one kind in a receipt.
type SummaryLine struct {
	AgentName, ActionType, ActionName string
	Outcome                           Outcome
	Count                             int64
	FirstAt, LastAt                   Time
}

// Summary folds a chain's events into the lines of its receipt, in order of
// first appearance. It can be built while the chain is still open and caught up
// when it is sealed, so that sealing a long chain holds no lock for long.
type Summary struct {
	Folded  int64 // events folded; the sequence of the last
	markers int64 // of these, those that are no actions
	trial   trial
	lines   []SummaryLine
	index   map[summaryKey]int // nil while the lines are few
	bytes   int
}

// trial counts the actions that were decided in shadow mode.
type trial struct {
	actions int64
	// What enforcing would have decided where it would have decided otherwise.
	flagged, asked, denied int64
}

func (t *trial) count(d *Decision) {
	if d.Mode != Shadow {
		return
	}
	t.actions++
	if !d.Shadow.StricterThan(d.Outcome) {
		return
	}
	switch d.Shadow {
	case AllowWithFlag:
		t.flagged++
	case RequireApproval:
		t.asked++
	case Deny:
		t.denied++
	}
}

type summaryKey struct {
	agent, actionType, actionName string
	outcome                       Outcome
}

// Count folds the next event.
func (s *Summary) Count(e *Event) {
	if e.Action.marker() {
		s.markers++
	} else {
		s.trial.count(&e.Decision)
	}
	s.fold(summaryKey{e.Action.AgentName, e.Action.ActionType, e.Action.ActionName, e.Decision.Outcome}, e.RecordedAt)
}

// Clone returns a copy that can be folded further by itself.
func (s *Summary) Clone() *Summary {
	next := *s
	next.lines, next.index = slices.Clone(s.lines), maps.Clone(s.index)
	return &next
}

// Size is about how many bytes of memory the summary takes.
func (s *Summary) Size() int { return s.bytes }

// lineBytes is about what a line takes beside its texts.
const lineBytes = 150

func (s *Summary) fold(key summaryKey, recordedAt Time) {
	s.Folded++
	if i := s.find(key); i >= 0 {
		s.lines[i].Count++
		s.lines[i].LastAt = recordedAt
		return
	}
	// What is kept of an event must not keep the request's whole text in memory.
	key = summaryKey{strings.Clone(key.agent), strings.Clone(key.actionType), strings.Clone(key.actionName), key.outcome}
	s.lines = append(s.lines, SummaryLine{key.agent, key.actionType, key.actionName, key.outcome, 1, recordedAt, recordedAt})
	s.bytes += lineBytes + len(key.agent) + len(key.actionType) + len(key.actionName)
	switch {
	case s.index != nil:
		s.index[key] = len(s.lines) - 1
	case len(s.lines) > fewLines:
		s.makeIndex()
	}
}

// fewLines are looked through faster than an index is asked, and most chains have
// no more.
const fewLines = 16

// find is -1 where there is no such line yet.
func (s *Summary) find(key summaryKey) int {
	if s.index != nil {
		if i, ok := s.index[key]; ok {
			return i
		}
		return -1
	}
	return slices.IndexFunc(s.lines, func(line SummaryLine) bool { return line.key() == key })
}

func (s *Summary) makeIndex() {
	s.index = make(map[summaryKey]int, 2*len(s.lines))
	for i, line := range s.lines {
		s.index[line.key()] = i
	}
}

func (l *SummaryLine) key() summaryKey {
	return summaryKey{l.AgentName, l.ActionType, l.ActionName, l.Outcome}
}

// agents are those that took the actions, in order of first appearance.
func (s *Summary) agents() []string {
	var agents []string
	seen := make(map[string]bool)
	for i := range s.lines {
		if line := &s.lines[i]; !markerType(line.ActionType) && !seen[line.AgentName] {
			seen[line.AgentName] = true
			agents = append(agents, line.AgentName)
		}
	}
	return agents
}

// mode is Shadow where any action was decided in shadow, and "" without actions.
func (s *Summary) mode() Mode {
	switch {
	case s.trial.actions > 0:
		return Shadow
	case s.Folded > s.markers:
		return Enforce
	}
	return ""
}

// appendSummary writes the lines as a receipt of the format signs them. A gap is no
// agent's, which the first format did not say.
func appendSummary(dst []byte, lines []SummaryLine, format string) []byte {
	dst = append(dst, '[')
	for i, line := range lines {
		if i > 0 {
			dst = append(dst, ',')
		}
		w := canon.BeginObject(dst)
		w.String("action_name", line.ActionName)
		w.String("action_type", line.ActionType)
		if line.ActionType == ActionTypeGap && format != receiptFormat1 {
			w.Null("agent_name")
		} else {
			w.StringOrNull("agent_name", line.AgentName)
		}
		w.Int("count", line.Count)
		writeTime(&w, "first_at", &line.FirstAt)
		writeTime(&w, "last_at", &line.LastAt)
		w.StringOrNull("policy_decision", string(line.Outcome))
		dst = w.End()
	}
	return append(dst, ']')
}

func appendApprovals(dst []byte, approvals []*Approval) []byte {
	dst = append(dst, '[')
	for i, a := range approvals {
		if i > 0 {
			dst = append(dst, ',')
		}
		w := canon.BeginObject(dst)
		w.String("action_name", a.ActionName)
		w.String("agent_name", a.AgentName)
		w.String("approval_hash", FormatHash(a.Hash()))
		w.String("approval_id", a.ID.String())
		writeTime(&w, "decided_at", a.DecidedAt)
		writeTime(&w, "requested_at", &a.RequestedAt)
		w.String("status", string(a.Status))
		dst = w.End()
	}
	return append(dst, ']')
}

// Failure says why a chain failed.
type Failure struct{ Type, Message string }

// Completion is a request to seal a chain.
type Completion struct {
	Failed  bool
	Failure *Failure
	// Abandoned says that the service itself seals the chain; no request can.
	Abandoned bool
}

// ParseCompletion reads the body of a request that completes a chain; the zero
// Value stands for no body.
func ParseCompletion(v canon.Value) (*Completion, error) {
	if v.IsNull() {
		return &Completion{}, nil
	}
	f := NewFields(v)
	c := &Completion{Failed: f.OneOf("outcome", string(ChainCompleted), string(ChainFailed)) == string(ChainFailed)}
	if failure := f.Nested("error"); failure != nil {
		c.Failure = &Failure{
			Type:    failure.RequiredName("type", maxName),
			Message: withoutSecrets(failure.Text("message", maxText)),
		}
		f.Join(failure)
		if !c.Failed {
			f.Fault("error", `goes with "outcome": "failed"`)
		}
	}
	if err := f.Err(); err != nil {
		return nil, err
	}
	return c, nil
}

const actionTypeFailure = "chain_failure"

// Seal completes a chain: it moves the chain's state and the organization's
// head on, and returns the receipt with the record to store. The summary must
// have folded every event of the chain, and the approvals must be all of its
// own, each at its end, by the sequence of their events.
func Seal(keys Keys, head *Head, org string, chain *Chain, state *ChainState, summary *Summary, approvals []*Approval, c *Completion, id ReceiptID, now Time) (*Receipt, *StoredReceipt, error) {
	if err := state.Open(); err != nil {
		return nil, nil, err
	}
	if summary.Folded != state.Actions {
		return nil, nil, fmt.Errorf("summary covers %d of %d events", summary.Folded, state.Actions)
	}
	if int64(len(approvals)) != state.Approvals {
		return nil, nil, fmt.Errorf("%d of %d approvals are stored: %w", len(approvals), state.Approvals, ErrStateTampered)
	}
	if !head.Authentic(keys) {
		return nil, nil, fmt.Errorf("organization head fails its authenticator: %w", ErrStateTampered)
	}
	now = Later(now, state.LastAt)
	// A state from before markers were counted takes them for actions.
	state.Markers, state.Agents = summary.markers, summary.agents()
	receipt := &Receipt{
		ID: id, Number: ReceiptNumber(now, head.Count+1), Sequence: head.Count + 1,
		Chain: chain.ID, Organization: org, Environment: chain.Environment, ExternalID: chain.ExternalID, Mode: summary.mode(),
		StartedAt: chain.StartedAt, CompletedAt: now, GeneratedAt: now,
		Agents: state.Agents, Actions: state.ActionsTaken(), Metrics: state.Metrics, Approvals: approvals,
		Events:        sealedLines(summary.lines, c, now),
		PolicyVersion: state.PolicyVersion, PreviousHash: head.Last,
		Metadata: chain.Metadata, EventsDigest: state.Digest,
	}
	receipt.Summary = describe(chain, state, summary, approvals, c)
	stored := &StoredReceipt{ID: id, Org: chain.Org, Sequence: receipt.Sequence, Chain: chain.ID, Body: receipt.sign(keys, chain.Org)}
	if head.Last != nil {
		stored.PreviousHash = head.Last[:]
	}

	hash := stored.Hash()
	head.Count, head.Last = receipt.Sequence, &hash
	head.authenticate(keys)
	state.Status = ChainCompleted
	if c.Failed {
		state.Status = ChainFailed
	}
	state.LastAt, state.CompletedAt, state.Receipt, state.Failure, state.Abandoned = now, &now, &id, c.Failure, c.Abandoned
	return receipt, stored, nil
}

// sealedLines ends a failed chain's summary with the error's type.
func sealedLines(lines []SummaryLine, c *Completion, now Time) []SummaryLine {
	if !c.Failed {
		return lines
	}
	name := "unknown"
	if c.Failure != nil {
		name = c.Failure.Type
	}
	failure := SummaryLine{ActionType: actionTypeFailure, ActionName: name, Count: 1, FirstAt: now, LastAt: now}
	return append(lines[:len(lines):len(lines)], failure)
}
