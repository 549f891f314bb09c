package service_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/nightly"
	"countersign/internal/service"
	"countersign/internal/testdb"
)

// freeze is a policy set that denies the waiting actions of these tests, and thaw one that
// matches nothing.
const (
	freeze = `rules: [{name: freeze, when: "action.action_name == 'send_payment'", decision: deny, reason: nothing is paid in May}]`
	thaw   = `rules: [{name: nothing, when: "action.action_name == 'nothing'", decision: deny, reason: never}]`
)

// naming returns a policy set that names who may approve payments.
func naming(names ...string) string {
	return `rules: [{name: named, when: "action.action_name == 'send_payment'", decision: require_approval, reason: ask them, approvers: [` + strings.Join(names, ", ") + `]}]`
}

func (g *governed) revoke(caller *service.Caller) {
	g.t.Helper()
	must[*ledger.KeyRecord](g.t)(g.RevokeAPIKey(g.t.Context(), g.who.admin, caller.Key))
}

// discounted returns the names of voters whose vote does not count, with the reasons.
func discounted(view *service.ApprovalView) map[string]string {
	found := make(map[string]string)
	for _, v := range view.Voters {
		if v.Discounted != "" {
			found[v.Reviewer.Name] = v.Discounted
		}
	}
	return found
}

// A vote counts only as long as its key is valid: if the first of two voters has lost their key,
// the second vote is the first of two, and reviewers see why. The service's own knowledge of the
// key decides: a row that was made valid again in the database, or deleted, does not count either.
//
//countersign:race
func TestAYesEndsWithItsKey(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		g.settings(`{"two_person_approval":true}`)
		replica, scene := g.replica(), g.scene()
		for i, c := range []struct {
			name string
			end  func(*service.Caller)
			why  string
		}{
			{"revoked", g.revoke, "revoked"},
			{"revoked on another replica", func(c *service.Caller) {
				must[*ledger.KeyRecord](t)(replica.RevokeAPIKey(t.Context(), g.who.admin, c.Key))
			}, "revoked"},
			{"expired", func(*service.Caller) { g.clock.Advance(time.Hour) }, "expired"},
			{"revoked, and given back by hand", func(c *service.Caller) {
				before := scene.keyRow(c)
				g.revoke(c)
				row := scene.keyRow(c)
				done(t, scene.replace(row, row.with(map[string]any{"revoked_at": before.value("revoked_at")})))
			}, "changed outside"},
			{"made an admin's by hand", func(c *service.Caller) {
				row := scene.keyRow(c)
				done(t, scene.replace(row, row.with(map[string]any{"role": "admin"})))
			}, "changed outside"},
			{"removed by hand", func(c *service.Caller) {
				row := scene.keyRow(c)
				done(t, scene.remove(&row))
			}, "gone"},
		} {
			_, first := g.newKey(&service.KeyRequest{Name: fmt.Sprint("first", i), Role: ledger.RoleMember, ExpiresAt: g.in(time.Hour)})
			second, third := g.reviewer(fmt.Sprint("second", i)), g.reviewer(fmt.Sprint("third", i))
			id := g.ask(g.open(c.name))
			checkCode(t, "the first", g.decide(first, id, true), "")
			if view := g.view(id); view.Counting() != 1 || len(discounted(view)) != 0 {
				t.Errorf("%s: before, %d count and %v do not", c.name, view.Counting(), discounted(view))
			}
			c.end(first)
			if view := g.view(id); view.Counting() != 0 || !strings.Contains(discounted(view)[first.Name], c.why) {
				t.Errorf("%s: %d count, and %v do not", c.name, view.Counting(), discounted(view))
			}
			checkCode(t, "the second", g.decide(second, id, true), "")
			if view := g.view(id); view.Status != ledger.ApprovalPending || view.Counting() != 1 || len(view.Voters) != 2 {
				t.Fatalf("%s: it is %s and %d of %d count", c.name, view.Status, view.Counting(), len(view.Voters))
			}
			checkCode(t, "the third", g.decide(third, id, true), "")
			view := g.view(id)
			checkStatus(t, view, ledger.ApprovalApproved)
			if len(view.Votes) != 2 || view.Votes[0].Reviewer.Name != second.Name || view.Votes[1].Reviewer.Name != third.Name {
				t.Errorf("%s: the decision names %v", c.name, view.Votes)
			}
		}
	})
}

