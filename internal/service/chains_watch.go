package service

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"countersign/internal/cache"
	"countersign/internal/evidence"
	"countersign/internal/fault"
	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/verify"
)

// The sizes of the caches, in bytes.
const (
	chainCacheBytes = 16 << 20
	stateCacheBytes = 40 << 20
)

// chainCache caches the chains in use, without their states. Chains never change, so no entry
// is ever stale.
type chainCache struct {
	chains *cache.Cache[ledger.ChainID, *ledger.Chain]
}

func newChainCache() chainCache {
	return chainCache{cache.New[ledger.ChainID, *ledger.Chain](chainCacheBytes)}
}

// decode decodes a chain and refuses a body that differs from the row's columns, because
// chains are looked up by columns. The chain is authentic only once its state has been
// authenticated, whose authenticator covers the body. Only then may it be cached.
func (c *chainCache) decode(record *store.ChainRecord) (*ledger.Chain, error) {
	chain, ok := c.chains.Get(record.ID)
	if !ok {
		var err error
		if chain, err = ledger.DecodeChain(record.Body); err != nil {
			return nil, err
		}
	}
	if chain.ID != record.ID || chain.Org != record.Org || chain.OpenedBy != record.OpenedBy || chain.ExternalID != record.ExternalID ||
		chain.Environment != record.Environment || chain.IdempotencyKey != record.IdempotencyKey {
		return nil, ledger.ErrStateTampered
	}
	return chain, nil
}

// keep caches a chain. Its size is estimated from the encoded body.
func (c *chainCache) keep(chain *ledger.Chain, body []byte) {
	if _, known := c.chains.Get(chain.ID); !known {
		c.chains.Put(chain.ID, chain, 500+2*len(body))
	}
}

// stateCache caches the last committed states of chains in use. It saves each action from
// decoding the state that the previous one encoded, and a completion from decoding the events
// that it summarizes. The store is authoritative: a cached state is used only if the stored
// bytes, and the chain that their authenticator covers, equal those that it was cached with,
// whichever replica wrote them.
type stateCache struct {
	states *cache.Cache[ledger.ChainID, *cachedState]
	epoch  *atomic.Int64 // store.Loaded.Epoch of the last batch
}

func newStateCache() stateCache {
	return stateCache{states: cache.New[ledger.ChainID, *cachedState](stateCacheBytes), epoch: new(atomic.Int64)}
}

type cachedState struct {
	org       ledger.OrgID
	chain     [32]byte
	body, mac []byte
	state     *ledger.ChainState
	summary   *ledger.Summary
	rows      [32]byte
	epoch     int64
	seen      *ledger.Summary
}

// maxSummary bounds the cached summary of one chain, in bytes.
const maxSummary = 512 << 10

// size estimates the memory of the decoded state and its summaries, in bytes.
func (c *cachedState) size() int {
	bytes := 500 + 2*len(c.body)
	if c.summary != nil {
		bytes += c.summary.Size()
	}
	if c.seen != nil {
		bytes += c.seen.Size()
	}
	return bytes
}

// take moves the cached state into a live chain if it matches the stored record, and reports
// whether it did. The live chain then owns the state and may modify it. The committer puts it
// into the cache again after the commit.
func (c *stateCache) take(live *liveChain) bool {
	cached, ok := c.states.Take(live.record.ID)
	if !ok || cached.chain != live.chain.Hash() || !bytes.Equal(cached.body, live.record.State) || !bytes.Equal(cached.mac, live.record.MAC) {
		return false
	}
	live.state, live.summary, live.rows, live.epoch, live.seen = cached.state, cached.summary, cached.rows, cached.epoch, cached.seen
	return true
}

// summarized reports whether the summary of a chain of this organization is cached. It is a
// hint: the summary may be evicted before the chain is loaded.
func (c *stateCache) summarized(org ledger.OrgID, id ledger.ChainID) bool {
	cached, ok := c.states.Get(id)
	return ok && cached.org == org && cached.summary != nil
}

