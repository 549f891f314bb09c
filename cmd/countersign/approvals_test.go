package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"countersign/internal/cli"
	"countersign/internal/cli/review"
	"countersign/internal/servicetest"
)

// reviewer is a person at a terminal with a key of their own.
type reviewer struct {
	keyFile, url string
}

func (r *reviewer) args(words ...string) []string {
	return append(append([]string{"approvals"}, words...), "--url", r.url, "--key-file", r.keyFile)
}

// newReviewer makes a key for one.
func newReviewer(t *testing.T, s *testStore, server *program, role string) *reviewer {
	t.Helper()
	key := succeed(t, s.args("keys", "create", "--org", "default", "--role", role, "--name", role)...)
	return &reviewer{keyFile: keyFile(t, key), url: server.address}
}

func keyFile(t *testing.T, key string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "api-key")
	if err := os.WriteFile(path, []byte(key), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// pay records a payment that a person has to decide, and returns the approval.
func (c *client) pay(t *testing.T, payload string) string {
	t.Helper()
	var chain struct{ ID string }
	c.call(t, http.MethodPost, "/v1/chains", `{"name":"payments"}`, &chain)
	var decision struct {
		Approval string `json:"approval_id"`
		Decision string `json:"policy_decision"`
	}
	c.call(t, http.MethodPost, "/v1/chains/"+chain.ID+"/events",
		`{"agent_name":"billing","action_type":"tool_call","action_name":"pay_invoice","payload":`+payload+`}`, &decision)
	if decision.Decision != "require_approval" || decision.Approval == "" {
		t.Fatalf("the payment was decided %+v", decision)
	}
	return decision.Approval
}

func (c *client) approvalStatus(t *testing.T, id string) string {
	t.Helper()
	var a struct{ Status string }
	c.call(t, http.MethodGet, "/v1/approvals/"+id, "", &a)
	return a.Status
}

// A person can list, approve and deny approvals at the terminal, and is shown what
// is decided before it is.
func TestApprovalsAtTheTerminal(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *testStore) {
		server := start(t, s.flags...)
		admin := server.admin(t)
		person := newReviewer(t, s, server, "member")
		if r := execute(t, person.args("list")...); r.code != 0 || r.out != "" || !strings.Contains(r.err, "No approval is waiting") {
			t.Errorf("an empty list: %+v", r)
		}
		first := admin.pay(t, `{"amount_usd":9000,"note":"a\u202eb","to":"https://pay.example.com/x"}`)
		second := admin.pay(t, `{"amount_usd":7000}`)
		out := succeed(t, person.args("list")...)
		for _, word := range []string{first[:8], second[:8], "billing", "pay_invoice", "23h59m", "threshold",
			"payments (production)", "9,000.00 USD", "pay.example.com", "financial_approval_threshold", "any member or admin", "TIME LEFT", "CLIENT", "never asked"} {
			if !strings.Contains(out, word) {
				t.Errorf("the list lacks %q:\n%s", word, out)
			}
		}
		admin.approvalStatus(t, first) // with the key that opened the chain
		if out := succeed(t, person.args("list")...); strings.Count(out, "  waiting  ") != 1 || strings.Count(out, "never asked") != 1 {
			t.Errorf("the list does not say whose client waits:\n%s", out)
		}
		if listed := decode[[]review.Approval](t, succeed(t, person.args("list", "--json")...)); len(listed) != 2 || listed[0].ID != first {
			t.Errorf("the list is %+v", listed)
		}

		refuse(t, cli.ExitInconclusive, "--yes", person.args("approve", first[:8])...)
		if status := admin.approvalStatus(t, first); status != "pending" {
			t.Errorf("it is %s although nobody was asked", status)
		}
		r := execute(t, person.args("approve", first[:8], "--yes", "--comment", "seen")...)
		if r.code != 0 || !strings.HasPrefix(r.out, "approved  "+first[:8]) {
			t.Fatalf("approve: %+v", r)
		}
		for _, word := range []string{"billing", "pay_invoice (tool_call)", `"amount_usd": 9000`, `"a\u202eb"`, "sha256   ",
			"chain    payments (production)", "amount   9,000.00 USD", "domains  pay.example.com", "rule     financial_approval_threshold",
			"deciders any member or admin", "left     23h59m", "client   waiting"} {
			if !strings.Contains(r.err, word) {
				t.Errorf("what was decided was not shown, %q:\n%s", word, r.err)
			}
		}
		if decided := decode[review.Approval](t, succeed(t, person.args("deny", second, "--yes", "--json")...)); decided.Status != "denied" || decided.ID != second {
			t.Errorf("deny: %+v", decided)
		}
		if one, two := admin.approvalStatus(t, first), admin.approvalStatus(t, second); one != "approved" || two != "denied" {
			t.Errorf("they are %s and %s", one, two)
		}
		if out := succeed(t, person.args("list", "--status", "approved")...); !strings.Contains(out, first[:8]) || strings.Contains(out, second[:8]) {
			t.Errorf("the approved are %s", out)
		}
		if out := succeed(t, person.args("list", "--status", "denied")...); strings.Contains(out, "TIME LEFT") || !strings.Contains(out, "denied  member  20") {
			t.Errorf("the denied are %s", out)
		}
		for _, id := range []string{first, first[:8]} {
			again := execute(t, person.args("approve", id)...) // once more is harmless
			if again.code != 0 || !strings.HasPrefix(again.out, "approved  ") || !strings.Contains(again.err, "already approved by member at 20") {
				t.Errorf("approve %s once more: %+v", id, again)
			}
			refuse(t, cli.ExitFailed, "already approved by member at 20", person.args("deny", id, "--yes")...)
		}
	})
}

