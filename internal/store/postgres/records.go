package postgres

import (
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// The columns of each record, in the order in which they are scanned.
const (
	chainColumns = `c.id, c.org_id, c.opened_by, c.external_id, c.environment, coalesce(c.idempotency_key, ''), c.body,
		coalesce(s.status, ''), s.state, s.mac`
	eventColumns        = `e.chain_id, e.sequence, coalesce(e.idempotency_key, ''), e.body, e.payload`
	addendumColumns     = `a.chain_id, a.position, a.sequence, a.body`
	receiptColumns      = `id, org_id, sequence, chain_id, previous_hash, body`
	headColumns         = `org_id, count, last_hash, key_id, mac`
	organizationColumns = `id, slug, name, settings, created_at`
	keyColumns          = `id, org_id, name, role, hash, hint, created_at, revoked_at`
)

// The driver takes 16 bytes in binary form; a uuid.UUID it would send as text.
type rawID = [16]byte

func bytesOf(id uuid.UUID) rawID   { return rawID(id) }
func target(id *uuid.UUID) *rawID  { return (*rawID)(id) }
func nullable(text string) *string { return orNil(text, text != "") }
func orNil[T any](value T, some bool) *T {
	if !some {
		return nil
	}
	return &value
}

// collect gathers what scan makes of each row.
func collect[T any](what string, rows pgx.Rows, scan func(pgx.Rows) (T, error)) ([]T, error) {
	var records []T
	err := eachRow(what, rows, func(rows pgx.Rows) error {
		record, err := scan(rows)
		records = append(records, record)
		return err
	})
	if err != nil {
		return nil, err
	}
	return records, nil
}

func scanChain(row pgx.Rows) (*store.ChainRecord, error) {
	c := new(store.ChainRecord)
	err := row.Scan(target(&c.ID.UUID), target(&c.Org.UUID), target(&c.OpenedBy.UUID), &c.ExternalID, &c.Environment,
		&c.IdempotencyKey, &c.Body, (*string)(&c.Status), &c.State, &c.MAC)
	return c, explain("read chain", err)
}

func scanEvent(row pgx.Rows) (*ledger.StoredEvent, error) {
	e := new(ledger.StoredEvent)
	err := row.Scan(target(&e.Chain.UUID), &e.Sequence, &e.IdempotencyKey, &e.Body, &e.Payload)
	return e, explain("read event", err)
}

func scanAddendum(row pgx.Rows) (*ledger.Addendum, error) {
	a := new(ledger.Addendum)
	err := row.Scan(target(&a.Chain.UUID), &a.Position, &a.Sequence, &a.Body)
	return a, explain("read addendum", err)
}

func scanReceipt(row pgx.Rows) (*ledger.StoredReceipt, error) {
	r := new(ledger.StoredReceipt)
	err := row.Scan(target(&r.ID.UUID), target(&r.Org.UUID), &r.Sequence, target(&r.Chain.UUID), &r.PreviousHash, &r.Body)
	return r, explain("read receipt", err)
}

func scanHead(row pgx.Rows) (*ledger.Head, error) {
	h := new(ledger.Head)
	var last []byte
	err := row.Scan(target(&h.Org.UUID), &h.Count, &last, &h.KeyID, &h.MAC)
	if err == nil && last != nil {
		h.Last = (*[32]byte)(last)
	}
	return h, explain("read head", err)
}

func scanOrganization(row pgx.Rows) (*ledger.Organization, error) {
	o := new(ledger.Organization)
	var settings []byte
	err := row.Scan(target(&o.ID.UUID), &o.Slug, &o.Name, &settings, (*int64)(&o.CreatedAt))
	if err != nil {
		return nil, explain("read organization", err)
	}
	o.Settings, err = ledger.DecodeSettings(settings)
	return o, err
}

func scanKey(row pgx.Rows) (*ledger.KeyRecord, error) {
	k := new(ledger.KeyRecord)
	var hash []byte
	var revoked *int64
	err := row.Scan(target(&k.ID.UUID), target(&k.Org.UUID), &k.Name, (*string)(&k.Role), &hash, &k.Hint,
		(*int64)(&k.CreatedAt), &revoked)
	if err == nil {
		k.Hash, k.RevokedAt = [32]byte(hash), (*ledger.Time)(revoked)
	}
	return k, explain("read key", err)
}