// unchanged reports whether the cached summary of a chain still describes its stored events,
// because nobody else has written to the database since. It is a hint like summarized.
func (c *stateCache) unchanged(id ledger.ChainID) bool {
	cached, ok := c.states.Get(id)
	return ok && cached.summary != nil && cached.epoch != 0 && cached.epoch == c.epoch.Load()
}

func (c *stateCache) put(live []*liveChain, epoch int64) {
	c.epoch.Store(epoch)
	for _, l := range live {
		if l.summary != nil && l.summary.Size() > maxSummary {
			l.summary = nil
		}
		if l.seen != nil && l.seen.Size() > maxSummary {
			l.seen = nil
		}
		if !l.state.Status.Sealed() {
			cached := &cachedState{
				org: l.chain.Org, chain: l.chain.Hash(), body: l.record.State, mac: l.record.MAC, state: l.state,
				summary: l.summary, rows: l.rows, epoch: l.epoch, seen: l.seen,
			}
			c.states.Put(l.record.ID, cached, cached.size())
		}
	}
}

// chainRollbackError reports that a chain was rolled back or deleted.
type chainRollbackError struct{ rollback *verify.ChainRollback }

func (e *chainRollbackError) Error() string { return e.rollback.String() }
func (e *chainRollbackError) Unwrap() error { return ledger.ErrStateTampered }

// seenChain returns the recorded progress of a chain. Call it before reading the chain: what
// is read afterwards must not be older.
func (s *chainService) seenChain(id ledger.ChainID) (seen keyring.ChainWatched, watched bool) {
	if s.watchedChains == nil {
		return seen, false
	}
	return s.watchedChains.Seen(id.UUID)
}

// chainMissing returns the error for a chain that is not stored: tampering if this process
// knows it as a chain of the organization, and ErrNotFound otherwise.
func (s *chainService) chainMissing(org ledger.OrgID, id ledger.ChainID) error {
	seen, watched := s.seenChain(id)
	if !watched || seen.Org != org.UUID {
		return fault.ErrNotFound
	}
	return s.refuseChain(&verify.ChainRollback{Org: org, Chain: id, Missing: true})
}

// refuseChain queues the rollback of a chain as a finding, and returns it as an error.
func (s *chainService) refuseChain(back *verify.ChainRollback) error {
	s.findings.noteFinding(pendingFinding{org: back.Org, tampering: back.Tampering(), notify: true})
	return &chainRollbackError{back}
}

// refuseOlder refuses a live chain that was rolled back. The transaction holds the chain's
// lock, so no newer state can have been stored since it was read.
func (b *batch) refuseOlder(live *liveChain) error {
	seen, watched := b.service.seenChain(live.chain.ID)
	if !watched {
		return nil
	}
	if back := verify.ChainBehind(&seen, live.chain, live.state, live.record.MAC); back != nil {
		return b.service.refuseChain(back)
	}
	return nil
}

// noteChains records the states that a batch has stored. It detects a chain that was reset
// during the commit.
func (s *chainService) noteChains(b *batch) {
	if s.watchedChains == nil {
		return
	}
	for _, live := range b.order {
		if live.changed || live.fresh {
			s.noteChain(live.loaded, verify.MarkOf(live.chain, live.state, live.record.MAC), live.state)
		}
	}
	for _, opened := range b.opened {
		s.noteChain(keyring.ChainMark{}, verify.MarkOf(opened.chain, opened.state, opened.record.MAC), opened.state)
	}
}

func (s *chainService) noteChain(before, now keyring.ChainMark, state *ledger.ChainState) {
	if s.watchedChains.Note(before, now, verify.Final(state)) {
		return
	}
	back := &verify.ChainRollback{Org: ledger.OrgID{UUID: now.Org}, Chain: ledger.ChainID{UUID: now.Chain}}
	if state.Status.Sealed() {
		back.Receipt = state.Receipt
	}
	_ = s.refuseChain(back) // the next use of the chain is refused
}

