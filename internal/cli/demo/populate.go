package demo

import (
	"context"
	"fmt"
	"net/http"
)

// demoStep is an action and its expected decision.
type demoStep struct {
	kind, name, decision string
	payload              map[string]any
}

// demoChains are the chains of a company with a few agents.
var demoChains = []struct {
	name     string
	metadata map[string]any
	steps    []demoStep
	complete bool
}{
	{"support-inbox", map[string]any{"ticket": "T-2081"}, []demoStep{
		{"tool_call", "get_ticket", "allow", map[string]any{"ticket": "T-2081"}},
		{"tool_call", "search_orders", "allow", map[string]any{"customer": "C-77"}},
		{"tool_call", "issue_refund", "allow", map[string]any{"order": "O-4410", "amount_usd": 129.90}},
		{"tool_call", "send_email", "allow_with_flag", map[string]any{"to": "customer@shop.example", "subject": "Your refund"}},
	}, true},
	{"catalogue-update", map[string]any{"release": "2026-11"}, []demoStep{
		{"tool_call", "list_products", "allow", map[string]any{"category": "lamps"}},
		{"tool_call", "update_prices", "allow", map[string]any{"records": 42}},
	}, true},
	{"supplier-payments", map[string]any{"run": "2026-W46"}, []demoStep{
		{"tool_call", "look_up_invoices", "allow", map[string]any{"week": 46}},
		{"tool_call", "pay_supplier", "require_approval", map[string]any{"supplier": "Northern Machines Ltd", "invoice": "INV-8812", "amount_usd": 18450.75}},
	}, false},
	{"equipment-order", map[string]any{"request": "R-31"}, []demoStep{
		{"tool_call", "compare_offers", "allow", map[string]any{"offers": 3}},
		{"tool_call", "buy_equipment", "require_approval", map[string]any{"vendor": "Harbour Tools", "items": 12, "amount_usd": 7300.00}},
	}, false},
}

// populate records data that makes the console interesting: sealed chains, and two payments that
// wait for approval.
func (d *demo) populate(ctx context.Context) error {
	d.begin("More agents go to work")
	for i := range demoChains {
		c := &demoChains[i]
		var chain struct {
			ID string `json:"id"`
		}
		if err := d.agent.Call(ctx, http.MethodPost, "/v1/chains", map[string]any{"name": c.name, "environment": "demo", "metadata": c.metadata}, &chain); err != nil {
			return err
		}
		d.chain = chain.ID
		for _, step := range c.steps {
			decided, err := d.record(ctx, step.kind, step.name, step.payload, nil)
			if err != nil {
				return err
			}
			if err := expect(decided.Decision == step.decision, "%s to be decided %s, but it is %s", step.name, step.decision, decided.Decision); err != nil {
				return err
			}
		}
		if c.complete {
			if err := d.agent.Call(ctx, http.MethodPost, "/v1/chains/"+chain.ID+"/complete", nil, new(any)); err != nil {
				return err
			}
		}
	}
	d.show(cyan, "•", "%d more chains; two payments wait for you", len(demoChains))
	return nil
}

// waitForEnd prints the console's URL and serves until the program is interrupted.
func (d *demo) waitForEnd() error {
	fmt.Fprintf(d.out, "\n%s\n\n  %s\n\n", d.paint(bold, "The console. This link signs you in, once, as an admin:"), d.signIn)
	d.tell("Ctrl-C ends it and deletes the store.")
	select {
	case <-d.process.Ctx.Done():
		return nil
	case err := <-d.ended:
		d.ended <- err
		return err
	}
}
