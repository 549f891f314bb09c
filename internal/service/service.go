// Package service holds the use cases: each authorises its caller, loads what it
// needs, calls the pure core and commits. The front ends (HTTP, console, command
// line) all come through here; nothing else writes.
package service

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"countersign/internal/evidence"
	"countersign/internal/ledger"
	"countersign/internal/pricing"
	"countersign/internal/store"
	"countersign/internal/verify"
)

// Config is what a Service stands on. Zero values of the optional members are
// replaced by the real thing.
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
	// Chains remembers outside the database how far open chains have come; optional.
	Chains verify.ChainWatch
	// Anchoring names the methods by which decisions and heads are anchored in
	// time; none without them.
	Anchoring []string
	// Timestamps judges the proofs of anchors when they are asked about; none is
	// believed without it.
	Timestamps verify.Timestamps
	// PrivateWebhooks lets webhooks lead to addresses that are not public.
	PrivateWebhooks bool
	// Mail says that e-mails are sent, and not dropped for want of a mail server.
	Mail bool
	// PublicURL is where people reach the console, for links in notices; optional.
	PublicURL string
	// Committers is how many batches may commit side by side: one on a store
	// with a single writer, a few where the store locks rows.
	Committers int
	// Alone says that no other process gives out decisions on this store while this
	// one does, so that a stop need not wait for leases that nobody was given.
	Alone bool
	// Probe has the service find out by itself, every 1.5 seconds, whether the store can be
	// read and written, so that Ready knows. It is for servers: commands only read.
	Probe bool
	// Delay waits for a span of time or until the context ends; optional. Tests
	// replace it.
	Delay func(context.Context, time.Duration) error
}

// Meter receives the figures of the write path.
type Meter interface {
	Committed(operations int, took time.Duration)
	Queued(operations int)
	Sealed(receipts int)
}

// GovernanceMeter is a Meter that also counts what was decided.
type GovernanceMeter interface {
	Decided(decision string)
	ApprovalMoved(status string)
	// OverBudget counts actions that are over a budget, by what all budgets have in common:
	// the names of budgets, agents and keys are too many, and nobody's business.
	OverBudget(scope, measure, decision string)
}

// Service is the product behind its front ends. It is safe for concurrent use.
type Service struct {
	store         *evidence.Store
	judge         *verify.Judge
	keys          ledger.Keys
	log           *slog.Logger
	clock         func() time.Time
	random        io.Reader
	committer     *committer
	callers       callerCache
	chains        chainCache
	states        stateCache
	watchedChains verify.ChainWatch // nil without one
	policies      policyCache
	examining     turns
	compiling     turns // of policy sets
	simulating    turns
	// examiningLarge holds a value for each large action that is being examined.
	examiningLarge chan struct{}
	waiters        waiters
	approvalPolls  approvalPolls
	signers        signers
	used           lastUses[ledger.TokenID]
	keyUses        lastUses[ledger.KeyID]
	legacyUses     legacyUses
	chainPolls     chainPolls
	lines          lineCache
	hints          budgetHints
	strangers      strangersMail
	told           toldNames
	kept           toldNames
	provenActs     provenActs
	known          knownFindings
	rounds         rounds
	storage        storageWatch
	met            chan metTampering
	noticing       sync.WaitGroup // what is in met or being kept; tests wait for it
	entries        entryLogs
	prices         *pricing.Table
	secrets        Secrets
	publicURL      string
	ids            idSeries

	alone  bool
	grants recentGrants
	delay  func(context.Context, time.Duration) error

	mail            bool
	escalationHooks escalationHooks
	privateWebhooks bool
	anchoring       []string

	keyRecheck time.Duration // how often a wait looks at its key; tests replace it

	jobs    chan struct{} // nudged when there may be work
	moved   chan struct{} // nudged when an audit log has moved
	closing chan struct{} // closed when the service stops
	stop    func()
	watcher sync.WaitGroup
}

