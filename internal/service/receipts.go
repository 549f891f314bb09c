package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"countersign/internal/evidence"
	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/notify"
	"countersign/internal/store"
	"countersign/internal/verify"
)

// receiptService lists and verifies receipts, approvals and whole ledgers.
type receiptService struct {
	*shared
	approvals *approvalService
	chains    *chainService
	findings  *findingService
}

// Completed is a sealed chain with the stored bytes of its receipt.
type Completed struct {
	ChainView
	Receipt []byte
}

// CompleteChain seals a chain and issues its receipt. Repeating it returns the same receipt. It
// refuses an outcome that differs from the sealed one.
func (s *recordService) CompleteChain(ctx context.Context, caller *Caller, id ledger.ChainID, completion *ledger.Completion) (*Completed, error) {
	if err := caller.require(ledger.RoleAgent); err != nil {
		return nil, err
	}
	op := &completeChain{caller: caller, line: s.chains.lineage(id), completion: completion}
	err := s.chains.retryLineage(op.line, func() error {
		if err := op.readEvents(ctx, s); err != nil {
			return err
		}
		return s.commitLoaded(ctx, op)
	})
	if err != nil {
		return nil, err
	}
	if op.receipt == nil {
		stored, err := s.receipts.sealedReceipt(ctx, caller.Org, op.view.Chain.ID)
		if err != nil {
			return nil, err
		}
		if stored.Tampered {
			return nil, ErrTampered
		}
		op.receipt = stored.Body
	}
	return &Completed{ChainView: op.view, Receipt: op.receipt}, nil
}

// chainReading is the result of reading a chain's events before the transaction that seals it,
// so that only those recorded in the meantime remain to be read under the chain's lock.
type chainReading struct {
	chain   ledger.ChainID
	events  int64           // number of events read; the sequence of the last
	rows    [32]byte        // running digest over their rows
	summary *ledger.Summary // nil if they were not decoded, because the chain's summary is cached
}

// readChain reads the events of a chain that is about to be sealed: a receipt must not attest
// edited events. They are decoded only if the chain's summary is not cached; otherwise the
// digest cached with the summary detects edits. They are not read at all if nobody else has
// written to the database since the chain was empty.
func (s *recordService) readChain(ctx context.Context, org ledger.OrgID, id ledger.ChainID) (*chainReading, error) {
	read := &chainReading{chain: id}
	if s.chains.stateCache.unchanged(id) {
		return read, nil // catchUp checks it again, under the chain's lock
	}
	if !s.chains.stateCache.summarized(org, id) {
		read.summary = &ledger.Summary{}
	}
	return read, visible(s.store.EachPage(ctx, id, 0, func(events []*ledger.StoredEvent) error {
		return s.extend(read, org, events)
	}))
}

// extend adds the events that follow those of a reading.
func (s *recordService) extend(read *chainReading, org ledger.OrgID, events []*ledger.StoredEvent) error {
	for _, stored := range events {
		if stored.Sequence != read.events+1 {
			return fmt.Errorf("event %d is missing: %w", read.events+1, ledger.ErrStateTampered)
		}
		if read.summary == nil {
			if !stored.Authentic(s.keys, org) {
				return fmt.Errorf("event %d fails its authenticator: %w", stored.Sequence, ledger.ErrStateTampered)
			}
		} else {
			event, err := s.store.ReadEvent(org, stored)
			if err != nil {
				return err
			}
			read.summary.Count(&event.Event)
		}
		read.events++
		read.rows = stored.Extend(read.rows)
	}
	return nil
}

type completeChain struct {
	caller     *Caller
	line       *lineage
	completion *ledger.Completion
	read       *chainReading
	ending     ending    // of its open approvals
	view       ChainView // result
	receipt    []byte    // result; nil if the chain was sealed before
}

// readEvents reads the events of the newest known chain of the lineage.
func (o *completeChain) readEvents(ctx context.Context, s *recordService) error {
	newest := o.line.last()
	if !s.chains.stateCache.summarized(o.caller.Org, newest) {
		// Check the owner first: another's chain must not be read.
		if _, err := s.chains.ownChain(ctx, o.caller, newest); err != nil {
			return err
		}
	}
	var err error
	o.read, err = s.readChain(ctx, o.caller.Org, newest)
	return err
}

