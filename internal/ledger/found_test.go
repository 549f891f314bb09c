package ledger

import (
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"countersign/internal/canon"
	"countersign/internal/classify"
	"countersign/internal/fault"
)

// What a client says it found adds to what the service finds, and never removes anything.
func TestFoundOnlyAdds(t *testing.T) {
	t.Parallel()
	amount := func(usd float64) *Money { m := MoneyOf(usd); return &m }
	for name, test := range map[string]struct {
		payload, found string
		want           Facts
	}{
		"nothing found": {
			`{"amount_usd":10}`, `null`,
			Facts{Categories: []string{"financial"}, Amount: amount(10)},
		},
		"behind a redaction": {
			`{"tokens_purchase":"[REDACTED]"}`, `{"categories":["financial"],"amount_usd":9000}`,
			Facts{Categories: []string{"financial"}, Amount: amount(9000)},
		},
		"a smaller amount": {
			`{"amount_usd":9000}`, `{"categories":[],"amount_usd":1}`,
			Facts{Categories: []string{"financial"}, Amount: amount(9000)},
		},
		"an amount that the client could not compare": {
			`{"amount_usd":5,"token_price":"[REDACTED]"}`, `{"categories":["financial"]}`,
			Facts{Categories: []string{"financial"}, AmountUnusable: true},
		},
		"an amount in another currency": {
			`{"amount":5,"currency":"EUR"}`, `{"categories":["financial"],"amount_usd":5}`,
			Facts{Categories: []string{"financial"}, AmountUnusable: true},
		},
		"a domain behind a cut": {
			`{"text":"a cut text"}`, `{"categories":["external_communication"],"external_domains":["evil.example"],"records_modified":3}`,
			Facts{Categories: []string{"data_modification", "external_communication"}, ExternalDomains: []string{"evil.example"}, RecordsModified: 3},
		},
		"an amount without its category": {
			`{"tokens_purchase":"[REDACTED]"}`, `{"amount_usd":9000}`,
			Facts{Categories: []string{"financial"}, Amount: amount(9000)},
		},
		"a domain without its category": {
			`{"text":"a cut text"}`, `{"external_domains":["evil.example"]}`,
			Facts{Categories: []string{"external_communication"}, ExternalDomains: []string{"evil.example"}},
		},
		"records without their category": {
			`{"text":"a cut text"}`, `{"records_modified":3}`,
			Facts{Categories: []string{"data_modification"}, RecordsModified: 3},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			action, err := parseAction(`{"agent_name":"a","action_type":"tool_call","action_name":"step","payload":` + test.payload + `,"found":` + test.found + `}`)
			if err != nil {
				t.Fatal(err)
			}
			same := func(a, b Money) bool { return a.Cmp(b) == 0 }
			empty := func(a, b []string) bool { return strings.Join(a, "\n") == strings.Join(b, "\n") }
			if diff := cmp.Diff(test.want, action.Facts, cmp.Comparer(same), cmp.Comparer(empty)); diff != "" {
				t.Errorf("facts (-want +got):\n%s", diff)
			}
		})
	}
}

func parseAction(body string) (*Action, error) {
	v, err := canon.Parse([]byte(body))
	if err != nil {
		return nil, err
	}
	return ParseAction(v)
}

// What a client found must be well-formed, and the error names a member that is not.
func TestFoundIsBounded(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ found, says string }{
		"a text":               {`"financial"`, "/found"},
		"an unknown member":    {`{"amount":1}`, "/found/amount"},
		"a strange category":   {`{"categories":["Financial!"]}`, "/found/categories"},
		"a negative amount":    {`{"amount_usd":-1}`, "/found/amount_usd"},
		"an amount in words":   {`{"amount_usd":"much"}`, "/found/amount_usd"},
		"a domain with a path": {`{"external_domains":["evil.example/x"]}`, "/found/external_domains"},
		"half a record":        {`{"records_modified":0.5}`, "/found/records_modified"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := parseAction(`{"agent_name":"a","action_type":"tool_call","action_name":"step","payload":{},"found":` + test.found + `}`)
			if refused := refusedFields(err); !strings.Contains(refused, test.says) {
				t.Errorf("refused with %q, want %q among the fields", refused, test.says)
			}
		})
	}
}

