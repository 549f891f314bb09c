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

// What is wrong with a store, beside ErrUnavailable or ErrOutcomeUnknown where it is
// known. Nothing is decided by it: people are told.
var (
	// ErrFull: no space is left.
	ErrFull = errors.New("no space left")
	// ErrReadOnly: the database, or the file system that it is on, takes no writes.
	ErrReadOnly = errors.New("read-only")
	// ErrInputOutput: the system below the store failed to read or to write.
	ErrInputOutput = errors.New("reading or writing failed")
	// ErrDamaged: what was read does not have the form of a database. Either it was
	// damaged, which does not go away by itself, or a disk fails to read: SQLite says the
	// same of both.
	ErrDamaged = errors.New("damaged")
)

// Store is a whole database.
type Store interface {
	Writer
	Reader
	Directory
	Governance
	Verification
	Polls
	Jobs
	Signals
	KeyChecks
	Identity
	SignIns
	Unsealed
	Findings
	Budgets
	LegacyUses
	Imports

	// Ping answers whether the store can be read now.
	Ping(ctx context.Context) error
	// Probe makes a durable write that means nothing and leaves nothing to read, to
	// find out whether the store takes writes now.
	Probe(ctx context.Context) error
	// Backup writes a consistent copy to a new file. Stores whose operators have
	// better means return errors.ErrUnsupported.
	Backup(ctx context.Context, path string) error
	Close() error
}

// Writer is the write path: chains and receipts, and every administrative act.
type Writer interface {
	// Transact loads what needs names, hands it to plan, writes the changes that
	// plan returns, and commits, all in one transaction. When it returns nil the
	// changes are durable: they survive a power cut the moment after.
	//
	// Chains, counters of budgets, heads and audit logs that needs names are locked from load to commit,
	// in one order everywhere, so two calls that share one run one after the other,
	// whichever process they are in. An organization in Orgs is held: a call that
	// names it in Govern waits until this one has committed, and a call that comes
	// after that one reads what it wrote. So nothing is decided under settings, a
	// policy or a kill switch that were changed before it was committed. A record that does not exist is absent from
	// Loaded. plan runs at most once, must not block, and must not keep Loaded.
	//
	// An error of plan is returned as it is, and nothing is written. ErrNotFound
	// means that a record to be changed is not there, and nothing was written.
	// ErrExists
	// means that a unique constraint refused the changes and nothing was written:
	// the caller raced and may try again. ErrOutcomeUnknown is the only error
	// after which the changes may exist. Cancelling ctx never interrupts a commit.
	Transact(ctx context.Context, needs *Needs, plan func(*Loaded) (*Changes, error)) error
}

// Needs names what a transaction reads. Doubles are allowed.
type Needs struct {
	Orgs   []ledger.OrgID // held
	Govern []ledger.OrgID // locked, and loaded as Orgs are
	Keys   []ledger.KeyID
	Chains []ledger.ChainID // locked
	// Counters are locked where they exist. Of two calls that make the same new one, one
	// is ErrExists.
	Counters  []ledger.CounterID
	Heads     []ledger.OrgID // locked
	Logs      []ledger.OrgID // audit logs, locked
	Opens     []OpenRef
	Repeats   []EventRef
	Addenda   []EventAt
	Approvals []ledger.ApprovalID
	// ApprovalsOf names chains whose approvals are all wanted.
	ApprovalsOf []ledger.ChainID
	Polls       []ledger.ChainID // when these chains were last polled
	Webhooks    []ledger.WebhookID
	Tokens      []ledger.TokenID
	Issued      []TokenRef // tokens by the keys of the requests that issued them
	Rotations   []RotationRef
	Findings    []FindingRef
	SigningKeys []ledger.OrgID // all keys of these organizations
	Imported    []ledger.ApprovalID
}

// OpenRef is the idempotency key of a request that opened a chain. Each API key has its
// own: two agents of an organization may choose the same.
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

// EventAt is an event's place.
type EventAt struct {
	Chain    ledger.ChainID
	Sequence int64
}

