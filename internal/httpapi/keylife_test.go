package httpapi_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

const keysPath = "/v1/api-keys"

// keyLife is a stack whose clock the test moves.
func keyLife(t *testing.T, open func(*testing.T) *database) (*stack, *handClock) {
	t.Helper()
	c := &handClock{}
	c.now.Store(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).UnixMilli())
	return start(t, open(t), setup{clock: c.Now}), c
}

func (s *stack) makeKey(t *testing.T, body string) (apiKey, credential) {
	t.Helper()
	made := decode[apiKey](t, s.post(t, s.acme.admin, keysPath, body).expect(t, http.StatusCreated))
	id, err := ledger.ParseID(made.ID)
	if err != nil {
		t.Fatal(err)
	}
	return made, credential{made.Key, ledger.KeyID{UUID: id}}
}

func (s *stack) keyOf(t *testing.T, id string) apiKey {
	t.Helper()
	keys := everyPage[apiKey](t, s, s.acme.admin, keysPath, 50)
	i := slices.IndexFunc(keys, func(k apiKey) bool { return k.ID == id })
	if i < 0 {
		t.Fatalf("there is no key %s", id)
	}
	return keys[i]
}

func actionOf(agent string) string {
	return fmt.Sprintf(`{"agent_name":%q,"parent_agent_name":"stranger","action_type":"tool_call","action_name":"search","payload":{}}`, agent)
}

func reportOf(agent, kind, key string) string {
	payload := `{}`
	if kind == "gap" {
		payload = `{"dropped":1,"from":"2026-05-04T08:00:00Z","to":"2026-05-04T08:00:01Z"}`
	}
	return fmt.Sprintf(`{"agent_name":%q,"action_type":%q,"action_name":"read_file","payload":%s,"decision_source":"offline_stub",`+
		`"policy_decision":"allow","idempotency_key":%q}`, agent, kind, payload, key)
}

// A key that is bound to agents records for them, however they are spelt, and for
// nobody else.
func TestBoundKeys(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		made, bound := s.makeKey(t, `{"role":"agent","agents":["intern","Buchhaltung","Intern"],"owner":"finance@example.com"}`)
		if !slices.Equal(made.Agents, []string{"intern", "Buchhaltung"}) || made.Owner == nil || *made.Owner != "finance@example.com" {
			t.Errorf("made for %q, owned by %v", made.Agents, made.Owner)
		}
		if listed := s.keyOf(t, made.ID); !slices.Equal(listed.Agents, made.Agents) || listed.Owner == nil || *listed.Owner != *made.Owner {
			t.Errorf("listed for %q, owned by %v", listed.Agents, listed.Owner)
		}
		id := s.open(t, bound, `{"name":"bound"}`)
		events := "/v1/chains/" + id + "/events"
		for _, agent := range []string{"intern", "INTERN", "in\u200btern", "ｉｎｔｅｒｎ", "buchhaltung"} {
			s.post(t, bound, events, actionOf(agent)).expect(t, http.StatusOK)
		}
		before := s.database.dump(t)
		for _, agent := range []string{"stranger", "intern2", "inter", "іntern", "intern buchhaltung"} {
			s.post(t, bound, events, actionOf(agent)).refuse(t, http.StatusForbidden, "agent_not_allowed")
		}
		// On this route there are no gaps, which need no agent.
		s.post(t, bound, events, strings.Replace(actionOf("stranger"), "tool_call", "gap", 1)).refuse(t, http.StatusUnprocessableEntity, "invalid_request")
		s.post(t, bound, events+"/batch", `{"events":[`+reportOf("stranger", "tool_call", "a")+`]}`).refuse(t, http.StatusForbidden, "agent_not_allowed")
		if s.database.dump(t) != before {
			t.Error("what was refused changed what is stored")
		}
		batch := []string{
			reportOf("intern", "tool_call", "b"), reportOf("stranger", "tool_call", "c"), reportOf("stranger", "gap", "d"), reportOf("Intern", "tool_call", "e"),
		}
		answer := decode[struct {
			Results []struct {
				Sequence int64 `json:"sequence"`
				Error    *struct {
					Code string `json:"code"`
				} `json:"error"`
			} `json:"results"`
		}](t, s.post(t, bound, events+"/batch", `{"events":[`+strings.Join(batch, ",")+`]}`).expect(t, http.StatusOK))
		for i, result := range answer.Results {
			if refused := result.Error != nil; refused != (i == 1) || refused && result.Error.Code != "agent_not_allowed" {
				t.Errorf("result %d of the batch: %+v", i, result)
			}
		}
		if recorded := everyPage[event](t, s, s.acme.member, events, 50); len(recorded) != 5+3 {
			t.Errorf("%d events are recorded, want 8", len(recorded))
		}
		// A key without agents records for anyone.
		free, unbound := s.makeKey(t, `{"role":"agent","agents":[]}`)
		if free.Agents == nil || len(free.Agents) != 0 || free.Owner != nil || free.ExpiresAt != nil || free.LastUsedAt != nil || free.PreviousExpiresAt != nil {
			t.Errorf("made %+v", free)
		}
		s.record(t, unbound, s.open(t, unbound, `{"name":"free"}`), actionOf("stranger"))
	})
}