// A member that is wrong is named once, and a wrong amount also where the payload's own amount
// cannot be compared.
func TestFoundIsRefusedOnce(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ payload, found, pointer string }{
		"a category":                       {`{}`, `{"categories":[1]}`, "/found/categories/0"},
		"an amount beside a foreign one":   {`{"amount":5,"currency":"EUR"}`, `{"amount_usd":"much"}`, "/found/amount_usd"},
		"an amount of a financial finding": {`{}`, `{"amount_usd":-1,"categories":["financial"]}`, "/found/amount_usd"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := parseAction(`{"agent_name":"a","action_type":"tool_call","action_name":"step","payload":` + test.payload + `,"found":` + test.found + `}`)
			if refused := refusedFields(err); refused != test.pointer {
				t.Errorf("refused with %q, want %q", refused, test.pointer)
			}
		})
	}
}

// A client that finds what the service would find is not refused.
func TestWhatIsFoundIsTaken(t *testing.T) {
	t.Parallel()
	pieces := []string{
		"https://", "//", "mailto:", "ftp:", "a", "Evil", ".com", ".", "..", "-", "_", "@", ":", ":80", "[", "]", "2001:db8::1", "fe80::1%25eth0", "8.8.8.8",
		"0x7f", "%2e", "münchen.de", "。", "\u00ad", "\u0085", "\u2028", "💩", "/", "?", "#", "\\", " ", "\n", ",", "*", "\x7f", strings.Repeat("long.", 60),
	}
	for name, payload := range map[string]canon.Value{
		"another script": textsUnder("url", "https://münchen.de/x"), "an address": textsUnder("url", "https://[2001:db8::1]/x"),
		"misspelt": textsUnder("url", "https://a..b-.com/"), "escaped": textsUnder("url", "https://a%2eb.com"),
		"more than are told apart": textsUnder("url", manyHosts()...),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if found := foundIn(t, payload); len(found) == 0 {
				t.Error("nothing is found")
			}
		})
	}
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom([]string{"url", "host", "to", "href", "domain", "note"}).Draw(t, "name")
		text := strings.Join(rapid.SliceOfN(rapid.SampledFrom(pieces), 1, 8).Draw(t, "text"), "")
		foundIn(t, textsUnder(name, text))
	})
}

// foundIn classifies a payload and sends what it found with another payload.
func foundIn(t interface{ Errorf(string, ...any) }, payload canon.Value) []string {
	found := classify.Classify(classify.Input{ActionType: "tool_call", ActionName: "step", Payload: payload}).ExternalDomains
	var hosts []canon.Value
	for _, host := range found {
		hosts = append(hosts, must(canon.StringValue(host)))
	}
	sent := canon.ArrayValue(hosts...).Append(nil)
	action, err := parseAction(`{"agent_name":"a","action_type":"tool_call","action_name":"step","payload":{},"found":{"external_domains":` + string(sent) + `}}`)
	if err != nil {
		t.Errorf("%q is refused: %s", found, refusedFields(err))
	} else if strings.Join(action.Facts.ExternalDomains, "\n") != strings.Join(classify.ASCIIDomains(found), "\n") {
		t.Errorf("%q is taken for %q", found, action.Facts.ExternalDomains)
	}
	return found
}

func textsUnder(name string, texts ...string) canon.Value {
	var items []canon.Value
	for _, text := range texts {
		items = append(items, must(canon.StringValue(text)))
	}
	return must(canon.ObjectValue(canon.Member{Name: name, Value: canon.ArrayValue(items...)}))
}

func manyHosts() (hosts []string) {
	for i := range classify.MaxDomains + 1 {
		hosts = append(hosts, "https://h"+strconv.Itoa(i)+".example/")
	}
	return hosts
}

