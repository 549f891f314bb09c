package service

import (
	"context"
	"errors"
	"fmt"

	"countersign/internal/canon"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// ChainView is a chain as it stands.
type ChainView struct {
	*ledger.Chain
	State *ledger.ChainState
	Terms *Terms // nil where the organization was not read with it
	// BindingKey is for the chain's opener alone, in answer to the opening; nil
	// elsewhere.
	BindingKey []byte
	// Tampered says that the stored record or its state fails. Then the chain's id is all
	// that is told, and there is no state. Only lists have such views.
	Tampered bool
	// Organization is the slug of the chain's owner.
	Organization string
	// Limits are those in force for the chain; nil for one that is sealed.
	Limits *ledger.EffectiveLimits
}

// under fills in whose the chain is, and the limits that the settings leave it.
func (v *ChainView) under(org *ledger.Organization) *ChainView {
	v.Organization = org.Slug
	if !v.Tampered && !v.State.Status.Sealed() {
		v.Limits = org.Settings.Effective(&v.Chain.Limits)
	}
	return v
}

// Terms are what an answer to an agent says of its organization.
type Terms struct {
	// Act is the number of the act that had last changed the organization. A client
	// that has seen a greater one holds a newer answer.
	Act int64
	// Lease lets the client decide obviously safe actions; nil where it must ask.
	Lease *ledger.Lease
}

// terms grants what the organization, as this transaction has read it, lets a
// client of the chain do by itself. A key that is bound to agents gets no lease: a lease
// does not say for whom it is good, and what the key may not record must not begin. The
// caller must have been confirmed.
func (b *batch) terms(caller *Caller, org *ledger.Organization, policy *ledger.Policy, chain *ledger.Chain, state *ledger.ChainState) Terms {
	if len(b.loaded.Keys[caller.Key].Agents) > 0 {
		return Terms{Act: org.Controls.Act}
	}
	lease := state.Grant(&ledger.Recording{
		Keys: b.service.keys, Policy: policy, Org: org, Chain: chain, Now: b.now, Random: b.service.timedRandom(),
	})
	if lease != nil {
		b.service.granted(org.ID)
	}
	return Terms{Act: org.Controls.Act, Lease: lease}
}

// OpenChain opens a chain as the request describes it. Under an idempotency key
// the same request opens one chain however often it is sent.
func (s *Service) OpenChain(ctx context.Context, caller *Caller, request *ledger.Chain, idempotencyKey string) (*ChainView, error) {
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
	view, err := s.newer(ctx, op.view, op.earlier)
	return view, visible(err)
}

type openChain struct {
	caller         *Caller
	chain          ledger.Chain
	idempotencyKey string
	view           *ChainView
	earlier        []byte // authenticator of the chain that was opened before; nil where none was
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
	if o.idempotencyKey != "" {
		b.loaded.Opens[o.ref()] = record
	}
	terms := b.terms(o.caller, org, policy, &chain, state)
	o.view = (&ChainView{Chain: &chain, State: state, Terms: &terms, BindingKey: b.service.bindingKey(&chain)}).under(org)
	return nil
}

// newChainRecord is the record of a chain about to be stored, without its state.
func newChainRecord(chain *ledger.Chain) *store.ChainRecord {
	return &store.ChainRecord{
		ID: chain.ID, Org: chain.Org, OpenedBy: chain.OpenedBy, ExternalID: chain.ExternalID,
		Environment: chain.Environment, IdempotencyKey: chain.IdempotencyKey, Body: chain.Encode(),
	}
}

// repeat answers a chain that was opened before. It grants no lease: the chain is not
// locked here, and may just be pausing.
func (o *openChain) repeat(b *batch, org *ledger.Organization, earlier *store.ChainRecord) error {
	view, err := b.service.view(earlier)
	if err != nil {
		return err
	}
	if view.OpenedBy != o.caller.Key || !view.SameRequest(&o.chain) {
		return ledger.Errorf(ledger.CodeIdempotencyConflict, "this Idempotency-Key opened another chain already: use a new key for a new chain")
	}
	view.Terms, view.BindingKey = &Terms{Act: org.Controls.Act}, b.service.bindingKey(view.Chain)
	o.view, o.earlier = view.under(org), earlier.MAC
	b.service.chainPolls.note(view.Chain, view.State.LastAt, b.now)
	return nil
}

func (s *Service) bindingKey(chain *ledger.Chain) []byte {
	key, ok := chain.BindingKey(s.keys)
	if !ok {
		return nil
	}
	return key[:]
}

// view decodes and authenticates a stored chain.
func (s *Service) view(record *store.ChainRecord) (*ChainView, error) {
	chain, err := s.chains.decode(record)
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
	s.chains.keep(chain, record.Body)
	return &ChainView{Chain: chain, State: state}, nil
}

// Chain finds one chain.
func (s *Service) Chain(ctx context.Context, caller *Caller, id ledger.ChainID) (*ChainView, error) {
	if err := s.authorize(ctx, caller, ledger.RoleAgent); err != nil {
		return nil, err
	}
	// The organization first: an act that comes between is told by the next answer.
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
	return view.under(org), nil
}

func (s *Service) ownChain(ctx context.Context, caller *Caller, id ledger.ChainID) (*ChainView, error) {
	view, err := s.readChain(ctx, caller.Org, id)
	if err != nil {
		return nil, visible(err)
	}
	if !caller.owns(view.Chain) {
		return nil, ledger.ErrNotFound
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

// Chains lists chains, newest first. One that is not as the service wrote it is marked.
func (s *Service) Chains(ctx context.Context, caller *Caller, filter ChainFilter) ([]*ChainView, error) {
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
		view, err := s.view(record)
		if err == nil {
			view, err = s.newer(ctx, view, record.MAC)
		}
		if errors.Is(err, ledger.ErrStateTampered) {
			s.log.Error(tamperedLog, "of", "a chain")
			view, err = &ChainView{Chain: &ledger.Chain{ID: record.ID}, Tampered: true}, nil
		}
		if err != nil {
			return nil, visible(err)
		}
		views = append(views, view.under(org))
	}
	return views, nil
}

// ResumeChain lifts an auto-pause and grants the same limits again.
func (s *Service) ResumeChain(ctx context.Context, caller *Caller, id ledger.ChainID) (*ChainView, error) {
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
			return nil, visible(err)
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
	return view.under(org), nil
}

type resumeChain struct {
	caller *Caller
	chain  ledger.ChainID
	last   *ledger.RecordedEvent // the chain's newest when it was read
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
	b.enter(addendum)
	return b.act(o.caller.actor(), org, &deed{action: ledger.ActChainResume, target: o.chain.String(), detail: details(func(w *canon.ObjectWriter) {
		w.StringOrNull("chain_name", live.chain.Name)
		moved(w, "status", string(from), string(live.state.Status))
	})})
}