// A bound key of a stronger role reaches others' chains, and still records nothing
// for another agent there: no event, no repeat, no outcome.
func TestBoundKeyOnOthersChains(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		_, bound := s.makeKey(t, `{"role":"member","name":"reviewer","agents":["intern"]}`)
		id := s.open(t, s.acme.agent, `{"name":"others"}`)
		events := "/v1/chains/" + id + "/events"
		repeated := strings.Replace(actionOf("stranger"), `"payload"`, `"idempotency_key":"once","payload"`, 1)
		done := decode[decision](t, s.post(t, s.acme.agent, events, repeated).expect(t, http.StatusOK)).EventID
		own := s.record(t, s.acme.agent, id, actionOf("intern")).EventID
		before := s.database.dump(t)
		s.post(t, bound, events, repeated).refuse(t, http.StatusForbidden, "agent_not_allowed")
		s.post(t, bound, events+"/"+done+"/outcome", `{"outcome":"succeeded"}`).refuse(t, http.StatusForbidden, "agent_not_allowed")
		if s.database.dump(t) != before {
			t.Error("what was refused changed what is stored")
		}
		s.post(t, bound, events+"/"+own+"/outcome", `{"outcome":"succeeded"}`).expect(t, http.StatusOK)
		s.get(t, bound, events).expect(t, http.StatusOK)
	})
}

// An expired key is refused everywhere, with an answer that says so.
func TestKeyExpiry(t *testing.T) {
	eachStore(t, func(t *testing.T, open func(*testing.T) *database) {
		s, c := keyLife(t, open)
		for _, past := range []string{"2026-03-01T12:00:00Z", "2026-03-01T11:59:59.999Z", "1970-01-01T00:00:00Z"} {
			s.post(t, s.acme.admin, keysPath, `{"role":"agent","expires_at":"`+past+`"}`).refuse(t, http.StatusUnprocessableEntity, "invalid_request")
		}
		for _, role := range []string{"agent", "admin"} {
			expires := ledger.TimeOf(c.Now().Add(time.Hour)).String()
			made, key := s.makeKey(t, fmt.Sprintf(`{"role":%q,"name":"short %s","expires_at":%q}`, role, role, expires))
			_, unused := s.makeKey(t, fmt.Sprintf(`{"role":%q,"name":"unused %s","expires_at":%q}`, role, role, expires))
			if made.ExpiresAt == nil || *made.ExpiresAt != expires || made.Status != "active" {
				t.Errorf("made %+v", made)
			}
			id := s.open(t, key, `{"name":"n"}`)
			event := s.record(t, key, id, anAction).EventID
			c.advance(3599.999)
			s.get(t, key, "/v1/chains").expect(t, http.StatusOK)
			c.advance(0.001)
			before := s.database.dump(t)
			for _, refused := range []*answer{
				s.get(t, key, "/v1/chains/"+id), s.get(t, unused, "/v1/chains"),
				s.post(t, key, "/v1/chains", `{"name":"n"}`), s.post(t, key, "/v1/chains/"+id+"/events", anAction),
				s.post(t, key, "/v1/chains/"+id+"/events/batch", aReport), s.post(t, key, "/v1/chains/"+id+"/events/"+event+"/outcome", `{"outcome":"failed"}`),
				s.post(t, key, "/v1/chains/"+id+"/complete", ""), s.get(t, key, "/v1/approvals"), s.post(t, key, keysPath, `{"role":"admin"}`),
			} {
				refused.refuse(t, http.StatusUnauthorized, "key_expired").without(t, secretsOf(key.text)...)
				if !strings.Contains(string(refused.body), "has expired") {
					t.Errorf("the refusal does not say why: %s", refused.body)
				}
			}
			if s.database.dump(t) != before {
				t.Error("an expired key changed what is stored")
			}
			if listed := s.keyOf(t, made.ID); listed.Status != "expired" || listed.RevokedAt != nil {
				t.Errorf("listed as %s", listed.Status)
			}
			s.post(t, s.acme.admin, keysPath+"/"+made.ID+"/rotate", "").refuse(t, http.StatusConflict, "api_key_ended")
			// The name is free again, and the key can still be revoked.
			s.makeKey(t, fmt.Sprintf(`{"role":%q,"name":"short %s"}`, role, role))
			s.post(t, s.acme.admin, keysPath+"/"+made.ID+"/revoke", "").expect(t, http.StatusOK)
			s.get(t, key, "/v1/chains").refuse(t, http.StatusUnauthorized, "unauthenticated")
		}
	})
}

