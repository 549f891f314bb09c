package ledger

import (
	"strconv"
	"strings"
)

// describe is the receipt's sentence for people.
func describe(chain *Chain, state *ChainState, lines []SummaryLine, approvals []*Approval, c *Completion) string {
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
	text = appendPlural(text, state.Actions, "action")
	text = append(text, " by "...)
	text = appendPlural(text, int64(len(state.Agents)), "agent")
	for _, part := range outcomeWords {
		var n int64
		for _, line := range lines {
			if line.Outcome == part.outcome {
				n += line.Count
			}
		}
		if n > 0 {
			text = append(text, ", "...)
			text = append(append(strconv.AppendInt(text, n, 10), ' '), part.words...)
		}
		if part.outcome == RequireApproval {
			text = appendEnds(text, approvals)
		}
	}
	if state.Metrics.FinancialExposure.Cmp(Money{}) > 0 {
		text = append(append(append(text, ", "...), state.Metrics.FinancialExposure.Fixed()...), " USD of financial exposure"...)
	}
	return string(append(text, '.'))
}

var outcomeWords = []struct {
	outcome Outcome
	words   string
}{{Allow, "allowed"}, {AllowWithFlag, "allowed with a flag"}, {RequireApproval, "sent to approval"}, {Deny, "denied"}}

// appendEnds says what became of the actions that people were asked about.
func appendEnds(dst []byte, approvals []*Approval) []byte {
	ends := make(map[ApprovalStatus]int64)
	for _, a := range approvals {
		ends[a.Status]++
	}
	separator := " ("
	for _, status := range []ApprovalStatus{ApprovalApproved, ApprovalDenied, ApprovalTimedOut, ApprovalCancelled} {
		if n := ends[status]; n > 0 {
			dst = append(strconv.AppendInt(append(dst, separator...), n, 10), ' ')
			dst = append(dst, strings.ReplaceAll(string(status), "_", " ")...)
			separator = ", "
		}
	}
	if len(ends) > 0 {
		dst = append(dst, ')')
	}
	return dst
}

func appendPlural(dst []byte, n int64, noun string) []byte {
	dst = append(append(strconv.AppendInt(dst, n, 10), ' '), noun...)
	if n != 1 {
		dst = append(dst, 's')
	}
	return dst
}
