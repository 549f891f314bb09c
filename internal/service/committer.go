package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"countersign/internal/fault"
	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/verify"
)

// operation is one request on the write path.
type operation interface {
	// need adds the rows that the operation reads.
	need(*store.Needs)
	// tenant is the operation's organization; zero for the service's own operations.
	tenant() ledger.OrgID
	// size estimates the memory that the operation holds until it is committed, in bytes.
	size() int
	// plan decides and adds the operation's changes to the batch. An error concerns this
	// operation alone, and then the batch must be unchanged.
	plan(*batch) error
}

// smallOperation is the estimated size of an operation without client data, in bytes.
const smallOperation = 4 << 10

// committer commits the operations that have queued up since the last commit in one
// transaction. There is no timer: a lone request commits at once, and under load a batch
// consists of what arrived while the previous one was being written.
type committer struct {
	service *Service
	meter   Meter
	mu      sync.Mutex // guards queue, running and closed
	wake    *sync.Cond // on mu: a batch is due, or the committer is closed
	queue   writeQueue
	running int // batches in progress
	closed  bool
	done    sync.WaitGroup // the workers: started by newCommitter, awaited by close
}

const (
	// minParallelBatch is how many operations must be queued before a batch starts while
	// another one runs. Fewer are cheaper to commit together with later arrivals.
	minParallelBatch = 64
	// commitTimeout bounds how long a batch may wait for the store before it starts to
	// commit.
	commitTimeout = 20 * time.Second
)

func newCommitter(s *Service, meter Meter, workers int) *committer {
	c := &committer{service: s, meter: meter, queue: newWriteQueue()}
	if c.meter == nil {
		c.meter = silentMeter{}
	}
	c.wake = sync.NewCond(&c.mu)
	for range workers {
		c.done.Go(c.run)
	}
	return c
}

// commit queues an operation and waits until it is durable or refused. If ctx ends first, the
// operation continues and its outcome is unknown to the caller.
func (c *committer) commit(ctx context.Context, op operation) error {
	return c.commitCompiled(ctx, op, false)
}

// commitFirst is commit for a stop, which joins the next batch however many operations are
// queued. Within the batch it is planned in order of arrival.
func (c *committer) commitFirst(ctx context.Context, op operation) error {
	return c.commitCompiled(ctx, op, true)
}

// commitCompiled commits an operation. If the transaction finds that the policy set in force
// is not compiled, it compiles the set and tries again.
func (c *committer) commitCompiled(ctx context.Context, op operation, stop bool) error {
	for range maxRetries {
		err := c.await(ctx, &pending{operation: op, stop: stop})
		if err == nil {
			return nil
		}
		var missing *notCompiled
		if !errors.As(err, &missing) {
			return err
		}
		if _, err := c.service.compileStored(ctx, missing.record); err != nil {
			return visible(err)
		}
	}
	return visible(fmt.Errorf("the policy was changed %d times while it was compiled: %w", maxRetries, store.ErrUnavailable))
}

// errNotLoaded reports that an operation needs rows that were not loaded. The next attempt names
// them.
var errNotLoaded = errors.New("rows that an operation needs were not loaded")

// maxRetries bounds how often an operation is retried because of concurrent changes.
const maxRetries = 20

// commitLoaded commits an operation, and retries it if rows that it needs were not loaded.
func (s *shared) commitLoaded(ctx context.Context, op operation) error {
	err := s.committer.commit(ctx, op)
	for retry := 0; retry < maxRetries && errors.Is(err, errNotLoaded); retry++ {
		err = s.committer.commit(ctx, op)
	}
	return err
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
		c.commitBatch(batch)
		c.mu.Lock()
		c.running--
		c.mu.Unlock()
	}
}