// A caller that is remembered is confirmed in the transaction: a clock that passes
// the expiry between the two is the transaction's.
func TestExpiryInsideTheTransaction(t *testing.T) {
	eachStore(t, func(t *testing.T, open func(*testing.T) *database) {
		s, c := keyLife(t, open)
		expires := ledger.TimeOf(c.Now().Add(time.Hour)).String()
		_, key := s.makeKey(t, fmt.Sprintf(`{"role":"agent","expires_at":%q}`, expires))
		id, err := ledger.ParseID(s.open(t, key, `{"name":"n"}`))
		if err != nil {
			t.Fatal(err)
		}
		caller, err := s.Service.Authenticate(t.Context(), key.text)
		if err != nil {
			t.Fatal(err)
		}
		c.advance(3600)
		_, err = s.Service.CompleteChain(t.Context(), caller, ledger.ChainID{UUID: id}, &ledger.Completion{})
		if !expired(err) {
			t.Errorf("completing: %v", err)
		}
		if _, err := s.Service.Approval(t.Context(), caller, ledger.ApprovalID{UUID: id}, 0); !expired(err) {
			t.Errorf("reading: %v", err)
		}
	})
}

func expired(err error) bool {
	var own *fault.Error
	return errors.As(err, &own) && own.Code == fault.CodeKeyExpired
}

func (s *stack) rotate(t *testing.T, id, body, idempotencyKey string) *answer {
	t.Helper()
	c := call{method: http.MethodPost, path: keysPath + "/" + id + "/rotate", key: s.acme.admin.text, body: bodyOf(body)}
	if idempotencyKey != "" {
		c.header = http.Header{"Idempotency-Key": {idempotencyKey}}
	}
	return s.do(t, c)
}

