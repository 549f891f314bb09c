package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// Verdict is what there is to say about one receipt in its place.
type Verdict struct {
	Valid         bool                 `json:"valid"`
	ReceiptNumber string               `json:"receipt_number"`
	Organization  string               `json:"organization"`
	Chain         ledger.ChainID       `json:"chain_id"`
	GeneratedAt   string               `json:"generated_at"`
	Checks        []ledger.CheckResult `json:"checks"`
}

// FirstFailure is the first check that failed, nil when none did.
func (v *Verdict) FirstFailure() *ledger.CheckResult { return firstFailure(v.Checks) }

func firstFailure(checks []ledger.CheckResult) *ledger.CheckResult {
	for i := range checks {
		if checks[i].Status == ledger.CheckFail {
			return &checks[i]
		}
	}
	return nil
}

// VerifyReceipt judges one receipt: by itself, between its neighbours, under the
// organization's head, and with its chain's events. It returns an error only when
// it could not read; tampering is in the verdict.
func (j *Judge) VerifyReceipt(ctx context.Context, id ledger.ReceiptID) (*Verdict, error) {
	receipt, err := j.store.PlacedReceipt(ctx, id)
	if err != nil {
		return nil, err
	}
	in := j.InspectReceipt(&receipt.NamedReceipt)
	shown := in.Check(receipt.StoredReceipt)
	v := &verification{judge: j, receipt: receipt}
	if err := v.run(ctx); err != nil {
		return nil, err
	}
	verdict := &Verdict{
		ReceiptNumber: shown.Number, Organization: receipt.Slug, Chain: shown.Chain, GeneratedAt: shown.GeneratedAt, Checks: v.checks,
	}
	verdict.Valid = verdict.FirstFailure() == nil
	return verdict, nil
}

// InspectReceipt says what a receipt's stored bytes show by themselves. It may keep
// the receipt, which must not be changed, and not be lent by a scan.
func (j *Judge) InspectReceipt(receipt *store.NamedReceipt) ledger.Inspection {
	return j.sound.inspect(receipt.StoredReceipt, receipt.Slug, j.keys)
}

// verification holds a receipt against what stands around it.
type verification struct {
	judge   *Judge
	receipt *store.PlacedReceipt
	effort  Effort
	checks  []ledger.CheckResult
	chain   *chainVerdict // nil where nothing vouches for what the receipt says of it
}

func (v *verification) add(name ledger.Check, fault string) {
	if fault != "" {
		v.checks = append(v.checks, ledger.CheckResult{Name: name, Status: ledger.CheckFail, Detail: fault})
		return
	}
	v.checks = append(v.checks, ledger.CheckResult{Name: name, Status: ledger.CheckPass})
}

func (v *verification) skip(name ledger.Check, status ledger.CheckStatus, why string) {
	v.checks = append(v.checks, ledger.CheckResult{Name: name, Status: status, Detail: why})
}

func (v *verification) run(ctx context.Context) error {
	in := v.judge.sound.inspect(v.receipt.StoredReceipt, v.receipt.Slug, v.judge.keys)
	v.checks = make([]ledger.CheckResult, 0, maxChecks)
	v.inspected(&in)
	v.previousLink()
	v.head(&in)
	v.nextLink(&in)
	return v.events(ctx, &in)
}

// maxChecks is how many there are of a receipt.
const maxChecks = 9

// inspected says what the stored bytes show by themselves. Columns cannot be held
// against bytes that nothing vouches for.
func (v *verification) inspected(in *ledger.Inspection) {
	switch in.Fault {
	case ledger.CheckSignature:
		v.add(ledger.CheckSignature, "the signature does not match the stored bytes, or its key is not on the ring")
		v.skip(ledger.CheckColumns, ledger.CheckNotChecked, "the signature failed")
		v.skip(ledger.CheckSequence, ledger.CheckNotChecked, "the signature failed")
	case ledger.CheckColumns:
		v.add(ledger.CheckSignature, "")
		v.add(ledger.CheckColumns, "the record's columns do not agree with the signed bytes")
		v.skip(ledger.CheckSequence, ledger.CheckNotChecked, "the columns failed")
	default:
		v.add(ledger.CheckSignature, "")
		v.add(ledger.CheckColumns, "")
		v.add(ledger.CheckSequence, "") // the signed number agrees with the column
	}
}

