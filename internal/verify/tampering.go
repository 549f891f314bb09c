package verify

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"countersign/internal/ledger"
)

// Findings names what tampering is about, and computes the digest of its evidence. Both stay the
// same as long as the stored rows do.
type Findings struct{ *reader }

// Tampering is proof that evidence was changed outside the service: the check that failed, and its
// subject.
type Tampering struct {
	Check    ledger.Check
	Receipt  ledger.ReceiptID  // zero if it is about no stored receipt
	Approval ledger.ApprovalID // zero if it is about no approval
	Place    string            // the subject if it is neither of these
	// Digest is the digest of the affected row if it is neither a receipt nor an approval. It is
	// nil if there is no such row. It is not part of the name.
	Digest []byte
}

// Name identifies the finding. It is the same whichever check finds it. The texts in
// Place are part of it: rewording one makes a new finding out of an acknowledged one.
func (t *Tampering) Name() string {
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%s\n%s\n%s", t.Check, t.Receipt, t.Approval, t.Place)
	return "tampering/" + hex.EncodeToString(h.Sum(nil))
}

// chainChecked are the checks of a receipt that read its chain.
var chainChecked = []ledger.Check{ledger.CheckChain, ledger.CheckEventsDigest, ledger.CheckApprovals}

// OfChain reports whether the tampering is with the chain behind a stored receipt.
func (t *Tampering) OfChain() bool {
	return t.Receipt != ledger.ReceiptID{} && slices.Contains(chainChecked, t.Check)
}

// FromVerification returns the tampering that a verification proves, or nil if nothing failed. What an
// earlier check found has left its finding then. Found again after a repair, it would count as
// tampering since.
func FromVerification(v *ledger.Verification) *Tampering {
	overall, reason := v.Conclude()
	if overall != ledger.VerdictFailed || v.Repeated {
		return nil
	}
	t := &Tampering{Check: ledger.Check(reason)}
	if i := slices.IndexFunc(v.Checks, func(c ledger.CheckResult) bool { return c.Status == ledger.CheckFail }); i >= 0 {
		t.Check = v.Checks[i].Name
	}
	if v.Artifact == ledger.ArtifactReceipt {
		t.Receipt.UUID = v.ID
	} else {
		t.Approval.UUID = v.ID
	}
	return t
}

// FromBreak returns the tampering behind a break. A break among the receipts that were counted when
// the audit started is about the receipt at that position. A break beyond them is about something
// without a receipt, whose position moves as others are sealed, so its detail identifies it.
func (f *Findings) FromBreak(ctx context.Context, org ledger.OrgID, found *ledger.Break, counted int64) (*Tampering, error) {
	t := &Tampering{Check: found.Check, Place: found.Detail, Digest: found.Evidence}
	if found.Sequence < 1 || found.Sequence > counted {
		return t, nil
	}
	t.Place = fmt.Sprint("receipt ", found.Sequence)
	receipts, err := f.store.Receipts(ctx, org, found.Sequence+1, 1)
	if err != nil {
		return nil, err
	}
	if len(receipts) == 1 && receipts[0].Sequence == found.Sequence {
		t.Receipt, t.Place = receipts[0].ID, ""
	}
	return t, nil
}