// Rotating a key replaces its secret under the same id; the old one lasts for
// the overlap.
func TestRotation(t *testing.T) {
	eachStore(t, func(t *testing.T, open func(*testing.T) *database) {
		s, c := keyLife(t, open)
		made, first := s.makeKey(t, `{"role":"agent","name":"worker","agents":["intern"],"owner":"ops"}`)
		id := s.open(t, first, `{"name":"n"}`)
		path := "/v1/chains/" + id

		rotated := s.rotate(t, made.ID, `{"overlap_seconds":600}`, "").expect(t, http.StatusOK).without(t, secretsOf(first.text)...)
		second := decode[apiKey](t, rotated)
		if second.ID != made.ID || second.Name != "worker" || second.Role != "agent" || !slices.Equal(second.Agents, made.Agents) || *second.Owner != "ops" ||
			second.Key == first.text || second.Hint == made.Hint || second.PreviousExpiresAt == nil || *second.PreviousExpiresAt != "2026-03-01T12:10:00.000Z" {
			t.Fatalf("rotated to %+v", second)
		}
		// Both are the same key: they see and write the same chains.
		for _, text := range []string{first.text, second.Key} {
			s.get(t, credential{text: text}, path).expect(t, http.StatusOK)
			s.post(t, credential{text: text}, path+"/events", actionOf("intern")).expect(t, http.StatusOK)
			s.post(t, credential{text: text}, path+"/events", actionOf("stranger")).refuse(t, http.StatusForbidden, "agent_not_allowed")
		}
		listed := s.keyOf(t, made.ID)
		if listed.Key != "" || listed.Hint != second.Hint || listed.PreviousExpiresAt == nil {
			t.Errorf("listed as %+v", listed)
		}
		c.advance(599.999)
		s.get(t, first, path).expect(t, http.StatusOK)
		c.advance(0.001)
		for _, refused := range []*answer{s.get(t, first, path), s.post(t, first, path+"/events", actionOf("intern")), s.get(t, first, path)} {
			refused.refuse(t, http.StatusUnauthorized, "key_expired")
			if !strings.Contains(string(refused.body), "rotated") {
				t.Errorf("the refusal does not say why: %s", refused.body)
			}
		}

		// Again during an overlap: the oldest ends at once. Without one: so does the
		// one before.
		third := decode[apiKey](t, s.rotate(t, made.ID, `{"overlap_seconds":604800}`, "").expect(t, http.StatusOK))
		s.get(t, credential{text: second.Key}, path).expect(t, http.StatusOK)
		fourth := decode[apiKey](t, s.rotate(t, made.ID, `{"overlap_seconds":604800}`, "").expect(t, http.StatusOK))
		s.get(t, credential{text: second.Key}, path).refuse(t, http.StatusUnauthorized, "unauthenticated")
		s.get(t, credential{text: third.Key}, path).expect(t, http.StatusOK)
		fifth := decode[apiKey](t, s.rotate(t, made.ID, "", "").expect(t, http.StatusOK))
		s.get(t, credential{text: fourth.Key}, path).refuse(t, http.StatusUnauthorized, "key_expired")
		s.get(t, credential{text: fifth.Key}, path).expect(t, http.StatusOK)

		secrets := slices.Concat(secretsOf(first.text), secretsOf(second.Key), secretsOf(third.Key), secretsOf(fourth.Key), secretsOf(fifth.Key))
		for _, list := range []string{keysPath, "/v1/audit-log"} {
			s.get(t, s.acme.admin, list).expect(t, http.StatusOK).without(t, secrets...)
		}
		s.post(t, s.acme.admin, keysPath+"/"+made.ID+"/revoke", "").expect(t, http.StatusOK).without(t, secrets...)
		s.get(t, credential{text: fifth.Key}, path).refuse(t, http.StatusUnauthorized, "unauthenticated")
		s.get(t, credential{text: fourth.Key}, path).refuse(t, http.StatusUnauthorized, "unauthenticated")
		s.rotate(t, made.ID, "", "").refuse(t, http.StatusConflict, "api_key_ended")
		s.do(t, call{method: http.MethodPost, path: keysPath + "/" + s.acme.agent.id.String() + "/rotate", key: s.rival.admin.text}).refuse(t, http.StatusNotFound, "not_found")
		for _, overlap := range []string{"-1", "604801", "1.5", `"600"`, "true"} {
			s.rotate(t, s.acme.agent.id.String(), `{"overlap_seconds":`+overlap+`}`, "").refuse(t, http.StatusUnprocessableEntity, "invalid_request")
		}
		s.get(t, s.acme.agent, "/v1/chains").expect(t, http.StatusOK)
	})
}

