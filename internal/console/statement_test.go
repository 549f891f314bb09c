package console

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"countersign/internal/canon"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

// asked makes the view of an approval for an action, without a service.
func asked(t *testing.T, agent, action, payload string) *service.ApprovalView {
	t.Helper()
	quote := func(text string) string { return string(canon.AppendString(nil, text)) }
	value, err := canon.Parse(fmt.Appendf(nil, `{"agent_name":%s,"action_type":"tool_call","action_name":%s,"payload":%s}`, quote(agent), quote(action), payload))
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := ledger.ParseAction(value)
	if err != nil {
		t.Fatal(err)
	}
	approval := &ledger.Approval{AgentName: agent, ActionName: action, ActionType: "tool_call", Reserved: ledger.Reservation{Facts: parsed.Facts}}
	if approval.Reserved.Facts.AmountUnusable { // which is not stored
		approval.Reserved.Facts.AmountUnusable = false
		approval.Matched = []ledger.MatchedRule{{Name: ledger.RuleAmountMissing}}
	}
	return &service.ApprovalView{Approval: approval, Status: ledger.ApprovalPending, Payload: parsed.Payload}
}

// The sentence names who wants to do what: the amount and the other side of a payment,
// and of any other action what is known of it. It stays short whatever an agent writes.
func TestStatement(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 500)
	cut := strings.Repeat("x", maxAgentText) + "…"
	for name, c := range map[string]struct{ agent, action, payload, want string }{
		"a payment":             {"clerk", "pay_supplier", `{"amount_usd":18450.75,"supplier":"Northern Machines Ltd"}`, "clerk wants to pay 18,450.75 USD to Northern Machines Ltd"},
		"in camel case":         {"clerk", "sendPayment", `{"amount_usd":9000,"to":"Ann"}`, "clerk wants to pay 9,000.00 USD to Ann"},
		"payee in an object":    {"clerk", "pay", `{"amount_usd":9000,"payee":{"name":"Ann","iban":"X1"}}`, "clerk wants to pay 9,000.00 USD to Ann"},
		"payee further down":    {"clerk", "pay", `{"order":{"amount_usd":9000,"Payee-Name":"Ann"}}`, "clerk wants to pay 9,000.00 USD to Ann"},
		"payee after a list":    {"clerk", "pay", `{"amount_usd":9000,"lines":[` + strings.Repeat(`{"n":1,"text":"x"},`, 2000) + `{}],"payee":"Ann"}`, "clerk wants to pay 9,000.00 USD to Ann"},
		"payee of an older one": {"clerk", "pay", `{"amount_usd":9000,"history":[{"payee":"Bob"}],"payee":"Ann"}`, "clerk wants to pay 9,000.00 USD to Ann"},
		"no payee":              {"clerk", "wire_transfer", `{"amount_usd":9000}`, "clerk wants to transfer 9,000.00 USD"},
		"a purchase":            {"buyer", "buy_equipment", `{"amount_usd":7300,"vendor":"Harbour Tools"}`, "buyer wants to spend 7,300.00 USD at Harbour Tools"},
		"a refund":              {"desk", "issue_refund", `{"amount_usd":7300,"recipient":"C-77"}`, "desk wants to refund 7,300.00 USD to C-77"},
		"another currency":      {"clerk", "pay", `{"amount":9000,"currency":"EUR","payee":"Ann"}`, "clerk wants to pay an amount that is not known in US dollars to Ann"},
		"an amount, no verb":    {"clerk", "close_deal", `{"amount_usd":9000,"vendor":"Ann"}`, "clerk wants to run close_deal for 9,000.00 USD, naming Ann"},
		"a command":             {"ops", "shell", `{"command":"rm -rf /srv/old"}`, "ops wants to run shell: rm -rf /srv/old"},
		"a mail":                {"desk", "send_email", `{"to":["ann@a.example","bob@b.example"]}`, "desk wants to run send_email to ann@a.example"},
		"records":               {"ops", "delete_customers", `{"records_modified":1200}`, "ops wants to run delete_customers, changing 1,200 records"},
		"nothing known":         {"ops", "reboot", `{}`, "ops wants to run reboot"},
		"long texts":            {long[:90], long[:90], `{"to":"` + long + `"}`, cut + " wants to run " + cut + " to " + cut},
		"lines and directions":  {"a b", "pay", `{"amount_usd":9000,"to":"A\u202eB\n  C"}`, `a b wants to pay 9,000.00 USD to A\u202eB C`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			view := asked(t, c.agent, c.action, c.payload)
			if diff := cmp.Diff(c.want, statementOf(view, findRecipients(view.Payload)).String()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// What an agent wrote is told apart from what the service says of it, so that no name
// passes for a sentence of the service's.
func TestStatementMarksWhatTheAgentWrote(t *testing.T) {
	t.Parallel()
	view := asked(t, "clerk wants to pay 1.00 USD to Ann. It", "pay", `{"amount_usd":9000,"payee":"Eve"}`)
	view.Status = ledger.ApprovalDenied
	want := statement{{"clerk wants to pay 1.00 USD to Ann. It", true}, {" wanted to ", false}, {"pay 9,000.00 USD", false}, {" to ", false}, {"Eve", true}}
	if diff := cmp.Diff(want, statementOf(view, findRecipients(view.Payload))); diff != "" {
		t.Error(diff)
	}
}

// A payload that names several recipients is said to: the sentence shows only one.
func TestOtherRecipientsAreCounted(t *testing.T) {
	t.Parallel()
	for payload, want := range map[string]recipients{
		`{"payee":"Ann","to":"Eve","nested":{"beneficiary":"Bob"}}`: {First: "Ann", Others: 2},
		`{"payee":"Ann","to":"Ann"}`:                                {First: "Ann"},
		`{"recipients":["Ann","Bob","Ann","Bob"]}`:                  {First: "Ann", Others: 1, To: true},
		`{"payee":" ","to":7}`:                                      {},
		`[]`:                                                        {},
		`not JSON`:                                                  {},
		`{"payee":"Ann","z":{"z":{"z":{"z":{"z":[[{"payee":"Eve"}]]}}}}}`:                 {First: "Ann", Others: 1},
		`{"a":[` + strings.Repeat(`{"b":1,"c":{"d":[1,2]}},`, 1000) + `1],"payee":"Ann"}`: {First: "Ann"},
		`{"payee":"Ann","z":[` + strings.Repeat(`{"b":1},`, 2000) + `{"payee":"Eve"}]}`:   {First: "Ann", Others: 1},
	} {
		if diff := cmp.Diff(want, findRecipients([]byte(payload))); diff != "" {
			t.Errorf("%.80s: %s", payload, diff)
		}
	}
}

// A payload as fields leaves nothing out. A text or a name that could be taken for something else
// is quoted.
func TestFieldsAreTheWholePayload(t *testing.T) {
	t.Parallel()
	payload := `{"a":"plain","b":"12","c":12,"d":null,"e":"","f":" x","g":{"h":[true,{"i":"deep"}]},"j":[],"k":"\u202e"," a":1,"a ":2,"":3,"l":{"1":{"2":{"3":{"4":{"5":{"6":"deepest"}}}}}}}`
	want := []field{
		{Name: `""`, Text: "3"}, {Name: `" a"`, Text: "1"}, {Name: "a", Text: "plain"}, {Name: `"a "`, Text: "2"}, {Name: "b", Text: `"12"`}, {Name: "c", Text: "12"}, {Name: "d", Text: "null"}, {Name: "e", Text: `""`}, {Name: "f", Text: `" x"`},
		{Name: "g", Within: []field{{Name: "h", Within: []field{{Name: "1", Text: "true"}, {Name: "2", Within: []field{{Name: "i", Text: "deep"}}}}}}},
		{Name: "j", Text: "[]"}, {Name: "k", Text: `\u202e`},
		{Name: "l", Within: []field{{Name: "1", Within: []field{{Name: "2", Within: []field{{Name: "3", Within: []field{{Name: "4", Within: []field{{Name: "5", Text: `{"6":"deepest"}`}}}}}}}}}}},
	}
	if diff := cmp.Diff(want, fieldsOf([]byte(payload), maxPayload)); diff != "" {
		t.Error(diff)
	}
	many := `{"a":[` + strings.TrimSuffix(strings.Repeat("1,", maxFields), ",") + `]}`
	for _, other := range []string{many, `[]`, `"text"`, ``, `{"a":"` + strings.Repeat("x", maxPayload) + `"}`} {
		if got := fieldsOf([]byte(other), maxPayload); got != nil {
			t.Errorf("%.40s is laid out as %d fields", other, len(got))
		}
	}
}
