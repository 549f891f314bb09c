package ledger

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"countersign/internal/canon"
	"countersign/internal/classify"
)

// refusal is a request body with the pointers of its faults, in order.
type refusal struct {
	name, body string
	pointers   []string
}

func checkRefusals[T any](t *testing.T, read func(canon.Value) (T, error), cases []refusal) {
	t.Helper()
	for _, c := range cases {
		t.Run("refused: "+c.name, func(t *testing.T) {
			t.Parallel()
			_, err := read(parse(t, c.body))
			var pointers []string
			for _, fault := range faultsOf(t, err) {
				pointer, _, _ := strings.Cut(fault, ": ")
				pointers = append(pointers, pointer)
			}
			if diff := cmp.Diff(c.pointers, pointers); diff != "" {
				t.Errorf("pointers (-want +got):\n%s", diff)
			}
		})
	}
}

func checkAccepted[T any](t *testing.T, read func(canon.Value) (T, error), cases map[string]T) {
	t.Helper()
	for body, want := range cases {
		t.Run(body, func(t *testing.T) {
			t.Parallel()
			got, err := read(parse(t, body))
			if err != nil {
				t.Fatal(faultsOf(t, err))
			}
			if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Chain{}, Action{}), readings); diff != "" {
				t.Errorf("request (-want +got):\n%s", diff)
			}
		})
	}
}

// readings are derived from a request's canonical bytes. Other tests cover them.
var readings = cmp.Options{
	cmpopts.IgnoreFields(Action{}, "payload", "metadata", "Facts"),
	cmpopts.IgnoreFields(Chain{}, "Limits"),
}

// A request to open a chain is read with its defaults, and each bad field is named.
func TestParseChainRequest(t *testing.T) {
	t.Parallel()
	checkAccepted(t, ParseChainRequest, map[string]*Chain{
		`{"name":"refund"}`: {Name: "refund", Environment: "production"},
		`{"external_chain_id":"run 7","organization_id":"any"}`: {Name: "run 7", ExternalID: "run 7", Environment: "production"},
		`{"name":"a","external_chain_id":"b","environment":"staging","metadata":{"z":1,"a":[2]},
		  "fallback_approvers":["a@example.com"],"policy_config":{"chain_timeout_seconds":60,"approval_timeout_hours":1,
		  "financial_approval_threshold_usd":5,"cumulative_financial_threshold_usd":6,"external_domains_allowlist":["example.com"],
		  "high_risk_agents":["x"]}}`: {
			Name: "a", ExternalID: "b", Environment: "staging", Metadata: []byte(`{"a":[2],"z":1}`),
			FallbackApprovers: []string{"a@example.com"},
			PolicyConfig: []byte(`{"approval_timeout_hours":1,"chain_timeout_seconds":60,"cumulative_financial_threshold_usd":6,` +
				`"external_domains_allowlist":["example.com"],"financial_approval_threshold_usd":5,"high_risk_agents":["x"]}`),
		},
		`{"name":"a","metadata":null,"environment":null,"policy_config":null}`: {Name: "a", Environment: "production"},
	})
	checkRefusals(t, ParseChainRequest, []refusal{
		{"no name", `{}`, []string{"/name"}},
		{"empty name", `{"name":""}`, []string{"/name"}},
		{"null name", `{"name":null}`, []string{"/name"}},
		{"a number", `{"name":7}`, []string{"/name"}},
		{"control characters", `{"name":"a\u0007"}`, []string{"/name"}},
		{"an external id that cannot be a name", `{"external_chain_id":"a\nb"}`, []string{"/external_chain_id"}},
		{"too long", `{"name":"` + strings.Repeat("n", 201) + `"}`, []string{"/name"}},
		{"metadata as a list", `{"name":"a","metadata":[]}`, []string{"/metadata"}},
		{"metadata too large", `{"name":"a","metadata":{"a":"` + strings.Repeat("x", maxMetadata) + `"}}`, []string{"/metadata"}},
		{"approver", `{"name":"a","fallback_approvers":["x"]}`, []string{"/fallback_approvers"}},
		{"unknown", `{"name":"a","title":"b"}`, []string{"/title"}},
		{"policy", `{"name":"a","policy_config":{"chain_timeout_seconds":-1,"x":1}}`, []string{"/policy_config/chain_timeout_seconds", "/policy_config/x"}},
		{"policy as a text", `{"name":"a","policy_config":"x"}`, []string{"/policy_config"}},
		{"not an object", `[]`, []string{"", "/name"}},
	})
}

