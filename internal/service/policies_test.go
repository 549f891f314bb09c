package service_test

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"

	"countersign/internal/canon"
	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/store"
	"countersign/internal/testdb"
)

const (
	denyDeploys = `rules: [{name: no-deploys, when: "action.action_name == 'deploy'", decision: deny, reason: not today}]`
	flagDeploys = `{"rules":[{"name":"watch","when":"action.action_name == 'deploy'","decision":"allow_with_flag","reason":"look"}],"fast_path":true}`
)

// Every stored policy set gets a version and can be read by it. Putting the set in force again
// changes nothing.
func TestPolicySetsArePutOnceAndKept(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		builtin := must[*service.PolicyView](t)(g.Policy(t.Context(), g.who.member, ledger.BuiltinPolicy.Version))
		if !builtin.InForce || len(builtin.Rules) != 0 || !builtin.FastPath {
			t.Errorf("before any set the defaults are %+v", builtin)
		}
		acts := len(g.acts())
		first := g.put(denyDeploys)
		if again := g.put(denyDeploys); again.Version != first.Version || again.Number != 1 {
			t.Errorf("the same set again is %s", again.Version)
		}
		second := must[*service.PolicyView](t)(g.PutPolicy(t.Context(), g.who.admin, &service.PolicyDocument{Text: []byte(flagDeploys)}))
		if !regexp.MustCompile(`^v1\+[0-9a-f]{12}$`).MatchString(first.Version) || !strings.HasPrefix(second.Version, "v2+") {
			t.Errorf("versions %s and %s", first.Version, second.Version)
		}
		third := g.put(denyDeploys) // an earlier set is put anew: another put, with the same rules
		g.checkActs(t, acts, []wantedAct{{"policy.put", "first admin", first.Version}, {"policy.put", "first admin", second.Version}, {"policy.put", "first admin", third.Version}})
		list, current, err := g.Policies(t.Context(), g.who.member, 0, 10)
		if err != nil || len(list) != 3 || list[0].Version != third.Version || !list[0].InForce || list[1].InForce || current.Version != third.Version {
			t.Errorf("%d sets are listed, %v in force: %v", len(list), current, err)
		}
		page, _, err := g.Policies(t.Context(), g.who.member, 3, 1)
		if err != nil || len(page) != 1 || page[0].Version != second.Version {
			t.Errorf("a page of the list: %v %v", page, err)
		}
		read := must[*service.PolicyView](t)(g.Policy(t.Context(), g.who.member, second.Version))
		if string(read.Document) != flagDeploys || read.Format != "json" || read.CreatedBy != "first admin" || read.Rules[0].Name != "watch" || read.InForce {
			t.Errorf("read back: %+v", read)
		}
		for _, version := range []string{"v2+000000000000", "v9+123456789abc", "v0+123456789abc", "", "v", "2", "v-1+", second.Version + "x"} {
			_, err := g.Policy(t.Context(), g.who.member, version)
			checkCode(t, "version "+version, err, fault.CodeNotFound)
		}
		_, err = g.PutPolicy(t.Context(), g.who.member, &service.PolicyDocument{Text: []byte(flagDeploys)})
		checkCode(t, "put by a member", err, fault.CodeForbidden)
		_, err = g.Policy(t.Context(), newTenant(t, g.Service, "other").member, second.Version)
		checkCode(t, "another organization reads", err, fault.CodeNotFound)
		checkIntact(t, g.Service, "acme", 0)
	})
}

// A new set applies to the very next action on every replica.
//
//countersign:race
func TestANewSetHoldsAtOnceEverywhere(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		replica := g.replica()
		chain := g.open("deploys")
		for range 5 {
			for i, want := range []ledger.EventStatus{ledger.EventDenied, ledger.EventFlagged} {
				put := g.put([]string{denyDeploys, flagDeploys}[i])
				for _, s := range []*service.Service{replica, g.Service} {
					e := must[*service.Recorded](t)(s.RecordEvent(t.Context(), g.who.agent, chain, step(t, "deploy", "")))
					if e.Event.Status != want || e.Event.Decision.PolicyVersion != put.Version || e.FastPath != put.FastPath {
						t.Errorf("under %s an action is %s by %s, fast path %v", put.Version, e.Event.Status, e.Event.Decision.PolicyVersion, e.FastPath)
					}
				}
			}
		}
		if version := g.chainState(chain).PolicyVersion; !strings.HasPrefix(version, "v10+") {
			t.Errorf("the chain is under %s", version)
		}
	})
}