// A gap marker contains only what was dropped: an action cannot be recorded in its place.
func TestGapsHaveAForm(t *testing.T) {
	t.Parallel()
	const times = `"from":"2026-05-04T08:00:00Z","to":"2026-05-04T08:30:00Z"`
	for name, test := range map[string]struct{ members, says string }{
		"a gap":              {`"payload":{"dropped":7,` + times + `}`, ""},
		"as others say it":   {`"payload":{"count":7,` + times + `}`, ""},
		"both words":         {`"payload":{"count":7,"dropped":7,` + times + `}`, "/payload"},
		"a wire in it":       {`"payload":{"dropped":1,` + times + `,"amount_usd":1000000}`, "/payload"},
		"a wire alone":       {`"payload":{"amount_usd":1000000}`, "/payload"},
		"nothing":            {`"payload":{}`, "/payload"},
		"none dropped":       {`"payload":{"dropped":0,` + times + `}`, "/payload"},
		"no times":           {`"payload":{"dropped":7}`, "/payload"},
		"metadata beside it": {`"payload":{"dropped":7,` + times + `},"metadata":{"amount_usd":5}`, "/metadata"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v, err := canon.Parse([]byte(`{"events":[{"agent_name":"countersign","action_type":"gap","action_name":"dropped_events",` +
				test.members + `,"decision_source":"offline_stub","idempotency_key":"k"}]}`))
			if err != nil {
				t.Fatal(err)
			}
			_, err = ParseReported(v)
			if refused := refusedFields(err); (refused == "") != (test.says == "") || !strings.Contains(refused, test.says) {
				t.Errorf("refused with %q (%v), want %q", refused, err, test.says)
			}
		})
	}
	_, err := parseAction(`{"agent_name":"a","action_type":"gap","action_name":"dropped_events","payload":{"dropped":7,` + times + `}}`)
	if refused := refusedFields(err); !strings.Contains(refused, "/action_type") {
		t.Errorf("a gap that the service is asked to decide is refused with %q", refused)
	}
}

// refusedFields lists the fields that an error names.
func refusedFields(err error) string {
	var named []string
	if own, ok := err.(*fault.Error); ok {
		for _, fault := range own.Fields {
			named = append(named, fault.Pointer)
		}
	}
	return strings.Join(named, " ")
}

// The largest lists that a request may name can be read back, together with what the service adds
// to them: an event, or the approval that it asks for, that could not would look tampered with.
func TestTheLongestListsAreReadBack(t *testing.T) {
	t.Parallel()
	names := func(n int, pattern string) string {
		list := make([]string, n)
		for i := range list {
			list[i] = `"` + strings.ReplaceAll(pattern, "%", strconv.Itoa(i)) + `"`
		}
		return "[" + strings.Join(list, ",") + "]"
	}
	action, err := parseAction(`{"agent_name":"a","action_type":"tool_call","action_name":"pay_and_update",
		"payload":{"amount_usd":9000,"record_count":3,"model":"m","input_tokens":1,"urls":` + names(maxFoundDomains, "https://ας%.example/") + `},
		"found":{"amount_usd":9000,"categories":` + names(maxListed, "own_%") + `,"external_domains":` + names(maxFoundDomains, "ες%.example") + `}}`)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(action.Facts.Categories); n != maxListed+4 {
		t.Errorf("it has %d categories, want those of the client and the four of the service", n)
	}
	if n := len(action.Facts.DomainForms()); n != 8*maxFoundDomains {
		t.Errorf("rules see %d domains: the bound of package policy is %d", n, 8*maxFoundDomains)
	}
	p := newBook(t).open("")
	recorded := p.state.Record(plainly(p.chain, action, firstMoment, [10]byte{1}))
	event, err := DecodeEvent(recorded.Stored.Body)
	if err != nil {
		t.Fatalf("the event: %v", err)
	}
	if diff := cmp.Diff(action.Facts.Categories, event.Action.Facts.Categories); diff != "" {
		t.Errorf("categories of the event (-sent +read):\n%s", diff)
	}
	if recorded.Approval == nil {
		t.Fatalf("it is decided %s", recorded.Event.Decision.Outcome)
	}
	body, mac := recorded.Approval.Encode(keyRing)
	if _, err := DecodeApproval(body, mac, keyRing, p.chain.Org); err != nil {
		t.Errorf("the approval: %v", err)
	}
}
