package service

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/verify"
)

// operation is one request on the write path.
type operation interface {
	// need names what the operation reads.
	need(*store.Needs)
	// tenant is the organization that the operation is for; zero for the service's own.
	tenant() ledger.OrgID
	// size is about how many bytes the operation holds until it is committed.
	size() int
	// plan decides and enters the operation's changes into the batch. Its error
	// concerns this operation alone and must leave the batch as it was.
	plan(*batch) error
}

// smallOperation is about what an operation holds besides what a client sent.
const smallOperation = 4 << 10

// committer turns what has queued up since the last commit into one
// transaction. There is no timer: a lone request commits at once, and under load
// the batch is what arrived while the last one was being written.
type committer struct {
	service *Service
	meter   Meter
	decided GovernanceMeter
	mu      sync.Mutex
	wake    *sync.Cond
	queue   writeQueue // guarded by mu
	running int        // batches under way
	closed  bool
	done    sync.WaitGroup
}

const (
	// leastBeside is how much must wait before a batch begins beside another: what
	// is less is cheaper to commit together with what arrives meanwhile.
	leastBeside = 64
	// commitTimeout bounds how long a batch may wait for the store before it
	// begins to commit.
	commitTimeout = 20 * time.Second
)

func newCommitter(s *Service, meter Meter, workers int) *committer {
	c := &committer{service: s, meter: meter, decided: silentMeter{}, queue: newWriteQueue()}
	if counting, ok := meter.(GovernanceMeter); ok {
		c.decided = counting
	}
	c.wake = sync.NewCond(&c.mu)
	for range workers {
		c.done.Go(c.run)
	}
	return c
}

// commit queues an operation and waits until it is durable or refused. A caller
// that stops waiting does not stop the operation: its fate is then unknown.
func (c *committer) commit(ctx context.Context, op operation) error {
	return c.commitCompiled(ctx, op, false)
}

// commitFirst is commit for a stop: it is in the next batch, whatever waits.
func (c *committer) commitFirst(ctx context.Context, op operation) error {
	return c.commitCompiled(ctx, op, true)
}

// commitCompiled commits an operation, again where it has found out only in its transaction
// that the policy set in force is to be compiled.
func (c *committer) commitCompiled(ctx context.Context, op operation, stop bool) error {
	for range mostAgain {
		err := c.await(ctx, &pending{operation: op, stop: stop})
		var missing *notCompiled
		if !errors.As(err, &missing) {
			return err
		}
		if _, err := c.service.compileStored(ctx, missing.record); err != nil {
			return visible(err)
		}
	}
	return visible(fmt.Errorf("the policy was changed %d times while it was compiled: %w", mostAgain, store.ErrUnavailable))
}

func (c *committer) await(ctx context.Context, p *pending) error {
	p.result = make(chan error, 1)
	c.mu.Lock()
	if c.closed || !c.queue.add(p) {
		c.mu.Unlock()
		return visible(fmt.Errorf("write queue closed or full: %w", store.ErrUnavailable))
	}
	depth, due := c.queue.length, c.due()
	c.mu.Unlock()
	if due {
		c.wake.Signal()
	}
	c.meter.Queued(depth)
	select {
	case err := <-p.result:
		return visible(err)
	case <-ctx.Done():
		return visible(fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, ctx.Err()))
	}
}

func (c *committer) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.wake.Broadcast()
	c.done.Wait()
}

func (c *committer) run() {
	for batch := c.take(); batch != nil; batch = c.take() {
		c.settle(batch)
		c.mu.Lock()
		c.running--
		c.mu.Unlock()
	}
}

// take waits for work; nil says that the committer is closed and drained.
func (c *committer) take() []*pending {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		c.stepAside()
		switch {
		case c.due():
			c.running++
			return c.queue.take()
		case c.closed:
			return nil
		}
		c.wake.Wait()
	}
}

// due tells whether what is queued should be committed now. Who has committed a
// batch asks again, so nothing is left behind.
func (c *committer) due() bool {
	waiting := c.queue.length
	return waiting > 0 && (c.running == 0 || waiting >= leastBeside || c.closed)
}

