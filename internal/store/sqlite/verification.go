package sqlite

import (
	"context"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

const tokenColumns = "id, org_id, hash, artifact, artifact_id, idempotency_key, created_at, expires_at, revoked_at, " +
	"revocation_reason, last_used_at, mac, act"

func scanToken(rows row) (*store.TokenRecord, error) {
	var key *string
	var expires, revoked, used *int64
	var t store.TokenRecord
	err := rows.Scan(&t.ID.UUID, &t.Org.UUID, &t.Hash, &t.Artifact, &t.ArtifactID, &key, (*int64)(&t.CreatedAt), &expires, &revoked,
		&t.RevocationReason, &used, &t.MAC, &t.Act)
	t.IdempotencyKey = orEmptyText(key)
	t.ExpiresAt, t.RevokedAt, t.LastUsedAt = (*ledger.Time)(expires), (*ledger.Time)(revoked), (*ledger.Time)(used)
	return &t, err
}

func (tx *transaction) loadTokens(needs *store.Needs, loaded *store.Loaded) error {
	return loadEach(tx, needs.Tokens, loaded.Tokens, "SELECT "+tokenColumns+" FROM tokens WHERE id = ?",
		func(id *ledger.TokenID) []any { return []any{id.UUID[:]} }, scanToken)
}

func (tx *transaction) loadIssued(needs *store.Needs, loaded *store.Loaded) error {
	return loadEach(tx, needs.Issued, loaded.Issued, "SELECT "+tokenColumns+" FROM tokens WHERE org_id = ? AND idempotency_key = ?",
		func(ref *store.TokenRef) []any { return []any{ref.Org.UUID[:], ref.Key} }, scanToken)
}

func (tx *transaction) insertToken(t *store.TokenRecord) error {
	return tx.exec("INSERT INTO tokens ("+tokenColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		t.ID.UUID[:], t.Org.UUID[:], t.Hash[:], t.Artifact, t.ArtifactID[:], orNull(t.IdempotencyKey), int64(t.CreatedAt),
		momentOrNull(t.ExpiresAt), momentOrNull(t.RevokedAt), t.RevocationReason, momentOrNull(t.LastUsedAt),
		orEmpty(t.MAC), t.Act)
}

func (tx *transaction) revokeToken(t *store.TokenRecord) error {
	return tx.change("UPDATE tokens SET revoked_at = ?, revocation_reason = ?, mac = ?, act = ? WHERE id = ? AND org_id = ?",
		momentOrNull(t.RevokedAt), t.RevocationReason, orEmpty(t.MAC), t.Act, t.ID.UUID[:], t.Org.UUID[:])
}

// Tokens implements store.Verification.
func (s *Store) Tokens(ctx context.Context, org ledger.OrgID, before *ledger.TokenID, limit int) ([]*store.TokenRecord, error) {
	query, args := "SELECT "+tokenColumns+" FROM tokens WHERE org_id = ?", []any{org.UUID[:]}
	if before != nil {
		query, args = query+" AND id < ?", append(args, before.UUID[:])
	}
	return readAll(ctx, s, query+" ORDER BY id DESC LIMIT ?", append(args, int64(limit)), scanToken)
}

// TouchTokens implements store.Verification.
func (s *Store) TouchTokens(ctx context.Context, used map[ledger.TokenID]ledger.Time) error {
	if len(used) == 0 {
		return nil
	}
	return s.writing(ctx, func(tx *transaction) error {
		for id, at := range used {
			err := tx.exec("UPDATE tokens SET last_used_at = ? WHERE id = ? AND (last_used_at IS NULL OR last_used_at < ?)",
				int64(at), id.UUID[:], int64(at))
			if err != nil {
				return err
			}
		}
		return nil
	})
}

const (
	signingKeyColumns = "id, org_id, public, private, status, name, created_at, retired_at, revoked_at, mac, act"
	signingKeysQuery  = "SELECT " + signingKeyColumns + " FROM signing_keys WHERE org_id = ? ORDER BY id"
)

func scanSigningKey(rows row) (*store.SigningKeyRecord, error) {
	var retired, revoked *int64
	var k store.SigningKeyRecord
	err := rows.Scan(&k.ID.UUID, &k.Org.UUID, &k.Public, &k.Private, &k.Status, &k.Name, (*int64)(&k.CreatedAt), &retired, &revoked, &k.MAC, &k.Act)
	k.RetiredAt, k.RevokedAt = (*ledger.Time)(retired), (*ledger.Time)(revoked)
	return &k, err
}

func (tx *transaction) loadSigningKeys(needs *store.Needs, loaded *store.Loaded) error {
	for _, org := range needs.SigningKeys {
		if loaded.SigningKeys[org] != nil {
			continue
		}
		err := tx.query(signingKeysQuery, []any{org.UUID[:]}, func(rows row) error {
			key, err := scanSigningKey(rows)
			loaded.SigningKeys[org] = append(loaded.SigningKeys[org], key)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (tx *transaction) putSigningKey(k *store.SigningKeyRecord) error {
	return tx.exec("INSERT OR REPLACE INTO signing_keys ("+signingKeyColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		k.ID.UUID[:], k.Org.UUID[:], k.Public, k.Private, k.Status, k.Name, int64(k.CreatedAt),
		momentOrNull(k.RetiredAt), momentOrNull(k.RevokedAt), orEmpty(k.MAC), k.Act)
}

// SigningKeys implements store.Verification.
func (s *Store) SigningKeys(ctx context.Context, org ledger.OrgID) ([]*store.SigningKeyRecord, error) {
	return readAll(ctx, s, signingKeysQuery, []any{org.UUID[:]}, scanSigningKey)
}

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

// headAnchorsQuery steps from method to method and finds one anchor of each, so that its
// cost does not grow with the number of anchors.
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

const fullCheckColumns = "org_id, receipt_id, receipt_hash, failed, checked_at, mac"

func scanFullCheck(r row) (*store.FullCheckRecord, error) {
	c := new(store.FullCheckRecord)
	return c, r.Scan(&c.Org.UUID, &c.Receipt.UUID, &c.Hash, &c.Failed, (*int64)(&c.CheckedAt), &c.MAC)
}

// FullCheck implements store.Verification.
func (s *Store) FullCheck(ctx context.Context, org ledger.OrgID, receipt ledger.ReceiptID) (*store.FullCheckRecord, error) {
	query := "SELECT " + fullCheckColumns + " FROM full_checks WHERE org_id = ? AND receipt_id = ?"
	return readOne(ctx, s, query, []any{org.UUID[:], receipt.UUID[:]}, scanFullCheck)
}

// FullChecks implements store.Verification.
func (s *Store) FullChecks(ctx context.Context, org ledger.OrgID, after ledger.ReceiptID, limit int) ([]*store.FullCheckRecord, error) {
	query := "SELECT " + fullCheckColumns + " FROM full_checks WHERE org_id = ? AND receipt_id " + above(after.UUID) + " ? ORDER BY receipt_id LIMIT ?"
	return readAll(ctx, s, query, []any{org.UUID[:], after.UUID[:], int64(limit)}, scanFullCheck)
}

// PutFullCheck implements store.Verification.
func (s *Store) PutFullCheck(ctx context.Context, c *store.FullCheckRecord) error {
	return s.writing(ctx, func(tx *transaction) error {
		return tx.exec("INSERT INTO full_checks ("+fullCheckColumns+`) VALUES (?, ?, ?, ?, ?, ?)
			ON CONFLICT (org_id, receipt_id) DO UPDATE SET receipt_hash = excluded.receipt_hash, failed = excluded.failed,
				checked_at = excluded.checked_at, mac = excluded.mac`,
			c.Org.UUID[:], c.Receipt.UUID[:], c.Hash[:], c.Failed, int64(c.CheckedAt), orEmpty(c.MAC))
	})
}

const (
	findingColumns = "org_id, name, failed_check, kind, subject, evidence, found_at, seen_at, acknowledged_at, acknowledged_by, reason, mac"
	selectFindings = "SELECT " + findingColumns + " FROM findings "
)

// scanFinding accepts every row that the columns can hold: a row that it refused would
// hide all others.
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
		f.MAC = nil // this program did not write it: it must fail its authenticator
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
	return loadEach(tx, needs.Findings, loaded.Findings, selectFindings+"WHERE org_id = ? AND name = ?",
		func(ref *store.FindingRef) []any { return []any{ref.Org.UUID[:], ref.Name} }, scanFinding)
}

func (tx *transaction) putFinding(f *store.FindingRecord) error {
	return tx.exec("INSERT OR REPLACE INTO findings ("+findingColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		f.Org.UUID[:], f.Name, f.Check, f.Kind, f.Subject, orEmpty(f.Evidence), int64(f.FoundAt), int64(f.SeenAt), momentOrNull(f.AcknowledgedAt),
		f.AcknowledgedBy, f.Reason, orEmpty(f.MAC))
}

// UnsealedRows implements store.Unsealed.
func (s *Store) UnsealedRows(ctx context.Context, org ledger.OrgID, limit int) (*store.Rows, error) {
	const (
		unsealed = " WHERE org_id = ? AND mac = x'' LIMIT ?"
		unnamed  = " WHERE org_id = ? AND (mac = x'' OR act = 0) LIMIT ?"
	)
	args := []any{org.UUID[:], int64(limit)}
	rows := new(store.Rows)
	for _, read := range [...]func() error{
		func() (err error) {
			rows.Webhooks, err = readAll(ctx, s, "SELECT "+webhookColumns+" FROM webhooks"+unnamed, args, scanWebhook)
			return err
		},
		func() (err error) {
			rows.Policies, err = readAll(ctx, s, "SELECT "+policyColumns+" FROM policies"+unnamed, args, scanPolicy)
			return err
		},
		func() (err error) {
			rows.Tokens, err = readAll(ctx, s, "SELECT "+tokenColumns+" FROM tokens"+unnamed, args, scanToken)
			return err
		},
		func() (err error) {
			rows.SigningKeys, err = readAll(ctx, s, "SELECT "+signingKeyColumns+" FROM signing_keys"+unnamed, args, scanSigningKey)
			return err
		},
		func() (err error) {
			rows.Anchors, err = readAll(ctx, s, "SELECT "+anchorColumns+" FROM anchors"+unsealed, args, scanAnchor)
			return err
		},
		func() (err error) {
			query := "SELECT " + jobColumns + " FROM jobs WHERE place <> 'buried' AND org_id = ? AND mac = x'' LIMIT ?"
			rows.Jobs, err = readAll(ctx, s, query, args, scanJob)
			return err
		},
	} {
		if err := read(); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// SealRows implements store.Unsealed.
func (s *Store) SealRows(ctx context.Context, rows *store.Rows) error {
	return s.writing(ctx, func(tx *transaction) error {
		for _, seal := range [...]func() error{
			func() error {
				return each(rows.Webhooks, func(w *store.WebhookRecord) error {
					return tx.exec("UPDATE webhooks SET mac = ?, act = ? WHERE id = ? AND (mac = x'' OR act = 0)", orEmpty(w.MAC), w.Act, w.ID.UUID[:])
				})
			},
			func() error {
				return each(rows.Policies, func(p *store.PolicyRecord) error {
					return tx.exec("UPDATE policies SET mac = ?, act = ? WHERE org_id = ? AND number = ? AND (mac = x'' OR act = 0)", orEmpty(p.MAC), p.Act, p.Org.UUID[:], p.Number)
				})
			},
			func() error {
				return each(rows.Tokens, func(t *store.TokenRecord) error {
					return tx.exec("UPDATE tokens SET mac = ?, act = ? WHERE id = ? AND (mac = x'' OR act = 0)", orEmpty(t.MAC), t.Act, t.ID.UUID[:])
				})
			},
			func() error {
				return each(rows.SigningKeys, func(k *store.SigningKeyRecord) error {
					return tx.exec("UPDATE signing_keys SET mac = ?, act = ? WHERE org_id = ? AND id = ? AND (mac = x'' OR act = 0)", orEmpty(k.MAC), k.Act, k.Org.UUID[:], k.ID.UUID[:])
				})
			},
			func() error {
				return each(rows.Anchors, func(a *store.AnchorRecord) error {
					return tx.exec("UPDATE anchors SET mac = ? WHERE org_id = ? AND kind = ? AND subject_id = ? AND method = ? AND mac = x''",
						orEmpty(a.MAC), a.Org.UUID[:], a.Subject.Kind, a.Subject.ID[:], a.Method)
				})
			},
			func() error {
				return each(rows.Jobs, func(j *store.Job) error {
					return tx.exec("UPDATE jobs SET mac = ?, due_at = ? WHERE no = ? AND mac = x''", orEmpty(j.MAC), int64(j.DueAt), j.No)
				})
			},
		} {
			if err := seal(); err != nil {
				return err
			}
		}
		return nil
	})
}
