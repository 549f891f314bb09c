package service_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"countersign/internal/canon"
	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/store"
	"countersign/internal/testdb"
	"countersign/internal/verify"
)

const alice = "alice@example.com"

const slackMember = "T1/U1"

func identity(signInAs string) *service.Identity {
	return &service.Identity{Issuer: "https://id.example.com", Subject: "subject-1", SignInAs: signInAs}
}

// update changes who signs in as a key.
func (g *governed) update(key ledger.KeyID, signInAs string) error {
	g.t.Helper()
	_, err := g.UpdateAPIKey(g.t.Context(), g.who.admin, &service.KeyUpdate{Key: key, SignInAs: &signInAs})
	return err
}

// names returns the names of the keys that an identity can choose among.
func (g *governed) names(ctx context.Context, signInAs string) string {
	g.t.Helper()
	var names []string
	for _, key := range must[[]service.IdentityKey](g.t)(g.IdentityKeys(ctx, identity(signInAs))) {
		names = append(names, key.Organization+"/"+key.Name)
	}
	return strings.Join(names, " ")
}

// A session by single sign-on is a session like any other: it acts for its key, ends with it or
// after twelve hours, and the audit log says by whom it was opened.
func TestIdentitySignsIn(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		ctx, other := t.Context(), g.within(t, "rival")
		key, _ := g.newKey(&service.KeyRequest{Name: "alice", Role: ledger.RoleMember, SignInAs: alice})
		rival, _ := other.newKey(&service.KeyRequest{Name: "guest", Role: ledger.RoleAdmin, SignInAs: alice})
		if names := g.names(t.Context(), alice); names != "acme/alice rival/guest" {
			t.Errorf("alice can choose among %q", names)
		}
		session, expires, err := g.SignInByIdentity(ctx, identity(alice), key.Record.ID)
		done(t, err)
		if lasts := expires.Std().Sub(g.clock.Now()); lasts != 12*time.Hour {
			t.Errorf("the session lasts %s", lasts)
		}
		caller := must[*service.Caller](t)(g.SessionCaller(ctx, session.Reveal()))
		if caller.Key != key.Record.ID || caller.Role != ledger.RoleMember {
			t.Errorf("the session acts for %+v", caller)
		}
		acts := g.acts()
		used := acts[len(acts)-1]
		if used.Action != ledger.ActSignInUse || used.Target != key.Record.ID.String() || !strings.Contains(string(used.Detail), `"issuer":"https://id.example.com"`) ||
			!strings.Contains(string(used.Detail), `"sign_in_as":"alice@example.com","subject":"subject-1"`) ||
			!strings.Contains(used.Sentence(), "as alice by single sign-on: subject-1 at https://id.example.com, until") {
			t.Errorf("the log says %s %s: %s", used.Action, used.Detail, used.Sentence())
		}
		must[*ledger.KeyRecord](t)(g.RevokeAPIKey(ctx, g.who.admin, key.Record.ID))
		_, err = g.SessionCaller(ctx, session.Reveal())
		checkCode(t, "the session of a revoked key", err, fault.CodeUnauthenticated)
		if names := g.names(t.Context(), alice); names != "rival/guest" {
			t.Errorf("after a revocation alice can choose among %q", names)
		}
		_, _, err = g.SignInByIdentity(ctx, identity(alice), key.Record.ID)
		checkCode(t, "signing in as a revoked key", err, fault.CodeUnauthenticated)
		session, _, err = g.SignInByIdentity(ctx, identity(alice), rival.Record.ID)
		done(t, err)
		g.clock.Advance(12 * time.Hour)
		_, err = g.SessionCaller(ctx, session.Reveal())
		checkCode(t, "a session after twelve hours", err, fault.CodeNotFound)
	})
}

