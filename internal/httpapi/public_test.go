package httpapi_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

// browser is what one sends.
var browser = http.Header{"Accept": {"text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"}}

func (s *stack) browse(t *testing.T, path string) *answer {
	t.Helper()
	return s.do(t, call{method: http.MethodGet, path: path, header: browser})
}

// Whatever is wrong with a link, the answer is the same, to the byte and in every
// header but those that name the request and its time.
func TestBadLinksAreAlike(t *testing.T) {
	eachStore(t, func(t *testing.T, open func(*testing.T) *database) {
		c := &handClock{}
		c.now.Store(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).UnixMilli())
		s := start(t, open(t), setup{clock: c.Now})
		sealed := *s.seal(t, s.acme.agent, "links").ReceiptID
		revoked, good := s.issue(t, s.acme.admin, "receipt", sealed), s.issue(t, s.acme.admin, "receipt", sealed)
		s.post(t, s.acme.admin, tokensPath+"/"+revoked.ID+"/revoke", "").expect(t, http.StatusOK)
		body := fmt.Sprintf(`{"artifact_type":"receipt","artifact_id":%q,"expires_at":"2026-03-01T12:00:01Z"}`, sealed)
		expired := decode[publicToken](t, s.post(t, s.acme.admin, tokensPath, body).expect(t, http.StatusCreated))
		c.advance(1)
		links := map[string]string{
			"unknown": unknownToken(), "revoked": revoked.Token, "expired": expired.Token, "cut off": good.Token[:30],
			"too long": good.Token + "0", "one letter off": good.Token[:20] + "~" + good.Token[21:], "a word": "planted-token", "a blank": "%20",
			"a dot": "a.b", "NUL": "%00", "no UTF-8": "%ff%fe", "a slash": "a%2Fb", "another case": strings.ToUpper(good.Token),
			"very long": strings.Repeat("a", 5000), "an API key": s.acme.admin.text, "its own id": good.ID, "the receipt's id": sealed, "a percent": "%25",
		}
		for _, kind := range []http.Header{nil, browser} {
			look := func(link string) *answer {
				return s.do(t, call{method: http.MethodGet, path: "/public/v2/verify/" + link, header: kind})
			}
			first := look(links["unknown"]).expect(t, http.StatusNotFound)
			for name, link := range links {
				got := look(link).expect(t, http.StatusNotFound)
				got.without(t, planted)
				if got.anonymous() != first.anonymous() || !sameHeaders(got, first) {
					t.Errorf("a link that is %s is answered %s with %v,\nan unknown one %s with %v", name, got.body, got.header, first.body, first.header)
				}
			}
		}
		s.get(t, credential{}, good.Path).expect(t, http.StatusOK)
	})
}

func sameHeaders(a, b *answer) bool {
	keep := func(h http.Header) http.Header {
		kept := maps.Clone(h)
		delete(kept, "X-Request-Id")
		delete(kept, "Date")
		if a.header.Get("Content-Type") == problemType {
			delete(kept, "Content-Length") // the request id counts up
		}
		return kept
	}
	return maps.EqualFunc(keep(a.header), keep(b.header), slices.Equal[[]string])
}

// Links by an approval's id still work, say that they are old, and are counted.
func TestLegacyLinks(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		asked := s.ask(t, s.acme.agent, s.open(t, s.acme.agent, `{"name":"planted-legacy"}`))
		token := s.issue(t, s.acme.admin, "approval", asked)
		decide := func() {
			s.post(t, s.acme.member, "/v1/approvals/"+asked+"/approve", `{"comment":"planted-comment"}`).expect(t, http.StatusOK)
		}
		for _, then := range []func(){func() {}, decide} {
			then()
			want := s.publicResult(t, token.Path)
			for _, path := range []string{"/public/approvals/" + asked, "/v1/approvals/" + asked + "/verify", "/public/approvals/" + strings.ToUpper(asked)} {
				got := s.get(t, credential{}, path).expect(t, http.StatusOK)
				if got.header.Get("Deprecation") != "@1794700800" || got.header.Get("Sunset") != "" ||
					got.header.Get("Link") != `</docs#verifyPublicToken>; rel="successor-version"` {
					t.Errorf("the headers are %v", got.header)
				}
				if result := s.publicResult(t, path); !maps.Equal(result, want) {
					t.Errorf("the old link shows %v, the token %v", result, want)
				}
				s.browse(t, path).expect(t, http.StatusOK)
			}
		}
		for _, id := range []string{uuid.NewString(), "x", token.ID, token.Token} {
			for _, path := range []string{"/public/approvals/" + id, "/v1/approvals/" + id + "/verify"} {
				s.get(t, credential{}, path).refuse(t, http.StatusNotFound, "not_found")
				s.browse(t, path).expect(t, http.StatusNotFound)
			}
		}
	})
}

// Nobody who needs no key is told to check one: every public route says the same.
func TestNothingToShowSpeaksOfNoKey(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		var said []string
		for _, id := range []string{uuid.NewString(), "x"} {
			for _, path := range []string{"/public/v2/verify/" + id, "/public/approvals/" + id, "/v1/approvals/" + id + "/verify", "/v1/receipts/" + id + "/verify"} {
				got := s.get(t, credential{}, path)
				got.refuse(t, http.StatusNotFound, "not_found")
				got.without(t, "organization", "the key")
				said = append(said, decode[struct{ Detail string }](t, got).Detail)
			}
		}
		if said = slices.Compact(said); len(said) != 1 || !strings.Contains(said[0], "nothing to show") {
			t.Errorf("the public routes say %q", said)
		}
	})
}

