package service

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"countersign/internal/evidence"
	"countersign/internal/ledger"
	"countersign/internal/notify"
	"countersign/internal/store"
	"countersign/internal/verify"
)

// Completed is a sealed chain with its receipt's stored bytes.
type Completed struct {
	ChainView
	Receipt []byte
}

// CompleteChain seals a chain and makes its receipt. Sent again it answers the
// same; asked for another outcome than the sealed one it refuses.
func (s *Service) CompleteChain(ctx context.Context, caller *Caller, id ledger.ChainID, completion *ledger.Completion) (*Completed, error) {
	if err := caller.require(ledger.RoleAgent); err != nil {
		return nil, err
	}
	op := &completeChain{caller: caller, line: s.lineage(id), completion: completion}
	err := s.alongLineage(op.line, func() error {
		if err := op.summarise(ctx, s); err != nil {
			return err
		}
		return s.commitWhole(ctx, op)
	})
	if err != nil {
		return nil, err
	}
	if op.receipt == nil {
		stored, err := s.sealedReceipt(ctx, caller.Org, op.view.Chain.ID)
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

// fold summarises what the chain holds so far, outside any transaction: events
// never change, so only those recorded in the meantime are left for the lock.
func (s *Service) fold(ctx context.Context, org ledger.OrgID, id ledger.ChainID, summary *ledger.Summary) error {
	return visible(s.store.EachPage(ctx, id, summary.Folded, func(events []*ledger.StoredEvent) error {
		return s.addAll(org, summary, events)
	}))
}

// addAll folds events that are as the service recorded them, and refuses others:
// a receipt must not attest what was edited before it was sealed.
func (s *Service) addAll(org ledger.OrgID, summary *ledger.Summary, events []*ledger.StoredEvent) error {
	for _, stored := range events {
		event, err := s.store.ReadEvent(org, stored)
		if err != nil {
			return err
		}
		if event.Sequence != summary.Folded+1 {
			return fmt.Errorf("event %d is missing: %w", summary.Folded+1, ledger.ErrStateTampered)
		}
		summary.Count(&event.Event)
	}
	return nil
}

type completeChain struct {
	caller     *Caller
	line       *lineage
	completion *ledger.Completion
	summary    folded
	counters   counting // of approvals that are cancelled
	view       ChainView
	receipt    []byte
}

// folded is a summary begun outside the transaction, and whose it is.
type folded struct {
	chain ledger.ChainID
	*ledger.Summary
}

// summarise folds the chain that will be sealed as far as that is known, where its
// summary is not at hand.
func (o *completeChain) summarise(ctx context.Context, s *Service) error {
	o.summary = folded{o.line.last(), &ledger.Summary{}}
	if s.states.summarised(o.summary.chain) {
		return nil
	}
	if _, err := s.ownChain(ctx, o.caller, o.summary.chain); err != nil {
		return err
	}
	return s.fold(ctx, o.caller.Org, o.summary.chain, o.summary.Summary)
}

func (o *completeChain) tenant() ledger.OrgID { return o.caller.Org }

func (o *completeChain) size() int { return smallOperation }

func (o *completeChain) need(needs *store.Needs) {
	needs.Keys = append(needs.Keys, o.caller.Key)
	needs.Orgs = append(needs.Orgs, o.caller.Org)
	o.line.need(needs)
	needs.Heads = append(needs.Heads, o.caller.Org)
	needs.ApprovalsOf = append(needs.ApprovalsOf, o.line.last())
	o.counters.need(needs)
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
	stored, err := b.seal(live, org, &o.counters, o.summary, o.completion)
	if err != nil {
		return err
	}
	o.receipt = stored.Body
	o.view = *(&ChainView{Chain: live.chain, State: live.state, Terms: &Terms{Act: org.Controls.Act}}).under(org)
	return nil
}

// succeed opens the chain that is sealed in place of an abandoned one. The head is
// looked at first: an operation that fails leaves the batch as it was.
func (o *completeChain) succeed(b *batch, live *liveChain, org *ledger.Organization) (*liveChain, error) {
	if _, err := b.head(org.ID); err != nil {
		return nil, err
	}
	policy, err := b.policy(org)
	if err != nil {
		return nil, err
	}
	return b.succeed(live, policy)
}

// head is the organization's, which the operation must have named among its needs.
func (b *batch) head(org ledger.OrgID) (*ledger.Head, error) {
	head := b.loaded.Heads[org]
	if head == nil || !head.Authentic(b.service.keys) {
		return nil, fmt.Errorf("organization without an authentic head: %w", ledger.ErrStateTampered)
	}
	if b.service.judge.Behind(head) && !b.heads[head.Org] {
		return nil, evidence.ErrRolledBack
	}
	return head, nil
}

// seal completes an open chain and enters its receipt, and word of it, into the batch.
func (b *batch) seal(live *liveChain, org *ledger.Organization, counters *counting, begun folded, completion *ledger.Completion) (*ledger.StoredReceipt, error) {
	summary, err := b.catchUp(live, begun)
	if err != nil {
		return nil, err
	}
	head, err := b.head(org.ID)
	if err != nil {
		return nil, err
	}
	approvals, err := b.closeApprovals(live, org, counters)
	if err != nil {
		return nil, err
	}
	receipt, stored, err := ledger.Seal(b.service.keys, head, org.Slug, live.chain, live.state, summary, approvals, completion, b.service.receiptID(), b.now)
	if err != nil {
		b.broken = err // approvals may have been cancelled already
		return nil, err
	}
	live.changed = true
	b.heads[head.Org] = true
	b.changes.NewReceipts = append(b.changes.NewReceipts, stored)
	b.notice(org, notify.Notice{
		Kind: notify.ChainCompleted, Chain: live.chain.Name, ChainID: live.chain.ID.String(),
		ReceiptID: receipt.ID.String(), Status: string(live.state.Status),
	}, live.chain.ID.String())
	return stored, nil
}

// closeApprovals ends what nobody has decided and returns all approvals of the
// chain by the sequence of their events.
func (b *batch) closeApprovals(live *liveChain, org *ledger.Organization, counters *counting) ([]*ledger.Approval, error) {
	asked, err := b.approvalsOf(live)
	if err != nil {
		return nil, err
	}
	var held []ledger.CounterID
	for _, a := range asked {
		if a.approval.Status.Open() {
			held = append(held, idsOfUses(a.approval.Reserved.Uses)...)
		}
	}
	if err := counters.loaded(b, held); err != nil {
		return nil, err
	}
	approvals := make([]*ledger.Approval, 0, len(asked))
	for _, a := range asked {
		if before := a.approval.Status; before.Open() {
			a.approval.Cancel(b.now)
			a.changed = true
			b.settle(live, a.approval)
			b.changes.Signals = append(b.changes.Signals, a.approval.ID.UUID)
			b.notice(org, approvalNotice(stepKind(before, a.approval.Status), live.chain, a.approval), a.approval.ID.String())
		}
		approvals = append(approvals, a.approval)
	}
	return approvals, nil
}

// approvalsOf returns all approvals of a chain, as the batch leaves them so far, by the
// sequence of their events. The operation must have named the chain in Needs.ApprovalsOf.
// They are refused where they are not as many, or not as many of them open, as the
// chain's state says: one is missing, or was put back.
func (b *batch) approvalsOf(live *liveChain) ([]*askedApproval, error) {
	var asked []*askedApproval
	for id, record := range b.loaded.Approvals {
		if record.Chain == live.chain.ID {
			if _, err := b.approval(id); err != nil {
				return nil, err
			}
		}
	}
	for _, a := range b.asked {
		if a.approval.Chain == live.chain.ID {
			asked = append(asked, a)
		}
	}
	slices.SortFunc(asked, func(a, b *askedApproval) int { return cmp.Compare(a.approval.Sequence, b.approval.Sequence) })
	waiting := int64(0)
	for _, a := range asked {
		if a.approval.Status.Open() {
			waiting++
		}
	}
	if waiting != live.state.Waiting || int64(len(asked)) != live.state.Approvals {
		return nil, fmt.Errorf("%d of %d approvals are stored, %d of %d stand open: %w",
			len(asked), live.state.Approvals, waiting, live.state.Waiting, ledger.ErrStateTampered)
	}
	return asked, nil
}

// catchUp folds what was recorded since the summary was begun: events that are
// stored, and those of this very batch. It leaves the operation's own summary as
// it is, for the batch may fail and be planned again.
func (b *batch) catchUp(live *liveChain, begun folded) (*ledger.Summary, error) {
	if live.summary != nil {
		return live.summary, nil
	}
	if begun.chain != live.chain.ID {
		begun.Summary = &ledger.Summary{}
	}
	if begun.Folded == live.state.Actions {
		return begun.Summary, nil
	}
	summary := begun.Clone()
	events, err := b.loaded.EventsAfter(live.chain.ID, summary.Folded)
	if err != nil {
		b.broken = err
		return nil, err
	}
	for _, event := range b.changes.NewEvents {
		if event.Chain == live.chain.ID {
			events = append(events, event)
		}
	}
	return summary, b.service.addAll(live.chain.Org, summary, events)
}

// repeat answers a chain that is sealed already.
func (o *completeChain) repeat(live *liveChain, org *ledger.Organization) error {
	if o.completion.Failed != (live.state.Status == ledger.ChainFailed) {
		return ledger.Errorf(ledger.CodeChainSealed, "the chain is sealed as %s already, and that stands", live.state.Status)
	}
	o.view = *(&ChainView{Chain: live.chain, State: live.state, Terms: &Terms{Act: org.Controls.Act}}).under(org)
	o.receipt = nil // of an earlier attempt that was not stored
	return nil
}

// tamperedLog is logged where something is marked in place of being shown.
const tamperedLog = "stored evidence was changed outside the service, and is shown as such: run countersign audit"

// ErrTampered says that what was asked for is there, and not as the service wrote it.
var ErrTampered = ledger.Errorf(ledger.CodeEvidenceTampered, "stored evidence was changed outside the service: run countersign audit")

// shownReceipt is what may be shown of a stored receipt: all of it, or where it stands.
func (s *Service) shownReceipt(stored *ledger.StoredReceipt, slug string) *ledger.StoredReceipt {
	if in := s.judge.InspectReceipt(&store.NamedReceipt{StoredReceipt: stored, Slug: slug}); in.Fault == "" {
		return stored
	}
	s.log.Error(tamperedLog, "of", "a receipt")
	return &ledger.StoredReceipt{ID: stored.ID, Org: stored.Org, Sequence: stored.Sequence, Tampered: true}
}

// shownReceipts is shownReceipt for receipts of one organization. Its slug is held
// against what each of them has signed.
func (s *Service) shownReceipts(ctx context.Context, org ledger.OrgID, receipts ...*ledger.StoredReceipt) ([]*ledger.StoredReceipt, error) {
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

// ReceiptOfChain finds a sealed chain's receipt. Where it is not as the service wrote it,
// it is marked.
func (s *Service) ReceiptOfChain(ctx context.Context, caller *Caller, id ledger.ChainID) (*ledger.StoredReceipt, error) {
	if err := s.authorize(ctx, caller, ledger.RoleAgent); err != nil {
		return nil, err
	}
	if _, err := s.ownChain(ctx, caller, id); err != nil {
		return nil, err
	}
	return s.sealedReceipt(ctx, caller.Org, id)
}

func (s *Service) sealedReceipt(ctx context.Context, org ledger.OrgID, chain ledger.ChainID) (*ledger.StoredReceipt, error) {
	receipt, err := s.store.ReceiptOfChain(ctx, chain)
	if err != nil {
		return nil, visible(err)
	}
	shown, err := s.shownReceipts(ctx, org, receipt)
	if err != nil {
		return nil, err
	}
	return shown[0], nil
}

// Receipt finds one receipt. Where it is not as the service wrote it, it is marked.
func (s *Service) Receipt(ctx context.Context, caller *Caller, id ledger.ReceiptID) (*ledger.StoredReceipt, error) {
	if err := s.authorize(ctx, caller, ledger.RoleMember); err != nil {
		return nil, err
	}
	receipt, err := s.store.NamedReceipt(ctx, id)
	if err != nil {
		return nil, visible(err)
	}
	if receipt.Org != caller.Org {
		return nil, ledger.ErrNotFound
	}
	return s.shownReceipt(receipt.StoredReceipt, receipt.Slug), nil
}

// Receipts lists receipts, newest first. One that is not as the service wrote it is
// marked.
func (s *Service) Receipts(ctx context.Context, caller *Caller, before int64, limit int) ([]*ledger.StoredReceipt, error) {
	if err := s.authorize(ctx, caller, ledger.RoleMember); err != nil {
		return nil, err
	}
	receipts, err := s.store.Receipts(ctx, caller.Org, before, limit)
	if err != nil {
		return nil, visible(err)
	}
	return s.shownReceipts(ctx, caller.Org, receipts...)
}

// CheckReceipt is the public check: anyone who holds a receipt's id may ask. While
// others keep the process busy, and for a chain that is large and was never checked in
// full, it is a check without the events and approvals, and says so.
func (s *Service) CheckReceipt(ctx context.Context, id ledger.ReceiptID) (*ledger.ReceiptCheck, error) {
	return s.checkReceipt(ctx, id, verify.Rationed)
}

// CheckOwnReceipt is CheckReceipt for a list of the caller's own receipts: no stranger
// keeps it waiting.
func (s *Service) CheckOwnReceipt(ctx context.Context, caller *Caller, id ledger.ReceiptID) (*ledger.ReceiptCheck, error) {
	if err := s.authorize(ctx, caller, ledger.RoleMember); err != nil {
		return nil, err
	}
	return s.checkReceipt(ctx, id, verify.Bounded)
}

func (s *Service) checkReceipt(ctx context.Context, id ledger.ReceiptID, effort verify.Effort) (*ledger.ReceiptCheck, error) {
	receipt, err := s.store.PlacedReceipt(ctx, id)
	if err != nil {
		return nil, visible(err)
	}
	check, err := s.judge.Check(ctx, receipt, effort)
	if err != nil {
		return nil, visible(err)
	}
	if !check.Valid {
		s.log.Error("a stored receipt does not verify: run countersign audit")
		s.notice(metTampering{org: receipt.Org, tampering: &verify.Tampering{Check: check.Failed, Receipt: receipt.ID}})
	}
	return check, nil
}
