package service_test

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"testing"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/testdb"
	"countersign/internal/verify"
)

// acts reads the whole audit log, oldest first.
func (g *governed) acts() []*ledger.Act {
	g.t.Helper()
	stored := must[[]*ledger.StoredAct](g.t)(g.Acts(g.t.Context(), g.who.admin, 0, 10_000))
	slices.Reverse(stored)
	acts := make([]*ledger.Act, 0, len(stored))
	for _, s := range stored {
		acts = append(acts, must[*ledger.Act](g.t)(ledger.DecodeAct(s.Body)))
	}
	return acts
}

type wantedAct struct{ action, actor, target string }

// checkActs expects exactly these acts after the first ones.
func (g *governed) checkActs(t testing.TB, after int, want []wantedAct) {
	t.Helper()
	var got []wantedAct
	for _, act := range g.acts()[after:] {
		got = append(got, wantedAct{act.Action, act.Actor.Name, act.Target})
	}
	if !slices.Equal(got, want) {
		t.Errorf("the audit log says %v, want %v", got, want)
	}
}

// Every administrative act leaves exactly one entry with its actor, and none if it is repeated and
// changes nothing.
func TestEveryActIsLoggedOnce(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		ctx := t.Context()
		g.checkActs(t, 0, []wantedAct{
			{"organization.create", "operator", "acme"},
			{"api_key.create", "operator", g.who.member.Key.String()}, {"api_key.create", "operator", g.who.agent.Key.String()},
		})
		var keys []ledger.KeyID
		newKey := func(key *service.NewKey, err error) error {
			if err == nil {
				keys = append(keys, key.Record.ID)
			}
			return err
		}
		request := &service.KeyRequest{Name: "a key", Role: ledger.RoleAgent}
		var link ledger.Secret
		newLink := func(made ledger.Secret, err error) error {
			link = made
			return err
		}
		member := g.who.member.Key.String()
		for _, c := range []struct {
			action, actor string
			do            func() error
			target        func() string
			repeats       bool // done again it is another act
		}{
			{"api_key.create", "first admin", func() error { return newKey(g.CreateAPIKey(ctx, g.who.admin, request)) }, func() string { return keys[len(keys)-1].String() }, true},
			{"api_key.create", "operator", func() error { return newKey(g.Operator().CreateKey(ctx, "acme", request)) }, func() string { return keys[len(keys)-1].String() }, true},
			{"api_key.revoke", "first admin", func() error { _, err := g.RevokeAPIKey(ctx, g.who.admin, keys[0]); return err }, func() string { return keys[0].String() }, false},
			{"api_key.revoke", "operator", func() error { _, err := g.Operator().RevokeKey(ctx, "acme", keys[1]); return err }, func() string { return keys[1].String() }, false},
			{"sign_in.create", "first admin", func() error { return newLink(g.CreateSignIn(ctx, g.who.admin, g.who.member.Key)) }, func() string { return member }, true},
			{"sign_in.create", "operator", func() error { return newLink(g.Operator().SignInLink(ctx, "acme", g.who.member.Key)) }, func() string { return member }, true},
			{"master_key.rotate", "operator", func() error { return g.Operator().RecordRotation(ctx, "key-1", "key-2") }, func() string { return "key-2" }, true},
			{"organization.update", "first admin", func() error {
				_, err := g.UpdateOrganization(ctx, g.who.admin, value(t, `{"high_risk_agents":["x"]}`))
				return err
			}, func() string { return "acme" }, false},
			{"policy.put", "first admin", func() error {
				_, err := g.PutPolicy(ctx, g.who.admin, &service.PolicyDocument{Text: []byte(flagDeploys)})
				return err
			}, func() string { return g.policyVersion() }, false},
			{"kill_switch.activate", "first admin", func() error { _, err := g.ActivateKillSwitch(ctx, g.who.admin, "r"); return err }, func() string { return "" }, false},
			{"kill_switch.deactivate", "first admin", func() error { _, err := g.DeactivateKillSwitch(ctx, g.who.admin); return err }, func() string { return "" }, false},
		} {
			for again := range 2 {
				before := len(g.acts())
				checkCode(t, c.action, c.do(), "")
				if again == 0 || c.repeats {
					g.checkActs(t, before, []wantedAct{{c.action, c.actor, c.target()}})
				} else {
					g.checkActs(t, before, nil)
				}
			}
		}
		before := len(g.acts())
		if _, _, err := g.SignIn(ctx, link.Reveal()); err != nil {
			t.Fatal(err)
		}
		_, _, err := g.SignIn(ctx, link.Reveal())
		checkCode(t, "a link used again", err, fault.CodeUnauthenticated)
		g.checkActs(t, before, []wantedAct{{"sign_in.use", g.who.member.Name, member}})
		for i, act := range g.acts() {
			if bytes.Contains(act.Detail, []byte("csl_")) || bytes.Contains(act.Detail, []byte("css_")) {
				t.Errorf("act %d holds a secret", i+1)
			}
			if act.Sequence != int64(i)+1 || (act.Actor.Key == ledger.KeyID{}) != (act.Actor.Name == "operator") {
				t.Errorf("act %d is number %d by %+v", i+1, act.Sequence, act.Actor)
			}
		}
		_, err = g.Acts(ctx, g.who.member, 0, 10)
		checkCode(t, "the log for a member", err, fault.CodeForbidden)
		if theirs := must[[]*ledger.StoredAct](t)(g.Acts(ctx, newTenant(t, g.Service, "other").admin, 0, 100)); len(theirs) != 3 {
			t.Errorf("another organization's log has %d acts", len(theirs))
		}
		report := must[*verify.AuditReport](t)(g.Operator().Audit(ctx, "acme", verify.AuditOptions{}))
		if report.Status != verify.AuditIntact || report.Acts != int64(len(g.acts())) {
			t.Errorf("the audit has checked %d of %d acts: %v", report.Acts, len(g.acts()), report.Break)
		}
	})
}