// readChain reads and authenticates a chain, and refuses one that was rolled back.
func (s *chainService) readChain(ctx context.Context, org ledger.OrgID, id ledger.ChainID) (*ChainView, error) {
	seen, watched := s.seenChain(id)
	record, err := s.store.Chain(ctx, id)
	switch {
	case errors.Is(err, store.ErrNotFound) && watched && seen.Org == org.UUID:
		return nil, s.chainMissing(org, id)
	case err != nil:
		return nil, err
	}
	view, err := s.view(record)
	if err != nil || !watched {
		return view, err
	}
	if back := verify.ChainBehind(&seen, view.Chain, view.State, record.MAC); back != nil {
		return nil, s.refuseChain(back)
	}
	return view, nil
}

// rereadIfOlder reads a chain again if it is older than its recorded progress. It was read
// without a lock, so another request may have advanced it.
func (s *chainService) rereadIfOlder(ctx context.Context, view *ChainView, mac []byte) (*ChainView, error) {
	seen, watched := s.seenChain(view.Chain.ID)
	if !watched || verify.ChainBehind(&seen, view.Chain, view.State, mac) == nil {
		return view, nil
	}
	again, err := s.readChain(ctx, view.Chain.Org, view.Chain.ID)
	if err != nil {
		return nil, err
	}
	again.Terms, again.BindingKey, again.Organization = view.Terms, view.BindingKey, view.Organization
	if !again.State.Status.Sealed() {
		again.Limits = view.Limits
	}
	return again, nil
}

// maxChainReports bounds how many chains one call reports. The next call reports the others.
const maxChainReports = 100

// ProveChains compares open chains with their recorded progress, and reports those that were
// reset or deleted to their organizations.
func (s *chainService) ProveChains(ctx context.Context) error {
	found := 0
	err := s.judge.Chains.ProveDue(ctx, func(back *verify.ChainRollback) {
		if found++; found <= maxChainReports {
			s.findings.reportOrLog(ctx, back.Org, back.Tampering())
		}
	})
	return visible(err)
}

// ChainsRemembered returns how many open chains have recorded progress, and how many were
// dropped since the start because the capacity was exhausted.
func (s *chainService) ChainsRemembered() (chains int, dropped int64) {
	if s.watchedChains == nil {
		return 0, 0
	}
	return s.watchedChains.Watched()
}

// ChainRollbacks lists the chains that are older than what this server has acknowledged.
func (s *chainService) ChainRollbacks(ctx context.Context) ([]*verify.ChainRollback, error) {
	found, err := s.judge.Chains.Rollbacks(ctx)
	return found, visible(err)
}

// chainPolls records polls of chains until the worker stores them: a read must not cost a
// write. Requests that record something in a chain change the chain's own state and need no
// entry here.
//
// A poll is stored only if it is PollGrain or more after the chain's last stored time. So a
// chain that lives for minutes costs nothing, and one that is polled all day costs at most six
// row updates an hour, with several replicas about as many. A poll that is not stored yet is at
// most PollGrain plus pollLag old, and the sealing of abandoned chains waits that much longer.
type chainPolls struct {
	mu      sync.Mutex                                // guards noted
	noted   map[polledChain]polledAt                  // since the last flush
	written *cache.Cache[ledger.ChainID, ledger.Time] // last stored poll of each chain
}

type polledChain struct {
	org   ledger.OrgID
	chain ledger.ChainID
}

// polledAt is the time of a poll, and the time of the chain's last change.
type polledAt struct{ since, at ledger.Time }

const (
	// shortestGrain is less than any organization's PollGrain.
	shortestGrain = 100 * time.Millisecond
	// pollLag is how long it may take to store a poll: two flushes of the
	// worker, with a margin for the clocks of replicas.
	pollLag = 15 * time.Second
	// pollCacheBytes bounds the cache of stored polls, in bytes.
	pollCacheBytes = 1 << 20
)

func newChainPolls() chainPolls {
	return chainPolls{written: cache.New[ledger.ChainID, ledger.Time](pollCacheBytes)}
}

// note records a poll of a chain that was last changed at since.
func (p *chainPolls) note(chain *ledger.Chain, since, now ledger.Time) {
	p.noteAt(polledChain{chain.Org, chain.ID}, since, now)
}

