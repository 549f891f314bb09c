package httpapi_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"countersign/internal/httpapi"
	"countersign/internal/ledger"
	"countersign/internal/testdb"
)

// slow is a rate that gives nothing back within a test: a burst of four public
// requests, or of ten failures, is all there is.
const slow = 1.0

// untilRefused counts what an address may do before it is told to wait. Tokens
// that come back while a slow machine counts only make the count larger.
func untilRefused(t *testing.T, most int, send func() *answer) int {
	t.Helper()
	for n := range most {
		if got := send(); got.status == http.StatusTooManyRequests {
			got.refuse(t, http.StatusTooManyRequests, "rate_limited")
			if seconds, err := strconv.Atoi(got.header.Get("Retry-After")); err != nil || seconds < 1 || seconds > 1000 {
				t.Errorf("Retry-After is %q", got.header.Get("Retry-After"))
			}
			return n
		}
	}
	t.Fatalf("not refused after %d requests", most)
	return 0
}

const never = 1.0 / 600 // tokens a second: none comes back during a test

// Requests without a key are limited per address; health probes and requests with a
// key are not.
func TestPublicRate(t *testing.T) {
	eachStore(t, func(t *testing.T, open func(*testing.T) *database) {
		s := start(t, open(t), setup{publicRate: never})
		path := "/v1/receipts/" + uuid.NewString() + "/verify"
		if n := untilRefused(t, 10, func() *answer { return s.get(t, credential{}, path) }); n < 1 {
			t.Error("the first request was refused")
		}
		// The limit is one of addresses, not of routes; it spares probes and keys.
		for _, limited := range []string{"/openapi.json", "/openapi.yaml", "/docs", "/docs/docs.js", "/verify", path} {
			s.get(t, credential{}, limited).refuse(t, http.StatusTooManyRequests, "rate_limited")
		}
		for _, free := range []string{"/healthz", "/readyz"} {
			s.get(t, credential{}, free).expect(t, http.StatusOK)
		}
		s.get(t, s.acme.member, "/v1/organization").expect(t, http.StatusOK)
	})
}

// A browser over the limit gets a page that says so, with Retry-After, on every public route that has
// pages. Programs get a problem document.
func TestBrowserOverTheLimitGetsAPage(t *testing.T) {
	t.Parallel()
	s := start(t, openDatabase(t, testdb.SQLite(t)), setup{publicRate: never})
	untilRefused(t, 10, func() *answer { return s.get(t, credential{}, "/openapi.json") })
	id := uuid.NewString()
	paths := map[string]string{
		"/public/v2/verify/{opaque_token}": "/public/v2/verify/" + unknownToken(), "/public/shares/{share}": "/public/shares/" + unknownToken(),
		"/public/approvals/{approval_id}": "/public/approvals/" + id, "/v1/approvals/{approval_id}/verify": "/v1/approvals/" + id + "/verify",
		"/verify": "/verify", "/docs": "/docs", "/docs/guides": "/docs/guides", "/docs/guides/{name...}": "/docs/guides/policies",
	}
	for pattern, path := range paths {
		got := s.browse(t, path).expect(t, http.StatusTooManyRequests)
		if page := string(got.body); !strings.HasPrefix(got.header.Get("Content-Type"), "text/html") || !strings.Contains(page, "<h1>Too many requests</h1>") || !strings.Contains(page, got.header.Get("X-Request-Id")) {
			t.Errorf("%s answers a browser with %s", pattern, page)
		}
		if seconds, err := strconv.Atoi(got.header.Get("Retry-After")); err != nil || seconds < 1 {
			t.Errorf("%s: Retry-After is %q", pattern, got.header.Get("Retry-After"))
		}
		s.get(t, credential{}, path).refuse(t, http.StatusTooManyRequests, "rate_limited")
	}
	document := s.referee(t).document
	for path, item := range document.Paths.Map() {
		if item.Get == nil || item.Get.Responses.Status(http.StatusOK) == nil {
			continue
		}
		page := item.Get.Responses.Status(http.StatusOK).Value.Content.Get("text/html") != nil
		if _, tested := paths[strings.Replace(path, "{name}", "{name...}", 1)]; page && !tested {
			t.Errorf("%s has a page and is not tested", path)
		}
	}
}

