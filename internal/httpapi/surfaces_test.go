package httpapi_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"countersign/internal/ledger"
)

// showing are the routes that show stored evidence, each with the paths that are asked
// in a history. Who reads them must not take for true what was forged.
var showing = map[string]func(h *history) []string{
	"GET /v1/chains":                                  func(*history) []string { return []string{"/v1/chains"} },
	"GET /v1/chains/{chain_id}":                       ofChains("/v1/chains/%s"),
	"GET /v1/chains/{chain_id}/events":                ofChains("/v1/chains/%s/events"),
	"GET /v1/chains/{chain_id}/receipt":               ofChains("/v1/chains/%s/receipt"),
	"GET /v1/chains/{chain_id}/approval-status":       ofChains("/v1/chains/%s/approval-status"),
	"GET /v1/approvals":                               func(*history) []string { return []string{"/v1/approvals"} },
	"GET /v1/approvals/{approval_id}":                 ofArtifacts("approval", "/v1/approvals/%s"),
	"GET /v1/approvals/{approval_id}/verify":          ofArtifacts("approval", "/v1/approvals/%s/verify"),
	"GET /public/approvals/{approval_id}":             ofArtifacts("approval", "/public/approvals/%s"),
	"GET /v1/verification/v2/approvals/{approval_id}": ofArtifacts("approval", "/v1/verification/v2/approvals/%s"),
	"GET /v1/receipts":                                func(*history) []string { return []string{"/v1/receipts"} },
	"GET /v1/receipts/{receipt_id}":                   ofArtifacts("receipt", "/v1/receipts/%s"),
	"GET /v1/receipts/{receipt_id}/bundle":            ofArtifacts("receipt", "/v1/receipts/%s/bundle?payloads=true"),
	"GET /v1/receipts/{receipt_id}/verify":            ofArtifacts("receipt", "/v1/receipts/%s/verify"),
	"GET /public/shares/{share}":                      func(h *history) []string { return h.shares },
	"GET /v1/verification/v2/receipts/{receipt_id}":   ofArtifacts("receipt", "/v1/verification/v2/receipts/%s"),
	"GET /v1/verification/v2/ledger":                  func(*history) []string { return []string{"/v1/verification/v2/ledger"} },
	"GET /public/v2/verify/{opaque_token}": func(h *history) (paths []string) {
		for _, made := range h.artifacts {
			paths = append(paths, made.token.Path)
		}
		return paths
	},
}

// silent are the other routes that answer a GET, with what they show instead.
var silent = map[string]string{
	"GET /v1/public-verification-tokens": "tokens", "GET /v1/shares": "tokens", "GET /v1/signing-keys": "keys", "GET /v1/api-keys": "keys",
	"GET /v1/organization": "settings", "GET /v1/budgets": "counters, which the audit counts anew", "GET /v1/policies": "policies", "GET /v1/policies/{version}": "policies",
	"GET /v1/kill-switch": "settings", "GET /v1/webhooks": "endpoints", "GET /v1/webhooks/{webhook_id}/deliveries": "deliveries", "GET /v1/audit-log": "acts, which the audit walks",
	"GET /.well-known/countersign/log-keys": "keys", "GET /public/log/{log_id}/checkpoint": "a signed hash", "GET /public/log/{log_id}/tile/{level}/{number...}": "hashes",
	"GET /healthz": "nothing", "GET /readyz": "nothing",
	"GET /openapi.json": "documents", "GET /openapi.yaml": "documents", "GET /docs": "documents", "GET /docs/{asset}": "documents", "GET /docs/guides": "documents", "GET /docs/guides/{name...}": "documents", "GET /verify": "a page that reads files of the reader's",
}

func ofChains(path string) func(*history) []string {
	return func(h *history) (paths []string) {
		for _, id := range h.chains {
			paths = append(paths, fmt.Sprintf(path, id))
		}
		return paths
	}
}

func ofArtifacts(kind, path string) func(*history) []string {
	return func(h *history) (paths []string) {
		for _, made := range h.artifacts {
			if made.kind == kind {
				paths = append(paths, fmt.Sprintf(path, made.id))
			}
		}
		return paths
	}
}

