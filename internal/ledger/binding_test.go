package ledger

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"countersign/internal/canon"
	"countersign/internal/classify"
	"countersign/internal/fault"
)

// bindingVectors are what the service and its clients must agree on to bind what they remove from a
// payload.
type bindingVectors struct {
	Description string          `json:"description"`
	BindingKey  string          `json:"binding_key"`
	Digests     []digestVector  `json:"digests"`
	Markers     map[string]bool `json:"markers"`
}

type digestVector struct {
	Raw    string `json:"raw"`
	Digest string `json:"digest"`
}

func makeBindingVectors() bindingVectors {
	key := sha256.Sum256([]byte("a binding key for tests"))
	v := bindingVectors{
		Description: "digest is hmac-sha256: and the hexadecimal HMAC-SHA256, under binding_key (base64), of the JSON text raw in canonical form. markers says " +
			"which strings of a payload tell that something was redacted or cut.",
		BindingKey: base64.StdEncoding.EncodeToString(key[:]),
		Markers:    make(map[string]bool),
	}
	for _, raw := range []string{
		`null`, `true`, `"hunter2"`, `""`, `"caf\u00e9 \ud83d\ude00 \u2028"`, `12.5`, `1e+21`, `0`, `-7`, `[]`, `{}`, `[1,"two",null]`,
		`{"b":[true,{"z":1,"a":2}],"a":"x"}`, `{"\ufb33":1,"\ud83d\ude00":2,"\u20ac":3}`,
	} {
		value, err := canon.Parse([]byte(raw))
		if err != nil {
			panic(err)
		}
		mac := hmac.New(sha256.New, key[:])
		mac.Write(value.Append(nil))
		v.Digests = append(v.Digests, digestVector{raw, "hmac-sha256:" + hex.EncodeToString(mac.Sum(nil))})
	}
	for _, text := range []string{
		"[REDACTED]", "Bearer [REDACTED]", "a [REDACTED] b", "a long text...[truncated]", "...[truncated]", "[CYCLE]", "[TOO DEEP]", "[OMITTED]",
		"", "redacted", "[redacted]", "REDACTED", "[truncated]", "...[truncated] and more", "[CYCLE] ", "a [OMITTED]", "[]",
	} {
		v.Markers[text] = isMarker(text)
	}
	return v
}

// The published vectors of digests and markers are correct.
func TestBindingVectors(t *testing.T) {
	t.Parallel()
	v := holdVectors(t, "binding.json", makeBindingVectors())
	for text, want := range v.Markers {
		if got := isMarker(text); got != want {
			t.Errorf("%q is a marker: %t, want %t", text, got, want)
		}
	}
	marked := 0
	for _, is := range v.Markers {
		if is {
			marked++
		}
	}
	if marked != 8 {
		t.Errorf("%d of the texts are markers, want 8", marked)
	}
}

func boundChain() (Keys, *Chain) {
	keys := testKeys{[]string{"key-1"}}
	return keys, &Chain{ID: ChainID{UUID: [16]byte{1}}, Org: OrgID{UUID: [16]byte{2}}, BindingKeyID: "key-1"}
}

func actionOf(t interface {
	Helper()
	Fatalf(string, ...any)
}, payload, rest string) *Action {
	t.Helper()
	action, err := parseAction(`{"agent_name":"a","action_type":"tool_call","action_name":"step","payload":` + payload + rest + `}`)
	if err != nil {
		t.Fatalf("%s: %v", payload, err)
	}
	return action
}