func (p *chainPolls) noteAt(chain polledChain, since, now ledger.Time) {
	if now < since.Add(shortestGrain) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.noted == nil {
		p.noted = make(map[polledChain]polledAt)
	}
	earlier, known := p.noted[chain]
	if !known && len(p.noted) >= maxLastUses {
		return // full until the next flush; a later poll is recorded
	}
	p.noted[chain] = polledAt{max(since, earlier.since), max(now, earlier.at)}
}

func (p *chainPolls) take() map[polledChain]polledAt {
	p.mu.Lock()
	defer p.mu.Unlock()
	taken := p.noted
	p.noted = nil
	return taken
}

// polledBy records a read of a chain by the key that opened it. Other readers, such as a
// member in the console, do not keep a chain open.
func (s *chainService) polledBy(caller *Caller, view *ChainView) {
	if view.OpenedBy == caller.Key && !view.State.Status.Sealed() {
		s.chainPolls.note(view.Chain, view.State.LastAt, s.now())
	}
}

// FlushChainPolls stores when chains were last polled. The worker calls it every few seconds.
// Polls that could not be stored are kept for the next call.
func (s *chainService) FlushChainPolls(ctx context.Context) error {
	taken := s.chainPolls.take()
	restore := func(failed func(ledger.OrgID) bool) {
		for chain, polled := range taken {
			if failed(chain.org) {
				s.chainPolls.noteAt(chain, polled.since, polled.at)
			}
		}
	}
	grains, failed := s.pollGrains(ctx, taken)
	due := make(map[ledger.ChainID]ledger.Time)
	for chain, polled := range taken {
		written, _ := s.chainPolls.written.Get(chain.chain)
		if grain, ok := grains[chain.org]; ok && polled.at >= max(polled.since, written).Add(grain) {
			due[chain.chain] = polled.at
		}
	}
	if err := s.store.TouchChains(ctx, due); err != nil {
		restore(func(ledger.OrgID) bool { return true })
		return visible(err)
	}
	for chain, at := range due {
		s.chainPolls.written.Put(chain, at, 100)
	}
	restore(func(org ledger.OrgID) bool { _, ok := grains[org]; return !ok })
	return failed
}

// pollGrains returns the PollGrain of each organization with polled chains. An organization
// that cannot be read is left out and does not block the others.
func (s *chainService) pollGrains(ctx context.Context, polled map[polledChain]polledAt) (map[ledger.OrgID]time.Duration, error) {
	grains := make(map[ledger.OrgID]time.Duration)
	faults := make(map[ledger.OrgID]error)
	for chain := range polled {
		if _, ok := grains[chain.org]; ok || faults[chain.org] != nil {
			continue
		}
		org, err := s.organization(ctx, chain.org)
		if err != nil {
			faults[chain.org] = err
			continue
		}
		grains[chain.org] = org.Settings.PollGrain()
	}
	return grains, errors.Join(slices.Collect(maps.Values(faults))...)
}

// JobAbandon seals an organization's abandoned chains, and is then queued again. Body: the
// id of the chain to continue at, "" at the beginning.
const JobAbandon = "chain.abandon"

// One job does a bounded amount of work, so that it does not delay others. A pass over all
// chains may take several jobs.
const (
	abandonPage  = 100               // chains read together
	maxExamined  = 2000              // chains examined by one job
	maxSealed    = 100               // chains sealed by one job
	abandonEvery = 15 * time.Minute  // longest pause between two passes
	abandonSoon  = 2 * time.Minute   // longest pause if chains are abandoned within hours
	abandonLeast = 5 * time.Second   // shortest pause
	abandonSlow  = abandonEvery * 16 // AbandonAfter from which abandonEvery is often enough
	abandonLease = 5 * time.Minute   // upper bound for the lease of a job
)

// abandonPause returns the time between two passes. It is never close to abandonLease: see
// nextAbandonment.
func abandonPause(settings *ledger.Settings) time.Duration {
	after := settings.AbandonAfter()
	if after >= abandonSlow {
		return abandonEvery
	}
	return max(abandonLeast, min(abandonSoon, after/16))
}

