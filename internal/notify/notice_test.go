package notify

import (
	"bytes"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"countersign/internal/canon"
	"countersign/internal/ledger"
)

var noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

// sameMoney compares amounts by value.
var sameMoney = cmp.Comparer(func(a, b ledger.Money) bool { return a.Cmp(b) == 0 })

func fullNotice() Notice {
	amount := ledger.MoneyOf(18450.75)
	return Notice{
		Kind:         ApprovalRequested,
		At:           ledger.TimeOf(noon),
		Organization: "acme",
		Chain:        "refund-flow",
		Environment:  "production",
		Agent:        "billing",
		Action:       "issue_refund",
		Amount:       &amount,
		Policy:       "large-refunds",
		Reason:       "refunds above 500 USD",
		Rules: []ledger.MatchedRule{
			{Name: "large-refunds", Outcome: ledger.RequireApproval, Reason: "refunds above 500 USD"},
			{Name: "night-shift", Outcome: ledger.Deny, Reason: "nobody is there", Shadow: true},
		},
		Status:     "pending",
		Reviewer:   "Ada",
		Source:     ledger.SourceHuman,
		ExpiresAt:  ledger.TimeOf(noon.Add(24 * time.Hour)),
		Link:       "https://countersign.example.com/console/approvals",
		ChainID:    "chain-1",
		ApprovalID: "approval-1",
		ReceiptID:  "receipt-1",
	}
}

