package service_test

import (
	"context"
	"fmt"
	"math/rand/v2"
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

// pay returns a payment of an agent that is too small for the other rules.
func pay(t testing.TB, agent string, dollars float64, key string) *ledger.Action {
	t.Helper()
	body := fmt.Sprintf(`{"agent_name":%q,"action_type":"tool_call","action_name":"send_payment","payload":{"amount_usd":%v,"to":"supplier"}`, agent, dollars)
	if key != "" {
		body += fmt.Sprintf(`,"idempotency_key":%q`, key)
	}
	return request(t, ledger.ParseAction, body+"}")
}

// think returns a model call with the given number of tokens.
func think(t testing.TB, agent string, tokens int, key string) *ledger.Action {
	t.Helper()
	body := fmt.Sprintf(`{"agent_name":%q,"action_type":"llm_call","action_name":"complete","payload":{"model":"gpt-4o","input_tokens":%d}`, agent, tokens)
	if key != "" {
		body += fmt.Sprintf(`,"idempotency_key":%q`, key)
	}
	return request(t, ledger.ParseAction, body+"}")
}

// uses returns the current use of budgets, by budget and member.
func (g *governed) uses() map[string]*service.BudgetUse {
	g.t.Helper()
	all := make(map[string]*service.BudgetUse)
	var after ledger.CounterID
	for {
		page := must[[]*service.BudgetUse](g.t)(g.Budgets(g.t.Context(), g.who.member, after, 3))
		for _, use := range page {
			name := use.Budget.Name + "/" + use.Value
			if all[name] != nil {
				g.t.Fatalf("%s is listed twice", name)
			}
			all[name] = use
		}
		if len(page) < 3 {
			return all
		}
		after = page[2].Counter
	}
}

func (g *governed) checkUse(name string, spent, waiting float64) {
	g.t.Helper()
	use := g.uses()[name]
	if use == nil {
		g.t.Fatalf("nothing is listed of %s", name)
	}
	checkMoney(g.t, "spent of "+name, use.Spent, spent)
	checkMoney(g.t, "waiting of "+name, use.Waiting, waiting)
}

func budgets(list ...string) string { return `{"budgets":[` + strings.Join(list, ",") + `]}` }

const (
	dailyUSD    = `{"name":"daily","scope":"organization","window":"day","limit_usd":100,"decision":"deny"}`
	agentUSD    = `{"name":"agents","scope":"agent","window":"month","limit_usd":50,"decision":"require_approval"}`
	dailyTokens = `{"name":"tokens","scope":"key","window":"day","limit_tokens":1000,"decision":"deny"}`
	dailyCost   = `{"name":"cost","scope":"environment","window":"day","limit_cost_usd":0.01,"decision":"deny"}`
)

// Ten chains cannot spend more than one may: a budget counts across chains, by day and by month,
// for each agent separately, and a repeat is not counted again.
func TestBudgetsCountAboveChains(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		g.settings(budgets(dailyUSD, agentUSD))
		for i, c := range []struct {
			agent  string
			amount float64
			want   ledger.EventStatus
			by     string
		}{
			{"a", 30, ledger.EventAllowed, ""},
			{"a", 20, ledger.EventAllowed, ""},
			{" A\u200b", 1, ledger.EventAwaiting, "budget:agents"},
			{"b", 48, ledger.EventAllowed, ""},
			{"b", 2, ledger.EventDenied, "budget:daily"},
			{"b", 1, ledger.EventAllowed, ""},
		} {
			action := pay(t, c.agent, c.amount, fmt.Sprint("key ", i))
			chain := g.open(fmt.Sprint("chain ", i))
			for range 2 { // the second is a repeat
				recorded := g.record(chain, action)
				if d := recorded.Event.Decision; recorded.Event.Status != c.want || d.PolicyName != c.by {
					t.Fatalf("payment %d of %v USD by %q is %s by %q: %s", i, c.amount, c.agent, recorded.Event.Status, d.PolicyName, d.Reason)
				}
			}
		}
		g.checkUse("daily/", 99, 1)
		g.checkUse("agents/a", 50, 1)
		g.checkUse("agents/b", 49, 0)
		g.clock.Set(time.Date(2026, 5, 5, 0, 0, 0, 0, time.UTC))
		g.checkUse("daily/", 0, 0)
		g.checkUse("agents/b", 49, 0)
		chain := g.open("tomorrow")
		if status := g.record(chain, pay(t, "c", 50, "")).Event.Status; status != ledger.EventAllowed {
			t.Errorf("a payment on the next day is %s", status)
		}
		g.clock.Set(time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC))
		if status := g.record(g.open("next month"), pay(t, "a", 50, "")).Event.Status; status != ledger.EventAllowed {
			t.Errorf("a payment in the next month is %s", status)
		}
		checkIntact(t, g.Service, "acme", 0)
	})
}

