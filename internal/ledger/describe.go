package ledger

import "strconv"

// describe is the receipt's sentence for people, and one more for a chain that was
// decided in shadow.
func describe(chain *Chain, state *ChainState, summary *Summary, approvals []*Approval, c *Completion) string {
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
			text = appendEnds(text, approvals)
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

// appendTrial says that a chain was decided in shadow: what reads as allowed was not
// necessarily let through by the rules.
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

func appendCount(dst []byte, n int64, words string) []byte {
	if n == 0 {
		return dst
	}
	return append(append(strconv.AppendInt(append(dst, ", "...), n, 10), ' '), words...)
}

var outcomeWords = []struct {
	outcome Outcome
	words   string
}{{Allow, "allowed"}, {AllowWithFlag, "allowed with a flag"}, {RequireApproval, "sent to approval"}, {Deny, "denied"}}

// appendEnds says what became of the actions that people were asked about.
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

// How an approval can end, in words and in the order of a summary. A person's denial is
// told from one by a rule that came into force while the action waited.
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

func appendPlural(dst []byte, n int64, noun string) []byte {
	dst = append(append(strconv.AppendInt(dst, n, 10), ' '), noun...)
	if n != 1 {
		dst = append(dst, 's')
	}
	return dst
}