// Other failures of a public page are pages, too: of the store, and an unknown guide.
func TestFailuresOfPublicPagesArePages(t *testing.T) {
	t.Parallel()
	s := start(t, openDatabase(t, testdb.SQLite(t)), setup{})
	if got := s.browse(t, "/docs/guides/none").expect(t, http.StatusNotFound); !strings.Contains(string(got.body), "There is no guide with this name.") {
		t.Errorf("an unknown guide: %s", got.body)
	}
	token := s.issue(t, s.acme.admin, "receipt", *s.seal(t, s.acme.agent, "page").ReceiptID)
	if err := s.database.store.Close(); err != nil {
		t.Fatal(err)
	}
	got := s.browse(t, token.Path).expect(t, http.StatusServiceUnavailable)
	if !strings.Contains(string(got.body), "<h1>Storage unavailable</h1>") || got.header.Get("Retry-After") == "" {
		t.Errorf("without a store: %s", got.body)
	}
}

// An address may send four seconds' worth of public requests at once.
func TestPublicBurst(t *testing.T) {
	eachStore(t, func(t *testing.T, open func(*testing.T) *database) {
		s := start(t, open(t), setup{publicRate: slow})
		got := untilRefused(t, 200, func() *answer { return s.get(t, credential{}, "/v1/receipts/x/verify") })
		if got < 4 {
			t.Errorf("refused after %d requests, the burst is four seconds' worth", got)
		}
	})
}

// After too many failed authentications an address is refused whatever it guesses, while
// valid keys go on working, also those that were not in use before.
func TestFailureRate(t *testing.T) {
	eachStore(t, func(t *testing.T, open func(*testing.T) *database) {
		s := start(t, open(t), setup{failureRate: never})
		guess := credential{text: unknownKey()}
		for range 20 {
			s.get(t, s.acme.member, "/v1/organization").expect(t, http.StatusOK) // good keys use nothing up
			s.get(t, s.acme.agent, "/v1/organization").refuse(t, http.StatusForbidden, "forbidden")
		}
		if n := untilRefused(t, 20, func() *answer { return s.get(t, guess, "/v1/organization") }); n < 1 {
			t.Error("the first failure was refused")
		}
		for _, key := range []credential{guess, {}, {text: "csk_short"}} {
			s.get(t, key, "/v1/organization").refuse(t, http.StatusTooManyRequests, "rate_limited")
		}
		for _, key := range []credential{s.acme.member, s.acme.admin, s.acme.admin} {
			s.get(t, key, "/v1/organization").expect(t, http.StatusOK)
		}
		s.get(t, credential{}, "/healthz").expect(t, http.StatusOK)
	})
}

// X-Forwarded-For is anybody's to write: it counts only as far as it was written
// by proxies that are trusted.
func TestForwardedAddresses(t *testing.T) {
	loopback := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128"), netip.MustParsePrefix("10.0.0.0/8")}
	tests := []struct {
		name          string
		proxies       []netip.Prefix
		first, second []string
		same          bool // whether both count against one address
	}{
		{"untrusted peer", nil, []string{"192.0.2.1"}, []string{"192.0.2.2"}, true},
		{"trusted peer", loopback, []string{"192.0.2.1"}, []string{"192.0.2.2"}, false},
		{"trusted peer, same client", loopback, []string{"192.0.2.1"}, []string{"192.0.2.1"}, true},
		{"with a port", loopback, []string{"192.0.2.1:5000"}, []string{"192.0.2.1:5001"}, true},
		{"claims before the client", loopback, []string{"198.51.100.1, 192.0.2.1"}, []string{"198.51.100.2, 192.0.2.1"}, true},
		{"claims in a header of their own", loopback, []string{"198.51.100.1", "192.0.2.1"}, []string{"198.51.100.2", "192.0.2.1"}, true},
		{"two trusted proxies", loopback, []string{"192.0.2.1, 10.0.0.1"}, []string{"192.0.2.2, 10.0.0.1"}, false},
		{"garbage counts as the proxy", loopback, []string{"nonsense"}, []string{"more nonsense"}, true},
		{"no header counts as the proxy", loopback, nil, []string{"nonsense"}, true},
		{"one IPv6 network", loopback, []string{"2001:db8::1"}, []string{"2001:db8::ffff:1"}, true},
		{"two IPv6 networks", loopback, []string{"2001:db8::1"}, []string{"2001:db8:0:1::1"}, false},
		{"one address in two forms", loopback, []string{"192.0.2.1"}, []string{"::ffff:192.0.2.1"}, true},
	}
	eachStore(t, func(t *testing.T, open func(*testing.T) *database) {
		db := open(t)
		s := start(t, db, setup{})
		for _, test := range tests {
			t.Run(test.name, func(t *testing.T) {
				limited := s.limited(t, test.proxies, never)
				send := func(forwarded []string) *answer {
					return limited.do(t, call{method: http.MethodGet, path: "/docs", header: http.Header{"X-Forwarded-For": forwarded}})
				}
				untilRefused(t, 10, func() *answer { return send(test.first) })
				if refused := send(test.second).status == http.StatusTooManyRequests; refused != test.same {
					t.Errorf("the second address was refused: %t", refused)
				}
			})
		}
	})
}

