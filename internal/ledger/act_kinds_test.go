package ledger_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"countersign/internal/ledger"
)

// The documentation lists every kind of act, and no other.
func TestDocumentedActs(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/audit-log.md")
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_]+\\.[a-z_]+)` \\|").FindAllStringSubmatch(string(text), -1) {
		listed = append(listed, row[1])
	}
	slices.Sort(listed)
	if diff := cmp.Diff(ledger.ActKinds(), listed); diff != "" {
		t.Errorf("docs/audit-log.md lists other acts (-code +document):\n%s", diff)
	}
}

// Every kind of act has a sentence, even for acts that predate details.
func TestActsWithoutDetails(t *testing.T) {
	t.Parallel()
	for _, kind := range ledger.ActKinds() {
		for _, detail := range []string{"", "{}", `{"name":null}`, "[]", "broken"} {
			act := ledger.Act{Action: kind, Detail: []byte(detail)}
			if said := act.Sentence(); said == "" || said == kind || strings.ContainsAny(said, "{}[]") {
				t.Errorf("%s with %q is said as %q", kind, detail, said)
			}
		}
	}
}

// A sentence says what was changed from what to what, and cuts long values.
func TestActSentences(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 5000)
	for name, test := range map[string]struct {
		act  ledger.Act
		want string
	}{
		"an unknown kind": {ledger.Act{Action: "moon.land"}, "moon.land"},
		"settings": {ledger.Act{Action: ledger.ActOrganizationUpdate, Detail: []byte(`{"changed":{"high_risk_agents":{"from":[],"to":["x"]},"two_person_approval":{"from":false,"to":true}}}`)},
			`changed the settings: high_risk_agents from [] to ["x"]; two_person_approval from false to true`},
		"settings from before": {ledger.Act{Action: ledger.ActOrganizationUpdate, Detail: []byte(`{"two_person_approval":true}`)}, "changed the settings"},
		"the first policy set": {ledger.Act{Action: ledger.ActPolicyPut, Target: "1-b", Detail: []byte(`{"version":{"from":null,"to":"1-b"}}`)},
			"put the policy set 1-b in force: from none to 1-b"},
		"a key": {ledger.Act{Action: ledger.ActKeyCreate, Detail: []byte(`{"name":"worker","role":"agent"}`)}, "made the API key worker with the role agent"},
		"brackets in a name": {ledger.Act{Action: ledger.ActKeyRevoke, Detail: []byte(`{"name":"[{role}]","role":"agent"}`)},
			"revoked the API key [{role}] with the role agent"},
		"a long reason": {ledger.Act{Action: ledger.ActKillSwitchActivate, Detail: []byte(`{"reason":"` + long + `"}`)},
			"activated the kill switch: " + strings.Repeat("é", 79) + "…"},
		"a rollback": {ledger.Act{Action: ledger.ActRollbackAccept, Detail: []byte(`{"receipts_acknowledged":8,"receipts_stored":5}`)},
			"took the database as it is for the truth: 5 receipts of 8"},
		"a webhook that is gone": {ledger.Act{Action: ledger.ActWebhookDisable, Detail: []byte(`{"url":"https://hook.example/in"}`)},
			"disabled the webhook to https://hook.example/in, whose endpoint is gone"},
	} {
		if said := test.act.Sentence(); said != test.want {
			t.Errorf("%s is said as %q, want %q", name, said, test.want)
		}
	}
}
