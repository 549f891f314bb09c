package service_test

import (
	"testing"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

// Settings that were edited in the database decide nothing, and no act adopts them.
func TestEditedSettingsAreNotActedOn(t *testing.T) {
	t.Parallel()
	replica, scene, who, chain := openScene(t, "one")
	if err := scene.exec(`UPDATE organizations SET settings = CAST(replace(CAST(settings AS TEXT), '5000', '5000000') AS BLOB)`); err != nil {
		t.Fatal(err)
	}
	s := replica()
	_, err := s.RecordEvent(t.Context(), who.agent, chain, step(t, "two", ""))
	checkCode(t, "recording", err, fault.CodeEvidenceTampered)
	_, err = s.CreateAPIKey(t.Context(), who.admin, &service.KeyRequest{Role: ledger.RoleAgent})
	checkCode(t, "an act", err, fault.CodeEvidenceTampered)
}

// An action that a client decided itself does not answer a request for a decision, and an absurd
// amount waits for an approval instead of breaking the server.
func TestHostileActions(t *testing.T) {
	t.Parallel()
	_, scene, who, chain := openScene(t, "one")
	s := scene.service
	body := `"agent_name":"a","action_type":"tool_call","action_name":"pay","payload":{"amount_usd":900000},"idempotency_key":"k"`
	reported := request(t, ledger.ParseReported, `{"events":[{`+body+`,"decision_source":"local_fast_path"}]}`)
	must[*service.Report](t)(s.ReportEvents(t.Context(), who.agent, chain, reported))
	_, err := s.RecordEvent(t.Context(), who.agent, chain, request(t, ledger.ParseAction, `{`+body+`}`))
	checkCode(t, "the reported action asked about", err, fault.CodeIdempotencyConflict)

	huge := request(t, ledger.ParseAction,
		`{"agent_name":"a","action_type":"tool_call","action_name":"pay","payload":{"payments":[{"amount":1.7e308},{"amount":1.7e308}]}}`)
	recorded := must[*service.Recorded](t)(s.RecordEvent(t.Context(), who.agent, chain, huge))
	if recorded.Event.Decision.Outcome != ledger.RequireApproval {
		t.Errorf("a payment beyond all reason is decided %s", recorded.Event.Decision.Outcome)
	}
	must[*service.Completed](t)(s.CompleteChain(t.Context(), who.agent, chain, &ledger.Completion{}))
}

// An endpoint that cannot be read does not keep others from being notified that a receipt was
// changed.
func TestUnreadableEndpointHidesNoTampering(t *testing.T) {
	t.Parallel()
	_, scene, who, chain := openScene(t, "one")
	s := scene.service
	must[*service.Completed](t)(s.CompleteChain(t.Context(), who.agent, chain, &ledger.Completion{}))
	receipt := must[*ledger.StoredReceipt](t)(s.ReceiptOfChain(t.Context(), who.agent, chain))
	_, _, err := s.CreateWebhook(t.Context(), who.admin, &service.WebhookRequest{URL: "https://hooks.example.com/"})
	if err != nil {
		t.Fatal(err)
	}
	for _, statement := range []string{
		`UPDATE webhooks SET events = x'00'`,
		`UPDATE receipts SET body = CAST(replace(CAST(body AS TEXT), 'tool_call', 'tool_cull') AS BLOB)`,
	} {
		if err := scene.exec(statement); err != nil {
			t.Fatal(err)
		}
	}
	found := must[*ledger.Verification](t)(s.VerifyReceipt(t.Context(), who.member, receipt.ID))
	if overall, _ := found.Conclude(); overall != ledger.VerdictFailed {
		t.Errorf("a changed receipt is %s", overall)
	}
}