// Whoever is moved away from a key loses the session that they opened as it by single sign-on, on every
// replica, and nobody else does: sessions of others, of links, and of those whom the key still names
// stay open. Editing the stored session does not bring it back.
//
//countersign:race
func TestMovedIdentitiesLoseTheirSessions(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		ctx, scene, replica := t.Context(), g.scene(), g.replica()
		key, _ := g.newKey(&service.KeyRequest{Name: "payments", Role: ledger.RoleAdmin, SignInAs: alice})
		enter := func(signInAs string) string {
			t.Helper()
			session, _, err := g.SignInByIdentity(ctx, identity(signInAs), key.Record.ID)
			done(t, err)
			return session.Reveal()
		}
		link, _, err := g.SignIn(ctx, must[ledger.Secret](t)(g.CreateSignIn(ctx, g.who.admin, key.Record.ID)).Reveal())
		done(t, err)
		aliceIn := enter(alice)
		row := scene.last("sign_ins")
		open := func(when, session string, want bool) {
			t.Helper()
			for _, s := range []*service.Service{g.Service, replica} {
				if _, err := s.SessionCaller(ctx, session); (err == nil) != want {
					t.Errorf("%s: open: %t, want %t: %v", when, err == nil, want, err)
				} else if err != nil {
					checkCode(t, when, err, fault.CodeUnauthenticated)
				}
			}
		}
		began := must[*service.Caller](t)(g.SessionCaller(ctx, aliceIn))
		_, err = g.UpdateAPIKey(ctx, g.who.admin, &service.KeyUpdate{Key: key.Record.ID, SlackMember: new(slackMember)})
		done(t, err)
		open("alice, after a change of the Slack member", aliceIn, true)
		done(t, g.update(key.Record.ID, "bob@example.com"))
		bobIn := enter("bob@example.com")
		open("alice, after the key was given to bob", aliceIn, false)
		open("bob", bobIn, true)
		open("whoever opened a link", link.Reveal(), true)
		_, err = g.ActivateKillSwitch(ctx, began, "a request that began before")
		checkCode(t, "an act that began in the session of alice", err, fault.CodeUnauthenticated)
		done(t, scene.replace(row, row.with(map[string]any{"sign_in_as": ""})))
		if _, err := g.SessionCaller(ctx, aliceIn); err == nil {
			t.Error("a session whose identity was removed from its row is open")
		}
		done(t, scene.replace(row.with(map[string]any{"sign_in_as": ""}), row))
		done(t, g.update(key.Record.ID, ""))
		open("bob, after the key was given to nobody", bobIn, false)
		open("whoever opened a link, after that", link.Reveal(), true)
		done(t, g.update(key.Record.ID, alice))
		open("alice, after the key was given back", aliceIn, true)
	})
}

// An identity signs in as keys that name it and as no other, whatever is asked for: not as one
// that has expired, that names somebody else or nobody any more, nor as an agent's.
func TestIdentityOpensOnlyItsOwnKeys(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		own, _ := g.newKey(&service.KeyRequest{Name: "alice", Role: ledger.RoleMember, SignInAs: alice, ExpiresAt: g.in(time.Hour)})
		refused := func(what string, who *service.Identity, key ledger.KeyID) {
			t.Helper()
			before := len(g.acts())
			_, _, err := g.SignInByIdentity(t.Context(), who, key)
			checkCode(t, what, err, fault.CodeUnauthenticated)
			if len(g.acts()) != before {
				t.Errorf("%s: the log has an entry", what)
			}
		}
		for _, other := range []string{"", "Alice@example.com", "alice@example.com ", "al%", "bob@example.com", "аlice@example.com"} {
			refused("signing in as "+other, identity(other), own.Record.ID)
			if names := g.names(t.Context(), other); names != "" {
				t.Errorf("%q can choose among %s", other, names)
			}
		}
		refused("a key that nobody signs in as", identity(""), g.who.member.Key)
		refused("another's key", identity(alice), g.who.admin.Key)
		refused("no key", identity(alice), ledger.KeyID{})
		done(t, g.update(own.Record.ID, "bob@example.com"))
		refused("a key that was given to another", identity(alice), own.Record.ID)
		done(t, g.update(own.Record.ID, ""))
		refused("a key that was given to nobody", identity("bob@example.com"), own.Record.ID)
		done(t, g.update(own.Record.ID, alice))
		g.clock.Advance(time.Hour)
		refused("an expired key", identity(alice), own.Record.ID)
		checkCode(t, "changing an expired key", g.update(own.Record.ID, ""), fault.CodeAPIKeyEnded)
	})
}