// A retry rotates nothing again and has no text to show, also when others have
// rotated since.
func TestRotationIsRetried(t *testing.T) {
	eachStore(t, func(t *testing.T, open func(*testing.T) *database) {
		s, _ := keyLife(t, open)
		made, _ := s.makeKey(t, `{"role":"agent"}`)
		other, _ := s.makeKey(t, `{"role":"agent"}`)
		first := decode[apiKey](t, s.rotate(t, made.ID, `{"overlap_seconds":60}`, "once").expect(t, http.StatusOK))
		again := s.rotate(t, made.ID, `{"overlap_seconds":60}`, "once").expect(t, http.StatusOK).without(t, secretsOf(first.Key)...)
		if got := decode[apiKey](t, again); got.Key != "" || got.Hint != first.Hint || *got.PreviousExpiresAt != *first.PreviousExpiresAt {
			t.Errorf("retried, it answers %s", again.body)
		}
		second := decode[apiKey](t, s.rotate(t, made.ID, `{"overlap_seconds":60}`, "twice").expect(t, http.StatusOK))
		late := decode[apiKey](t, s.rotate(t, made.ID, `{"overlap_seconds":60}`, "once").expect(t, http.StatusOK))
		if late.Key != "" || late.Hint != second.Hint {
			t.Errorf("a late retry rotated again: %+v", late)
		}
		for _, text := range []string{first.Key, second.Key} {
			s.get(t, credential{text: text}, "/v1/chains").expect(t, http.StatusOK)
		}
		s.rotate(t, made.ID, `{"overlap_seconds":61}`, "once").refuse(t, http.StatusConflict, "idempotency_conflict")
		s.rotate(t, made.ID, "", "once").refuse(t, http.StatusConflict, "idempotency_conflict")
		s.rotate(t, other.ID, `{"overlap_seconds":60}`, "once").refuse(t, http.StatusConflict, "idempotency_conflict")
		rival := s.credential(t, s.rival.slug, ledger.RoleAgent)
		s.do(t, call{
			method: http.MethodPost, path: keysPath + "/" + rival.id.String() + "/rotate", key: s.rival.admin.text,
			header: http.Header{"Idempotency-Key": {"once"}},
		}).expect(t, http.StatusOK)
		// A retry after the key has ended still finds what was done.
		s.post(t, s.acme.admin, keysPath+"/"+made.ID+"/revoke", "").expect(t, http.StatusOK)
		s.rotate(t, made.ID, `{"overlap_seconds":60}`, "twice").expect(t, http.StatusOK)
	})
}

// An admin who rotates the key in use goes on with the old text for the overlap.
func TestRotationOfOnesOwnKey(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		_, own := s.makeKey(t, `{"role":"admin","name":"own"}`)
		path := keysPath + "/" + own.id.String() + "/rotate"
		next := decode[apiKey](t, s.post(t, own, path, `{"overlap_seconds":60}`).expect(t, http.StatusOK))
		s.get(t, own, keysPath).expect(t, http.StatusOK)
		last := decode[apiKey](t, s.post(t, credential{text: next.Key}, path, "").expect(t, http.StatusOK))
		s.get(t, own, keysPath).refuse(t, http.StatusUnauthorized, "unauthenticated")
		s.get(t, credential{text: next.Key}, keysPath).refuse(t, http.StatusUnauthorized, "key_expired")
		s.get(t, credential{text: last.Key}, keysPath).expect(t, http.StatusOK)
	})
}

