package httpapi_test

import (
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

// What has the form of evidence or of a secret must not be in an answer of these
// routes: stricter than a list of the values that were seen.
var (
	aHash  = regexp.MustCompile(`[0-9a-fA-F]{32,}|(sha256|hmac)[:-]`)
	aBlob  = regexp.MustCompile(`[A-Za-z0-9+/_-]{40,}`)
	aUUID  = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	hidden = []string{"planted-note", "planted-query", "planted-message", "planted-proof", "6000", "csk_", "cvt_", "-----BEGIN"}
)

// exposure is what a reader may find in an answer beyond plain words.
type exposure struct {
	ids   []string // uuids
	blobs []string // long words
	words []string // of those that are kept from others
}

// withoutScripts is a page without the scripts that it carries, which are the same for all.
func withoutScripts(t *testing.T, page string) string {
	t.Helper()
	for _, name := range []string{"pages/bundle-format.js", "pages/bundle-checks.js", "pages/verify.js", "pages/public.js"} {
		script, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		page = strings.ReplaceAll(page, string(script), "")
	}
	return page
}

// withholds expects an answer to hold nothing but what the reader may see.
func (h *history) withholds(t *testing.T, who string, a *answer, may exposure) {
	t.Helper()
	text := withoutScripts(t, string(a.body))
	plain := aUUID.ReplaceAllString(text, "")
	for _, word := range append([]string{"planted-comment", "a member", "first admin"}, hidden...) {
		if !slices.Contains(may.words, word) && strings.Contains(plain, word) {
			t.Errorf("%s finds %q in %s", who, word, text)
		}
	}
	for _, id := range aUUID.FindAllString(text, -1) {
		if !slices.Contains(may.ids, id) {
			t.Errorf("%s finds the id %s in %s", who, id, text)
		}
	}
	for _, blob := range may.blobs {
		plain = strings.ReplaceAll(plain, blob, "")
	}
	for _, pattern := range []*regexp.Regexp{aHash, aBlob} {
		if found := pattern.FindString(plain); found != "" {
			t.Errorf("%s finds %q in %s", who, found, text)
		}
	}
}

// TestNothingLeaks reads every route of verification in every role, of a history
// that is whole and of histories that were tampered with.
func TestNothingLeaks(t *testing.T) {
	eachStore(t, func(t *testing.T, open func(*testing.T) *database) {
		c := &handClock{}
		c.now.Store(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).UnixMilli())
		s := start(t, open(t), setup{clock: c.Now})
		for i, intrusion := range []string{"nothing", "approval's record edited", "receipt edited", "anchors verified"} {
			t.Run(intrusion, func(t *testing.T) {
				t.Parallel()
				h := live(t, s, c, "leaks-"+string(rune('a'+i)))
				intrusions[intrusion](t, h)
				for name := range h.artifacts {
					h.readArtifact(t, name)
				}
				h.readLists(t)
			})
		}
	})
}

func (h *history) readArtifact(t *testing.T, name string) {
	t.Helper()
	made := h.artifacts[name]
	path := "/v1/verification/v2/" + made.kind + "s/" + made.id
	ids := []string{made.id}
	for _, chain := range h.chains {
		ids = append(ids, chain)
	}
	h.withholds(t, "a member", h.get(t, h.tenant.member, path).expect(t, http.StatusOK), exposure{ids: ids})
	// Admins learn who decided, what they wrote and which key signed it.
	admin := exposure{ids: append(ids, h.tenant.member.id.String()), words: []string{"planted-comment", "a member", "6000"}} // the reason names the amount
	for _, key := range decode[page[signingKey]](t, h.get(t, h.tenant.admin, signingPath)).Data {
		admin.ids = append(admin.ids, key.ID)
	}
	h.withholds(t, "an admin", h.get(t, h.tenant.admin, path).expect(t, http.StatusOK), admin)
	for who, key := range map[string]credential{"an agent": h.tenant.agent, "another organization": h.stack.acme.admin, "nobody": {}} {
		got := h.get(t, key, path)
		if got.status < http.StatusBadRequest {
			t.Errorf("%s was answered %d", who, got.status)
		}
		h.withholds(t, who, got, exposure{})
	}
	public := []string{made.token.Path}
	if made.kind == "approval" {
		public = append(public, "/public/approvals/"+made.id, "/v1/approvals/"+made.id+"/verify")
	}
	for _, path := range public {
		for _, got := range []*answer{h.get(t, credential{}, path), h.browse(t, path)} {
			h.withholds(t, "a stranger", got.expect(t, http.StatusOK), exposure{blobs: []string{"max-width: 36rem"}})
			got.without(t, planted, "CSN-", made.token.ID, h.tenant.slug, "payer", "pay_invoice")
		}
	}
}

func (h *history) readLists(t *testing.T) {
	t.Helper()
	var ids, keys []string
	for _, made := range h.artifacts {
		ids = append(ids, made.id, made.token.ID)
	}
	h.withholds(t, "an admin", h.get(t, h.tenant.admin, tokensPath).expect(t, http.StatusOK), exposure{ids: ids})
	revoked := h.post(t, h.tenant.admin, tokensPath+"/"+h.artifacts["receipt.first"].token.ID+"/revoke", `{"reason":"lost"}`).expect(t, http.StatusOK)
	h.withholds(t, "an admin", revoked, exposure{ids: ids})
	h.withholds(t, "an admin", h.get(t, h.tenant.admin, "/v1/verification/v2/ledger").expect(t, http.StatusOK), exposure{})
	listed := h.get(t, h.tenant.admin, signingPath).expect(t, http.StatusOK)
	for _, key := range decode[page[signingKey]](t, listed).Data {
		ids, keys = append(ids, key.ID), append(keys, key.PublicKey)
	}
	h.withholds(t, "an admin", listed, exposure{ids: ids, blobs: keys})
	sealed := h.database.privateKeys(t, uuid.MustParse(h.tenant.id))
	if len(sealed) == 0 {
		t.Error("no private key is stored")
	}
	for _, private := range sealed {
		listed.without(t, hex.EncodeToString(private)[:24], base64.StdEncoding.EncodeToString(private)[:24])
	}
	for _, path := range []string{tokensPath, signingPath, "/v1/verification/v2/ledger"} {
		for who, key := range map[string]credential{"a member": h.tenant.member, "an agent": h.tenant.agent, "nobody": {}} {
			got := h.get(t, key, path)
			if got.status < http.StatusBadRequest {
				t.Errorf("%s was answered %d", who, got.status)
			}
			h.withholds(t, who, got, exposure{})
		}
	}
}
