// Package service holds the use cases: each authorises its caller, loads what it needs,
// calls the pure core and commits. All front ends (HTTP, console, command line) use it;
// nothing else writes.
package service

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"countersign/internal/cache"
	"countersign/internal/evidence"
	"countersign/internal/fault"
	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/notify"
	"countersign/internal/pricing"
	"countersign/internal/store"
	"countersign/internal/verify"
)

// Config is what a Service needs. Optional fields have defaults.
type Config struct {
	Store store.Store
	Keys  ledger.Keys
	Log   *slog.Logger
	Meter Meter            // optional
	Clock func() time.Time // optional
	// Random is the source of ids and secrets; optional.
	Random io.Reader
	// Prices are what models' calls cost; optional.
	Prices *pricing.Table
	// Secrets seals what must be kept and read back; needed for webhooks.
	Secrets Secrets
	// Watch remembers outside the database what was acknowledged; optional.
	Watch verify.HeadWatch
	// Chains remembers outside the database how far open chains have grown; optional.
	Chains verify.ChainWatch
	// LogKeys knows the keys that sign checkpoints; none is believed without them.
	LogKeys verify.LogKeys
	// LogMarks remembers outside the database how far each transparency log was signed;
	// optional.
	LogMarks *keyring.LogMarks
	// Signing has the service sign transparency logs, which needs LogMarks; optional. It is
	// for servers.
	Signing *Signing
	// Anchoring names the methods by which decisions and heads are anchored in
	// time; none without them.
	Anchoring []string
	// Timestamps judges the proofs of anchors when they are asked about; none is
	// believed without it.
	Timestamps verify.Timestamps
	// Deliverer sends tests of webhooks; optional.
	Deliverer Deliverer
	// PrivateWebhooks lets webhooks lead to addresses that are not public.
	PrivateWebhooks bool
	// Mail says that e-mails are sent, and not dropped for want of a mail server.
	Mail bool
	// PublicURL is where people reach the console, for links in notices; optional.
	PublicURL string
	// Committers is how many batches may commit side by side: one on a store
	// with a single writer, a few where the store locks rows.
	Committers int
	// Alone says that no other process gives out decisions on this store, so that a stop
	// only waits for leases that this process granted.
	Alone bool
	// Probe has the service find out by itself, every 1.5 seconds, whether the store can be
	// read and written, so that Ready knows. It is for servers: commands only read.
	Probe bool
	// Delay waits for a span of time or until the context ends; optional. Tests
	// replace it.
	Delay func(context.Context, time.Duration) error
}

// Meter receives the figures of the write path, and what was decided.
type Meter interface {
	Committed(operations int, took time.Duration)
	Queued(operations int)
	Sealed(receipts int)
	Decided(decision string)
	ApprovalMoved(status string)
	// OverBudget counts actions that are over a budget. It does not receive the names of
	// budgets, agents and keys: they are too many for labels, and confidential.
	OverBudget(scope, measure, decision string)
}

// Service is the product behind its front ends. It is safe for concurrent use. Each
// concern is a type with the state that it alone uses; Service embeds them, so that front
// ends see one set of use cases. A concern names the others that it needs as fields.
type Service struct {
	*shared
	*accountService
	*anchorService
	*approvalService
	*auditLogService
	*budgetService
	*chainService
	*findingService
	*policyService
	*receiptService
	*recordService
	*searchService
	*sharingService
	*signingKeyService
	*transparencyService
	*webhookService

	storage storageWatch
	stop    func()         // closes closing and ends the goroutines in running
	running sync.WaitGroup // the goroutines that New starts; Close waits for them
}

// shared is what every concern uses: the store and its judge, the committer, time,
// randomness, and who may call.
type shared struct {
	store     *evidence.Store
	judge     *verify.Judge
	committer *committer
	keys      ledger.Keys
	secrets   Secrets // nil without webhooks and signing keys
	log       *slog.Logger
	clock     func() time.Time
	delay     func(context.Context, time.Duration) error
	random    io.Reader
	ids       idSeries
	callers   callerCache
	keyUses   lastUses[ledger.KeyID]
	grants    recentGrants
	alone     bool // no other process gives out decisions on this store
	prices    *pricing.Table
	publicURL string        // of the console, without a slash at its end; "" where it is not known
	jobs      chan struct{} // nudged when there may be work
	closing   chan struct{} // closed when the service stops
}