// A digest is accepted only for a place of the payload with a marker.
func TestRedactionsAreHeldToTheirMarkers(t *testing.T) {
	t.Parallel()
	digest := `"hmac-sha256:` + strings.Repeat("0a", 32) + `"`
	const payload = `{"card":"[REDACTED]","a/b~c":["x","long...[truncated]"],"n":5,"deep":{"x":"[TOO DEEP]"},"":"[CYCLE]"}`
	for redactions, pointers := range map[string][]string{
		`null`:                       nil,
		`{}`:                         nil,
		`{"/card":` + digest + `}`:   nil,
		`{"/card":null}`:             nil,
		`{"/":` + digest + `}`:       nil,
		`{"/deep/x":` + digest + `}`: nil,
		`{"/a~1b~0c/1":` + digest + `,"/card":` + digest + `}`: nil,

		`[]`:                                        {"/redactions"},
		`"x"`:                                       {"/redactions"},
		`{"/n":` + digest + `}`:                     {"/redactions/~1n"},
		`{"":` + digest + `}`:                       {"/redactions/"},
		`{"card":` + digest + `}`:                   {"/redactions/card"},
		`{"/missing":` + digest + `}`:               {"/redactions/~1missing"},
		`{"/deep":` + digest + `}`:                  {"/redactions/~1deep"},
		`{"/a~1b~0c/0":` + digest + `}`:             {"/redactions/~1a~01b~00c~10"},
		`{"/a~1b~0c/01":` + digest + `}`:            {"/redactions/~1a~01b~00c~101"},
		`{"/a~1b~0c/2":` + digest + `}`:             {"/redactions/~1a~01b~00c~12"},
		`{"/a~1b~0c/-":` + digest + `}`:             {"/redactions/~1a~01b~00c~1-"},
		`{"/a~1b~c/1":` + digest + `}`:              {"/redactions/~1a~01b~0c~11"},
		`{"/card/x":` + digest + `}`:                {"/redactions/~1card~1x"},
		`{"/card":"sha256:00"}`:                     {"/redactions/~1card"},
		`{"/card":7}`:                               {"/redactions/~1card"},
		`{"/card":` + strings.ToUpper(digest) + `}`: {"/redactions/~1card"},
	} {
		t.Run(redactions, func(t *testing.T) {
			t.Parallel()
			_, err := parseAction(`{"agent_name":"a","action_type":"t","action_name":"n","payload":` + payload + `,"redactions":` + redactions + `}`)
			var got []string
			var refused *fault.Error
			if errors.As(err, &refused) {
				for _, fault := range refused.Fields {
					got = append(got, fault.Pointer)
				}
			}
			if diff := cmp.Diff(pointers, got); diff != "" {
				t.Errorf("pointers of %v (-want +got):\n%s", err, diff)
			}
		})
	}
}

// Too many digests are refused, and values beyond that number that the service redacts itself stay
// unbound, so that no request causes unbounded work.
func TestRedactionsAreBounded(t *testing.T) {
	t.Parallel()
	var payload, sent strings.Builder
	for i := range maxRedactions + 1 {
		fmt.Fprintf(&payload, `"secret_%d":"[REDACTED]",`, i)
		fmt.Fprintf(&sent, `"/secret_%d":null,`, i)
	}
	object := func(b *strings.Builder) string { return "{" + strings.TrimSuffix(b.String(), ",") + "}" }
	_, err := parseAction(`{"agent_name":"a","action_type":"t","action_name":"n","payload":` + object(&payload) + `,"redactions":` + object(&sent) + `}`)
	if err == nil || !strings.Contains(fmt.Sprint(faultsOf(t, err)), "at most 2000 members") {
		t.Errorf("%v, want a fault about the number of members", err)
	}
	keys, chain := boundChain()
	action := actionOf(t, strings.ReplaceAll(object(&payload), "[REDACTED]", "plain"), "")
	action.Bind(keys, chain)
	digests, err := canon.Parse(action.Redactions)
	if err != nil || len(digests.Members()) != maxRedactions {
		t.Errorf("%d digests, error %v, want %d", len(digests.Members()), err, maxRedactions)
	}
	unbound, err := Unbound(action.Payload, action.Redactions)
	if err != nil || len(unbound) != 1 {
		t.Errorf("unbound %v, error %v, want one", unbound, err)
	}
}

// Whatever a payload contains, each value that the service removes is bound by the digest of its
// original, and no other place is. If a client had removed a part of it before, that place is
// unbound.
func TestWhatTheServiceRedactsIsBound(t *testing.T) {
	t.Parallel()
	keys, chain := boundChain()
	key, _ := chain.BindingKey(keys)
	rapid.Check(t, func(t *rapid.T) {
		raw := withSecrets(t, 3)
		action := actionOf(t, string(raw.Append(nil)), "")
		action.Bind(keys, chain)
		var digests canon.Value
		if action.Redactions != nil {
			digests, _ = canon.Parse(action.Redactions)
		}
		want := 0
		eachMarker(action.payload, "", func(pointer string) {
			before, _ := raw.At(pointer)
			after, _ := action.payload.At(pointer)
			if before.Kind() == canon.String && before.Str() == after.Str() {
				return // a marker of the client
			}
			want++
			mac := hmac.New(sha256.New, key[:])
			mac.Write(before.Append(nil))
			bound := "hmac-sha256:" + hex.EncodeToString(mac.Sum(nil))
			if holdsMarker(before) {
				bound = ""
			}
			if digest, found := digests.Get(pointer); !found || digest.Str() != bound {
				t.Errorf("%s is bound by %q", pointer, digest.Str())
			}
		})
		if got := len(digests.Members()); got != want {
			t.Errorf("%d digests for %d redactions", got, want)
		}
		if (action.SentHMAC != "") != (want > 0) {
			t.Errorf("%d redactions, sent_hmac %q", want, action.SentHMAC)
		}
	})
}

