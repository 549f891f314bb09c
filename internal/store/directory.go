package store

import (
	"context"
	"time"

	"github.com/google/uuid"

	"countersign/internal/ledger"
)

// Directory finds organizations and API keys. They are changed only by Transact,
// together with an audit log entry; a key's last use is written separately.
type Directory interface {
	// CreateOrganization stores an organization with its head and its first records.
	// It returns ErrExists when the slug is taken.
	CreateOrganization(ctx context.Context, org *ledger.Organization, head *ledger.Head, with *Changes) error
	// Organization returns the same record until its row changes. It may be shared and must not be
	// changed.
	Organization(ctx context.Context, id ledger.OrgID) (*ledger.Organization, error)
	OrganizationBySlug(ctx context.Context, slug string) (*ledger.Organization, error)
	// Organizations lists all of them, by slug.
	Organizations(ctx context.Context) ([]*ledger.Organization, error)
	Key(ctx context.Context, id ledger.KeyID) (*ledger.KeyRecord, error)
	// KeyByHash finds a key by the hash of its current or its previous secret. An
	// unknown hash runs the same statement as a known one.
	KeyByHash(ctx context.Context, hash [32]byte) (*ledger.KeyRecord, error)
	// KeysBySignInAs lists the keys of all organizations with this identity for single sign-on that
	// are neither revoked nor expired, by id. An empty identity finds none.
	KeysBySignInAs(ctx context.Context, identity string, now ledger.Time, limit int) ([]*ledger.KeyRecord, error)
	// KeysBySlackMember lists the keys of an organization with this Slack member that are neither
	// revoked nor expired, by id. An empty member finds none.
	KeysBySlackMember(ctx context.Context, org ledger.OrgID, member string, now ledger.Time, limit int) ([]*ledger.KeyRecord, error)
	// Keys lists an organization's keys with an id greater than after, by id. If after is zero,
	// also one whose id is zero.
	Keys(ctx context.Context, org ledger.OrgID, after ledger.KeyID, limit int) ([]*ledger.KeyRecord, error)
	// TouchKeys stores when keys were last used. A moment before the stored one is
	// ignored, and so is a key that does not exist. It may run concurrently with
	// Transact, which never writes that moment.
	TouchKeys(ctx context.Context, used map[ledger.KeyID]ledger.Time) error
}

// RotationRecord is a rotation of an API key that was requested under an idempotency
// key. It never changes.
type RotationRecord struct {
	Org            ledger.OrgID
	Key            ledger.KeyID
	IdempotencyKey string        // unique in its organization
	Overlap        time.Duration // whole milliseconds
	RotatedAt      ledger.Time
	MAC            []byte // authenticates all of it
}

// SignIns keeps one-time sign-in links and the sessions that they open, both by
// hash.
type SignIns interface {
	// CreateSignIn stores a link; ErrExists when its hash exists.
	CreateSignIn(ctx context.Context, link *SignIn) error
	// SignInLink finds a link that has not expired at now.
	SignInLink(ctx context.Context, link [32]byte, now ledger.Time) (*SignIn, error)
	// OpenSession replaces an unexpired link of the session's key with the session.
	// It returns ErrNotFound for any other link; of two calls with the same link, one
	// succeeds.
	OpenSession(ctx context.Context, link [32]byte, session *SignIn, now ledger.Time) error
	// CreateSession stores a session that no link opened; ErrExists when its hash exists.
	CreateSession(ctx context.Context, session *SignIn, now ledger.Time) error
	// Session finds a session that has not expired at now.
	Session(ctx context.Context, session [32]byte, now ledger.Time) (*SignIn, error)
	// CloseSession deletes a session. It returns nil when there is none.
	CloseSession(ctx context.Context, session [32]byte) error
}

// SignIn is a one-time link of an API key, or a session: what a link became, or what single
// sign-on opened.
type SignIn struct {
	Hash      [32]byte
	Key       uuid.UUID
	Org       ledger.OrgID // of the key
	ExpiresAt ledger.Time
	Session   bool
	SignInAs  string // who opened a session by single sign-on; "" for everything else
	Act       int64  // the number of the act that created it
	MAC       []byte // authenticates all of it
}

// KeyChecks keeps fingerprints of the master keys that have signed in this store, so
// that a server with the wrong master keys refuses to start. A fingerprint reveals
// nothing about its key.
type KeyChecks interface {
	// KeyChecks returns the fingerprints by key id.
	KeyChecks(ctx context.Context) (map[string][32]byte, error)
	// AddKeyCheck stores a fingerprint. Repeating it is harmless; another fingerprint
	// for the same key id is ErrExists.
	AddKeyCheck(ctx context.Context, keyID string, fingerprint [32]byte) error
}

// Identity keeps the identity of the ledger, which tells a database from a copy of
// it that went its own way.
type Identity interface {
	// Ledger returns ErrNotFound before the ledger has an identity.
	Ledger(ctx context.Context) (*LedgerRecord, error)
	// PutLedger sets the identity where there is none, and replaces the one with the
	// id replaces. Any other identity stays as it is, and the result is ErrExists; with
	// uuid.Nil nothing is ever replaced.
	PutLedger(ctx context.Context, ledger *LedgerRecord, replaces uuid.UUID) error
}

// LedgerRecord is the identity of a ledger.
type LedgerRecord struct {
	ID        uuid.UUID   // random
	Parent    uuid.UUID   // of the ledger that it was restored from; uuid.Nil for none
	CreatedAt ledger.Time // when the ledger was created or restored
	MAC       []byte      // authenticates all of it
}
