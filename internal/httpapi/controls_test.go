package httpapi_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"countersign/internal/testdb"
)

type act struct {
	Sequence int             `json:"sequence"`
	Action   string          `json:"action"`
	Target   *string         `json:"target"`
	Detail   json.RawMessage `json:"detail"`
	Previous *string         `json:"previous_hash"`
	Actor    struct {
		KeyID *string `json:"key_id"`
		Name  string  `json:"name"`
		Role  string  `json:"role"`
	} `json:"actor"`
}

// Every administrative change is in the audit log, with who made it, and each
// entry carries the hash of the one before it.
func TestAuditLog(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		admin := s.acme.admin
		s.patch(t, admin, `{"approval_timeout_hours":12}`).expect(t, http.StatusOK)
		s.put(t, admin, "application/yaml", "rules: []\n").expect(t, http.StatusOK)
		s.post(t, admin, "/v1/kill-switch/activate", `{"reason":"an exercise"}`).expect(t, http.StatusOK)
		s.post(t, admin, "/v1/kill-switch/deactivate", "").expect(t, http.StatusOK)
		hook := decode[webhook](t, s.post(t, admin, "/v1/webhooks", `{"url":"https://hooks.example.com/"}`)).ID
		s.post(t, admin, "/v1/webhooks/"+hook+"/test", "").expect(t, http.StatusOK)
		s.do(t, call{method: http.MethodDelete, path: "/v1/webhooks/" + hook, key: admin.text}).expect(t, http.StatusNoContent)
		made := decode[apiKey](t, s.post(t, admin, "/v1/api-keys", `{"role":"agent","name":"for a while"}`))
		s.post(t, admin, "/v1/api-keys/"+made.ID+"/revoke", "").expect(t, http.StatusOK)
		id := s.open(t, s.acme.agent, `{"name":"n"}`)
		s.post(t, s.acme.member, "/v1/approvals/"+s.ask(t, s.acme.agent, id)+"/approve", "").expect(t, http.StatusOK)
		s.post(t, admin, "/v1/approvals/"+s.ask(t, s.acme.agent, id)+"/deny", "").expect(t, http.StatusOK)
		s.patch(t, admin, `{"auto_pause":{"max_events":1}}`).expect(t, http.StatusOK)
		s.record(t, s.acme.agent, id, anAction)
		s.post(t, admin, "/v1/chains/"+id+"/resume", "").expect(t, http.StatusOK)

		entries := everyPage[json.RawMessage](t, s, admin, "/v1/audit-log", 3)
		slices.Reverse(entries)
		var previous *string
		var actions []string
		for i, body := range entries {
			got := decode[act](t, &answer{body: body})
			if got.Sequence != i+1 || (got.Previous == nil) != (previous == nil) || previous != nil && *got.Previous != *previous {
				t.Errorf("entry %d is %s", i+1, body)
			}
			sum := sha256.Sum256(canonical(t, body))
			hash := "sha256:" + hex.EncodeToString(sum[:])
			previous = &hash
			if got.Actor.Role == "operator" {
				continue
			}
			want := admin
			if got.Action == "approval.approve" {
				want = s.acme.member
			}
			if got.Actor.KeyID == nil || *got.Actor.KeyID != want.id.String() {
				t.Errorf("%s was made by %+v", got.Action, got.Actor)
			}
			actions = append(actions, got.Action)
		}
		want := []string{
			"organization.update", "policy.put", "kill_switch.activate", "kill_switch.deactivate", "webhook.create", "webhook.test", "webhook.delete",
			"api_key.create", "api_key.revoke", "approval.approve", "approval.deny", "organization.update", "chain.resume",
		}
		if !slices.Equal(actions, want) {
			t.Errorf("the log holds %v, want %v", actions, want)
		}
		log := s.get(t, admin, "/v1/audit-log?limit=200").expect(t, http.StatusOK)
		log.without(t, made.Key[4:40], "planted-")
	})
}

// Once the switch is answered as active, nothing is allowed any more, whatever
// was under way.
//
//countersign:race
func TestKillSwitchTogether(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		id := s.open(t, s.acme.agent, `{"name":"n"}`)
		const writers = 12
		answers := together(writers+1, func(i int) *answer {
			if i == writers/2 {
				return s.post(t, s.acme.admin, "/v1/kill-switch/activate", `{"reason":"now"}`)
			}
			return s.post(t, s.acme.agent, "/v1/chains/"+id+"/events", anAction)
		})
		for _, got := range answers {
			got.expect(t, http.StatusOK)
		}
		for range 3 {
			if got := s.record(t, s.acme.agent, id, anAction); got.Decision != "deny" {
				t.Errorf("decided %s under the kill switch", got.Decision)
			}
		}
		var decisions []string
		for _, e := range everyPage[decision](t, s, s.acme.member, "/v1/chains/"+id+"/events", 50) {
			decisions = append(decisions, e.Decision)
		}
		if first := slices.Index(decisions, "deny"); slices.Contains(decisions[first:], "allow") {
			t.Errorf("decided in this order: %v", decisions)
		}
		s.get(t, s.rival.member, "/v1/kill-switch").expect(t, http.StatusOK).without(t, "now", "true")
		if org := s.get(t, s.acme.member, "/v1/organization"); !strings.Contains(string(org.body), `"kill_switch":{"active":true,"reason":"now"`) {
			t.Errorf("the organization shows %s", org.body)
		}
	})
}

// Whoever runs the service is told how many organizations nobody wrote policies
// for.
func TestReadinessTellsOfPolicies(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		detail := func() string {
			for _, check := range decode[struct {
				Checks []struct{ Name, Status, Detail string }
			}](t, s.limited(t, nil, 0).get(t, credential{}, "/readyz").expect(t, http.StatusOK).without(t, "acme", "rival")).Checks {
				if check.Name == "policy" {
					return check.Detail
				}
			}
			return ""
		}
		for _, want := range []string{"2 of 2", "1 of 2", "1 of 2"} {
			if got := detail(); !strings.HasPrefix(got, want+" organizations use only the built-in defaults") {
				t.Errorf("the check says %q, want %s", got, want)
			}
			s.put(t, s.acme.admin, "application/yaml", "rules: []\n").expect(t, http.StatusOK)
		}
	})
}

// What people wrote comes back as they wrote it, and not with its angle brackets escaped.
func TestTextsAreNotEscaped(t *testing.T) {
	t.Parallel()
	s := start(t, openDatabase(t, testdb.SQLite(t)), setup{})
	chain := s.open(t, s.acme.agent, `{"name":"n"}`)
	s.post(t, s.acme.admin, "/v1/kill-switch/activate", `{"reason":"<why> & how"}`).expect(t, http.StatusOK)
	for _, got := range []*answer{
		s.get(t, s.acme.admin, "/v1/organization"),
		s.post(t, s.acme.agent, "/v1/chains/"+chain+"/events", anAction),
	} {
		if !strings.Contains(string(got.body), "<why> & how") {
			t.Errorf("the text is escaped: %s", got.body)
		}
	}
}
