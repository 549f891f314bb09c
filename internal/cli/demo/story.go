package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"countersign/internal/cli"
	"countersign/internal/cli/review"
	"countersign/internal/ledger"
)

const (
	smallPayment = 480.0
	largePayment = 9200.0

	demoPolicy = `{"rules":[{"name":"records-stay","when":"action.action_name == 'delete_customer_records'","decision":"deny",` +
		`"reason":"customer records are kept for ten years","remediation":"ask the records office"}]}`
)

// rules sets the scene: keys for an agent and a reviewer, and a rule.
func (d *demo) rules(ctx context.Context) error {
	fmt.Fprintf(d.out, "%s\n", d.paint(bold, "Countersign, from nothing to a verified receipt"))
	d.tell("A server is running at %s. Its store is deleted at the end.", d.address())
	d.begin("The rules")
	var err error
	if d.agent, err = d.key(ctx, "clerk", ledger.RoleAgent); err != nil {
		return err
	}
	if d.reviewer, err = d.key(ctx, "you", ledger.RoleMember); err != nil {
		return err
	}
	var set struct {
		Version string `json:"version"`
	}
	if err := d.admin.Call(ctx, http.MethodPut, "/v1/policies", json.RawMessage(demoPolicy), &set); err != nil {
		return err
	}
	d.show(cyan, "•", "built in: a payment above $5,000 waits for a person")
	d.show(cyan, "•", "added as policy %s: nobody deletes customer records", set.Version)
	return nil
}

func (d *demo) key(ctx context.Context, name string, role ledger.Role) (*cli.Client, error) {
	var made struct {
		Key string `json:"key"`
	}
	if err := d.admin.Call(ctx, http.MethodPost, "/v1/api-keys", map[string]string{"name": name, "role": string(role)}, &made); err != nil {
		return nil, err
	}
	return d.client(ledger.NewSecret(made.Key)), nil
}

// verdict is a decision in the API's form.
type verdict struct {
	Decision   string   `json:"policy_decision"`
	Reason     string   `json:"decision_reason"`
	Policy     *string  `json:"policy_name"`
	ApprovalID *string  `json:"approval_id"`
	Cost       *float64 `json:"estimated_cost_usd"`
}

// record tells the server what the agent is about to do.
func (d *demo) record(ctx context.Context, kind, name string, payload, metadata map[string]any) (verdict, error) {
	action := map[string]any{"agent_name": "clerk", "action_type": kind, "action_name": name, "payload": payload}
	if metadata != nil {
		action["metadata"] = metadata
	}
	var decided verdict
	err := d.agent.Call(ctx, http.MethodPost, "/v1/chains/"+url.PathEscape(d.chain)+"/events", action, &decided)
	return decided, err
}

// work records the actions that are allowed.
func (d *demo) work(ctx context.Context) error {
	d.begin("An agent goes to work")
	var chain struct {
		ID string `json:"id"`
	}
	if err := d.agent.Call(ctx, http.MethodPost, "/v1/chains", map[string]any{"name": "month-end-payments", "environment": "demo"}, &chain); err != nil {
		return err
	}
	d.chain = chain.ID
	d.tell("The agent \"clerk\" opens the chain month-end-payments and asks before each step.")
	for _, step := range []struct {
		kind, name        string
		payload, metadata map[string]any
	}{
		{"tool_call", "look_up_invoices", map[string]any{"month": "2026-10"}, nil},
		{"llm_call", "plan_the_month", map[string]any{"suppliers": 14}, map[string]any{"model": "gpt-5-mini", "input_tokens": 5200, "output_tokens": 900}},
		{"tool_call", "pay_supplier", map[string]any{"supplier": "Paper & Co", "amount_usd": smallPayment}, nil},
	} {
		decided, err := d.record(ctx, step.kind, step.name, step.payload, step.metadata)
		if err != nil {
			return err
		}
		if err := expect(decided.Decision == "allow", "%s to be allowed, but it is %s", step.name, decided.Decision); err != nil {
			return err
		}
		d.show(green, "✓", "%-24s %s%s", step.name, d.paint(green, decided.Decision), detail(step.payload, decided))
	}
	d.exposure = smallPayment
	return nil
}

// detail returns the amount or cost of an action.
func detail(payload map[string]any, decided verdict) string {
	if amount, ok := payload["amount_usd"].(float64); ok {
		return "   " + cli.Dollars(amount)
	}
	if decided.Cost != nil {
		return "   the call costs " + cli.Dollars(*decided.Cost)
	}
	return ""
}

