package ledger

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"countersign/internal/canon"
)

// Summary folds a chain's events into the lines of its receipt, in order of first appearance. It
// can be built while the chain is open and caught up when it is sealed, so that sealing a long
// chain does not hold a lock for long.
type Summary struct {
	Folded  int64 // number of folded events; the sequence of the last one
	markers int64 // number of them that are markers
	trial   trial
	lines   []SummaryLine
	index   map[summaryKey]int // nil while there are few lines
	bytes   int
}

// SummaryLine groups the events of one kind in a receipt.
type SummaryLine struct {
	AgentName, ActionType, ActionName string
	Outcome                           Outcome
	Count                             int64
	FirstAt, LastAt                   Time
}

// trial counts the actions that were decided in shadow mode.
type trial struct {
	actions int64
	// What enforcing would have decided instead.
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

// Clone returns an independent copy.
func (s *Summary) Clone() *Summary {
	next := *s
	next.lines, next.index = slices.Clone(s.lines), maps.Clone(s.index)
	return &next
}

// Size returns the approximate memory of the summary, in bytes.
func (s *Summary) Size() int { return s.bytes }

// lineBytes is the approximate size of a line without its texts.
const lineBytes = 150

func (s *Summary) fold(key summaryKey, recordedAt Time) {
	s.Folded++
	if i := s.find(key); i >= 0 {
		s.lines[i].Count++
		s.lines[i].LastAt = recordedAt
		return
	}
	// What is kept of an event must not keep the whole request in memory.
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

// fewLines is up to how many lines a linear search is faster than an index. Most chains have no
// more.
const fewLines = 16

// find returns the index of a line, or -1.
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

// agents returns the agents that took the actions, in order of first appearance.
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

// mode returns Shadow if any action was decided in shadow, and "" without actions.
func (s *Summary) mode() Mode {
	switch {
	case s.trial.actions > 0:
		return Shadow
	case s.Folded > s.markers:
		return Enforce
	}
	return ""
}

// appendSummary encodes the lines as a receipt of the format signs them. A gap belongs to no agent,
// which the first format did not say.
func appendSummary(dst []byte, lines []SummaryLine, format string) []byte {
	return appendObjects(dst, lines, func(w *canon.ObjectWriter, line *SummaryLine) {
		w.String("action_name", line.ActionName)
		w.String("action_type", line.ActionType)
		if line.ActionType == ActionTypeGap && format != receiptFormat1 {
			w.Null("agent_name")
		} else {
			w.StringOrNull("agent_name", line.AgentName)
		}
		w.Int("count", line.Count)
		writeTime(w, "first_at", line.FirstAt)
		writeTime(w, "last_at", line.LastAt)
		w.StringOrNull("policy_decision", string(line.Outcome))
	})
}

// describe returns the receipt's sentence for people, and another one for a chain that was decided
// in shadow.
func (s *Sealing) describe() string {
	chain, state, summary, c := s.Chain, s.State, s.Summary, s.Completion
	text := make([]byte, 0, 160)
	text = append(text, "Chain "...)
	text = strconv.AppendQuote(text, chain.Name)
	switch {
	case !c.Failed:
		text = append(text, " completed: "...)
	case c.Failure == nil:
		text = append(text, " failed: "...)
	default:
		text = append(append(append(text, " failed with "...), c.Failure.Type...), ": "...)
	}
	text = appendPlural(text, state.ActionsTaken(), "action")
	text = append(text, " by "...)
	text = appendPlural(text, int64(len(state.Agents)), "agent")
	var gaps int64
	counts := make(map[Outcome]int64)
	for _, line := range summary.lines {
		switch {
		case line.ActionType == ActionTypeGap:
			gaps += line.Count
		case !markerType(line.ActionType):
			counts[line.Outcome] += line.Count
		}
	}
	for _, part := range outcomeWords {
		text = appendCount(text, counts[part.outcome], part.words)
		if part.outcome == RequireApproval {
			text = appendEnds(text, s.Approvals)
		}
	}
	if state.Metrics.FinancialExposure.Cmp(Money{}) > 0 {
		text = append(append(append(text, ", "...), state.Metrics.FinancialExposure.Fixed()...), " USD of financial exposure"...)
	}
	if n := state.Metrics.UnpricedCalls; n > 0 {
		text = append(appendPlural(append(text, ", "...), n, "model call"), " without a known price"...)
	}
	if gaps > 0 {
		text = append(appendPlural(append(text, ", "...), gaps, "gap"), " where the client dropped events"...)
	}
	return string(appendTrial(append(text, '.'), &summary.trial, state.ActionsTaken()))
}

var outcomeWords = []struct {
	outcome Outcome
	words   string
}{{Allow, "allowed"}, {AllowWithFlag, "allowed with a flag"}, {RequireApproval, "sent to approval"}, {Deny, "denied"}}

func appendCount(dst []byte, n int64, words string) []byte {
	if n == 0 {
		return dst
	}
	return append(append(strconv.AppendInt(append(dst, ", "...), n, 10), ' '), words...)
}

// appendEnds describes the outcomes of the actions that required approval.
func appendEnds(dst []byte, approvals []*Approval) []byte {
	ends := make(map[string]int64)
	for _, a := range approvals {
		ends[a.ending()]++
	}
	separator := " ("
	for _, words := range approvalEndings {
		if n := ends[words]; n > 0 {
			dst = append(strconv.AppendInt(append(dst, separator...), n, 10), ' ')
			dst = append(dst, words...)
			separator = ", "
		}
	}
	if len(ends) > 0 {
		dst = append(dst, ')')
	}
	return dst
}

// How an approval can end, in words and in the order of a summary. A denial by a person is
// distinguished from one by a rule that came into force while the action waited.
const (
	endApproved = "approved"
	endDenied   = "denied by a reviewer"
	endRule     = "denied by a rule that changed meanwhile"
	endTimedOut = "timed out"
	endCanceled = "cancelled"
)

var approvalEndings = []string{endApproved, endDenied, endRule, endTimedOut, endCanceled}

func (a *Approval) ending() string {
	switch {
	case a.Status == ApprovalApproved:
		return endApproved
	case a.Status == ApprovalDenied && a.DeniedBy != nil:
		return endRule
	case a.Status == ApprovalDenied:
		return endDenied
	case a.Status == ApprovalTimedOut:
		return endTimedOut
	}
	return endCanceled
}

// appendTrial says that a chain was decided in shadow: what is listed as allowed was not
// necessarily permitted by the rules.
func appendTrial(dst []byte, t *trial, actions int64) []byte {
	if t.actions == 0 {
		return dst
	}
	dst = append(dst, " Shadow mode: "...)
	dst = append(strconv.AppendInt(dst, t.actions, 10), " of "...)
	dst = append(appendPlural(dst, actions, "action"), " evaluated without being enforced"...)
	if t.flagged+t.asked+t.denied == 0 {
		return append(dst, "; enforcing would have decided the same."...)
	}
	dst = append(dst, "; enforcing would have"...)
	separator := " "
	for _, would := range []struct {
		verb string
		n    int64
		rest string
	}{{"flagged", t.flagged, ""}, {"sent", t.asked, " to approval"}, {"denied", t.denied, ""}} {
		if would.n > 0 {
			dst = append(append(append(dst, separator...), would.verb...), ' ')
			dst = append(strconv.AppendInt(dst, would.n, 10), would.rest...)
			separator = ", "
		}
	}
	return append(dst, '.')
}

func appendPlural(dst []byte, n int64, noun string) []byte {
	dst = append(append(strconv.AppendInt(dst, n, 10), ' '), noun...)
	if n != 1 {
		dst = append(dst, 's')
	}
	return dst
}
