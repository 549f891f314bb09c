package store

import (
	"context"

	"github.com/google/uuid"

	"countersign/internal/ledger"
)

// Verification finds what proves things to others: public tokens, the keys that
// sign approvals, and anchors in time. Tokens and keys are changed by Transact
// alone, together with the entry in the audit log that says so.
type Verification interface {
	// ActiveToken finds a token by its hash that is neither revoked nor expired at
	// now. The four ways in which there is none (unknown, malformed, revoked,
	// expired) take one statement each, the same one, so that none can be told from
	// another by its time.
	// What it returns may be shared and must not be changed.
	ActiveToken(ctx context.Context, hash [32]byte, now ledger.Time) (*ActiveToken, error)
	// Tokens lists an organization's tokens, newest first by id.
	Tokens(ctx context.Context, org ledger.OrgID, before *ledger.TokenID, limit int) ([]*TokenRecord, error)
	// TouchTokens remembers when tokens were last used; a moment that is earlier
	// than the one remembered changes nothing. Tokens that are gone are left out.
	TouchTokens(ctx context.Context, used map[ledger.TokenID]ledger.Time) error

	// SigningKeys lists an organization's keys, oldest first by id.
	SigningKeys(ctx context.Context, org ledger.OrgID) ([]*SigningKeyRecord, error)

	// Anchors lists the anchors of one subject.
	Anchors(ctx context.Context, org ledger.OrgID, subject AnchorSubject) ([]*AnchorRecord, error)
	// HeadAnchors finds, for each method, the anchor of the smallest receipt at or
	// after sequence; a method without one is left out.
	HeadAnchors(ctx context.Context, org ledger.OrgID, sequence int64) ([]*AnchorRecord, error)
	// PutAnchor inserts an anchor, or replaces the one with the same subject and
	// method.
	PutAnchor(ctx context.Context, anchor *AnchorRecord) error

	// FullCheck finds the last full check of the chain behind a receipt.
	FullCheck(ctx context.Context, org ledger.OrgID, receipt ledger.ReceiptID) (*FullCheckRecord, error)
	// FullChecks lists an organization's by the id of the receipt, after the given one.
	FullChecks(ctx context.Context, org ledger.OrgID, after ledger.ReceiptID, limit int) ([]*FullCheckRecord, error)
	// PutFullCheck inserts a full check, or replaces the one of the same receipt, whatever
	// its moment.
	PutFullCheck(ctx context.Context, check *FullCheckRecord) error
}

// TokenRecord is a public verification token as it is kept: by its hash.
type TokenRecord struct {
	ID               ledger.TokenID
	Org              ledger.OrgID
	Hash             [32]byte
	Artifact         string    // "approval" or "receipt"
	ArtifactID       uuid.UUID // of the approval or the receipt
	IdempotencyKey   string    // of the issuing request, "" for none; unique in its organization
	CreatedAt        ledger.Time
	ExpiresAt        *ledger.Time // nil: never
	RevokedAt        *ledger.Time
	RevocationReason string
	LastUsedAt       *ledger.Time
	Act              int64  // the number of the act that changed it last; 0 in a row from before it was kept
	MAC              []byte // authenticates all of it but when it was last used
	// Tampered is as in WebhookRecord; then nothing but ID and Org is set.
	Tampered bool
}

// ActiveToken is a token with what it opens, both read at one moment.
type ActiveToken struct {
	*TokenRecord
	Receipt *PlacedReceipt // nil for an approval's token, and where there is no such receipt
}

// TokenRef is the idempotency key of a request that issued a token.
type TokenRef struct {
	Org ledger.OrgID
	Key string
}

// SigningKeyRecord is a key that signs approvals, or signed them before there was
// a registry.
type SigningKeyRecord struct {
	ID        ledger.SigningKeyID
	Org       ledger.OrgID
	Public    []byte // 32 bytes
	Private   []byte // sealed: only the key ring opens it; nil for an imported key
	Status    string // "active", "retired", "revoked", "historical" or "confirmed"
	Name      string
	CreatedAt ledger.Time
	RetiredAt *ledger.Time
	RevokedAt *ledger.Time
	Act       int64  // the number of the act that changed it last; 0 in a row from before it was kept
	MAC       []byte // authenticates all of it, the sealed private half included
	// Tampered is as in WebhookRecord; then nothing but ID and Org is set.
	Tampered bool
}

// FullCheckRecord is what a check of all that is behind a receipt came to. It is kept of
// chains that are too large to be checked while somebody waits.
type FullCheckRecord struct {
	Org       ledger.OrgID
	Receipt   ledger.ReceiptID
	Hash      [32]byte // of the receipt as it was then
	Failed    string   // the check that failed, "" for none
	CheckedAt ledger.Time
	MAC       []byte // authenticates all of it

	// Tampered says that the stored row is not as the service wrote it. A store never
	// sets it.
	Tampered bool
}

// AnchorSubject is what is anchored: an approval's decision, or the newest receipt
// of an organization at some moment.
type AnchorSubject struct {
	Kind string    // "approval" or "head"
	ID   uuid.UUID // of the approval, or of the receipt
}

// AnchorRecord is a subject's anchor by one method.
type AnchorRecord struct {
	Org       ledger.OrgID
	Subject   AnchorSubject
	Sequence  int64  // of a head's receipt, 0 for an approval
	Method    string // "tsa" or "opentimestamps"
	Digest    [32]byte
	Status    string // "pending", "verified" or "failed"
	Reason    string
	Proof     []byte // nil until there is one
	Block     []byte // of a proof that was held against block headers: what was found; nil for none
	UpdatedAt ledger.Time
	MAC       []byte // authenticates all of it
	// Tampered is as in WebhookRecord; then nothing but Org, Subject, Sequence and Method
	// is set: what the row was found by.
	Tampered bool
}