// take waits for the next batch. It returns nil once the committer is closed and drained.
func (c *committer) take() []*pending {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		c.yieldForMore()
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

// due reports whether a batch should start now. The caller holds mu. Every worker re-checks
// the queue after its batch, so nothing is stranded.
func (c *committer) due() bool {
	waiting := c.queue.length
	return waiting > 0 && (c.running == 0 || waiting >= minParallelBatch || c.closed)
}

// yieldForMore lets other goroutines run as long as that adds operations: requests that have
// already arrived join the batch, and a lone one is not delayed. The caller holds mu.
// yieldForMore releases it in between, so another worker may have emptied the queue.
func (c *committer) yieldForMore() {
	for seen := 0; seen < c.queue.length && c.queue.length < maxBatch; {
		seen = c.queue.length
		c.mu.Unlock()
		runtime.Gosched()
		c.mu.Lock()
	}
}

// commitBatch commits a batch and sends each operation its result. A batch that fails because
// of one operation is split, so that the others succeed.
func (c *committer) commitBatch(batch []*pending) {
	errs, err := c.transact(batch)
	if len(batch) > 1 && errors.Is(err, store.ErrExists) {
		// Another batch stored the same row first. It can be read now, so retry the whole
		// batch before splitting it.
		errs, err = c.transact(batch)
	}
	if err != nil && len(batch) > 1 && !errors.Is(err, store.ErrOutcomeUnknown) && !errors.Is(err, store.ErrUnavailable) {
		for _, p := range batch {
			c.commitBatch([]*pending{p})
		}
		return
	}
	for retry := 0; retry < maxExistsRetries && errors.Is(err, store.ErrExists); retry++ {
		// Another worker or replica stored the same row first. It can be read now.
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

// maxExistsRetries bounds the retries after another replica stored the same row first. One is
// not enough: a batch may create several budget counters.
const maxExistsRetries = 5

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
	times := make([]time.Duration, len(pendings)) // planning time of each
	var b *batch
	err := c.service.store.Transact(ctx, &needs, func(loaded *store.Loaded) (*store.Changes, error) {
		b = newBatch(c.service, loaded)
		b.setCounters(needs.Counters, known)
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
	// All of it before anyone is answered.
	c.service.noteChains(b)
	c.service.noteCounters(b)
	c.service.stateCache.put(b.order, b.loaded.Epoch)
	c.service.afterCommit(b)
	c.meter.Committed(len(pendings), time.Since(began))
	for _, outcome := range b.outcomes {
		c.meter.Decided(string(outcome))
	}
	for _, budget := range b.overBudget {
		c.meter.OverBudget(string(budget.Scope), string(budget.Measure()), string(budget.Decision))
	}
	for _, asked := range b.approvals {
		if asked.fresh || asked.changed {
			c.meter.ApprovalMoved(string(asked.approval.Status))
		}
	}
	if sealed := len(b.changes.NewReceipts); sealed > 0 {
		c.meter.Sealed(sealed)
	}
	return errs, nil
}

// batch is the state shared by the operations of one transaction: each sees the changes of
// those before it. It belongs to the worker that runs the transaction.
type batch struct {
	service        *Service
	loaded         *store.Loaded
	now            ledger.Time
	changes        store.Changes
	live           map[ledger.ChainID]*liveChain
	order          []*liveChain
	opened         []*liveChain                            // new chains; no operation of the same batch can name them
	heads          map[ledger.OrgID]*ledger.OpenHead       // in use by this batch
	sealed         []*ledger.SealedReceipt                 // by this batch
	orgs           map[ledger.OrgID]*ledger.Organization   // changed by this batch
	policies       map[policyKey]*ledger.Policy            // read or replaced by this batch
	inForce        map[*ledger.Organization]*ledger.Policy // policies under the organizations' settings
	logs           map[ledger.OrgID]bool                   // changed by this batch
	keys           map[ledger.KeyID]bool                   // changed by this batch
	findings       map[store.FindingRef]bool               // changed by this batch
	approvals      map[ledger.ApprovalID]*liveApproval     // in use by this batch
	outcomes       []ledger.Outcome                        // decisions of this batch
	overBudget     []*ledger.Budget                        // exceeded by actions of this batch
	counters       map[ledger.CounterID]*liveCounter       // in use by this batch
	loadedCounters map[ledger.CounterID]bool               // requested from the store; nil for none
	knownCounters  map[ledger.CounterID]bool               // known to this process before the load
	entries        map[ledger.ChainID]*entryLog            // of chains, as loaded
	addedAddenda   map[store.EventAt]int                   // how many of the loaded addenda this batch added
	broken         error                                   // planning failed halfway: nothing may be written
}

// liveChain is a chain in use by the batch.
type liveChain struct {
	record  *store.ChainRecord
	chain   *ledger.Chain
	state   *ledger.ChainState
	summary *ledger.Summary // of all its events; nil if unknown
	rows    [32]byte        // running digest over the rows of these events; set only with summary
	epoch   int64           // store.Loaded.Epoch when the summary was empty; set only with summary
	seen    *ledger.Summary // of the events that this process has indexed; nil if summary is set
	changed bool
	fresh   bool              // opened by this batch
	loaded  keyring.ChainMark // the chain's progress before this batch
}

func newBatch(s *Service, loaded *store.Loaded) *batch {
	return &batch{
		service: s, loaded: loaded, now: s.now(),
		live:         make(map[ledger.ChainID]*liveChain, len(loaded.Chains)),
		heads:        make(map[ledger.OrgID]*ledger.OpenHead),
		orgs:         make(map[ledger.OrgID]*ledger.Organization),
		policies:     make(map[policyKey]*ledger.Policy),
		inForce:      make(map[*ledger.Organization]*ledger.Policy),
		logs:         make(map[ledger.OrgID]bool),
		keys:         make(map[ledger.KeyID]bool),
		findings:     make(map[store.FindingRef]bool),
		approvals:    make(map[ledger.ApprovalID]*liveApproval),
		entries:      make(map[ledger.ChainID]*entryLog),
		addedAddenda: make(map[store.EventAt]int),
		counters:     make(map[ledger.CounterID]*liveCounter),
	}
}

// setCounters records which counters were requested from the store, and which of them this
// process knew before.
func (b *batch) setCounters(ids []ledger.CounterID, known map[ledger.CounterID]bool) {
	b.knownCounters = known
	if len(ids) == 0 {
		return
	}
	b.loadedCounters = make(map[ledger.CounterID]bool, len(ids))
	for _, id := range ids {
		b.loadedCounters[id] = true
	}
}

// attempt plans an operation. A panic must not crash the server: it breaks the batch, which
// is then split so that the operation fails alone.
func (b *batch) attempt(op operation) (err error) {
	defer func() { err = b.recovered(recover(), op, err) }()
	return op.plan(b)
}

// finished is finish with panics recovered: an operation may have left the batch in a bad
// state.
func (b *batch) finished() (changes *store.Changes, err error) {
	defer func() { err = b.recovered(recover(), b, err) }()
	return b.finish(), nil
}

// recovered turns a panic into an error that breaks the batch.
func (b *batch) recovered(fault, where any, err error) error {
	if fault == nil {
		return err
	}
	b.service.log.Error("a batch panicked", "in", fmt.Sprintf("%T", where), "stack", string(debug.Stack()))
	b.broken = fmt.Errorf("%T panicked", where)
	return b.broken
}

// confirm checks a caller against the stored API key.
func (b *batch) confirm(caller *Caller) error {
	if err := b.refuseRolledBack(caller.Org); err != nil {
		return err
	}
	key, err := b.key(caller.Key)
	if err != nil {
		b.service.callers.forget(caller.Key)
		return err
	}
	return b.service.admit(key, caller, b.now)
}

// key returns the stored API key. A key that fails its authenticator grants no access.
func (b *batch) key(id ledger.KeyID) (*ledger.KeyRecord, error) {
	if key := b.loaded.Keys[id]; key != nil {
		return key, nil
	}
	if b.tampered(id) {
		return nil, fmt.Errorf("an API key fails its authenticator: %w", ledger.ErrStateTampered)
	}
	return nil, errUnknownKey
}

// tampered reports whether a loaded row failed authentication.
func (b *batch) tampered(id any) bool { return slices.Contains(b.loaded.Tampered, id) }

// keyOf returns an organization's API key that is to be changed.
func (b *batch) keyOf(org ledger.OrgID, id ledger.KeyID) (*ledger.KeyRecord, error) {
	key, err := b.key(id)
	if errors.Is(err, errUnknownKey) || err == nil && key.Org != org {
		return nil, fault.ErrNotFound
	}
	return key, err
}

// mayRecord checks that the caller's key may record for the agent: a key can be bound to
// agents. It reads the stored binding, so the caller must have been confirmed.
func (b *batch) mayRecord(caller *Caller, agent string) error {
	if b.loaded.Keys[caller.Key].MayRecord(agent) {
		return nil
	}
	return fault.Errorf(fault.CodeAgentNotAllowed, "this API key records nothing for the agent %q: it is bound to other agents; use a key that is bound to this one, or to none", agent)
}

// putKey sets a key's new state, for later operations of the batch and for the store.
func (b *batch) putKey(key *ledger.KeyRecord) {
	b.loaded.Keys[key.ID] = key
	b.keys[key.ID] = true
}

// chain returns one of the caller's chains, authenticated.
func (b *batch) chain(caller *Caller, id ledger.ChainID) (*liveChain, error) {
	live, err := b.chainOf(caller.Org, id)
	if err == nil && !caller.owns(live.chain) {
		return nil, fault.ErrNotFound
	}
	return live, err
}

// chainOf returns one of an organization's chains, authenticated.
func (b *batch) chainOf(org ledger.OrgID, id ledger.ChainID) (*liveChain, error) {
	live, ok := b.live[id]
	if !ok {
		var err error
		if live, err = b.loadChain(org, id); err != nil {
			return nil, err
		}
	}
	if live.chain.Org != org {
		return nil, fault.ErrNotFound
	}
	return live, nil
}

func (b *batch) loadChain(org ledger.OrgID, id ledger.ChainID) (*liveChain, error) {
	record := b.loaded.Chains[id]
	if record == nil {
		return nil, b.service.chainMissing(org, id)
	}
	if record.Org != org {
		return nil, fault.ErrNotFound
	}
	chain, err := b.service.chainCache.decode(record)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ledger.ErrStateTampered, err)
	}
	live := &liveChain{record: record, chain: chain}
	if !b.service.stateCache.take(live) {
		live.state, err = ledger.DecodeChainState(record.State, record.MAC, b.service.keys, chain)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ledger.ErrStateTampered, err)
		}
		b.service.chainCache.keep(chain, record.Body)
		if live.state.Actions == 0 {
			live.summary, live.epoch = &ledger.Summary{}, b.loaded.Epoch
		}
	}
	if live.state.Status != record.Status {
		return nil, fmt.Errorf("the status of a chain is not its state's: %w", ledger.ErrStateTampered)
	}
	if err := b.refuseOlder(live); err != nil {
		return nil, err
	}
	live.loaded = verify.MarkOf(chain, live.state, record.MAC)
	b.live[id] = live
	b.order = append(b.order, live)
	return live, nil
}