// Two requests for a chain are the same when everything that the client sent is the
// same.
func TestSameRequest(t *testing.T) {
	t.Parallel()
	base := Chain{Name: "a", ExternalID: "b", Environment: "c", Metadata: []byte(`{}`), PolicyConfig: []byte(`{}`), FallbackApprovers: []string{"d"}}
	same := base
	same.ID, same.StartedAt = ChainID{must(ParseID(sampleID))}, 5
	if !base.SameRequest(&same) {
		t.Error("what the service fills in makes another request")
	}
	changes := []func(*Chain){
		func(c *Chain) { c.Name = "x" }, func(c *Chain) { c.ExternalID = "x" }, func(c *Chain) { c.Environment = "x" },
		func(c *Chain) { c.Metadata = nil }, func(c *Chain) { c.PolicyConfig = []byte(`{"x":1}`) }, func(c *Chain) { c.FallbackApprovers = nil },
	}
	for i, change := range changes {
		other := base
		if change(&other); base.SameRequest(&other) {
			t.Errorf("change %d is not seen", i)
		}
	}
}

// An action is read with its payload in canonical form, and each bad or missing
// field is named.
func TestParseAction(t *testing.T) {
	t.Parallel()
	at := Time(1_772_600_767_000)
	checkAccepted(t, ParseAction, map[string]*Action{
		`{"agent_name":"a","action_type":"tool_call","action_name":"c","payload":{"b":1,"a":2}}`: {
			AgentName: "a", ActionType: "tool_call", ActionName: "c", Payload: []byte(`{"a":2,"b":1}`),
		},
		`{"agent_name":"a","action_type":"b","action_name":"c","action_payload":{},"parent_agent_name":"p","metadata":{"model":"m"},
		  "idempotency_key":"k","executed_at":"2026-03-04T05:06:07Z"}`: {
			AgentName: "a", ActionType: "b", ActionName: "c", Payload: []byte(`{}`), ParentAgentName: "p",
			Metadata: []byte(`{"model":"m"}`), IdempotencyKey: "k", ExecutedAt: &at,
		},
	})
	checkRefusals(t, ParseAction, []refusal{
		{"nothing", `{}`, []string{"/agent_name", "/action_type", "/action_name", "/payload"}},
		{"payload null", `{"agent_name":"a","action_type":"b","action_name":"c","payload":null}`, []string{"/payload"}},
		{"payload as a text", `{"agent_name":"a","action_type":"b","action_name":"c","payload":"x"}`, []string{"/payload"}},
		{"both payloads", `{"agent_name":"a","action_type":"b","action_name":"c","payload":{},"action_payload":{}}`, []string{"/action_payload"}},
		{"alias null", `{"agent_name":"a","action_type":"b","action_name":"c","action_payload":null}`, []string{"/action_payload"}},
		{"key too long", `{"agent_name":"a","action_type":"b","action_name":"c","payload":{},"idempotency_key":"` + strings.Repeat("k", 201) + `"}`, []string{"/idempotency_key"}},
		{"time", `{"agent_name":"a","action_type":"b","action_name":"c","payload":{},"executed_at":"today"}`, []string{"/executed_at"}},
		{"unknown", `{"agent_name":"a","action_type":"b","action_name":"c","payload":{},"decision":"allow"}`, []string{"/decision"}},
	})
}

// Token counts in the metadata are numbers of tokens: what would silently count as none is refused.
// In the payload they may be data, and what a client has decided is recorded whatever it says.
func TestParseActionCountsTokens(t *testing.T) {
	t.Parallel()
	action := func(metadata string) string {
		return `{"agent_name":"a","action_type":"llm_call","action_name":"c","payload":{"input_tokens":"7"},"metadata":` + metadata + `}`
	}
	checkRefusals(t, ParseAction, []refusal{
		{"a text", action(`{"input_tokens":"1000"}`), []string{"/metadata/input_tokens"}},
		{"what is left of a text", action(`{"input_tokens":"[REDACTED]"}`), []string{"/metadata/input_tokens"}},
		{"negative", action(`{"output_tokens":-5}`), []string{"/metadata/output_tokens"}},
		{"a fraction", action(`{"input_tokens":1.5,"output_tokens":2}`), []string{"/metadata/input_tokens"}},
		{"a list", action(`{"input_tokens":[1]}`), []string{"/metadata/input_tokens"}},
		{"other names", action(`{"promptTokens":true,"completion_tokens":{}}`), []string{"/metadata/completion_tokens", "/metadata/promptTokens"}},
		{"usage", action(`{"usage":{"prompt_tokens":"5","completion_tokens":-1,"total_tokens":"x"}}`), []string{"/metadata/usage/completion_tokens", "/metadata/usage/prompt_tokens"}},
	})
	for _, metadata := range []string{
		`{"input_tokens":1000,"output_tokens":0}`, `{"input_tokens":null,"usage":null}`, `{"input_tokens":1e+300}`, `{"usage":"much"}`, `{"usage":{"input_tokens":5,"tier":"x"}}`,
		`{"max_tokens":"auto","tokens":-1}`, `null`,
	} {
		if _, err := ParseAction(must(canon.Parse([]byte(action(metadata))))); err != nil {
			t.Errorf("%s: %v", metadata, err)
		}
	}
	report := strings.Replace(action(`{"input_tokens":"1000"}`), `{`, `{"decision_source":"offline_stub","idempotency_key":"k",`, 1)
	if reported, err := ParseReported(must(canon.Parse([]byte(`{"events":[` + report + `]}`)))); err != nil || reported[0].Facts.Tokens() != 0 {
		t.Errorf("a report: %v", err)
	}
}

