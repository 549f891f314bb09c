package service_test

import (
	"fmt"
	"testing"
	"time"

	"countersign/internal/canon"
	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/notify"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/store"
	"countersign/internal/testdb"
)

func newClock() *servicetest.Clock {
	return servicetest.NewClock(time.Date(2026, 5, 4, 9, 0, 0, 0, time.UTC))
}

// governed is an organization on a service with its own clock.
type governed struct {
	*service.Service
	t     testing.TB
	db    *testdb.Database
	store store.Store
	ring  *keyring.Ring
	clock *servicetest.Clock
	who   *tenant
	slack *notify.Slack // nil: the service has no Slack app
}

func govern(t testing.TB, db *testdb.Database) *governed {
	t.Helper()
	return governWith(t, db, nil)
}

// governWith is govern with a Slack app.
func governWith(t testing.TB, db *testdb.Database, slack *notify.Slack) *governed {
	t.Helper()
	ring, _ := servicetest.NewRing(t)
	g := &governed{t: t, db: db, store: db.Open(t), ring: ring, clock: newClock(), slack: slack}
	g.Service = g.over(g.store)
	g.who = newTenant(t, g.Service, "acme")
	return g
}

// within returns another organization of the same service, for a subtest.
func (g *governed) within(t testing.TB, slug string) *governed {
	t.Helper()
	another := *g
	another.t, another.who = t, newTenant(t, g.Service, slug)
	return &another
}

// over starts a service on a store with this world's keys and clock.
//
//countersign:replica
func (g *governed) over(s store.Store) *service.Service {
	g.t.Helper()
	committers := 1
	if g.db.Kind == "postgres" {
		committers = 2
	}
	return serve(g.t, service.Config{Store: s, Keys: g.ring, Secrets: g.ring, Clock: g.clock.Now, Committers: committers, PrivateWebhooks: true, Timestamps: believer{}, Slack: g.slack})
}

// replica returns another service on the same database: with its own connections if the database
// allows several processes.
func (g *governed) replica() *service.Service {
	g.t.Helper()
	if g.db.Kind == "postgres" {
		return g.over(g.db.Open(g.t))
	}
	return g.over(g.store)
}

// believer accepts every authentic anchor: proofs are tested elsewhere.
type believer struct{}

func (believer) Judge(anchor *ledger.Anchor) ledger.AnchorFinding {
	return ledger.AnchorFinding{Standing: anchor.Standing, Reason: anchor.Reason}
}

func (g *governed) open(name string) ledger.ChainID {
	g.t.Helper()
	return must[*service.ChainView](g.t)(g.OpenChain(g.t.Context(), g.who.agent, chainNamed(g.t, name), "")).ID
}

func (g *governed) record(chain ledger.ChainID, action *ledger.Action) *service.Recorded {
	g.t.Helper()
	return must[*service.Recorded](g.t)(g.RecordEvent(g.t.Context(), g.who.agent, chain, action))
}

// payment returns a financial action. Above 5,000 USD it needs an approval.
func payment(t testing.TB, dollars float64, key string) *ledger.Action {
	t.Helper()
	body := fmt.Sprintf(`{"agent_name":"payer","action_type":"tool_call","action_name":"send_payment","payload":{"amount_usd":%v,"to":"supplier"}`, dollars)
	if key != "" {
		body += `,"idempotency_key":"` + key + `"`
	}
	return request(t, ledger.ParseAction, body+"}")
}

const gatedAmount = 9000

// ask records an action that needs an approval.
func (g *governed) ask(chain ledger.ChainID) ledger.ApprovalID {
	g.t.Helper()
	recorded := g.record(chain, payment(g.t, gatedAmount, ""))
	if recorded.Event.Status != ledger.EventAwaiting || recorded.Event.Approval == (ledger.ApprovalID{}) {
		g.t.Fatalf("a payment of %d USD is %s", gatedAmount, recorded.Event.Status)
	}
	return recorded.Event.Approval
}

func (g *governed) view(id ledger.ApprovalID) *service.ApprovalView {
	g.t.Helper()
	return must[*service.ApprovalView](g.t)(g.Approval(g.t.Context(), g.who.member, id, 0))
}

