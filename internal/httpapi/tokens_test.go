package httpapi_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

type publicToken struct {
	ID         string  `json:"token_id"`
	Type       string  `json:"artifact_type"`
	Artifact   string  `json:"artifact_id"`
	Status     string  `json:"status"`
	ExpiresAt  *string `json:"expires_at"`
	RevokedAt  *string `json:"revoked_at"`
	Reason     *string `json:"revocation_reason"`
	LastUsedAt *string `json:"last_used_at"`
	Token      string  `json:"token"`
	Path       string  `json:"public_path"`
}

const tokensPath = "/v1/public-verification-tokens"

func (s *stack) issue(t *testing.T, key credential, kind, id string) publicToken {
	t.Helper()
	body := fmt.Sprintf(`{"artifact_type":%q,"artifact_id":%q}`, kind, id)
	return decode[publicToken](t, s.post(t, key, tokensPath, body).expect(t, http.StatusCreated))
}

// unknownToken has the form of a token that nobody was given.
func unknownToken() string { return "cvt_" + randomHex(24)[:43] }

// tokenForms are the forms in which a token could show through.
func tokenForms(text string) []string {
	sum := sha256.Sum256([]byte(text))
	return []string{
		text, text[4:30], hex.EncodeToString(sum[:]), hex.EncodeToString(sum[:8]),
		base64.StdEncoding.EncodeToString(sum[:])[:20], base64.RawURLEncoding.EncodeToString(sum[:])[:20],
	}
}

// A token's text is shown once, is stored by its hash alone, and opens its link
// until it is revoked or expires.
func TestTokens(t *testing.T) {
	eachStore(t, func(t *testing.T, open func(*testing.T) *database) {
		c := &handClock{}
		c.now.Store(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).UnixMilli())
		s := start(t, open(t), setup{clock: c.Now})
		sealed := *s.seal(t, s.acme.agent, "planted-token").ReceiptID
		asked := s.ask(t, s.acme.agent, s.open(t, s.acme.agent, `{"name":"n"}`))
		var made []string
		for kind, id := range map[string]string{"receipt": sealed, "approval": asked} {
			issued := s.issue(t, s.acme.admin, kind, strings.ToUpper(id))
			made = append(made, issued.ID)
			secret := tokenForms(issued.Token)
			if issued.Status != "active" || issued.Type != kind || issued.Artifact != id || issued.Path != "/public/v2/verify/"+issued.Token || issued.ExpiresAt != nil {
				t.Errorf("issued %s of %s at %s", issued.Status, issued.Type, issued.Path[:18])
			}
			if strings.Contains(s.database.dump(t), issued.Token[4:30]) {
				t.Error("the token is stored as it is")
			}
			s.get(t, credential{}, issued.Path).expect(t, http.StatusOK).without(t, secret...)
			for _, path := range []string{tokensPath, "/v1/audit-log"} {
				s.get(t, s.acme.admin, path).expect(t, http.StatusOK).without(t, secret...)
			}
			if used := s.tokenOf(t, issued.ID).LastUsedAt; used != nil {
				t.Errorf("used at %s before anyone wrote it down", *used)
			}
			if err := s.Service.FlushTokenUse(t.Context()); err != nil {
				t.Fatal(err)
			}
			if used := s.tokenOf(t, issued.ID).LastUsedAt; used == nil || *used != "2026-03-01T12:00:00.000Z" {
				t.Errorf("last used at %v", used)
			}
			revoked := s.post(t, s.acme.admin, tokensPath+"/"+issued.ID+"/revoke", `{"reason":"lost"}`).expect(t, http.StatusOK).without(t, secret...)
			s.get(t, credential{}, issued.Path).refuse(t, http.StatusNotFound, "not_found").without(t, secret...)
			c.advance(60)
			again := s.post(t, s.acme.admin, tokensPath+"/"+issued.ID+"/revoke", `{"reason":"another"}`).expect(t, http.StatusOK)
			first := decode[publicToken](t, revoked)
			if string(again.body) != string(revoked.body) || first.Status != "revoked" || *first.Reason != "lost" || first.RevokedAt == nil {
				t.Errorf("revoked again, it answers %s, not %s", again.body, revoked.body)
			}
			c.advance(-60)
		}
		expires := c.Now().Add(time.Hour).UTC().Format(time.RFC3339Nano)
		body := fmt.Sprintf(`{"artifact_type":"receipt","artifact_id":%q,"expires_at":%q}`, sealed, expires)
		short := decode[publicToken](t, s.post(t, s.acme.admin, tokensPath, body).expect(t, http.StatusCreated))
		c.advance(3599.999)
		s.get(t, credential{}, short.Path).expect(t, http.StatusOK)
		c.advance(0.001)
		s.get(t, credential{}, short.Path).refuse(t, http.StatusNotFound, "not_found")
		if listed := s.tokenOf(t, short.ID); listed.Status != "expired" || listed.RevokedAt != nil {
			t.Errorf("expired, it is listed as %+v", listed)
		}
		made = append(made, short.ID)
		for range 4 {
			made = append(made, s.issue(t, s.acme.admin, "receipt", sealed).ID)
		}
		slices.Sort(made)
		slices.Reverse(made) // newest first
		for _, limit := range []int{1, 3, 7, 50} {
			var ids []string
			for _, listed := range everyPage[publicToken](t, s, s.acme.admin, tokensPath, limit) {
				ids = append(ids, listed.ID)
			}
			if !slices.Equal(ids, made) {
				t.Errorf("pages of %d list %d tokens, want %d, or in another order", limit, len(ids), len(made))
			}
		}
	})
}

