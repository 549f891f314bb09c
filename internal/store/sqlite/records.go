package sqlite

import (
	"bytes"
	"math"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// idOf reads an id. Bytes of another length, which this program never wrote, become the
// zero id, which matches nothing.
func idOf(column []byte) (id uuid.UUID) {
	if len(column) == len(id) {
		copy(id[:], column)
	}
	return id
}

// hashOf reads a hash. Bytes of another length become the zero hash.
func hashOf(column []byte) (hash [32]byte) {
	if len(column) == len(hash) {
		copy(hash[:], column)
	}
	return hash
}

// lastOf reads the hash of the last record; no bytes mean that there is none. Bytes of
// another length become the zero hash, so that the row fails its authenticator.
func lastOf(column []byte) *[32]byte {
	if len(column) == 0 {
		return nil
	}
	hash := hashOf(column)
	return &hash
}

func bytesOf(last *[32]byte) []byte {
	if last == nil {
		return []byte{}
	}
	return last[:]
}

// lastBefore returns the greatest number below before, and the greatest of all for 0,
// which means a list from its end. The list includes it, so that no row can hide at the
// greatest number. A condition on the parameter would do as well, but SQLite would plan
// the statement again for each value.
func lastBefore(before int64) int64 {
	switch before {
	case 0:
		return math.MaxInt64
	case math.MinInt64:
		return before
	}
	return before - 1
}

func orNull(text string) any {
	if text == "" {
		return nil
	}
	return text
}

func orEmptyText(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}

// orEmpty is for columns that are never null: nil becomes empty.
func orEmpty(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

func momentOrNull(at *ledger.Time) any {
	if at == nil {
		return nil
	}
	return int64(*at)
}

const orgColumns = "id, slug, name, settings, created_at, controls"

// storedOrg is an organization with the stored forms of its settings and controls.
type storedOrg struct {
	*ledger.Organization
	settings, controls []byte
}

func scanStoredOrg(rows row) (o storedOrg, err error) {
	o.Organization = new(ledger.Organization)
	err = rows.Scan(&o.ID.UUID, &o.Slug, &o.Name, &o.settings, (*int64)(&o.CreatedAt), &o.controls)
	return o, err
}

func scanOrg(rows row) (*ledger.Organization, error) {
	o, err := scanStoredOrg(rows)
	if err != nil {
		return nil, err
	}
	o.DecodeStored(o.settings, o.controls)
	return o.Organization, nil
}

// scanKnownOrg is scanOrg, but decodes the row only if it differs from the last that was read. Otherwise
// it returns the same record, of which it is known whether it is authentic.
func (s *Store) scanKnownOrg(rows row) (*ledger.Organization, error) {
	o, err := scanStoredOrg(rows)
	if err != nil {
		return nil, err
	}
	known, ok := s.orgs.Get(o.ID)
	if ok && known.Slug == o.Slug && known.Name == o.Name && known.CreatedAt == o.CreatedAt &&
		bytes.Equal(known.settings, o.settings) && bytes.Equal(known.controls, o.controls) {
		return known.Organization, nil
	}
	o.DecodeStored(o.settings, o.controls)
	s.orgs.Put(o.ID, o, len(o.settings)+len(o.controls)+o.Size())
	return o.Organization, nil
}

const keyColumns = "id, org_id, name, role, hash, hint, created_at, revoked_at, agents, owner, expires_at, expiry_logged, last_used_at, " +
	"previous_hash, previous_expires_at, mac, act, sign_in_as, slack_member"

func scanKey(rows row) (*ledger.KeyRecord, error) {
	var revoked, expires, used, previousExpires *int64
	var agents string
	var logged int64
	var previous []byte
	var key ledger.KeyRecord
	err := rows.Scan(&key.ID.UUID, &key.Org.UUID, &key.Name, (*string)(&key.Role), &key.Hash, &key.Hint, (*int64)(&key.CreatedAt), &revoked,
		&agents, &key.Owner, &expires, &logged, &used, &previous, &previousExpires, &key.MAC, &key.Act, &key.SignInAs,
		&key.SlackMember)
	if err != nil {
		return nil, err
	}
	key.RevokedAt, key.ExpiresAt, key.LastUsedAt = (*ledger.Time)(revoked), (*ledger.Time)(expires), (*ledger.Time)(used)
	key.ExpiryLogged = logged != 0
	if previous != nil && previousExpires != nil {
		key.Previous = &ledger.PreviousSecret{Hash: hashOf(previous), ExpiresAt: ledger.Time(*previousExpires)}
	}
	key.Agents, err = ledger.DecodeAgents([]byte(agents))
	if err != nil || (previous == nil) != (previousExpires == nil) || logged != 0 && logged != 1 {
		// This program did not write it. It must not make other rows unreadable;
		// without an authenticator it is refused.
		key.Agents, key.MAC = nil, nil
	}
	return &key, nil
}

const rotationColumns = "org_id, idempotency_key, key_id, overlap, rotated_at, mac"

func scanRotation(rows row) (*store.RotationRecord, error) {
	r, overlap := new(store.RotationRecord), int64(0)
	err := rows.Scan(&r.Org.UUID, &r.IdempotencyKey, &r.Key.UUID, &overlap, (*int64)(&r.RotatedAt), &r.MAC)
	r.Overlap = ledger.Milliseconds(overlap)
	return r, err
}

const chainColumns = "c.no, c.id, c.org_id, c.opened_by, c.external_id, c.environment, c.idempotency_key, c.body, s.status, s.state, s.mac"

const chainTables = " FROM chains c JOIN chain_states s ON s.chain_no = c.no AND s.org_id = c.org_id "

func scanChain(rows row) (*store.ChainRecord, int64, error) {
	var no int64
	var external, key *string
	var c store.ChainRecord
	err := rows.Scan(&no, &c.ID.UUID, &c.Org.UUID, &c.OpenedBy.UUID, &external, &c.Environment, &key, &c.Body, (*string)(&c.Status), &c.State, &c.MAC)
	if err != nil {
		return nil, 0, err
	}
	c.ExternalID, c.IdempotencyKey = orEmptyText(external), orEmptyText(key)
	return &c, no, nil
}

func scanChainOnly(rows row) (*store.ChainRecord, error) {
	chain, _, err := scanChain(rows)
	return chain, err
}

const headColumns = "count, last_hash, key_id, mac"

func scanHead(rows row, org ledger.OrgID) (*ledger.Head, error) {
	head := &ledger.Head{Org: org}
	var last []byte
	err := rows.Scan(&head.Count, &last, &head.KeyID, &head.MAC)
	head.Last = lastOf(last)
	return head, err
}

const addendumColumns = "position, sequence, body"

func scanAddendum(rows row, chain ledger.ChainID) (*ledger.Addendum, error) {
	a := &ledger.Addendum{Chain: chain}
	return a, rows.Scan(&a.Position, &a.Sequence, &a.Body)
}

const eventColumns = "sequence, idempotency_key, body, payload, redactions, mac"

func scanEvent(rows row, chain ledger.ChainID) (*ledger.StoredEvent, error) {
	e := &ledger.StoredEvent{Chain: chain}
	var key *string
	err := rows.Scan(&e.Sequence, &key)
	if err == nil {
		err = rows.skip(2).scanTogether(&e.Body, &e.Payload, &e.Redactions, &e.MAC)
	}
	e.IdempotencyKey = orEmptyText(key)
	return e, err
}

const approvalColumns = "id, org_id, chain_id, sequence, opened_by, requested_at, status, body, mac"

func scanApproval(rows row) (*store.ApprovalRecord, error) {
	a := new(store.ApprovalRecord)
	return a, rows.Scan(&a.ID.UUID, &a.Org.UUID, &a.Chain.UUID, &a.Sequence, &a.OpenedBy.UUID, (*int64)(&a.RequestedAt), (*string)(&a.Status),
		&a.Body, &a.MAC)
}

const policyColumns = "org_id, number, version, format, document, created_at, created_by, mac, act"

func scanPolicy(rows row) (*store.PolicyRecord, error) {
	p := new(store.PolicyRecord)
	return p, rows.Scan(&p.Org.UUID, &p.Number, &p.Version, &p.Format, &p.Document, (*int64)(&p.CreatedAt), &p.CreatedBy, &p.MAC, &p.Act)
}

const logColumns = "count, last_hash, controls, mac"

func scanLog(rows row, org ledger.OrgID) (*ledger.ActLog, error) {
	log := &ledger.ActLog{Org: org}
	var last []byte
	err := rows.Scan(&log.Count, &last, &log.Controls, &log.MAC)
	log.Last = lastOf(last)
	return log, err
}