func (o *completeChain) tenant() ledger.OrgID { return o.caller.Org }

func (o *completeChain) size() int { return smallOperation }

func (o *completeChain) need(needs *store.Needs) {
	needs.Keys = append(needs.Keys, o.caller.Key)
	needs.Orgs = append(needs.Orgs, o.caller.Org)
	o.line.need(needs)
	needs.Heads = append(needs.Heads, o.caller.Org)
	needs.ApprovalsOf = append(needs.ApprovalsOf, o.line.last())
	o.ending.need(needs, o.caller.Org)
}

func (o *completeChain) plan(b *batch) error {
	if err := b.confirm(o.caller); err != nil {
		return err
	}
	live, err := o.line.newest(b, o.caller)
	if err != nil {
		return err
	}
	org, err := b.org(o.caller.Org)
	if err != nil {
		return err
	}
	switch {
	case live.state.Abandoned:
		if live, err = o.succeed(b, live, org); err != nil {
			return err
		}
	case live.state.Status.Sealed():
		return o.repeat(live, org)
	}
	stored, err := b.seal(live, org, &o.ending, o.read, o.completion)
	if err != nil {
		return err
	}
	o.receipt = stored.Body
	o.view = *(&ChainView{Chain: live.chain, State: live.state, Terms: &Terms{Act: org.Controls.Act}}).withOrg(org)
	return nil
}

// succeed opens the successor that is sealed instead of an abandoned chain. It checks the head
// first, because an operation that fails must leave the batch unchanged.
func (o *completeChain) succeed(b *batch, live *liveChain, org *ledger.Organization) (*liveChain, error) {
	if _, err := b.head(org.ID); err != nil {
		return nil, err
	}
	policy, err := b.policy(org)
	if err != nil {
		return nil, err
	}
	return b.openSuccessor(live, policy)
}

// head returns an organization's head, which the operation must have named among its needs. It
// refuses a head that was rolled back.
func (b *batch) head(org ledger.OrgID) (*ledger.OpenHead, error) {
	if open := b.heads[org]; open != nil {
		return open, nil
	}
	head := b.loaded.Heads[org]
	if head == nil {
		return nil, fmt.Errorf("organization without a head: %w", ledger.ErrStateTampered)
	}
	open, err := head.Open(b.service.keys)
	if err != nil {
		return nil, err
	}
	if b.service.judge.Heads.Behind(head) {
		return nil, evidence.ErrRolledBack
	}
	b.heads[org] = open
	return open, nil
}

// seal completes an open chain, and adds its receipt and a notice to the batch.
func (b *batch) seal(live *liveChain, org *ledger.Organization, ending *ending, begun *chainReading, completion *ledger.Completion) (*ledger.StoredReceipt, error) {
	summary, err := b.catchUp(live, begun)
	if err != nil {
		return nil, err
	}
	head, err := b.head(org.ID)
	if err != nil {
		return nil, err
	}
	approvals, err := b.endOpenApprovals(live, org, ending)
	if err != nil {
		return nil, err
	}
	receipt, stored, err := ledger.Seal(&ledger.Sealing{
		Keys: b.service.keys, Head: head, Slug: org.Slug, Chain: live.chain, State: live.state, Summary: summary, Approvals: approvals,
		Completion: completion, ID: b.service.receiptID(), Now: b.now,
	})
	if err != nil {
		b.broken = err // approvals may have been cancelled already
		return nil, err
	}
	live.changed = true
	b.sealed = append(b.sealed, stored)
	b.changes.NewReceipts = append(b.changes.NewReceipts, stored.StoredReceipt)
	b.postReceipt(live.chain, summary, stored.Sequence)
	b.queueNotice(org, notify.Notice{
		Kind: notify.ChainCompleted, Chain: live.chain.Name, Environment: live.chain.Environment, ChainID: live.chain.ID.String(),
		ReceiptID: receipt.ID.String(), Status: string(live.state.Status),
	}, live.chain.ID.String())
	return stored.StoredReceipt, nil
}

// ending lists the rows that it takes to end the open approvals of a chain. It is a hint, as
// counting is.
type ending struct {
	counting
	sign bool // an approval has timed out, and that must be signed
}