// Clients may decide actions themselves only if the set says so.
func TestFastPathIsTheSetsToAllow(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		opened := func() bool {
			return must[*service.ChainView](t)(g.OpenChain(t.Context(), g.who.agent, chainNamed(t, "fast"), "")).FastPath
		}
		old := g.open("old")
		for _, c := range []struct {
			document string
			want     bool
		}{
			{`rules: []`, false}, {"rules: []\nfast_path: true", true}, {"rules: []\nfast_path: false", false},
		} {
			g.put(c.document)
			if got := opened(); got != c.want {
				t.Errorf("under %q a new chain's fast path is %v", c.document, got)
			}
			if got := g.record(old, step(t, "look", "")).FastPath; got != c.want {
				t.Errorf("under %q an old chain's fast path is %v", c.document, got)
			}
		}
	})
}

// A set with any error is refused as a whole, with the positions of all errors, and the one in
// force is kept.
func TestBadSetsAreRefusedWhole(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		kept := g.put(denyDeploys)
		acts := len(g.acts())
		good := `{name: fine, when: "true", decision: deny, reason: r}`
		for name, c := range map[string]struct{ document, says string }{
			"no YAML":            {"rules: [", "line 1"},
			"syntax":             {"rules:\n- " + good + "\n- {name: b, when: \"action.\", decision: deny, reason: r}", "line 3"},
			"a type":             {`rules: [{name: b, when: "1 + 1", decision: deny, reason: r}]`, "true or false"},
			"an unknown name":    {`rules: [{name: b, when: "action.amount > 1.0", decision: deny, reason: r}]`, "amount"},
			"an unknown verdict": {`rules: [{name: b, when: "true", decision: maybe, reason: r}]`, "decision"},
			"two of a name":      {"rules: [" + good + ", " + good + "]", "fine"},
			"a cost bomb":        {`rules: [{name: b, when: "action.payload.a.all(x, action.payload.b.all(y, action.payload.c.all(z, x == y && y == z)))", decision: deny, reason: r}]`, "cost"},
			"a megabyte":         {"rules: []\n#" + strings.Repeat("x", 1<<20), "bytes"},
			"an unknown field":   {"rules: []\nrulez: []", "rulez"},
		} {
			_, err := g.PutPolicy(t.Context(), g.who.admin, &service.PolicyDocument{Text: []byte(c.document), YAML: true})
			checkCode(t, name, err, fault.CodeInvalid)
			var own *fault.Error
			if errors.As(err, &own) && (len(own.Fields) == 0 || !strings.Contains(own.Fields[0].Detail, c.says)) {
				t.Errorf("%s: %+v does not say %q", name, own.Fields, c.says)
			}
			_, err = g.CheckPolicy(t.Context(), g.who.member, &service.PolicyDocument{Text: []byte(c.document), YAML: true})
			checkCode(t, name+" checked", err, fault.CodeInvalid)
		}
		g.checkActs(t, acts, nil)
		if e := g.record(g.open("kept"), step(t, "deploy", "")).Event; e.Status != ledger.EventDenied || e.Decision.PolicyVersion != kept.Version {
			t.Errorf("after refused sets an action is %s by %s", e.Status, e.Decision.PolicyVersion)
		}
	})
}

// A rule whose evaluation fails denies the action and says so. In shadow mode it only says so.
func TestARuleThatFails(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		failing := `rules: [{name: fails, when: "action.payload.missing > 5", decision: allow_with_flag, reason: r%s}]`
		g.put(strings.Replace(failing, "%s", "", 1))
		chain := g.open("fails")
		e := g.record(chain, step(t, "look", "")).Event
		if e.Status != ledger.EventDenied || e.Decision.PolicyName != "fails" || !strings.Contains(e.Decision.Reason, "could not be evaluated") {
			t.Errorf("it is %s because %q", e.Status, e.Decision.Reason)
		}
		g.put(strings.Replace(failing, "%s", ", mode: shadow", 1))
		e = g.record(chain, step(t, "look", "")).Event
		if e.Status != ledger.EventAllowed || e.Decision.Shadow != ledger.Deny || e.Decision.Mode != ledger.Shadow {
			t.Errorf("in shadow it is %s with %+v", e.Status, e.Decision)
		}
	})
}

