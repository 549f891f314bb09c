package sqlite

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"countersign/internal/store"
)

const ledgerColumns = "id, parent_id, created_at, mac"

// Ledger implements store.Identity.
func (s *Store) Ledger(ctx context.Context) (*store.LedgerRecord, error) {
	return readOne(ctx, s, "SELECT "+ledgerColumns+" FROM ledger_identity", nil, func(r row) (*store.LedgerRecord, error) {
		l := new(store.LedgerRecord)
		return l, r.Scan(&l.ID, &l.Parent, (*int64)(&l.CreatedAt), &l.MAC)
	})
}

// PutLedger implements store.Identity.
func (s *Store) PutLedger(ctx context.Context, l *store.LedgerRecord, replaces uuid.UUID) error {
	return s.writing(ctx, func(tx *transaction) error {
		if err := tx.exec("INSERT INTO ledger_identity (no, "+ledgerColumns+`) VALUES (1, ?, ?, ?, ?)
			ON CONFLICT (no) DO UPDATE SET id = excluded.id, parent_id = excluded.parent_id, created_at = excluded.created_at, mac = excluded.mac
			WHERE id = ?`, l.ID[:], l.Parent[:], int64(l.CreatedAt), orEmpty(l.MAC), replaces[:]); err != nil {
			return err
		}
		return tx.query("SELECT id FROM ledger_identity", nil, func(rows row) error {
			var kept uuid.UUID
			if err := rows.Scan(&kept); err != nil {
				return err
			}
			if kept != l.ID {
				return fmt.Errorf("ledger: %w", store.ErrExists)
			}
			return nil
		})
	})
}