// A list of keys says when each was last used.
func TestLastUseOfKeys(t *testing.T) {
	eachStore(t, func(t *testing.T, open func(*testing.T) *database) {
		s, c := keyLife(t, open)
		made, key := s.makeKey(t, `{"role":"agent"}`)
		flush := func() {
			t.Helper()
			if err := s.Service.FlushKeyUse(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		used := func(want string) {
			t.Helper()
			got := "never"
			if at := s.keyOf(t, made.ID).LastUsedAt; at != nil {
				got = *at
			}
			if got != want {
				t.Errorf("last used %s, want %s", got, want)
			}
		}
		flush()
		used("never")
		id := s.open(t, key, `{"name":"n"}`)
		before := s.database.dump(t)
		s.get(t, key, "/v1/chains").expect(t, http.StatusOK)
		if s.database.dump(t) != before {
			t.Error("a read wrote something")
		}
		used("never")
		flush()
		used("2026-03-01T12:00:00.000Z")
		c.advance(90)
		s.record(t, key, id, anAction) // a write counts as well
		c.advance(-30)
		s.get(t, key, "/v1/chains").expect(t, http.StatusOK)
		flush()
		used("2026-03-01T12:01:30.000Z")
		// What a revoked key tries is no use.
		s.revokeElsewhere(t, key.id)
		c.advance(600)
		s.get(t, key, "/v1/chains").refuse(t, http.StatusUnauthorized, "unauthenticated")
		s.post(t, key, "/v1/chains/"+id+"/events", anAction).refuse(t, http.StatusUnauthorized, "unauthenticated")
		flush()
		used("2026-03-01T12:01:30.000Z")
	})
}

// The audit log tells of rotations and expiries by the key's names.
func TestActsOfKeys(t *testing.T) {
	eachStore(t, func(t *testing.T, open func(*testing.T) *database) {
		s, c := keyLife(t, open)
		expires := ledger.TimeOf(c.Now().Add(time.Hour)).String()
		made, key := s.makeKey(t, fmt.Sprintf(`{"role":"agent","name":"worker","agents":["intern"],"owner":"ops","expires_at":%q}`, expires))
		ended, _ := s.makeKey(t, fmt.Sprintf(`{"role":"agent","name":"ended","expires_at":%q}`, expires))
		s.post(t, s.acme.admin, keysPath+"/"+ended.ID+"/revoke", "").expect(t, http.StatusOK)
		next := decode[apiKey](t, s.rotate(t, made.ID, `{"overlap_seconds":60}`, "once").expect(t, http.StatusOK))
		s.rotate(t, made.ID, `{"overlap_seconds":60}`, "once").expect(t, http.StatusOK)
		jobs := s.Service.Jobs()
		run := func(want int) {
			t.Helper()
			claimed, err := jobs.Claim(t.Context(), time.Minute, map[string]int{service.JobKeyExpiry: 10})
			if err != nil || len(claimed) != want {
				t.Fatalf("claimed %d jobs, want %d, %v", len(claimed), want, err)
			}
			for _, job := range claimed {
				// At least once: the log says it once.
				first := *job
				first.No = -1
				_ = jobs.KeyExpiry(t.Context(), &first)
				if err := jobs.KeyExpiry(t.Context(), job); err != nil {
					t.Fatal(err)
				}
			}
		}
		run(0)
		c.advance(3600)
		run(2)
		run(0)
		type act struct {
			Action string         `json:"action"`
			Target string         `json:"target"`
			Detail map[string]any `json:"detail"`
			Actor  struct {
				Name string `json:"name"`
			} `json:"actor"`
		}
		answer := s.get(t, s.acme.admin, "/v1/audit-log").expect(t, http.StatusOK)
		answer.without(t, slices.Concat(secretsOf(key.text), secretsOf(next.Key))...)
		var told []string
		for _, a := range decode[page[act]](t, answer).Data {
			if a.Target == made.ID || a.Target == ended.ID {
				told = append(told, fmt.Sprintf("%s by %s: %v", a.Action, a.Actor.Name, a.Detail))
			}
		}
		const detail = "agents:[intern] expires_at:2026-03-01T13:00:00.000Z name:worker owner:ops"
		want := []string{
			"api_key.expire by countersign: map[" + detail + " previous_expires_at:2026-03-01T12:01:00.000Z role:agent status:map[from:active to:expired]]",
			"api_key.rotate by first admin: map[" + detail + " previous_expires_at:2026-03-01T12:01:00.000Z role:agent]",
			"api_key.revoke by first admin: map[expires_at:2026-03-01T13:00:00.000Z name:ended role:agent status:map[from:active to:revoked]]",
			"api_key.create by first admin: map[expires_at:2026-03-01T13:00:00.000Z name:ended role:agent]",
			"api_key.create by first admin: map[" + detail + " role:agent]",
		}
		if !slices.Equal(told, want) {
			t.Errorf("the audit log tells\n%s\nwant\n%s", strings.Join(told, "\n"), strings.Join(want, "\n"))
		}
	})
}
