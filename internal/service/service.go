// Package service implements the use cases. Each authorizes its caller, loads what it needs,
// calls the pure core and commits. All front ends (HTTP, console, command line) go through
// this package, and nothing else writes to the store.
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

// Config configures a Service. Optional fields have defaults.
type Config struct {
	Store store.Store
	Keys  ledger.Keys
	Log   *slog.Logger
	Meter Meter            // optional
	Clock func() time.Time // optional
	// Random is the source of ids and secrets; optional.
	Random io.Reader
	// Prices is the price table for model calls; optional.
	Prices *pricing.Table
	// Secrets encrypts secrets that must be read back; required for webhooks.
	Secrets Secrets
	// Watch records acknowledged heads outside the database; optional.
	Watch verify.HeadWatch
	// Chains records the progress of open chains outside the database; optional.
	Chains verify.ChainWatch
	// LogKeys holds the keys that sign checkpoints. Without it no checkpoint is trusted.
	LogKeys verify.LogKeys
	// LogMarks records outside the database how much of each transparency log was signed;
	// optional.
	LogMarks *keyring.LogMarks
	// Signing makes the service sign transparency logs, which requires LogMarks; optional, and
	// only for servers.
	Signing *Signing
	// Anchoring names the methods that anchor decisions and heads in time; empty for no
	// anchoring.
	Anchoring []string
	// Timestamps verifies the proofs of anchors. Without it no proof is trusted.
	Timestamps verify.Timestamps
	// Deliverer sends the test deliveries of webhooks; optional.
	Deliverer Deliverer
	// PrivateWebhooks allows webhooks to use addresses that are not public.
	PrivateWebhooks bool
	// Slack is the server's Slack app; optional. Without one, nothing is sent to Slack.
	Slack *notify.Slack
	// Mail reports whether a mail server is configured. Without one, e-mails are dropped.
	Mail bool
	// PublicURL is the address of the console, for links in notifications; optional.
	PublicURL string
	// Committers is the number of batches that may commit concurrently: one on a store
	// with a single writer, a few where the store locks rows.
	Committers int
	// Alone reports that no other process grants decisions on this store, so a stop waits
	// only for leases that this process granted.
	Alone bool
	// Probe makes the service check every 1.5 seconds that the store can be read and written,
	// for Ready. Only servers need it: commands only read.
	Probe bool
	// Delay waits for a duration or until the context ends; optional. Tests replace it.
	Delay func(context.Context, time.Duration) error
}

// Meter receives the metrics of the write path and of decisions.
type Meter interface {
	Committed(operations int, took time.Duration)
	Queued(operations int)
	Sealed(receipts int)
	Decided(decision string)
	ApprovalMoved(status string)
	// OverBudget counts actions that exceed a budget. The names of budgets, agents and keys
	// are left out: there are too many for labels, and they are confidential.
	OverBudget(scope, measure, decision string)
}

// Service provides the use cases to the front ends. It is safe for concurrent use. Each
// concern is a type that owns its state; Service embeds them all, so front ends see a single
// set of methods. A concern has a field for each other concern that it uses.
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
	*slackService
	*transparencyService
	*webhookService

	storage storageWatch
	stop    func()         // closes closing and stops the goroutines in running
	running sync.WaitGroup // the goroutines started by New; Close waits for them
}

// shared is the state that all concerns use: the store and its judge, the committer, time,
// randomness and the cache of callers.
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
	alone     bool // no other process grants decisions on this store
	prices    *pricing.Table
	publicURL string        // of the console, without a trailing slash; "" if unknown
	jobs      chan struct{} // receives a value when there may be jobs to run
	closing   chan struct{} // closed when the service stops
}

// Aliases for the store's records that front ends show: front ends do not import the store.
type (
	// ApprovalPlace is an approval's position in a list.
	ApprovalPlace = store.ApprovalAt
	// Webhook is an endpoint that receives notifications.
	Webhook = store.WebhookRecord
	// WebhookDelivery is an attempt to deliver to an endpoint.
	WebhookDelivery = store.DeliveryRecord
	// Token is the record of a public verification token.
	Token = store.TokenRecord
	// SigningKey is a key that signs approvals.
	SigningKey = store.SigningKeyRecord
)

// Secrets encrypts secrets that the service must read back. Implementations bind a sealed
// secret to its organization and label.
type Secrets interface {
	Seal(org uuid.UUID, label string, plaintext []byte) ([]byte, error)
	Open(org uuid.UUID, label string, sealed []byte) ([]byte, error)
}

// New starts a service. Close commits the queued operations and stops it.
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

// newShared applies the defaults of the configuration. New sets the judge and the committer
// later, because they need the concerns.
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

// assemble creates the concerns, each after those that it needs.
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
		shared: base, escalationHooks: cache.New[ledger.OrgID, escalationHook](escalationHookBytes), deliverer: c.Deliverer, mail: c.Mail, slack: c.Slack != nil, privateWebhooks: c.PrivateWebhooks, tests: make(chan struct{}, maxWebhookTests),
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
		slackService:        &slackService{shared: base, approvals: approvals, findings: findings, slack: c.Slack},
		transparencyService: transparency,
		webhookService:      webhooks,
	}
}

