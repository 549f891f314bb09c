package store

import (
	"context"

	"github.com/google/uuid"

	"countersign/internal/ledger"
)

// Imports finds approvals that were decided and signed elsewhere. They are made by
// Transact alone and never changed or deleted.
type Imports interface {
	ImportedApproval(ctx context.Context, id ledger.ApprovalID) (*ImportedApproval, error)
	// ImportedApprovals lists an organization's by id, after the given one.
	ImportedApprovals(ctx context.Context, org ledger.OrgID, after ledger.ApprovalID, limit int) ([]*ImportedApproval, error)
}

// ImportedApproval is an approval that was decided elsewhere, as it is kept.
type ImportedApproval struct {
	ID         ledger.ApprovalID // unique over all organizations
	Org        ledger.OrgID      // that holds it
	Import     uuid.UUID         // by which it came
	Key        ledger.SigningKeyID
	Record     []byte // the decision record that was signed
	Signature  []byte
	ImportedAt ledger.Time
	Act        int64  // the number of the act of the import
	MAC        []byte // authenticates all of it
	// Tampered is as in WebhookRecord; then nothing but ID and Org is set.
	Tampered bool
}