// Requests that wait are bounded, those of one key and of one organization. What is refused
// gives its connection back; whoever does not wait is served.
//
//countersign:race
func TestWaitingRequestsAreBounded(t *testing.T) {
	eachStore(t, func(t *testing.T, open func(*testing.T) *database) {
		const all, ofKey, ofOrganization = 268, 200, 201
		s := start(t, open(t), setup{maxPolls: all})
		s.patch(t, s.acme.admin, `{"high_risk_agents":["agent"]}`).expect(t, http.StatusOK)
		id := s.ask(t, s.acme.agent, s.open(t, s.acme.agent, `{"name":"n"}`))
		path := "/v1/approvals/" + id
		answers := make(chan *answer, all)
		wait := func(key credential) { answers <- s.get(t, key, path+"?wait=60") }
		for range ofKey {
			go wait(s.acme.agent)
		}
		waiting := func(count int) {
			t.Helper()
			for began := time.Now(); s.api.Polls() < count; time.Sleep(time.Millisecond) {
				if time.Since(began) > time.Minute {
					t.Fatalf("%d requests wait, want %d", s.api.Polls(), count)
				}
			}
		}
		refused := func(key credential) {
			t.Helper()
			got := s.get(t, key, path+"?wait=60")
			got.refuse(t, http.StatusTooManyRequests, "rate_limited")
			if got.header.Get("Retry-After") != "5" {
				t.Errorf("Retry-After is %q", got.header.Get("Retry-After"))
			}
		}
		waiting(ofKey)
		refused(s.acme.agent)
		s.get(t, s.acme.agent, path).expect(t, http.StatusOK)
		for range ofOrganization - ofKey {
			go wait(s.acme.member)
		}
		waiting(ofOrganization)
		refused(s.acme.admin)
		s.post(t, s.acme.admin, path+"/deny", `{"comment":"no"}`).expect(t, http.StatusOK)
		for range ofOrganization {
			(<-answers).expect(t, http.StatusOK)
		}
		if left := s.api.Polls(); left != 0 {
			t.Errorf("%d requests are still counted", left)
		}
	})
}

// Few large bodies are parsed at a time. The others wait, and small ones do not.
//
//countersign:race
func TestLargeBodiesWaitForEachOther(t *testing.T) {
	eachStore(t, func(t *testing.T, open func(*testing.T) *database) {
		s := start(t, open(t), setup{})
		path := "/v1/chains/" + s.open(t, s.acme.agent, `{"name":"n"}`) + "/events"
		body := func(numbers int) string {
			return `{"agent_name":"a","action_type":"tool_call","action_name":"look","payload":{"list":[` + strings.Repeat("0,", numbers) + `0]}}`
		}
		release := s.api.HoldLarge()
		const many = 3
		answers := make(chan *answer, many)
		for range many {
			go func() { answers <- s.post(t, s.acme.agent, path, body(35_000)) }()
		}
		s.post(t, s.acme.agent, path, body(1000)).expect(t, http.StatusOK)
		select {
		case <-answers:
			t.Error("a large body was parsed beside two others")
		default:
		}
		release()
		for range many {
			(<-answers).expect(t, http.StatusOK)
		}
	})
}