// publicResult is a minimized result, flattened, without the moment.
func (s *stack) publicResult(t *testing.T, path string) map[string]string {
	t.Helper()
	got := s.get(t, credential{}, path).expect(t, http.StatusOK)
	flat := make(map[string]string)
	flatten("", decode[map[string]any](t, got), flat)
	delete(flat, "verified_at")
	return flat
}

func flatten(prefix string, value map[string]any, into map[string]string) {
	for name, member := range value {
		if inner, ok := member.(map[string]any); ok {
			flatten(prefix+name+".", inner, into)
			continue
		}
		into[prefix+name] = fmt.Sprint(member)
	}
}

// The public result has these members and no others.
func TestPublicResult(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		token := s.issue(t, s.acme.admin, "receipt", *s.seal(t, s.acme.agent, "public").ReceiptID)
		got := slices.Sorted(maps.Keys(s.publicResult(t, token.Path)))
		want := []string{
			"artifact_type", "asymmetric_signature.key_status", "asymmetric_signature.status", "integrity.status", "overall_status",
			"timestamp_anchors.status", "verification_version",
		}
		if !slices.Equal(got, want) {
			t.Errorf("the public result has %v, want %v", got, want)
		}
	})
}

// The page says what the JSON says and nothing that could be taken for more, runs nothing but the script that hashes copies, which
// its policy names, loads nothing and tells nobody where it was.
func TestPublicPage(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		asked := s.ask(t, s.acme.agent, s.open(t, s.acme.agent, `{"name":"planted-page"}`))
		pages := map[string]string{
			"is verified":        s.issue(t, s.acme.admin, "receipt", *s.seal(t, s.acme.agent, "page").ReceiptID).Path,
			"is not decided yet": s.issue(t, s.acme.admin, "approval", asked).Path,
			"nothing to show":    "/public/v2/verify/" + unknownToken(),
		}
		denied := s.ask(t, s.acme.agent, s.open(t, s.acme.agent, `{"name":"denied"}`))
		s.post(t, s.acme.member, "/v1/approvals/"+denied+"/deny", `{}`).expect(t, http.StatusOK)
		pages["The record of this decision is verified"] = s.issue(t, s.acme.admin, "approval", denied).Path
		// Nobody must take a denial whose record is verified for an approval.
		if page := string(s.browse(t, "/public/approvals/"+denied).body); !strings.Contains(page, "This page does not show whether the action was approved or denied.") {
			t.Errorf("the page of a denial is:\n%s", page)
		}
		broken := *s.seal(t, s.rival.agent, "page").ReceiptID
		pages["failed verification"] = s.issue(t, s.rival.admin, "receipt", broken).Path
		s.database.editReceipt(t, broken, func(body string) string { return flipAfter(body, `"signature":"hmac-sha256:`) })
		ownScript := regexp.MustCompile(`(?s)<script>(.*)</script>`)
		active := regexp.MustCompile(`(?i)<script|<link|<img|<form [^>]*action|<iframe|\sstyle=|\son[a-z]+=|javascript:|(src|href)=|@import|url\(`)
		for says, path := range pages {
			got := s.browse(t, path)
			page, policy := string(got.body), got.header.Get("Content-Security-Policy")
			if script := ownScript.FindStringSubmatch(page); script != nil {
				sum := sha256.Sum256([]byte(script[1]))
				if want := "script-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; connect-src 'self'"; !strings.HasSuffix(policy, want) {
					t.Errorf("the policy of a page with a script is %s", policy)
				}
				page = strings.Replace(page, script[0], "", 1)
			} else if got.status == http.StatusOK || strings.Contains(policy, "script-src") || strings.Contains(policy, "connect-src") {
				t.Errorf("a page of status %d has no script, under %s", got.status, policy)
			}
			page = strings.Replace(page, `<a href="/verify">`, "", 1)
			if !strings.Contains(page, says) || active.MatchString(page) || !strings.Contains(page, `name="viewport"`) {
				t.Errorf("the page that should say %q is:\n%s", says, page)
			}
			if got.header.Get("Content-Type") != "text/html; charset=utf-8" || !strings.HasPrefix(policy, "default-src 'none'; style-src 'sha256-") || strings.Contains(policy, "unsafe") {
				t.Errorf("%s under %s", got.header.Get("Content-Type"), policy)
			}
			if strings.Contains(page, "not applicable") || got.status == http.StatusOK && !strings.Contains(page, "names no ") {
				t.Errorf("the page reads as if something were missing:\n%s", page)
			}
			got.without(t, planted, path, s.acme.id, s.rival.id, "acme", "rival")
			plain := s.get(t, credential{}, path)
			if plain.status != got.status {
				t.Errorf("the page has status %d, the JSON %d", got.status, plain.status)
			}
		}
	})
}

// A public link is answered with a page when the client prefers HTML to JSON, and
// otherwise with JSON.
func TestWhoGetsAPage(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		path := s.issue(t, s.acme.admin, "receipt", *s.seal(t, s.acme.agent, "page").ReceiptID).Path
		for accept, page := range map[string]bool{
			"": false, "*/*": false, "text/*": false, "application/json": false, "text/html": true, "TEXT/HTML": true, "text/html;q=0": false,
			"text/html;q=0.5, application/json": false, "application/json;q=0.5,text/html": true, "application/json,text/html": false,
			"text/html;q=planted": false, browser.Get("Accept"): true, ";,;/": false, strings.Repeat("text/html;q=0.1,", 2000): true,
		} {
			got := s.do(t, call{method: http.MethodGet, path: path, header: http.Header{"Accept": {accept}}}).expect(t, http.StatusOK)
			if json.Valid(got.body) == page {
				t.Errorf("Accept: %.60s was answered with %s", accept, got.header.Get("Content-Type"))
			}
		}
	})
}