// start starts the goroutines of running. They stop at Release or Close.
func (s *Service) start(probe bool) {
	ctx, cancel := context.WithCancel(context.Background())
	s.stop = sync.OnceFunc(func() {
		close(s.closing)
		cancel()
	})
	s.running.Go(func() {
		if err := s.store.Watch(ctx, s.changed, s.waiters.wakeAll); err != nil {
			s.log.Error("watching the store failed: waits for approvals are no longer woken", "error", err)
		}
	})
	s.running.Go(func() { s.keepPendingFindings(ctx) })
	s.running.Go(func() { s.followLogs(ctx) })
	if s.storage.probed = probe; probe {
		s.running.Go(func() { s.watchStorage(ctx) })
	}
}

// SignLogs starts signing the transparency logs, if the service is configured to. Call it
// after Rollbacks: a signer that does not know about a rollback would treat the older log as
// tampered with.
func (s *Service) SignLogs() {
	if s.signer != nil {
		s.signer.Start()
	}
}

// Release ends all waits for approvals, which then return the current state. It lets a server
// shut down without waiting for people.
func (s *Service) Release() { s.stop() }

// Close commits the queued operations and stops the service. The store stays open: the
// caller owns it.
func (s *Service) Close() {
	s.committer.close()
	if s.signer != nil {
		s.signer.Close()
	}
	s.stop()
	s.running.Wait()
}

// JobsAdded returns a channel that receives a value when there may be jobs to run. It is a
// hint: jobs that another replica queued, and jobs that become due, are not announced.
func (s *Service) JobsAdded() <-chan struct{} { return s.jobs }

func (s *shared) jobsAdded() { nudge(s.jobs) }

func (s *shared) now() ledger.Time { return ledger.TimeOf(s.clock()) }

// fill fills b with random bytes. It panics if there are none, as crypto/rand does: no id or
// key could be created.
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

// Visible is visible for front ends. A store that could not be read then never looks like an
// internal error of the service.
func Visible(err error) error { return visible(err) }

// visible translates a store's error into one that a caller may see.
func visible(err error) error {
	if err == nil {
		return nil
	}
	var own *fault.Error
	switch {
	case errors.As(err, &own):
		return err
	case errors.Is(err, store.ErrNotFound):
		return fault.ErrNotFound
	case errors.Is(err, store.ErrOutcomeUnknown):
		return &cause{fault.Errorf(fault.CodeOutcomeUnknown, "it is not known whether this was stored: send the same request again"), err}
	case errors.Is(err, store.ErrDamaged), errors.Is(err, store.ErrFull), errors.Is(err, store.ErrReadOnly): // trying again does not help
		return &cause{fault.Errorf(fault.CodeUnavailable, "%s; nothing was stored", storageDetail(err)), err}
	case errors.Is(err, store.ErrUnavailable):
		return &cause{fault.Errorf(fault.CodeUnavailable, "the store cannot be reached right now and nothing was stored: try again"), err}
	case errors.Is(err, ledger.ErrStateTampered):
		return &cause{fault.Errorf(fault.CodeEvidenceTampered, "stored evidence was changed outside the service: run countersign audit"), err}
	}
	return err
}

// cause pairs the error that a caller sees with the one that is logged.
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

// idSeries makes the ids of one process ascend, even within a millisecond: lists are sorted
// by id.
type idSeries struct {
	mu    sync.Mutex  // guards the fields below
	at    ledger.Time // of the last id
	count uint16      // ids before it in the same millisecond; 12 bits
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

// timedID returns an id that sorts after all earlier ids of this process.
func (s *shared) timedID(now ledger.Time) uuid.UUID {
	random := s.timedRandom()
	at, count := s.ids.next(now)
	binary.BigEndian.PutUint16(random[:], count)
	return ledger.NewTimedID(at, random)
}

const (
	// A fault of the store shows after probeInterval plus probeTimeout at the latest.
	probeInterval = 1500 * time.Millisecond
	probeTimeout  = 2 * time.Second
)

// storageWatch tracks whether the store can be read and written. It relies on a probe: reads
// are served from memory long after a disk has failed, and an idle server would not notice
// that writes fail.
type storageWatch struct {
	probed bool // whether watchStorage runs; set by New only

	mu      sync.Mutex // guards the fields below
	fault   error      // of the last probe; nil if it succeeded
	began   time.Time  // start of the running probe; zero if none runs
	written time.Time  // last successful write
}

var errNoAnswer = errors.New("the store does not answer")

// verdict returns nil while the store can be read and written.
func (w *storageWatch) verdict(now time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.fault != nil:
		return w.fault
	case !w.began.IsZero() && now.Sub(w.began) > probeTimeout && now.Sub(w.written) > probeTimeout:
		return errNoAnswer // the probe may never return: not every wait for a disk can be cancelled
	}
	return nil
}

// wrote records a successful write.
func (w *storageWatch) wrote() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.written = time.Now()
}

// begin records the start of a probe and reports whether the probe must write.
func (w *storageWatch) begin() (write bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.began = time.Now()
	return w.fault != nil || w.began.Sub(w.written) >= probeInterval/2
}

// end records the result of a probe and returns the previous one.
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
	if ctx.Err() != nil { // the service is stopping
		err = nil
	}
	switch before := s.storage.end(err, write); {
	case err != nil && (before == nil || storageDetail(before) != storageDetail(err)):
		s.log.Error("not ready: "+storageDetail(err), "error", err)
	case err == nil && before != nil:
		s.log.Info("the store can be read and written again")
	}
}

// Ready returns nil if requests can be served, and otherwise an error for StorageDetail.
func (s *Service) Ready(ctx context.Context) error {
	if s.storage.probed {
		return s.storage.verdict(time.Now())
	}
	return s.store.Ping(ctx)
}

// StorageDetail describes a fault of the store in words that anyone may read: it names no file
// and no address.
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