// An organization whose large bodies arrive slowly holds memory for a few of them. Its
// others wait until one of these has arrived; those of another organization do not.
//
//countersign:race
func TestSlowLargeBodiesAreBounded(t *testing.T) {
	s := start(t, openDatabase(t, testdb.SQLite(t)), setup{})
	note := strings.Repeat("x", 100<<10)
	event := `{"agent_name":"a","action_type":"tool_call","action_name":"look","payload":{"note":"` + note + `"}}`
	send := func(by credential, chain string, length int64) (*io.PipeWriter, chan int) {
		body, sender := io.Pipe()
		status := make(chan int, 1)
		request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/chains/"+chain+"/events", body)
		request.ContentLength = length
		request.Header.Set("Authorization", "Bearer "+by.text)
		request.Header.Set("Content-Type", "application/json")
		go func() {
			answer := httptest.NewRecorder()
			s.api.Handler().ServeHTTP(answer, request)
			status <- answer.Code
		}()
		return sender, status
	}
	finish := func(sender *io.PipeWriter, status chan int) {
		t.Helper()
		if _, err := io.WriteString(sender, event[1:]); err != nil {
			t.Error(err)
		}
		_ = sender.Close()
		if got := <-status; got != http.StatusOK {
			t.Errorf("a large event is answered %d", got)
		}
	}
	for _, length := range []int64{int64(len(event)), -1} {
		own, other := s.open(t, s.acme.agent, `{"name":"n"}`), s.open(t, s.rival.agent, `{"name":"n"}`)
		var senders []*io.PipeWriter
		var answers []chan int
		for range httpapi.MaxBodiesPerOrg {
			sender, status := send(s.acme.agent, own, int64(len(event)))
			// The first byte is read when the body was admitted.
			if _, err := io.WriteString(sender, event[:1]); err != nil {
				t.Fatal(err)
			}
			senders, answers = append(senders, sender), append(answers, status)
		}
		waiting, waited := send(s.acme.agent, own, length)
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			_, _ = io.WriteString(waiting, event[:1])
			finish(waiting, waited)
		}()
		sender, status := send(s.rival.agent, other, length)
		if _, err := io.WriteString(sender, event[:1]); err != nil {
			t.Fatal(err)
		}
		finish(sender, status)
		select {
		case <-sent:
			t.Error("an organization holds more large bodies than it may")
		default:
		}
		for i := range senders {
			finish(senders[i], answers[i])
		}
		<-sent
	}
}

// However many requests of an organization's agents read at once, its members and other
// organizations read, and everyone writes. The agents' own wait for each other. Only a request
// that waits for a decision is exempt, because it has a limit of its own.
//
//countersign:race
func TestReadsOfOneOrganizationWaitForEachOther(t *testing.T) {
	eachStore(t, func(t *testing.T, open func(*testing.T) *database) {
		s := start(t, open(t), setup{})
		s.patch(t, s.acme.admin, `{"high_risk_agents":["agent"]}`).expect(t, http.StatusOK)
		id := s.open(t, s.acme.agent, `{"name":"n"}`)
		approval := "/v1/approvals/" + s.ask(t, s.acme.agent, id)
		paths := []string{"/v1/chains/" + id, "/v1/chains/" + id + "?wait=1", approval, approval + "?wait=0"}
		release := s.api.HoldReads(ledger.OrgID{UUID: uuid.MustParse(s.acme.id)})
		read := make(chan *answer, len(paths))
		for _, path := range paths {
			go func() { read <- s.get(t, s.acme.agent, path) }()
		}
		s.get(t, s.acme.agent, approval+"?wait=0.01").expect(t, http.StatusOK)
		s.get(t, s.acme.member, "/v1/chains/"+id).expect(t, http.StatusOK)
		s.get(t, s.rival.agent, "/v1/chains").expect(t, http.StatusOK)
		s.open(t, s.acme.agent, `{"name":"another"}`)
		select {
		case <-read:
			t.Fatal("a request was read beside too many others of its organization")
		default:
		}
		release()
		for range paths {
			(<-read).expect(t, http.StatusOK)
		}
	})
}
