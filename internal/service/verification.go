package service

import (
	"context"
	"crypto/ed25519"
	"errors"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// The checks of an approval, besides those that receipts have too.
const (
	checkRecord     ledger.Check = "record"
	checkPayload    ledger.Check = "payload"
	checkChainEntry ledger.Check = "chain_entry"
	checkReceipt    ledger.Check = "receipt"
)

// VerifyApproval judges one approval in all that was recorded about it.
func (s *Service) VerifyApproval(ctx context.Context, caller *Caller, id ledger.ApprovalID) (*ledger.Verification, error) {
	if err := s.authorize(ctx, caller, ledger.RoleMember); err != nil {
		return nil, err
	}
	record, err := s.store.Approval(ctx, id)
	if err != nil {
		return nil, visible(err)
	}
	if record.Org != caller.Org {
		return nil, ledger.ErrNotFound
	}
	return s.telling(ctx, caller.Org)(s.judgeApproval(ctx, record))
}

// VerifyReceipt judges one receipt: by itself, between its neighbours, under the
// head, with its chain's events and approvals.
func (s *Service) VerifyReceipt(ctx context.Context, caller *Caller, id ledger.ReceiptID) (*ledger.Verification, error) {
	if err := s.authorize(ctx, caller, ledger.RoleMember); err != nil {
		return nil, err
	}
	receipt, err := s.store.PlacedReceipt(ctx, id)
	if err != nil {
		return nil, visible(err)
	}
	if receipt.Org != caller.Org {
		return nil, ledger.ErrNotFound
	}
	return s.telling(ctx, caller.Org)(s.verifyReceipt(ctx, receipt, true))
}

func (s *Service) newVerification(artifact string, id uuid.UUID) *ledger.Verification {
	return &ledger.Verification{
		Artifact: artifact, ID: id, VerifiedAt: s.now(),
		TSA: ledger.AnchorFinding{Standing: ledger.NotAnchored}, OpenTimestamp: ledger.AnchorFinding{Standing: ledger.NotAnchored},
		Signature: ledger.Finding{Standing: ledger.StandingNotApplicable}, Key: ledger.KeyNotApplicable,
		Evidence: ledger.Finding{Standing: ledger.StandingNotApplicable},
	}
}

// gone is what a token shows whose artifact was removed: the service removes
// none.
func (s *Service) gone(artifact string, id uuid.UUID) *ledger.Verification {
	v := s.newVerification(artifact, id)
	v.Integrity = ledger.Finding{Standing: ledger.StandingInvalid, Reason: "artifact_missing"}
	return v
}

// verifyReceipt makes a result of the checks of a receipt in its place; deep also
// reads its chain.
func (s *Service) verifyReceipt(ctx context.Context, receipt *store.PlacedReceipt, deep bool) (*ledger.Verification, error) {
	run := &verification{service: s, receipt: receipt, shallow: !deep}
	if err := run.run(ctx); err != nil {
		return nil, visible(err)
	}
	v := s.newVerification(ledger.ArtifactReceipt, receipt.ID.UUID)
	if deep { // strangers learn none of it
		s.describeReceipt(ctx, v, receipt)
	}
	v.Checks = run.checks
	v.Integrity = finding(run.checks, ledger.CheckSignature, ledger.CheckColumns)
	v.Evidence = finding(run.checks, ledger.CheckPreviousLink, ledger.CheckNextLink, ledger.CheckSequence, ledger.CheckHead,
		ledger.CheckChain, ledger.CheckEventsDigest, ledger.CheckApprovals)
	if !receipt.Anchored {
		return v, nil
	}
	return v, s.headAnchors(ctx, v, receipt.StoredReceipt)
}

// describeReceipt says what a receipt is about, where its signature vouches for it.
func (s *Service) describeReceipt(ctx context.Context, v *ledger.Verification, receipt *store.PlacedReceipt) {
	in := s.sound.inspect(receipt.StoredReceipt, receipt.Slug, s.keys)
	shown := in.Check(receipt.StoredReceipt)
	if !shown.Valid {
		return
	}
	v.ReceiptNumber, v.GeneratedAt = shown.Number, shown.GeneratedAt
	if at, err := ledger.ParseTime(shown.GeneratedAt); err == nil {
		v.CreatedAt = &at
	}
	v.Chain = s.chainNamed(ctx, receipt.Chain)
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
func (s *Service) chainNamed(ctx context.Context, id ledger.ChainID) *ledger.Chain {
	record, err := s.store.Chain(ctx, id)
	if err != nil {
		return nil
	}
	view, err := s.view(record)
	if err != nil {
		return nil
	}
	return view.Chain
}

type approvalVerification struct {
	service *Service
	record  *store.ApprovalRecord
	result  *ledger.Verification
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
	approval, _ := v.service.readApproval(v.record) // why it cannot be read is a finding, not an error
	if approval == nil {
		v.check(checkRecord, "the record fails its authenticator or its columns do not agree with it")
		v.skip("nothing vouches for the record", ledger.CheckNotChecked, checkPayload, ledger.CheckSignature, checkChainEntry, checkReceipt)
		r.Integrity = ledger.Finding{Standing: ledger.StandingInvalid, Reason: "record_failed"}
		r.Signature = ledger.Finding{Standing: ledger.StandingMissing, Reason: "record_failed"}
		return nil
	}
	v.check(checkRecord, "")
	r.Approval, r.CreatedAt = approval, &approval.RequestedAt
	r.Undecided = approval.Status.Open() // one that has lapsed is not decided until that is recorded
	r.Chain = v.service.chainNamed(ctx, approval.Chain)
	if err := v.payload(ctx, approval); err != nil {
		return err
	}
	r.Integrity = finding(r.Checks, checkRecord, checkPayload)
	if err := v.signature(ctx, approval); err != nil {
		return err
	}
	if err := v.evidence(ctx, approval); err != nil {
		return err
	}
	return v.service.approvalAnchors(ctx, r, approval)
}

func (v *approvalVerification) payload(ctx context.Context, approval *ledger.Approval) error {
	event, err := v.service.store.Event(ctx, store.EventAt{Chain: approval.Chain, Sequence: approval.Sequence})
	switch {
	case errors.Is(err, store.ErrNotFound):
		v.check(checkPayload, "the event that it is about is missing")
	case err != nil:
		return err
	case !aboutEvent(v.service.keys, approval, event):
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

// aboutEvent reports whether a stored event is the one that an approval is about,
// as the service recorded it.
func aboutEvent(keys ledger.Keys, approval *ledger.Approval, stored *ledger.StoredEvent) bool {
	event, err := readEvent(keys, approval.Org, stored)
	return err == nil && event.ID == approval.Event && event.Approval == approval.ID && event.PayloadSHA256 == approval.PayloadSHA256 &&
		(approval.RedactionsSHA256 == nil || event.RedactionsSHA256 != nil && *event.RedactionsSHA256 == *approval.RedactionsSHA256)
}

// signature judges the decision's signature, and apart from it how far its key is
// trusted today.
func (v *approvalVerification) signature(ctx context.Context, approval *ledger.Approval) error {
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
	keys, err := v.service.store.SigningKeys(ctx, approval.Org)
	if err != nil {
		return err
	}
	if !v.service.genuine(keys) {
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
	case SigningActive:
		return ledger.KeyTrusted
	case SigningRetired:
		return ledger.KeyRetired
	case SigningRevoked:
		return ledger.KeyRevoked
	default:
		return ledger.KeyNotEvaluated
	}
}

// evidence holds the approval against its chain: the end that was entered there,
// and the receipt where there is one.
func (v *approvalVerification) evidence(ctx context.Context, approval *ledger.Approval) error {
	addenda, err := v.service.store.Addenda(ctx, approval.Chain, approval.Sequence, approval.Sequence)
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
	receipt, err := v.service.store.ReceiptOfChain(ctx, approval.Chain)
	if errors.Is(err, store.ErrNotFound) {
		return v.withoutReceipt(ctx, approval)
	}
	if err != nil {
		return err
	}
	org, err := v.service.store.Organization(ctx, approval.Org)
	if err != nil {
		return err
	}
	fault := ""
	if check := ledger.CheckReceipt(receipt, org.Slug, v.service.keys); !check.Valid {
		fault = "the chain's receipt does not verify"
	} else if !ledger.ListsApproval(receipt.Body, approval) {
		fault = "the chain's receipt does not list it so"
	}
	v.check(checkReceipt, fault)
	return nil
}