func (g *governed) decide(reviewer *service.Caller, id ledger.ApprovalID, approve bool) error {
	_, err := g.DecideApproval(g.t.Context(), reviewer, id, &ledger.Verdict{Approve: approve})
	return err
}

func (g *governed) approve(id ledger.ApprovalID) {
	g.t.Helper()
	if err := g.decide(g.who.member, id, true); err != nil {
		g.t.Fatal(err)
	}
}

// chainState returns the state of a chain.
func (g *governed) chainState(chain ledger.ChainID) *ledger.ChainState {
	g.t.Helper()
	return must[*service.ChainView](g.t)(g.Chain(g.t.Context(), g.who.member, chain)).State
}

func (g *governed) complete(chain ledger.ChainID) *service.Completed {
	g.t.Helper()
	return must[*service.Completed](g.t)(g.CompleteChain(g.t.Context(), g.who.agent, chain, &ledger.Completion{}))
}

// reviewer returns a member whose key has its own name.
func (g *governed) reviewer(name string) *service.Caller {
	g.t.Helper()
	key := must[*service.NewKey](g.t)(g.Operator().CreateKey(g.t.Context(), g.who.slug, &service.KeyRequest{Name: name, Role: ledger.RoleMember}))
	return servicetest.Authenticate(g.t, g.Service, key)
}

// settings changes the organization's settings.
func (g *governed) settings(patch string) {
	g.t.Helper()
	must[*ledger.Organization](g.t)(g.UpdateOrganization(g.t.Context(), g.who.admin, value(g.t, patch)))
}

func value(t testing.TB, body string) canon.Value {
	t.Helper()
	return must[canon.Value](t)(canon.Parse([]byte(body)))
}

func (g *governed) put(document string) *service.PolicyView {
	g.t.Helper()
	return must[*service.PolicyView](g.t)(g.PutPolicy(g.t.Context(), g.who.admin, &service.PolicyDocument{Text: []byte(document), YAML: true}))
}

func (g *governed) kill(reason string) {
	g.t.Helper()
	must[*ledger.KillSwitch](g.t)(g.ActivateKillSwitch(g.t.Context(), g.who.admin, reason))
}

func (g *governed) deactivateKillSwitch() {
	g.t.Helper()
	must[*ledger.KillSwitch](g.t)(g.DeactivateKillSwitch(g.t.Context(), g.who.admin))
}

// claim leases at most limit jobs of each kind.
func (g *governed) claim(span time.Duration, limit int) []*service.Job {
	g.t.Helper()
	room := map[string]int{}
	for _, kind := range []string{service.JobDeadline, service.JobNotice, service.JobWebhook, service.JobEmail, service.JobAnchor, service.JobCheck} {
		room[kind] = limit
	}
	return must[[]*service.Job](g.t)(g.Jobs().Claim(g.t.Context(), span, room))
}

// passTime does what the worker does: it claims due jobs and runs those for deadlines. It returns
// the other jobs, still leased.
func (g *governed) passTime() []*service.Job {
	g.t.Helper()
	var rest []*service.Job
	for range 100 {
		jobs := g.claim(time.Second, 100)
		if len(jobs) == 0 {
			return rest
		}
		for _, job := range jobs {
			if job.Kind != service.JobDeadline {
				rest = append(rest, job)
			} else if err := g.Jobs().Deadline(g.t.Context(), job); err != nil {
				g.t.Fatal(err)
			}
		}
	}
	g.t.Fatal("there is always another job")
	return nil
}

func checkMoney(t testing.TB, what string, got ledger.Money, want float64) {
	t.Helper()
	if got.Cmp(ledger.MoneyOf(want)) != 0 {
		t.Errorf("%s is %s USD, want %v", what, got, want)
	}
}

func checkStatus(t testing.TB, got *service.ApprovalView, want ledger.ApprovalStatus) {
	t.Helper()
	if got.Status != want {
		t.Errorf("the approval is %s, want %s", got.Status, want)
	}
}

// scene returns direct access to the database, past the service.
func (g *governed) scene() *scene {
	g.t.Helper()
	return &scene{t: g.t, service: g.Service, direct: g.db.Direct(g.t), dialect: dialectOf(g.db)}
}
