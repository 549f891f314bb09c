package service_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/testdb"
	"countersign/internal/verify"
)

// forgedKey returns an API key that an intruder generated.
func forgedKey(t *testing.T) (text string, hash []byte) {
	t.Helper()
	random := uuid.New()
	made := ledger.NewAPIKey([32]byte(bytes.Repeat(random[:], 2)))
	parsed, err := ledger.ParseAPIKey(made.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	sum := parsed.Hash()
	return made.Reveal(), sum[:]
}

// keyRow returns the stored row of a caller's key.
func (s *scene) keyRow(caller *service.Caller) row {
	s.t.Helper()
	for _, r := range s.rowsOf("api_keys") {
		if id, ok := r.value("id").([]byte); ok && bytes.Equal(id, caller.Key.UUID[:]) || r.value("id") == caller.Key.String() {
			return r
		}
	}
	s.t.Fatal("no row of the key")
	return row{}
}

// Someone who can write the database but has no key file gains nothing by changing the row of an
// API key: no request is authenticated, nothing is approved, and the changed key stops working.
func TestForgedKeysOpenNothing(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		scene := g.scene()
		id := g.ask(g.open("pay"))
		forged, hash := forgedKey(t)
		reviewer := g.reviewer("cfo")
		for name, change := range map[string]map[string]any{
			"his own secret":             {"hash": hash},
			"his own secret as previous": {"previous_hash": hash, "previous_expires_at": int64(1) << 50},
			"another name":               {"name": "ceo", "hash": hash},
			"the role of an admin":       {"role": "admin", "hash": hash},
			"no end":                     {"expires_at": nil, "hash": hash, "revoked_at": nil},
		} {
			was := scene.keyRow(reviewer)
			if err := scene.replace(was, was.with(change)); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if _, err := g.Authenticate(t.Context(), forged); err == nil {
				t.Errorf("%s: the intruder's key is accepted", name)
			}
			if err := g.decide(reviewer, id, true); err == nil {
				t.Errorf("%s: the key whose row was changed approves", name)
			}
			if status := g.view(id).Status; status != ledger.ApprovalPending {
				t.Fatalf("%s: the approval is %s", name, status)
			}
			report := must[*verify.AuditReport](t)(g.Operator().Audit(t.Context(), g.who.slug, verify.AuditOptions{}))
			if report.Break == nil || report.Break.Check != ledger.CheckAccess || !strings.Contains(report.Break.Detail, reviewer.Key.String()) {
				t.Errorf("%s: the audit finds %+v", name, report.Break)
			}
			if err := scene.replace(scene.keyRow(reviewer), was); err != nil {
				t.Fatal(err)
			}
		}
		admin := scene.keyRow(g.who.admin)
		inserted := uuid.New()
		if err := scene.insert(ptr(admin.with(map[string]any{"id": inserted[:], "hash": hash, "previous_hash": nil, "previous_expires_at": nil}))); err != nil {
			t.Fatal(err)
		}
		if _, err := g.Authenticate(t.Context(), forged); err == nil {
			t.Error("a key that was inserted is accepted")
		}
		// As it was, everything works as it did.
		g.approve(id)
	})
}

func ptr[T any](v T) *T { return &v }

// A session or a sign-in link that was inserted into the database signs nobody in.
func TestForgedSessionsOpenNothing(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		scene := g.scene()
		link := must[ledger.Secret](t)(g.CreateSignIn(t.Context(), g.who.admin, g.who.member.Key))
		session, _, err := g.SignIn(t.Context(), link.Reveal())
		done(t, err)
		must[*service.Caller](t)(g.SessionCaller(t.Context(), session.Reveal()))
		genuine := scene.last("sign_ins")
		forgedHash := ledger.HashToken("css_forged")
		forged := genuine.with(map[string]any{"hash": forgedHash[:]})
		done(t, scene.insert(&forged))
		if _, err := g.SessionCaller(t.Context(), "css_forged"); err == nil {
			t.Error("a session that was inserted signs in")
		}
		adminRow := scene.keyRow(g.who.admin)
		asAdmin := adminRow.value("id")
		for name, change := range map[string]map[string]any{
			"another key":  {"key_id": asAdmin},
			"a later end":  {"expires_at": int64(1) << 50},
			"another hash": {"hash": bytes.Repeat([]byte{7}, 32)},
		} {
			done(t, scene.replace(genuine, genuine.with(change)))
			if _, err := g.SessionCaller(t.Context(), session.Reveal()); err == nil {
				t.Errorf("a session with %s signs in", name)
			}
			done(t, scene.replace(genuine.with(change), genuine))
		}
		unused := must[ledger.Secret](t)(g.CreateSignIn(t.Context(), g.who.admin, g.who.agent.Key))
		var stored row
		hash := ledger.HashToken(unused.Reveal())
		for _, r := range scene.rowsOf("sign_ins") {
			if bytes.Equal(r.value("hash").([]byte), hash[:]) {
				stored = r
			}
		}
		done(t, scene.replace(stored, stored.with(map[string]any{"key_id": asAdmin})))
		if _, _, err := g.SignIn(t.Context(), unused.Reveal()); err == nil {
			t.Error("a link that was given to another key signs in")
		}
		must[*service.Caller](t)(g.SessionCaller(t.Context(), session.Reveal()))
	})
}