// stepAside lets others run for as long as that brings more: requests that have
// arrived but not queued yet join the batch, and a lone one is not kept waiting.
// Another worker may have taken everything in the meantime.
func (c *committer) stepAside() {
	for seen := 0; seen < c.queue.length && c.queue.length < maxBatch; {
		seen = c.queue.length
		c.mu.Unlock()
		runtime.Gosched()
		c.mu.Lock()
	}
}

// settle commits a batch and answers everyone in it. A batch that fails for a
// reason of one operation's making is taken apart, so that the others do not
// suffer for it.
func (c *committer) settle(batch []*pending) {
	errs, err := c.transact(batch)
	if len(batch) > 1 && errors.Is(err, store.ErrExists) {
		// Another batch stored the same first. It can be found now, and nobody else in this
		// one has to wait for a transaction of each.
		errs, err = c.transact(batch)
	}
	if err != nil && len(batch) > 1 && !errors.Is(err, store.ErrOutcomeUnknown) && !errors.Is(err, store.ErrUnavailable) {
		for _, p := range batch {
			c.settle([]*pending{p})
		}
		return
	}
	for again := 0; again < mostRaced && errors.Is(err, store.ErrExists); again++ {
		// Another replica stored the same first: now it can be found.
		errs, err = c.transact(batch)
	}
	for i, p := range batch {
		if err != nil {
			p.result <- err
			continue
		}
		p.result <- errs[i]
	}
}

// mostRaced bounds how often a batch is tried again because another replica stored the
// same first: it may make several counters of budgets.
const mostRaced = 5

func (c *committer) transact(pendings []*pending) ([]error, error) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), commitTimeout)
	defer cancel()
	var needs store.Needs
	for _, p := range pendings {
		p.operation.need(&needs)
	}
	known := c.service.knownCounters(needs.Counters) // before they are loaded
	errs := make([]error, len(pendings))
	times := make([]time.Duration, len(pendings)) // that planning them took
	var b *batch
	err := c.service.store.Transact(ctx, &needs, func(loaded *store.Loaded) (*store.Changes, error) {
		b = newBatch(c.service, loaded)
		b.name(needs.Counters, known)
		last := time.Now()
		for i, p := range pendings {
			errs[i] = b.attempt(p.operation)
			now := time.Now()
			times[i], last = now.Sub(last), now
		}
		if b.broken != nil {
			return nil, b.broken
		}
		return b.finished()
	})
	c.mu.Lock()
	c.queue.planned(pendings, times)
	c.mu.Unlock()
	if err != nil {
		return nil, err
	}
	c.service.noteChains(b) // before anyone is answered
	c.service.noteCounters(b)
	c.service.states.put(b.order)
	c.service.settled(b)
	c.meter.Committed(len(pendings), time.Since(began))
	for _, outcome := range b.outcomes {
		c.decided.Decided(string(outcome))
	}
	for _, budget := range b.over {
		c.decided.OverBudget(string(budget.Scope), string(budget.Measure()), string(budget.Decision))
	}
	for _, asked := range b.asked {
		if asked.fresh || asked.changed {
			c.decided.ApprovalMoved(string(asked.approval.Status))
		}
	}
	if sealed := len(b.changes.NewReceipts); sealed > 0 {
		c.meter.Sealed(sealed)
	}
	return errs, nil
}

// batch is the state that the operations of one transaction share: each sees
// what those before it did.
type batch struct {
	service  *Service
	loaded   *store.Loaded
	now      ledger.Time
	changes  store.Changes
	live     map[ledger.ChainID]*liveChain
	order    []*liveChain
	opened   []*liveChain // new chains, which no operation of the same batch can name
	heads    map[ledger.OrgID]bool
	orgs     map[ledger.OrgID]*ledger.Organization // changed by this batch
	policies map[policyKey]*ledger.Policy          // that operations have asked for or put
	logs     map[ledger.OrgID]bool
	keys     map[ledger.KeyID]bool                // changed by this batch
	findings map[store.FindingRef]bool            // changed by this batch
	asked    map[ledger.ApprovalID]*askedApproval // that the batch works on
	outcomes []ledger.Outcome                     // of what the batch decided
	over     []*ledger.Budget                     // that actions of the batch were over
	counters map[ledger.CounterID]*liveCounter    // that the batch works on
	named    map[ledger.CounterID]bool            // that were loaded where they exist; nil for none
	known    map[ledger.CounterID]bool            // that were remembered before they were loaded
	entries  map[ledger.ChainID]*entryLog         // of chains as they were loaded
	entered  map[store.EventAt]int                // how many of the loaded addenda this batch has added
	broken   error                                // the store failed while planning: nothing may be written
}

