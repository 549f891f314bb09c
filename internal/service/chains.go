package service

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"countersign/internal/cache"
	"countersign/internal/canon"
	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/verify"
)

// chainService opens, reads and resumes chains. It refuses chains that were rolled back, and
// records when clients poll them.
type chainService struct {
	*shared
	findings   *findingService
	chainCache chainCache
	stateCache stateCache
	// lineages caches the lineages of chains that were abandoned or continue another. With a
	// cached lineage, an operation needs no second attempt.
	lineages      *cache.Cache[ledger.ChainID, lineage]
	chainPolls    chainPolls
	watchedChains verify.ChainWatch // nil without one
}

// ChainView is a chain in its current state.
type ChainView struct {
	*ledger.Chain
	State *ledger.ChainState
	Terms *Terms // nil if the organization was not read with the chain
	// BindingKey is set only in the answer to the opening, for the chain's opener.
	BindingKey []byte
	// Tampered reports that the stored record or its state fails authentication. Then only
	// the chain's id is set, and State is nil. Only lists return such views.
	Tampered bool
	// Organization is the slug of the chain's organization.
	Organization string
	// Limits are the limits in force; nil if the chain is sealed.
	Limits *ledger.EffectiveLimits
}

// withOrg sets the chain's organization, and the limits under its settings.
func (v *ChainView) withOrg(org *ledger.Organization) *ChainView {
	v.Organization = org.Slug
	if !v.Tampered && !v.State.Status.Sealed() {
		v.Limits = org.Settings.Effective(&v.Chain.Limits)
	}
	return v
}

// Terms is what an answer tells an agent about its organization.
type Terms struct {
	// Act is the number of the act that last changed the organization. An answer with a
	// greater number is newer.
	Act int64
	// Lease lets the client decide obviously safe actions itself; nil if it must ask.
	Lease *ledger.Lease
}

// terms grants a lease if the organization, as read in this transaction, allows one. A key
// that is bound to agents gets none: a lease is not limited to agents, so it would allow more
// than the key may record. The caller must have been confirmed.
func (b *batch) terms(caller *Caller, org *ledger.Organization, policy *ledger.Policy, chain *ledger.Chain, state *ledger.ChainState) Terms {
	if len(b.loaded.Keys[caller.Key].Agents) > 0 {
		return Terms{Act: org.Controls.Act}
	}
	lease := state.Grant(&ledger.Recording{
		Keys: b.service.keys, Policy: policy, Org: org, Chain: chain, Now: b.now, Random: b.service.timedRandom(),
	})
	if lease != nil {
		b.service.noteGrant(org.ID)
	}
	return Terms{Act: org.Controls.Act, Lease: lease}
}

// OpenChain opens a chain. Requests with the same idempotency key open one chain, however
// often they are sent.
func (s *chainService) OpenChain(ctx context.Context, caller *Caller, request *ledger.Chain, idempotencyKey string) (*ChainView, error) {
	if err := caller.require(ledger.RoleAgent); err != nil {
		return nil, err
	}
	op := &openChain{caller: caller, chain: *request, idempotencyKey: idempotencyKey}
	if err := s.committer.commit(ctx, op); err != nil {
		return nil, err
	}
	if op.earlier == nil {
		return op.view, nil
	}
	view, err := s.rereadIfOlder(ctx, op.view, op.earlier)
	return view, visible(err)
}

type openChain struct {
	caller         *Caller
	chain          ledger.Chain
	idempotencyKey string
	view           *ChainView
	earlier        []byte // authenticator of the chain that an earlier request opened; nil for none
}

func (o *openChain) ref() store.OpenRef {
	return store.OpenRef{Org: o.caller.Org, By: o.caller.Key, Key: o.idempotencyKey}
}

func (o *openChain) tenant() ledger.OrgID { return o.caller.Org }

func (o *openChain) size() int {
	return len(o.chain.Metadata) + len(o.chain.PolicyConfig) + smallOperation
}