// If the stored set differs from the one that was put, nothing is decided.
//
//countersign:race
func TestAnEditedSetDecidesNothing(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		chain := g.open("edited")
		g.put(denyDeploys)
		s := g.scene()
		genuine := s.last("policies")
		// The same rules in other words have the same version: it is not what was put.
		for name, change := range map[string]map[string]any{
			"milder rules": {"document": []byte(strings.Replace(denyDeploys, "deny", "allow", 1))},
			"other words":  {"document": []byte(denyDeploys + "\n# a remark")},
			"no rules":     {"document": []byte("rules: []")},
			"no policy":    {"document": []byte("]")},
			"a new name":   {"version": "v1+000000000000"},
		} {
			if err := s.replace(genuine, genuine.with(change)); err != nil {
				t.Fatal(err)
			}
			fresh := g.replica()
			_, err := fresh.RecordEvent(t.Context(), g.who.agent, chain, step(t, "deploy", ""))
			checkCode(t, name, err, fault.CodeEvidenceTampered)
			_, err = fresh.OpenChain(t.Context(), g.who.agent, chainNamed(t, "new"), "")
			checkCode(t, name+", a new chain", err, fault.CodeEvidenceTampered)
			if s.audit("acme") == nil {
				t.Errorf("%s: the audit finds nothing", name)
			}
			if err := s.replace(s.last("policies"), genuine); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.remove(&genuine); err != nil {
			t.Fatal(err)
		}
		_, err := g.replica().RecordEvent(t.Context(), g.who.agent, chain, step(t, "deploy", ""))
		checkCode(t, "a set that is gone", err, fault.CodeEvidenceTampered)
		if s.audit("acme") == nil {
			t.Error("a set that is gone: the audit finds nothing")
		}
	})
}

// A caller that gives up while its change is being committed shares no memory with the commit,
// which continues.
//
//countersign:race
func TestCallersThatGiveUpShareNothingWithTheirCommit(t *testing.T) {
	t.Parallel()
	flag := &service.PolicyDocument{Text: []byte(flagDeploys)}
	for name, change := range map[string]func(context.Context, *batching) error{
		"the set in force put again": func(ctx context.Context, b *batching) error {
			_, err := b.PutPolicy(ctx, b.who.admin, flag)
			return err
		},
		"settings": func(ctx context.Context, b *batching) error {
			patch := must[canon.Value](t)(canon.Parse([]byte(`{"name":"Acme"}`)))
			_, err := b.UpdateOrganization(ctx, b.who.admin, patch)
			return err
		},
		"kill switch": func(ctx context.Context, b *batching) error {
			_, err := b.DeactivateKillSwitch(ctx, b.who.admin)
			return err
		},
		"signing key": func(ctx context.Context, b *batching) error {
			_, err := b.CreateSigningKey(ctx, b.who.admin, &service.SigningKeyRequest{Name: "second"})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBatching(t, testdb.SQLite(t).Open(t))
			must[*service.PolicyView](t)(b.plain.PutPolicy(t.Context(), b.who.admin, flag))
			release := b.hold(t)
			ctx, giveUp := context.WithCancel(t.Context())
			gaveUp := make(chan error, 1)
			go func() { gaveUp <- change(ctx, b) }()
			b.meter.await(1)
			// The commit begins without waiting for the caller to have returned: nothing
			// puts what the two do in an order.
			giveUp()
			release()
			if err := <-gaveUp; err != nil { // a slow caller finds the commit done
				checkCode(t, name, err, fault.CodeOutcomeUnknown)
			}
		})
	}
}

// unreadPolicies is a store that cannot read policy sets inside a transaction.
type unreadPolicies struct {
	testdb.Store
	planned []error // what planning each transaction returned
}

// Transact implements store.Writer.
func (u *unreadPolicies) Transact(ctx context.Context, needs *store.Needs, plan func(*store.Loaded) (*store.Changes, error)) error {
	return u.Store.Transact(ctx, needs, func(loaded *store.Loaded) (*store.Changes, error) {
		loaded.Policy = func(ledger.OrgID, int64) (*store.PolicyRecord, error) { return nil, store.ErrUnavailable }
		changes, err := plan(loaded)
		u.planned = append(u.planned, err)
		return changes, err
	})
}

// A set that is put again while the one in force cannot be read ends the whole transaction: after
// a read that failed, nothing of it may be written.
func TestPolicySetThatCannotBeReadEndsTheTransaction(t *testing.T) {
	db := testdb.SQLite(t)
	g := govern(t, db)
	g.put(denyDeploys)
	broken := &unreadPolicies{Store: db.Open(t)}
	s := serve(t, service.Config{Store: broken, Keys: g.ring, Clock: g.clock.Now})
	_, err := s.PutPolicy(t.Context(), g.who.admin, &service.PolicyDocument{Text: []byte(denyDeploys), YAML: true})
	var shown *fault.Error
	if !errors.As(err, &shown) || shown.Code != fault.CodeUnavailable {
		t.Errorf("error %v, want %s", err, fault.CodeUnavailable)
	}
	if len(broken.planned) == 0 {
		t.Fatal("nothing was planned")
	}
	for _, err := range broken.planned {
		if !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("planning ended with %v", err)
		}
	}
}