// Tokens are checked against a budget before they are used, cost afterwards, so the cost may
// exceed the budget by one call. Actions that a client decided itself count, too, and report where
// they exceeded the budget.
func TestBudgetsOfModels(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		g.settings(budgets(dailyTokens))
		chain := g.open("thinking")
		for _, c := range []struct {
			tokens int
			want   ledger.EventStatus
		}{{600, ledger.EventAllowed}, {401, ledger.EventDenied}, {400, ledger.EventAllowed}, {1, ledger.EventDenied}} {
			if got := g.record(chain, think(t, "a", c.tokens, "")).Event.Status; got != c.want {
				t.Errorf("%d tokens are %s, want %s", c.tokens, got, c.want)
			}
		}
		reported := request(t, ledger.ParseReported, `{"events":[
			{"agent_name":"a","action_type":"llm_call","action_name":"complete","payload":{"model":"gpt-4o","input_tokens":7},"decision_source":"offline_stub","idempotency_key":"r"},
			{"agent_name":"a","action_type":"tool_call","action_name":"read_news","payload":{},"decision_source":"offline_stub","idempotency_key":"s"}]}`)
		for range 2 {
			report := must[*service.Report](t)(g.ReportEvents(t.Context(), g.who.agent, chain, reported))
			first, second := report.Results[0].Event, report.Results[1].Event
			if first.Status != ledger.EventFlagged || first.Decision.Shadow != ledger.Deny || first.Decision.PolicyName != "budget:tokens" || second.Status != ledger.EventAllowed {
				t.Errorf("reported: %s (%s by %q), %s", first.Status, first.Decision.Shadow, first.Decision.PolicyName, second.Status)
			}
		}
		g.checkUse("tokens/"+g.who.agent.Name, 1007, 0)

		g.settings(budgets(dailyCost))
		for i, want := range []ledger.EventStatus{ledger.EventAllowed, ledger.EventDenied, ledger.EventDenied} {
			if got := g.record(chain, think(t, "a", 1_000_000, "")).Event.Status; got != want {
				t.Errorf("call %d is %s, want %s", i, got, want)
			}
		}
		if use := g.uses()["cost/"+ledger.DefaultEnvironment]; use == nil || use.Spent.Cmp(ledger.MoneyOf(0.01)) <= 0 || use.Left.Cmp(ledger.Money{}) != 0 {
			t.Errorf("the budget of cost stands at %+v", use)
		}
		unknown := request(t, ledger.ParseAction, `{"agent_name":"a","action_type":"llm_call","action_name":"complete","payload":{"model":"nobody-knows","input_tokens":5}}`)
		g.clock.Advance(24 * time.Hour)
		if d := g.record(g.open("unknown"), unknown).Event.Decision; d.Outcome != ledger.RequireApproval || d.PolicyName != "budget:cost" {
			t.Errorf("a call that nobody can price is %s by %q", d.Outcome, d.PolicyName)
		}
		checkIntact(t, g.Service, "acme", 0)
	})
}

