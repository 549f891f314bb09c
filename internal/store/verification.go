package store

import (
	"context"

	"github.com/google/uuid"

	"countersign/internal/ledger"
)

// Verification finds what verification by others needs: public tokens, the keys that
// sign approvals, anchors in time, and the results of full checks. Tokens and keys are
// changed only by Transact, together with an audit log entry.
type Verification interface {
	// ActiveToken finds a token by its hash that is neither revoked nor expired at now.
	// An unknown, malformed, revoked or expired token runs the same statement and returns
	// the same ErrNotFound, so that response times do not tell them apart. The result may
	// be shared and must not be changed.
	ActiveToken(ctx context.Context, hash [32]byte, now ledger.Time) (*ActiveToken, error)
	// Tokens lists an organization's tokens with an id smaller than before (nil: all),
	// newest first by id.
	Tokens(ctx context.Context, org ledger.OrgID, before *ledger.TokenID, limit int) ([]*TokenRecord, error)
	// TouchTokens stores when tokens were last used. A moment before the stored one is
	// ignored, and so is a token that does not exist.
	TouchTokens(ctx context.Context, used map[ledger.TokenID]ledger.Time) error

	// SigningKeys lists all signing keys of an organization, oldest first by id.
	SigningKeys(ctx context.Context, org ledger.OrgID) ([]*SigningKeyRecord, error)

	// Anchors lists the anchors of one subject by method.
	Anchors(ctx context.Context, org ledger.OrgID, subject AnchorSubject) ([]*AnchorRecord, error)
	// HeadAnchors finds, for each method, the anchored head with the smallest sequence
	// that is not below the given one.
	HeadAnchors(ctx context.Context, org ledger.OrgID, sequence int64) ([]*AnchorRecord, error)
	// PutAnchor stores an anchor, replacing one with the same subject and method.
	PutAnchor(ctx context.Context, anchor *AnchorRecord) error

	// FullCheck finds the result of the last full check of the chain behind a receipt.
	FullCheck(ctx context.Context, org ledger.OrgID, receipt ledger.ReceiptID) (*FullCheckRecord, error)
	// FullChecks lists an organization's results with a receipt id greater than after,
	// by receipt id. If after is zero, also one whose id is zero.
	FullChecks(ctx context.Context, org ledger.OrgID, after ledger.ReceiptID, limit int) ([]*FullCheckRecord, error)
	// PutFullCheck stores a result, replacing one of the same receipt, even a later one.
	PutFullCheck(ctx context.Context, check *FullCheckRecord) error
}

// TokenRecord is a stored public verification token. Only its hash is kept.
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
	Act              int64  // the number of the act that last changed it; 0 in a row from before this was kept
	MAC              []byte // authenticates all of it but LastUsedAt
	// Tampered is as in WebhookRecord; then only ID and Org are set.
	Tampered bool
}

// ActiveToken is a token with access to the receipt that it opens.
type ActiveToken struct {
	*TokenRecord
	// Receipt returns nil for an approval's token, and when the receipt does not exist. A
	// store may have read the receipt together with the token, or reads it now.
	Receipt func(context.Context) (*PlacedReceipt, error)
}

// TokenRef is the idempotency key of a request that issued a token.
type TokenRef struct {
	Org ledger.OrgID
	Key string
}

// SigningKeyRecord is a key that signs approvals, or that signed them before signing
// keys were registered.
type SigningKeyRecord struct {
	ID        ledger.SigningKeyID
	Org       ledger.OrgID
	Public    []byte // 32 bytes
	Private   []byte // encrypted: only the key ring opens it; nil for an imported key
	Status    string // "active", "retired", "revoked", "historical" or "confirmed"
	Name      string
	CreatedAt ledger.Time
	RetiredAt *ledger.Time
	RevokedAt *ledger.Time
	Act       int64  // the number of the act that last changed it; 0 in a row from before this was kept
	MAC       []byte // authenticates all of it, the encrypted private key included
	// Tampered is as in WebhookRecord; then only ID and Org are set.
	Tampered bool
}