func (o *openChain) need(needs *store.Needs) {
	needs.Keys = append(needs.Keys, o.caller.Key)
	needs.Orgs = append(needs.Orgs, o.caller.Org)
	if o.idempotencyKey != "" {
		needs.Opens = append(needs.Opens, o.ref())
	}
}

func (o *openChain) plan(b *batch) error {
	o.earlier = nil
	if err := b.confirm(o.caller); err != nil {
		return err
	}
	org, err := b.org(o.caller.Org)
	if err != nil {
		return err
	}
	if o.idempotencyKey != "" {
		if earlier := b.loaded.Opens[o.ref()]; earlier != nil {
			return o.repeat(b, org, earlier)
		}
	}
	policy, err := b.policy(org)
	if err != nil {
		return err
	}
	chain := o.chain
	chain.ID = ledger.ChainID{UUID: b.service.timedID(b.now)}
	chain.Org, chain.OpenedBy, chain.StartedAt = o.caller.Org, o.caller.Key, b.now
	chain.FailModes, chain.FastPath = org.Settings.CanonicalFailModes(), policy.FastPath
	chain.IdempotencyKey, chain.BindingKeyID = o.idempotencyKey, b.service.keys.CurrentKey()
	state := ledger.NewChainState(b.now, policy.Version)
	state.Revision = 1
	record := newChainRecord(&chain)
	record.Status = state.Status
	record.State, record.MAC = state.Encode(b.service.keys, &chain)
	b.changes.NewChains = append(b.changes.NewChains, record)
	b.opened = append(b.opened, &liveChain{record: record, chain: &chain, state: state})
	b.postChain(&chain)
	if o.idempotencyKey != "" {
		b.loaded.Opens[o.ref()] = record
	}
	terms := b.terms(o.caller, org, policy, &chain, state)
	o.view = (&ChainView{Chain: &chain, State: state, Terms: &terms, BindingKey: b.service.bindingKey(&chain)}).withOrg(org)
	return nil
}

// newChainRecord returns the record of a new chain, without its state.
func newChainRecord(chain *ledger.Chain) *store.ChainRecord {
	return &store.ChainRecord{
		ID: chain.ID, Org: chain.Org, OpenedBy: chain.OpenedBy, ExternalID: chain.ExternalID,
		Environment: chain.Environment, IdempotencyKey: chain.IdempotencyKey, Body: chain.Encode(),
	}
}

// repeat returns the chain that an earlier request opened. It grants no lease: the chain is
// not locked here, so it may be pausing concurrently.
func (o *openChain) repeat(b *batch, org *ledger.Organization, earlier *store.ChainRecord) error {
	view, err := b.service.view(earlier)
	if err != nil {
		return err
	}
	if view.OpenedBy != o.caller.Key || !view.SameRequest(&o.chain) {
		return fault.Errorf(fault.CodeIdempotencyConflict, "this Idempotency-Key opened another chain already: use a new key for a new chain")
	}
	view.Terms, view.BindingKey = &Terms{Act: org.Controls.Act}, b.service.bindingKey(view.Chain)
	o.view, o.earlier = view.withOrg(org), earlier.MAC
	b.service.chainPolls.note(view.Chain, view.State.LastAt, b.now)
	return nil
}

func (s *chainService) bindingKey(chain *ledger.Chain) []byte {
	key, ok := chain.BindingKey(s.keys)
	if !ok {
		return nil
	}
	return key[:]
}

// view decodes and authenticates a stored chain.
func (s *chainService) view(record *store.ChainRecord) (*ChainView, error) {
	chain, err := s.chainCache.decode(record)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ledger.ErrStateTampered, err)
	}
	state, err := ledger.DecodeChainState(record.State, record.MAC, s.keys, chain)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ledger.ErrStateTampered, err)
	}
	if state.Status != record.Status {
		return nil, fmt.Errorf("the status of a chain is not its state's: %w", ledger.ErrStateTampered)
	}
	s.chainCache.keep(chain, record.Body)
	return &ChainView{Chain: chain, State: state}, nil
}

