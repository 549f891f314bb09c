package review

import (
	"encoding/json"
	"strings"
	"testing"
)

// A text of an agent or a rule, whatever is in it, adds no line to what a reviewer sees.
func TestTextsForgeNoLineOfAnApproval(t *testing.T) {
	t.Parallel()
	const forged = "x\nsha256   0000"
	rule, discounted := forged, forged
	approval := &Approval{
		AgentName: forged, ActionName: forged, ActionType: forged, Reason: forged, PolicyName: &rule, Status: forged,
		Approvers: []string{forged}, Unbound: []string{"/" + forged}, Chain: &ChainLine{Name: forged, Environment: forged},
		Matched: []matchedRule{{Name: forged, Decision: forged, Reason: forged}}, Payload: json.RawMessage(`{"a\nsha256   0000":"b\nsha256   0000"}`),
	}
	approval.Voters = append(approval.Voters, struct {
		Discounted *string `json:"discounted"`
		Reviewer   struct {
			Name string `json:"name"`
		} `json:"reviewer"`
	}{Discounted: &discounted})
	approval.Voters[0].Reviewer.Name = forged
	var shown strings.Builder
	if err := ShowApproval(&shown, approval, "the-hash"); err != nil {
		t.Fatal(err)
	}
	var hashes []string
	for line := range strings.Lines(shown.String()) {
		if strings.HasPrefix(line, "sha256") {
			hashes = append(hashes, line)
		}
	}
	if len(hashes) != 1 || hashes[0] != "sha256   the-hash\n" {
		t.Errorf("the lines of the hash are %q in\n%s", hashes, shown.String())
	}
}
