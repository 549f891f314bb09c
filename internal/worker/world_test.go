package worker_test

import (
	"log/slog"
	"sync"
	"testing"
	"time"

	"countersign/internal/anchor"
	"countersign/internal/canon"
	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/notify"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/store"
	"countersign/internal/testdb"
	"countersign/internal/worker"
)

// onEachStore lets a test open one fresh database as often as it likes. Each handle represents a
// process.
func onEachStore(t *testing.T, test func(t *testing.T, open func() store.Store)) {
	t.Helper()
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		test(t, func() store.Store { return db.Open(t) })
	})
}

func newClock() *servicetest.Clock {
	return servicetest.NewClock(time.Date(2026, 12, 31, 12, 0, 0, 0, time.UTC))
}

// world is a service on one store, with an organization whose agent "robot" may do nothing without
// approval.
type world struct {
	t       *testing.T
	store   store.Store
	ring    *keyring.Ring
	clock   *servicetest.Clock
	service *service.Service
	log     servicetest.Buffer
	meter   *meter
	methods []string // anchoring methods
	// believes judges existing anchors. It is complete before the first one is judged.
	believes *anchor.Verifier
	anchors  worker.Anchoring

	admin, reviewer, agent *service.Caller
}

const (
	hours    = 8 // hours that people have to decide
	settings = `{"high_risk_agents":["robot"],"approval_timeout_hours":8,"fallback_approvers":["ada@example.com","bob@example.com"]}`
)

func newWorld(t *testing.T, db store.Store, methods ...string) *world {
	t.Helper()
	ring, _ := servicetest.NewRing(t)
	w := &world{t: t, store: db, ring: ring, clock: newClock(), meter: newMeter(), methods: methods}
	w.believes = &anchor.Verifier{Bitcoin: bitcoin(w.clock, nil)}
	w.service = w.serve(db)
	_, first, err := w.service.Operator().CreateOrganization(t.Context(), "acme", "")
	if err != nil {
		t.Fatal(err)
	}
	w.admin = servicetest.Authenticate(t, w.service, first)
	w.reviewer, w.agent = w.key(ledger.RoleMember), w.key(ledger.RoleAgent)
	if _, err := w.service.UpdateOrganization(t.Context(), w.admin, parse(t, settings)); err != nil {
		t.Fatal(err)
	}
	return w
}

// serve starts a service, like another replica, and stops it when the test ends.
//
//countersign:replica
func (w *world) serve(db store.Store) *service.Service {
	webhooks := notify.NewWebhooks(notify.Options{AllowPrivate: true})
	w.t.Cleanup(webhooks.Close)
	return servicetest.Start(w.t, service.Config{
		Deliverer: webhooks, Store: db, Keys: w.ring, Clock: w.clock.Now, PrivateWebhooks: true, Anchoring: w.methods, Timestamps: w.believes,
	}).Service
}

func (w *world) key(role ledger.Role) *service.Caller {
	w.t.Helper()
	return servicetest.Authenticate(w.t, w.service, servicetest.NewKey(w.t, w.service, "acme", string(role), role))
}

