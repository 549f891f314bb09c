package service_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	random "math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"countersign/internal/fault"
	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/nightly"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/store"
	"countersign/internal/testdb"
	"countersign/internal/verify"
)

const (
	cleanLives   = 4 // between them the servers restart, and every other time the master key is rotated
	cleanWorkers = 8
)

// Data that only the service has written is never reported as tampering, whatever many clients of
// two replicas do, through restarts and rotations, while the ledger is audited, checked and
// verified.
//
//countersign:race twice
func TestNoFalseAlarm(t *testing.T) {
	checkNoFalseAlarm(t, nightly.Count(10_000, 500_000), false)
}

// The same holds while the clock of the machine jumps ahead by up to two months and back again.
//
//countersign:race twice
func TestClockJumpsRaiseNoAlarm(t *testing.T) {
	checkNoFalseAlarm(t, nightly.Count(2000, 100_000), true)
}

func checkNoFalseAlarm(t *testing.T, operations int, jumps bool) {
	t.Helper()
	operations /= 1 + 5*racing // on each store
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		ring, keyFile := servicetest.NewRing(t)
		heads := filepath.Join(t.TempDir(), "heads.json")
		world := &cleanWorld{t: t, db: db, ticks: ticking(), jumps: jumps, due: make(chan struct{}, 1), proving: make(chan struct{}, 1), folder: t.TempDir(), seed: uint64(time.Now().UnixNano())}
		world.ahead.Store(new(time.Duration))
		t.Logf("seed %d", world.seed)
		for life := range cleanLives {
			if life%2 == 1 {
				rotated, err := keyring.Rotate(keyFile, rand.Reader, time.Now())
				done(t, err)
				ring = rotated
			}
			watch, err := keyring.OpenHeads(heads, ring)
			done(t, err)
			world.live(life, operations/cleanLives, ring, watch)
			done(t, watch.Flush())
		}
		if alarms := world.alarms.String(); alarms != "" {
			t.Errorf("the servers log: %s", alarms)
		}
	})
}

// cleanWorld is a database that only the service writes to.
type cleanWorld struct {
	t     *testing.T
	db    *testdb.Database
	ticks func() time.Time
	jumps bool // the clock does not only tick
	// ahead is how far the clock has jumped. Each jump stores another pointer, so whoever loads
	// the same one twice knows that there was none in between.
	ahead   atomic.Pointer[time.Duration]
	seed    uint64
	folder  string             // of what the replicas remember of open chains
	alarms  servicetest.Buffer // the errors that servers log
	done    atomic.Int64       // operations
	audited atomic.Int64       // when so many are done, another audit is due
	due     chan struct{}      // nudged when it is time for another audit
	proving chan struct{}      // nudged when it is time to prove the open chains
	tenants []*cleanTenant
}

func (w *cleanWorld) clock() time.Time { return w.ticks().Add(*w.ahead.Load()) }

// cleanTenant is an organization with the texts of its keys: callers do not outlive a service.
type cleanTenant struct {
	slug                 string
	admin, member, agent string
}

