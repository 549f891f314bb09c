package verify

import (
	"context"
	"crypto/ed25519"
	"errors"

	"countersign/internal/evidence"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// Approvals verifies approvals, those of this ledger and imported ones, and whether each open one
// will be escalated or timed out.
type Approvals struct {
	*reader
	anchors *anchors
}

// Checks of an approval, in addition to those that it shares with receipts.
const (
	checkRecord     ledger.Check = "record"
	checkPayload    ledger.Check = "payload"
	checkChainEntry ledger.Check = "chain_entry"
	checkReceipt    ledger.Check = "receipt"
)

type approvalVerification struct {
	approvals *Approvals
	record    *store.ApprovalRecord
	result    *ledger.Verification
}

func (v *approvalVerification) check(name ledger.Check, fault string) bool {
	if fault != "" {
		v.result.Checks = append(v.result.Checks, ledger.CheckResult{Name: name, Status: ledger.CheckFail, Detail: fault})
		return false
	}
	v.result.Checks = append(v.result.Checks, ledger.CheckResult{Name: name, Status: ledger.CheckPass})
	return true
}

func (v *approvalVerification) skip(why string, status ledger.CheckStatus, names ...ledger.Check) {
	for _, name := range names {
		v.result.Checks = append(v.result.Checks, ledger.CheckResult{Name: name, Status: status, Detail: why})
	}
}

func (v *approvalVerification) run(ctx context.Context) error {
	r := v.result
	approval, _ := v.approvals.store.ReadApproval(v.record) // a failure to read is a finding, not an error
	if approval == nil {
		v.check(checkRecord, "the record fails its authenticator or its columns do not agree with it")
		v.skip("nothing vouches for the record", ledger.CheckNotChecked, checkPayload, ledger.CheckSignature, checkChainEntry, checkReceipt)
		r.Integrity = ledger.Finding{Standing: ledger.StandingInvalid, Reason: "record_failed"}
		r.Signature, r.Key = ledger.Finding{Standing: ledger.StandingInvalid, Reason: "record_failed"}, ledger.KeyNotEvaluated
		return v.approvals.anchors.ofUnreadable(ctx, r, v.record)
	}
	v.check(checkRecord, "")
	r.Approval, r.CreatedAt = approval, &approval.RequestedAt
	r.Undecided = approval.Status.Open() // a lapsed approval counts as undecided until the timeout is recorded
	var err error
	if r.Chain, err = v.approvals.authenticChain(ctx, approval.Chain); err != nil {
		return err
	}
	if err := v.payload(ctx, approval); err != nil {
		return err
	}
	r.Integrity = finding(r.Checks, checkRecord, checkPayload)
	if err := v.signature(ctx, approval.Org, approval); err != nil {
		return err
	}
	if err := v.chainEvidence(ctx, approval); err != nil {
		return err
	}
	return v.approvals.anchors.ofApproval(ctx, r, approval)
}

func (v *approvalVerification) payload(ctx context.Context, approval *ledger.Approval) error {
	event, err := v.approvals.store.Event(ctx, store.EventAt{Chain: approval.Chain, Sequence: approval.Sequence})
	switch {
	case errors.Is(err, store.ErrNotFound):
		v.check(checkPayload, "the event that it is about is missing")
	case err != nil:
		return err
	case !v.matchesEvent(approval, event):
		v.check(checkPayload, "the event that it is about was changed")
	case event.Payload == nil:
		v.skip("the payload was erased", ledger.CheckNotChecked, checkPayload)
	case !approval.IsAbout(event):
		v.check(checkPayload, "the payload is not the one that was asked about")
	default:
		v.check(checkPayload, "")
	}
	return nil
}

// matchesEvent reports whether a stored event is authentic and the one that the approval is about.
func (v *approvalVerification) matchesEvent(approval *ledger.Approval, stored *ledger.StoredEvent) bool {
	event, err := v.approvals.store.ReadEvent(approval.Org, stored)
	return err == nil && event.ID == approval.Event && event.Approval == approval.ID && event.PayloadSHA256 == approval.PayloadSHA256 &&
		(approval.RedactionsSHA256 == nil || event.RedactionsSHA256 != nil && *event.RedactionsSHA256 == *approval.RedactionsSHA256)
}

// signature judges the decision's signature. Separately it reports how far the organization that
// stores the approval trusts the key today.
func (v *approvalVerification) signature(ctx context.Context, org ledger.OrgID, approval *ledger.Approval) error {
	r := v.result
	if approval.Status.Open() || approval.Status == ledger.ApprovalCancelled {
		v.skip("there is no decision to sign", ledger.CheckNotApplicable, ledger.CheckSignature)
		return nil
	}
	if len(approval.Signature) == 0 {
		v.skip("the decision carries no signature", ledger.CheckNotChecked, ledger.CheckSignature)
		r.Signature = ledger.Finding{Standing: ledger.StandingMissing, Reason: "unsigned"}
		return nil
	}
	keys, err := v.approvals.store.SigningKeys(ctx, org)
	if err != nil {
		return err
	}
	if !evidence.AllAuthentic(keys) {
		v.check(ledger.CheckSignature, "the registry of signing keys was changed")
		r.Signature, r.Key = ledger.Finding{Standing: ledger.StandingInvalid, Reason: "registry_failed"}, ledger.KeyNotEvaluated
		return nil
	}
	for _, key := range keys {
		if key.ID == approval.SigningKey {
			r.Key = keyStanding(key)
			if v.check(ledger.CheckSignature, signatureFault(approval, key)) {
				r.Signature = ledger.Finding{Standing: ledger.StandingValid, Reason: "ok"}
			} else {
				r.Signature = ledger.Finding{Standing: ledger.StandingInvalid, Reason: "signature_mismatch"}
			}
			return nil
		}
	}
	v.skip("the registry does not know the key that signed it", ledger.CheckNotChecked, ledger.CheckSignature)
	r.Signature, r.Key = ledger.Finding{Standing: ledger.StandingMissing, Reason: "key_unknown"}, ledger.KeyNotEvaluated
	return nil
}

func signatureFault(approval *ledger.Approval, key *store.SigningKeyRecord) string {
	if approval.SignedBy(ed25519.PublicKey(key.Public)) {
		return ""
	}
	return "the signature is not that of the decision under its key"
}

func keyStanding(key *store.SigningKeyRecord) ledger.KeyStanding {
	switch key.Status {
	case ledger.SigningActive, ledger.SigningConfirmed:
		return ledger.KeyTrusted
	case ledger.SigningRetired:
		return ledger.KeyRetired
	case ledger.SigningRevoked:
		return ledger.KeyRevoked
	default:
		return ledger.KeyNotEvaluated
	}
}

// chainEvidence checks the approval against its chain: the entry that ended it, and the receipt if
// there is one.
func (v *approvalVerification) chainEvidence(ctx context.Context, approval *ledger.Approval) error {
	addenda, err := v.approvals.store.Addenda(ctx, approval.Chain, approval.Sequence, approval.Sequence)
	if err != nil {
		return err
	}
	entries, err := ledger.DecodeEntries(addenda)
	if err != nil {
		v.check(checkChainEntry, "what was entered about the event cannot be read")
	} else {
		v.entry(approval, entries)
	}
	if err := v.receipt(ctx, approval); err != nil {
		return err
	}
	v.result.Evidence = finding(v.result.Checks, checkChainEntry, checkReceipt)
	if approval.Status.Open() && v.result.Evidence.Standing == ledger.StandingValid {
		v.result.Evidence = ledger.Finding{Standing: ledger.StandingNotApplicable, Reason: "not_decided"}
	}
	return nil
}

func (v *approvalVerification) entry(approval *ledger.Approval, entries []*ledger.Entry) {
	var ended *ledger.Entry
	for _, entry := range entries {
		if entry.Kind == ledger.EntryApproval && entry.Approval == approval.ID {
			ended = entry
		}
	}
	switch {
	case ended == nil && approval.Status.Open():
		v.skip("it is not decided yet", ledger.CheckNotApplicable, checkChainEntry)
	case ended == nil:
		v.check(checkChainEntry, "its end was not entered into the chain")
	case approval.Status.Open():
		v.check(checkChainEntry, "its end was entered into the chain, but it stands open")
	case ended.ApprovalHash != approval.Hash() || ended.ApprovalStatus != approval.Status:
		v.check(checkChainEntry, "another end was entered into the chain")
	default:
		v.check(checkChainEntry, "")
	}
}

func (v *approvalVerification) receipt(ctx context.Context, approval *ledger.Approval) error {
	receipt, err := v.approvals.store.ReceiptOfChain(ctx, approval.Chain)
	if errors.Is(err, store.ErrNotFound) {
		return v.withoutReceipt(ctx, approval)
	}
	if err != nil {
		return err
	}
	org, err := v.approvals.store.Organization(ctx, approval.Org)
	if err != nil {
		return err
	}
	fault := ""
	if check := ledger.CheckReceipt(receipt, org.Slug, v.approvals.keys); !check.Valid {
		fault = "the chain's receipt does not verify"
	} else if !ledger.ListsApproval(receipt.Body, approval) {
		fault = "the chain's receipt does not list it so"
	}
	v.check(checkReceipt, fault)
	return nil
}

// maxJudgements bounds how often an approval is read again. An approval changes only a few times.
const maxJudgements = 3

// Verify verifies an approval and everything recorded about it. A decision or a seal between two
// reads looks like a difference but is not tampering, so a failure is reported only after reading
// again.
func (a *Approvals) Verify(ctx context.Context, record *store.ApprovalRecord) (*ledger.Verification, error) {
	for attempt := 1; ; attempt++ {
		v := &approvalVerification{approvals: a, record: record, result: a.newVerification(ledger.ArtifactApproval, record.ID.UUID)}
		if err := v.run(ctx); err != nil {
			return nil, err
		}
		if overall, _ := v.result.Conclude(); overall != ledger.VerdictFailed || attempt == maxJudgements {
			return v.result, nil
		}
		again, err := a.store.Approval(ctx, record.ID)
		if errors.Is(err, store.ErrNotFound) {
			return v.result, nil
		}
		if err != nil {
			return nil, err
		}
		record = again
	}
}

// withoutReceipt reports why there is no receipt: the chain is still open, or the receipt was
// removed.
func (v *approvalVerification) withoutReceipt(ctx context.Context, approval *ledger.Approval) error {
	record, err := v.approvals.store.Chain(ctx, approval.Chain)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	if err == nil {
		if state, fault := v.approvals.readState(record); fault == "" && !state.Status.Sealed() {
			v.skip("the chain is not completed yet", ledger.CheckNotApplicable, checkReceipt)
			return nil
		}
	}
	v.check(checkReceipt, "the chain is not open, and its receipt is missing")
	return nil
}