// liveChain is a chain that the batch works on.
type liveChain struct {
	record  *store.ChainRecord
	chain   *ledger.Chain
	state   *ledger.ChainState
	summary *ledger.Summary // of all its events, or nil where that is not known
	changed bool
	fresh   bool              // opened by this batch
	loaded  keyring.ChainMark // where the chain stood before this batch
}

func newBatch(s *Service, loaded *store.Loaded) *batch {
	return &batch{
		service: s, loaded: loaded, now: s.now(),
		live:     make(map[ledger.ChainID]*liveChain, len(loaded.Chains)),
		heads:    make(map[ledger.OrgID]bool),
		orgs:     make(map[ledger.OrgID]*ledger.Organization),
		policies: make(map[policyKey]*ledger.Policy),
		logs:     make(map[ledger.OrgID]bool),
		keys:     make(map[ledger.KeyID]bool),
		findings: make(map[store.FindingRef]bool),
		asked:    make(map[ledger.ApprovalID]*askedApproval),
		entries:  make(map[ledger.ChainID]*entryLog),
		entered:  make(map[store.EventAt]int),
		counters: make(map[ledger.CounterID]*liveCounter),
	}
}

// name says which counters were loaded, and of which something was remembered before.
func (b *batch) name(ids []ledger.CounterID, known map[ledger.CounterID]bool) {
	b.known = known
	if len(ids) == 0 {
		return
	}
	b.named = make(map[ledger.CounterID]bool, len(ids))
	for _, id := range ids {
		b.named[id] = true
	}
}

// attempt plans an operation. One that panics must not take the server with it: it
// breaks the batch, which is then taken apart, and fails by itself.
func (b *batch) attempt(op operation) (err error) {
	defer func() { err = b.survived(recover(), op, err) }()
	return op.plan(b)
}

// finished is finish, which may fail for what an operation has left behind.
func (b *batch) finished() (changes *store.Changes, err error) {
	defer func() { err = b.survived(recover(), b, err) }()
	return b.finish(), nil
}

// survived turns a panic into an error that breaks the batch.
func (b *batch) survived(fault, where any, err error) error {
	if fault == nil {
		return err
	}
	b.service.log.Error("a batch panicked", "in", fmt.Sprintf("%T", where), "stack", string(debug.Stack()))
	b.broken = fmt.Errorf("%T panicked", where)
	return b.broken
}

// confirm holds a caller's key against what is stored now.
func (b *batch) confirm(caller *Caller) error {
	if err := b.ahead(caller.Org); err != nil {
		return err
	}
	key, err := b.key(caller.Key)
	if err != nil {
		b.service.callers.forget(caller.Key)
		return err
	}
	return b.service.admit(key, caller, b.now)
}

// key is an API key as it is stored now. One that is not as the service wrote it opens
// nothing.
func (b *batch) key(id ledger.KeyID) (*ledger.KeyRecord, error) {
	if key := b.loaded.Keys[id]; key != nil {
		return key, nil
	}
	if b.tampered(id) {
		return nil, fmt.Errorf("an API key fails its authenticator: %w", ledger.ErrStateTampered)
	}
	return nil, errUnknownKey
}

// tampered reports whether what the operation named is there and fails its
// authenticator.
func (b *batch) tampered(id any) bool { return slices.Contains(b.loaded.Tampered, id) }

// keyOf is an API key of an organization's, to be changed.
func (b *batch) keyOf(org ledger.OrgID, id ledger.KeyID) (*ledger.KeyRecord, error) {
	key, err := b.key(id)
	if errors.Is(err, errUnknownKey) || err == nil && key.Org != org {
		return nil, ledger.ErrNotFound
	}
	return key, err
}

