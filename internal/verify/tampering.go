package verify

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"countersign/internal/ledger"
)

// Tampering is proof that evidence was changed outside the service: which check
// failed, and on what.
type Tampering struct {
	Check    ledger.Check
	Receipt  ledger.ReceiptID  // zero: it is about none that is stored
	Approval ledger.ApprovalID // likewise
	Place    string            // what it is about, where it is about neither
	// Digest is of the row that it is about, where it is about neither and one is; nil
	// where none tells it from a later one. It is no part of the name.
	Digest []byte
}

// Name is the same for the same finding, whoever comes upon it.
func (t *Tampering) Name() string {
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%s\n%s\n%s", t.Check, t.Receipt, t.Approval, t.Place)
	return "tampering/" + hex.EncodeToString(h.Sum(nil))
}

// Proven is the tampering that a verification proves, nil where it failed in
// nothing.
func Proven(v *ledger.Verification) *Tampering {
	overall, reason := v.Conclude()
	if overall != ledger.VerdictFailed {
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

// Broken is the tampering behind a break. One among the receipts that were counted
// when the audit began is about the receipt in that place. One behind them is
// about something without a receipt, whose place moves on as others are sealed:
// then what is said of it tells it from others.
func (j *Judge) Broken(ctx context.Context, org ledger.OrgID, found *ledger.Break, counted int64) (*Tampering, error) {
	t := &Tampering{Check: found.Check, Place: found.Detail, Digest: found.Evidence}
	if found.Sequence < 1 || found.Sequence > counted {
		return t, nil
	}
	t.Place = fmt.Sprint("receipt ", found.Sequence)
	receipts, err := j.store.Receipts(ctx, org, found.Sequence+1, 1)
	if err != nil {
		return nil, err
	}
	if len(receipts) == 1 && receipts[0].Sequence == found.Sequence {
		t.Receipt, t.Place = receipts[0].ID, ""
	}
	return t, nil
}