func (g *governed) policyVersion() string {
	g.t.Helper()
	return must[*ledger.Organization](g.t)(g.Organization(g.t.Context(), g.who.admin)).Controls.Policy.Version
}

// A refused act leaves no entry, and no act is accepted if the audit log was tampered with.
func TestActsUnderABentLog(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		id := g.ask(g.open("bent"))
		s := g.scene()
		end := s.last("act_logs")
		for name, change := range map[string]map[string]any{
			"count": {"count": end.value("count").(int64) - 1}, "authenticator": {"mac": make([]byte, 40)}, "hash": {"controls": make([]byte, 32)},
		} {
			if err := s.replace(end, end.with(change)); err != nil {
				t.Fatal(err)
			}
			_, err := g.ActivateKillSwitch(t.Context(), g.who.admin, "r")
			checkCode(t, name+": the kill switch", err, fault.CodeEvidenceTampered)
			checkCode(t, name+": a decision", g.decide(g.who.member, id, true), fault.CodeEvidenceTampered)
			if err := s.replace(s.last("act_logs"), end); err != nil {
				t.Fatal(err)
			}
		}
		if k := must[*ledger.KillSwitch](t)(g.KillSwitch(t.Context(), g.who.member)); k.Active {
			t.Error("an act was made without its entry")
		}
		checkStatus(t, g.view(id), ledger.ApprovalPending)
		g.approve(id)
		checkIntact(t, g.Service, "acme", 0)
	})
}

// Concurrent acts are appended one after the other, whichever replica makes them.
//
//countersign:race
func TestActsAtOnce(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		replicas := []*service.Service{g.Service, g.replica()}
		before := len(g.acts())
		var crowd sync.WaitGroup
		for i := range 40 {
			crowd.Go(func() {
				if _, err := replicas[i%2].CreateAPIKey(context.Background(), g.who.admin, &service.KeyRequest{Role: ledger.RoleAgent}); err != nil {
					t.Error(err)
				}
			})
		}
		crowd.Wait()
		if got := len(g.acts()) - before; got != 40 {
			t.Errorf("%d acts for 40 keys", got)
		}
		checkIntact(t, replicas[1], "acme", 0)
	})
}

