package bench

import (
	"context"
	"fmt"
	"strings"

	"countersign/internal/service"
)

const benchRules = 20

// conditions are what companies ask about an action: names, amounts, domains,
// payloads, the chain. None holds for what the bench records, so each is looked at.
var conditions = []string{
	`action.agent_name == "payroll" && action.action_name == "wire_transfer"`,
	`action.has_amount && action.amount_usd > 250.0 * %d.0`,
	`"financial" in action.categories && chain.financial_exposure_usd > 1000.0`,
	`action.external_domains.exists(d, d.endsWith(".example-%d.org"))`,
	`has(action.payload.customer) && action.payload.customer.country == "X%d"`,
	`action.records_modified > 100 || chain.total_actions > 100000 + %d`,
	`chain.environment == "staging" && action.action_type == "llm_call"`,
	`has(action.payload.lines) && action.payload.lines.exists(l, l.quantity > 1000 + %d)`,
	`has(action.metadata.region) && action.metadata.region != "eu-%d"`,
	`org.slug == "nobody-%d" && chain.age_seconds > 60.0`,
}

// policyDocument is a set of so many rules.
func policyDocument(rules int) *service.PolicyDocument {
	var text strings.Builder
	text.WriteString("rules:\n")
	for i := range rules {
		condition := conditions[i%len(conditions)]
		if strings.Contains(condition, "%d") {
			condition = fmt.Sprintf(condition, i+1)
		}
		fmt.Fprintf(&text, "  - name: rule-%d\n    when: '%s'\n    decision: deny\n    reason: not in the bench\n", i+1, condition)
	}
	return &service.PolicyDocument{Text: []byte(text.String()), YAML: true}
}

// withRules is a store whose organization has put a policy set.
func withRules(ctx context.Context, r *records) (*filled, error) {
	admin, err := r.service.Authenticate(ctx, r.admin.Text.Reveal())
	if err != nil {
		return nil, err
	}
	_, err = r.service.PutPolicy(ctx, admin, policyDocument(benchRules))
	return &filled{}, err
}

// measureRules compares the rate of events under a policy set with that under the
// built-in rules alone.
func measureRules(ctx context.Context, b *bench) (*Scenario, error) {
	s := &Scenario{
		Title: fmt.Sprintf("durable events under %d rules, %d connections", benchRules, manyConnections),
		Notes: []string{"in turns with a server whose organization has put none; classification and the built-in rules are in both"},
	}
	err := b.onEachService(ctx, nothing, func(plain *target) error {
		return b.onService(ctx, plain.name, withRules, func(ruled *target) error {
			ruled.name = fmt.Sprintf("%s, %d rules", plain.name, benchRules)
			err := b.rounds(ctx, []*target{plain, ruled}, s, func(ctx context.Context, t *target) (*Measurement, error) {
				return b.eventLoad(t, manyConnections).drive(ctx)
			})
			if err != nil {
				return err
			}
			ratio := against(s.row(ruled.name).Rounds, s.row(plain.name).Rounds, (*Measurement).rate)
			s.Bars = append(s.Bars, atLeast(fmt.Sprintf("events on %s under %d rules, of those under none", plain.name, benchRules), 0.85, ratio, ""))
			return nil
		})
	})
	return s, err
}