// An approvals command that fails says what to do, and its error shows no key.
func TestApprovalsSayWhatIsWrong(t *testing.T) {
	t.Parallel()
	s := newSQLite(t)
	server := start(t, s.flags...)
	admin := server.admin(t)
	own := &reviewer{keyFile: keyFile(t, admin.key), url: server.address}
	id := admin.pay(t, `{"amount_usd":9000}`)
	person := newReviewer(t, s, server, "member")
	agent := newReviewer(t, s, server, "agent")

	refuse(t, cli.ExitFailed, "use another key", own.args("approve", id, "--yes")...)
	refuse(t, cli.ExitInconclusive, "no such object", agent.args("approve", id, "--yes")...)
	refuse(t, cli.ExitInconclusive, "first 4 characters", person.args("approve", "abc", "--yes")...)
	refuse(t, cli.ExitInconclusive, "first 4 characters", person.args("approve", "../organization", "--yes")...)
	refuse(t, cli.ExitInconclusive, "approvals list", person.args("approve", strings.Repeat("0", 8), "--yes")...)
	refuse(t, cli.ExitInconclusive, "see countersign approvals list --help", person.args("list", "--status", "maybe")...)

	for name, test := range map[string]struct{ key, says string }{
		"unknown":    {"csk_" + strings.Repeat("a", 40), "API key"},
		"empty":      {" \n", "is empty"},
		"incomplete": {admin.key[:10], "not complete"},
	} {
		stranger := &reviewer{keyFile: keyFile(t, test.key), url: server.address}
		if r := refuse(t, cli.ExitInconclusive, test.says, stranger.args("list")...); strings.Contains(r.err, strings.TrimSpace(test.key)) && test.key != " \n" {
			t.Errorf("%s: the error shows the key: %s", name, r.err)
		}
	}
	if err := os.Chmod(person.keyFile, 0o644); err != nil {
		t.Fatal(err)
	}
	refuse(t, cli.ExitInconclusive, "chmod 600", person.args("list")...)
	refuse(t, cli.ExitInconclusive, "COUNTERSIGN_API_KEY", "approvals", "list", "--url", server.address)
	nobody := &reviewer{keyFile: own.keyFile, url: "http://127.0.0.1:1"}
	refuse(t, cli.ExitInconclusive, "check that it is running", nobody.args("list")...)
	nobody.url = "ftp://host"
	refuse(t, cli.ExitInconclusive, "--url", nobody.args("list")...)
}

