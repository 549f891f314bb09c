package verify

import (
	"context"
	"errors"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// approvalAnchors fills in how an approval's decision is anchored in time.
func (j *Judge) approvalAnchors(ctx context.Context, v *ledger.Verification, approval *ledger.Approval) error {
	subject := store.AnchorSubject{Kind: ledger.SubjectApproval, ID: approval.ID.UUID}
	records, err := j.store.Anchors(ctx, approval.Org, subject)
	if err != nil {
		return err
	}
	for _, record := range records {
		j.place(v, record, approval.Hash())
	}
	return nil
}

// maxAnchorWalk bounds how many receipts may lie between one and the head whose
// anchor covers it.
const maxAnchorWalk = 5000

// headAnchors fills in how a receipt is anchored: by the first anchored head at or
// after it, to which its hash is linked.
func (j *Judge) headAnchors(ctx context.Context, v *ledger.Verification, receipt *ledger.StoredReceipt) error {
	records, err := j.store.HeadAnchors(ctx, receipt.Org, receipt.Sequence)
	if err != nil {
		return err
	}
	for _, record := range records {
		if record.Sequence-receipt.Sequence > maxAnchorWalk {
			continue
		}
		digest, err := j.hashAt(ctx, receipt, record.Sequence)
		if err != nil {
			return err
		}
		j.place(v, record, digest)
	}
	return nil
}

// hashAt follows the links from a receipt to a later one and returns that one's
// hash; the zero hash where the links are broken.
func (j *Judge) hashAt(ctx context.Context, receipt *ledger.StoredReceipt, sequence int64) ([32]byte, error) {
	hash := receipt.Hash()
	next := receipt.Sequence + 1
	broken := false
	err := j.store.ScanReceipts(ctx, receipt.Org, next, sequence, func(r *ledger.StoredReceipt) error {
		if r.Sequence != next || string(r.PreviousHash) != string(hash[:]) {
			broken = true
			return errBroken
		}
		hash, next = r.Hash(), next+1
		return nil
	})
	if err != nil && !errors.Is(err, errBroken) {
		return [32]byte{}, err
	}
	if broken || next != sequence+1 {
		return [32]byte{}, nil
	}
	return hash, nil
}

// place puts what is known of an anchor into a result. One that was changed, or
// that is about something else, has failed.
func (j *Judge) place(v *ledger.Verification, record *store.AnchorRecord, digest [32]byte) {
	found := ledger.AnchorFinding{Standing: ledger.AnchorStanding(record.Status), Reason: record.Reason}
	switch {
	case record.Tampered:
		found = ledger.AnchorFinding{Standing: ledger.AnchorFailed, Reason: "record_failed"}
	case record.Digest != digest:
		found = ledger.AnchorFinding{Standing: ledger.AnchorFailed, Reason: "wrong_digest"}
	}
	if record.Method == ledger.MethodTSA {
		v.TSA = found
	} else {
		v.OpenTimestamp = found
	}
}