// However many keys for somebody have expired in one organization, they sign in as that of another.
func TestExpiredKeysKeepNobodyOut(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		rival := g.within(t, "rival")
		for range 101 {
			rival.newKey(&service.KeyRequest{Role: ledger.RoleMember, SignInAs: alice, ExpiresAt: g.in(time.Second)})
			g.clock.Advance(time.Second)
		}
		g.newKey(&service.KeyRequest{Name: "alice", Role: ledger.RoleMember, SignInAs: alice})
		if names := g.names(t.Context(), alice); names != "acme/alice" {
			t.Errorf("alice can choose among %q", names)
		}
	})
}

// Of the active keys of an organization, one at most names an identity and one at most a Slack
// member, and none of an agent does. What is refused changes nothing.
func TestIdentitiesAreUnique(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		ctx, admin := t.Context(), g.who.admin
		first, _ := g.newKey(&service.KeyRequest{Name: "first", Role: ledger.RoleMember, SignInAs: alice})
		_, err := g.CreateAPIKey(ctx, admin, &service.KeyRequest{Name: "second", Role: ledger.RoleAdmin, SignInAs: alice})
		checkCode(t, "a second key", err, fault.CodeIdentityTaken)
		second, _ := g.newKey(&service.KeyRequest{Name: "second", Role: ledger.RoleAdmin})
		checkCode(t, "a second key, later", g.update(second.Record.ID, alice), fault.CodeIdentityTaken)
		checkCode(t, "an agent's key", g.update(g.who.agent.Key, alice+"x"), fault.CodeInvalid)
		_, err = g.UpdateAPIKey(ctx, g.who.member, &service.KeyUpdate{Key: second.Record.ID, SignInAs: new("bob")})
		checkCode(t, "a change by a member", err, fault.CodeForbidden)
		g.newKey(&service.KeyRequest{Name: "third", Role: ledger.RoleMember, SlackMember: slackMember})
		_, err = g.CreateAPIKey(ctx, admin, &service.KeyRequest{Name: "fourth", Role: ledger.RoleMember, SlackMember: slackMember})
		checkCode(t, "a second key of a Slack member", err, fault.CodeIdentityTaken)
		_, err = g.UpdateAPIKey(ctx, admin, &service.KeyUpdate{Key: second.Record.ID, SignInAs: new("carol"), SlackMember: new(slackMember)})
		checkCode(t, "a second key of a Slack member, later", err, fault.CodeIdentityTaken)
		_, err = g.UpdateAPIKey(ctx, admin, &service.KeyUpdate{Key: g.who.agent.Key, SlackMember: new("T1/U2")})
		checkCode(t, "an agent's key with a Slack member", err, fault.CodeInvalid)
		other := g.within(t, "rival")
		other.newKey(&service.KeyRequest{Name: "third", Role: ledger.RoleMember, SlackMember: slackMember})
		checkCode(t, "a change by another organization", other.update(second.Record.ID, "bob"), fault.CodeNotFound)
		entries := len(g.acts())
		done(t, g.update(first.Record.ID, alice))
		if len(g.acts()) != entries {
			t.Error("a change to what is there already has an entry")
		}
		must[*ledger.KeyRecord](t)(g.RevokeAPIKey(ctx, admin, first.Record.ID))
		done(t, g.update(second.Record.ID, alice))
		if names := g.names(t.Context(), alice); names != "acme/second" {
			t.Errorf("alice can choose among %q", names)
		}
		if names := g.names(t.Context(), "carol"); names != "" {
			t.Errorf("half of a refused change was made: carol can choose among %q", names)
		}
	})
}

