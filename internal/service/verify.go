package service

import (
	"bytes"
	"context"
	"errors"
	"fmt"

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
func (v *Verdict) FirstFailure() *ledger.CheckResult {
	for i := range v.Checks {
		if v.Checks[i].Status == ledger.CheckFail {
			return &v.Checks[i]
		}
	}
	return nil
}

// VerifyReceipt judges one receipt: by itself, between its neighbours, under the
// organization's head, and with its chain's events. It returns an error only when
// it could not read; tampering is in the verdict.
func (o *Operator) VerifyReceipt(ctx context.Context, id ledger.ReceiptID) (*Verdict, error) {
	receipt, err := o.service.store.Receipt(ctx, id)
	if err != nil {
		return nil, visible(err)
	}
	org, err := o.service.store.Organization(ctx, receipt.Org)
	if errors.Is(err, store.ErrNotFound) {
		org, err = &ledger.Organization{ID: receipt.Org}, nil // its slug will not be that of the receipt
	}
	if err != nil {
		return nil, visible(err)
	}
	shown := ledger.CheckReceipt(receipt, org.Slug, o.service.keys)
	v := &verification{service: o.service, org: org, receipt: receipt}
	if err := v.run(ctx); err != nil {
		return nil, visible(err)
	}
	verdict := &Verdict{
		ReceiptNumber: shown.Number, Organization: org.Slug, Chain: shown.Chain, GeneratedAt: shown.GeneratedAt, Checks: v.checks,
	}
	verdict.Valid = verdict.FirstFailure() == nil
	return verdict, nil
}

type verification struct {
	service *Service
	org     *ledger.Organization
	receipt *ledger.StoredReceipt
	checks  []ledger.CheckResult
	shallow bool // leave the chain's events alone
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
	in := ledger.Inspect(v.receipt, v.org.Slug, v.service.keys)
	v.inspected(&in)
	if err := v.previousLink(ctx); err != nil {
		return err
	}
	// The head is read before the next receipt: one that the head counts must be
	// there, while one that is sealed from now on need not be.
	head, err := v.head(ctx, &in)
	if err != nil {
		return err
	}
	if err := v.nextLink(ctx, &in, head); err != nil {
		return err
	}
	return v.events(ctx, &in)
}

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

func (v *verification) previousLink(ctx context.Context) error {
	if v.receipt.Sequence == 1 {
		fault := ""
		if len(v.receipt.PreviousHash) > 0 {
			fault = "the first receipt of an organization has none before it"
		}
		v.add(ledger.CheckPreviousLink, fault)
		return nil
	}
	previous, err := v.neighbour(ctx, v.receipt.Sequence-1)
	switch {
	case err != nil:
		return err
	case previous == nil:
		v.add(ledger.CheckPreviousLink, fmt.Sprintf("receipt %d, which comes before it, is missing", v.receipt.Sequence-1))
	case !bytes.Equal(previous.hash[:], v.receipt.PreviousHash):
		v.add(ledger.CheckPreviousLink, "it does not carry the hash of the receipt before it")
	default:
		v.add(ledger.CheckPreviousLink, "")
	}
	return nil
}

func (v *verification) head(ctx context.Context, in *ledger.Inspection) (*ledger.Head, error) {
	head, err := v.service.store.Head(ctx, v.org.ID)
	if errors.Is(err, store.ErrNotFound) {
		head, err = nil, nil
	}
	if err != nil {
		return nil, err
	}
	fault := ""
	switch {
	case head == nil:
		fault = "the organization's head is missing"
	case !head.Authentic(v.service.keys):
		fault = "the organization's head fails its authenticator"
	case head.Count < v.receipt.Sequence:
		fault = fmt.Sprintf("the head counts %d receipts, and this is number %d", head.Count, v.receipt.Sequence)
	case head.Count == v.receipt.Sequence && (head.Last == nil || *head.Last != in.Hash):
		fault = "the head's hash is not that of this receipt, which is the last"
	}
	v.add(ledger.CheckHead, fault)
	return head, nil
}

func (v *verification) nextLink(ctx context.Context, in *ledger.Inspection, head *ledger.Head) error {
	sequence := v.receipt.Sequence + 1
	next, err := v.neighbour(ctx, sequence)
	switch {
	case err != nil:
		return err
	case next == nil && head != nil && head.Count >= sequence:
		v.add(ledger.CheckNextLink, fmt.Sprintf("receipt %d, which comes after it, is missing", sequence))
	case next == nil:
		v.skip(ledger.CheckNextLink, ledger.CheckNotApplicable, "it is the last receipt")
	case next.fault != "":
		v.add(ledger.CheckNextLink, fmt.Sprintf("receipt %d, which comes after it, fails its %s check", sequence, next.fault))
	case !bytes.Equal(next.previous, in.Hash[:]):
		v.add(ledger.CheckNextLink, "the receipt after it does not carry its hash")
	default:
		v.add(ledger.CheckNextLink, "")
	}
	return nil
}

// events holds the chain and its events against what the receipt attests.
func (v *verification) events(ctx context.Context, in *ledger.Inspection) error {
	if v.shallow {
		v.skip(ledger.CheckChain, ledger.CheckNotChecked, "")
		v.skip(ledger.CheckEventsDigest, ledger.CheckNotChecked, "")
		v.skip(ledger.CheckApprovals, ledger.CheckNotChecked, "")
		return nil
	}
	if in.Fault != "" {
		v.skip(ledger.CheckChain, ledger.CheckNotChecked, "nothing vouches for what the receipt says of it")
		v.skip(ledger.CheckEventsDigest, ledger.CheckNotChecked, "nothing vouches for the digest in the receipt")
		v.skip(ledger.CheckApprovals, ledger.CheckNotChecked, "nothing vouches for the approvals in the receipt")
		return nil
	}
	a := &audit{service: v.service, org: v.org}
	found, err := a.inspectSealed(ctx, &sealedChain{
		summary: in.Summary,
		receipt: v.receipt.ID, chain: v.receipt.Chain, digest: in.EventsDigest, actions: in.Actions, sequence: v.receipt.Sequence,
	})
	switch {
	case err != nil:
		return err
	case found == nil:
		v.add(ledger.CheckChain, "")
		v.add(ledger.CheckEventsDigest, "")
		v.add(ledger.CheckApprovals, "")
	case found.Check == ledger.CheckApprovals:
		v.add(ledger.CheckChain, "")
		v.add(ledger.CheckEventsDigest, "")
		v.add(ledger.CheckApprovals, found.Detail)
	case found.Check == ledger.CheckEventsDigest:
		v.add(ledger.CheckChain, "")
		v.add(ledger.CheckEventsDigest, found.Detail)
		v.skip(ledger.CheckApprovals, ledger.CheckNotChecked, "the chain's events failed")
	default:
		v.add(found.Check, found.Detail)
		v.skip(ledger.CheckEventsDigest, ledger.CheckNotChecked, "the chain's record failed")
		v.skip(ledger.CheckApprovals, ledger.CheckNotChecked, "the chain's record failed")
	}
	return nil
}

// neighbour is what a verification needs of the receipt beside its own.
type neighbour struct {
	hash     [32]byte
	previous []byte
	fault    ledger.Check
}

// neighbour looks at one place in the ledger; nil when nothing is there.
func (v *verification) neighbour(ctx context.Context, sequence int64) (found *neighbour, err error) {
	// The newest below the next: a list of one, where a scan would open a connection
	// of its own.
	receipts, err := v.service.store.Receipts(ctx, v.org.ID, sequence+1, 1)
	if err != nil || len(receipts) == 0 || receipts[0].Sequence != sequence {
		return nil, err
	}
	in := ledger.Inspect(receipts[0], v.org.Slug, v.service.keys)
	return &neighbour{hash: in.Hash, previous: receipts[0].PreviousHash, fault: in.Fault}, nil
}
