// Package store is the storage port: what the service asks of a database, and
// the guarantees that each implementation owes it. The rules of the product are
// not here; a store keeps records, in order, durably, and finds them again.
//
// Two implementations keep the promise, sqlite and postgres. The conformance
// suite in storetest holds both to it.
package store

import (
	"context"
	"errors"

	"github.com/google/uuid"

	"countersign/internal/ledger"
)

// The errors that every implementation returns, wrapped or plain.
var (
	// ErrNotFound: no such record.
	ErrNotFound = errors.New("no such record")
	// ErrExists: a record with that identity is there already.
	ErrExists = errors.New("record exists already")
	// ErrUnavailable: the store could not be reached or was busy; nothing was
	// written, and the same call may be made again.
	ErrUnavailable = errors.New("store unavailable")
	// ErrOutcomeUnknown: the connection was lost while committing. The changes
	// may be durable or not; only reading or repeating tells.
	ErrOutcomeUnknown = errors.New("commit outcome unknown")
)

// Store is a whole database.
type Store interface {
	Writer
	Reader
	Directory
	KeyChecks
	SignIns

	// Ping answers whether the store can serve requests now.
	Ping(ctx context.Context) error
	// Backup writes a consistent copy to a new file. Stores whose operators have
	// better means return errors.ErrUnsupported.
	Backup(ctx context.Context, path string) error
	Close() error
}

// Writer is the write path of chains and receipts.
type Writer interface {
	// Transact loads what needs names, hands it to plan, writes the changes that
	// plan returns, and commits, all in one transaction. When it returns nil the
	// changes are durable: they survive a power cut the moment after.
	//
	// Chains and heads that needs names are locked from load to commit, in one
	// order everywhere, so two calls that share one run one after the other,
	// whichever process they are in. A record that does not exist is absent from
	// Loaded. plan runs at most once, must not block, and must not keep Loaded.
	//
	// An error of plan is returned as it is, and nothing is written. ErrExists
	// means that a unique constraint refused the changes and nothing was written:
	// the caller raced and may try again. ErrOutcomeUnknown is the only error
	// after which the changes may exist. Cancelling ctx never interrupts a commit.
	Transact(ctx context.Context, needs *Needs, plan func(*Loaded) (*Changes, error)) error
}

// Needs names what a transaction reads. Doubles are allowed.
type Needs struct {
	Orgs    []ledger.OrgID
	Keys    []ledger.KeyID
	Chains  []ledger.ChainID // locked
	Heads   []ledger.OrgID   // locked
	Opens   []OpenRef
	Repeats []EventRef
	Addenda []EventAt
}

// OpenRef is the idempotency key of a request that opened a chain.
type OpenRef struct {
	Org ledger.OrgID
	Key string
}

// EventRef is the idempotency key of a recorded event.
type EventRef struct {
	Chain ledger.ChainID
	Key   string
}

// EventAt is an event's place.
type EventAt struct {
	Chain    ledger.ChainID
	Sequence int64
}

// Loaded is what was found. Orgs and Keys may be shared with other transactions
// and must not be changed. Repeats and Addenda are found whether or not their
// chain is named in Needs.Chains; an empty idempotency key matches nothing.
type Loaded struct {
	Orgs    map[ledger.OrgID]*ledger.Organization
	Keys    map[ledger.KeyID]*ledger.KeyRecord
	Chains  map[ledger.ChainID]*ChainRecord
	Heads   map[ledger.OrgID]*ledger.Head
	Opens   map[OpenRef]*ChainRecord
	Repeats map[EventRef]*ledger.StoredEvent
	Addenda map[EventAt][]*ledger.Addendum // by position

	// EventsAfter reads the facts of a chain's events whose sequence is greater
	// than after, in order, inside the same transaction. Payloads may be missing.
	EventsAfter func(chain ledger.ChainID, after int64) ([]*ledger.StoredEvent, error)
}

// ChainRecord is a chain as it is kept: what was fixed at opening, and the state
// that moves. Body, State and MAC are opaque to a store; the other members are
// copies of what they say, to find chains by.
type ChainRecord struct {
	ID             ledger.ChainID
	Org            ledger.OrgID
	OpenedBy       ledger.KeyID
	ExternalID     string
	Environment    string
	IdempotencyKey string // of the opening request, "" for none
	Body           []byte

	Status ledger.ChainStatus
	State  []byte
	MAC    []byte
}

// Changes are what a transaction writes.
type Changes struct {
	NewChains   []*ChainRecord
	States      []*ChainRecord // of chains in Loaded.Chains: status, state and MAC
	NewEvents   []*ledger.StoredEvent
	NewAddenda  []*ledger.Addendum
	NewReceipts []*ledger.StoredReceipt // of one organization in order of sequence
	Heads       []*ledger.Head
}