func withSecrets(t *rapid.T, depth int) canon.Value {
	names := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"password", "note", "a/b", "~", "", "max_tokens", "cookie", "Authorization", "apiKey"}), 0, 4,
		rapid.ID[string]).Draw(t, "names")
	var members []canon.Member
	for _, name := range names {
		members = append(members, canon.Member{Name: name, Value: secretOrNot(t, depth)})
	}
	return must(canon.ObjectValue(members...))
}

func secretOrNot(t *rapid.T, depth int) canon.Value {
	kind := rapid.IntRange(0, 6).Draw(t, "kind")
	switch {
	case kind == 0 && depth > 0:
		return withSecrets(t, depth-1)
	case kind == 1 && depth > 0:
		items := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) canon.Value { return secretOrNot(t, depth-1) }), 0, 3).Draw(t, "items")
		return canon.ArrayValue(items...)
	case kind == 2:
		return must(canon.NumberValue(float64(rapid.IntRange(0, 1e6).Draw(t, "number"))))
	default:
		return must(canon.StringValue(rapid.SampledFrom([]string{
			"plain", "ghp_" + strings.Repeat("x", 20), "Bearer abc.def", "[REDACTED]", "cut...[truncated]", "key=sk_live_placeholder and more", "",
		}).Draw(t, "text")))
	}
}

// A client's digest is kept if the service redacts the same value, and dropped with anything that
// the service removes as a whole.
func TestClientsDigestsAndOwnOnes(t *testing.T) {
	t.Parallel()
	keys, chain := boundChain()
	digest := "hmac-sha256:" + strings.Repeat("0a", 32)
	action := actionOf(t, `{"note":"[REDACTED] and ghp_`+strings.Repeat("x", 20)+`","secret":{"inner":"[OMITTED]"},"other":"cut...[truncated]"}`,
		`,"redactions":{"/note":"`+digest+`","/secret/inner":null,"/other":"`+digest+`"}`)
	action.Bind(keys, chain)
	digests, err := canon.Parse(action.Redactions)
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]bool)
	for _, member := range digests.Members() {
		got[member.Name] = member.Value.Str() == digest
	}
	if diff := cmp.Diff(map[string]bool{"/note": true, "/other": true, "/secret": false}, got); diff != "" {
		t.Errorf("client's digests (-want +got):\n%s", diff)
	}
	if !action.unbindable() {
		t.Error("a null inside what the service has taken out does not count")
	}
	unbound, err := Unbound(action.Payload, action.Redactions)
	if diff := cmp.Diff([]string{"/secret"}, unbound); err != nil || diff != "" {
		t.Errorf("unbound, error %v (-want +got):\n%s", err, diff)
	}
}

