package worker

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"

	"countersign/internal/bundle"
	"countersign/internal/canon"
	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/testdb"
	"countersign/internal/witness"
)

// must returns the result of a call that must not fail.
func must[T any](t testing.TB) func(T, error) T {
	t.Helper()
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

// signing is a service that signs logs, on SQLite.
type signing struct {
	*service.Service
	t            *testing.T
	db           *testdb.Database
	ring         *keyring.Ring
	org          *servicetest.Tenant
	agent, admin *service.Caller
	grown        bool // the next GrownLogs lists the organization
}

// sign starts a service that signs logs. of is nil, or a service whose organization and keys it
// shares.
//
//countersign:replica
func sign(t *testing.T, db *testdb.Database, of *signing, marks string) *signing {
	t.Helper()
	s := &signing{t: t, db: db}
	if of != nil {
		s.ring, s.org = of.ring, of.org
	} else {
		s.ring, _ = servicetest.NewRing(t)
	}
	file := must[*keyring.LogMarks](t)(keyring.OpenLogMarks(marks, s.ring))
	s.Service = servicetest.Start(t, service.Config{
		Store: db.Open(t), Keys: s.ring, Alone: true, LogMarks: file, Signing: &service.Signing{Keys: s.ring, Instance: "log.example.com"},
	}).Service
	s.SignLogs()
	if of == nil {
		s.org = servicetest.NewTenant(t, s.Service, "acme")
	}
	s.agent, s.admin = servicetest.Authenticate(t, s.Service, s.org.Agent), servicetest.Authenticate(t, s.Service, s.org.Admin)
	return s
}

// GrownLogs is that of the service, also for a submitter that represents a new process, and after
// signed.
func (s *signing) GrownLogs(ctx context.Context) ([]ledger.OrgID, bool, error) {
	grown, signs, err := s.Service.GrownLogs(ctx)
	if s.grown {
		grown, s.grown = append(grown, s.org.ID), false
	}
	return grown, signs, err
}

// seal seals receipts.
func (s *signing) seal(receipts int) {
	s.t.Helper()
	for range receipts {
		request := must[*ledger.Chain](s.t)(ledger.ParseChainRequest(must[canon.Value](s.t)(canon.Parse([]byte(`{"name":"refunds"}`)))))
		chain := must[*service.ChainView](s.t)(s.OpenChain(s.t.Context(), s.agent, request, ""))
		must[*service.Completed](s.t)(s.CompleteChain(s.t.Context(), s.agent, chain.ID, &ledger.Completion{}))
	}
}

// signed waits until the log has grown to a size. The service lists it as grown only after its
// checkpoint can be read, so signed waits for both.
func (s *signing) signed(size int64) {
	s.t.Helper()
	servicetest.Eventually(s.t, "the log is signed", func() bool {
		log := must[*service.LogToWitness](s.t)(s.LogToWitness(s.t.Context(), s.org.ID))
		return log != nil && log.Size == size
	})
	servicetest.Eventually(s.t, "the log is listed as grown", func() bool {
		grown, _, err := s.Service.GrownLogs(s.t.Context())
		if err != nil {
			s.t.Fatal(err)
		}
		return len(grown) > 0
	})
	s.grown = true
}

func (s *signing) vkey() string {
	s.t.Helper()
	_, keys, err := s.Operator().LogVerifierKeys(s.t.Context(), "acme")
	if err != nil {
		s.t.Fatal(err)
	}
	return keys[len(keys)-1].VerifierKey
}

// seen returns how many of the witnesses have cosigned the published checkpoint, and its size.
func (s *signing) seen(clients []*witness.Client) (witnesses int, size string) {
	s.t.Helper()
	origin, _, err := s.Operator().LogVerifierKeys(s.t.Context(), "acme")
	if err != nil {
		s.t.Fatal(err)
	}
	published := must[[]byte](s.t)(s.LogCheckpoint(s.t.Context(), origin[strings.LastIndex(origin, "/")+1:]))
	for _, client := range clients {
		if _, err := note.Open(published, note.VerifierList(client.Verifier)); err == nil {
			witnesses++
		}
	}
	return witnesses, strings.Split(string(published), "\n")[1]
}

// site is a real witness behind a connection that a test can break.
type site struct {
	http.Handler
	client   *witness.Client
	vkey     string
	requests atomic.Int64

	mu   sync.Mutex
	dead bool
	mute bool // its answers are lost
}

var errBroken = errors.New("the connection is broken")

// newSite serves a witness that knows the logs with these keys.
func newSite(t *testing.T, name string, logs ...string) *site {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "witness")
	vkey := must[string](t)(witness.Init(folder, name))
	for _, log := range logs {
		must[string](t)(witness.Add(folder, log, ""))
	}
	w := must[*witness.Witness](t)(witness.Open(folder, slog.New(slog.DiscardHandler)))
	t.Cleanup(w.Close)
	s := &site{Handler: w.Handler(), vkey: vkey}
	target := must[witness.Target](t)(witness.ParseTarget(vkey + "=http://witness.example.com"))
	s.client = witness.NewClient(target)
	s.client.HTTP = &http.Client{Transport: s}
	return s
}

