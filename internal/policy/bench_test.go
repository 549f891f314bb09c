package policy

import (
	"strings"
	"testing"

	"countersign/internal/canon"
)

// realistic is what an organization might write: 20 rules, of which two apply to the payment below.
const realistic = `
fast_path: false
rules:
  - {name: large payment, decision: require_approval, reason: r, when: '"financial" in action.categories && action.amount_usd > 1000'}
  - {name: huge payment, decision: deny, reason: r, when: 'action.has_amount && action.amount_usd >= 50000'}
  - {name: unknown amount, decision: require_approval, reason: r, when: '"financial" in action.categories && !action.has_amount'}
  - {name: foreign vendor, decision: require_approval, reason: r, when: 'has(action.payload.vendor) && has(action.payload.vendor.country) && action.payload.vendor.country != "US"'}
  - {name: wire transfers, decision: require_approval, reason: r, when: 'action.action_name in ["wire_transfer", "swift_payment", "sepa_payment"]'}
  - {name: production only by deployers, decision: deny, reason: r, when: 'chain.environment == "production" && action.action_name.startsWith("deploy") && !action.agent_name.endsWith("-deployer")'}
  - {name: no shell, decision: deny, reason: r, when: 'action.action_type == "tool_call" && action.action_name.matches("^(bash|sh|shell|exec)$")'}
  - {name: mass update, decision: require_approval, reason: r, when: 'action.records_modified > 500'}
  - {name: any deletion, decision: allow_with_flag, reason: r, when: 'action.action_name.startsWith("delete_") || action.action_name.startsWith("drop_")'}
  - {name: personal mail, decision: deny, reason: r, when: 'action.external_domains.exists(d, d in ["gmail.com", "outlook.com", "yahoo.com"])'}
  - {name: competitors, decision: allow_with_flag, reason: r, when: 'action.external_domains.exists(d, d.endsWith(".competitor.example"))'}
  - {name: expensive model, decision: allow_with_flag, reason: r, when: 'action.action_type == "llm_call" && has(action.metadata.model) && action.metadata.model == "large"'}
  - {name: long chains, decision: allow_with_flag, reason: r, when: 'chain.total_actions > 1000 || chain.age_seconds > 3600'}
  - {name: exposure, decision: require_approval, reason: r, when: 'chain.financial_exposure_usd + action.amount_usd > 20000.0'}
  - {name: token budget, decision: deny, reason: r, when: 'chain.tokens > 5000000'}
  - {name: delegated payments, decision: require_approval, reason: r, when: 'action.parent_agent_name != "" && "financial" in action.categories'}
  - {name: refunds by support, decision: allow_with_flag, reason: r, when: 'action.agent_name == "support" && action.action_name == "refund" && action.amount_usd <= 100'}
  - {name: ticket required, decision: deny, reason: r, when: 'chain.environment == "production" && "data_modification" in action.categories && !has(chain.metadata.ticket)'}
  - {name: line items, decision: require_approval, reason: r, when: 'has(action.payload.items) && action.payload.items.exists(i, i.quantity > 100)'}
  - {name: sandbox, decision: deny, reason: r, when: 'org.slug == "sandbox" && "external_communication" in action.categories'}
`

func payment(tb tester) *Input {
	return &Input{
		AgentName: "billing-agent", ActionType: "tool_call", ActionName: "pay_invoice",
		Payload: parseJSON(tb, `{"invoice": "2026-1177", "amount_usd": 1250.5, "currency": "USD",
			"vendor": {"name": "Acme Paper", "country": "DE", "iban": "<IBAN>"},
			"items": [{"sku": "A4-80", "quantity": 40, "price": 4.5}, {"sku": "A3-80", "quantity": 12, "price": 9}],
			"memo": "paper for the office", "due": "2026-12-01"}`),
		Metadata:   parseJSON(tb, `{"trace": "abc", "category": "financial"}`),
		Categories: []string{"financial", "external_communication"}, AmountUSD: 1250.5, HasAmount: true,
		ExternalDomains: []string{"pay.acme.example", "acme.example"},
		ChainName:       "month-end", Environment: "production", ChainMetadata: parseJSON(tb, `{"ticket": "FIN-7"}`),
		TotalActions: 12, FinancialExposureUSD: 3400, Tokens: 81_000, AgeSeconds: 94.2, OrgSlug: "acme",
	}
}

func parseJSON(tb tester, text string) canon.Value {
	tb.Helper()
	v, err := canon.Parse([]byte(text))
	if err != nil {
		tb.Fatal(err)
	}
	return v
}

func BenchmarkMatchTwentyRules(b *testing.B) {
	set, err := Parse([]byte(realistic), YAML)
	if err != nil {
		b.Fatal(err)
	}
	in := payment(b)
	b.ReportAllocs()
	for b.Loop() {
		if hits := matchAll(set, in); len(hits) != 2 {
			b.Fatalf("%d rules apply, want 2", len(hits))
		}
	}
}

// BenchmarkMatchWorstPatterns measures the patterns with the slowest steps on the longest text.
// maxSteps is derived from it.
func BenchmarkMatchWorstPatterns(b *testing.B) {
	set := parse(b, worstPatterns...)
	in := &Input{Payload: parseJSON(b, `{"f": "`+strings.Repeat("a", maxMatched)+`"}`)}
	for b.Loop() {
		if hits := matchAll(set, in); len(hits) != 0 {
			b.Fatalf("%d rules apply, want none", len(hits))
		}
	}
}

func BenchmarkParseTwentyRules(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse([]byte(realistic), YAML); err != nil {
			b.Fatal(err)
		}
	}
}