// Reader answers what has been committed.
type Reader interface {
	Chain(ctx context.Context, id ledger.ChainID) (*ChainRecord, error)
	// Chains lists newest first.
	Chains(ctx context.Context, query ChainQuery) ([]*ChainRecord, error)
	// Events lists a chain's events by sequence.
	Events(ctx context.Context, chain ledger.ChainID, after int64, limit int) ([]*ledger.StoredEvent, error)
	// Addenda lists what was recorded later about the events from..to of a chain,
	// by position.
	Addenda(ctx context.Context, chain ledger.ChainID, from, to int64) ([]*ledger.Addendum, error)
	Receipt(ctx context.Context, id ledger.ReceiptID) (*ledger.StoredReceipt, error)
	ReceiptOfChain(ctx context.Context, chain ledger.ChainID) (*ledger.StoredReceipt, error)
	// Receipts lists newest first, those with a sequence below before (0: all).
	Receipts(ctx context.Context, org ledger.OrgID, before int64, limit int) ([]*ledger.StoredReceipt, error)
	// ScanReceipts visits the receipts from..to in order of sequence. The record
	// and its bytes are valid only during the visit.
	ScanReceipts(ctx context.Context, org ledger.OrgID, from, to int64, visit func(*ledger.StoredReceipt) error) error
	// ScanBodies visits the signed bytes of the same receipts and nothing beside
	// them: the fastest way through a large ledger. They are valid only during the
	// visit.
	ScanBodies(ctx context.Context, org ledger.OrgID, from, to int64, visit func(body []byte) error) error
	Head(ctx context.Context, org ledger.OrgID) (*ledger.Head, error)
	// ScanChains visits an organization's chains in order of id, for an audit. A
	// chain that has lost its state is visited too, without one.
	ScanChains(ctx context.Context, org ledger.OrgID, visit func(*ChainRecord) error) error
}

// ChainQuery selects chains of one organization.
type ChainQuery struct {
	Org         ledger.OrgID
	OpenedBy    *ledger.KeyID
	Status      ledger.ChainStatus
	Environment string
	ExternalID  string
	Before      *ledger.ChainID // those with a smaller id
	Limit       int
}

// Directory keeps organizations and API keys.
type Directory interface {
	// CreateOrganization stores an organization with its head and first key, all
	// or nothing; ErrExists when the slug is taken. The key may be nil.
	CreateOrganization(ctx context.Context, org *ledger.Organization, head *ledger.Head, key *ledger.KeyRecord) error
	Organization(ctx context.Context, id ledger.OrgID) (*ledger.Organization, error)
	OrganizationBySlug(ctx context.Context, slug string) (*ledger.Organization, error)
	Organizations(ctx context.Context) ([]*ledger.Organization, error)
	// UpdateOrganization changes name and settings; two updates at once are
	// applied one after the other. An error of change is returned as it is.
	UpdateOrganization(ctx context.Context, id ledger.OrgID, change func(*ledger.Organization) error) (*ledger.Organization, error)

	CreateKey(ctx context.Context, key *ledger.KeyRecord) error
	Key(ctx context.Context, id ledger.KeyID) (*ledger.KeyRecord, error)
	KeyByHash(ctx context.Context, hash [32]byte) (*ledger.KeyRecord, error)
	// Keys lists an organization's keys by id, after the given one.
	Keys(ctx context.Context, org ledger.OrgID, after ledger.KeyID, limit int) ([]*ledger.KeyRecord, error)
	// RevokeKey is harmless when repeated: the first moment stands.
	RevokeKey(ctx context.Context, org ledger.OrgID, id ledger.KeyID, at ledger.Time) (*ledger.KeyRecord, error)
}

// KeyChecks remembers which master keys have signed here, by fingerprints that
// reveal nothing, so that a store is never served with the wrong keys.
type KeyChecks interface {
	KeyChecks(ctx context.Context) (map[string][32]byte, error)
	// AddKeyCheck is harmless when repeated with the same fingerprint; another
	// one for the same id is ErrExists.
	AddKeyCheck(ctx context.Context, keyID string, fingerprint [32]byte) error
}

// SignIns keeps one-time sign-in links and the sessions that they open, all by
// hash. At ExpiresAt itself they have expired.
type SignIns interface {
	CreateSignIn(ctx context.Context, link *SignIn) error
	// OpenSession uses up a link that has not expired and stores the session in
	// its place; ErrNotFound for any other link.
	OpenSession(ctx context.Context, link [32]byte, session [32]byte, now, expires ledger.Time) (*SignIn, error)
	// Session finds a session that has not expired, with the key it acts for.
	Session(ctx context.Context, session [32]byte, now ledger.Time) (*SignIn, error)
	// CloseSession is harmless when repeated.
	CloseSession(ctx context.Context, session [32]byte) error
}

// SignIn is a one-time link, or the session it became, of an API key.
type SignIn struct {
	Hash      [32]byte
	Key       uuid.UUID
	ExpiresAt ledger.Time
}