// finish encodes the changed rows.
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
	for _, open := range b.heads {
		if head := open.Sign(b.service.keys); head != nil {
			b.changes.Heads = append(b.changes.Heads, head)
		}
	}
	for _, org := range b.orgs {
		b.changes.Orgs = append(b.changes.Orgs, org)
	}
	for org := range b.logs {
		b.changes.Logs = append(b.changes.Logs, b.loaded.Logs[org])
	}
	for id := range b.keys {
		b.changes.Keys = append(b.changes.Keys, b.loaded.Keys[id])
		b.changes.Signals = append(b.changes.Signals, id.UUID) // a wait ends when its key does
	}
	for ref := range b.findings {
		b.changes.Findings = append(b.changes.Findings, b.loaded.Findings[ref])
	}
	for _, asked := range b.approvals {
		asked.write(b)
	}
	b.encodeCounters()
	for chain, log := range b.entries {
		b.service.entryLogs.Put(chain, log, log.size())
	}
	return &b.changes
}

// writeQueue holds the queued operations, by organization. A batch takes one operation of
// each organization in turn until it is full, so that an organization with many operations
// does not delay the others. It is not safe for concurrent use: the committer's mu guards it.
type writeQueue struct {
	tenants map[ledger.OrgID]*tenantQueue // organizations with queued operations
	ring    []*tenantQueue                // the same, next in turn first
	length  int                           // queued operations
	bytes   int                           // their estimated size
	arrived int64                         // operations queued so far; numbers them

	// slow is the moving average of the planning time of one operation, for organizations
	// that are slower than slowOperation.
	slow map[ledger.OrgID]time.Duration
	// slowness is slowOperation. Tests replace it.
	slowness time.Duration
}