// What front ends show of the store's records, by names of the service's own: they
// do not know the store.
type (
	// ApprovalPlace is an approval's position in a list.
	ApprovalPlace = store.ApprovalAt
	// Webhook is an endpoint that receives notifications.
	Webhook = store.WebhookRecord
	// WebhookDelivery is an attempt to deliver to an endpoint.
	WebhookDelivery = store.DeliveryRecord
	// Token is a public verification token, by its record.
	Token = store.TokenRecord
	// SigningKey is a key that signs approvals.
	SigningKey = store.SigningKeyRecord
)

// Secrets keeps secrets that the service must read back. Implementations bind a
// sealed secret to its organization and label.
type Secrets interface {
	Seal(org uuid.UUID, label string, plaintext []byte) ([]byte, error)
	Open(org uuid.UUID, label string, sealed []byte) ([]byte, error)
}

// New starts a service. Close it to drain what is queued.
func New(c Config) *Service {
	base := newShared(&c)
	s := assemble(base, &c)
	base.store.Jobs = evidence.JobRules{Horizons: jobHorizons, Refused: s.refusedJob}
	base.judge = verify.New(verify.Config{
		Store: base.store, Keys: c.Keys, Watch: c.Watch, Chains: c.Chains, LogKeys: c.LogKeys, LogMarks: c.LogMarks, Timestamps: c.Timestamps,
		Keep: s.keepFullCheck, Now: base.now, Log: base.log,
	})
	if c.Signing != nil {
		s.signer = s.newSigner(*c.Signing)
	}
	base.committer = newCommitter(s, c.Meter, max(c.Committers, 1))
	s.start(c.Probe)
	return s
}

