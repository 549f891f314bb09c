package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// Receipts verifies receipts: each on its own, between its neighbours, against the organization's
// head, and with its chain. It distinguishes tampering, which is part of the result, from a failure
// to read, which is an error.
type Receipts struct {
	*reader
	anchors *anchors
	sound   soundReceipts
	full    fullChecks
}

// Verdict is the result of verifying one receipt.
type Verdict struct {
	Valid         bool                 `json:"valid"`
	ReceiptNumber string               `json:"receipt_number"`
	Organization  string               `json:"organization"`
	Chain         ledger.ChainID       `json:"chain_id"`
	GeneratedAt   string               `json:"generated_at"`
	Checks        []ledger.CheckResult `json:"checks"`
}

// FirstFailure returns the first check that failed, or nil.
func (v *Verdict) FirstFailure() *ledger.CheckResult { return firstFailure(v.Checks) }

func firstFailure(checks []ledger.CheckResult) *ledger.CheckResult {
	for i := range checks {
		if checks[i].Status == ledger.CheckFail {
			return &checks[i]
		}
	}
	return nil
}

// Verdict checks one receipt: on its own, between its neighbours, against the organization's
// head, and with its chain's events. It returns an error only if it could not read. Tampering is in
// the verdict.
func (r *Receipts) Verdict(ctx context.Context, id ledger.ReceiptID) (*Verdict, error) {
	receipt, err := r.store.PlacedReceipt(ctx, id)
	if err != nil {
		return nil, err
	}
	in := r.Inspect(&receipt.NamedReceipt)
	shown := in.Check(receipt.StoredReceipt)
	v := &verification{receipts: r, receipt: receipt}
	if err := v.run(ctx); err != nil {
		return nil, err
	}
	verdict := &Verdict{
		ReceiptNumber: shown.Number, Organization: receipt.Slug, Chain: shown.Chain, GeneratedAt: shown.GeneratedAt, Checks: v.checks,
	}
	verdict.Valid = verdict.FirstFailure() == nil
	return verdict, nil
}

// Inspect checks a receipt's stored bytes on their own. It may keep the receipt, so the
// receipt must not be modified afterwards or belong to a scan's buffer.
func (r *Receipts) Inspect(receipt *store.NamedReceipt) ledger.Inspection {
	return r.sound.inspect(receipt.StoredReceipt, receipt.Slug, r.keys)
}

// verification checks a receipt in its context.
type verification struct {
	receipts *Receipts
	receipt  *store.PlacedReceipt
	effort   Effort
	checks   []ledger.CheckResult
	chain    *chainVerdict // nil if the receipt itself failed
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
	in := v.receipts.sound.inspect(v.receipt.StoredReceipt, v.receipt.Slug, v.receipts.keys)
	v.checks = make([]ledger.CheckResult, 0, maxChecks)
	v.inspected(&in)
	v.previousLink()
	v.head(&in)
	v.nextLink(&in)
	err := v.events(ctx, &in)
	if firstFailure(v.checks) != nil {
		v.receipts.full.forget(v.receipt.ID)
	}
	return err
}

// receiptChecked are the checks of a receipt before those of its chain, in the order in which run makes
// them.
var receiptChecked = []ledger.Check{
	ledger.CheckSignature, ledger.CheckColumns, ledger.CheckSequence, ledger.CheckPreviousLink, ledger.CheckHead, ledger.CheckNextLink,
}

// maxChecks is the number of checks of a receipt.
const maxChecks = 9

// inspected records what the stored bytes show on their own. The columns are not compared with
// bytes that failed.
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
		// The hash covers the stored bytes, whether they are sound or not.
		in := v.receipts.sound.inspect(v.receipt.Previous, v.receipt.Slug, v.receipts.keys)
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
	case !v.receipts.sound.authentic(head, v.receipts.keys):
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
	if found := v.receipts.sound.inspect(next, v.receipt.Slug, v.receipts.keys).Fault; found != "" {
		fault = fmt.Sprintf("receipt %d, which comes after it, fails its %s check", sequence, found)
	} else if !bytes.Equal(next.PreviousHash, in.Hash[:]) {
		fault = "the receipt after it does not carry its hash"
	}
	v.add(ledger.CheckNextLink, fault)
}

// events checks the chain and its events against what the receipt attests.
func (v *verification) events(ctx context.Context, in *ledger.Inspection) error {
	if in.Fault != "" {
		v.skip(ledger.CheckChain, ledger.CheckNotChecked, "nothing vouches for what the receipt says of it")
		v.skip(ledger.CheckEventsDigest, ledger.CheckNotChecked, "nothing vouches for the digest in the receipt")
		v.skip(ledger.CheckApprovals, ledger.CheckNotChecked, "nothing vouches for the approvals in the receipt")
		return nil
	}
	verdict, err := v.receipts.chainOf(ctx, v.receipt, in, v.effort)
	if err != nil {
		return err
	}
	v.chain = verdict
	v.checks = append(v.checks, verdict.checks...)
	return nil
}