func (v *verification) previousLink() {
	fault := ""
	switch {
	case v.receipt.Sequence == 1:
		if len(v.receipt.PreviousHash) > 0 {
			fault = "the first receipt of an organization has none before it"
		}
	case v.receipt.Previous == nil:
		fault = fmt.Sprintf("receipt %d, which comes before it, is missing", v.receipt.Sequence-1)
	default:
		// Its hash is that of its bytes, sound or not.
		in := v.judge.sound.inspect(v.receipt.Previous, v.receipt.Slug, v.judge.keys)
		if !bytes.Equal(in.Hash[:], v.receipt.PreviousHash) {
			fault = "it does not carry the hash of the receipt before it"
		}
	}
	v.add(ledger.CheckPreviousLink, fault)
}

func (v *verification) head(in *ledger.Inspection) {
	fault := ""
	switch head := v.receipt.Head; {
	case head == nil:
		fault = "the organization's head is missing"
	case !head.Authentic(v.judge.keys):
		fault = "the organization's head fails its authenticator"
	case head.Count < v.receipt.Sequence:
		fault = fmt.Sprintf("the head counts %d receipts, and this is number %d", head.Count, v.receipt.Sequence)
	case head.Count == v.receipt.Sequence && (head.Last == nil || *head.Last != in.Hash):
		fault = "the head's hash is not that of this receipt, which is the last"
	}
	v.add(ledger.CheckHead, fault)
}

func (v *verification) nextLink(in *ledger.Inspection) {
	sequence := v.receipt.Sequence + 1
	next, head := v.receipt.Next, v.receipt.Head
	switch {
	case next == nil && head != nil && head.Count >= sequence:
		v.add(ledger.CheckNextLink, fmt.Sprintf("receipt %d, which comes after it, is missing", sequence))
		return
	case next == nil:
		v.skip(ledger.CheckNextLink, ledger.CheckNotApplicable, "it is the last receipt")
		return
	}
	fault := ""
	if found := v.judge.sound.inspect(next, v.receipt.Slug, v.judge.keys).Fault; found != "" {
		fault = fmt.Sprintf("receipt %d, which comes after it, fails its %s check", sequence, found)
	} else if !bytes.Equal(next.PreviousHash, in.Hash[:]) {
		fault = "the receipt after it does not carry its hash"
	}
	v.add(ledger.CheckNextLink, fault)
}

// events holds the chain and its events against what the receipt attests.
func (v *verification) events(ctx context.Context, in *ledger.Inspection) error {
	if in.Fault != "" {
		v.skip(ledger.CheckChain, ledger.CheckNotChecked, "nothing vouches for what the receipt says of it")
		v.skip(ledger.CheckEventsDigest, ledger.CheckNotChecked, "nothing vouches for the digest in the receipt")
		v.skip(ledger.CheckApprovals, ledger.CheckNotChecked, "nothing vouches for the approvals in the receipt")
		return nil
	}
	verdict, err := v.judge.chainOf(ctx, v.receipt, in, v.effort)
	if err != nil {
		return err
	}
	v.chain = verdict
	v.checks = append(v.checks, verdict.checks...)
	return nil
}

func (j *Judge) newVerification(artifact string, id uuid.UUID) *ledger.Verification {
	return &ledger.Verification{
		Artifact: artifact, ID: id, VerifiedAt: j.now(),
		TSA: ledger.AnchorFinding{Standing: ledger.NotAnchored}, OpenTimestamp: ledger.AnchorFinding{Standing: ledger.NotAnchored},
		Signature: ledger.Finding{Standing: ledger.StandingNotApplicable}, Key: ledger.KeyNotApplicable,
		Evidence: ledger.Finding{Standing: ledger.StandingNotApplicable},
	}
}

// Gone is what a token shows whose artifact was removed: the service removes
// none.
func (j *Judge) Gone(artifact string, id uuid.UUID) *ledger.Verification {
	v := j.newVerification(artifact, id)
	v.Integrity = ledger.Finding{Standing: ledger.StandingInvalid, Reason: "artifact_missing"}
	return v
}