func (e *ending) need(needs *store.Needs, org ledger.OrgID) {
	e.counting.need(needs)
	if e.sign {
		needs.SigningKeys = append(needs.SigningKeys, org)
	}
}

// endOpenApprovals cancels the open approvals of a chain, and times out those whose time has
// passed. It returns all of the chain's approvals, sorted by the sequence of their events.
func (b *batch) endOpenApprovals(live *liveChain, org *ledger.Organization, ending *ending) ([]*ledger.Approval, error) {
	loaded, err := b.approvalsOf(live)
	if err != nil {
		return nil, err
	}
	var reserved []ledger.CounterID
	timedOut := false
	for _, a := range loaded {
		if a.approval.Status.Open() {
			reserved = append(reserved, idsOfUses(a.approval.Reserved.Uses)...)
			timedOut = timedOut || !a.approval.At(b.now).Open()
		}
	}
	err = ending.loaded(b, reserved)
	if timedOut && !ending.sign {
		ending.sign, err = true, errNotLoaded
	}
	if err != nil {
		return nil, err
	}
	approvals := make([]*ledger.Approval, 0, len(loaded))
	for _, a := range loaded {
		if before := a.approval.Status; before.Open() {
			a.approval.Cancel(b.now)
			a.changed = true
			if a.approval.Status == ledger.ApprovalCancelled {
				b.endApproval(live, a.approval)
			} else if err := b.endSigned(live, a.approval); err != nil {
				return nil, err
			}
			b.changes.Signals = append(b.changes.Signals, a.approval.ID.UUID)
			b.queueNotice(org, approvalNotice(stepKind(before, a.approval.Status), live.chain, a.approval), a.approval.ID.String())
		}
		approvals = append(approvals, a.approval)
	}
	return approvals, nil
}

// approvalsOf returns all approvals of a chain, including earlier changes of this batch, sorted
// by the sequence of their events. The operation must have named the chain in
// Needs.ApprovalsOf. It fails if their number, or the number of open ones, differs from the
// chain's state: then one is missing or was reset.
func (b *batch) approvalsOf(live *liveChain) ([]*liveApproval, error) {
	var approvals []*liveApproval
	for id, record := range b.loaded.Approvals {
		if record.Chain == live.chain.ID {
			if _, err := b.approval(id); err != nil {
				return nil, err
			}
		}
	}
	for _, a := range b.approvals {
		if a.approval.Chain == live.chain.ID {
			approvals = append(approvals, a)
		}
	}
	slices.SortFunc(approvals, func(a, b *liveApproval) int { return cmp.Compare(a.approval.Sequence, b.approval.Sequence) })
	waiting := int64(0)
	for _, a := range approvals {
		if a.approval.Status.Open() {
			waiting++
		}
	}
	if waiting != live.state.Waiting || int64(len(approvals)) != live.state.Approvals {
		return nil, fmt.Errorf("%d of %d approvals are stored, %d of %d stand open: %w",
			len(approvals), live.state.Approvals, waiting, live.state.Waiting, ledger.ErrStateTampered)
	}
	return approvals, nil
}

// catchUp extends a reading with the events recorded since, including those of this batch, and
// returns the summary of all events. It works on a copy of the reading, because the batch may
// fail and be planned again.
func (b *batch) catchUp(live *liveChain, begun *chainReading) (*ledger.Summary, error) {
	if live.summary != nil && live.epoch != 0 && live.epoch == b.loaded.Epoch {
		return live.summary, nil
	}
	read := chainReading{chain: live.chain.ID, summary: &ledger.Summary{}}
	switch {
	case begun.chain != live.chain.ID: // a successor was opened
	case begun.summary != nil:
		read = *begun
		read.summary = begun.summary.Clone()
	case live.summary != nil: // otherwise it was evicted, and all events are read again
		read = *begun
	}
	if read.events < live.state.Actions {
		events, err := b.loaded.EventsAfter(live.chain.ID, read.events)
		if err != nil {
			b.broken = err
			return nil, err
		}
		for _, event := range b.changes.NewEvents {
			if event.Chain == live.chain.ID {
				events = append(events, event)
			}
		}
		if err := b.service.extend(&read, live.chain.Org, events); err != nil {
			return nil, err
		}
	}
	switch {
	case read.events != live.state.Actions:
		return nil, fmt.Errorf("%d of %d events are stored: %w", read.events, live.state.Actions, ledger.ErrStateTampered)
	case live.summary == nil:
		return read.summary, nil
	case read.rows != live.rows:
		return nil, fmt.Errorf("an event is not as it was recorded: %w", ledger.ErrStateTampered)
	}
	return live.summary, nil
}

