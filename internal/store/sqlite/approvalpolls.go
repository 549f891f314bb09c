package sqlite

import (
	"context"

	"countersign/internal/ledger"
)

// PutPolls implements store.Governance.
func (s *Store) PutPolls(ctx context.Context, polls map[ledger.ApprovalID]ledger.Time) error {
	if len(polls) == 0 {
		return nil
	}
	return s.writing(ctx, func(tx *transaction) error {
		for id, at := range polls {
			err := tx.exec(`INSERT INTO approval_polls (approval_id, polled_at) VALUES (?, ?)
				ON CONFLICT (approval_id) DO UPDATE SET polled_at = excluded.polled_at WHERE polled_at < excluded.polled_at`,
				id.UUID[:], int64(at))
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// Polls implements store.Governance. Each is a lookup by key; a page has few.
func (s *Store) Polls(ctx context.Context, approvals []ledger.ApprovalID) (map[ledger.ApprovalID]ledger.Time, error) {
	polls := make(map[ledger.ApprovalID]ledger.Time)
	for _, id := range approvals {
		err := s.read(ctx, "SELECT polled_at FROM approval_polls WHERE approval_id = ?", []any{id.UUID[:]}, func(r row) error {
			var at int64
			err := r.Scan(&at)
			polls[id] = ledger.Time(at)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return polls, nil
}