// Chain returns one chain.
func (s *chainService) Chain(ctx context.Context, caller *Caller, id ledger.ChainID) (*ChainView, error) {
	if err := s.authorize(ctx, caller, ledger.RoleAgent); err != nil {
		return nil, err
	}
	// Read the organization first: an act in between then shows in the next answer.
	org, err := s.organization(ctx, caller.Org)
	if err != nil {
		return nil, err
	}
	view, err := s.ownChain(ctx, caller, id)
	if err != nil {
		return nil, err
	}
	view.Terms = &Terms{Act: org.Controls.Act}
	s.polledBy(caller, view)
	return view.withOrg(org), nil
}

func (s *chainService) ownChain(ctx context.Context, caller *Caller, id ledger.ChainID) (*ChainView, error) {
	view, err := s.readChain(ctx, caller.Org, id)
	if err != nil {
		return nil, visible(err)
	}
	if !caller.owns(view.Chain) {
		return nil, fault.ErrNotFound
	}
	return view, nil
}

// ChainFilter selects chains.
type ChainFilter struct {
	Status      ledger.ChainStatus
	Environment string
	ExternalID  string
	Before      *ledger.ChainID
	Limit       int
}

// Chains lists chains, newest first. Those that fail authentication are marked.
func (s *chainService) Chains(ctx context.Context, caller *Caller, filter ChainFilter) ([]*ChainView, error) {
	if err := s.authorize(ctx, caller, ledger.RoleAgent); err != nil {
		return nil, err
	}
	query := store.ChainQuery{
		Org: caller.Org, Status: filter.Status, Environment: filter.Environment,
		ExternalID: filter.ExternalID, Before: filter.Before, Limit: filter.Limit,
	}
	if caller.Role == ledger.RoleAgent {
		query.OpenedBy = &caller.Key
	}
	org, err := s.organization(ctx, caller.Org)
	if err != nil {
		return nil, err
	}
	records, err := s.store.Chains(ctx, query)
	if err != nil {
		return nil, visible(err)
	}
	views := make([]*ChainView, 0, len(records))
	for _, record := range records {
		view, err := s.listedChain(ctx, record)
		if err != nil {
			return nil, visible(err)
		}
		views = append(views, view.withOrg(org))
	}
	return views, nil
}

// listedChain returns the view of a chain for a list, marked if it fails authentication.
func (s *chainService) listedChain(ctx context.Context, record *store.ChainRecord) (*ChainView, error) {
	view, err := s.view(record)
	if err == nil {
		view, err = s.rereadIfOlder(ctx, view, record.MAC)
	}
	if errors.Is(err, ledger.ErrStateTampered) {
		return s.tamperedChain(record.ID), nil
	}
	return view, err
}

func (s *chainService) tamperedChain(id ledger.ChainID) *ChainView {
	s.log.Error(tamperedLog, "of", "a chain")
	return &ChainView{Chain: &ledger.Chain{ID: id}, Tampered: true}
}

// ResumeChain lifts an auto-pause and grants the same limits again.
func (s *chainService) ResumeChain(ctx context.Context, caller *Caller, id ledger.ChainID) (*ChainView, error) {
	if err := caller.require(ledger.RoleAdmin); err != nil {
		return nil, err
	}
	view, err := s.ownChain(ctx, caller, id)
	if err != nil {
		return nil, err
	}
	op := &resumeChain{caller: caller, chain: id}
	if sequence := view.State.Actions; sequence > 0 {
		stored, err := s.store.Event(ctx, store.EventAt{Chain: id, Sequence: sequence})
		if err != nil {
			return nil, missingIsTampering(visible(err), "the last event of a chain")
		}
		if op.last, err = s.store.ReadEvent(caller.Org, stored); err != nil {
			return nil, visible(err)
		}
	}
	if err := s.committer.commit(ctx, op); err != nil {
		return nil, err
	}
	org, err := s.organization(ctx, caller.Org)
	if err != nil {
		return nil, err
	}
	if view, err = s.ownChain(ctx, caller, id); err != nil {
		return nil, err
	}
	return view.withOrg(org), nil
}