// A route that answers a GET stands in one of the two tables: one that shows evidence is
// tried below.
func TestEveryRouteThatShowsEvidenceIsTried(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		known := make(map[string]bool)
		for _, route := range s.api.Routes() {
			name := route.Method + " " + route.Pattern
			known[name] = true
			if _, listed := silent[name]; route.Method == http.MethodGet && listed == (showing[name] != nil) {
				t.Errorf("%s: list it as showing evidence, or say what it shows instead", name)
			}
		}
		for name := range showing {
			if !known[name] {
				t.Errorf("%s is no route", name)
			}
		}
	})
}

// Whatever somebody writes into a stored event, approval, entry or receipt, no route shows
// it to anyone: each answers without it, marks the place, or refuses.
func TestNoRouteShowsWhatWasForged(t *testing.T) {
	forgeries := map[string]struct {
		text   string
		marked []string // routes in whose answers the place is marked
	}{
		"payload edited":             {`"amount_usd":9000`, []string{"GET /v1/chains/{chain_id}/events", "GET /v1/approvals"}},
		"approval's reviewer edited": {"a forger", []string{"GET /v1/approvals"}},
		"addendum edited":            {`"approv"`, []string{"GET /v1/chains/{chain_id}/events"}},
		"event edited":               {"intruder..", []string{"GET /v1/chains/{chain_id}/events"}},
		"event removed":              {"there is no such text", []string{"GET /v1/chains/{chain_id}/events", "GET /v1/approvals"}},
		"receipt edited":             {`"total_actions":9`, []string{"GET /v1/receipts"}},
	}
	eachStore(t, func(t *testing.T, open func(*testing.T) *database) {
		c := &handClock{}
		c.now.Store(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).UnixMilli())
		s := start(t, open(t), setup{clock: c.Now, signing: true})
		n := 0
		for intrusion, forgery := range forgeries {
			n++
			slug := fmt.Sprint("forged-", n)
			t.Run(intrusion, func(t *testing.T) {
				t.Parallel()
				h := live(t, s, c, slug)
				h.exports(t, slug)
				if failed := h.marks(t, forgery.text); len(failed) > 0 {
					t.Fatalf("nothing was forged, and these mark something: %v", failed)
				}
				intrusions[intrusion](t, h)
				marked := h.marks(t, forgery.text)
				for _, name := range forgery.marked {
					if !marked[name] {
						t.Errorf("%s does not mark what was forged", name)
					}
				}
			})
		}
	})
}

// exports lets the organization's evidence out, and waits until it can be.
func (h *history) exports(t *testing.T, slug string) {
	t.Helper()
	receipts := int64(0)
	h.stack.patch(t, h.tenant.admin, `{"evidence_export":"admins"}`).expect(t, http.StatusOK)
	for _, made := range h.artifacts {
		if made.kind == "receipt" {
			receipts++
			got := h.stack.post(t, h.tenant.admin, "/v1/shares", `{"receipt_id":"`+made.id+`"}`).expect(t, http.StatusCreated)
			h.shares = append(h.shares, decode[struct {
				Path string `json:"public_path"`
			}](t, got).Path)
		}
	}
	h.stack.logBase(t, slug, receipts)
}

// marks asks everything that shows evidence, and returns the routes that mark a part of it
// as failed.
func (h *history) marks(t *testing.T, forged string) map[string]bool {
	t.Helper()
	marked := make(map[string]bool)
	for name, paths := range showing {
		for _, path := range paths(h) {
			got := h.get(t, h.tenant.admin, path)
			answers := [][]byte{got.body}
			if strings.HasPrefix(path, "/public/") {
				answers = append(answers, h.browse(t, path).body)
			}
			for _, body := range answers {
				if bytes.Contains(body, []byte(forged)) {
					t.Errorf("%s shows what was forged:\n%s", name, body)
				}
			}
			switch got.status {
			case http.StatusOK, http.StatusNotFound:
			default:
				got.refuse(t, http.StatusInternalServerError, "evidence_tampered")
			}
			if bytes.Contains(got.body, []byte(`"integrity":"failed"`)) {
				marked[name] = true
			}
		}
	}
	return marked
}