// Loaded is what was found. Orgs, Keys and the bodies of chains may be shared with
// other transactions and must not be changed. Repeats and Addenda are found whether or not their
// chain is named in Needs.Chains; an empty idempotency key matches nothing.
type Loaded struct {
	Orgs   map[ledger.OrgID]*ledger.Organization
	Keys   map[ledger.KeyID]*ledger.KeyRecord
	Chains map[ledger.ChainID]*ChainRecord
	// Counters may be changed.
	Counters map[ledger.CounterID]*CounterRecord
	Heads    map[ledger.OrgID]*ledger.Head
	Logs     map[ledger.OrgID]*ledger.ActLog
	// Ends are the ends of the audit logs of the organizations in Needs.Orgs and Govern,
	// as committed and not locked. They may be shared and must not be changed.
	Ends    map[ledger.OrgID]*ledger.ActLog
	Opens   map[OpenRef]*ChainRecord
	Repeats map[EventRef]*ledger.StoredEvent
	Addenda map[EventAt][]*ledger.Addendum // by position
	// Approvals holds those named and those of the chains in ApprovalsOf.
	Approvals map[ledger.ApprovalID]*ApprovalRecord
	// Polls are what TouchChains remembered, of the chains of which it remembers anything.
	Polls     map[ledger.ChainID]ledger.Time
	Webhooks  map[ledger.WebhookID]*WebhookRecord
	Tokens    map[ledger.TokenID]*TokenRecord
	Issued    map[TokenRef]*TokenRecord
	Rotations map[RotationRef]*RotationRecord
	Findings  map[FindingRef]*FindingRecord
	// SigningKeys are an organization's, oldest first by id.
	SigningKeys map[ledger.OrgID][]*SigningKeyRecord
	Imported    map[ledger.ApprovalID]*ImportedApproval

	// Tampered names, by their keys in the maps above, rows that are there and are not
	// among what was loaded because they fail their authenticators or are not the newest. An
	// organization that is named stays: the notices of tampering need it. A store leaves it
	// empty: it knows nothing of authenticators.
	Tampered []any

	// Behind names organizations whose audit log is older than it was known to be: nothing
	// is decided for them. A store leaves it empty as well.
	Behind []ledger.OrgID

	// EventsAfter reads the facts of a chain's events whose sequence is greater
	// than after, in order, inside the same transaction. Payloads may be missing.
	EventsAfter func(chain ledger.ChainID, after int64) ([]*ledger.StoredEvent, error)
	// AddendaAfter reads what was recorded about a chain's events at positions greater
	// than after, in order, inside the same transaction.
	AddendaAfter func(chain ledger.ChainID, after int64) ([]*ledger.Addendum, error)
	// ActsAfter reads an organization's acts whose sequence is greater than after, in
	// order, inside the same transaction: at most limit of them.
	ActsAfter func(org ledger.OrgID, after int64, limit int) ([]*ledger.StoredAct, error)
	// Policy reads one put of a policy set inside the same transaction;
	// ErrNotFound when there is none.
	Policy func(org ledger.OrgID, number int64) (*PolicyRecord, error)
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

// Changes are what a transaction writes. A record stands in a list at most once.
type Changes struct {
	NewChains   []*ChainRecord
	States      []*ChainRecord // of chains in Loaded.Chains: status, state and MAC
	NewEvents   []*ledger.StoredEvent
	NewAddenda  []*ledger.Addendum
	NewReceipts []*ledger.StoredReceipt // of one organization in order of sequence
	Heads       []*ledger.Head
	NewCounters []*CounterRecord
	Counters    []*CounterRecord // of Loaded.Counters: body and MAC

	NewApprovals []*ApprovalRecord
	Approvals    []*ApprovalRecord // of Loaded.Approvals: status, body and MAC

	Orgs    []*ledger.Organization // of Needs.Govern: name, settings and controls
	NewKeys []*ledger.KeyRecord
	// Keys are of Loaded.Keys: Hash, Hint, Previous, ExpiryLogged, RevokedAt and MAC.
	Keys         []*ledger.KeyRecord
	NewRotations []*RotationRecord // with an idempotency key
	Findings     []*FindingRecord  // inserted, or replaced where the name is known
	NewPolicies  []*PolicyRecord
	Webhooks     []*WebhookRecord // inserted, or replaced where the id is known
	NewActs      []*ledger.StoredAct
	Logs         []*ledger.ActLog // inserted, or replaced

	NewTokens     []*TokenRecord
	RevokedTokens []*TokenRecord      // of Loaded.Tokens: RevokedAt, RevocationReason and MAC
	SigningKeys   []*SigningKeyRecord // inserted, or replaced where the id is known
	Anchors       []*AnchorRecord     // inserted, or replaced where subject and method are the same
	NewImported   []*ImportedApproval

	NewJobs []*Job
	// Signals are announced when the transaction has committed, to everyone who
	// watches, in every process: the ids of approvals and API keys that have changed, and
	// of organizations whose audit log has moved.
	Signals []uuid.UUID
}

// ApprovalRecord is an approval as it is kept. Body and MAC are opaque to a
// store; the other members are copies of what they say, to find approvals by.
type ApprovalRecord struct {
	ID          ledger.ApprovalID
	Org         ledger.OrgID
	Chain       ledger.ChainID
	Sequence    int64        // of the event it is about
	OpenedBy    ledger.KeyID // of the chain: whose approval an agent may see
	RequestedAt ledger.Time
	Status      ledger.ApprovalStatus
	Body        []byte
	MAC         []byte
}

// RotationRecord is a rotation of an API key that was asked for under an
// idempotency key. It never changes.
type RotationRecord struct {
	Org            ledger.OrgID
	Key            ledger.KeyID
	IdempotencyKey string      // unique in its organization
	Overlap        ledger.Time // milliseconds
	RotatedAt      ledger.Time
	MAC            []byte // authenticates all of it
}

// PolicyRecord is one put of a policy set. It never changes.
type PolicyRecord struct {
	Org       ledger.OrgID
	Number    int64 // from 1, without a gap
	Version   string
	Format    string // "yaml" or "json": of the document
	Document  []byte // as it was put
	CreatedAt ledger.Time
	CreatedBy string // the name of the key that put it
	Act       int64  // the number of the act that put it; 0 in a row from before it was kept
	MAC       []byte // authenticates all of it
	// Tampered is as in WebhookRecord; then nothing but Org and Number is set.
	Tampered bool
}

// WebhookRecord is an endpoint that is told what happens.
type WebhookRecord struct {
	ID          ledger.WebhookID
	Org         ledger.OrgID
	URL         string
	Events      []string // kinds; none: all of them
	Description string
	Secret      []byte // sealed: only the key ring opens it
	CreatedAt   ledger.Time
	DisabledAt  *ledger.Time // nil while it is told
	DeletedAt   *ledger.Time // nil while it exists; lists leave deleted ones out
	Act         int64        // the number of the act that changed it last; 0 in a row from before it was kept
	MAC         []byte       // authenticates all of it
	// Tampered says that the stored row is not as the service wrote it; then nothing but
	// ID and Org is set. A store leaves it false: it knows nothing of authenticators.
	Tampered bool
}

// Job is work that must be done after its cause is committed. It is stored in the
// same transaction and leased to one worker at a time.
type Job struct {
	Org  ledger.OrgID
	Kind string
	// Stream orders jobs: one that has begun earlier and is not done holds up the
	// later ones of its stream. "" orders nothing.
	Stream string
	RunAt  ledger.Time
	Body   []byte
	// Once names what a job is for, where that must be done once and never again:
	// of all jobs that an organization stores under one name the first is kept, and
	// the others are left out without an error, even when that one is long done.
	// "" is no name. A stored job does not say it.
	Once string
	// DueAt is when the job was first to run. A retry leaves it as it is.
	DueAt ledger.Time
	MAC   []byte // authenticates Org, Kind, Stream, Body and DueAt

	// The store's own, set when a job is claimed or scanned. RunAt is the store's own too
	// once a job is stored.
	No          int64
	Lease       uuid.UUID
	LeasedUntil ledger.Time // of a scanned job; 0 while it is not leased
	Attempts    int         // this one included
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
	// NamedReceipt is Receipt with the slug of its organization.
	NamedReceipt(ctx context.Context, id ledger.ReceiptID) (*NamedReceipt, error)
	// PlacedReceipt is Receipt with what stands around it, all read at one moment.
	// What these two return may be shared and must not be changed.
	PlacedReceipt(ctx context.Context, id ledger.ReceiptID) (*PlacedReceipt, error)
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

// NamedReceipt is a receipt and the slug of its organization.
type NamedReceipt struct {
	*ledger.StoredReceipt
	Slug string
}

// PlacedReceipt is a receipt in its place in its organization's ledger.
type PlacedReceipt struct {
	NamedReceipt
	Previous, Next *ledger.StoredReceipt // nil where there is none
	Head           *ledger.Head          // nil where there is none
	Anchored       bool                  // a head at or after it has an anchor
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

// Directory finds organizations and API keys. They are changed by Transact alone,
// together with the entry in the audit log that says so; only the moment of a
// key's last use is written beside it.
type Directory interface {
	// CreateOrganization stores an organization with its head and the further
	// changes that belong to its beginning, all or nothing; ErrExists when the slug
	// is taken.
	CreateOrganization(ctx context.Context, org *ledger.Organization, head *ledger.Head, with *Changes) error
	Organization(ctx context.Context, id ledger.OrgID) (*ledger.Organization, error)
	OrganizationBySlug(ctx context.Context, slug string) (*ledger.Organization, error)
	Organizations(ctx context.Context) ([]*ledger.Organization, error)
	Key(ctx context.Context, id ledger.KeyID) (*ledger.KeyRecord, error)
	// KeyByHash finds a key by the hash of its secret or of the one before it. A
	// hash that is unknown takes the same statement as one that is known.
	KeyByHash(ctx context.Context, hash [32]byte) (*ledger.KeyRecord, error)
	// Keys lists an organization's keys by id, after the given one.
	Keys(ctx context.Context, org ledger.OrgID, after ledger.KeyID, limit int) ([]*ledger.KeyRecord, error)
	// TouchKeys remembers when keys were last used; a moment that is earlier than
	// the one remembered changes nothing. Keys that are gone are left out. It may
	// run beside Transact, which never writes that moment.
	TouchKeys(ctx context.Context, used map[ledger.KeyID]ledger.Time) error
}

// Governance finds approvals, policies, endpoints and acts.
type Governance interface {
	Approval(ctx context.Context, id ledger.ApprovalID) (*ApprovalRecord, error)
	// Approvals lists newest first: by RequestedAt, then by id, both descending.
	Approvals(ctx context.Context, query ApprovalQuery) ([]*ApprovalRecord, error)
	// PutPolls remembers when the clients of approvals last asked about them; a
	// moment that is earlier than the one remembered changes nothing. It may run
	// beside Transact, and touches nothing that Transact reads or writes.
	PutPolls(ctx context.Context, polls map[ledger.ApprovalID]ledger.Time) error
	// Polls tells when the clients of these approvals last asked; one that nobody
	// asked about is absent.
	Polls(ctx context.Context, approvals []ledger.ApprovalID) (map[ledger.ApprovalID]ledger.Time, error)
	// Event finds one event of a chain.
	Event(ctx context.Context, at EventAt) (*ledger.StoredEvent, error)
	Policy(ctx context.Context, org ledger.OrgID, number int64) (*PolicyRecord, error)
	// Policies lists newest first, those with a number below before (0: all).
	Policies(ctx context.Context, org ledger.OrgID, before int64, limit int) ([]*PolicyRecord, error)
	// ScanEvents visits an organization's newest events, newest chain first and a
	// chain's events by sequence, those of chains opened at or after since (by the
	// time in their id), until
	// visit returns an error, which is returned as it is. What is visited is valid
	// only during the visit.
	ScanEvents(ctx context.Context, org ledger.OrgID, since ledger.Time, visit func(*ChainRecord, *ledger.StoredEvent) error) error
	// Webhooks lists an organization's endpoints that are not deleted, by id.
	Webhooks(ctx context.Context, org ledger.OrgID) ([]*WebhookRecord, error)
	ActLog(ctx context.Context, org ledger.OrgID) (*ledger.ActLog, error)
	// ActLogs finds the ends of the logs of these organizations in one statement; one that
	// has none is absent.
	ActLogs(ctx context.Context, orgs []ledger.OrgID) (map[ledger.OrgID]*ledger.ActLog, error)
	// Acts lists newest first, those with a sequence below before (0: all).
	Acts(ctx context.Context, org ledger.OrgID, before int64, limit int) ([]*ledger.StoredAct, error)
	// ScanActs visits all acts by sequence.
	ScanActs(ctx context.Context, org ledger.OrgID, visit func(*ledger.StoredAct) error) error
}

// ApprovalQuery selects approvals of one organization.
type ApprovalQuery struct {
	Org      ledger.OrgID
	OpenedBy *ledger.KeyID // of their chains
	Chain    *ledger.ChainID
	Status   ledger.ApprovalStatus // "": any
	Before   *ApprovalAt           // those that come after it in the list
	Limit    int
}

// ApprovalAt is an approval's place in a list.
type ApprovalAt struct {
	RequestedAt ledger.Time
	ID          ledger.ApprovalID
}

// Polls remembers when chains were last asked for by requests that record nothing. Like
// all that no authenticator covers it is a hint: it decides when a chain that nobody
// asks for is sealed, and nothing else.
type Polls interface {
	// TouchChains remembers when chains were last polled; a moment that is earlier than
	// the one remembered changes nothing. Chains that do not exist are left out. It may
	// run beside Transact, which never writes that moment.
	TouchChains(ctx context.Context, polled map[ledger.ChainID]ledger.Time) error
	// Polled is what TouchChains remembered of these chains, as in Loaded.Polls.
	Polled(ctx context.Context, chains []ledger.ChainID) (map[ledger.ChainID]ledger.Time, error)
}

// Jobs hands out work. A job is done at least once: a worker that dies leaves its
// lease to run out, and another takes over.
type Jobs interface {
	// ClaimJobs leases jobs that are due at now, until the given moment, at which the
	// lease has run out: of each kind as many as room says, those of other kinds
	// never, so that what is slow in one kind keeps no other waiting. Of each kind
	// the first by RunAt, then by number; at most one of each stream, and none whose
	// stream is held up. A job that was claimed before and is neither finished nor
	// buried holds its stream up. Streams are named across organizations, and a
	// stream holds jobs of one kind.
	ClaimJobs(ctx context.Context, now, until ledger.Time, room map[string]int) ([]*Job, error)
	// FinishJob removes a job and adds those that follow from it, all or nothing.
	// ErrNotFound when the lease is not the job's any more.
	FinishJob(ctx context.Context, job *Job, follow []*Job) error
	// RetryJob gives the lease back; the job is due again at runAt. ErrNotFound as
	// for FinishJob, here and in BuryJob.
	RetryJob(ctx context.Context, job *Job, runAt ledger.Time, fault string) error
	// BuryJob gives up: the job stays for people to see and is never claimed again.
	BuryJob(ctx context.Context, job *Job, fault string) error
	// CountJobs counts those that wait, leased ones included, and those that are
	// buried.
	CountJobs(ctx context.Context) (waiting, buried int64, err error)
	// ScanJobs visits the jobs of a kind that wait, leased ones included; "" is every
	// kind. Of a kind, jobs that stand behind another of their stream may be left out;
	// of every kind they are visited too. What is visited is valid only during the visit.
	ScanJobs(ctx context.Context, kind string, visit func(*Job) error) error
	// BuryJobs gives up jobs that wait, by their numbers, whether or not they are leased.
	// Those that are gone or buried already are left out.
	BuryJobs(ctx context.Context, jobs []*Job, fault string) error
	// LastJobName is the last, by its bytes, of the names with a prefix under which an
	// organization stored jobs (Job.Once), of those before the given one; "" when there
	// is none. All names are before "".
	LastJobName(ctx context.Context, org ledger.OrgID, prefix, before string) (string, error)
}

// Signals carries word of changed approvals, API keys and audit logs between processes.
type Signals interface {
	// Watch calls changed with each id that a committed transaction named in
	// Changes.Signals, in whichever process, until ctx ends; then it returns nil.
	// It calls missed when some may have been lost, for instance after the
	// connection to the store was, and once before the first signal can come: who
	// waits then reads again. Both are called from one goroutine and must not block.
	Watch(ctx context.Context, changed func(uuid.UUID), missed func()) error
}

// KeyChecks remembers which master keys have signed here, by fingerprints that
// reveal nothing, so that a store is never served with the wrong keys.
type KeyChecks interface {
	KeyChecks(ctx context.Context) (map[string][32]byte, error)
	// AddKeyCheck is harmless when repeated with the same fingerprint; another
	// one for the same id is ErrExists.
	AddKeyCheck(ctx context.Context, keyID string, fingerprint [32]byte) error
}

// Identity keeps the identity of the ledger, so that two databases that began as one
// are told apart.
type Identity interface {
	// Ledger is ErrNotFound before the ledger has an identity.
	Ledger(ctx context.Context) (*LedgerRecord, error)
	// PutLedger gives the ledger its identity. One that it has is replaced if it is the
	// given one; else, and for uuid.Nil, PutLedger is ErrExists and changes nothing.
	PutLedger(ctx context.Context, ledger *LedgerRecord, replaces uuid.UUID) error
}

// LedgerRecord is the identity of a ledger.
type LedgerRecord struct {
	ID        uuid.UUID   // random
	Parent    uuid.UUID   // of the ledger that it was restored from; uuid.Nil for none
	CreatedAt ledger.Time // when the ledger began, or was restored
	MAC       []byte      // authenticates all of it
}

// SignIns keeps one-time sign-in links and the sessions that they open, all by
// hash. At ExpiresAt itself they have expired.
type SignIns interface {
	CreateSignIn(ctx context.Context, link *SignIn) error
	// SignInLink finds a link that has not expired.
	SignInLink(ctx context.Context, link [32]byte, now ledger.Time) (*SignIn, error)
	// OpenSession uses up a link of the session's key that has not expired and stores
	// the session in its place; ErrNotFound for any other link.
	OpenSession(ctx context.Context, link [32]byte, session *SignIn, now ledger.Time) error
	// Session finds a session that has not expired, with the key it acts for.
	Session(ctx context.Context, session [32]byte, now ledger.Time) (*SignIn, error)
	// CloseSession is harmless when repeated.
	CloseSession(ctx context.Context, session [32]byte) error
}

// SignIn is a one-time link, or the session it became, of an API key.
type SignIn struct {
	Hash      [32]byte
	Key       uuid.UUID
	Org       ledger.OrgID // of the key
	ExpiresAt ledger.Time
	Session   bool
	Act       int64  // the number of the act that made it
	MAC       []byte // authenticates all of it
}

// Unsealed finds rows from before they had authenticators, or named the act that changed
// them last, and gives them both. API keys are changed through Transact.
type Unsealed interface {
	// UnsealedRows finds rows of an organization whose authenticator is empty, or which
	// should name an act and name none, up to limit of each table.
	UnsealedRows(ctx context.Context, org ledger.OrgID, limit int) (*Rows, error)
	// SealRows writes the authenticators and acts of such rows, and nothing else. A row
	// that is gone, or has both by now, is left as it is.
	SealRows(ctx context.Context, rows *Rows) error
}

// Rows are rows of the tables that have an authenticator for each row.
type Rows struct {
	Webhooks    []*WebhookRecord
	Policies    []*PolicyRecord
	Tokens      []*TokenRecord
	SigningKeys []*SigningKeyRecord
	Anchors     []*AnchorRecord
	Jobs        []*Job // that wait: by their numbers, with their authenticators and DueAt
}

// Len counts them.
func (r *Rows) Len() int {
	return len(r.Webhooks) + len(r.Policies) + len(r.Tokens) + len(r.SigningKeys) + len(r.Anchors) + len(r.Jobs)
}
