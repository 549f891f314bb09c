package store

import (
	"context"

	"github.com/google/uuid"

	"countersign/internal/ledger"
)

// Governance finds approvals, policy sets, webhooks and audit log entries. All but
// the polls of approvals is changed only by Transact.
type Governance interface {
	Approval(ctx context.Context, id ledger.ApprovalID) (*ApprovalRecord, error)
	// Approvals lists newest first: by RequestedAt, then by id, both descending.
	Approvals(ctx context.Context, query ApprovalQuery) ([]*ApprovalRecord, error)
	// OrganizationsWithApprovals lists the organizations that have at least one approval, in any
	// order. It is as fast with many approvals as with few.
	OrganizationsWithApprovals(ctx context.Context) ([]ledger.OrgID, error)
	// PutPolls stores when clients last asked about approvals. A moment before the
	// stored one is ignored. It may run concurrently with Transact, which neither
	// reads nor writes these moments.
	PutPolls(ctx context.Context, polls map[ledger.ApprovalID]ledger.Time) error
	// Polls returns when clients last asked about these approvals.
	Polls(ctx context.Context, approvals []ledger.ApprovalID) (map[ledger.ApprovalID]ledger.Time, error)
	// Event finds one event of a chain.
	Event(ctx context.Context, at EventAt) (*ledger.StoredEvent, error)
	Policy(ctx context.Context, org ledger.OrgID, number int64) (*PolicyRecord, error)
	// Policies lists those with a number below before (0: all), newest first.
	Policies(ctx context.Context, org ledger.OrgID, before int64, limit int) ([]*PolicyRecord, error)
	// ScanEvents visits the events of an organization's chains that were opened at or
	// after since (by the time in the chain's id): newest chain first, and each
	// chain's events by sequence. The records are valid only during the visit.
	ScanEvents(ctx context.Context, org ledger.OrgID, since ledger.Time, visit func(*ChainRecord, *ledger.StoredEvent) error) error
	// Webhooks lists an organization's webhooks that are not deleted, by id.
	Webhooks(ctx context.Context, org ledger.OrgID) ([]*WebhookRecord, error)
	// ActLog finds the end of an organization's audit log.
	ActLog(ctx context.Context, org ledger.OrgID) (*ledger.ActLog, error)
	// ActLogs finds the ends of the audit logs of these organizations.
	ActLogs(ctx context.Context, orgs []ledger.OrgID) (map[ledger.OrgID]*ledger.ActLog, error)
	// Acts lists those with a sequence below before (0: all), newest first.
	Acts(ctx context.Context, org ledger.OrgID, before int64, limit int) ([]*ledger.StoredAct, error)
	// ScanActs visits all acts of an organization by sequence.
	ScanActs(ctx context.Context, org ledger.OrgID, visit func(*ledger.StoredAct) error) error
}

// ApprovalRecord is a stored approval. Body and MAC are opaque to a store; the other
// fields are copies of what they say, to find approvals by.
type ApprovalRecord struct {
	ID          ledger.ApprovalID
	Org         ledger.OrgID
	Chain       ledger.ChainID
	Sequence    int64        // of the event that it is about
	OpenedBy    ledger.KeyID // the key that opened the chain: this agent may see the approval
	RequestedAt ledger.Time
	Status      ledger.ApprovalStatus
	Body        []byte
	MAC         []byte
}

// ApprovalQuery selects approvals of one organization.
type ApprovalQuery struct {
	Org      ledger.OrgID
	OpenedBy *ledger.KeyID // the key that opened their chains; nil: any
	Chain    *ledger.ChainID
	Status   ledger.ApprovalStatus // "": any
	Oldest   bool                  // the oldest first, and not the newest
	Before   *ApprovalAt           // those after this position in the list
	Limit    int
}

// ApprovalAt is an approval's position in a list.
type ApprovalAt struct {
	RequestedAt ledger.Time
	ID          ledger.ApprovalID
}

// PolicyRecord is one version of a policy set. It never changes.
type PolicyRecord struct {
	Org       ledger.OrgID
	Number    int64 // from 1, without a gap
	Version   string
	Format    string // of the document: "yaml" or "json"
	Document  []byte // as it was submitted
	CreatedAt ledger.Time
	CreatedBy string // the name of the key that submitted it
	Act       int64  // the number of the act that stored it; 0 in a row from before this was kept
	MAC       []byte // authenticates all of it
	// Tampered is as in WebhookRecord; then only Org and Number are set.
	Tampered bool
}

// Imports finds approvals that were decided and signed in another system. They are
// created only by Transact, and never changed or deleted.
type Imports interface {
	ImportedApproval(ctx context.Context, id ledger.ApprovalID) (*ImportedApproval, error)
	// ImportedApprovals lists an organization's with an id greater than after, by id. If after is zero,
	// also one whose id is zero.
	ImportedApprovals(ctx context.Context, org ledger.OrgID, after ledger.ApprovalID, limit int) ([]*ImportedApproval, error)
}

// ImportedApproval is an approval that was decided in another system.
type ImportedApproval struct {
	ID         ledger.ApprovalID // unique over all organizations
	Org        ledger.OrgID
	Import     uuid.UUID // the import that it came with
	Key        ledger.SigningKeyID
	Record     []byte // the decision record that was signed
	Signature  []byte
	ImportedAt ledger.Time
	Act        int64  // the number of the act of the import
	MAC        []byte // authenticates all of it
	// Tampered is as in WebhookRecord; then only ID and Org are set.
	Tampered bool
}

// Budgets finds the counters of budgets. They are changed only by Transact, and
// never deleted.
type Budgets interface {
	// BudgetCounters finds counters by their ids.
	BudgetCounters(ctx context.Context, ids []ledger.CounterID) (map[ledger.CounterID]*CounterRecord, error)
	// CountersOf lists the counters of one budget in one window, by value, then by id.
	CountersOf(ctx context.Context, query CounterQuery) ([]*CounterRecord, error)
	// AllCounters lists an organization's counters with an id greater than after, by id. If after is zero,
	// also one whose id is zero.
	AllCounters(ctx context.Context, org ledger.OrgID, after ledger.CounterID, limit int) ([]*CounterRecord, error)
}

// CounterRecord is a stored budget counter. Body and MAC are opaque to a store; the
// other fields are copies of what they say, to find counters by.
type CounterRecord struct {
	ID     ledger.CounterID
	Org    ledger.OrgID
	Budget string
	Start  ledger.Time // of the window
	Value  string
	Body   []byte
	MAC    []byte
}

// CounterQuery selects counters of one budget in one window.
type CounterQuery struct {
	Org    ledger.OrgID
	Budget string
	Start  ledger.Time
	After  CounterAt // those with a greater value, or the same value and a greater id
	Limit  int
}

// CounterAt is a counter's position in a list.
type CounterAt struct {
	Value string
	ID    ledger.CounterID
}