// What front ends show of the store's records, by names of the service's own: they
// do not know the store.
type (
	// ApprovalPlace is an approval's place in a list.
	ApprovalPlace = store.ApprovalAt
	// Webhook is an endpoint that is told what happens.
	Webhook = store.WebhookRecord
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
	s := &Service{
		store: evidence.New(c.Store, c.Keys), keys: c.Keys, log: c.Log, clock: c.Clock, random: c.Random,
		prices: c.Prices, secrets: c.Secrets, publicURL: strings.TrimSuffix(c.PublicURL, "/"),
		mail: c.Mail, privateWebhooks: c.PrivateWebhooks, anchoring: c.Anchoring, watchedChains: c.Chains,
		chains: newChainCache(), states: newStateCache(), lines: newLineCache(), hints: newBudgetHints(), entries: newEntryLogs(), chainPolls: newChainPolls(),
		policies: newPolicyCache(), examiningLarge: make(chan struct{}, mostLarge), jobs: make(chan struct{}, 1), moved: make(chan struct{}, 1), closing: make(chan struct{}), met: make(chan metTampering, mostMet),
		alone: c.Alone, grants: recentGrants{forgotten: time.Now()}, delay: c.Delay, keyRecheck: keyRecheck,
	}
	if c.Watch != nil {
		s.store.Remembered = func(org ledger.OrgID) ledger.LogEnd {
			seen, _ := c.Watch.Seen(org.UUID)
			return seen.Acts
		}
	}
	s.store.Jobs = evidence.JobRules{Horizons: jobHorizons, Refused: s.refusedJob}
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
	if c.Meter == nil {
		c.Meter = silentMeter{}
	}
	s.judge = verify.New(verify.Config{Store: s.store, Keys: s.keys, Watch: c.Watch, Chains: c.Chains, Timestamps: c.Timestamps, Keep: s.keepFullCheck, Now: s.now, Log: s.log})
	s.committer = newCommitter(s, c.Meter, max(c.Committers, 1))
	ctx, cancel := context.WithCancel(context.Background())
	s.stop = sync.OnceFunc(func() {
		close(s.closing)
		cancel()
	})
	s.watcher.Go(func() {
		if err := s.store.Watch(ctx, s.changed, s.waiters.wakeAll); err != nil {
			s.log.Error("those who wait for approvals are not woken any more", "error", err)
		}
	})
	s.watcher.Go(func() { s.keepMet(ctx) })
	s.watcher.Go(func() { s.followLogs(ctx) })
	if s.storage.probed = c.Probe; c.Probe {
		s.watcher.Go(func() { s.watchStorage(ctx) })
	}
	return s
}

// Release lets those go who wait for an approval, so that a server can shut down
// without waiting for people. They are answered with what stands.
func (s *Service) Release() { s.stop() }

// Close commits what is queued and stops. The store stays open: it is the
// caller's.
func (s *Service) Close() {
	s.committer.close()
	s.stop()
	s.watcher.Wait()
}

// JobsAdded is nudged when there may be work for the jobs' runner. It is a hint:
// work that another replica queued, or whose time has come, is not announced.
func (s *Service) JobsAdded() <-chan struct{} { return s.jobs }

func (s *Service) jobsAdded() { nudge(s.jobs) }

func (s *Service) now() ledger.Time { return ledger.TimeOf(s.clock()) }

// fill reads randomness. A machine that cannot provide it cannot make ids or
// keys; there is nothing sensible left to do, and the standard library treats it
// the same way.
func (s *Service) fill(b []byte) {
	if _, err := io.ReadFull(s.random, b); err != nil {
		panic(fmt.Sprintf("no randomness: %v", err))
	}
}

func (s *Service) timedRandom() (random [10]byte) {
	s.fill(random[:])
	return random
}

func (s *Service) entropy() (random [32]byte) {
	s.fill(random[:])
	return random
}

func (s *Service) randomID() uuid.UUID {
	var random [16]byte
	s.fill(random[:])
	return ledger.NewRandomID(random)
}

func (s *Service) receiptID() ledger.ReceiptID   { return ledger.ReceiptID{UUID: s.randomID()} }
func (s *Service) approvalID() ledger.ApprovalID { return ledger.ApprovalID{UUID: s.randomID()} }

// Visible is what a caller may see of an error, for front ends: whatever a use case
// returns, what could not be read is not the service's own fault.
func Visible(err error) error { return visible(err) }

// visible turns a store's error into what a caller may see of it.
func visible(err error) error {
	var own *ledger.Error
	switch {
	case err == nil || errors.As(err, &own):
		return err
	case errors.Is(err, store.ErrNotFound):
		return ledger.ErrNotFound
	case errors.Is(err, store.ErrOutcomeUnknown):
		return &cause{ledger.Errorf(ledger.CodeOutcomeUnknown, "it is not known whether this was stored: send the same request again"), err}
	case errors.Is(err, store.ErrUnavailable):
		return &cause{ledger.Errorf(ledger.CodeUnavailable, "the store cannot be reached right now and nothing was stored: try again"), err}
	case errors.Is(err, ledger.ErrStateTampered):
		return &cause{ledger.Errorf(ledger.CodeEvidenceTampered, "stored evidence was changed outside the service: run countersign audit"), err}
	}
	return err
}

// cause shows a caller one error and the log another.
type cause struct {
	shown *ledger.Error
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