func abandonJob(org ledger.OrgID, place string, runAt ledger.Time) *store.Job {
	return &store.Job{Org: org, Kind: JobAbandon, RunAt: runAt, Body: []byte(place)}
}

// QueueAbandonment ensures that each organization's chains are checked for abandonment
// regularly, as QueueChecks does for its ledger.
func (s *recordService) QueueAbandonment(ctx context.Context) error {
	return s.findings.queueMissing(ctx, JobAbandon, abandonEvery, func(org ledger.OrgID, runAt ledger.Time) *store.Job {
		return abandonJob(org, "", runAt)
	})
}

// Abandon seals as many abandoned chains as one job may, and queues the next job.
func (j *Jobs) Abandon(ctx context.Context, job *store.Job) error {
	org, err := j.service.organization(ctx, job.Org)
	if err != nil {
		return err
	}
	pass := &abandonment{service: j.service, org: org, now: j.service.now()}
	if err := pass.begin(string(job.Body)); err != nil {
		return err
	}
	if err := pass.run(ctx); err != nil {
		return visible(err)
	}
	if !pass.done {
		return j.FinishWith(ctx, job, []*store.Job{abandonJob(org.ID, pass.before.String(), j.service.now())})
	}
	follow, err := j.nextAbandonment(ctx, org)
	if err != nil {
		return visible(err)
	}
	return j.FinishWith(ctx, job, follow)
}

// nextAbandonment returns the job for the next pass, or none if there is one already: of two
// concurrent passes, one ends. The finishing job is among those counted only if its lease ends
// before the next pass.
func (j *Jobs) nextAbandonment(ctx context.Context, org *ledger.Organization) ([]*store.Job, error) {
	now, pause := j.service.now(), abandonPause(&org.Settings)
	coming, err := j.service.store.JobsDue(ctx, JobAbandon, now, now.Add(pause))
	if err != nil {
		return nil, err
	}
	own := int64(0)
	if pause > abandonLease {
		own = 1
	}
	if coming[org.ID] > own {
		return nil, nil
	}
	return []*store.Job{abandonJob(org.ID, "", now.Add(pause))}, nil
}

// abandonment is a pass over an organization's chains, from the newest that may be abandoned
// to the oldest. A chain's id contains its opening time, so only chains that have been open
// long enough are read.
type abandonment struct {
	service  *Service
	org      *ledger.Organization
	now      ledger.Time
	before   ledger.ChainID // chains with smaller ids remain to be examined
	examined int            // chains, by this job
	sealed   int            // chains, by this job
	reading  verify.Tolerance
	done     bool // the pass is complete
}

// begin sets the position of the pass: the body of its job.
func (a *abandonment) begin(position string) error {
	if position == "" {
		opened := a.now.Add(-a.org.Settings.AbandonAfter())
		a.before = ledger.ChainID{UUID: ledger.NewTimedID(max(opened, 0), [10]byte{})}
		return nil
	}
	id, err := ledger.ParseID(position)
	if err != nil {
		return fmt.Errorf("position of an abandonment job: %w", err)
	}
	a.before = ledger.ChainID{UUID: id}
	return nil
}

func (a *abandonment) run(ctx context.Context) error {
	for a.examined < maxExamined && a.sealed < maxSealed {
		query := store.ChainQuery{Org: a.org.ID, Status: ledger.ChainActive, Before: &a.before, Limit: abandonPage}
		records, err := a.service.store.Chains(ctx, query)
		if err != nil {
			return err
		}
		finished, err := a.page(ctx, records)
		if err != nil {
			return err
		}
		if finished && len(records) < abandonPage {
			a.done = true
			break
		}
	}
	if a.sealed > 0 {
		a.service.log.Info("chains were sealed as abandoned", "chains", a.sealed)
	}
	return nil
}

