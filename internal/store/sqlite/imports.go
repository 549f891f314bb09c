package sqlite

import (
	"context"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

const (
	importedColumns = "id, org_id, import_id, key_id, record, signature, imported_at, act, mac"
	selectImported  = "SELECT " + importedColumns + " FROM imported_approvals "
)

func scanImported(rows row) (*store.ImportedApproval, error) {
	a := new(store.ImportedApproval)
	err := rows.Scan(&a.ID.UUID, &a.Org.UUID, &a.Import, &a.Key.UUID, &a.Record, &a.Signature, (*int64)(&a.ImportedAt), &a.Act, &a.MAC)
	return a, err
}

// ImportedApproval implements store.Imports.
func (s *Store) ImportedApproval(ctx context.Context, id ledger.ApprovalID) (*store.ImportedApproval, error) {
	return readOne(ctx, s, selectImported+"WHERE id = ?", []any{id.UUID[:]}, scanImported)
}

// ImportedApprovals implements store.Imports.
func (s *Store) ImportedApprovals(ctx context.Context, org ledger.OrgID, after ledger.ApprovalID, limit int) ([]*store.ImportedApproval, error) {
	return readAll(ctx, s, selectImported+"WHERE org_id = ? AND id > ? ORDER BY id LIMIT ?", []any{org.UUID[:], after.UUID[:], int64(limit)}, scanImported)
}

func (tx *transaction) loadImported(needs *store.Needs, loaded *store.Loaded) error {
	for _, id := range needs.Imported {
		err := tx.query(selectImported+"WHERE id = ?", []any{id.UUID[:]}, func(rows row) error {
			imported, err := scanImported(rows)
			loaded.Imported[id] = imported
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (tx *transaction) insertImported(a *store.ImportedApproval) error {
	return tx.exec("INSERT INTO imported_approvals ("+importedColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
		a.ID.UUID[:], a.Org.UUID[:], a.Import[:], a.Key.UUID[:], blob(a.Record), blob(a.Signature), int64(a.ImportedAt), a.Act, blob(a.MAC))
}