// A browser is not signed in unless the sign-in is in the audit log, and never with a key that was
// revoked or belongs to another organization.
func TestSignInsAreOnRecord(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		ctx := t.Context()
		reviewer := g.reviewer("ann")
		link := must[ledger.Secret](t)(g.CreateSignIn(ctx, g.who.admin, reviewer.Key))
		must[*ledger.KeyRecord](t)(g.RevokeAPIKey(ctx, g.who.admin, reviewer.Key))
		before := len(g.acts())
		_, _, err := g.SignIn(ctx, link.Reveal())
		checkCode(t, "a link of a revoked key", err, fault.CodeUnauthenticated)
		_, err = g.CreateSignIn(ctx, g.who.admin, reviewer.Key)
		checkCode(t, "a link for a revoked key", err, fault.CodeNotFound)
		g.checkActs(t, before, nil)

		link = must[ledger.Secret](t)(g.CreateSignIn(ctx, g.who.admin, g.who.member.Key))
		s := g.scene()
		end := s.last("act_logs")
		done(t, s.replace(end, end.with(map[string]any{"mac": make([]byte, 40)})))
		_, _, err = g.SignIn(ctx, link.Reveal())
		checkCode(t, "under a bent log", err, fault.CodeEvidenceTampered)
		_, err = g.CreateSignIn(ctx, g.who.admin, g.who.member.Key)
		checkCode(t, "a link under a bent log", err, fault.CodeEvidenceTampered)
		done(t, s.replace(s.last("act_logs"), end))

		other := newTenant(t, g.Service, "other")
		for name, c := range map[string]struct {
			caller *service.Caller
			key    ledger.KeyID
			code   fault.Code
		}{
			"a member":            {g.who.member, g.who.member.Key, fault.CodeForbidden},
			"for a key of others": {g.who.admin, other.member.Key, fault.CodeNotFound},
		} {
			_, err := g.CreateSignIn(ctx, c.caller, c.key)
			checkCode(t, name, err, c.code)
		}
		checkIntact(t, g.Service, "acme", 0)
	})
}

// Names say who may approve, so an active key's name is unique.
//
//countersign:race
func TestNamesAreNotShared(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		ctx := t.Context()
		issue := func(name string, role ledger.Role) (*service.NewKey, error) {
			return g.CreateAPIKey(ctx, g.who.admin, &service.KeyRequest{Name: name, Role: role})
		}
		first := must[*service.NewKey](t)(issue("treasury", ledger.RoleMember))
		before := len(g.acts())
		for _, role := range []ledger.Role{ledger.RoleAgent, ledger.RoleMember, ledger.RoleAdmin} {
			_, err := issue("treasury", role)
			checkCode(t, "the same name as "+string(role), err, fault.CodeNameTaken)
			_, err = g.Operator().CreateKey(ctx, "acme", &service.KeyRequest{Name: "treasury", Role: role})
			checkCode(t, "the same name by the operator", err, fault.CodeNameTaken)
		}
		g.checkActs(t, before, nil)
		must[*service.NewKey](t)(g.Operator().CreateKey(ctx, newTenant(t, g.Service, "other").slug, &service.KeyRequest{Name: "treasury", Role: ledger.RoleMember}))
		must[*ledger.KeyRecord](t)(g.RevokeAPIKey(ctx, g.who.admin, first.Record.ID))
		must[*service.NewKey](t)(issue("treasury", ledger.RoleMember))
		for range 2 {
			must[*service.NewKey](t)(issue("worker", ledger.RoleAgent))
			must[*service.NewKey](t)(issue("", ledger.RoleMember))
		}

		var crowd sync.WaitGroup
		replicas := []*service.Service{g.Service, g.replica()}
		for i := range 10 {
			crowd.Go(func() {
				_, err := replicas[i%2].CreateAPIKey(context.Background(), g.who.admin, &service.KeyRequest{Name: "at once", Role: ledger.RoleMember})
				if code := codeOf(err); code != "" && code != fault.CodeNameTaken {
					t.Errorf("a key at once: %v", err)
				}
			})
		}
		crowd.Wait()
		active := 0
		for _, key := range must[[]*ledger.KeyRecord](t)(g.APIKeys(ctx, g.who.admin, ledger.KeyID{}, 200)) {
			if key.Name == "at once" && key.RevokedAt == nil {
				active++
			}
		}
		if active > 1 {
			t.Errorf("%d active keys share a name", active)
		}
	})
}