// Whoever holds a copy learns whether a link is about it, as a program and on the page. A
// forged copy matches nothing, and what is wrong with a link is told as the link itself
// tells it.
func TestCompareACopyWithALink(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		sealed, other := s.seal(t, s.acme.agent, "held"), s.seal(t, s.acme.agent, "another")
		token := s.issue(t, s.acme.admin, "receipt", *sealed.ReceiptID)
		compare := func(path, hash string) *answer {
			t.Helper()
			return s.post(t, credential{}, path+"/compare", fmt.Sprintf(`{"hash":%q}`, hash))
		}
		own := hashOf(sealed.Receipt)
		for hash, want := range map[string]bool{own: true, hashOf(other.Receipt): false, noHash: false} {
			if got := decode[struct{ Matches bool }](t, compare(token.Path, hash).expect(t, http.StatusOK)); got.Matches != want {
				t.Errorf("matches is %t, want %t", got.Matches, want)
			}
		}
		for _, bad := range []string{"", "sha256:", own[:70], own + "0", strings.ToUpper(own), own[7:], "md5:" + own[7:]} {
			compare(token.Path, bad).refuse(t, http.StatusUnprocessableEntity, "invalid_request")
			compare("/public/v2/verify/"+unknownToken(), bad).refuse(t, http.StatusUnprocessableEntity, "invalid_request")
		}
		s.post(t, credential{}, token.Path+"/compare", `{"hash":"`+own+`","more":1}`).refuse(t, http.StatusUnprocessableEntity, "invalid_request")
		s.post(t, credential{}, token.Path+"/compare", `{"hash":"`+strings.Repeat("x", 5000)+`"}`).refuse(t, http.StatusRequestEntityTooLarge, "too_large")
		unknown := compare("/public/v2/verify/"+unknownToken(), own).refuse(t, http.StatusNotFound, "not_found")
		if got := compare("/public/v2/verify/x", own); got.anonymous() != unknown.anonymous() {
			t.Errorf("a malformed token can be told from an unknown one:\n%s", got.body)
		}

		page := func(hash string) string {
			t.Helper()
			return string(s.do(t, call{
				method: http.MethodPost, path: token.Path, body: []byte("hash=" + hash),
				header: http.Header{"Accept": {"text/html"}, "Content-Type": {"application/x-www-form-urlencoded"}},
			}).expect(t, http.StatusOK).body)
		}
		if got := page(own); !strings.Contains(got, "This link is about exactly this receipt") || !strings.Contains(got, "is verified") {
			t.Errorf("the page says:\n%s", got)
		}
		if got := page(noHash); !strings.Contains(got, "about another receipt") {
			t.Errorf("the page says:\n%s", got)
		}
		if got := page("<b>"); !strings.Contains(got, "This is not a SHA-256 hash") || strings.Contains(got, "<b>") {
			t.Errorf("the page says:\n%s", got)
		}

		// A program that sends the form, as curl -d does, must not take the verdict on the link for a match.
		form := func(path, hash string) *answer {
			t.Helper()
			return s.do(t, call{
				method: http.MethodPost, path: path, body: []byte("hash=" + hash),
				header: http.Header{"Accept": {"*/*"}, "Content-Type": {"application/x-www-form-urlencoded"}},
			})
		}
		for _, path := range []string{token.Path, token.Path + "/compare"} {
			for hash, want := range map[string]bool{own: true, noHash: false} {
				if got := form(path, hash).expect(t, http.StatusOK); string(got.body) != fmt.Sprintf(`{"matches":%t}`, want) {
					t.Errorf("the form is answered with %s, want matches %t", got.body, want)
				}
			}
			form(path, "md5:"+own[7:]).refuse(t, http.StatusUnprocessableEntity, "invalid_request")
		}

		var forged string
		s.database.editReceipt(t, *sealed.ReceiptID, func(body string) string {
			forged = strings.Replace(body, `"total_actions":1`, `"total_actions":2`, 1)
			return forged
		})
		for _, hash := range []string{own, hashOf([]byte(forged))} {
			if got := decode[struct{ Matches bool }](t, compare(token.Path, hash).expect(t, http.StatusOK)); got.Matches {
				t.Error("a record that was changed matches")
			}
		}
	})
}

func hashOf(body []byte) string { return ledger.FormatHash(sha256.Sum256(body)) }
