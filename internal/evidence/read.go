package evidence

import (
	"context"
	"fmt"

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

// eventPage is how many events are held in memory when a whole chain is read. It is small because
// each event may be as large as a request.
const eventPage = 32

// EachPage visits a chain's events after a sequence, in order, one page at a time. The events are
// not authenticated: pass them to ReadEvent.
func (s *Store) EachPage(ctx context.Context, chain ledger.ChainID, after int64, visit func([]*ledger.StoredEvent) error) error {
	for {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("read events: %w", err)
		}
		events, err := s.Events(ctx, chain, after, eventPage)
		if err != nil {
			return err
		}
		if err := visit(events); err != nil || len(events) < eventPage {
			return err
		}
		after = events[len(events)-1].Sequence
	}
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