// Receipt makes a result of the checks of a receipt in its place.
func (j *Judge) Receipt(ctx context.Context, receipt *store.PlacedReceipt, effort Effort) (*ledger.Verification, error) {
	run := &verification{judge: j, receipt: receipt, effort: effort}
	if err := run.run(ctx); err != nil {
		return nil, err
	}
	v := j.newVerification(ledger.ArtifactReceipt, receipt.ID.UUID)
	if effort == InFull { // strangers learn none of it
		j.describeReceipt(ctx, v, receipt)
	}
	v.Checks = run.checks
	v.Integrity = finding(run.checks, ledger.CheckSignature, ledger.CheckColumns)
	v.Evidence = finding(run.checks, ledger.CheckPreviousLink, ledger.CheckNextLink, ledger.CheckSequence, ledger.CheckHead,
		ledger.CheckChain, ledger.CheckEventsDigest, ledger.CheckApprovals)
	if run.chain != nil {
		// The oldest of what is said: the rest was looked at just now.
		v.Partial, v.VerifiedAt = !run.chain.full, min(v.VerifiedAt, run.chain.at)
	}
	if !receipt.Anchored {
		return v, nil
	}
	return v, j.headAnchors(ctx, v, receipt.StoredReceipt)
}

// Check is the short verdict on a receipt in its place. It is not full where the events
// were not looked at.
func (j *Judge) Check(ctx context.Context, receipt *store.PlacedReceipt, effort Effort) (*ledger.ReceiptCheck, error) {
	run := &verification{judge: j, receipt: receipt, effort: effort}
	if err := run.run(ctx); err != nil && !errors.Is(err, ErrBusy) {
		return nil, err
	}
	in := j.InspectReceipt(&receipt.NamedReceipt)
	check := in.Check(receipt.StoredReceipt)
	check.Full = run.chain != nil && run.chain.full && !run.chain.large // what is remembered was not made now
	if failed := firstFailure(run.checks); failed != nil {
		check.Valid, check.Failed = false, failed.Name
	}
	return &check, nil
}

// describeReceipt says what a receipt is about, where its signature vouches for it.
func (j *Judge) describeReceipt(ctx context.Context, v *ledger.Verification, receipt *store.PlacedReceipt) {
	in := j.sound.inspect(receipt.StoredReceipt, receipt.Slug, j.keys)
	shown := in.Check(receipt.StoredReceipt)
	if !shown.Valid {
		return
	}
	v.ReceiptNumber, v.GeneratedAt = shown.Number, shown.GeneratedAt
	if at, err := ledger.ParseTime(shown.GeneratedAt); err == nil {
		v.CreatedAt = &at
	}
	v.Chain = j.chainNamed(ctx, receipt.Chain)
}

// finding sums checks up: one that failed makes the whole invalid.
func finding(checks []ledger.CheckResult, names ...ledger.Check) ledger.Finding {
	for _, check := range checks {
		for _, name := range names {
			if check.Name == name && check.Status == ledger.CheckFail {
				return ledger.Finding{Standing: ledger.StandingInvalid, Reason: string(name) + "_failed"}
			}
		}
	}
	return ledger.Finding{Standing: ledger.StandingValid, Reason: "ok"}
}

// chainNamed finds a chain for a result to name; nil where nothing vouches for
// what is stored of it.
func (j *Judge) chainNamed(ctx context.Context, id ledger.ChainID) *ledger.Chain {
	record, err := j.store.Chain(ctx, id)
	if err != nil {
		return nil
	}
	chain, _, fault := j.readChain(record)
	if fault != "" {
		return nil
	}
	return chain
}

// NewestReceipt is the receipt that an organization's head says is the last, nil where
// there is none. Neither is believed by itself: the head must be authentic, and the
// receipt signed and the one with the hash that the head holds. Rows behind the head
// are not looked at.
func (j *Judge) NewestReceipt(ctx context.Context, org *ledger.Organization) (*ledger.StoredReceipt, error) {
	head, err := j.store.Head(ctx, org.ID)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, fmt.Errorf("the organization's head is missing: %w", ledger.ErrStateTampered)
	case err != nil:
		return nil, err
	case !head.Authentic(j.keys):
		return nil, fmt.Errorf("the organization's head fails its authenticator: %w", ledger.ErrStateTampered)
	case head.Last == nil:
		return nil, nil
	}
	receipts, err := j.store.Receipts(ctx, org.ID, head.Count+1, 1)
	if err != nil {
		return nil, err
	}
	if len(receipts) != 1 || receipts[0].Sequence != head.Count || receipts[0].Hash() != *head.Last || !ledger.CheckReceipt(receipts[0], org.Slug, j.keys).Valid {
		return nil, fmt.Errorf("the last receipt is missing or changed: %w", ledger.ErrStateTampered)
	}
	return receipts[0], nil
}
