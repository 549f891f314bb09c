package store

import (
	"context"

	"github.com/google/uuid"

	"countersign/internal/ledger"
)

// Writer is the write path: chains, receipts, and every administrative act.
type Writer interface {
	// Transact loads what needs names, calls plan with it, writes the changes that
	// plan returns, and commits, all in one transaction.
	//
	// Locks. The chains, budget counters, heads and audit logs that needs names are
	// locked from load to commit, in the same order by every caller, so two calls
	// that name the same one run one after the other, in whichever process. An
	// organization in Needs.Orgs is locked for sharing, one in Needs.Govern
	// exclusively: a call that governs it waits until the calls that share it have
	// committed, and later calls load what it wrote. So nothing is decided under
	// settings, a policy set or a kill switch that were changed before the decision
	// was committed.
	//
	// plan runs at most once, on the caller's goroutine, while the locks are held:
	// it must not block. The functions of Loaded work only until plan returns. The
	// records of Loaded may be kept and read afterwards; Loaded says which of them
	// plan may change. The records of Changes must not be modified before Transact
	// returns, and the bytes of chain records not afterwards either: the store may
	// keep them in its cache.
	//
	// Errors. An error of plan is returned as it is, and nothing is written.
	// ErrNotFound means that a record to be changed does not exist, and nothing was
	// written. ErrExists means that a unique constraint refused the changes and
	// nothing was written: another caller came first, and this one may retry.
	// ErrOutcomeUnknown is the only error after which the changes may exist.
	Transact(ctx context.Context, needs *Needs, plan func(*Loaded) (*Changes, error)) error
}

// Needs names what a transaction reads. Duplicates are allowed.
type Needs struct {
	Orgs   []ledger.OrgID // locked for sharing
	Govern []ledger.OrgID // locked exclusively; loaded into Loaded.Orgs too
	Keys   []ledger.KeyID
	Chains []ledger.ChainID // locked
	// Counters are locked where they exist. When two calls create the same counter,
	// one of them gets ErrExists.
	Counters    []ledger.CounterID
	Heads       []ledger.OrgID // locked
	Logs        []ledger.OrgID // audit logs, locked
	Opens       []OpenRef
	Repeats     []EventRef
	Addenda     []EventAt
	Approvals   []ledger.ApprovalID
	ApprovalsOf []ledger.ChainID // all approvals of these chains
	Polls       []ledger.ChainID // when these chains were last polled
	Webhooks    []ledger.WebhookID
	Tokens      []ledger.TokenID
	Issued      []TokenRef // tokens by the idempotency keys of the requests that issued them
	Rotations   []RotationRef
	Findings    []FindingRef
	SigningKeys []ledger.OrgID // all signing keys of these organizations
	Imported    []ledger.ApprovalID
}

// OpenRef is the idempotency key of a request that opened a chain. It is unique per
// API key: two agents of an organization may choose the same one.
type OpenRef struct {
	Org ledger.OrgID
	By  ledger.KeyID
	Key string
}

// RotationRef is the idempotency key of a request that rotated an API key.
type RotationRef struct {
	Org ledger.OrgID
	Key string
}

// EventRef is the idempotency key of a recorded event.
type EventRef struct {
	Chain ledger.ChainID
	Key   string
}

// EventAt is the position of an event: its chain and its sequence there.
type EventAt struct {
	Chain    ledger.ChainID
	Sequence int64
}

