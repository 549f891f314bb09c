package worker_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // makes the schema that a test works in

	"countersign/internal/canon"
	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/notify"
	"countersign/internal/service"
	"countersign/internal/store"
	"countersign/internal/store/postgres"
	"countersign/internal/store/sqlite"
	"countersign/internal/worker"
)

// migrating is a store that makes its own schema.
type migrating interface {
	store.Store
	Migrate(ctx context.Context) error
}

// onEachStore gives a test a way to open one fresh database as often as it likes:
// each handle stands for a process.
func onEachStore(t *testing.T, test func(t *testing.T, open func() store.Store)) {
	t.Helper()
	t.Parallel()
	for name, fresh := range map[string]func(*testing.T) func() (migrating, error){"sqlite": newSQLite, "postgres": newPostgres} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			open := fresh(t)
			test(t, func() store.Store {
				db, err := open()
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = db.Close() })
				if err := db.Migrate(t.Context()); err != nil {
					t.Fatal(err)
				}
				return db
			})
		})
	}
}

func newSQLite(t *testing.T) func() (migrating, error) {
	path := filepath.Join(t.TempDir(), "countersign.db")
	return func() (migrating, error) { return sqlite.Open(t.Context(), path) }
}

func newPostgres(t *testing.T) func() (migrating, error) {
	t.Helper()
	server := os.Getenv("COUNTERSIGN_TEST_POSTGRES")
	if server == "" {
		t.Fatal("COUNTERSIGN_TEST_POSTGRES is not set: run the tests with `make test`, which starts a PostgreSQL for them")
	}
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	schema := "worker_" + hex.EncodeToString(random[:])
	admin, err := sql.Open("pgx", server)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := admin.ExecContext(t.Context(), "create schema "+schema); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := admin.ExecContext(context.Background(), "drop schema "+schema+" cascade"); err != nil {
			t.Errorf("drop schema: %v", err)
		}
		_ = admin.Close()
	})
	address, err := url.Parse(server)
	if err != nil {
		t.Fatal("COUNTERSIGN_TEST_POSTGRES is no URL")
	}
	query := address.Query()
	query.Set("search_path", schema)
	query.Set("pool_max_conns", "6")
	address.RawQuery = query.Encode()
	return func() (migrating, error) { return postgres.Open(t.Context(), address.String()) }
}

// clock stands until a test moves it.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Date(2026, 12, 31, 12, 0, 0, 0, time.UTC)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// world is a service on one store, with an organization whose agent "robot" may
// do nothing unasked.
type world struct {
	t       *testing.T
	store   store.Store
	ring    *keyring.Ring
	clock   *clock
	service *service.Service
	log     syncBuffer
	meter   *meter
	methods []string // of anchoring
	anchors worker.Anchoring

	admin, reviewer, agent *service.Caller
}

const (
	hours    = 8 // that people have to decide
	settings = `{"high_risk_agents":["robot"],"approval_timeout_hours":8,"fallback_approvers":["ada@example.com","bob@example.com"]}`
)

func newWorld(t *testing.T, db store.Store, methods ...string) *world {
	t.Helper()
	ring, err := keyring.Create(filepath.Join(t.TempDir(), "keys.json"), rand.Reader, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, store: db, ring: ring, clock: newClock(), meter: newMeter(), methods: methods}
	w.service = w.serve(db)
	_, first, err := w.service.Operator().CreateOrganization(t.Context(), "acme", "")
	if err != nil {
		t.Fatal(err)
	}
	w.admin = w.authenticate(first)
	w.reviewer, w.agent = w.key(ledger.RoleMember), w.key(ledger.RoleAgent)
	if _, err := w.service.UpdateOrganization(t.Context(), w.admin, parse(t, settings)); err != nil {
		t.Fatal(err)
	}
	return w
}

// serve starts a service, as another replica would, and stops it with the test.
func (w *world) serve(db store.Store) *service.Service {
	s := service.New(service.Config{Store: db, Keys: w.ring, Secrets: w.ring, Clock: w.clock.Now, PrivateWebhooks: true, Anchoring: w.methods})
	w.t.Cleanup(s.Close)
	return s
}

func (w *world) key(role ledger.Role) *service.Caller {
	w.t.Helper()
	key, err := w.service.Operator().CreateKey(w.t.Context(), "acme", &service.KeyRequest{Name: string(role), Role: role})
	if err != nil {
		w.t.Fatal(err)
	}
	return w.authenticate(key)
}

func (w *world) authenticate(key *service.NewKey) *service.Caller {
	w.t.Helper()
	caller, err := w.service.Authenticate(w.t.Context(), key.Text.Reveal())
	if err != nil {
		w.t.Fatal(err)
	}
	return caller
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
	chain, err := ledger.ParseChainRequest(parse(w.t, `{"name":"refunds"}`))
	if err != nil {
		w.t.Fatal(err)
	}
	opened, err := w.service.OpenChain(w.t.Context(), w.agent, chain, "")
	if err != nil {
		w.t.Fatal(err)
	}
	action, err := ledger.ParseAction(parse(w.t, `{"agent_name":"robot","action_type":"tool_call","action_name":"look","payload":{}}`))
	if err != nil {
		w.t.Fatal(err)
	}
	recorded, err := w.service.RecordEvent(w.t.Context(), w.agent, opened.ID, action)
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

// stored is the status as the row has it, whatever the clock says.
func (w *world) stored(id ledger.ApprovalID) ledger.ApprovalStatus {
	w.t.Helper()
	record, err := w.store.Approval(w.t.Context(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	return record.Status
}

// worker makes one on a service of this world. mailer may be nil.
func (w *world) worker(s *service.Service, mailer *notify.Mailer, ticks <-chan time.Time) *worker.Worker {
	webhooks := notify.NewWebhooks(notify.Options{AllowPrivate: true})
	w.t.Cleanup(webhooks.Close)
	return worker.New(worker.Config{
		Service: s, Webhooks: webhooks, Mailer: mailer, Anchoring: w.anchors, Clock: w.clock.Now, Ticks: ticks, Meter: w.meter,
		Random: func() float64 { return 0 },
		Log:    slog.New(slog.NewTextHandler(&w.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
}

// run does everything that is due, what follows from it included.
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

// queue wants so many jobs waiting, and so many given up.
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

// eventually waits until a condition holds.
func (w *world) eventually(what string, holds func() bool) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for !holds() {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			w.t.Fatalf("waited in vain: %s\n%s", what, w.log.String())
		}
	}
}

type syncBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// meter counts what it hears.
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

func (m *meter) JobDone(kind string)                 { m.add(kind+" done", 1) }
func (m *meter) JobRetried(kind string)              { m.add(kind+" retried", 1) }
func (m *meter) JobBuried(kind string)               { m.add(kind+" buried", 1) }
func (m *meter) AnchorMoved(method, standing string) { m.add(method+" "+standing, 1) }
func (m *meter) RolledBack(organizations int)        { m.set("rolled back", int64(organizations)) }
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