// The same idempotency key with different content is another action, even if the difference was
// redacted.
func TestRepeatsComparesWhatWasSent(t *testing.T) {
	t.Parallel()
	keys, chain := boundChain()
	record := func(payload, rest string) *RecordedEvent {
		action := actionOf(t, payload, rest)
		action.Bind(keys, chain)
		event := &Event{Chain: chain.ID, ID: EventID{UUID: [16]byte{3}}, Sequence: 1, Action: *action, Decision: Decision{Source: SourceBackend}}
		decoded, err := DecodeEvent(event.Encode())
		if err != nil {
			t.Fatal(err)
		}
		return decoded
	}
	digest := func(b string) string { return `,"redactions":{"/card":"hmac-sha256:` + strings.Repeat(b, 32) + `"}` }
	inner := func(b string) string {
		return `,"redactions":{"/secret/a":"hmac-sha256:` + strings.Repeat(b, 32) + `"}`
	}
	for name, test := range map[string]struct {
		payload, rest   string
		payload2, rest2 string
		same            bool
	}{
		"the same":                       {`{"a":1}`, "", `{"a":1}`, "", true},
		"the same secret":                {`{"password":"x"}`, "", `{"password":"x"}`, "", true},
		"another secret":                 {`{"password":"x"}`, "", `{"password":"y"}`, "", false},
		"a secret for its marker":        {`{"password":"[REDACTED]"}`, "", `{"password":"y"}`, "", false},
		"another secret in the metadata": {`{}`, `,"metadata":{"password":"x"}`, `{}`, `,"metadata":{"password":"y"}`, false},
		"the same digest":                {`{"card":"[REDACTED]"}`, digest("aa"), `{"card":"[REDACTED]"}`, digest("aa"), true},
		"another digest":                 {`{"card":"[REDACTED]"}`, digest("aa"), `{"card":"[REDACTED]"}`, digest("bb"), false},
		"no digest":                      {`{"card":"[REDACTED]"}`, digest("aa"), `{"card":"[REDACTED]"}`, "", false},
		"another digest inside a secret": {`{"secret":{"a":"[OMITTED]"}}`, inner("aa"), `{"secret":{"a":"[OMITTED]"}}`, inner("bb"), false},
		"the same inside a secret":       {`{"secret":{"a":"[OMITTED]"}}`, inner("aa"), `{"secret":{"a":"[OMITTED]"}}`, inner("aa"), true},
		"no digest inside a secret":      {`{"secret":{"a":"[OMITTED]"}}`, inner("aa"), `{"secret":{"a":"[OMITTED]"}}`, "", false},
		"found the same":                 {`{}`, `,"found":{"amount_usd":5}`, `{}`, `,"found":{"amount_usd":5}`, true},
		"found something else":           {`{}`, `,"found":{"amount_usd":5}`, `{}`, `,"found":{"amount_usd":6}`, false},
		"found nothing":                  {`{}`, `,"found":{"amount_usd":5}`, `{}`, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			again := actionOf(t, test.payload2, test.rest2)
			again.Bind(keys, chain)
			if got := record(test.payload, test.rest).Repeats(again); got != test.same {
				t.Errorf("a repeat: %t, want %t", got, test.same)
			}
		})
	}
}

// Events and approvals that predate digests still verify, and digests cannot be added to them.
func TestRecordsFromBeforeBindingStand(t *testing.T) {
	t.Parallel()
	action := actionOf(t, `{"password":"[REDACTED]"}`, "")
	event := &Event{Chain: ChainID{UUID: [16]byte{1}}, ID: EventID{UUID: [16]byte{3}}, Sequence: 1, Action: *action, Decision: Decision{Source: SourceBackend}}
	old := bytes.Replace(event.Encode(), []byte(`"redactions_sha256":null,`), nil, 1)
	if bytes.Equal(old, event.Encode()) {
		t.Fatal("the member is not there to be left out")
	}
	decoded, err := DecodeEvent(old)
	if err != nil || decoded.RedactionsSHA256 != nil || !decoded.Repeats(action) {
		t.Errorf("%+v, error %v", decoded, err)
	}
	stored := &StoredEvent{Chain: event.Chain, Sequence: 1, Body: old, Payload: action.Payload}
	if err := NewReplay(event.Chain).Event(stored); err != nil {
		t.Error(err)
	}
	stored.Redactions = []byte(`{"/password":null}`)
	if err := NewReplay(event.Chain).Event(stored); err == nil {
		t.Error("digests were added to an event that has none")
	}
	none := ""
	before, after := &Approval{}, &Approval{RedactionsSHA256: &none}
	if bytes.Contains(before.DecisionRecord(), []byte("redactions")) || !bytes.Contains(after.DecisionRecord(), []byte(`"redactions_sha256":null`)) {
		t.Errorf("decision records %s and %s", before.DecisionRecord(), after.DecisionRecord())
	}
}

// An action with values that were removed without a key is never approved. If it needs no approval,
// it is not affected.
func TestNobodyApprovesWhatIsNotBound(t *testing.T) {
	t.Parallel()
	for rest, want := range map[string]Outcome{
		`,"redactions":{"/card":null}`:                                           Deny,
		`,"redactions":{"/card":"hmac-sha256:` + strings.Repeat("0a", 32) + `"}`: RequireApproval,
		"": RequireApproval,
	} {
		for _, rules := range []Outcome{RequireApproval, Allow} {
			q := question()
			q.Action = actionOf(t, `{"card":"`+classify.Redacted+`"}`, rest)
			expected := want
			if rules == Allow {
				expected = Allow
			}
			if got := Decide(&Policy{Rules: fixedRules{{Name: "own", Outcome: rules}}}, q); got.Outcome != expected {
				t.Errorf("%s under %s: %s (%s), want %s", rest, rules, got.Outcome, got.Reason, expected)
			}
		}
	}
}