// repeat sets the result for a chain that is already sealed.
func (o *completeChain) repeat(live *liveChain, org *ledger.Organization) error {
	if o.completion.Failed != (live.state.Status == ledger.ChainFailed) {
		return fault.Errorf(fault.CodeChainSealed, "the chain is sealed as %s already, and that stands", live.state.Status)
	}
	o.view = *(&ChainView{Chain: live.chain, State: live.state, Terms: &Terms{Act: org.Controls.Act}}).withOrg(org)
	o.receipt = nil // discard the receipt of an attempt that was not committed
	return nil
}

// tamperedLog is the log message for a record that is marked instead of shown.
const tamperedLog = "stored evidence was changed outside the service, and is shown as such: run countersign audit"

// ErrTampered reports that the requested record exists, but fails authentication.
var ErrTampered = fault.Errorf(fault.CodeEvidenceTampered, "stored evidence was changed outside the service: run countersign audit")

// shownReceipt returns a stored receipt if it is authentic, and otherwise only its id and
// sequence.
func (s *receiptService) shownReceipt(stored *ledger.StoredReceipt, slug string) *ledger.StoredReceipt {
	if in := s.judge.Receipts.Inspect(&store.NamedReceipt{StoredReceipt: stored, Slug: slug}); in.Fault == "" {
		return stored
	}
	s.log.Error(tamperedLog, "of", "a receipt")
	return &ledger.StoredReceipt{ID: stored.ID, Org: stored.Org, Sequence: stored.Sequence, Tampered: true}
}

// shownReceipts is shownReceipt for receipts of one organization, whose slug must be the signed
// one.
func (s *receiptService) shownReceipts(ctx context.Context, org ledger.OrgID, receipts ...*ledger.StoredReceipt) ([]*ledger.StoredReceipt, error) {
	owner, err := s.store.Organization(ctx, org)
	if err != nil {
		return nil, visible(err)
	}
	shown := make([]*ledger.StoredReceipt, len(receipts))
	for i, receipt := range receipts {
		shown[i] = s.shownReceipt(receipt, owner.Slug)
	}
	return shown, nil
}

// ReceiptOfChain returns a sealed chain's receipt, marked if it fails authentication.
func (s *receiptService) ReceiptOfChain(ctx context.Context, caller *Caller, id ledger.ChainID) (*ledger.StoredReceipt, error) {
	if err := s.authorize(ctx, caller, ledger.RoleAgent); err != nil {
		return nil, err
	}
	view, err := s.chains.ownChain(ctx, caller, id)
	if err != nil {
		return nil, err
	}
	if !view.State.Status.Sealed() {
		return nil, fault.ErrNotFound
	}
	return s.sealedReceipt(ctx, caller.Org, id)
}

func (s *receiptService) sealedReceipt(ctx context.Context, org ledger.OrgID, chain ledger.ChainID) (*ledger.StoredReceipt, error) {
	receipt, err := s.store.ReceiptOfChain(ctx, chain)
	if err != nil {
		return nil, missingIsTampering(visible(err), "the receipt of a sealed chain")
	}
	shown, err := s.shownReceipts(ctx, org, receipt)
	if err != nil {
		return nil, err
	}
	return shown[0], nil
}

// Receipt returns one receipt, marked if it fails authentication.
func (s *receiptService) Receipt(ctx context.Context, caller *Caller, id ledger.ReceiptID) (*ledger.StoredReceipt, error) {
	if err := s.authorize(ctx, caller, ledger.RoleMember); err != nil {
		return nil, err
	}
	receipt, err := s.store.NamedReceipt(ctx, id)
	if err != nil {
		return nil, visible(err)
	}
	if receipt.Org != caller.Org {
		return nil, fault.ErrNotFound
	}
	return s.shownReceipt(receipt.StoredReceipt, receipt.Slug), nil
}

