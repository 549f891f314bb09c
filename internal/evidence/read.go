package evidence

import (
	"context"
	"fmt"
	"math"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// ReadApproval authenticates a stored approval.
func (s *Store) ReadApproval(record *store.ApprovalRecord) (*ledger.Approval, error) {
	approval, err := ledger.DecodeApproval(record.Body, record.MAC, s.keys, record.Org)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ledger.ErrStateTampered, err)
	}
	if approval.ID != record.ID || approval.Chain != record.Chain || approval.Sequence != record.Sequence || approval.OpenedBy != record.OpenedBy ||
		approval.RequestedAt != record.RequestedAt || approval.Status != record.Status {
		return nil, fmt.Errorf("columns of an approval: %w", ledger.ErrStateTampered)
	}
	return approval, nil
}

// ReadEvent decodes an event's facts. It refuses an event that is not what the service recorded or
// that was moved.
func (s *Store) ReadEvent(org ledger.OrgID, stored *ledger.StoredEvent) (*ledger.RecordedEvent, error) {
	if !stored.Authentic(s.keys, org) {
		return nil, fmt.Errorf("an event fails its authenticator: %w", ledger.ErrStateTampered)
	}
	event, err := ledger.DecodeEvent(stored.Body)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ledger.ErrStateTampered, err)
	}
	if event.Chain != stored.Chain || event.Sequence != stored.Sequence || event.Action.IdempotencyKey != stored.IdempotencyKey {
		return nil, fmt.Errorf("an event was stored in another event's place: %w", ledger.ErrStateTampered)
	}
	return event, nil
}

// ReadCounter authenticates a stored budget counter. It also refuses a counter that was moved.
func (s *Store) ReadCounter(record *store.CounterRecord) (*ledger.BudgetCounter, error) {
	counter, err := ledger.DecodeBudgetCounter(record.Body, record.MAC, s.keys, record.Org)
	if err != nil {
		return nil, fmt.Errorf("%w: a budget counter: %w", ledger.ErrStateTampered, err)
	}
	if counter.ID() != record.ID || counter.Budget != record.Budget || counter.Start != record.Start || counter.Value != record.Value {
		return nil, fmt.Errorf("columns of a budget counter: %w", ledger.ErrStateTampered)
	}
	return counter, nil
}

// rowPage is how many events are held in memory when a whole chain is read. It is small because
// each event may be as large as a request.
const rowPage = 32

// EachPage visits a chain's events after a sequence, in order, one page at a time. The events are
// not authenticated: pass them to ReadEvent.
func (s *Store) EachPage(ctx context.Context, chain ledger.ChainID, after int64, visit func([]*ledger.StoredEvent) error) error {
	events, err := s.Events(ctx, chain, after, rowPage)
	if err != nil {
		return err
	}
	return s.eachPage(ctx, chain, events, visit)
}

// eachPage visits a page of a chain's events and the pages after it.
func (s *Store) eachPage(ctx context.Context, chain ledger.ChainID, events []*ledger.StoredEvent, visit func([]*ledger.StoredEvent) error) error {
	for {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("read events: %w", err)
		}
		if err := visit(events); err != nil || len(events) < rowPage {
			return err
		}
		var err error
		if events, err = s.Events(ctx, chain, events[len(events)-1].Sequence, rowPage); err != nil {
			return err
		}
	}
}

// ChainRows is a chain with everything stored about it, of which the first page was read.
type ChainRows struct {
	Chain *store.ChainRecord
	first *store.ChainRows
	store *Store
	org   ledger.OrgID
}

// ReadChain reads a chain with the first page of everything stored about it, which is all of it for
// most chains. Nothing is authenticated.
func (s *Store) ReadChain(ctx context.Context, org ledger.OrgID, chain ledger.ChainID) (*ChainRows, error) {
	first, err := s.port.ChainRows(ctx, org, chain, rowPage)
	if err != nil {
		return nil, err
	}
	return &ChainRows{Chain: first.Chain, first: first, store: s, org: org}, nil
}

// Addenda returns all addenda by position.
func (r *ChainRows) Addenda(ctx context.Context) ([]*ledger.Addendum, error) {
	if len(r.first.Addenda) < rowPage {
		return r.first.Addenda, nil
	}
	return r.store.Addenda(ctx, r.Chain.ID, math.MinInt64, math.MaxInt64)
}

// EachPage visits all events, like Store.EachPage.
func (r *ChainRows) EachPage(ctx context.Context, visit func([]*ledger.StoredEvent) error) error {
	return r.store.eachPage(ctx, r.Chain.ID, r.first.Events, visit)
}

// Approvals returns all approvals of the chain, the newest first.
func (r *ChainRows) Approvals(ctx context.Context) ([]*store.ApprovalRecord, error) {
	if len(r.first.Approvals) < rowPage {
		return r.first.Approvals, nil
	}
	return r.store.Approvals(ctx, store.ApprovalQuery{Org: r.org, Chain: &r.Chain.ID, Limit: math.MaxInt32})
}

// AllKeys lists an organization's API keys, including tampered ones.
func (s *Store) AllKeys(ctx context.Context, org ledger.OrgID) ([]*ledger.KeyRecord, error) {
	const page = 200
	var all []*ledger.KeyRecord
	var after ledger.KeyID
	for {
		keys, err := s.Keys(ctx, org, after, page)
		if err != nil {
			return nil, err
		}
		all = append(all, keys...)
		if len(keys) < page {
			return all, nil
		}
		after = keys[len(keys)-1].ID
	}
}
