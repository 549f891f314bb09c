package verify

import (
	"context"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// VerifyImported verifies an approval that was decided elsewhere: its record and its signature. Its chain
// is not in this ledger, and the verdict says so.
func (a *Approvals) VerifyImported(ctx context.Context, record *store.ImportedApproval) (*ledger.Verification, error) {
	v := &approvalVerification{approvals: a, result: a.newVerification(ledger.ArtifactApproval, record.ID.UUID)}
	r := v.result
	r.Evidence.Reason = "imported"
	approval := readImported(record)
	if approval == nil {
		v.check(checkRecord, "the record fails its authenticator, or is not the one that was imported")
		v.skip("nothing vouches for the record", ledger.CheckNotChecked, checkPayload, ledger.CheckSignature, checkChainEntry, checkReceipt)
		r.Integrity = ledger.Finding{Standing: ledger.StandingInvalid, Reason: "record_failed"}
		r.Signature, r.Key = ledger.Finding{Standing: ledger.StandingInvalid, Reason: "record_failed"}, ledger.KeyNotEvaluated
		return r, nil
	}
	v.check(checkRecord, "")
	r.Approval, r.CreatedAt = approval, &approval.RequestedAt
	v.skip("the action was decided elsewhere", ledger.CheckNotChecked, checkPayload)
	r.Integrity = finding(r.Checks, checkRecord)
	if err := v.signature(ctx, record.Org, approval); err != nil {
		return nil, err
	}
	v.skip("the chain is not in this ledger", ledger.CheckNotChecked, checkChainEntry, checkReceipt)
	return r, nil
}

// readImported decodes an imported approval, or returns nil if it cannot be trusted.
func readImported(record *store.ImportedApproval) *ledger.Approval {
	if record.Tampered {
		return nil
	}
	approval, err := ledger.DecodeDecision(record.Record)
	if err != nil || approval.ID != record.ID {
		return nil
	}
	approval.SigningKey, approval.Signature = record.Key, record.Signature
	return approval
}

// ImportedHash returns the hash of an imported decision record. ok is false if the record cannot be
// trusted.
func ImportedHash(record *store.ImportedApproval) (hash [32]byte, ok bool, err error) {
	approval := readImported(record)
	if approval == nil {
		return hash, false, nil
	}
	return approval.Hash(), true, nil
}