// mayRecord refuses what a key that is bound to agents records for another. The
// binding is the one that is stored now; the caller must have been confirmed.
func (b *batch) mayRecord(caller *Caller, agent string) error {
	if b.loaded.Keys[caller.Key].MayRecord(agent) {
		return nil
	}
	return ledger.Errorf(ledger.CodeAgentNotAllowed, "this API key records nothing for the agent %q: it is bound to other agents; use a key that is bound to this one, or to none", agent)
}

// putKey enters a key's new state, for the operations that follow and for the
// store.
func (b *batch) putKey(key *ledger.KeyRecord) {
	b.loaded.Keys[key.ID] = key
	b.keys[key.ID] = true
}

// chain finds a chain of the caller's, authenticated.
func (b *batch) chain(caller *Caller, id ledger.ChainID) (*liveChain, error) {
	live, err := b.chainOf(caller.Org, id)
	if err == nil && !caller.owns(live.chain) {
		return nil, ledger.ErrNotFound
	}
	return live, err
}

// chainOf finds a chain of an organization's, authenticated.
func (b *batch) chainOf(org ledger.OrgID, id ledger.ChainID) (*liveChain, error) {
	live, ok := b.live[id]
	if !ok {
		var err error
		if live, err = b.revive(org, id); err != nil {
			return nil, err
		}
	}
	if live.chain.Org != org {
		return nil, ledger.ErrNotFound
	}
	return live, nil
}

func (b *batch) revive(org ledger.OrgID, id ledger.ChainID) (*liveChain, error) {
	record := b.loaded.Chains[id]
	if record == nil {
		return nil, b.service.chainGone(org, id)
	}
	if record.Org != org {
		return nil, ledger.ErrNotFound
	}
	chain, err := b.service.chains.decode(record)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ledger.ErrStateTampered, err)
	}
	live := &liveChain{record: record, chain: chain}
	if !b.service.states.take(live) {
		live.state, err = ledger.DecodeChainState(record.State, record.MAC, b.service.keys, chain)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ledger.ErrStateTampered, err)
		}
		b.service.chains.keep(chain, record.Body)
		if live.state.Actions == 0 {
			live.summary = &ledger.Summary{}
		}
	}
	if live.state.Status != record.Status {
		return nil, fmt.Errorf("the status of a chain is not its state's: %w", ledger.ErrStateTampered)
	}
	if err := b.follows(live); err != nil {
		return nil, err
	}
	live.loaded = verify.MarkOf(chain, live.state, record.MAC)
	b.live[id] = live
	b.order = append(b.order, live)
	return live, nil
}

// finish encodes what moved.
func (b *batch) finish() *store.Changes {
	for _, live := range b.order {
		if live.changed || live.fresh {
			live.state.Revision++
			live.record.Status = live.state.Status
			live.record.State, live.record.MAC = live.state.Encode(b.service.keys, live.chain)
		}
		switch {
		case live.fresh:
			b.changes.NewChains = append(b.changes.NewChains, live.record)
		case live.changed:
			b.changes.States = append(b.changes.States, live.record)
		}
	}
	for org := range b.heads {
		b.changes.Heads = append(b.changes.Heads, b.loaded.Heads[org])
	}
	for _, org := range b.orgs {
		b.changes.Orgs = append(b.changes.Orgs, org)
	}
	for org := range b.logs {
		b.changes.Logs = append(b.changes.Logs, b.loaded.Logs[org])
	}
	for id := range b.keys {
		b.changes.Keys = append(b.changes.Keys, b.loaded.Keys[id])
		b.changes.Signals = append(b.changes.Signals, id.UUID) // a wait ends with the key that waits
	}
	for ref := range b.findings {
		b.changes.Findings = append(b.changes.Findings, b.loaded.Findings[ref])
	}
	for _, asked := range b.asked {
		asked.write(b)
	}
	b.finishCounters()
	for chain, log := range b.entries {
		b.service.entries.logs.Put(chain, log, log.size())
	}
	return &b.changes
}
