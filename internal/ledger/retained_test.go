package ledger

import (
	"strings"
	"testing"
	"unsafe"
)

// What a chain keeps of an action stays in memory with the chain. It must not be a substring of the
// request, which would keep the whole request there.
func TestAChainKeepsNoRequestInMemory(t *testing.T) {
	request := strings.Repeat("x", 1000) + "agent" + "tool_call" + "pay" + "example.com"
	part := func(text string) string {
		at := strings.Index(request, text)
		return request[at : at+len(text)]
	}
	event := &Event{Action: Action{AgentName: part("agent"), ActionType: part("tool_call"), ActionName: part("pay")}}
	var summary Summary
	summary.Count(event)
	state := NewChainState(0, "")
	state.countAgent(&event.Action)
	state.Metrics.Count(&Facts{ExternalDomains: []string{part("example.com")}}, nil, 0)
	line := summary.lines[0]
	for _, kept := range []string{line.AgentName, line.ActionType, line.ActionName, state.Agents[0], state.Metrics.ExternalDomains[0]} {
		if unsafe.StringData(kept) == unsafe.StringData(part(kept)) {
			t.Errorf("%q is still a part of the request", kept)
		}
	}
}

// Few lines are found without an index, many with one. The summary is the same, and its size grows
// with each line.
func TestSummaryOfManyKinds(t *testing.T) {
	var summary Summary
	const kinds = 4 * fewLines
	sizes := make([]int, kinds)
	for round := range 3 {
		for i := range kinds {
			name := strings.Repeat("n", i+1)
			summary.fold(summaryKey{"agent", "tool_call", name, Allow}, Time(round*kinds+i))
			sizes[i] = summary.Size()
			if round == 0 && i > 0 && sizes[i] <= sizes[i-1] {
				t.Fatalf("line %d took no room", i)
			}
		}
	}
	if len(summary.lines) != kinds || summary.Folded != 3*kinds {
		t.Fatalf("%d lines of %d events, want %d of %d", len(summary.lines), summary.Folded, kinds, 3*kinds)
	}
	for i, line := range summary.lines {
		if len(line.ActionName) != i+1 || line.Count != 3 || line.FirstAt != Time(i) || line.LastAt != Time(2*kinds+i) {
			t.Errorf("line %d is %+v", i, line)
		}
	}
	if copied := summary.Clone(); copied.Size() != summary.Size() {
		t.Errorf("a copy of %d bytes takes %d", summary.Size(), copied.Size())
	}
}
