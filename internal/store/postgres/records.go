package postgres

import (
	"encoding/json"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// The columns of each record, in the order in which they are read.
const (
	fixedColumns        = `c.id, c.org_id, c.opened_by, c.external_id, c.environment, coalesce(c.idempotency_key, ''), c.body`
	movingColumns       = `coalesce(s.status, ''), s.state, s.mac`
	chainColumns        = fixedColumns + `, ` + movingColumns
	eventColumns        = `e.chain_id, e.sequence, coalesce(e.idempotency_key, ''), e.body, e.payload, e.redactions, e.mac`
	addendumColumns     = `a.chain_id, a.position, a.sequence, a.body`
	receiptColumns      = `id, org_id, sequence, chain_id, previous_hash, body`
	headColumns         = `org_id, count, last_hash, key_id, mac`
	organizationColumns = `id, slug, name, settings, controls, created_at`
	keyColumns          = `id, org_id, name, role, hash, hint, created_at, revoked_at, agents, owner, expires_at, expiry_logged, last_used_at,
		previous_hash, previous_expires_at, mac, act, sign_in_as, slack_member`
	rotationColumns = `org_id, key_id, overlap, rotated_at, idempotency_key, mac`
	approvalColumns = `id, org_id, chain_id, sequence, opened_by, requested_at, status, body, mac`
	policyColumns   = `org_id, number, version, format, document, created_at, created_by, mac, act`
	webhookColumns  = `id, org_id, url, events, description, secret, created_at, disabled_at, deleted_at, mac, act`
	actColumns      = `org_id, sequence, body`
	logColumns      = `org_id, count, last_hash, controls, mac`
)

// rawID is a UUID that the driver sends in binary form. It would send a uuid.UUID as text.
type rawID = [16]byte

func bytesOf(id uuid.UUID) rawID  { return rawID(id) }
func target(id *uuid.UUID) *rawID { return (*rawID)(id) }

func orgUUID(id ledger.OrgID) uuid.UUID           { return id.UUID }
func chainUUID(id ledger.ChainID) uuid.UUID       { return id.UUID }
func approvalUUID(id ledger.ApprovalID) uuid.UUID { return id.UUID }

// readFixed reads the immutable part of a chain.
func readFixed(r *row) *store.ChainRecord {
	return &store.ChainRecord{
		ID: ledger.ChainID{UUID: r.id()}, Org: ledger.OrgID{UUID: r.id()}, OpenedBy: ledger.KeyID{UUID: r.id()},
		ExternalID: r.text(), Environment: r.text(), IdempotencyKey: r.text(), Body: r.bytes(),
	}
}

func readChain(r *row) *store.ChainRecord {
	c := readFixed(r)
	c.Status, c.State, c.MAC = ledger.ChainStatus(r.text()), r.bytes(), r.bytes()
	return c
}

func readEvent(r *row) *ledger.StoredEvent {
	return &ledger.StoredEvent{
		Chain: ledger.ChainID{UUID: r.id()}, Sequence: r.int(), IdempotencyKey: r.text(), Body: r.bytes(), Payload: r.bytes(), Redactions: r.bytes(), MAC: r.bytes(),
	}
}

func readAddendum(r *row) *ledger.Addendum {
	return &ledger.Addendum{Chain: ledger.ChainID{UUID: r.id()}, Position: r.int(), Sequence: r.int(), Body: r.bytes()}
}

func readReceipt(r *row) *ledger.StoredReceipt {
	return &ledger.StoredReceipt{
		ID: ledger.ReceiptID{UUID: r.id()}, Org: ledger.OrgID{UUID: r.id()}, Sequence: r.int(), Chain: ledger.ChainID{UUID: r.id()},
		PreviousHash: r.bytes(), Body: r.bytes(),
	}
}

func readHead(r *row) *ledger.Head {
	return &ledger.Head{Org: ledger.OrgID{UUID: r.id()}, Count: r.int(), Last: r.hashOrNil(), KeyID: r.text(), MAC: r.bytes()}
}

func readOrganization(r *row) *ledger.Organization {
	o := &ledger.Organization{ID: ledger.OrgID{UUID: r.id()}, Slug: r.text(), Name: r.text()}
	o.DecodeStored(r.borrow(), r.borrow())
	o.CreatedAt = r.time()
	return o
}

func readKey(r *row) *ledger.KeyRecord {
	k := &ledger.KeyRecord{
		ID: ledger.KeyID{UUID: r.id()}, Org: ledger.OrgID{UUID: r.id()}, Name: r.text(), Role: ledger.Role(r.text()),
		Hash: r.hash(), Hint: r.text(), CreatedAt: r.time(), RevokedAt: r.timeOrNil(),
	}
	var err error
	k.Agents, err = ledger.DecodeAgents(r.borrow())
	k.Owner, k.ExpiresAt, k.ExpiryLogged, k.LastUsedAt = r.text(), r.timeOrNil(), r.bool(), r.timeOrNil()
	hash, expires := r.hashOrNil(), r.timeOrNil()
	if hash != nil && expires != nil {
		k.Previous = &ledger.PreviousSecret{Hash: *hash, ExpiresAt: *expires}
	}
	k.MAC, k.Act, k.SignInAs, k.SlackMember = r.bytes(), r.int(), r.text(), r.text()
	if err != nil || (hash == nil) != (expires == nil) {
		// The service did not write this row. It must not keep the others from being read. Without
		// an authenticator it is refused later.
		k.Agents, k.MAC = nil, nil
	}
	return k
}

func readRotation(r *row) *store.RotationRecord {
	return &store.RotationRecord{
		Org: ledger.OrgID{UUID: r.id()}, Key: ledger.KeyID{UUID: r.id()}, Overlap: r.duration(), RotatedAt: r.time(), IdempotencyKey: r.text(), MAC: r.bytes(),
	}
}

func readApproval(r *row) *store.ApprovalRecord {
	return &store.ApprovalRecord{
		ID: ledger.ApprovalID{UUID: r.id()}, Org: ledger.OrgID{UUID: r.id()}, Chain: ledger.ChainID{UUID: r.id()}, Sequence: r.int(),
		OpenedBy: ledger.KeyID{UUID: r.id()}, RequestedAt: r.time(), Status: ledger.ApprovalStatus(r.text()), Body: r.bytes(), MAC: r.bytes(),
	}
}

func readPolicy(r *row) *store.PolicyRecord {
	return &store.PolicyRecord{
		Org: ledger.OrgID{UUID: r.id()}, Number: r.int(), Version: r.text(), Format: r.text(), Document: r.bytes(),
		CreatedAt: r.time(), CreatedBy: r.text(), MAC: r.bytes(), Act: r.int(),
	}
}

func readWebhook(r *row) *store.WebhookRecord {
	w := &store.WebhookRecord{ID: ledger.WebhookID{UUID: r.id()}, Org: ledger.OrgID{UUID: r.id()}, URL: r.text()}
	events := json.Unmarshal(r.borrow(), &w.Events)
	w.Description, w.Secret = r.text(), r.bytes()
	w.CreatedAt, w.DisabledAt, w.DeletedAt, w.MAC, w.Act = r.time(), r.timeOrNil(), r.timeOrNil(), r.bytes(), r.int()
	if events != nil {
		// The service did not write this row. It must not keep the others from being read. Without
		// an authenticator it is refused later.
		w.Events, w.MAC = nil, nil
	}
	return w
}

func readAct(r *row) *ledger.StoredAct {
	return &ledger.StoredAct{Org: ledger.OrgID{UUID: r.id()}, Sequence: r.int(), Body: r.bytes()}
}

func readLog(r *row) *ledger.ActLog {
	return &ledger.ActLog{Org: ledger.OrgID{UUID: r.id()}, Count: r.int(), Last: r.hashOrNil(), Controls: r.hash(), MAC: r.bytes()}
}