// live runs two replicas for the given number of operations, and audits the result.
func (w *cleanWorld) live(life, operations int, ring *keyring.Ring, watch *keyring.Heads) {
	t := w.t
	log := slog.New(slog.NewTextHandler(&w.alarms, &slog.HandlerOptions{Level: slog.LevelError}))
	first := w.db.Open(t)
	handles, committers := []store.Store{first, first}, 1
	if w.db.Kind == "postgres" {
		handles[1], committers = w.db.Open(t), 2
	}
	var replicas []*service.Service
	var journals []*keyring.Chains
	for n, handle := range handles {
		journal, err := keyring.OpenChains(filepath.Join(w.folder, fmt.Sprint("chains-", n)), ring)
		done(t, err)
		journals = append(journals, journal)
		replicas = append(replicas, service.New(service.Config{
			Chains: journal,
			Store:  handle, Keys: ring, Secrets: ring, Clock: w.clock, Committers: committers, Log: log, Watch: watch, PrivateWebhooks: true,
			Delay: func(context.Context, time.Duration) error { return nil },
		}))
	}
	done(t, replicas[0].Operator().AdoptKeys(t.Context(), ring))
	done(t, replicas[0].Operator().AdoptLedger(t.Context(), watch))
	if life == 0 {
		for _, slug := range []string{"acme", "other"} {
			made := servicetest.NewTenant(t, replicas[0], slug)
			w.tenants = append(w.tenants, &cleanTenant{slug, made.Admin.Text.Reveal(), made.Member.Text.Reveal(), made.Agent.Text.Reveal()})
		}
	}
	var working, watching sync.WaitGroup
	over := make(chan struct{})
	watching.Go(func() { w.audit(replicas[1], over) })
	watching.Go(func() { w.prove(replicas, journals, over) })
	for n := range cleanWorkers {
		working.Go(func() {
			worker := &cleanWorker{
				cleanWorld: w, s: replicas[n%2], who: w.tenants[n/2%2],
				chance: random.New(random.NewPCG(w.seed, uint64(life*cleanWorkers+n))),
			}
			for range operations / cleanWorkers {
				worker.act()
			}
		})
	}
	working.Wait()
	close(over)
	watching.Wait()
	for n, replica := range replicas {
		replica.Close()
		if n == life%2 { // the other one is killed
			done(t, journals[n].Flush())
		}
		done(t, journals[n].Close())
	}
	done(t, first.Close())
	if handles[1] != first {
		done(t, handles[1].Close())
	}
}

// prove checks the recorded progress of open chains on each replica until over is closed, and once
// more afterwards.
func (w *cleanWorld) prove(replicas []*service.Service, journals []*keyring.Chains, over <-chan struct{}) {
	for last := false; ; {
		for n, replica := range replicas {
			if err := replica.ProveChains(context.Background()); err != nil {
				w.t.Error(err)
			}
			if err := journals[n].Flush(); err != nil {
				w.t.Error(err)
			}
		}
		if last {
			return
		}
		select {
		case <-over:
			last = true
		case <-w.proving:
		}
	}
}

// audit audits the ledgers and runs the jobs of the self-check until over is closed, and once more
// afterwards.
func (w *cleanWorld) audit(s *service.Service, over <-chan struct{}) {
	const every = time.Second
	for last := false; ; {
		for _, who := range w.tenants {
			report, err := s.Operator().Audit(context.Background(), who.slug, verify.AuditOptions{})
			if err != nil || report.Break != nil {
				w.t.Errorf("the audit of %s: %v, %+v", who.slug, err, report)
			}
		}
		if err := s.QueueChecks(context.Background(), every); err != nil {
			w.t.Error(err)
		}
		// First, so that no check sees the lease of a job that is claimed: after a jump back it looks
		// like a job that somebody has postponed.
		w.work(s, service.JobDeadline, 20, s.Jobs().Deadline)
		w.work(s, service.JobCheck, 2, func(ctx context.Context, job *store.Job) error {
			return s.Jobs().CheckLedger(ctx, job, every)
		})
		if last {
			return
		}
		select {
		case <-over:
			last = true
		case <-w.due:
		}
	}
}

// work runs the due jobs of a kind.
func (w *cleanWorld) work(s *service.Service, kind string, most int, do func(context.Context, *store.Job) error) {
	jobs, err := s.Jobs().Claim(context.Background(), time.Minute, map[string]int{kind: most})
	if err != nil {
		w.t.Error(err)
	}
	for _, job := range jobs {
		if err := do(context.Background(), job); err != nil {
			w.t.Error(err)
		}
	}
}

// cleanWorker performs one random operation after the other.
type cleanWorker struct {
	*cleanWorld
	s         *service.Service
	who       *cleanTenant
	chance    *random.Rand
	chains    []ledger.ChainID // open
	approvals []ledger.ApprovalID
	decided   []ledger.ApprovalID
	receipts  []ledger.ReceiptID
	tokens    []cleanToken
	spare     *service.NewKey // a key of its own, to rotate and to revoke
	hook      ledger.WebhookID
	count     int
}

type cleanToken struct {
	id   ledger.TokenID
	text string
}

func nudge(waiting chan<- struct{}) {
	select {
	case waiting <- struct{}{}:
	default:
	}
}