type resumeChain struct {
	caller *Caller
	chain  ledger.ChainID
	last   *ledger.RecordedEvent // the chain's newest event when it was read; nil for none
}

func (o *resumeChain) tenant() ledger.OrgID { return o.caller.Org }

func (o *resumeChain) size() int { return smallOperation }

func (o *resumeChain) need(needs *store.Needs) {
	needs.Keys = append(needs.Keys, o.caller.Key)
	needs.Orgs = append(needs.Orgs, o.caller.Org)
	needs.Logs = append(needs.Logs, o.caller.Org)
	needs.Chains = append(needs.Chains, o.chain)
}

func (o *resumeChain) plan(b *batch) error {
	if err := b.confirm(o.caller); err != nil {
		return err
	}
	live, err := b.chain(o.caller, o.chain)
	if err != nil {
		return err
	}
	org, err := b.org(o.caller.Org)
	if err != nil {
		return err
	}
	var event ledger.EventID
	if o.last != nil {
		event = o.last.ID
	}
	from := live.state.Status
	addendum, err := live.state.Resume(o.chain, event, o.caller.Name, b.now)
	if err != nil {
		return err
	}
	live.changed = true
	b.addAddendum(addendum)
	return b.logAct(o.caller.actor(), org, &auditEntry{action: ledger.ActChainResume, target: o.chain.String(), detail: details(func(w *canon.ObjectWriter) {
		w.StringOrNull("chain_name", live.chain.Name)
		writeChange(w, "status", string(from), string(live.state.Status))
	})})
}

// lineage lists the known predecessors and successors of a chain. It is a hint: the chains
// loaded in the transaction are authoritative, and an operation that finds more of them there
// is planned again. Successions never change, so a lineage may be incomplete but not wrong.
//
// It belongs to one operation, and only the goroutine that plans it writes to it.
type lineage struct {
	requested ledger.ChainID   // named by the request
	before    []ledger.ChainID // that it continues, oldest first
	after     []ledger.ChainID // that continue it, oldest first
	extra     []ledger.ChainID // those of before whose state is needed
}

// errLineage reports that an operation needs chains that were not loaded. The next attempt
// names them.
var errLineage = errors.New("chains of the lineage not loaded")

// need adds the chains from the requested one to the newest, and the extra ones.
func (l *lineage) need(needs *store.Needs) {
	needs.Chains = append(append(append(needs.Chains, l.requested), l.after...), l.extra...)
}

// all yields the chains in which an action may have been recorded already.
func (l *lineage) all() iter.Seq[ledger.ChainID] {
	return func(yield func(ledger.ChainID) bool) {
		for _, id := range l.before {
			if !yield(id) {
				return
			}
		}
		if !yield(l.requested) {
			return
		}
		for _, id := range l.after {
			if !yield(id) {
				return
			}
		}
	}
}

// last returns the newest known chain.
func (l *lineage) last() ledger.ChainID {
	if len(l.after) == 0 {
		return l.requested
	}
	return l.after[len(l.after)-1]
}

// newest returns the chain in which to continue: the requested one, which must be the
// caller's, or its newest successor. It may be an abandoned chain that has no successor yet.
func (l *lineage) newest(b *batch, caller *Caller) (*liveChain, error) {
	live, err := b.chain(caller, l.requested)
	if err != nil {
		return nil, err
	}
	if len(live.chain.Continues) != len(l.before) {
		l.before = live.chain.Continues
		return nil, errLineage
	}
	for live.state.ContinuedBy != nil {
		id := *live.state.ContinuedBy
		// A chain that this batch has opened is not stored yet, so it need not be loaded.
		if known := b.live[id]; (known == nil || !known.fresh) && !slices.Contains(l.after, id) {
			l.after = append(slices.Clone(l.after), id)
			return nil, errLineage
		}
		next, err := b.chainOf(live.chain.Org, id)
		if errors.Is(err, fault.ErrNotFound) {
			return nil, fmt.Errorf("the successor of a chain is missing: %w", ledger.ErrStateTampered)
		}
		if err != nil {
			return nil, err
		}
		if from := next.chain.Predecessor(); from == nil || *from != live.chain.ID {
			return nil, fmt.Errorf("the successor of a chain continues another: %w", ledger.ErrStateTampered)
		}
		live = next
	}
	return live, nil
}