// However many replicas spend concurrently, a budget is never overspent, and everything that fits
// is allowed.
//
//countersign:race
func TestBudgetsAreNotOverspentTogether(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		g.settings(budgets(dailyUSD, `{"name":"gated","scope":"agent","window":"day","limit_usd":60,"decision":"require_approval"}`))
		replicas := []*service.Service{g.Service, g.replica()}
		var chains []ledger.ChainID
		for i := range 8 {
			chains = append(chains, g.open(fmt.Sprint("chain ", i)))
		}
		amounts := rand.New(rand.NewPCG(3, 4))
		var mu sync.Mutex
		var spent, waiting ledger.Money
		var crowd sync.WaitGroup
		for i := range 80 {
			dollars := float64(amounts.IntN(500))/100 + 0.01
			crowd.Go(func() {
				recorded, err := replicas[i%2].RecordEvent(context.Background(), g.who.agent, chains[i%len(chains)], pay(t, fmt.Sprint("agent ", i%3), dollars, fmt.Sprint("key ", i)))
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				switch recorded.Event.Status {
				case ledger.EventAllowed:
					spent = spent.Add(ledger.MoneyOf(dollars))
				case ledger.EventAwaiting:
					waiting = waiting.Add(ledger.MoneyOf(dollars))
				}
			})
		}
		crowd.Wait()
		if used := spent.Add(waiting); used.Cmp(ledger.MoneyOf(100)) > 0 || used.Cmp(ledger.MoneyOf(95)) < 0 {
			t.Errorf("%s USD of 100 were used", used)
		}
		use := g.uses()["daily/"]
		if use.Spent.Cmp(spent) != 0 || use.Waiting.Cmp(waiting) != 0 {
			t.Errorf("the counter says %s and %s, the answers %s and %s", use.Spent, use.Waiting, spent, waiting)
		}
		checkIntact(t, g.Service, "acme", 0)
	})
}

// After a random sequence of payments, verdicts, expiries, cancellations, repeats and days on two
// replicas, each counter equals the sum of what counts.
//
//countersign:race
func TestCountersFollowAModel(t *testing.T) {
	steps := nightly.Count(120, 4000) / (1 + 3*racing)
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		seed := uint64(time.Now().UnixNano())
		defer func() {
			if t.Failed() {
				t.Logf("seed %d", seed)
			}
		}()
		m := &budgetModel{governed: govern(t, db), random: rand.New(rand.NewPCG(seed, 1)), counts: make(map[string]*modelCount)}
		m.settings(`{"financial_approval_threshold_usd":80,"cumulative_financial_threshold_usd":1e9,"approval_timeout_hours":30,
			"budgets":[{"name":"all","scope":"organization","window":"day","limit_usd":300,"decision":"require_approval"},
			{"name":"each","scope":"agent","window":"month","limit_usd":500,"decision":"deny"}]}`)
		m.replicas = []*service.Service{m.Service, m.replica()}
		for range steps {
			m.step()
		}
		m.check()
		checkIntact(t, m.Service, "acme", m.sealed)
	})
}

// budgetModel computes what the counters should be.
type budgetModel struct {
	*governed
	random   *rand.Rand
	replicas []*service.Service
	chains   []ledger.ChainID
	open     []*modelUse // payments that wait
	made     []*modelUse
	counts   map[string]*modelCount
	keys     int
	sealed   int64
}

type modelCount struct{ spent, waiting ledger.Money }

type modelUse struct {
	chain    ledger.ChainID
	action   *ledger.Action
	amount   ledger.Money
	counters []string
	approval ledger.ApprovalID
	expires  ledger.Time
	status   ledger.EventStatus
}

func (m *budgetModel) count(name string) *modelCount {
	if m.counts[name] == nil {
		m.counts[name] = &modelCount{}
	}
	return m.counts[name]
}

func (m *budgetModel) service() *service.Service { return m.replicas[m.random.IntN(2)] }

func (m *budgetModel) step() {
	switch n := m.random.IntN(20); {
	case n < 10 || len(m.made) == 0:
		m.pay()
	case n < 12:
		m.again()
	case n < 16 && len(m.open) > 0:
		m.verdict()
	case n < 17:
		m.clock.Advance(time.Duration(m.random.IntN(20)) * time.Hour)
		m.expire()
	case n < 18 && len(m.chains) > 3:
		m.completeOne()
	default:
		m.check()
	}
}