// Of two keys that are given the same identity at the same time, at most one keeps it.
//
//countersign:race
func TestIdentitiesAreUniqueAtOnce(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		replicas := []*service.Service{g.Service, g.replica()}
		keys := make([]*service.NewKey, len(replicas))
		for i, name := range []string{"first", "second"} {
			keys[i], _ = g.newKey(&service.KeyRequest{Name: name, Role: ledger.RoleMember})
		}
		errs := make([]error, len(replicas))
		var together sync.WaitGroup
		for i, replica := range replicas {
			together.Go(func() {
				_, errs[i] = replica.UpdateAPIKey(t.Context(), g.who.admin, &service.KeyUpdate{Key: keys[i].Record.ID, SignInAs: new(alice), SlackMember: new(slackMember)})
			})
		}
		together.Wait()
		kept := 0
		for i, err := range errs {
			if err == nil {
				kept++
			} else {
				checkCode(t, "the other", err, fault.CodeIdentityTaken)
			}
			_, _, signedIn := g.SignInByIdentity(t.Context(), identity(alice), keys[i].Record.ID)
			if (signedIn == nil) != (err == nil) {
				t.Errorf("key %d: the change answers %v, signing in %v", i, err, signedIn)
			}
		}
		if kept > 1 {
			t.Error("two keys name one identity")
		}
	})
}

// surrounded calls functions before and after its first transaction.
type surrounded struct {
	store.Store
	begun         atomic.Bool
	before, after func()
}

func (s *surrounded) Transact(ctx context.Context, needs *store.Needs, plan func(*store.Loaded) (*store.Changes, error)) error {
	if s.begun.Swap(true) {
		return s.Store.Transact(ctx, needs, plan)
	}
	s.before()
	defer s.after()
	return s.Store.Transact(ctx, needs, plan)
}

// A change that is taken back, because another key was given the same person meanwhile, does not bring
// back whom somebody else has removed from the key since.
//
//countersign:race
func TestTakingAChangeBackRestoresNobody(t *testing.T) {
	t.Parallel()
	g := govern(t, testdb.SQLite(t))
	key, _ := g.newKey(&service.KeyRequest{Name: "first", Role: ledger.RoleMember, SignInAs: alice, SlackMember: "T1/U0OLD"})
	rival, _ := g.newKey(&service.KeyRequest{Name: "second", Role: ledger.RoleMember})
	change := func(id ledger.KeyID, signInAs, member *string) *ledger.KeyRecord {
		t.Helper()
		return must[*ledger.KeyRecord](t)(g.UpdateAPIKey(t.Context(), g.who.admin, &service.KeyUpdate{Key: id, SignInAs: signInAs, SlackMember: member}))
	}
	for name, removed := range map[string]struct{ signInAs, member *string }{
		"the other person": {new(""), nil}, "the same person": {nil, new("")}, "both": {new(""), new("")}, "nobody": {nil, nil},
	} {
		change(rival.Record.ID, nil, new(""))
		change(key.Record.ID, new(alice), new("T1/U0OLD"))
		_, err := g.over(&surrounded{
			Store:  g.store,
			before: func() { change(rival.Record.ID, nil, new(slackMember)) },
			after: func() {
				if removed.signInAs != nil || removed.member != nil {
					change(key.Record.ID, removed.signInAs, removed.member)
				}
			},
		}).UpdateAPIKey(t.Context(), g.who.admin, &service.KeyUpdate{Key: key.Record.ID, SlackMember: new(slackMember)})
		checkCode(t, name, err, fault.CodeIdentityTaken)
		now := must[*ledger.KeyRecord](t)(g.store.Key(t.Context(), key.Record.ID))
		if (now.SignInAs == "") != (removed.signInAs != nil) || (now.SlackMember == "") != (removed.member != nil) || now.SlackMember == slackMember {
			t.Errorf("%s was removed: the key is for %q and %q", name, now.SignInAs, now.SlackMember)
		}
	}
}