// A chain is completed unless the request says that it failed, and only a failed one
// may name an error.
func TestParseCompletion(t *testing.T) {
	t.Parallel()
	checkAccepted(t, ParseCompletion, map[string]*Completion{
		`null`:                                 {},
		`{}`:                                   {},
		`{"outcome":null}`:                     {},
		`{"outcome":"completed"}`:              {},
		`{"outcome":"completed","error":null}`: {},
		`{"outcome":"failed"}`:                 {Failed: true},
		`{"outcome":"failed","error":{"type":"ValueError","message":"two\nlines"}}`: {Failed: true, Failure: &Failure{"ValueError", "two\nlines"}},
		`{"outcome":"failed","error":{"type":"ValueError"}}`:                        {Failed: true, Failure: &Failure{Type: "ValueError"}},
	})
	checkRefusals(t, ParseCompletion, []refusal{
		{"other outcome", `{"outcome":"done"}`, []string{"/outcome"}},
		{"empty outcome", `{"outcome":""}`, []string{"/outcome"}},
		{"error of a completed chain", `{"error":{"type":"E"}}`, []string{"/error"}},
		{"error without a type", `{"outcome":"failed","error":{}}`, []string{"/error/type"}},
		{"error with more", `{"outcome":"failed","error":{"type":"E","trace":[]}}`, []string{"/error/trace"}},
		{"error as a text", `{"outcome":"failed","error":"E"}`, []string{"/error", "/error/type"}},
		{"list", `[]`, []string{""}},
	})
}

// An outcome is succeeded, failed or unknown, with an optional detail.
func TestParseOutcome(t *testing.T) {
	t.Parallel()
	checkAccepted(t, ParseOutcome, map[string]*Entry{
		`{"outcome":"succeeded"}`:           {Kind: EntryOutcome, Result: Succeeded},
		`{"outcome":"failed","detail":"x"}`: {Kind: EntryOutcome, Result: Failed, Detail: "x"},
		`{"outcome":"unknown"}`:             {Kind: EntryOutcome, Result: Unknown},
	})
	checkRefusals(t, ParseOutcome, []refusal{
		{"nothing", `{}`, []string{"/outcome"}},
		{"null", `{"outcome":null}`, []string{"/outcome"}},
		{"other", `{"outcome":"ok"}`, []string{"/outcome"}},
		{"detail", `{"outcome":"failed","detail":1}`, []string{"/detail"}},
		{"unknown", `{"outcome":"failed","x":1}`, []string{"/x"}},
	})
}

// The published limits of clients are read as listed.
func TestLimitVectors(t *testing.T) {
	t.Parallel()
	body, err := os.ReadFile("../../testdata/vectors/limits.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors struct {
		Addresses struct{ Accepted, Refused []string }
		Domains   []struct{ Given, Compared string }
	}
	if err := json.Unmarshal(body, &vectors); err != nil {
		t.Fatal(err)
	}
	if len(vectors.Addresses.Accepted) == 0 || len(vectors.Addresses.Refused) == 0 || len(vectors.Domains) == 0 {
		t.Fatal("there are no cases")
	}
	for _, address := range vectors.Addresses.Accepted {
		if !plausibleAddress(address) {
			t.Errorf("%q is refused", address)
		}
	}
	for _, address := range vectors.Addresses.Refused {
		if plausibleAddress(address) {
			t.Errorf("%q is accepted", address)
		}
	}
	for _, domain := range vectors.Domains {
		if compared, ok := classify.ASCIIDomain(domain.Given); !ok || compared != domain.Compared {
			t.Errorf("%q is compared as %q, want %q", domain.Given, compared, domain.Compared)
		}
	}
}