// Verify verifies a receipt in its context.
func (r *Receipts) Verify(ctx context.Context, receipt *store.PlacedReceipt, effort Effort) (*ledger.Verification, error) {
	v, _, err := r.verify(ctx, receipt, effort)
	return v, err
}

// verify is Verify that also returns the verdict on the chain, nil if the receipt itself failed.
func (r *Receipts) verify(ctx context.Context, receipt *store.PlacedReceipt, effort Effort) (*ledger.Verification, *chainVerdict, error) {
	run := &verification{receipts: r, receipt: receipt, effort: effort}
	if err := run.run(ctx); err != nil {
		return nil, nil, err
	}
	v := r.newVerification(ledger.ArtifactReceipt, receipt.ID.UUID)
	if effort == InFull { // public checks reveal none of it
		if err := r.describe(ctx, v, receipt); err != nil {
			return nil, nil, err
		}
	}
	v.Checks = run.checks
	v.Integrity, v.Evidence = receiptFindings(run.checks)
	if run.chain != nil {
		// VerifiedAt is the time of the oldest check; all others were made just now.
		v.Partial, v.VerifiedAt = !run.chain.full, min(v.VerifiedAt, run.chain.at)
	}
	v.Repeated = run.repeats()
	if !receipt.Anchored {
		return v, run.chain, nil
	}
	return v, run.chain, r.headAnchors(ctx, v, receipt.StoredReceipt, effort)
}

// receiptFindings combines a receipt's checks.
func receiptFindings(checks []ledger.CheckResult) (integrity, links ledger.Finding) {
	return finding(checks, ledger.CheckSignature, ledger.CheckColumns),
		finding(checks, ledger.CheckPreviousLink, ledger.CheckNextLink, ledger.CheckSequence, ledger.CheckHead,
			ledger.CheckChain, ledger.CheckEventsDigest, ledger.CheckApprovals)
}

// Check returns the short verdict on a receipt in its context. Full is false if the events were not
// checked for it: the verdict does not say when they were.
func (r *Receipts) Check(ctx context.Context, receipt *store.PlacedReceipt, effort Effort) (*ledger.ReceiptCheck, error) {
	run := &verification{receipts: r, receipt: receipt, effort: effort}
	if err := run.run(ctx); err != nil && !errors.Is(err, ErrBusy) {
		return nil, err
	}
	in := r.Inspect(&receipt.NamedReceipt)
	check := in.Check(receipt.StoredReceipt)
	check.Full = run.chain != nil && run.chain.full && !run.chain.large && !run.chain.old // an earlier result is not a full check
	if failed := firstFailure(run.checks); failed != nil {
		check.Valid, check.Failed, check.Repeated = false, failed.Name, run.repeats()
	}
	return &check, nil
}

// repeats reports whether the first failure is only in the chain, and was found by an earlier check:
// the chain may have been repaired since.
func (v *verification) repeats() bool {
	if v.chain == nil || !v.chain.again {
		return false
	}
	now := v.checks[:len(v.checks)-len(v.chain.checks)]
	return firstFailure(now) == nil && firstFailure(v.chain.checks) != nil
}

// describe adds what a receipt is about, if its signature is valid.
func (r *Receipts) describe(ctx context.Context, v *ledger.Verification, receipt *store.PlacedReceipt) (err error) {
	in := r.sound.inspect(receipt.StoredReceipt, receipt.Slug, r.keys)
	shown := in.Check(receipt.StoredReceipt)
	if !shown.Valid {
		return nil
	}
	v.ReceiptNumber, v.GeneratedAt = shown.Number, shown.GeneratedAt
	if at, err := ledger.ParseTime(shown.GeneratedAt); err == nil {
		v.CreatedAt = &at
	}
	v.Chain, err = r.authenticChain(ctx, receipt.Chain)
	return err
}

// finding combines checks: one failure makes the result invalid.
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

// Newest returns the last receipt of an organization according to its head, or nil if there
// is none. The head must be authentic, and the receipt must be signed and have the hash in the
// head. Rows beyond the head are ignored.
func (r *Receipts) Newest(ctx context.Context, org *ledger.Organization) (*ledger.StoredReceipt, error) {
	head, err := r.store.Head(ctx, org.ID)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, fmt.Errorf("the organization's head is missing: %w", ledger.ErrStateTampered)
	case err != nil:
		return nil, err
	case !head.Authentic(r.keys):
		return nil, fmt.Errorf("the organization's head fails its authenticator: %w", ledger.ErrStateTampered)
	case head.Last == nil:
		return nil, nil
	}
	receipts, err := r.store.Receipts(ctx, org.ID, head.Count+1, 1)
	if err != nil {
		return nil, err
	}
	if len(receipts) != 1 || receipts[0].Sequence != head.Count || receipts[0].Hash() != *head.Last || !ledger.CheckReceipt(receipts[0], org.Slug, r.keys).Valid {
		return nil, fmt.Errorf("the last receipt is missing or changed: %w", ledger.ErrStateTampered)
	}
	return receipts[0], nil
}
