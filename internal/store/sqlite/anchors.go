package sqlite

import (
	"context"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

const anchorColumns = "org_id, kind, subject_id, sequence, method, digest, status, reason, proof, block, updated_at, mac"

func scanAnchor(rows row) (*store.AnchorRecord, error) {
	a := new(store.AnchorRecord)
	return a, rows.Scan(&a.Org.UUID, &a.Subject.Kind, &a.Subject.ID, &a.Sequence, &a.Method, &a.Digest, &a.Status, &a.Reason, &a.Proof, &a.Block,
		(*int64)(&a.UpdatedAt), &a.MAC)
}

// Anchors implements store.Verification.
func (s *Store) Anchors(ctx context.Context, org ledger.OrgID, subject store.AnchorSubject) ([]*store.AnchorRecord, error) {
	query := "SELECT " + anchorColumns + " FROM anchors WHERE org_id = ? AND kind = ? AND subject_id = ? ORDER BY method"
	return readAll(ctx, s, query, []any{org.UUID[:], subject.Kind, subject.ID[:]}, scanAnchor)
}

// headAnchorsQuery goes from method to method and in each to the one anchor that
// is wanted, so that it costs the same however many an organization has.
const headAnchorsQuery = `WITH RECURSIVE methods (name) AS (
		SELECT min(method) FROM anchors WHERE org_id = ? AND kind = 'head'
		UNION ALL
		SELECT (SELECT min(method) FROM anchors WHERE org_id = ? AND kind = 'head' AND method > name) FROM methods WHERE name IS NOT NULL
	)
	SELECT ` + anchorColumns + ` FROM methods CROSS JOIN anchors ON no = (
		SELECT no FROM anchors WHERE org_id = ? AND kind = 'head' AND method = name AND sequence >= ? ORDER BY sequence LIMIT 1)`

// HeadAnchors implements store.Verification.
func (s *Store) HeadAnchors(ctx context.Context, org ledger.OrgID, sequence int64) ([]*store.AnchorRecord, error) {
	return readAll(ctx, s, headAnchorsQuery, []any{org.UUID[:], org.UUID[:], org.UUID[:], sequence}, scanAnchor)
}

// PutAnchor implements store.Verification.
func (s *Store) PutAnchor(ctx context.Context, a *store.AnchorRecord) error {
	return s.writing(ctx, func(tx *transaction) error { return tx.putAnchor(a) })
}

func (tx *transaction) putAnchor(a *store.AnchorRecord) error {
	return tx.exec("INSERT INTO anchors ("+anchorColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (org_id, kind, subject_id, method) DO UPDATE SET sequence = excluded.sequence, digest = excluded.digest,
			status = excluded.status, reason = excluded.reason, proof = excluded.proof, block = excluded.block,
			updated_at = excluded.updated_at, mac = excluded.mac`,
		a.Org.UUID[:], a.Subject.Kind, a.Subject.ID[:], a.Sequence, a.Method, a.Digest[:], a.Status, a.Reason, a.Proof, a.Block,
		int64(a.UpdatedAt), orEmpty(a.MAC))
}