func (m *budgetModel) pay() {
	m.t.Helper()
	if len(m.chains) == 0 || m.random.IntN(6) == 0 {
		m.chains = append(m.chains, m.governed.open(randomName()))
	}
	m.keys++
	agent := fmt.Sprint("agent ", m.random.IntN(3))
	dollars := float64(m.random.IntN(10000)) / 100
	use := &modelUse{
		chain: m.chains[m.random.IntN(len(m.chains))], action: pay(m.t, agent, dollars, fmt.Sprint("key ", m.keys)), amount: ledger.MoneyOf(dollars),
		counters: []string{m.clock.Now().UTC().Format("2006-01-02") + " all/", m.clock.Now().UTC().Format("2006-01") + " each/" + agent},
	}
	recorded := must[*service.Recorded](m.t)(m.service().RecordEvent(m.t.Context(), m.who.agent, use.chain, use.action))
	all, each := m.count(use.counters[0]), m.count(use.counters[1])
	left := func(c *modelCount, limit float64) bool {
		used := c.spent.Add(c.waiting)
		return used.Cmp(ledger.MoneyOf(limit)) < 0 && used.Add(use.amount).Cmp(ledger.MoneyOf(limit)) <= 0
	}
	want := ledger.EventAllowed
	if use.amount.Cmp(ledger.MoneyOf(80)) > 0 || !left(all, 300) {
		want = ledger.EventAwaiting
	}
	if !left(each, 500) {
		want = ledger.EventDenied
	}
	if use.status = recorded.Event.Status; use.status != want {
		m.t.Fatalf("a payment of %v USD by %s is %s, want %s: %+v, %+v: %s", dollars, agent, use.status, want, all, each, recorded.Event.Decision.Reason)
	}
	m.made = append(m.made, use)
	for _, name := range use.counters {
		switch c := m.count(name); use.status {
		case ledger.EventAllowed:
			c.spent = c.spent.Add(use.amount)
		case ledger.EventAwaiting:
			c.waiting = c.waiting.Add(use.amount)
		}
	}
	if use.status == ledger.EventAwaiting {
		use.approval = recorded.Event.Approval
		use.expires = ledger.TimeOf(m.clock.Now()) + 30*3600*1000
		m.open = append(m.open, use)
	}
}

// again repeats a payment, which is not counted again.
func (m *budgetModel) again() {
	use := m.made[m.random.IntN(len(m.made))]
	_, err := m.service().RecordEvent(m.t.Context(), m.who.agent, use.chain, use.action)
	if code := codeOf(err); err != nil && code != fault.CodeChainSealed {
		m.t.Fatal(err)
	}
}

func (m *budgetModel) settle(use *modelUse, approved bool) {
	for _, name := range use.counters {
		c := m.count(name)
		if c.waiting = c.waiting.Sub(use.amount); approved {
			c.spent = c.spent.Add(use.amount)
		}
	}
	for i, other := range m.open {
		if other == use {
			m.open = append(m.open[:i:i], m.open[i+1:]...)
			break
		}
	}
}

func (m *budgetModel) verdict() {
	use := m.open[m.random.IntN(len(m.open))]
	var err error
	kind := m.random.IntN(3)
	if kind == 0 {
		_, err = m.service().CancelApproval(m.t.Context(), m.who.agent, use.approval, "")
	} else {
		_, err = m.service().DecideApproval(m.t.Context(), m.who.member, use.approval, &ledger.Verdict{Approve: kind == 1})
	}
	if err != nil {
		m.t.Fatal(err)
	}
	m.settle(use, kind == 1)
}

// expire advances overdue approvals, as the worker does.
func (m *budgetModel) expire() {
	for _, use := range append([]*modelUse(nil), m.open...) {
		if _, err := m.service().AdvanceApproval(m.t.Context(), use.approval); err != nil {
			m.t.Fatal(err)
		}
		if ledger.TimeOf(m.clock.Now()) >= use.expires {
			m.settle(use, false)
		}
	}
	m.chains = nil // chains of days before would be paused
}

