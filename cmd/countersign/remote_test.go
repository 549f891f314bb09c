package main

import (
	"net/http"
	"strings"
	"testing"

	"countersign/internal/cli"
	"countersign/internal/cli/policy"
	"countersign/internal/cli/review"
)

// What an admin does over the API can be done at a terminal: find chains and receipts, try
// a policy set on what was recorded, put it in force, stop everything and go on.
//
//countersign:race
func TestAdministrationAtTheTerminal(t *testing.T) {
	onEachEmptyStore(t, func(t *testing.T, s *testStore) {
		server := start(t, s.flags...)
		admin := server.admin(t)
		key := keyFile(t, admin.key)
		at := func(words ...string) []string { return append(words, "--url", server.address, "--key-file", key) }

		succeed(t, at("chains", "list")...)
		if out := succeed(t, at("receipts", "list", "--json")...); strings.TrimSpace(out) != "[]" {
			t.Errorf("no receipts are %q", out)
		}
		receipt := admin.seal(t)
		admin.pay(t, `{"amount_usd":9000}`)
		var chain struct{ ID string }
		admin.call(t, http.MethodPost, "/v1/chains", `{"name":"shell work"}`, &chain)
		admin.call(t, http.MethodPost, "/v1/chains/"+chain.ID+"/events",
			`{"agent_name":"helper","action_type":"tool_call","action_name":"bash","payload":{"command":"ls"}}`, new(any))

		if out := succeed(t, at("chains", "list")...); strings.Count(out, "\n") != 4 || !strings.Contains(out, chain.ID) {
			t.Errorf("the chains are\n%s", out)
		}
		if out := succeed(t, at("chains", "list", "--status", "completed", "--limit", "1")...); strings.Count(out, "\n") != 2 {
			t.Errorf("the completed chains are\n%s", out)
		}
		if out := succeed(t, at("chains", "show", chain.ID)...); !strings.Contains(out, "bash") {
			t.Errorf("the chain is\n%s", out)
		}
		shown := decode[struct{ Events []review.EventEntry }](t, succeed(t, at("chains", "show", chain.ID, "--json")...))
		if len(shown.Events) != 1 || shown.Events[0].Action != "bash" {
			t.Errorf("the events are %+v", shown.Events)
		}
		for _, name := range []string{receipt.ReceiptID, receipt.Receipt.Number, strings.ToLower(receipt.Receipt.Number)} {
			if got := decode[review.ReceiptEntry](t, succeed(t, at("receipts", "show", name)...)); got.ID != receipt.ReceiptID {
				t.Errorf("receipt %s is %+v", name, got)
			}
		}
		if out := succeed(t, at("receipts", "list")...); !strings.Contains(out, receipt.Receipt.Number) {
			t.Errorf("the receipts are\n%s", out)
		}
		if out := succeed(t, at("approvals", "list", "--status", "all")...); !strings.Contains(out, "pay_invoice") {
			t.Errorf("all approvals are\n%s", out)
		}
		for _, search := range []struct{ command, want string }{
			{"chains list --name SHELL --agent helper --action-type tool_call --action bash --since 2020-01-01", "shell work"},
			{"receipts list --since 2020-01-01 --until 9999-01-01 --json", receipt.ReceiptID},
			{"approvals list --action pay_invoice", "pay_invoice"},
			{"chains list --decision deny --metadata customer=4;2 --metadata a=b", ""},
			{"receipts list --agent helper --decision deny", ""},
			{"approvals list --agent nobody", ""},
		} {
			if out := succeed(t, at(strings.Fields(search.command)...)...); !strings.Contains(out, search.want) || search.want == "" && out != "" {
				t.Errorf("%s prints\n%s", search.command, out)
			}
		}
		refuse(t, cli.ExitInconclusive, "since", at("chains", "list", "--since", "yesterday")...)
		refuse(t, cli.ExitInconclusive, "status", at("chains", "list", "--status", "sealed")...)
		succeed(t, at("webhooks", "list")...)
		var hook review.WebhookEntry
		admin.call(t, http.MethodPost, "/v1/webhooks", `{"url":"https://hooks.invalid/"}`, &hook)
		failed := decode[review.DeliveryEntry](t, refuse(t, cli.ExitFailed, "", at("webhooks", "test", hook.ID, "--json")...).out)
		if failed.State != "failed" || failed.Error == nil {
			t.Errorf("the test is %+v", failed)
		}
		if out := refuse(t, cli.ExitFailed, "", at("webhooks", "test", hook.ID)...).out; !strings.HasPrefix(out, "failed in ") {
			t.Errorf("the test says %q", out)
		}
		succeed(t, at("webhooks", "redeliver", hook.ID, failed.ID)...)
		if out := succeed(t, at("webhooks", "deliveries", hook.ID)...); !strings.Contains(out, failed.ID) || !strings.Contains(out, "webhook.test") {
			t.Errorf("the log is\n%s", out)
		}
		refuse(t, cli.ExitInconclusive, "a webhook's id has the form", at("webhooks", "test", "nonsense")...)
		refuse(t, cli.ExitInconclusive, "a delivery's id has the form", at("webhooks", "redeliver", hook.ID, "nonsense")...)

		if out := succeed(t, at("policy", "simulate", "--pack", "starter", "--since", "1h")...); !strings.Contains(out, "require_approval instead of allow_with_flag") || !strings.Contains(out, "shells") {
			t.Errorf("the simulation says\n%s", out)
		}
		if out := succeed(t, at("policy", "put", "--pack", "starter")...); !strings.HasPrefix(out, "v1+") || !strings.HasSuffix(out, " is in force: 5 rules\n") {
			t.Errorf("put says %q", out)
		}
		if put := decode[policy.PutPolicy](t, succeed(t, at("policy", "put", examples+"payments.yaml", "--json")...)); !strings.HasPrefix(put.Version, "v2+") {
			t.Errorf("put says %+v", put)
		}
		refuse(t, cli.ExitInconclusive, "there is no pack", at("policy", "put", "--pack", "none")...)
		refuse(t, cli.ExitInconclusive, "name a file", at("policy", "put")...)
		refuse(t, cli.ExitInconclusive, "name a file", at("policy", "put", "--pack", "starter", examples+"payments.yaml")...)

		if out := succeed(t, at("kill-switch", "on", "a drill")...); !strings.HasPrefix(out, "ON: nothing is allowed (a drill)") {
			t.Errorf("the kill switch is %q", out)
		}
		if now := decode[review.KillSwitch](t, succeed(t, at("kill-switch", "show", "--json")...)); !now.Active {
			t.Errorf("the kill switch is %+v", now)
		}
		if out := succeed(t, at("kill-switch", "off")...); !strings.HasPrefix(out, "off: agents may act") {
			t.Errorf("the kill switch is %q", out)
		}
		if out := succeed(t, append([]string{"reindex"}, s.flags...)...); !strings.Contains(out, ": added 0 missing entries") {
			t.Errorf("reindex says\n%s", out)
		}
		refuse(t, cli.ExitInconclusive, "there is no organization", append([]string{"reindex", "--org", "nobody"}, s.flags...)...)
		refuse(t, cli.ExitInconclusive, "a chain's id has the form", at("chains", "show", "nonsense")...)
		refuse(t, cli.ExitInconclusive, "a receipt's id, or its number", at("receipts", "show", "nonsense")...)
		refuse(t, cli.ExitInconclusive, "no receipt of that id or number", at("receipts", "show", "CSN-1999-00001")...)
		const unknown = "00000000-0000-4000-8000-000000000000"
		for _, words := range [][]string{
			{"chains", "show", unknown}, {"approvals", "deny", unknown, "--yes"}, {"shares", "revoke", unknown},
			{"webhooks", "test", unknown}, {"webhooks", "deliveries", unknown}, {"webhooks", "redeliver", hook.ID, unknown},
		} {
			refuse(t, cli.ExitInconclusive, "check the id", at(words...)...)
		}
		for says, words := range map[string][]string{
			"no such signing key": {"signing-keys", "retract", unknown},
			"there is no finding": {"tampering", "acknowledge", unknown, "--reason", "looked at"},
			"has no key":          {"log", "revoke-key", unknown},
		} {
			refuse(t, cli.ExitInconclusive, says, s.args(words...)...)
		}
		refuse(t, cli.ExitInconclusive, "--limit must be between", at("chains", "list", "--limit", "0")...)
	})
}