// FullCheckRecord is the result of checking everything behind a receipt. It is kept
// for chains that are too large to check within a request.
type FullCheckRecord struct {
	Org       ledger.OrgID
	Receipt   ledger.ReceiptID
	Hash      [32]byte // of the receipt when it was checked
	Failed    string   // the check that failed, "" for none
	CheckedAt ledger.Time
	MAC       []byte // authenticates all of it

	// Tampered says that the stored row is not what the service wrote. A store leaves it
	// false.
	Tampered bool
}

// AnchorSubject is what is anchored: an approval's decision, or the head of an
// organization, which is its newest receipt at that time.
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
	Block     []byte // what checking the proof against block headers found; nil before that
	UpdatedAt ledger.Time
	MAC       []byte // authenticates all of it
	// Tampered is as in WebhookRecord; then only Org, Subject, Sequence and Method are
	// set.
	Tampered bool
}

// Findings keeps the findings of tampering. They are changed only by Transact, and
// never deleted.
type Findings interface {
	Finding(ctx context.Context, ref FindingRef) (*FindingRecord, error)
	// Findings lists those of every organization after the given one, by organization
	// and name. Findings of organizations that no longer exist are included.
	Findings(ctx context.Context, after FindingRef, limit int) ([]*FindingRecord, error)
}

// FindingRef identifies a finding.
type FindingRef struct {
	Org  ledger.OrgID // zero: it concerns no organization in particular
	Name string
}

// FindingRecord is a finding of tampering. It has no foreign keys: the records that it
// is about may be gone.
type FindingRecord struct {
	Org            ledger.OrgID
	Name           string // unique in its organization
	Check          string // that failed
	Kind           string // of the subject: "receipt", "approval" or "place"
	Subject        string // the receipt's or approval's id, or the place
	Evidence       []byte // digest of what was found
	FoundAt        ledger.Time
	SeenAt         ledger.Time  // the last time, to within a day
	AcknowledgedAt *ledger.Time // nil while it is open
	AcknowledgedBy string
	Reason         string // given with the acknowledgement
	MAC            []byte // authenticates all of it

	// Tampered says that the row fails its authenticator. A store leaves it false.
	Tampered bool
}

// Ref identifies the finding.
func (f *FindingRecord) Ref() FindingRef { return FindingRef{Org: f.Org, Name: f.Name} }

// Open reports whether nobody has acknowledged the finding.
func (f *FindingRecord) Open() bool { return f.Tampered || f.AcknowledgedAt == nil }

// Unsealed finds and completes rows that were written by versions without
// authenticators, or without the number of the act that last changed a row. API keys
// are not among them: they are changed through Transact.
type Unsealed interface {
	// UnsealedRows finds rows of an organization that have no authenticator, or name no
	// act where they should: up to limit of each table, in no order.
	UnsealedRows(ctx context.Context, org ledger.OrgID, limit int) (*Rows, error)
	// SealRows writes the authenticators and acts of such rows, and nothing else. Rows
	// that are gone, or have both by now, are skipped.
	SealRows(ctx context.Context, rows *Rows) error
}

// Rows are rows of the tables that have one authenticator per row.
type Rows struct {
	Webhooks    []*WebhookRecord
	Policies    []*PolicyRecord
	Tokens      []*TokenRecord
	SigningKeys []*SigningKeyRecord
	Anchors     []*AnchorRecord
	Jobs        []*Job // waiting ones; SealRows writes MAC and DueAt by their numbers
}

// Len counts the rows of all tables.
func (r *Rows) Len() int {
	return len(r.Webhooks) + len(r.Policies) + len(r.Tokens) + len(r.SigningKeys) + len(r.Anchors) + len(r.Jobs)
}