// Revocations and votes have one order on all replicas: no approval is given by a key whose
// revocation was answered before, and none by two keys of which one had been revoked.
//
//countersign:race
func TestRevokingRacesVoting(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		g.settings(`{"two_person_approval":true}`)
		replica := g.replica()
		for round := range nightly.Count(8, 200) {
			first, second := g.reviewer(fmt.Sprint("first", round)), g.reviewer(fmt.Sprint("second", round))
			id := g.ask(g.open("race"))
			checkCode(t, "the first", g.decide(first, id, true), "")
			var both sync.WaitGroup
			var revoked *ledger.KeyRecord
			both.Go(func() {
				revoked, _ = replica.RevokeAPIKey(t.Context(), g.who.admin, first.Key)
			})
			both.Go(func() { checkCode(t, "the second", g.decide(second, id, true), "") })
			both.Wait()
			var order []string
			for _, act := range g.acts() {
				if act.Target == first.Key.String() && act.Action == "api_key.revoke" || act.Target == id.String() && act.Actor.Name == second.Name {
					order = append(order, act.Action)
				}
			}
			want := ledger.ApprovalPending
			if slices.Equal(order, []string{"approval.approve", "api_key.revoke"}) {
				want = ledger.ApprovalApproved
			}
			if revoked == nil || len(order) != 2 {
				t.Fatalf("the audit log has %v", order)
			}
			checkStatus(t, g.view(id), want)
		}
	})
}

// A rule that denies a waiting action ends its approval at the next vote: the reviewer gets the
// error that the rules have changed, the client gets a denial, the audit log names the rule, and
// all of it is sealed.
//
//countersign:race
func TestTheRulesOfTodayDenyWhatWaits(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		heard := overhear(g.another())
		elsewhere := g.over(heard)
		chain := g.open("frozen")
		id := g.ask(chain)
		answered := poll(t.Context(), elsewhere, g.who.agent, id, forever)
		<-heard.read
		version := g.put(freeze).Version
		acts := len(g.acts())
		err := g.decide(g.who.member, id, true)
		checkCode(t, "a yes", err, fault.CodePolicyChanged)
		if err == nil || !strings.Contains(err.Error(), `"freeze"`) {
			t.Errorf("it is answered %v", err)
		}
		checkAnswer(t, answered, ledger.ApprovalDenied)
		g.checkActs(t, acts, []wantedAct{{"approval.overrule", "test", id.String()}})
		if detail := string(g.acts()[acts].Detail); !strings.Contains(detail, `"policy_name":"freeze"`) || !strings.Contains(detail, version) || !strings.Contains(detail, `"to":"denied"`) {
			t.Errorf("the act says %s", detail)
		}
		view := g.view(id)
		if view.DeniedBy == nil || view.DeniedBy.PolicyVersion != version || view.Reviewer != nil || len(view.Signature) == 0 {
			t.Errorf("it ended as %+v by %v", view.DeniedBy, view.Reviewer)
		}
		checkMoney(t, "held", g.chainState(chain).Pending.Exposure, 0)
		checkMoney(t, "spent", g.chainState(chain).Metrics.FinancialExposure, 0)
		// Putting the old rules back gives nothing back.
		g.put(thaw)
		checkCode(t, "a repeated yes", g.decide(g.who.admin, id, true), fault.CodePolicyChanged)
		checkCode(t, "a no", g.decide(g.who.admin, id, false), "")
		g.checkActs(t, acts+2, nil)
		g.complete(chain)
		g.checkSealed(t, chain, id)
		checkIntact(t, g.Service, "acme", 1)
	})
}

// If the rules in force were changed in the database, nothing is approved, but an approval can
// still be denied.
//
//countersign:race
func TestNothingIsApprovedUnderForgedRules(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		g.settings(`{"two_person_approval":true}`)
		first := g.reviewer("first")
		id := g.ask(g.open("forged"))
		checkCode(t, "the first yes", g.decide(first, id, true), "")
		g.put(freeze)
		done(t, g.scene().update("policies SET document = ?", []byte(thaw)))
		replica := g.replica() // has not read them before
		_, err := replica.DecideApproval(t.Context(), g.who.member, id, &ledger.Verdict{Approve: true})
		checkCode(t, "a yes", err, fault.CodeEvidenceTampered)
		view := must[*service.ApprovalView](t)(replica.Approval(t.Context(), g.who.member, id, 0))
		if view.Status != ledger.ApprovalPending || view.Counting() != 0 {
			t.Errorf("it is %s and %d count", view.Status, view.Counting())
		}
		_, err = replica.DecideApproval(t.Context(), g.who.member, id, &ledger.Verdict{})
		checkCode(t, "a no", err, "")
		checkStatus(t, g.view(id), ledger.ApprovalDenied)
	})
}