// RoundTrip implements http.RoundTripper.
func (s *site) RoundTrip(r *http.Request) (*http.Response, error) {
	s.requests.Add(1)
	s.mu.Lock()
	dead, mute := s.dead, s.mute
	s.mu.Unlock()
	if dead {
		return nil, errBroken
	}
	answer := httptest.NewRecorder()
	s.ServeHTTP(answer, r)
	if mute {
		return nil, errBroken
	}
	return answer.Result(), nil
}

func (s *site) set(dead, mute bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dead, s.mute = dead, mute
}

// submits is a submitter whose passes a test starts.
type submits struct {
	*submitter
	t       *testing.T
	clock   *servicetest.Clock
	log     *servicetest.Buffer
	clients []*witness.Client
}

func submitTo(t *testing.T, logs witnessedLogs, sites ...*site) *submits {
	t.Helper()
	s := &submits{t: t, clock: servicetest.NewClock(time.Unix(1_800_000_000, 0)), log: new(servicetest.Buffer)}
	for _, site := range sites {
		s.clients = append(s.clients, site.client)
	}
	w := &Worker{Config: Config{Log: slog.New(slog.NewTextHandler(s.log, nil)), Clock: s.clock.Now, Meter: silentMeter{}}, working: t.Context()}
	s.submitter = newSubmitter(logs, s.clients, w)
	return s
}