// A notice is encoded as the documented webhook body.
func TestEncodeWritesTheWebhookBody(t *testing.T) {
	t.Parallel()
	got, err := fullNotice().Encode()
	if err != nil {
		t.Fatal(err)
	}
	want := `{"data":{"action_name":"issue_refund","agent_name":"billing","amount":18450.75,"approval_id":"approval-1",` +
		`"chain_id":"chain-1","chain_name":"refund-flow","currency":"USD","decision_source":"human_approval","environment":"production",` +
		`"expires_at":"2026-03-05T12:00:00.000Z","link":"https://countersign.example.com/console/approvals","matched_rules":[` +
		`{"decision":"require_approval","name":"large-refunds","reason":"refunds above 500 USD","shadow":false},` +
		`{"decision":"deny","name":"night-shift","reason":"nobody is there","shadow":true}],` +
		`"organization":"acme","policy_name":"large-refunds","reason":"refunds above 500 USD",` +
		`"receipt_id":"receipt-1","reviewer":"Ada","status":"pending"},` +
		`"timestamp":"2026-03-04T12:00:00.000Z","type":"approval.requested"}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
}

// A notice of any kind is decoded unchanged.
func TestDecodeReadsWhatEncodeWrote(t *testing.T) {
	t.Parallel()
	for _, kind := range Kinds() {
		want := fullNotice()
		want.Kind = kind
		body, err := want.Encode()
		if err != nil {
			t.Fatal(kind, err)
		}
		got, err := Decode(body)
		if err != nil {
			t.Fatal(kind, err)
		}
		if diff := cmp.Diff(want, got, sameMoney); diff != "" {
			t.Error(kind, diff)
		}
	}
}

// A notice without a link says why there is none.
func TestMissingLinkIsExplained(t *testing.T) {
	t.Parallel()
	n := fullNotice()
	n.Link = ""
	body, err := n.Encode()
	if err != nil || !strings.Contains(string(body), `"link":null,"link_missing":"the server was not given its public address: start it with --public-url"`) {
		t.Errorf("encoded as %s, %v", body, err)
	}
	if decoded, err := Decode(body); err != nil || decoded.Link != "" {
		t.Errorf("decoded with the link %q, %v", decoded.Link, err)
	}
	letter := compose(n)
	if text := letter.text(); !strings.Contains(text, "There is no link, because the server was not given its public address") {
		t.Errorf("the letter is %s", text)
	}
}

// Whatever the names contain, the encoded notice is canonical, bounded and one line, and is decoded
// unchanged.
func TestAnyNamesSurviveTheQueue(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := Notice{Kind: rapid.SampledFrom(Kinds()).Draw(t, "kind"), At: ledger.TimeOf(noon), Organization: "acme"}
		for _, m := range n.members() {
			if m.name != "organization" && m.name != "link" {
				*m.value = string(rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, m.name))
			}
		}
		for range rapid.IntRange(0, 3).Draw(t, "rules") {
			text := string(rapid.SliceOfN(rapid.Byte(), 0, 400).Draw(t, "rule"))
			n.Rules = append(n.Rules, ledger.MatchedRule{Name: text, Outcome: ledger.Deny, Reason: text})
		}
		body, err := n.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if canonical, err := canon.Canonicalize(body); err != nil || !bytes.Equal(canonical, body) {
			t.Fatalf("not canonical: %q, %v", body, err)
		}
		decoded, err := Decode(body)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range decoded.members() {
			if strings.ContainsFunc(*m.value, unicode.IsControl) {
				t.Fatalf("%s holds a control character: %q", m.name, *m.value)
			}
		}
		again, err := decoded.Encode()
		if err != nil || !bytes.Equal(again, body) {
			t.Fatalf("encoded twice: %q, then %q, %v", body, again, err)
		}
	})
}

// The longest possible notice fits the limit for deliveries.
func TestTheLongestNoticeFits(t *testing.T) {
	t.Parallel()
	n := Notice{Kind: KillSwitchDeactivated, At: ledger.TimeOf(noon), ExpiresAt: ledger.TimeOf(noon)}
	for _, m := range n.members() {
		*m.value = strings.Repeat("𝔘", 1000)
	}
	n.Link = "https://example.com/" + strings.Repeat("x", maxLink-len("https://example.com/"))
	amount := ledger.MoneyOf(-1.2345678901234567e-300)
	n.Amount = &amount
	for range maxRules + 1 {
		n.Rules = append(n.Rules, ledger.MatchedRule{Name: n.Chain, Outcome: ledger.RequireApproval, Reason: n.Chain, Shadow: true})
	}
	body, err := n.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if len(body) > maxBody {
		t.Errorf("%d bytes, more than the %d that are delivered", len(body), maxBody)
	}
	if decoded, err := Decode(body); err != nil || len(decoded.Rules) != maxRules || decoded.Rules[0].Name == "" || decoded.Rules[0].Reason != "" {
		t.Errorf("%d rules, %v", len(decoded.Rules), err)
	}
}

// A notice without a kind, an organization or a safe link is not encoded.
func TestEncodeRefuses(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*Notice){
		"an unknown kind":       func(n *Notice) { n.Kind = "chain.exploded" },
		"no kind":               func(n *Notice) { n.Kind = "" },
		"no organization":       func(n *Notice) { n.Organization = "" },
		"a script for a link":   func(n *Notice) { n.Link = "javascript:alert(1)" },
		"a link without a host": func(n *Notice) { n.Link = "https:///console" },
		"a link of two lines":   func(n *Notice) { n.Link = "https://example.com/\r\nBcc: x" },
		"an endless link":       func(n *Notice) { n.Link = "https://example.com/" + strings.Repeat("x", maxLink) },
	} {
		n := fullNotice()
		spoil(&n)
		if _, err := n.Encode(); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

// A body that is not a complete notice is refused.
func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"no JSON":         `chain`,
		"an array":        `[]`,
		"an unknown kind": `{"data":{"organization":"acme"},"timestamp":"2026-03-04T12:00:00.000Z","type":"x"}`,
		"no time":         `{"data":{"organization":"acme"},"type":"webhook.test"}`,
		"a bad expiry":    `{"data":{"expires_at":"soon","organization":"acme"},"timestamp":"2026-03-04T12:00:00.000Z","type":"webhook.test"}`,
		"no data":         `{"timestamp":"2026-03-04T12:00:00.000Z","type":"webhook.test"}`,
		"too much":        strings.Repeat(" ", maxBody) + `{}`,
	} {
		if _, err := Decode([]byte(body)); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

// Members that a newer version added to a notice are ignored.
func TestDecodeLeavesOutWhatIsNewer(t *testing.T) {
	t.Parallel()
	n, err := Decode([]byte(
		`{"data":{"mood":1,"organization":"acme"},"timestamp":"2026-03-04T12:00:00.000Z","type":"webhook.test","v":2}`))
	want := Notice{Kind: WebhookTest, At: ledger.TimeOf(noon), Organization: "acme"}
	if diff := cmp.Diff(want, n, sameMoney); err != nil || diff != "" {
		t.Error(err, diff)
	}
}