// Someone who can write the database but has no key file cannot sign in by naming himself in a key,
// old or new, by restoring a key that named him once, nor by inserting a session. The key whose row
// was changed stops working, and other keys of the same person still work.
func TestForgedIdentitiesSignNobodyIn(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		const intruder = "mallory@example.com"
		scene, ctx := g.scene(), t.Context()
		elsewhere := g.within(t, "rival")
		own, _ := elsewhere.newKey(&service.KeyRequest{Name: "own", Role: ledger.RoleMember, SignInAs: intruder})
		named, namedCaller := g.newKey(&service.KeyRequest{Name: "alice", Role: ledger.RoleAdmin, SignInAs: alice})
		refused := func(what string, key ledger.KeyID) {
			t.Helper()
			if names := g.names(ctx, intruder); names != "rival/own" {
				t.Errorf("%s: the intruder can choose among %q", what, names)
			}
			if _, _, err := g.SignInByIdentity(ctx, identity(intruder), key); err == nil {
				t.Errorf("%s: the intruder is signed in", what)
			}
			report := must[*verify.AuditReport](t)(g.Operator().Audit(ctx, g.who.slug, verify.AuditOptions{}))
			if report.Break == nil || report.Break.Check != ledger.CheckAccess || !strings.Contains(report.Break.Detail, key.String()) {
				t.Errorf("%s: the audit finds %+v", what, report.Break)
			}
		}
		for what, caller := range map[string]*service.Caller{"a key without": g.who.admin, "another's key": namedCaller} {
			was := scene.keyRow(caller)
			done(t, scene.replace(was, was.with(map[string]any{"sign_in_as": intruder})))
			refused(what, caller.Key)
			done(t, scene.replace(scene.keyRow(caller), was))
		}
		done(t, g.update(named.Record.ID, intruder))
		genuine := scene.keyRow(namedCaller)
		done(t, g.update(named.Record.ID, ""))
		done(t, scene.replace(scene.keyRow(namedCaller), genuine))
		refused("a key as it was", named.Record.ID)
		_, _, err := g.SignInByIdentity(ctx, identity(intruder), own.Record.ID)
		done(t, err)
	})
}

// An organization that was tampered with keeps nobody out of the others.
func TestTamperedOrganizationsKeepNobodyOutOfOthers(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		ctx, other := t.Context(), g.within(t, "rival")
		key, _ := g.newKey(&service.KeyRequest{Name: "alice", Role: ledger.RoleMember, SignInAs: alice})
		guest, _ := other.newKey(&service.KeyRequest{Name: "guest", Role: ledger.RoleMember, SignInAs: alice})
		if _, err := db.Direct(t).ExecContext(ctx, "UPDATE organizations SET name = 'forged' WHERE slug = 'acme'"); err != nil {
			t.Fatal(err)
		}
		if names := g.names(ctx, alice); names != "rival/guest" {
			t.Errorf("alice can choose among %q", names)
		}
		if _, _, err := g.SignInByIdentity(ctx, identity(alice), key.Record.ID); err == nil {
			t.Error("alice signs in to an organization that was tampered with")
		}
		_, _, err := g.SignInByIdentity(ctx, identity(alice), guest.Record.ID)
		done(t, err)
	})
}

// An identity is stored in its normal form, and what cannot be compared safely is refused with what
// to do instead.
func TestSignInAsIsNormal(t *testing.T) {
	t.Parallel()
	parse := func(member string) (*service.KeyRequest, error) {
		return service.ParseKeyRequest(must[canon.Value](t)(canon.Parse([]byte(`{"role":"member","sign_in_as":` + member + `}`))))
	}
	for given, want := range map[string]string{
		`"Alice@Example.COM"`: alice, `"alice@example.com"`: alice, `"Sub-42"`: "Sub-42", `"auth0|A1"`: "auth0|A1", `null`: "", `"` + strings.Repeat("x", 255) + `"`: strings.Repeat("x", 255),
	} {
		if got, err := parse(given); err != nil || got.SignInAs != want {
			t.Errorf("%s is read as %+v, %v", given, got, err)
		}
	}
	for _, given := range []string{`""`, `" alice@example.com"`, `"a b"`, `"аlice@example.com"`, `"alice@exämple.com"`, `"\u017fub"`, `"\u212a"`, `"a\u0000"`, `"a\u200b"`, `"` + strings.Repeat("x", 256) + `"`, `7`, `["a"]`} {
		_, err := parse(given)
		checkCode(t, given, err, fault.CodeInvalid)
	}
	_, err := service.ParseKeyRequest(must[canon.Value](t)(canon.Parse([]byte(`{"role":"agent","sign_in_as":"a@example.com"}`))))
	checkCode(t, "an agent", err, fault.CodeInvalid)
	_, err = service.ParseKeyUpdate(must[canon.Value](t)(canon.Parse([]byte(`{}`))))
	checkCode(t, "an update of nothing", err, fault.CodeInvalid)
}