func (m *budgetModel) completeOne() {
	chain := m.chains[0]
	m.chains = m.chains[1:]
	if _, err := m.service().CompleteChain(m.t.Context(), m.who.agent, chain, &ledger.Completion{}); err != nil {
		m.t.Fatal(err)
	}
	m.sealed++
	for _, use := range append([]*modelUse(nil), m.open...) {
		if use.chain == chain {
			m.settle(use, false)
		}
	}
}

// check compares the current counters with the model.
func (m *budgetModel) check() {
	m.t.Helper()
	day, month := m.clock.Now().UTC().Format("2006-01-02")+" ", m.clock.Now().UTC().Format("2006-01")+" "
	for name, use := range m.uses() {
		at := day
		if strings.HasPrefix(name, "each/") {
			at = month
		}
		want := m.count(at + name)
		if use.Spent.Cmp(want.spent) != 0 || use.Waiting.Cmp(want.waiting) != 0 {
			m.t.Fatalf("%s: %s spent and %s waiting, want %s and %s", name, use.Spent, use.Waiting, want.spent, want.waiting)
		}
	}
}

// A simulation keeps the recorded decisions of budgets, treats budgets as unused where rules read
// them, and refuses a set that reads a budget that does not exist.
func TestSimulationsLeaveBudgetsAsTheyWere(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		g.settings(budgets(dailyUSD))
		chain := g.open("spending")
		for range 3 { // the last two are denied
			g.record(chain, pay(t, "a", 60, ""))
		}
		simulate := func(condition string) (*service.SimulationReport, error) {
			document := fmt.Sprintf("rules:\n- name: r\n  when: '%s'\n  decision: require_approval\n  reason: because\n", condition)
			return g.SimulatePolicy(t.Context(), g.who.admin, &service.Simulation{Document: service.PolicyDocument{Text: []byte(document), YAML: true}, MaxEvents: 100})
		}
		for condition, changed := range map[string]int64{`budget("daily").left < 100.0`: 0, `budget("daily").left == 100.0`: 1} {
			if report := must[*service.SimulationReport](t)(simulate(condition)); report.Events != 3 || report.Changed != changed {
				t.Errorf("%s: %+v, want %d changed", condition, report, changed)
			}
		}
		_, err := simulate(`budget("dayly").left < 1.0`)
		checkCode(t, "a set that asks about no budget", err, fault.CodeInvalid)
	})
}

// An admin who lowers a limit below the current use stops actions that were allowed before but did
// not begin, and actions that wait: a repeat and an approval are checked against the current
// limits.
func TestLowerLimitsHoldForRepeatsAndApprovals(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		g.settings(`{"financial_approval_threshold_usd":50,` + budgets(dailyUSD)[1:])
		chain := g.open("spending")
		allowed := pay(t, "a", 40, "allowed")
		g.record(chain, allowed)
		waiting := g.record(chain, pay(t, "a", 55, "")).Event.Approval
		if d := g.record(chain, allowed).Event.Decision; d.Outcome != ledger.Allow {
			t.Errorf("a repeat is %s: %s", d.Outcome, d.Reason)
		}
		g.settings(budgets(strings.Replace(dailyUSD, "100", "94.99", 1)))
		if d := g.record(chain, allowed).Event.Decision; d.Outcome != ledger.Deny || d.PolicyName != "budget:daily" {
			t.Errorf("a repeat under a lower limit is %s by %q", d.Outcome, d.PolicyName)
		}
		checkCode(t, "an approval under a lower limit", g.decide(g.who.member, waiting, true), fault.CodePolicyChanged)
		g.checkUse("daily/", 40, 0)
		if d := g.record(chain, allowed).Event.Decision; d.Outcome != ledger.Allow {
			t.Errorf("a repeat, when there is room again, is %s: %s", d.Outcome, d.Reason)
		}
		g.checkUse("daily/", 40, 0)
		checkIntact(t, g.Service, "acme", 0)
	})
}