func parse(t *testing.T, text string) canon.Value {
	t.Helper()
	v, err := canon.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// ask records an action that a person must decide, and returns the approval.
func (w *world) ask() ledger.ApprovalID {
	w.t.Helper()
	return w.askIn(w.open(`{"name":"refunds"}`))
}

// open opens a chain.
func (w *world) open(request string) ledger.ChainID {
	w.t.Helper()
	chain, err := ledger.ParseChainRequest(parse(w.t, request))
	if err != nil {
		w.t.Fatal(err)
	}
	opened, err := w.service.OpenChain(w.t.Context(), w.agent, chain, "")
	if err != nil {
		w.t.Fatal(err)
	}
	return opened.ID
}

// askIn is ask in an existing chain.
func (w *world) askIn(chain ledger.ChainID) ledger.ApprovalID {
	w.t.Helper()
	action, err := ledger.ParseAction(parse(w.t, `{"agent_name":"robot","action_type":"tool_call","action_name":"look","payload":{}}`))
	if err != nil {
		w.t.Fatal(err)
	}
	recorded, err := w.service.RecordEvent(w.t.Context(), w.agent, chain, action)
	if err != nil {
		w.t.Fatal(err)
	}
	if recorded.Event.Status != ledger.EventAwaiting {
		w.t.Fatalf("the action is %s", recorded.Event.Status)
	}
	return recorded.Event.Approval
}

func (w *world) approve(id ledger.ApprovalID) {
	w.t.Helper()
	if _, err := w.service.DecideApproval(w.t.Context(), w.reviewer, id, &ledger.Verdict{Approve: true}); err != nil {
		w.t.Fatal(err)
	}
}

// stored returns the status in the row, whatever the clock says.
func (w *world) stored(id ledger.ApprovalID) ledger.ApprovalStatus {
	w.t.Helper()
	record, err := w.store.Approval(w.t.Context(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	return record.Status
}

// worker returns a worker for a service of this world. mailer may be nil.
func (w *world) worker(s *service.Service, mailer *notify.Mailer, ticks <-chan time.Time) *worker.Worker {
	webhooks := notify.NewWebhooks(notify.Options{AllowPrivate: true})
	w.t.Cleanup(webhooks.Close)
	return worker.New(worker.Config{
		Service: s, Webhooks: webhooks, Mailer: mailer, Anchoring: w.anchors, Clock: w.clock.Now, Ticks: ticks, Meter: w.meter,
		Random: func() float64 { return 0 },
		Log:    slog.New(slog.NewTextHandler(&w.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
}

// run runs everything that is due, including what follows from it.
func (w *world) run(worker *worker.Worker) {
	w.t.Helper()
	for range 100 {
		done, err := worker.RunOnce(w.t.Context())
		if err != nil {
			w.t.Fatal(err)
		}
		if done == 0 {
			return
		}
	}
	w.t.Fatal("there is no end to the work")
}

// queue requires the given numbers of waiting and buried jobs.
func (w *world) queue(waiting, buried int64) {
	w.t.Helper()
	gotWaiting, gotBuried, err := w.store.CountJobs(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	if gotWaiting != waiting || gotBuried != buried {
		w.t.Errorf("%d jobs wait and %d are buried, want %d and %d\n%s", gotWaiting, gotBuried, waiting, buried, w.log.String())
	}
}

// meter counts its calls.
type meter struct {
	mu     sync.Mutex
	counts map[string]int64
}

func newMeter() *meter { return &meter{counts: make(map[string]int64)} }

func (m *meter) add(what string, n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts[what] += n
}

func (m *meter) JobDone(kind string)                  { m.add(kind+" done", 1) }
func (m *meter) JobRetried(kind string)               { m.add(kind+" retried", 1) }
func (m *meter) JobBuried(kind string)                { m.add(kind+" buried", 1) }
func (m *meter) AnchorMoved(method, standing string)  { m.add(method+" "+standing, 1) }
func (m *meter) RolledBack(organizations int)         { m.set("rolled back", int64(organizations)) }
func (m *meter) LedgerCheckAge(age time.Duration)     { m.set("age", int64(age)) }
func (m *meter) ChainsRemembered(chains int, _ int64) { m.set("chains", int64(chains)) }
func (m *meter) TamperingOpen(findings int)           { m.set("tampering", int64(findings)) }
func (m *meter) Submitted(witness, result string)     { m.add(witness+" "+result, 1) }
func (m *meter) WitnessesDisagree(logs int)           { m.set("disagree", int64(logs)) }
func (m *meter) JobsCounted(waiting, buried int64) {
	m.set("waiting", waiting)
	m.set("buried", buried)
}

func (m *meter) set(what string, n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts[what] = n
}

func (m *meter) get(what string) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.counts[what]
}