// pending is an operation that is queued or being committed.
type pending struct {
	operation operation
	stop      bool       // makes decisions stricter, and goes first
	result    chan error // buffered: a worker never waits for a caller
	number    int64      // order of arrival
}

// tenantQueue holds the queued operations of one organization, in order of arrival.
type tenantQueue struct {
	org    ledger.OrgID
	stops  []*pending
	others []*pending
	bytes  int
}

const (
	maxBatch = 256 // operations
	maxStops = 16  // of one organization in one batch
	// maxQueuedStops is how many stops of one organization may be queued. Stops have a
	// capacity of their own, so that a full queue does not reject them.
	maxQueuedStops = 256
	maxBatchBytes  = 16 << 20
	maxQueued      = 20_000 // operations
	// maxQueuedBytes bounds memory while the store stalls: operations stay queued after
	// their callers have given up.
	maxQueuedBytes = 64 << 20
	// tenantShare is the divisor that turns these bounds into those of one organization.
	tenantShare = 2

	// maxPlanning is roughly how long a batch may spend planning the operations of one slow
	// organization: all callers in the batch wait for them.
	maxPlanning = 4 * time.Millisecond
	// slowOperation is the planning time per operation above which maxPlanning limits an
	// organization. Typical operations take a tenth of it, so a busy machine does not lead to
	// small batches.
	slowOperation = 100 * time.Microsecond
	// longestPlanning caps a measured planning time. Anything longer leads to the smallest
	// share anyway, and a pause of the process for a second must not shrink batches for long.
	longestPlanning = 4 * maxPlanning
	// maxSlow bounds how many organizations are tracked as slow.
	maxSlow = 10_000
)