// ReceiptNumbered returns the id of a receipt by its number, which is unique in its
// organization. The number is part of the signed bytes.
func (s *receiptService) ReceiptNumbered(ctx context.Context, caller *Caller, number string) (id ledger.ReceiptID, err error) {
	if err := s.authorize(ctx, caller, ledger.RoleMember); err != nil {
		return id, err
	}
	org, err := s.store.Organization(ctx, caller.Org)
	if err != nil {
		return id, visible(err)
	}
	return s.receiptNumbered(ctx, org, number)
}

// ReceiptNumbered returns the id of an organization's receipt by its number. Without a slug,
// the organization is the only one there is.
func (o *Operator) ReceiptNumbered(ctx context.Context, slug, number string) (id ledger.ReceiptID, err error) {
	org, err := o.Organization(ctx, slug)
	if err != nil {
		return id, err
	}
	return o.service.receiptNumbered(ctx, org, number)
}

func (s *receiptService) receiptNumbered(ctx context.Context, org *ledger.Organization, number string) (id ledger.ReceiptID, err error) {
	sequence, ok := ledger.ParseReceiptNumber(number)
	if !ok {
		return id, fault.ErrNotFound
	}
	// Not a scan: the judge may retain what it inspects.
	listed, err := s.store.Receipts(ctx, org.ID, sequence+1, 1)
	if err != nil {
		return id, visible(err)
	}
	if len(listed) == 0 || listed[0].Sequence != sequence {
		return id, fault.ErrNotFound
	}
	receipt := listed[0]
	in := s.judge.Receipts.Inspect(&store.NamedReceipt{StoredReceipt: receipt, Slug: org.Slug})
	if in.Fault == "" && in.Check(receipt).Number != number { // one that fails is found, and shown as failed
		return id, fault.ErrNotFound
	}
	return receipt.ID, nil
}

// Receipts lists receipts, newest first. Those that fail authentication are marked.
func (s *receiptService) Receipts(ctx context.Context, caller *Caller, before int64, limit int) ([]*ledger.StoredReceipt, error) {
	if err := s.authorize(ctx, caller, ledger.RoleMember); err != nil {
		return nil, err
	}
	receipts, err := s.store.Receipts(ctx, caller.Org, before, limit)
	if err != nil {
		return nil, visible(err)
	}
	return s.shownReceipts(ctx, caller.Org, receipts...)
}

// CheckReceipt is the public check: anyone with a receipt's id may call it. Under load, and for
// a large chain that was never checked in full, it omits the events and approvals, and says so.
func (s *receiptService) CheckReceipt(ctx context.Context, id ledger.ReceiptID) (*ledger.ReceiptCheck, error) {
	return s.checkReceipt(ctx, id, verify.Rationed)
}

// CheckOwnReceipt is CheckReceipt for lists of the caller's own receipts. Public load does not
// restrict it.
func (s *receiptService) CheckOwnReceipt(ctx context.Context, caller *Caller, id ledger.ReceiptID) (*ledger.ReceiptCheck, error) {
	if err := s.authorize(ctx, caller, ledger.RoleMember); err != nil {
		return nil, err
	}
	return s.checkReceipt(ctx, id, verify.Bounded)
}

func (s *receiptService) checkReceipt(ctx context.Context, id ledger.ReceiptID, effort verify.Effort) (*ledger.ReceiptCheck, error) {
	receipt, err := s.store.PlacedReceipt(ctx, id)
	if err != nil {
		return nil, visible(err)
	}
	check, err := s.judge.Receipts.Check(ctx, receipt, effort)
	if err != nil {
		return nil, visible(err)
	}
	if !check.Valid {
		s.log.Error("a stored receipt does not verify: run countersign audit")
		if !check.Repeated { // as in verify.FromVerification
			s.findings.noteFinding(pendingFinding{org: receipt.Org, tampering: &verify.Tampering{Check: check.Failed, Receipt: receipt.ID}})
		}
	}
	return check, nil
}

// VerifyApproval verifies one approval with everything recorded about it.
func (s *receiptService) VerifyApproval(ctx context.Context, caller *Caller, id ledger.ApprovalID) (*ledger.Verification, error) {
	if err := s.authorize(ctx, caller, ledger.RoleMember); err != nil {
		return nil, err
	}
	approval, err := s.approvals.findApproval(ctx, id)
	if err != nil {
		return nil, visible(err)
	}
	if approval.org != caller.Org {
		return nil, fault.ErrNotFound
	}
	v, err := s.findings.reportProven(ctx, caller.Org)(approval.judge(ctx))
	return s.withExport(ctx, caller, v, err)
}