// member returns a chain of the lineage: the newest one or one that it continues.
func (l *lineage) member(b *batch, newest *liveChain, id ledger.ChainID) (*liveChain, error) {
	if b.live[id] == nil && b.loaded.Chains[id] == nil && !slices.Contains(l.extra, id) {
		l.extra = append(l.extra, id)
		return nil, errLineage
	}
	live, err := b.chainOf(newest.chain.Org, id)
	if errors.Is(err, fault.ErrNotFound) {
		return nil, fmt.Errorf("a chain that another continues is missing: %w", ledger.ErrStateTampered)
	}
	return live, err
}

// continuedBy returns the newest chain for a client that named an earlier one, and nil for
// one that named the newest.
func (l *lineage) continuedBy(newest *liveChain) *ledger.ChainID {
	if newest.chain.ID == l.requested {
		return nil
	}
	id := newest.chain.ID
	return &id
}

// openSuccessor opens the successor of an abandoned chain. The transaction holds the abandoned
// chain's lock and sets its successor, so there is exactly one.
func (b *batch) openSuccessor(live *liveChain, policy *ledger.Policy) (*liveChain, error) {
	chain, state, err := live.state.Succeed(live.chain, ledger.ChainID{UUID: b.service.timedID(b.now)}, policy.Version, b.now)
	if err != nil {
		return nil, err
	}
	live.changed = true
	next := &liveChain{record: newChainRecord(chain), chain: chain, state: state, summary: &ledger.Summary{}, epoch: b.loaded.Epoch, fresh: true}
	b.live[chain.ID] = next
	b.order = append(b.order, next)
	b.postChain(chain)
	return next, nil
}

// lineageCacheBytes bounds the cache of lineages.
const lineageCacheBytes = 1 << 20

// lineage returns the known lineage of a chain.
func (s *chainService) lineage(chain ledger.ChainID) *lineage {
	if known, ok := s.lineages.Get(chain); ok {
		return &lineage{requested: chain, before: known.before, after: known.after}
	}
	return &lineage{requested: chain}
}

// retryLineage retries an operation until it has named all chains of its lineage. It ends,
// because each attempt that fails with errLineage has found at least one more.
func (s *chainService) retryLineage(line *lineage, attempt func() error) error {
	err := attempt()
	if !errors.Is(err, errLineage) {
		return err
	}
	for errors.Is(err, errLineage) {
		err = attempt()
	}
	if err == nil {
		s.lineages.Put(line.requested, lineage{before: line.before, after: line.after}, 100+16*(len(line.before)+len(line.after)))
	}
	return err
}

// newestOf reads the newest successor of a chain, or the chain itself.
func (s *chainService) newestOf(ctx context.Context, caller *Caller, id ledger.ChainID) (*ChainView, error) {
	view, err := s.ownChain(ctx, caller, id)
	for err == nil && view.State.ContinuedBy != nil {
		from := view.Chain.ID
		if view, err = s.ownChain(ctx, caller, *view.State.ContinuedBy); err != nil {
			return nil, missingIsTampering(err, "the successor of a chain")
		}
		if before := view.Chain.Predecessor(); before == nil || *before != from {
			return nil, visible(fmt.Errorf("the successor of a chain continues another: %w", ledger.ErrStateTampered))
		}
	}
	return view, err
}