// newShared fills in what the configuration leaves out. The judge and the committer come
// later: they need the concerns.
func newShared(c *Config) *shared {
	s := &shared{
		store: evidence.New(c.Store, c.Keys), keys: c.Keys, secrets: c.Secrets, log: c.Log, clock: c.Clock, delay: c.Delay, random: c.Random,
		grants: recentGrants{forgotten: time.Now()}, alone: c.Alone, prices: c.Prices, publicURL: strings.TrimSuffix(c.PublicURL, "/"),
		jobs: make(chan struct{}, 1), closing: make(chan struct{}),
	}
	if watch := c.Watch; watch != nil {
		s.store.Remembered = func(org ledger.OrgID) ledger.LogEnd {
			seen, _ := watch.Seen(org.UUID)
			return seen.Acts
		}
	}
	if s.delay == nil {
		s.delay = delay
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.clock == nil {
		s.clock = time.Now
	}
	if s.random == nil {
		s.random = rand.Reader
	}
	if s.prices == nil {
		s.prices = pricing.Default()
	}
	return s
}

// assemble makes the concerns, each after those that it needs.
func assemble(base *shared, c *Config) *Service {
	findings := &findingService{shared: base, notified: newNameSet(), keptToday: newNameSet(), pending: make(chan pendingFinding, maxPendingFindings)}
	policies := &policyService{shared: base, findings: findings, policyCache: newPolicyCache(), examiningLarge: make(chan struct{}, maxLargeExaminations)}
	chains := &chainService{
		shared: base, findings: findings, chainCache: newChainCache(), stateCache: newStateCache(),
		lineages: cache.New[ledger.ChainID, lineage](lineageCacheBytes), chainPolls: newChainPolls(), watchedChains: c.Chains,
	}
	budgets := &budgetService{shared: base, chains: chains, budgetHints: newBudgetHints()}
	approvals := &approvalService{shared: base, chains: chains, findings: findings, policies: policies, keyRecheck: keyRecheck}
	receipts := &receiptService{shared: base, approvals: approvals, chains: chains, findings: findings}
	transparency := &transparencyService{shared: base, findings: findings, logKeys: c.LogKeys, logMarks: c.LogMarks}
	webhooks := &webhookService{
		shared: base, escalationHooks: cache.New[ledger.OrgID, escalationHook](escalationHookBytes), deliverer: c.Deliverer, mail: c.Mail, privateWebhooks: c.PrivateWebhooks, tests: make(chan struct{}, maxWebhookTests),
	}
	if webhooks.deliverer == nil {
		webhooks.deliverer = notify.NewWebhooks(notify.Options{AllowPrivate: c.PrivateWebhooks})
	}
	return &Service{
		shared:              base,
		accountService:      &accountService{shared: base, findings: findings},
		anchorService:       &anchorService{shared: base, findings: findings, anchoring: c.Anchoring},
		approvalService:     approvals,
		auditLogService:     &auditLogService{shared: base, findings: findings, logsChanged: make(chan struct{}, 1)},
		budgetService:       budgets,
		chainService:        chains,
		findingService:      findings,
		policyService:       policies,
		receiptService:      receipts,
		recordService:       &recordService{shared: base, budgets: budgets, chains: chains, findings: findings, policies: policies, receipts: receipts, entryLogs: cache.New[ledger.ChainID, *entryLog](entryLogBytes)},
		searchService:       &searchService{shared: base, approvals: approvals, chains: chains, receipts: receipts},
		sharingService:      &sharingService{shared: base, approvals: approvals, findings: findings, transparency: transparency, bundling: make(chan struct{}, maxBundles)},
		signingKeyService:   &signingKeyService{shared: base, signers: cache.New[ledger.SigningKeyID, ed25519.PrivateKey](signerCacheBytes)},
		transparencyService: transparency,
		webhookService:      webhooks,
	}
}

// start starts the goroutines that run until Release or Close.
func (s *Service) start(probe bool) {
	ctx, cancel := context.WithCancel(context.Background())
	s.stop = sync.OnceFunc(func() {
		close(s.closing)
		cancel()
	})
	s.running.Go(func() {
		if err := s.store.Watch(ctx, s.changed, s.waiters.wakeAll); err != nil {
			s.log.Error("those who wait for approvals are not woken any more", "error", err)
		}
	})
	s.running.Go(func() { s.keepPendingFindings(ctx) })
	s.running.Go(func() { s.followLogs(ctx) })
	if s.storage.probed = probe; probe {
		s.running.Go(func() { s.watchStorage(ctx) })
	}
}

// SignLogs starts to sign the transparency logs, if the service is configured to. Call it
// after Rollbacks: without knowing of a rollback, the signer would take the older log for a
// changed one.
func (s *Service) SignLogs() {
	if s.signer != nil {
		s.signer.Start()
	}
}

// Release ends all waits for approvals, so that a server can shut down without waiting for
// people. They return the current state.
func (s *Service) Release() { s.stop() }

// Close commits what is queued and stops. The store stays open: it is the
// caller's.
func (s *Service) Close() {
	s.committer.close()
	if s.signer != nil {
		s.signer.Close()
	}
	s.stop()
	s.running.Wait()
}

// JobsAdded receives a value when there may be jobs to run. It is a hint: jobs that another
// replica queued, or that become due, are not announced.
func (s *Service) JobsAdded() <-chan struct{} { return s.jobs }

func (s *shared) jobsAdded() { nudge(s.jobs) }

func (s *shared) now() ledger.Time { return ledger.TimeOf(s.clock()) }

// fill reads randomness. Without it no ids or keys can be made, so it panics, as the
// standard library does.
func (s *shared) fill(b []byte) {
	if _, err := io.ReadFull(s.random, b); err != nil {
		panic(fmt.Sprintf("no randomness: %v", err))
	}
}

func (s *shared) timedRandom() (random [10]byte) {
	s.fill(random[:])
	return random
}

func (s *shared) entropy() (random [32]byte) {
	s.fill(random[:])
	return random
}

func (s *shared) randomID() uuid.UUID {
	var random [16]byte
	s.fill(random[:])
	return ledger.NewRandomID(random)
}

func (s *shared) receiptID() ledger.ReceiptID   { return ledger.ReceiptID{UUID: s.randomID()} }
func (s *shared) approvalID() ledger.ApprovalID { return ledger.ApprovalID{UUID: s.randomID()} }

// Visible is what a caller may see of an error, for front ends: whatever a use case
// returns, what could not be read is not the service's own fault.
func Visible(err error) error { return visible(err) }

// visible turns a store's error into what a caller may see of it.
func visible(err error) error {
	var own *fault.Error
	switch {
	case err == nil || errors.As(err, &own):
		return err
	case errors.Is(err, store.ErrNotFound):
		return fault.ErrNotFound
	case errors.Is(err, store.ErrOutcomeUnknown):
		return &cause{fault.Errorf(fault.CodeOutcomeUnknown, "it is not known whether this was stored: send the same request again"), err}
	case errors.Is(err, store.ErrUnavailable):
		return &cause{fault.Errorf(fault.CodeUnavailable, "the store cannot be reached right now and nothing was stored: try again"), err}
	case errors.Is(err, ledger.ErrStateTampered):
		return &cause{fault.Errorf(fault.CodeEvidenceTampered, "stored evidence was changed outside the service: run countersign audit"), err}
	}
	return err
}

// cause shows a caller one error and the log another.
type cause struct {
	shown *fault.Error
	inner error
}

func (c *cause) Error() string   { return c.shown.Message + " (" + c.inner.Error() + ")" }
func (c *cause) Unwrap() []error { return []error{c.shown, c.inner} }

type silentMeter struct{}

func (silentMeter) Committed(int, time.Duration) {}
func (silentMeter) Queued(int)                   {}
func (silentMeter) Sealed(int)                   {}
func (silentMeter) Decided(string)               {}
func (silentMeter) ApprovalMoved(string)         {}

func (silentMeter) OverBudget(string, string, string) {}

// idSeries makes the ids of one process ascend, within a millisecond, too: lists are sorted
// by id.
type idSeries struct {
	mu    sync.Mutex // guards the fields below
	at    ledger.Time
	count uint16 // within the millisecond, of 12 bits
}

func (s *idSeries) next(now ledger.Time) (at ledger.Time, count uint16) {
	const most = 1<<12 - 1
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case now > s.at:
		s.at, s.count = now, 0
	case s.count == most:
		s.at, s.count = s.at+1, 0
	default:
		s.count++
	}
	return s.at, s.count
}

