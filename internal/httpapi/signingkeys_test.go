package httpapi_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
)

type signingKey struct {
	ID        string  `json:"key_id"`
	Name      *string `json:"name"`
	Status    string  `json:"status"`
	PublicKey string  `json:"public_key"`
	RetiredAt *string `json:"retired_at"`
	RevokedAt *string `json:"revoked_at"`
}

const signingPath = "/v1/signing-keys"

func (s *stack) signingKeys(t *testing.T, limit int) []signingKey {
	t.Helper()
	return everyPage[signingKey](t, s, s.acme.admin, signingPath, limit)
}

// Signing keys can be made, imported, retired and revoked, and an organization
// always has an active one.
func TestSigningKeys(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		keys := s.signingKeys(t, 50)
		if len(keys) != 1 || keys[0].Status != "active" {
			t.Fatalf("an organization begins with %+v", keys)
		}
		made := decode[signingKey](t, s.post(t, s.acme.admin, signingPath, `{"name":"autumn"}`).expect(t, http.StatusCreated))
		public, _, err := ed25519.GenerateKey(nil)
		if err != nil {
			t.Fatal(err)
		}
		old := base64.StdEncoding.EncodeToString(public)
		imported := decode[signingKey](t, s.post(t, s.acme.admin, signingPath, `{"name":null,"public_key":"`+old+`"}`).expect(t, http.StatusCreated))
		if made.Status != "active" || *made.Name != "autumn" || imported.Status != "historical" || imported.PublicKey != old || imported.Name != nil {
			t.Errorf("made %+v, imported %+v", made, imported)
		}
		end := func(id, how string) *answer { return s.post(t, s.acme.admin, signingPath+"/"+id+"/"+how, "") }
		end(imported.ID, "retire").refuse(t, http.StatusConflict, "signing_key_state")
		end(imported.ID, "revoke").expect(t, http.StatusOK)
		retired := end(made.ID, "retire").expect(t, http.StatusOK)
		if again := end(made.ID, "retire").expect(t, http.StatusOK); string(again.body) != string(retired.body) {
			t.Errorf("retired again, it answers %s, not %s", again.body, retired.body)
		}
		// The last active key never goes without a successor.
		revoked := decode[signingKey](t, end(keys[0].ID, "revoke").expect(t, http.StatusOK))
		if revoked.Status != "revoked" || revoked.RevokedAt == nil {
			t.Errorf("revoked %+v", revoked)
		}
		end(keys[0].ID, "retire").expect(t, http.StatusOK) // revoked it stays
		var statuses []string
		for _, limit := range []int{1, 2, 4, 50} {
			statuses = nil
			for _, key := range s.signingKeys(t, limit) {
				statuses = append(statuses, key.Status)
			}
			if !slices.Equal(statuses, []string{"revoked", "retired", "revoked", "active"}) {
				t.Errorf("in pages of %d the keys are %v", limit, statuses)
			}
		}
		s.post(t, s.rival.admin, signingPath+"/"+made.ID+"/revoke", "").refuse(t, http.StatusNotFound, "not_found")
		for n := len(statuses); n < 100; n++ {
			s.post(t, s.acme.admin, signingPath, "").expect(t, http.StatusCreated)
		}
		s.post(t, s.acme.admin, signingPath, "{}").refuse(t, http.StatusUnprocessableEntity, "invalid_request")
	})
}

// Keys come and go while people decide and others verify: what verified once
// verifies for ever, and no decision is without a signature.
//
//countersign:race
func TestKeyRotationUnderLoad(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		const deciders, each, rotations = 4, 6, 12
		var decided sync.Map // approval ids
		var done atomic.Bool
		var deciding, others sync.WaitGroup
		asked := make([][]string, deciders)
		for i := range asked {
			chain := s.open(t, s.acme.agent, fmt.Sprintf(`{"name":"load-%d"}`, i))
			for range each {
				asked[i] = append(asked[i], s.ask(t, s.acme.agent, chain))
			}
		}
		for i := range deciders {
			deciding.Go(func() {
				for n, id := range asked[i] {
					verdict := []string{"approve", "deny"}[n%2]
					if got := s.post(t, s.acme.member, "/v1/approvals/"+id+"/"+verdict, ""); got.status != http.StatusOK {
						t.Errorf("%s was answered %d", verdict, got.status)
					}
					s.stillVerifies(t, id)
					decided.Store(id, true)
				}
			})
		}
		others.Go(func() {
			for i := 0; i < rotations || !done.Load(); i++ {
				how := []string{"retire", "revoke"}[i%2]
				keys := s.signingKeys(t, 200)
				s.post(t, s.acme.admin, signingPath+"/"+keys[len(keys)-1].ID+"/"+how, "")
				if len(keys) > 90 {
					return
				}
			}
		})
		others.Go(func() {
			for !done.Load() {
				decided.Range(func(id, _ any) bool { s.stillVerifies(t, id.(string)); return true })
			}
		})
		deciding.Wait()
		done.Store(true)
		others.Wait()
		standings := make(map[string]int)
		for _, ids := range asked {
			for _, id := range ids {
				standings[s.stillVerifies(t, id)]++
			}
		}
		if standings["retired"]+standings["revoked"] == 0 {
			t.Errorf("no key that signed was ended: %v", standings)
		}
	})
}

// stillVerifies holds an approval that was decided to its promise, and returns
// its key's standing.
func (s *stack) stillVerifies(t *testing.T, id string) string {
	t.Helper()
	got := s.get(t, s.acme.member, "/v1/verification/v2/approvals/"+id)
	if got.status != http.StatusOK {
		t.Errorf("answered %d: %s", got.status, got.body)
		return ""
	}
	verdict := decode[verified](t, got).Verdict
	if verdict.Overall != "verified" || verdict.Signature.Status != "valid" {
		t.Errorf("what was decided does not verify: %s", got.body)
	}
	return verdict.Signature.Key
}