func (c *cleanWorker) act() {
	c.count++
	// An audit walks the whole ledger: the longer that is, the fewer there are.
	done := c.done.Add(1)
	if due := c.audited.Load(); done >= due && c.audited.CompareAndSwap(due, done+max(250, done/2)) {
		nudge(c.due)
	}
	if done%50 == 0 {
		nudge(c.proving)
	}
	if c.jumps && c.chance.IntN(40) == 0 {
		spans := []time.Duration{0, time.Minute, 3 * time.Hour, 50 * time.Hour, 60 * 24 * time.Hour}
		c.ahead.Store(&spans[c.chance.IntN(len(spans))])
	}
	operations := []struct {
		weight int
		do     func(context.Context) error
	}{
		{10, c.open}, {40, c.record}, {6, c.ask}, {5, c.outcome}, {6, c.decide}, {8, c.complete}, {3, c.report},
		{8, c.verifyReceipt}, {6, c.verifyApproval}, {4, c.issue}, {6, c.checkToken}, {1, c.revokeToken},
		{2, c.spareKey}, {1, c.signIn}, {1, c.signingKey}, {1, c.webhook}, {1, c.settings}, {1, c.policy}, {4, c.read}, {6, c.poll},
	}
	operation := operations[draw(c.chance, len(operations), func(i int) int { return operations[i].weight })]
	err := operation.do(context.Background())
	if code := codeOf(err); errors.Is(err, ledger.ErrStateTampered) || code == fault.CodeEvidenceTampered || code == fault.CodeRolledBack || code == fault.CodeInternal {
		c.t.Errorf("an alarm: %v", err)
	}
}

// draw picks one of n things by their weights.
func draw(chance *random.Rand, n int, weight func(int) int) int {
	total := 0
	for i := range n {
		total += weight(i)
	}
	pick := chance.IntN(total)
	for i := range n {
		if pick -= weight(i); pick < 0 {
			return i
		}
	}
	panic("the weights have changed")
}

func (c *cleanWorker) caller(ctx context.Context, text string) *service.Caller {
	caller, err := c.s.Authenticate(ctx, text)
	if err != nil {
		c.t.Errorf("a key of %s is refused: %v", c.who.slug, err)
		return &service.Caller{}
	}
	return caller
}

// one picks an element of a list; false if the list is empty.
func one[T any](c *cleanWorker, list []T) (picked T, ok bool) {
	if len(list) == 0 {
		return picked, false
	}
	return list[c.chance.IntN(len(list))], true
}

func (c *cleanWorker) open(ctx context.Context) error {
	if len(c.chains) > 5 {
		return nil
	}
	key := ""
	if c.chance.IntN(2) == 0 {
		key = uuid.NewString()
	}
	view, err := c.s.OpenChain(ctx, c.caller(ctx, c.who.agent), chainNamed(c.t, fmt.Sprint("chain-", c.count)), key)
	if err == nil {
		c.chains = append(c.chains, view.ID)
	}
	return err
}

func (c *cleanWorker) record(ctx context.Context) error {
	chain, ok := one(c, c.chains)
	if !ok {
		return c.open(ctx)
	}
	_, err := c.s.RecordEvent(ctx, c.caller(ctx, c.who.agent), chain, step(c.t, fmt.Sprint("step-", c.count), fmt.Sprint("key-", c.chance.IntN(50))))
	return err
}

func (c *cleanWorker) ask(ctx context.Context) error {
	chain, ok := one(c, c.chains)
	if !ok {
		return nil
	}
	recorded, err := c.s.RecordEvent(ctx, c.caller(ctx, c.who.agent), chain, payment(c.t, gatedAmount, ""))
	if err == nil && recorded.Event.Status == ledger.EventAwaiting {
		c.approvals = append(c.approvals, recorded.Event.Approval)
	}
	return err
}

func (c *cleanWorker) outcome(ctx context.Context) error {
	chain, ok := one(c, c.chains)
	if !ok {
		return nil
	}
	recorded, err := c.s.RecordEvent(ctx, c.caller(ctx, c.who.agent), chain, step(c.t, "with-outcome", ""))
	if err != nil {
		return err
	}
	_, err = c.s.ReportOutcome(ctx, c.caller(ctx, c.who.agent), chain, recorded.Event.ID, &ledger.Entry{Result: ledger.Succeeded, Detail: "done"})
	return err
}

