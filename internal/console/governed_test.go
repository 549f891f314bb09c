package console_test

import (
	"fmt"
	"net/url"
	"testing"

	"countersign/internal/canon"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

// key makes another key of an organization.
func (w *world) key(t *testing.T, of *tenant, name string, role ledger.Role) *service.NewKey {
	t.Helper()
	key, err := w.service.Operator().CreateKey(t.Context(), of.slug, &service.KeyRequest{Name: name, Role: role})
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// callerOf is who acts through the API with a tenant's key of a role.
func (w *world) callerOf(t *testing.T, of *tenant, role ledger.Role) *service.Caller {
	t.Helper()
	caller, err := w.service.Authenticate(t.Context(), of.keys[role].Text.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	return caller
}

// payment is an action that a person must decide.
const payment = `{"agent_name":"treasurer","action_type":"tool_call","action_name":"send_payment","payload":{"amount_usd":7500,"to":"ACME Ltd"}}`

// harmless is an action that no built-in rule stops.
const harmless = `{"agent_name":"reader","action_type":"tool_call","action_name":"look_up","payload":{"page":1}}`

// waits records an action that a person must decide, in a chain of its own.
func (w *world) waits(t *testing.T, of *tenant, body string) *service.ApprovalView {
	t.Helper()
	return w.view(t, of, w.record(t, of, w.open(t, of, "pay-the-bills"), body).Approval)
}

func (w *world) view(t *testing.T, of *tenant, id ledger.ApprovalID) *service.ApprovalView {
	t.Helper()
	view, err := w.service.Approval(t.Context(), w.callerOf(t, of, ledger.RoleAdmin), id, 0)
	if err != nil {
		t.Fatal(err)
	}
	return view
}

func (w *world) settings(t *testing.T, of *tenant, members string) {
	t.Helper()
	request, err := canon.Parse([]byte(members))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.service.UpdateOrganization(t.Context(), w.callerOf(t, of, ledger.RoleAdmin), request); err != nil {
		t.Fatal(err)
	}
}

func (w *world) stop(t *testing.T, of *tenant, reason string) {
	t.Helper()
	if _, err := w.service.ActivateKillSwitch(t.Context(), w.callerOf(t, of, ledger.RoleAdmin), reason); err != nil {
		t.Fatal(err)
	}
}

// govern puts a rule in force that asks about every action, and lets only some
// decide.
func (w *world) govern(t *testing.T, of *tenant, approvers string) {
	t.Helper()
	text := fmt.Sprintf(`{"rules":[{"name":"ask-first","when":"true","decision":"require_approval","reason":"everything is asked about","approvers":%s}]}`, approvers)
	if _, err := w.service.PutPolicy(t.Context(), w.callerOf(t, of, ledger.RoleAdmin), &service.PolicyDocument{Text: []byte(text)}); err != nil {
		t.Fatal(err)
	}
}

func page(id ledger.ApprovalID) string { return "/approvals/" + id.String() }

func decision(view *service.ApprovalView, comment string) url.Values {
	return url.Values{"payload_sha256": {view.PayloadSHA256}, "comment": {comment}}
}