// run makes a pass and waits for everything that it started.
func (s *submits) run() {
	s.t.Helper()
	if err := s.pass(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	s.running.Wait()
}

// later is run after some time.
func (s *submits) later(d time.Duration) {
	s.t.Helper()
	s.clock.Advance(d)
	s.run()
}

// Checkpoints are cosigned by the witnesses that answer, at most every ten seconds, and also by one
// that comes back later, in addition to the others. A bundle then meets the quorum.
//
//countersign:race
func TestCheckpointsAreCosigned(t *testing.T) {
	t.Parallel()
	s := sign(t, testdb.SQLite(t), nil, filepath.Join(t.TempDir(), "heads.logs"))
	s.seal(2)
	s.signed(2)
	one, two, three := newSite(t, "w1", s.vkey()), newSite(t, "w2", s.vkey()), newSite(t, "w3", s.vkey())
	three.set(true, false)
	w := submitTo(t, s, one, two, three)
	check := func(what string, witnesses int, size string, requests int64) {
		t.Helper()
		if got, at := s.seen(w.clients); got != witnesses || at != size || one.requests.Load() != requests {
			t.Errorf("%s: size %s is seen by %d after %d requests, want size %s, %d, %d", what, at, got, one.requests.Load(), size, witnesses, requests)
		}
	}
	w.run()
	check("with one dead", 2, "2", 1)
	s.seal(1)
	s.signed(3)
	w.later(submitEvery - time.Second)
	check("too early", 0, "3", 1)
	w.later(time.Second)
	check("after ten seconds", 2, "3", 2)
	three.set(false, false)
	w.later(time.Minute)
	check("with the dead one back", 3, "3", 2)
	w.later(time.Hour)
	check("without growth", 3, "3", 2)
	if got := three.requests.Load(); got != 3 {
		t.Errorf("the third was asked %d times, want 3: twice in vain, and then for a checkpoint from size 0", got)
	}

	// A new process asks once, with the size in the store.
	s.grown = true
	again := submitTo(t, s, one, two, three)
	again.run()
	again.later(time.Hour)
	check("after a restart", 3, "3", 3)

	if _, err := s.UpdateOrganization(t.Context(), s.admin, must[canon.Value](t)(canon.Parse([]byte(`{"evidence_export":"admins"}`)))); err != nil {
		t.Fatal(err)
	}
	receipts := must[[]*ledger.StoredReceipt](t)(s.db.Open(t).Receipts(t.Context(), s.org.ID, 4, 1))
	data := must[[]byte](t)(s.Bundle(t.Context(), s.admin, receipts[0].ID, true))
	keys := bundle.Keys{Log: []string{s.vkey()}, Quorum: 3}
	for _, site := range []*site{one, two, three} {
		keys.Witnesses = append(keys.Witnesses, site.vkey)
	}
	verdict := must[*bundle.Verdict](t)(must[*bundle.Trust](t)(bundle.NewTrust(keys)).Verify(data))
	if verdict.Status != bundle.Verified || len(verdict.Witnessed) != 3 || verdict.Witnesses != 3 {
		t.Errorf("the bundle's verdict is %+v", verdict)
	}
}

// The first checkpoint of a log is submitted as soon as it is signed, also if the log was
// looked at just before.
//
//countersign:race
func TestFirstCheckpointNeedNotWait(t *testing.T) {
	t.Parallel()
	s := sign(t, testdb.SQLite(t), nil, filepath.Join(t.TempDir(), "heads.logs"))
	servicetest.Eventually(t, "the log has begun", func() bool {
		_, _, err := s.Operator().LogVerifierKeys(t.Context(), "acme")
		return err == nil
	})
	site := newSite(t, "w1", s.vkey())
	w := submitTo(t, s, site)
	w.run()
	if got := site.requests.Load(); got != 0 {
		t.Errorf("an empty log was submitted: %d requests", got)
	}
	s.seal(1)
	s.signed(1)
	w.later(passEvery)
	if got, size := s.seen(w.clients); got != 1 || size != "1" {
		t.Errorf("size %s is seen by %d a second later", size, got)
	}
}

// A process that dies after a witness has cosigned but before it got the answer asks again: the
// witness says what it has, and returns the cosignature.
//
//countersign:race
func TestCosignatureThatWasNotHeard(t *testing.T) {
	t.Parallel()
	s := sign(t, testdb.SQLite(t), nil, filepath.Join(t.TempDir(), "heads.logs"))
	s.seal(1)
	s.signed(1)
	w := newSite(t, "w1", s.vkey())
	submitTo(t, s, w).run()
	for size := int64(2); size <= 3; size++ {
		s.seal(1)
		s.signed(size)
		w.set(false, true)
		died := submitTo(t, s, w)
		died.run()
		if got, _ := s.seen(died.clients); got != 0 {
			t.Errorf("size %d: a cosignature that was not heard is stored", size)
		}
		w.set(false, false)
		if size == 3 { // the log has grown since
			s.seal(1)
			s.signed(4)
		}
		s.grown = true
		next := submitTo(t, s, w)
		next.run()
		if got, at := s.seen(next.clients); got != 1 {
			t.Errorf("size %s is seen by %d\n%s", at, got, next.log)
		}
	}
}

// The witness refuses a database that was rolled back, and the operator is notified. If the file of
// marks still has what was signed, no other checkpoint is signed. If that was rolled back too, the
// witness does not cosign the other history.
//
//countersign:race
func TestWitnessSeesRolledBackDatabase(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	marks := filepath.Join(folder, "heads.logs")
	s := sign(t, testdb.SQLite(t), nil, marks)
	s.seal(1)
	s.signed(1)
	w := newSite(t, "w1", s.vkey())
	submitTo(t, s, w).run()
	oldMarks := filepath.Join(folder, "put-back.logs")
	if err := os.WriteFile(oldMarks, must[[]byte](t)(os.ReadFile(marks)), 0o600); err != nil {
		t.Fatal(err)
	}
	copies := []string{filepath.Join(folder, "one.db"), filepath.Join(folder, "two.db")}
	direct := s.db.Direct(t)
	for _, path := range copies {
		if _, err := direct.ExecContext(t.Context(), "VACUUM INTO ?", path); err != nil {
			t.Fatal(err)
		}
	}
	s.seal(2)
	s.signed(3)
	submitTo(t, s, w).run()
	published := s.published()
	s.Close()

	guarded := sign(t, testdb.SQLiteFile(copies[0]), s, marks)
	guarded.seal(3)
	alarm := submitTo(t, guarded, w)
	alarm.run()
	alarm.later(time.Hour)
	if log := alarm.log.String(); alarm.disagreements() != 1 || strings.Count(log, "level=ERROR") != 1 || !strings.Contains(log, "a larger tree than the log has: 3 and 1 leaves") {
		t.Errorf("%d disagreements, and the log says\n%s", alarm.disagreements(), log)
	}
	if got := guarded.published(); bytes.Contains(got, []byte("\n3\n")) || bytes.Equal(got, published) {
		t.Errorf("published: %s", got)
	}

	forked := sign(t, testdb.SQLiteFile(copies[1]), s, oldMarks)
	alarm = submitTo(t, forked, w)
	for i, grow := range []int{2, 1} { // the size that the witness has, and a larger one
		forked.seal(grow)
		forked.signed(int64(3 + i))
		alarm.later(time.Hour)
		if got, size := forked.seen(alarm.clients); got != 0 || alarm.disagreements() != 1 || strings.Count(alarm.log.String(), "level=ERROR") != 1 {
			t.Errorf("size %s is seen by %d, with %d disagreements\n%s", size, got, alarm.disagreements(), alarm.log)
		}
	}
}

func (s *signing) published() []byte {
	s.t.Helper()
	return must[*service.LogToWitness](s.t)(s.LogToWitness(s.t.Context(), s.org.ID)).Checkpoint
}

// panicking are logs whose methods panic as long as a test wants them to.
type panicking struct {
	*signing
	reading, storing bool
}

// LogToWitness implements witnessedLogs.
func (p *panicking) LogToWitness(ctx context.Context, org ledger.OrgID) (*service.LogToWitness, error) {
	if p.reading {
		panic("for the test")
	}
	return p.signing.LogToWitness(ctx, org)
}

// AttachCosignatures implements witnessedLogs.
func (p *panicking) AttachCosignatures(ctx context.Context, log *service.LogToWitness, lines []byte) error {
	if p.storing {
		panic("for the test")
	}
	return p.signing.AttachCosignatures(ctx, log, lines)
}

// A round that panics, while it reads a checkpoint or stores its cosignatures, is repeated even if
// the log does not grow.
//
//countersign:race
func TestPanickingRoundIsRepeated(t *testing.T) {
	t.Parallel()
	s := sign(t, testdb.SQLite(t), nil, filepath.Join(t.TempDir(), "heads.logs"))
	s.seal(1)
	s.signed(1)
	logs := &panicking{signing: s}
	w := submitTo(t, logs, newSite(t, "w1", s.vkey()))
	for i, panics := range []struct{ reading, storing bool }{{reading: true}, {storing: true}} {
		s.seal(1)
		s.signed(int64(i) + 2)
		logs.reading, logs.storing = panics.reading, panics.storing
		w.later(time.Minute)
		logs.reading, logs.storing = false, false
		w.later(time.Minute)
		if got, at := s.seen(w.clients); got != 1 {
			t.Errorf("%+v: size %s is seen by %d after the round was repeated", panics, at, got)
		}
	}
}
