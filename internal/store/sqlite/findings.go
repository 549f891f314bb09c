package sqlite

import (
	"context"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

const (
	findingColumns = "org_id, name, failed_check, kind, subject, evidence, found_at, seen_at, acknowledged_at, acknowledged_by, reason, mac"
	selectFindings = "SELECT " + findingColumns + " FROM findings "
)

// scanFinding takes any row that the columns can hold: one that could not be read would
// hide all the others.
func scanFinding(rows row) (*store.FindingRecord, error) {
	var org []byte
	var acknowledged *int64
	f := new(store.FindingRecord)
	err := rows.Scan(&org, &f.Name, &f.Check, &f.Kind, &f.Subject, &f.Evidence, (*int64)(&f.FoundAt), (*int64)(&f.SeenAt), &acknowledged,
		&f.AcknowledgedBy, &f.Reason, &f.MAC)
	if err != nil {
		return nil, err
	}
	f.AcknowledgedAt = (*ledger.Time)(acknowledged)
	if len(org) != len(f.Org.UUID) {
		f.MAC = nil // it cannot be as it was written
	}
	copy(f.Org.UUID[:], org)
	return f, nil
}

// Finding implements store.Findings.
func (s *Store) Finding(ctx context.Context, ref store.FindingRef) (*store.FindingRecord, error) {
	return readOne(ctx, s, selectFindings+"WHERE org_id = ? AND name = ?", []any{ref.Org.UUID[:], ref.Name}, scanFinding)
}

// Findings implements store.Findings.
func (s *Store) Findings(ctx context.Context, after store.FindingRef, limit int) ([]*store.FindingRecord, error) {
	return readAll(ctx, s, selectFindings+"WHERE (org_id, name) > (?, ?) ORDER BY org_id, name LIMIT ?",
		[]any{after.Org.UUID[:], after.Name, int64(limit)}, scanFinding)
}

func (tx *transaction) loadFindings(needs *store.Needs, loaded *store.Loaded) error {
	for _, ref := range needs.Findings {
		err := tx.query(selectFindings+"WHERE org_id = ? AND name = ?", []any{ref.Org.UUID[:], ref.Name}, func(rows row) error {
			finding, err := scanFinding(rows)
			loaded.Findings[ref] = finding
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (tx *transaction) putFinding(f *store.FindingRecord) error {
	return tx.exec("INSERT OR REPLACE INTO findings ("+findingColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		f.Org.UUID[:], f.Name, f.Check, f.Kind, f.Subject, blob(f.Evidence), int64(f.FoundAt), int64(f.SeenAt), momentOrNull(f.AcknowledgedAt),
		f.AcknowledgedBy, f.Reason, blob(f.MAC))
}