func newWriteQueue() writeQueue {
	return writeQueue{tenants: make(map[ledger.OrgID]*tenantQueue), slow: make(map[ledger.OrgID]time.Duration), slowness: slowOperation}
}

// add queues an operation. It reports false if the queue is full.
func (q *writeQueue) add(p *pending) bool {
	org, size := p.operation.tenant(), p.operation.size()
	tenant := q.tenants[org]
	if !q.hasCapacity(p, tenant) {
		return false
	}
	if tenant == nil {
		tenant = &tenantQueue{org: org}
		q.tenants[org] = tenant
		q.ring = append(q.ring, tenant)
	}
	q.arrived++
	p.number = q.arrived
	if p.stop {
		tenant.stops = append(tenant.stops, p)
	} else {
		tenant.others = append(tenant.others, p)
	}
	tenant.bytes += size
	q.bytes += size
	q.length++
	return true
}

// hasCapacity reports whether an operation may be queued. Stops have a capacity of their own.
// The tenant is nil if nothing of it is queued.
func (q *writeQueue) hasCapacity(p *pending, tenant *tenantQueue) bool {
	if p.stop {
		return tenant == nil || len(tenant.stops) < maxQueuedStops
	}
	if q.length >= maxQueued || q.bytes >= maxQueuedBytes {
		return false
	}
	return tenant == nil || len(tenant.others) < maxQueued/tenantShare && tenant.bytes < maxQueuedBytes/tenantShare
}

// take removes the operations of the next batch: stops first, then one operation of each
// organization in turn. They are returned in order of arrival.
func (q *writeQueue) take() []*pending {
	var taken []*pending
	size := 0
	full := func() bool { return len(taken) >= maxBatch || size >= maxBatchBytes }
	remove := func(tenant *tenantQueue, from *[]*pending) {
		p := (*from)[0]
		(*from)[0] = nil
		*from = (*from)[1:]
		held := p.operation.size()
		size += held
		tenant.bytes -= held
		taken = append(taken, p)
	}
	for _, tenant := range q.ring {
		for range min(len(tenant.stops), maxStops) {
			if !full() {
				remove(tenant, &tenant.stops)
			}
		}
	}
	last := 0 // index of the organization served last
	for round := 0; !full(); round++ {
		before := len(taken)
		for i, tenant := range q.ring {
			if full() {
				break
			}
			if len(tenant.others) > 0 && round < q.share(tenant.org) {
				remove(tenant, &tenant.others)
				last = i
			}
		}
		if len(taken) == before {
			break
		}
	}
	q.length -= len(taken)
	q.bytes -= size
	q.rotate(last)
	slices.SortFunc(taken, func(a, b *pending) int { return cmp.Compare(a.number, b.number) })
	return taken
}

// share is how many operations of an organization one batch may take.
func (q *writeQueue) share(org ledger.OrgID) int {
	if took := q.slow[org]; took > 0 {
		return max(int(maxPlanning/took), 1)
	}
	return maxBatch
}

// rotate removes organizations that have nothing queued, and rotates the ring so that the
// next batch starts after the organization served last.
func (q *writeQueue) rotate(last int) {
	if len(q.ring) == 0 {
		return
	}
	next := (last + 1) % len(q.ring)
	ring := make([]*tenantQueue, 0, len(q.ring))
	for i := range q.ring {
		tenant := q.ring[(next+i)%len(q.ring)]
		if len(tenant.stops)+len(tenant.others) == 0 {
			delete(q.tenants, tenant.org)
			continue
		}
		ring = append(ring, tenant)
	}
	q.ring = ring
}

// planned updates the planning times of organizations. It averages over each organization's
// operations, so that a pause of the process is not charged to one operation.
func (q *writeQueue) planned(batch []*pending, times []time.Duration) {
	type sum struct {
		operations int
		took       time.Duration
	}
	sums := make(map[ledger.OrgID]sum, 1)
	for i, p := range batch {
		org := p.operation.tenant()
		known := sums[org]
		sums[org] = sum{known.operations + 1, known.took + times[i]}
	}
	for org, s := range sums {
		known := q.slow[org]
		took := min(s.took/time.Duration(s.operations), longestPlanning)
		average := (3*known + took) / 4
		switch {
		case average < q.slowness:
			delete(q.slow, org)
		case known > 0 || len(q.slow) < maxSlow:
			q.slow[org] = average
		}
	}
}