// page examines chains until the job has sealed as many as it may, and reports whether it reached
// the last one.
func (a *abandonment) page(ctx context.Context, records []*store.ChainRecord) (finished bool, err error) {
	ids := make([]ledger.ChainID, 0, len(records))
	for _, record := range records {
		ids = append(ids, record.ID)
	}
	polled, err := a.service.store.Polled(ctx, ids)
	if err != nil {
		return false, err
	}
	for i, record := range records {
		if err := ctx.Err(); err != nil {
			return false, fmt.Errorf("seal abandoned chains: %w", err)
		}
		if err := a.examine(ctx, record, polled[record.ID]); err != nil {
			return false, err
		}
		a.examined++
		a.before = record.ID
		if a.sealed >= maxSealed {
			return i == len(records)-1, nil
		}
	}
	return true, nil
}

// examine seals a chain if it is abandoned. A chain that cannot be sealed, most likely because
// it was tampered with or is on a damaged page, must not block the others: only errors that
// concern all of them end the job.
func (a *abandonment) examine(ctx context.Context, record *store.ChainRecord, polled ledger.Time) error {
	view, err := a.service.view(record)
	if err == nil {
		if at, ok := view.State.AbandonedAt(&a.org.Settings, polled, pollLag); !ok || at > a.now {
			return nil
		}
		var sealed bool
		if sealed, err = a.service.abandon(ctx, a.org.ID, record.ID); sealed {
			a.sealed++
		}
	}
	for _, common := range []error{store.ErrOutcomeUnknown, evidence.ErrRolledBack, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, common) {
			return err
		}
	}
	if errors.Is(err, store.ErrUnavailable) {
		a.reading.Note(err)
	} else {
		a.reading.Note(nil)
	}
	if a.reading.Exhausted() {
		return err
	}
	switch {
	case err == nil:
	case errors.Is(err, store.ErrUnavailable) && !errors.Is(err, store.ErrDamaged):
		a.service.log.Warn("an abandoned chain could not be sealed, because the store was unavailable: the next pass tries again")
	default:
		a.service.log.Error("sealing an abandoned chain failed: run countersign audit")
	}
	return nil
}

// abandon seals a chain if it is abandoned, and reports whether it did.
func (s *recordService) abandon(ctx context.Context, org ledger.OrgID, chain ledger.ChainID) (bool, error) {
	read, err := s.readChain(ctx, org, chain)
	if err != nil {
		return false, err
	}
	op := &abandonChain{org: org, chain: chain, read: read}
	if err := s.committer.commit(ctx, op); err != nil {
		return false, err
	}
	return op.sealed, nil
}

type abandonChain struct {
	org    ledger.OrgID
	chain  ledger.ChainID
	read   *chainReading
	sealed bool
}

func (o *abandonChain) tenant() ledger.OrgID { return o.org }

func (o *abandonChain) size() int { return smallOperation }

func (o *abandonChain) need(needs *store.Needs) {
	needs.Orgs = append(needs.Orgs, o.org)
	needs.Chains = append(needs.Chains, o.chain)
	needs.Polls = append(needs.Polls, o.chain)
	needs.Heads = append(needs.Heads, o.org)
	needs.ApprovalsOf = append(needs.ApprovalsOf, o.chain)
}

// plan checks again under the chain's lock: a chain that was sealed, used, paused or polled in
// the meantime is left alone. The chain's own times are authenticated, but the time of its
// last poll is not: an attacker with access to the database can cause a chain to be sealed
// early or kept open, but cannot change what was recorded.
func (o *abandonChain) plan(b *batch) error {
	o.sealed = false
	live, err := b.chainOf(o.org, o.chain)
	if err != nil {
		return err
	}
	org, err := b.org(o.org)
	if err != nil {
		return err
	}
	if at, ok := live.state.AbandonedAt(&org.Settings, b.loaded.Polls[o.chain], pollLag); !ok || at > b.now {
		return nil
	}
	// An abandoned chain has no open approvals to end.
	if _, err := b.seal(live, org, new(ending), o.read, ledger.Abandonment(&org.Settings)); err != nil {
		return err
	}
	o.sealed = true
	return nil
}