func (c *cleanWorker) report(ctx context.Context) error {
	chain, ok := one(c, c.chains)
	if !ok {
		return nil
	}
	_, err := c.s.ReportEvents(ctx, c.caller(ctx, c.who.agent), chain, reported(c.t, uuid.NewString(), uuid.NewString()))
	return err
}

func (c *cleanWorker) decide(ctx context.Context) error {
	if len(c.approvals) == 0 {
		return nil
	}
	id := c.approvals[0]
	c.approvals, c.decided = c.approvals[1:], append(c.decided, id)
	_, err := c.s.DecideApproval(ctx, c.caller(ctx, c.who.member), id, &ledger.Verdict{Approve: c.chance.IntN(3) > 0})
	return err
}

func (c *cleanWorker) complete(ctx context.Context) error {
	if len(c.chains) == 0 {
		return nil
	}
	id := c.chains[0]
	c.chains = c.chains[1:]
	if _, err := c.s.CompleteChain(ctx, c.caller(ctx, c.who.agent), id, &ledger.Completion{}); err != nil {
		return err
	}
	receipt, err := c.s.ReceiptOfChain(ctx, c.caller(ctx, c.who.member), id)
	if err == nil {
		c.receipts = append(c.receipts, receipt.ID)
	}
	return err
}

func (c *cleanWorker) verdict(v *ledger.Verification, err error) error {
	if err == nil {
		if overall, reason := v.Conclude(); overall == ledger.VerdictFailed {
			c.t.Errorf("%s %s of %s: %s, %+v", v.Artifact, v.ID, c.who.slug, reason, v.Checks)
		}
	}
	return err
}

func (c *cleanWorker) verifyReceipt(ctx context.Context) error {
	id, ok := one(c, c.receipts)
	if !ok {
		return nil
	}
	check, err := c.s.CheckReceipt(ctx, id)
	if err != nil {
		return err
	}
	if !check.Valid {
		c.t.Errorf("receipt %s does not verify in public", id)
	}
	return c.verdict(c.s.VerifyReceipt(ctx, c.caller(ctx, c.who.member), id))
}

func (c *cleanWorker) verifyApproval(ctx context.Context) error {
	id, ok := one(c, append(c.decided, c.approvals...))
	if !ok {
		return nil
	}
	return c.verdict(c.s.VerifyApproval(ctx, c.caller(ctx, c.who.member), id))
}

func (c *cleanWorker) issue(ctx context.Context) error {
	request := &service.TokenRequest{Artifact: ledger.ArtifactReceipt}
	if receipt, ok := one(c, c.receipts); ok && c.chance.IntN(2) == 0 {
		request.ArtifactID = receipt.UUID
	} else if approval, ok := one(c, c.decided); ok {
		request.Artifact, request.ArtifactID = ledger.ArtifactApproval, approval.UUID
	} else {
		return nil
	}
	record, text, err := c.s.IssueToken(ctx, c.caller(ctx, c.who.admin), request, "")
	if err == nil {
		c.tokens = append(c.tokens, cleanToken{record.ID, text.Reveal()})
	}
	return err
}

func (c *cleanWorker) checkToken(ctx context.Context) error {
	token, ok := one(c, c.tokens)
	if !ok {
		return nil
	}
	seen, err := c.s.VerifyToken(ctx, token.text)
	if err != nil {
		c.t.Errorf("a token that was issued is refused: %v", err)
		return err
	}
	if seen.Overall == ledger.VerdictFailed {
		c.t.Errorf("a token shows %+v", seen)
	}
	return nil
}

func (c *cleanWorker) revokeToken(ctx context.Context) error {
	if len(c.tokens) == 0 {
		return nil
	}
	token := c.tokens[0]
	c.tokens = c.tokens[1:]
	_, err := c.s.RevokeToken(ctx, c.caller(ctx, c.who.admin), token.id, "over")
	return err
}

func (c *cleanWorker) spareKey(ctx context.Context) (err error) {
	admin := c.caller(ctx, c.who.admin)
	switch {
	case c.spare == nil:
		c.spare, err = c.s.CreateAPIKey(ctx, admin, &service.KeyRequest{Name: "spare " + uuid.NewString(), Role: ledger.RoleMember, Owner: "somebody"})
	case c.chance.IntN(2) == 0:
		c.spare, err = c.s.RotateAPIKey(ctx, admin, &service.Rotation{Key: c.spare.Record.ID, Overlap: time.Duration(c.chance.IntN(2)) * time.Second, IdempotencyKey: uuid.NewString()})
	default:
		c.caller(ctx, c.spare.Text.Reveal())
		_, err = c.s.RevokeAPIKey(ctx, admin, c.spare.Record.ID)
		c.spare = nil
	}
	return err
}