func (s *stack) tokenOf(t *testing.T, id string) publicToken {
	t.Helper()
	for _, listed := range everyPage[publicToken](t, s, s.acme.admin, tokensPath, 50) {
		if listed.ID == id {
			return listed
		}
	}
	t.Fatal("the token is not listed")
	return publicToken{}
}

// Issued again under its key, a token is found without its text; however many ask
// at once, there is one.
//
//countersign:race
func TestTokensAreIssuedOnce(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		first, second := *s.seal(t, s.acme.agent, "a").ReceiptID, *s.seal(t, s.acme.agent, "b").ReceiptID
		issue := func(key credential, id string) *answer {
			return s.do(t, call{
				method: http.MethodPost, path: tokensPath, key: key.text, header: http.Header{"Idempotency-Key": {"planted-k"}},
				body: fmt.Appendf(nil, `{"artifact_type":"receipt","artifact_id":%q}`, id),
			})
		}
		var texts []string
		ids := make(map[string]bool)
		for _, got := range together(8, func(int) *answer { return issue(s.acme.admin, first) }) {
			answered := decode[publicToken](t, got)
			ids[answered.ID] = true
			if got.status == http.StatusCreated {
				texts = append(texts, answered.Token)
				continue
			}
			got.expect(t, http.StatusOK).without(t, `"token"`, `"public_path"`, "cvt_")
		}
		if len(ids) != 1 || len(texts) != 1 {
			t.Fatalf("%d tokens were issued, and %d texts shown", len(ids), len(texts))
		}
		issue(s.acme.admin, second).refuse(t, http.StatusConflict, "idempotency_conflict").without(t, tokenForms(texts[0])...)
		s.get(t, credential{}, "/public/v2/verify/"+texts[0]).expect(t, http.StatusOK)
		theirs := *s.seal(t, s.rival.agent, "theirs").ReceiptID
		issue(s.rival.admin, theirs).expect(t, http.StatusCreated) // another organization's keys are its own
		if n := len(everyPage[publicToken](t, s, s.acme.admin, tokensPath, 50)); n != 1 {
			t.Errorf("%d tokens are listed", n)
		}
	})
}

// What cannot have a token gets none, and nothing tells why.
func TestTokensThatAreRefused(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		mine, theirs := *s.seal(t, s.acme.agent, "a").ReceiptID, *s.seal(t, s.rival.agent, "b").ReceiptID
		id := s.open(t, s.rival.agent, `{"name":"n"}`)
		asked := s.ask(t, s.rival.agent, id)
		var refusals []refusal
		post := func(name, body string, status int, code string, pointers ...string) {
			c := call{method: http.MethodPost, path: tokensPath, key: s.acme.admin.text, body: []byte(body)}
			refusals = append(refusals, refusal{name, c, status, code, pointers})
		}
		for name, artifact := range map[string][2]string{
			"another organization's receipt": {"receipt", theirs}, "another organization's approval": {"approval", asked},
			"no receipt": {"receipt", uuid.NewString()}, "no approval": {"approval", uuid.NewString()},
			"a receipt as an approval": {"approval", mine}, "a chain": {"receipt", id},
		} {
			post(name, fmt.Sprintf(`{"artifact_type":%q,"artifact_id":%q}`, artifact[0], artifact[1]), 404, "not_found")
		}
		for name, at := range map[string]string{"expired": "2020-01-01T00:00:00Z", "expires before it is issued": time.Now().Add(-time.Second).UTC().Format(time.RFC3339)} {
			post(name, fmt.Sprintf(`{"artifact_type":"receipt","artifact_id":%q,"expires_at":%q}`, mine, at), 422, "invalid_request", "/expires_at")
		}
		token := s.issue(t, s.rival.admin, "receipt", theirs)
		refusals = append(refusals, refusal{"another organization's token", call{method: http.MethodPost, path: tokensPath + "/" + token.ID + "/revoke", key: s.acme.admin.text}, 404, "not_found", nil})
		checkRefusals(t, s, refusals)
		s.get(t, credential{}, token.Path).expect(t, http.StatusOK)
	})
}