// VerifyReceipt verifies one receipt: by itself, between its neighbors, under the head, and
// with its chain's events and approvals.
func (s *receiptService) VerifyReceipt(ctx context.Context, caller *Caller, id ledger.ReceiptID) (*ledger.Verification, error) {
	if err := s.authorize(ctx, caller, ledger.RoleMember); err != nil {
		return nil, err
	}
	receipt, err := s.store.PlacedReceipt(ctx, id)
	if err != nil {
		return nil, visible(err)
	}
	if receipt.Org != caller.Org {
		return nil, fault.ErrNotFound
	}
	v, err := s.findings.reportProven(ctx, caller.Org)(s.judge.Receipts.Verify(ctx, receipt, verify.InFull))
	return s.withExport(ctx, caller, v, err)
}

// withExport sets whether the caller may export the verified evidence.
func (s *receiptService) withExport(ctx context.Context, caller *Caller, v *ledger.Verification, err error) (*ledger.Verification, error) {
	if err != nil || !caller.Role.Includes(ledger.RoleAdmin) {
		return v, err
	}
	org, err := s.organization(ctx, caller.Org)
	if err != nil {
		return nil, err
	}
	v.Exportable = org.Settings.Exports() == ledger.ExportAdmins
	return v, nil
}

// keepFullCheck stores the result of a full check of a large chain, for public checks on
// every replica. The check itself does not depend on whether this succeeds.
func (s *receiptService) keepFullCheck(ctx context.Context, check *store.FullCheckRecord) {
	if err := s.store.PutFullCheck(ctx, check); err != nil {
		s.log.Warn("storing the full check of a large chain failed: public checks show the previous one", "error", err)
	}
}

// VerifyReceipt verifies one receipt of any organization: by itself, between its neighbors,
// under the organization's head, and with its chain's events. It returns an error only if it
// could not read; the verdict reports tampering.
func (o *Operator) VerifyReceipt(ctx context.Context, id ledger.ReceiptID) (*verify.Verdict, error) {
	verdict, err := o.service.judge.Receipts.Verdict(ctx, id)
	return verdict, visible(err)
}

// Audit verifies an organization's whole ledger. It returns an error only if it could not read;
// the report contains tampering.
func (o *Operator) Audit(ctx context.Context, slug string, options verify.AuditOptions) (*verify.AuditReport, error) {
	org, err := o.Organization(ctx, slug)
	if err != nil {
		return nil, err
	}
	return o.AuditOrganization(ctx, org, options)
}

// AuditOrganization is Audit for an organization from a list. A lookup by slug would miss an
// organization whose slug was edited.
func (o *Operator) AuditOrganization(ctx context.Context, org *ledger.Organization, options verify.AuditOptions) (*verify.AuditReport, error) {
	report, err := o.service.judge.Audit(ctx, org, options)
	return report, visible(err)
}

// Rollbacks lists the organizations whose ledger is older than what this server has
// acknowledged, or differs from it. While one is missing altogether, no receipts are issued for
// any organization.
func (s *receiptService) Rollbacks(ctx context.Context) ([]verify.Rollback, error) {
	found, err := s.judge.Heads.Rollbacks(ctx)
	return found, visible(err)
}

// AuditLedger verifies the caller's own ledger. It returns an error only if it could not read;
// the report contains tampering.
func (s *receiptService) AuditLedger(ctx context.Context, caller *Caller, options verify.AuditOptions) (*verify.LedgerAudit, error) {
	if err := s.authorize(ctx, caller, ledger.RoleAdmin); err != nil {
		return nil, err
	}
	audit, err := s.judge.AuditLedger(ctx, caller.Org, options)
	err = visible(err)
	s.findings.reportAudit(ctx, caller.Org, audit)
	var own *fault.Error
	if err != nil && !errors.As(err, &own) {
		return nil, &cause{fault.Errorf(fault.CodeUnavailable, "the ledger could not be read to its end, so nothing is said about it: try again"), err}
	}
	return audit, err
}