// ask records the action that needs an approval.
func (d *demo) ask(ctx context.Context) error {
	d.begin("One step needs you")
	d.payment, d.forged = largePayment, 1200
	asked, err := d.record(ctx, "tool_call", "pay_supplier", map[string]any{"supplier": "Northern Machines", "amount_usd": d.payment, "invoice": "2026-1187"}, nil)
	if err != nil {
		return err
	}
	if err := expect(asked.Decision == "require_approval" && asked.ApprovalID != nil, "the large payment to wait for a person, but it is %s", asked.Decision); err != nil {
		return err
	}
	d.approval = *asked.ApprovalID
	d.show(yellow, "?", "%-24s %s   %s", "pay_supplier", d.paint(yellow, asked.Decision), cli.Dollars(d.payment))
	released := make(chan agentWait, 1)
	go func() { released <- d.wait(ctx) }()
	status, err := d.decide(ctx)
	if err != nil {
		return err
	}
	waited := <-released
	if waited.err != nil {
		return waited.err
	}
	if err := expect(waited.status == status, "the agent to get %s, but it got %s", status, waited.status); err != nil {
		return err
	}
	if !d.approved {
		d.show(red, "✗", "You said no. The waiting agent learns it immediately and does not pay.")
		return nil
	}
	d.exposure += d.payment
	d.show(green, "✓", "You approved it. The waiting agent learns it immediately and pays.")
	return nil
}

type agentWait struct {
	status string
	err    error
}

// wait is the agent waiting for its approval, for as long as a person takes.
func (d *demo) wait(ctx context.Context) agentWait {
	for {
		var seen review.Approval
		err := d.agent.Call(ctx, http.MethodGet, "/v1/approvals/"+d.approval+"?wait=20", nil, &seen)
		if err != nil || !seen.Open() {
			return agentWait{seen.Status, err}
		}
	}
}

// decide shows the approval to the person and sends their decision.
func (d *demo) decide(ctx context.Context) (status string, err error) {
	waiting, err := review.FindApproval(ctx, d.reviewer, d.approval)
	if err != nil {
		return "", err
	}
	hash, err := review.PayloadHash(waiting)
	if err != nil {
		return "", err
	}
	if err := review.LookUpChains(ctx, d.reviewer, make(map[string]*review.ChainLine), waiting); err != nil {
		return "", err
	}
	var shown bytes.Buffer
	if err := review.ShowApproval(&shown, waiting, hash); err != nil {
		return "", err
	}
	d.quote(shown.String())
	question := "   " + d.paint(bold, "Approve this?")
	if d.approved, err = d.answer(ctx, question); err != nil {
		return "", err
	}
	verb, want := "deny", "denied"
	if d.approved {
		verb, want = "approve", "approved"
	}
	decided, err := review.SendDecision(ctx, d.reviewer, waiting, verb, "", hash)
	if err != nil {
		return "", err
	}
	return decided.Status, expect(decided.Status == want, "the approval to be %s, but it is %s", want, decided.Status)
}

// answer reads the person's answer. Interrupting the demo also ends it.
func (d *demo) answer(ctx context.Context, question string) (approve bool, err error) {
	if d.yes {
		fmt.Fprintf(d.out, "%s yes (--yes)\n", question)
		return true, nil
	}
	answered := make(chan bool, 1)
	go func() { answered <- cli.Ask(d.process.In, d.out, question) }()
	select {
	case approve = <-answered:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if !cli.IsTerminal(d.process.In) {
		fmt.Fprintln(d.out) // ends the unfinished line
	}
	return approve, err
}

// forbid records the action that a rule denies.
func (d *demo) forbid(ctx context.Context) error {
	d.begin("One step is forbidden")
	decided, err := d.record(ctx, "tool_call", "delete_customer_records", map[string]any{"older_than": "2020-01-01"}, nil)
	if err != nil {
		return err
	}
	if err := expect(decided.Decision == "deny" && decided.Policy != nil, "the deletion to be denied, but it is %s", decided.Decision); err != nil {
		return err
	}
	d.show(red, "✗", "%-24s %s   %s: %s", "delete_customer_records", d.paint(red, decided.Decision), *decided.Policy, strings.TrimSpace(decided.Reason))
	return nil
}
