package httpapi_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"testing"
)

// A key's text is shown once; nothing that follows shows it or a hash of it.
func TestAPIKeys(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		for _, role := range []string{"agent", "member", "admin"} {
			t.Run(role, func(t *testing.T) {
				made := decode[apiKey](t, s.post(t, s.acme.admin, "/v1/api-keys", `{"name":"a – key","role":"`+role+`"}`).expect(t, http.StatusCreated).without(t, s.acme.id))
				if made.Role != role || made.Name != "a – key" || made.Status != "active" || made.Hint != "csk_…"+made.Key[len(made.Key)-4:] {
					t.Errorf("made %+v", made)
				}
				key := credential{text: made.Key}
				s.get(t, key, "/v1/chains").expect(t, http.StatusOK)
				secret := secretsOf(made.Key)
				s.get(t, s.acme.admin, "/v1/api-keys").expect(t, http.StatusOK).without(t, secret...)

				revoked := s.post(t, s.acme.admin, "/v1/api-keys/"+made.ID+"/revoke", "").expect(t, http.StatusOK).without(t, secret...)
				first := decode[apiKey](t, revoked)
				if first.Status != "revoked" || first.RevokedAt == nil || first.ID != made.ID {
					t.Errorf("revoked as %+v", first)
				}
				for _, refused := range []*answer{
					s.get(t, key, "/v1/chains"), s.post(t, key, "/v1/chains", `{"name":"n"}`), s.get(t, key, "/v1/organization"), s.post(t, key, "/v1/api-keys", `{"role":"admin"}`),
				} {
					refused.refuse(t, http.StatusUnauthorized, "unauthenticated").without(t, secret...)
				}
				again := s.post(t, s.acme.admin, "/v1/api-keys/"+made.ID+"/revoke", "").expect(t, http.StatusOK)
				if string(again.body) != string(revoked.body) {
					t.Errorf("revoked again, it answers %s, not %s", again.body, revoked.body)
				}
			})
		}
		for range 2 {
			s.post(t, s.acme.admin, "/v1/api-keys", `{"role":"agent","name":null}`).expect(t, http.StatusCreated)
			s.post(t, s.acme.admin, "/v1/api-keys", `{"role":"agent","name":"workers"}`).expect(t, http.StatusCreated)
		}
		s.post(t, s.acme.admin, "/v1/api-keys", `{"role":"member","name":"treasury"}`).expect(t, http.StatusCreated)
		for _, role := range []string{"agent", "member", "admin"} {
			s.post(t, s.acme.admin, "/v1/api-keys", `{"role":"`+role+`","name":"treasury"}`).refuse(t, http.StatusConflict, "name_taken")
		}
		s.post(t, s.rival.admin, "/v1/api-keys/"+s.acme.agent.id.String()+"/revoke", "").refuse(t, http.StatusNotFound, "not_found")
		s.get(t, s.acme.agent, "/v1/chains").expect(t, http.StatusOK)
	})
}

// secretsOf are the forms in which a key could show through.
func secretsOf(key string) []string {
	sum := sha256.Sum256([]byte(key))
	return []string{
		key, key[4:47], key[:12], hex.EncodeToString(sum[:]), hex.EncodeToString(sum[:8]),
		base64.StdEncoding.EncodeToString(sum[:])[:20], base64.StdEncoding.EncodeToString([]byte(key))[:20],
	}
}

// A write that a revoked key has begun is judged by what is stored, not by what
// is remembered.
func TestRevocationIsImmediate(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		key := s.credential(t, s.acme.slug, "agent")
		id := s.open(t, key, `{"name":"n"}`)
		event := s.record(t, key, id, anAction).EventID
		s.revokeElsewhere(t, key.id)
		before := s.database.dump(t)
		for _, refused := range []*answer{
			s.post(t, key, "/v1/chains/"+id+"/events", anAction),
			s.post(t, key, "/v1/chains/"+id+"/events/"+event+"/outcome", `{"outcome":"failed"}`),
			s.post(t, key, "/v1/chains/"+id+"/complete", ""),
			s.post(t, key, "/v1/chains", `{"name":"n"}`),
			s.get(t, key, "/v1/chains/"+id),
		} {
			refused.refuse(t, http.StatusUnauthorized, "unauthenticated")
		}
		if s.database.dump(t) != before {
			t.Error("a revoked key changed what is stored")
		}
	})
}

// A missing, malformed, unknown or revoked key is answered 401, and the answer
// repeats no part of a key.
func TestBadCredentials(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		valid := s.acme.admin.text
		swapped := []byte(valid)
		swapped[10], swapped[11] = swapped[11]^1, swapped[10]
		for name, test := range map[string]struct{ header, code string }{
			"no header":        {"", "unauthenticated"},
			"no scheme":        {valid, "unauthenticated"},
			"another scheme":   {"Basic " + valid, "unauthenticated"},
			"nothing after it": {"Bearer ", "unauthenticated"},
			"cut off":          {"Bearer " + valid[:52], "malformed_key"},
			"too long":         {"Bearer " + valid + "0", "malformed_key"},
			"mistyped":         {"Bearer " + string(swapped), "malformed_key"},
			"another prefix":   {"Bearer xsk_" + valid[4:], "malformed_key"},
			"two keys":         {"Bearer " + valid + " " + valid, "malformed_key"},
			"unknown":          {"Bearer " + unknownKey(), "unauthenticated"},
			"revoked":          {"Bearer " + s.acme.revoked.text, "unauthenticated"},
		} {
			t.Run(name, func(t *testing.T) {
				c := call{method: http.MethodGet, path: "/v1/organization"}
				if test.header != "" {
					c.header = http.Header{"Authorization": {test.header}}
				}
				s.do(t, c).refuse(t, http.StatusUnauthorized, test.code).without(t, valid[4:30], s.acme.revoked.text[4:30])
			})
		}
		for _, scheme := range []string{"Bearer", "bearer", "BEARER"} {
			header := http.Header{"Authorization": {scheme + " " + valid}}
			s.do(t, call{method: http.MethodGet, path: "/v1/organization", header: header}).expect(t, http.StatusOK)
		}
	})
}