func (c *cleanWorker) signIn(ctx context.Context) error {
	ahead := c.ahead.Load() // links and sessions expire
	admin := c.caller(ctx, c.who.admin)
	link, err := c.s.CreateSignIn(ctx, admin, admin.Key)
	if err != nil {
		return err
	}
	session, _, err := c.s.SignIn(ctx, link.Reveal())
	if err != nil {
		if c.ahead.Load() == ahead {
			c.t.Errorf("a link that was just made signs nobody in: %v", err)
		}
		return err
	}
	if _, err := c.s.SessionCaller(ctx, session.Reveal()); err != nil && c.ahead.Load() == ahead {
		c.t.Errorf("a session that was just opened is refused: %v", err)
	}
	return c.s.SignOut(ctx, session.Reveal())
}

func (c *cleanWorker) signingKey(ctx context.Context) error {
	admin := c.caller(ctx, c.who.admin)
	key, err := c.s.CreateSigningKey(ctx, admin, &service.SigningKeyRequest{Name: "another"})
	if err != nil || c.chance.IntN(2) == 0 {
		return err
	}
	_, err = c.s.RetireSigningKey(ctx, admin, key.ID)
	return err
}

func (c *cleanWorker) webhook(ctx context.Context) error {
	admin := c.caller(ctx, c.who.admin)
	if c.hook == (ledger.WebhookID{}) {
		record, _, err := c.s.CreateWebhook(ctx, admin, &service.WebhookRequest{URL: "http://127.0.0.1:9/"})
		if err == nil {
			c.hook = record.ID
		}
		return err
	}
	err := c.s.DeleteWebhook(ctx, admin, c.hook)
	c.hook = ledger.WebhookID{}
	return err
}

func (c *cleanWorker) settings(ctx context.Context) error {
	budgets := "[]"
	if c.chance.IntN(4) > 0 {
		budgets = fmt.Sprintf(`[{"name":"all","scope":"organization","window":"day","limit_usd":%d,"decision":"require_approval"},
			{"name":"each","scope":"agent","window":"month","limit_usd":1e9,"decision":"deny"},{"name":"tokens","scope":"key","window":"day","limit_tokens":1000000,"decision":"deny"}]`, 1_000_000*(1+c.chance.IntN(9)))
	}
	_, err := c.s.UpdateOrganization(ctx, c.caller(ctx, c.who.admin), value(c.t, fmt.Sprintf(`{"approval_timeout_hours":%d,"budgets":%s}`, 1+c.chance.IntN(20), budgets)))
	return err
}

func (c *cleanWorker) policy(ctx context.Context) error {
	_, err := c.s.PutPolicy(ctx, c.caller(ctx, c.who.admin), &service.PolicyDocument{Text: []byte(flagDeploys), YAML: true})
	return err
}

func (c *cleanWorker) read(ctx context.Context) error {
	member := c.caller(ctx, c.who.member)
	if _, err := c.s.Chains(ctx, member, service.ChainFilter{Limit: 10}); err != nil {
		return err
	}
	if _, err := c.s.Approvals(ctx, member, service.ApprovalFilter{Limit: 10}); err != nil {
		return err
	}
	if _, err := c.s.APIKeys(ctx, c.caller(ctx, c.who.admin), ledger.KeyID{}, 20); err != nil {
		return err
	}
	chain, ok := one(c, c.chains)
	if !ok {
		return nil
	}
	if _, err := c.s.Events(ctx, member, chain, 0, 20); err != nil {
		return err
	}
	_, err := c.s.Approvals(ctx, member, service.ApprovalFilter{Chain: &chain, Limit: 10})
	return err
}

// poll reads the approvals of a chain, like clients that poll per chain.
func (c *cleanWorker) poll(ctx context.Context) error {
	chain, ok := one(c, c.chains)
	if !ok {
		return nil
	}
	_, err := c.s.ChainApprovals(ctx, c.caller(ctx, c.who.agent), chain)
	return err
}