// A server that shows one payload and means another gets no verdict; nor does
// one that sends the key elsewhere.
func TestApprovalsTrustNoStranger(t *testing.T) {
	t.Parallel()
	const id = "00000000-0000-4000-8000-000000000001"
	key := succeed(t, newSQLite(t).args("orgs", "create", "acme")...)
	asked := make(chan string, 10)
	answer := func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Method + " " + r.URL.Path
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"id":%q,"agent_name":"a","action_type":"t","action_name":"n","payload":{"x":1},"payload_sha256":%q,"status":"pending"}`, id, strings.Repeat("0", 64))
	}
	liar := httptest.NewServer(http.HandlerFunc(answer))
	defer liar.Close()
	person := &reviewer{keyFile: keyFile(t, key), url: liar.URL}
	refuse(t, cli.ExitFailed, "do not decide", person.args("approve", id, "--yes")...)
	if got := <-asked; got != "GET /v1/approvals/"+id || len(asked) > 0 {
		t.Errorf("asked for %s and %d more", got, len(asked))
	}
	astray := httptest.NewServer(http.RedirectHandler(liar.URL, http.StatusFound))
	defer astray.Close()
	person.url = astray.URL
	refuse(t, cli.ExitInconclusive, "check --url", person.args("list")...)
	if len(asked) > 0 {
		t.Error("the key followed a redirect")
	}
}

// The environment is the process's, so this test runs alone.
func TestApprovalsWithAKeyFromTheEnvironment(t *testing.T) {
	s := newSQLite(t)
	server := start(t, s.flags...)
	t.Setenv("COUNTERSIGN_API_KEY", server.admin(t).key)
	t.Setenv("COUNTERSIGN_URL", server.address)
	if r := execute(t, "approvals", "list"); r.code != 0 || !strings.Contains(r.err, "No approval is waiting") {
		t.Errorf("list: %+v", r)
	}
}

// The watched list of approvals shows new ones as they come.
func TestApprovalsWatch(t *testing.T) {
	t.Parallel()
	s := newSQLite(t)
	server := start(t, s.flags...)
	admin := server.admin(t)
	person := newReviewer(t, s, server, "member")
	watching := begin(t, person.args("list", "--watch", "--every", "100ms")...)
	servicetest.Eventually(t, "the list is empty", func() bool { return strings.Contains(watching.log.String(), "No approval is waiting") })
	id := admin.pay(t, `{"amount_usd":9000}`)
	servicetest.Eventually(t, "the list shows what came", func() bool { return strings.Contains(watching.out.String(), id[:8]) })
	if code := watching.stop(t); code != 0 {
		t.Errorf("exit status %d", code)
	}
	refuse(t, cli.ExitInconclusive, "--json", person.args("list", "--watch", "--json")...)
}

// The watched list of approvals outlives failures that pass: a server that does not answer, or is
// overloaded, and a proxy that answers in its place. Each is named once. A failure that does not pass
// ends it.
func TestApprovalsWatchOutlivesFailures(t *testing.T) {
	t.Parallel()
	s := newSQLite(t)
	server := start(t, s.flags...)
	admin := server.admin(t)
	person := newReviewer(t, s, server, "member")
	target, err := url.Parse(server.address)
	if err != nil {
		t.Fatal(err)
	}
	var failure atomic.Pointer[http.HandlerFunc] // nil while it works
	through := httputil.NewSingleHostReverseProxy(target)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if fail := failure.Load(); fail != nil {
			(*fail)(w, r)
			return
		}
		through.ServeHTTP(w, r)
	}))
	defer proxy.Close()
	fail := func(answer http.HandlerFunc) { failure.Store(&answer) }
	refused := func(status int, code string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			fmt.Fprintf(w, `{"status":%d,"code":%q,"detail":"it says %s"}`, status, code, code)
		}
	}
	person.url = proxy.URL
	watching := begin(t, person.args("list", "--watch", "--every", "100ms")...)
	told := func(text string, times int) {
		t.Helper()
		servicetest.Eventually(t, "told: "+text, func() bool { return strings.Count(watching.log.String(), text) >= times })
	}
	told("No approval is waiting", 1)
	for i, c := range []struct {
		answer http.HandlerFunc
		says   string
	}{
		{func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "cannot be reached"},
		{func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "bad gateway", http.StatusBadGateway) }, "502 Bad Gateway"},
		{refused(http.StatusServiceUnavailable, "storage_unavailable"), "it says storage_unavailable"},
		{refused(http.StatusTooManyRequests, "rate_limited"), "it says rate_limited"},
	} {
		fail(c.answer)
		told(c.says, 1)
		id := admin.pay(t, `{"amount_usd":9000}`)
		failure.Store(nil)
		told("answers again", i+1)
		servicetest.Eventually(t, "the list shows what came", func() bool { return strings.Contains(watching.out.String(), id[:8]) })
		if n := strings.Count(watching.log.String(), c.says); n != 1 {
			t.Errorf("%q was said %d times", c.says, n)
		}
	}
	if code := watching.stop(t); code != 0 {
		t.Errorf("exit status %d", code)
	}
	for says, c := range map[string]struct {
		answer http.HandlerFunc
		code   int
	}{
		"it says unauthenticated": {refused(http.StatusUnauthorized, "unauthenticated"), cli.ExitFailed},
		"it says forbidden":       {refused(http.StatusForbidden, "forbidden"), cli.ExitFailed},
		"404 Not Found":           {http.NotFound, cli.ExitInconclusive},
	} {
		failure.Store(nil)
		watching := begin(t, person.args("list", "--watch", "--every", "100ms")...)
		servicetest.Eventually(t, "the list is shown", func() bool { return watching.out.String() != "" })
		fail(c.answer)
		select {
		case code := <-watching.ended:
			if watching.ended <- code; code != c.code || !strings.Contains(watching.log.String(), says) {
				t.Errorf("exit status %d, want %d; it says %q, want %q", code, c.code, watching.log.String(), says)
			}
		case <-time.After(deadline):
			t.Errorf("%s: it does not end: %s", says, watching.log.String())
		}
	}
}

// A person at the terminal is told that the rules have changed, and is shown whose yes
// does not count any more.
func TestApprovalsThatTheRulesOvertake(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *testStore) {
		server := start(t, s.flags...)
		admin := server.admin(t)
		person, leaver := newReviewer(t, s, server, "member"), newReviewer(t, s, server, "admin")
		frozen, voted := admin.pay(t, `{"amount_usd":9000}`), admin.pay(t, `{"amount_usd":7000}`)
		var ignored json.RawMessage
		admin.call(t, http.MethodPatch, "/v1/organization", `{"two_person_approval":true}`, &ignored)
		succeed(t, leaver.args("approve", voted, "--yes")...)
		var keys struct {
			Data []struct {
				ID   string `json:"key_id"`
				Name string `json:"name"`
			}
		}
		admin.call(t, http.MethodGet, "/v1/api-keys", "", &keys)
		for _, key := range keys.Data {
			if key.Name == "admin" {
				admin.call(t, http.MethodPost, "/v1/api-keys/"+key.ID+"/revoke", "", &ignored)
			}
		}
		r := execute(t, person.args("approve", voted, "--yes")...)
		if r.code != 0 || !strings.Contains(r.err, "admin approved, which does not count any more: the key was revoked") || !strings.HasPrefix(r.out, "pending  ") {
			t.Errorf("approve after a revoked one: %+v", r)
		}
		admin.call(t, http.MethodPut, "/v1/policies", `{"rules":[{"name":"freeze","when":"true","decision":"deny","reason":"nothing is paid in May"}]}`, &ignored)
		refuse(t, cli.ExitFailed, "record the action again", person.args("approve", frozen, "--yes")...)
		refuse(t, cli.ExitFailed, "denied because the rules changed while it waited: nothing is paid in May", person.args("approve", frozen, "--yes")...)
		if out := succeed(t, person.args("list", "--status", "denied")...); !strings.Contains(out, "a rule") {
			t.Errorf("the denied are %s", out)
		}
	})
}

// That a client asked about an approval is known to the server that comes after.
//
//countersign:race
func TestPollsSurviveARestart(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *testStore) {
		server := start(t, s.flags...)
		admin := server.admin(t)
		polled, never := admin.pay(t, `{"amount_usd":9000}`), admin.pay(t, `{"amount_usd":7000}`)
		admin.approvalStatus(t, polled)
		server.stop(t)
		person := newReviewer(t, s, start(t, s.flags...), "member")
		for _, a := range decode[[]review.Approval](t, succeed(t, person.args("list", "--json")...)) {
			if asked := a.LastPolledAt != nil; asked != (a.ID == polled) || a.ID != polled && a.ID != never {
				t.Errorf("%s was asked about: %t", a.ID, asked)
			}
		}
	})
}