// timedID makes an id that sorts after all that this process made before.
func (s *shared) timedID(now ledger.Time) uuid.UUID {
	random := s.timedRandom()
	at, count := s.ids.next(now)
	binary.BigEndian.PutUint16(random[:], count)
	return ledger.NewTimedID(at, random)
}

const (
	// probeInterval and probeTimeout add up to how late a fault of the store shows.
	probeInterval = 1500 * time.Millisecond
	probeTimeout  = 2 * time.Second
)

// storageWatch knows whether the store can be read and written. It needs a probe: reads are
// served from memory long after a disk has failed, and an idle server would not notice that
// writes fail.
type storageWatch struct {
	mu      sync.Mutex // guards the fields below, but for probed, which New sets
	probed  bool       // whether anything probes
	fault   error      // of the last probe; nil where it succeeded
	began   time.Time  // when the probe under way began; zero where none is
	written time.Time  // when a write last succeeded
}

var errNoAnswer = errors.New("the store does not answer")

// verdict is nil while the store can be read and written.
func (w *storageWatch) verdict(now time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.fault != nil:
		return w.fault
	case !w.began.IsZero() && now.Sub(w.began) > probeTimeout && now.Sub(w.written) > probeTimeout:
		return errNoAnswer // it may never come: not every wait for a disk can be ended
	}
	return nil
}

// wrote notes that a write has succeeded.
func (w *storageWatch) wrote() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.written = time.Now()
}

// begin notes the start of a probe, and reports whether the probe must write.
func (w *storageWatch) begin() (write bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.began = time.Now()
	return w.fault != nil || w.began.Sub(w.written) >= probeInterval/2
}

// end notes the result of a probe, and returns the one before it.
func (w *storageWatch) end(fault error, wrote bool) (before error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before = w.fault
	w.fault, w.began = fault, time.Time{}
	if fault == nil && wrote {
		w.written = time.Now()
	}
	return before
}

// watchStorage probes the store until ctx ends.
func (s *Service) watchStorage(ctx context.Context) {
	ticker := time.NewTicker(probeInterval)
	defer ticker.Stop()
	for {
		s.probe(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (s *Service) probe(ctx context.Context) {
	probing, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	write := s.storage.begin()
	err := s.store.Ping(probing)
	if err == nil && write {
		err = s.store.Probe(probing)
	}
	if ctx.Err() != nil { // the service stops
		err = nil
	}
	switch before := s.storage.end(err, write); {
	case err != nil && (before == nil || storageDetail(before) != storageDetail(err)):
		s.log.Error("not ready: "+storageDetail(err), "error", err)
	case err == nil && before != nil:
		s.log.Info("the store can be read and written again")
	}
}

// Ready reports whether requests can be served: nil, or an error for StorageDetail.
func (s *Service) Ready(ctx context.Context) error {
	if s.storage.probed {
		return s.storage.verdict(time.Now())
	}
	return s.store.Ping(ctx)
}

// StorageDetail says what is wrong with the store, for anyone: it names no file and no
// address.
func StorageDetail(err error) string { return storageDetail(err) }

func storageDetail(err error) string {
	switch {
	case errors.Is(err, store.ErrDamaged):
		return "the database cannot be read: its disk fails, or it is damaged; run countersign doctor"
	case errors.Is(err, store.ErrFull):
		return "there is no space left for the database: make room"
	case errors.Is(err, store.ErrReadOnly):
		return "the database, or the file system that it is on, is read-only"
	case errors.Is(err, store.ErrInputOutput):
		return "reading or writing the database failed (input/output error): see the log"
	case errors.Is(err, errNoAnswer), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return "the store does not answer"
	case errors.Is(err, store.ErrOutcomeUnknown):
		return "the store does not confirm writes"
	}
	return "the store cannot be reached: see the log"
}
