package service

import (
	"bytes"
	"context"
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
	receipt, err := o.service.store.PlacedReceipt(ctx, id)
	if err != nil {
		return nil, visible(err)
	}
	in := o.service.sound.inspect(receipt.StoredReceipt, receipt.Slug, o.service.keys)
	shown := in.Check(receipt.StoredReceipt)
	v := &verification{service: o.service, receipt: receipt}
	if err := v.run(ctx); err != nil {
		return nil, visible(err)
	}
	verdict := &Verdict{
		ReceiptNumber: shown.Number, Organization: receipt.Slug, Chain: shown.Chain, GeneratedAt: shown.GeneratedAt, Checks: v.checks,
	}
	verdict.Valid = verdict.FirstFailure() == nil
	return verdict, nil
}

// verification holds a receipt against what stands around it.
type verification struct {
	service *Service
	receipt *store.PlacedReceipt
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
	in := v.service.sound.inspect(v.receipt.StoredReceipt, v.receipt.Slug, v.service.keys)
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
		in := v.service.sound.inspect(v.receipt.Previous, v.receipt.Slug, v.service.keys)
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
	case !head.Authentic(v.service.keys):
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
	if found := v.service.sound.inspect(next, v.receipt.Slug, v.service.keys).Fault; found != "" {
		fault = fmt.Sprintf("receipt %d, which comes after it, fails its %s check", sequence, found)
	} else if !bytes.Equal(next.PreviousHash, in.Hash[:]) {
		fault = "the receipt after it does not carry its hash"
	}
	v.add(ledger.CheckNextLink, fault)
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
	org, err := v.service.store.Organization(ctx, v.receipt.Org)
	if err != nil {
		return err
	}
	a := &audit{service: v.service, org: org}
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