// What has changed between the request and the vote counts only if it is stricter.
func TestWhatChangesWhileAnApprovalWaits(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		type outcome struct {
			code   fault.Code
			status ledger.ApprovalStatus
		}
		approved, pending := outcome{"", ledger.ApprovalApproved}, outcome{"", ledger.ApprovalPending}
		forbidden := outcome{fault.CodeForbidden, ledger.ApprovalPending}
		overruled := outcome{fault.CodePolicyChanged, ledger.ApprovalDenied}
		killed := outcome{fault.CodeKillSwitchActive, ledger.ApprovalPending}
		world := govern(t, db)
		for i, c := range []struct {
			name   string
			before func(g *governed)
			change func(g *governed, first *service.Caller)
			// What bob's yes comes to: alone where one is asked for, alone where two are,
			// and after ann's where two are.
			one, two, second outcome
		}{
			{"nothing", nil, nil, approved, pending, approved},
			{"ann is revoked", nil, func(g *governed, ann *service.Caller) { g.revoke(ann) }, approved, pending, pending},
			{"two people are needed", nil, func(g *governed, _ *service.Caller) { g.settings(`{"two_person_approval":true}`) }, pending, pending, approved},
			{"one is enough", nil, func(g *governed, _ *service.Caller) { g.settings(`{"two_person_approval":false}`) }, approved, pending, approved},
			{"the rules deny it", nil, func(g *governed, _ *service.Caller) { g.put(freeze) }, overruled, overruled, overruled},
			{"the rules denied it for a while", nil, func(g *governed, _ *service.Caller) { g.put(freeze); g.put(thaw) }, approved, pending, approved},
			{"the rules deny it, on trial", nil, func(g *governed, _ *service.Caller) {
				g.put(strings.Replace(freeze, "decision: deny", "decision: deny, mode: shadow", 1))
			}, approved, pending, approved},
			{"the organization is on trial", nil, func(g *governed, _ *service.Caller) {
				g.put(freeze)
				g.settings(`{"evaluation_mode":"shadow"}`)
			}, approved, pending, approved},
			{"bob is named", nil, func(g *governed, _ *service.Caller) { g.put(naming("bob")) }, approved, pending, pending},
			{"ann is named", nil, func(g *governed, _ *service.Caller) { g.put(naming("ann")) }, forbidden, forbidden, forbidden},
			{"both are named", nil, func(g *governed, _ *service.Caller) { g.put(naming("ann", "bob")) }, approved, pending, approved},
			{"nobody is named any more", func(g *governed) { g.put(naming("ann", "carol")) }, func(g *governed, _ *service.Caller) { g.put(thaw) }, forbidden, forbidden, forbidden},
			{"fewer are named", func(g *governed) { g.put(naming("ann", "bob")) }, func(g *governed, _ *service.Caller) { g.put(naming("bob")) }, approved, pending, pending},
			{"the threshold is raised", nil, func(g *governed, _ *service.Caller) {
				g.settings(`{"financial_approval_threshold_usd":1000000}`)
			}, approved, pending, approved},
			{"the kill switch", nil, func(g *governed, _ *service.Caller) { g.kill("stop") }, killed, killed, killed},
			{"the kill switch, and rules that deny it", nil, func(g *governed, _ *service.Caller) { g.put(freeze); g.kill("stop") }, killed, killed, killed},
		} {
			for way, want := range map[string]outcome{"one": c.one, "two": c.two, "second": c.second} {
				t.Run(c.name+"/"+way, func(t *testing.T) {
					g := world.within(t, fmt.Sprint(way, "-", i))
					ann, bob := g.reviewer("ann"), g.reviewer("bob")
					if c.before != nil {
						c.before(g)
					}
					if way != "one" {
						g.settings(`{"two_person_approval":true}`)
					}
					chain := g.open("waits")
					id, other := g.ask(chain), g.ask(chain)
					if way == "second" {
						checkCode(t, "ann's yes", g.decide(ann, id, true), "")
					}
					if c.change != nil {
						c.change(g, ann)
					}
					checkCode(t, "bob's yes", g.decide(bob, id, true), want.code)
					checkStatus(t, g.view(id), want.status)
					// A no settles it whatever has changed, by whoever might say it when it was asked.
					if c.one != forbidden || c.before == nil {
						checkCode(t, "bob's no", g.decide(bob, other, false), "")
						checkStatus(t, g.view(other), ledger.ApprovalDenied)
					}
				})
			}
		}
	})
}