// Loaded is what a transaction found. A record that does not exist is absent.
//
// The maps belong to plan. Orgs, Keys and Ends may be shared with other transactions
// and must never be changed. Every other record belongs to plan, which may set its
// fields; the bytes that the fields of a chain refer to may be shared, so plan
// replaces them and does not modify them in place.
//
// Repeats and Addenda are found whether or not Needs.Chains names their chain. An
// empty idempotency key matches nothing.
type Loaded struct {
	Orgs     map[ledger.OrgID]*ledger.Organization
	Keys     map[ledger.KeyID]*ledger.KeyRecord
	Chains   map[ledger.ChainID]*ChainRecord
	Counters map[ledger.CounterID]*CounterRecord
	Heads    map[ledger.OrgID]*ledger.Head
	Logs     map[ledger.OrgID]*ledger.ActLog
	// Ends are the ends of the audit logs of the organizations in Needs.Orgs and
	// Needs.Govern, as committed. They are not locked.
	Ends    map[ledger.OrgID]*ledger.ActLog
	Opens   map[OpenRef]*ChainRecord
	Repeats map[EventRef]*ledger.StoredEvent
	Addenda map[EventAt][]*ledger.Addendum // by position
	// Approvals holds those in Needs.Approvals and those of the chains in
	// Needs.ApprovalsOf.
	Approvals map[ledger.ApprovalID]*ApprovalRecord
	Polls     map[ledger.ChainID]ledger.Time // as written by TouchChains
	Webhooks  map[ledger.WebhookID]*WebhookRecord
	Tokens    map[ledger.TokenID]*TokenRecord
	Issued    map[TokenRef]*TokenRecord
	Rotations map[RotationRef]*RotationRecord
	Findings  map[FindingRef]*FindingRecord
	// SigningKeys are an organization's, oldest first by id.
	SigningKeys map[ledger.OrgID][]*SigningKeyRecord
	Imported    map[ledger.ApprovalID]*ImportedApproval

	// Tampered names, by their keys in the maps above, rows that exist and are missing
	// there because they fail their authenticators or are not the newest. An
	// organization that is named here stays in Orgs: the notices of tampering need it.
	// A store leaves it empty, since it knows no authenticators.
	Tampered []any

	// Behind names organizations whose audit log is older than it was known to be.
	// Nothing is decided for them. A store leaves it empty.
	Behind []ledger.OrgID

	// Epoch tells whether the database was written to from elsewhere: it is the same in
	// two transactions only if every commit between them was made through this store. 0
	// means that the store cannot tell.
	Epoch int64

	// EventsAfter reads the facts of a chain's events with a sequence greater than
	// after, by sequence, inside the transaction. Payloads may be missing.
	EventsAfter func(chain ledger.ChainID, after int64) ([]*ledger.StoredEvent, error)
	// AddendaAfter reads a chain's addenda at positions greater than after, by
	// position, inside the transaction.
	AddendaAfter func(chain ledger.ChainID, after int64) ([]*ledger.Addendum, error)
	// ActsAfter reads at most limit of an organization's acts with a sequence greater
	// than after, by sequence, inside the transaction.
	ActsAfter func(org ledger.OrgID, after int64, limit int) ([]*ledger.StoredAct, error)
	// Policy reads one version of a policy set inside the transaction; ErrNotFound
	// when there is none.
	Policy func(org ledger.OrgID, number int64) (*PolicyRecord, error)
}

// Changes are what a transaction writes. A record appears in a list at most once.
// Where the comment names fields, only those are written.
type Changes struct {
	NewChains   []*ChainRecord
	States      []*ChainRecord // of chains in Loaded.Chains: Status, State and MAC
	NewEvents   []*ledger.StoredEvent
	NewAddenda  []*ledger.Addendum
	NewReceipts []*ledger.StoredReceipt // those of one organization by sequence
	Heads       []*ledger.Head          // of Loaded.Heads
	NewCounters []*CounterRecord
	Counters    []*CounterRecord // of Loaded.Counters: Body and MAC

	NewApprovals []*ApprovalRecord
	Approvals    []*ApprovalRecord // of Loaded.Approvals: Status, Body and MAC

	Orgs    []*ledger.Organization // of Needs.Govern: Name, Settings and Controls
	NewKeys []*ledger.KeyRecord
	// Keys are of Loaded.Keys: Hash, Hint, Previous, ExpiryLogged, RevokedAt, Act and MAC.
	Keys         []*ledger.KeyRecord
	NewRotations []*RotationRecord // with an idempotency key
	Findings     []*FindingRecord  // inserted, or replaced where the name exists
	NewPolicies  []*PolicyRecord
	Webhooks     []*WebhookRecord // inserted, or replaced where the id exists
	NewActs      []*ledger.StoredAct
	Logs         []*ledger.ActLog // inserted, or replaced

	NewTokens     []*TokenRecord
	RevokedTokens []*TokenRecord      // of Loaded.Tokens: RevokedAt, RevocationReason, Act and MAC
	SigningKeys   []*SigningKeyRecord // inserted, or replaced where the id exists
	Anchors       []*AnchorRecord     // inserted, or replaced where subject and method exist
	NewImported   []*ImportedApproval
	// Transparency are logs, those that close before those that open: inserted, or
	// ClosedAt and MAC replaced where the id exists.
	Transparency []*TransparencyLog

	NewPostings     []Posting        // those that exist are skipped
	ReceiptPostings []ReceiptPosting // their receipts are added to those of a stored one

	NewJobs []*Job
	// Signals are sent to every watcher in every process after the commit: the ids of
	// approvals and API keys that changed, and of organizations whose audit log grew.
	Signals []uuid.UUID
}