// waitingModel models an approval without using the implementation.
type waitingModel struct {
	id     ledger.ApprovalID
	two    bool
	named  []string // when it was asked; nil: anyone
	voters []*modelReviewer
}

type modelReviewer struct {
	caller  *service.Caller
	revoked bool
}

// Keys are revoked, rules and settings changed, and votes cast in any order, on two replicas: the
// result of each vote equals that of a simple model.
//
//countersign:race
func TestSettlementsAgainstAModel(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		for seed := range nightly.Count(2, 40) {
			t.Run(fmt.Sprint(seed), func(t *testing.T) { modelRun(t, db.Fresh(t), uint64(seed)) })
		}
	})
}

func modelRun(t *testing.T, db *testdb.Database, seed uint64) {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 11))
	g := govern(t, db)
	replicas := []*service.Service{g.Service, g.replica()}
	pick := func() *service.Service { return replicas[random.IntN(len(replicas))] }
	var people []*modelReviewer
	var open []*waitingModel
	join := func() {
		people = append(people, &modelReviewer{caller: g.reviewer(fmt.Sprint("p", len(people)))})
	}
	for range 4 {
		join()
	}
	var two, denies bool
	var named []string
	admitted := func(list []string, r *modelReviewer) bool { return list == nil || slices.Contains(list, r.caller.Name) }
	chain := g.open("model")
	for step := range 60 {
		switch n := random.IntN(12); {
		case n == 0:
			two = !two
			must[*ledger.Organization](t)(pick().UpdateOrganization(t.Context(), g.who.admin, value(t, fmt.Sprintf(`{"two_person_approval":%v}`, two))))
		case n == 1:
			denies, named = false, nil
			document := thaw
			switch random.IntN(5) {
			case 0:
				denies, document = true, freeze
			case 1, 2:
				for _, r := range people {
					if random.IntN(3) > 0 {
						named = append(named, r.caller.Name)
					}
				}
				if named != nil {
					document = naming(named...)
				}
			}
			must[*service.PolicyView](t)(pick().PutPolicy(t.Context(), g.who.admin, &service.PolicyDocument{Text: []byte(document), YAML: true}))
		case n == 2:
			if r := people[random.IntN(len(people))]; !r.revoked {
				must[*ledger.KeyRecord](t)(pick().RevokeAPIKey(t.Context(), g.who.admin, r.caller.Key))
				r.revoked = true
				join()
			}
		case n <= 5 || len(open) == 0:
			if !denies {
				open = append(open, &waitingModel{id: g.ask(chain), two: two, named: named})
			}
		default:
			at := random.IntN(len(open))
			a, r := open[at], people[random.IntN(len(people))]
			want, status := fault.Code(""), ledger.ApprovalPending
			switch {
			case r.revoked:
				want = fault.CodeUnauthenticated
			case !admitted(a.named, r):
				want = fault.CodeForbidden
			case denies:
				want, status = fault.CodePolicyChanged, ledger.ApprovalDenied
			case !admitted(named, r):
				want = fault.CodeForbidden
			default:
				if a.two = a.two || two; !slices.Contains(a.voters, r) {
					a.voters = append(a.voters, r)
				}
				counting := 0
				for _, v := range a.voters {
					if !v.revoked && admitted(named, v) {
						counting++
					}
				}
				if !a.two || counting >= 2 {
					status = ledger.ApprovalApproved
				}
			}
			_, err := pick().DecideApproval(t.Context(), r.caller, a.id, &ledger.Verdict{Approve: true})
			view := g.view(a.id)
			if codeOf(err) != want || view.Status != status {
				t.Fatalf("seed %d, step %d: %s's yes is answered %v and it is %s, want code %q and %s", seed, step, r.caller.Name, err, view.Status, want, status)
			}
			if status != ledger.ApprovalPending {
				open = slices.Delete(open, at, at+1)
			}
		}
	}
	g.complete(chain)
	checkIntact(t, g.Service, "acme", 1)
}
