package service

import (
	"context"
	"errors"
	"fmt"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/notify"
	"countersign/internal/store"
)

// ApprovalView is an approval as it stands, with the payload that it is about.
type ApprovalView struct {
	*ledger.Approval
	Status  ledger.ApprovalStatus // now: one whose time has passed is timed out
	Payload []byte
	// Redactions are the digests of what was taken out of the payload, nil for none.
	Redactions []byte
	// Unbound are the places where something was taken out that no digest binds.
	Unbound []string
	// Killed says that the kill switch is active: even what was approved must not
	// begin now.
	Killed     bool
	KillReason string
	// Overruled is what the rules in force decide where they deny what a person has
	// approved; nil where they let it stand.
	Overruled *ledger.Decision
	// TwoPerson says whether two people must approve: because that was asked for, or
	// because the organization asks for it by now.
	TwoPerson bool
	// Voters are those who said yes where two must.
	Voters []Voter
	Client *Attendance // for those who review; nil for an agent
	// Tampered says that the stored record, or what it is about, fails. Then the id and
	// where it stands in the list are all that is told. Only lists have such views.
	Tampered bool

	event *ledger.StoredEvent // what it is about
}

// Now is the status as it stands for those who act on it: while the kill switch is
// active, and where the rules deny it by now, what was approved is denied.
func (v *ApprovalView) Now() ledger.ApprovalStatus {
	if (v.Killed || v.Overruled != nil) && v.Status == ledger.ApprovalApproved {
		return ledger.ApprovalDenied
	}
	return v.Status
}

// Approval finds one approval and, where it is still open, waits for its end for
// as long as the caller likes. Waiting holds no connection to the store.
func (s *Service) Approval(ctx context.Context, caller *Caller, id ledger.ApprovalID, wait time.Duration) (*ApprovalView, error) {
	s.granted(caller.Org) // perhaps: before anything is read
	if err := s.authorize(ctx, caller, ledger.RoleAgent); err != nil {
		return nil, err
	}
	if wait <= 0 {
		view, err := s.ownApproval(ctx, caller, id)
		if err == nil && caller.asksFor(view) {
			s.approvalPolls.note(id, s.now())
		}
		return view, err
	}
	timer := time.NewTimer(caller.longestWait(wait, s.now()))
	defer timer.Stop()
	// Subscribed before it reads, so that no change falls between the two.
	woken, cancel := s.waiters.add(id.UUID, caller.Key.UUID)
	defer cancel()
	client := longPoll{polls: &s.approvalPolls, id: id}
	defer func() { client.end(s.now()) }()
	for {
		// A caller that has gone is answered like one whose time is up: with what
		// stands, which is read to the end.
		view, err := s.ownApproval(context.WithoutCancel(ctx), caller, id)
		if err == nil && caller.asksFor(view) {
			client.begin(s.now())
		}
		if err != nil {
			return nil, err
		}
		if !view.Status.Open() {
			// Confirmed after the approval was read: who is told of a decision has a key
			// that was good when the decision was made.
			if err := s.confirm(context.WithoutCancel(ctx), caller); err != nil {
				return nil, err
			}
			return view, nil
		}
		ended, err := s.await(ctx, caller, woken, timer)
		if err != nil {
			return nil, err
		}
		if ended {
			return view, nil
		}
	}
}

// keyRecheck is how often a wait looks whether its key still stands. A revocation that
// is committed by a server wakes at once. This is for what announces nothing: a
// command that works beside a server on SQLite, and a row that was removed by hand.
const keyRecheck = 10 * time.Second

// await waits until there may be something new, or until the wait has ended. It fails
// where the key under which the caller waits has ended.
func (s *Service) await(ctx context.Context, caller *Caller, woken <-chan struct{}, timer *time.Timer) (ended bool, err error) {
	recheck := time.NewTicker(s.keyRecheck)
	defer recheck.Stop()
	for {
		looking := false
		select {
		case <-woken:
		case <-recheck.C:
			looking = true
		case <-timer.C:
			ended = true
		case <-ctx.Done():
			ended = true
		case <-s.closing:
			ended = true
		}
		err := s.confirm(context.WithoutCancel(ctx), caller)
		if looking && (err == nil || errors.Is(err, store.ErrUnavailable)) {
			continue
		}
		return ended, err
	}
}

func (s *Service) ownApproval(ctx context.Context, caller *Caller, id ledger.ApprovalID) (*ApprovalView, error) {
	record, err := s.store.Approval(ctx, id)
	if err != nil {
		return nil, visible(err)
	}
	if !caller.sees(record) {
		return nil, ledger.ErrNotFound
	}
	if record.OpenedBy == caller.Key {
		s.chainPolls.noteAt(polledChain{record.Org, record.Chain}, record.RequestedAt, s.now())
	}
	org, err := s.organization(ctx, record.Org)
	if err != nil {
		return nil, err
	}
	viewing := s.viewing(org)
	if _, watched := s.seenChain(record.Chain); watched { // nothing is told of a chain that was put back
		if _, err := viewing.chain(ctx, record.Chain); err != nil {
			return nil, visible(err)
		}
	}
	view, err := s.approvalView(ctx, record, viewing)
	if err == nil {
		err = s.attend(ctx, caller, view)
	}
	if err != nil {
		return nil, err
	}
	return view, nil
}

// sees reports whether the caller may see an approval: everyone of its
// organization but agents, who see those of chains that their own key opened.
func (c *Caller) sees(record *store.ApprovalRecord) bool {
	return record.Org == c.Org && (c.Role != ledger.RoleAgent || record.OpenedBy == c.Key)
}

func (s *Service) approvalView(ctx context.Context, record *store.ApprovalRecord, v *viewing) (*ApprovalView, error) {
	view, err := s.bareView(record, v.org)
	if err == nil {
		err = s.complete(ctx, view, v)
	}
	if err != nil {
		return nil, err
	}
	return view, nil
}

// bareView is an approval without its payload, and without what the rules say now.
func (s *Service) bareView(record *store.ApprovalRecord, org *ledger.Organization) (*ApprovalView, error) {
	approval, err := s.store.ReadApproval(record)
	if err != nil {
		return nil, visible(err)
	}
	k := &org.Controls.KillSwitch
	view := &ApprovalView{Approval: approval, Status: approval.At(s.now()), Killed: k.Active, KillReason: k.Reason}
	view.TwoPerson = approval.TwoPerson || view.Status.Open() && org.Settings.TwoPersonApproval
	for _, vote := range approval.Votes {
		view.Voters = append(view.Voters, Voter{Vote: vote})
	}
	return view, nil
}

// readPayload reads what the approval is about, and refuses anything else.
func (s *Service) readPayload(ctx context.Context, view *ApprovalView) (*ledger.StoredEvent, error) {
	event, err := s.store.Event(ctx, store.EventAt{Chain: view.Chain, Sequence: view.Sequence})
	if errors.Is(err, store.ErrNotFound) {
		return nil, visible(fmt.Errorf("the event of an approval is missing: %w", ledger.ErrStateTampered))
	}
	if err != nil {
		return nil, visible(err)
	}
	erased := event.Payload == nil && !view.Approval.Status.Open()
	if !erased && !view.IsAbout(event) {
		return nil, visible(fmt.Errorf("payload of an approval: %w", ledger.ErrStateTampered))
	}
	view.Payload, view.Redactions, view.event = event.Payload, event.Redactions, event
	return event, nil
}

// complete reads the payload, and judges the approval by what is in force now.
func (s *Service) complete(ctx context.Context, view *ApprovalView, v *viewing) error {
	event, err := s.readPayload(ctx, view)
	if err != nil {
		return err
	}
	if view.Unbound, err = ledger.Unbound(event.Payload, event.Redactions); err != nil {
		return visible(fmt.Errorf("payload of an approval: %w: %w", ledger.ErrStateTampered, err))
	}
	switch {
	case view.Status.Open() && len(view.Voters) > 0:
		err = v.judgeVotes(ctx, view, event)
	case view.Status == ledger.ApprovalApproved && !view.Killed:
		view.Overruled, err = v.overruled(ctx, view.Approval, event)
	}
	return visible(err)
}

// viewing shows approvals of one organization, and reads each of their chains once.
type viewing struct {
	service *Service
	org     *ledger.Organization
	chains  map[ledger.ChainID]*ChainView
}

func (s *Service) viewing(org *ledger.Organization) *viewing {
	return &viewing{service: s, org: org, chains: make(map[ledger.ChainID]*ChainView)}
}

func (v *viewing) chain(ctx context.Context, id ledger.ChainID) (*ChainView, error) {
	if chain := v.chains[id]; chain != nil {
		return chain, nil
	}
	chain, err := v.service.readChain(ctx, v.org.ID, id)
	if err == nil {
		v.chains[id] = chain
	}
	return chain, err
}

// overruled holds what a person approved against a pause of its chain and the rules
// in force, as a repeat of the event would be.
func (v *viewing) overruled(ctx context.Context, approval *ledger.Approval, stored *ledger.StoredEvent) (*ledger.Decision, error) {
	event, policy, question, err := v.question(ctx, approval, stored)
	if err != nil {
		return nil, err
	}
	if err := v.service.examine(ctx, v.org.ID, policy, question.Action); err != nil {
		return nil, err
	}
	if now := event.Again(policy, question, approval); now.Decision.Outcome == ledger.Deny {
		return &now.Decision, nil
	}
	return nil, nil
}

// question is what has to be asked to decide an approval's action once more.
func (v *viewing) question(ctx context.Context, approval *ledger.Approval, stored *ledger.StoredEvent) (*ledger.RecordedEvent, *ledger.Policy, *ledger.Question, error) {
	event, action, err := v.service.recordedAction(v.org.ID, stored)
	if err != nil {
		return nil, nil, nil, err
	}
	chain, err := v.chain(ctx, approval.Chain)
	if err != nil {
		return nil, nil, nil, err
	}
	newest := chain
	for newest.State.ContinuedBy != nil { // a pause is that of the chain which goes on
		if newest, err = v.chain(ctx, *newest.State.ContinuedBy); err != nil {
			return nil, nil, nil, err
		}
	}
	policy, err := v.service.policyInForce(ctx, v.org)
	if err != nil {
		return nil, nil, nil, err
	}
	now := ledger.Later(v.service.now(), newest.State.LastAt)
	standings, err := v.standings(ctx, policy, approval, newest.Chain, action, now)
	if err != nil {
		return nil, nil, nil, err
	}
	return event, policy, &ledger.Question{
		Org: v.org, Chain: newest.Chain, State: newest.State, Action: action, Now: now, Recorded: chain.State, Standings: standings,
	}, nil
}

// recordedAction reads an event and the action that it recorded, to decide it once more.
func (s *Service) recordedAction(org ledger.OrgID, stored *ledger.StoredEvent) (*ledger.RecordedEvent, *ledger.Action, error) {
	event, err := s.store.ReadEvent(org, stored)
	if err != nil {
		return nil, nil, err
	}
	action, err := ledger.Reconstruct(event, stored.Payload)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ledger.ErrStateTampered, err)
	}
	return event, action, nil
}

// ApprovalFilter selects approvals.
type ApprovalFilter struct {
	Status ledger.ApprovalStatus
	Chain  *ledger.ChainID
	Before *store.ApprovalAt
	Limit  int
	// Bare leaves payloads out, and with them the bound on a page's bytes: large
	// payloads must not push other approvals out of a reviewer's sight.
	Bare bool
	// Glance adds the payloads to a bare list, of the first approvals, up to PageBytes. It
	// does not judge the approvals by the rules in force.
	Glance bool
}

// Approvals lists approvals, newest first. One that is not as the service wrote it is
// marked.
func (s *Service) Approvals(ctx context.Context, caller *Caller, filter ApprovalFilter) ([]*ApprovalView, error) {
	s.granted(caller.Org) // perhaps: before anything is read
	if err := s.authorize(ctx, caller, ledger.RoleAgent); err != nil {
		return nil, err
	}
	if filter.Chain != nil {
		if err := s.allListed(ctx, caller, *filter.Chain); err != nil {
			return nil, err
		}
	}
	views, err := s.listApprovals(ctx, caller, filter)
	if err == nil && filter.Chain != nil && len(views) > 0 && views[0].OpenedBy == caller.Key {
		s.chainPolls.noteAt(polledChain{caller.Org, *filter.Chain}, views[0].RequestedAt, s.now())
	}
	return views, err
}

// PageBytes bounds the payloads in one page of a list: a page that has reached it
// ends there, before its limit.
const PageBytes = 1 << 20

// listApprovals marks those that fail.
func (s *Service) listApprovals(ctx context.Context, caller *Caller, filter ApprovalFilter) ([]*ApprovalView, error) {
	query := store.ApprovalQuery{Org: caller.Org, Chain: filter.Chain, Status: filter.Status, Before: filter.Before, Limit: filter.Limit}
	if caller.Role == ledger.RoleAgent {
		query.OpenedBy = &caller.Key
	}
	records, err := s.store.Approvals(ctx, query)
	if err != nil {
		return nil, visible(err)
	}
	org, err := s.organization(ctx, caller.Org)
	if err != nil {
		return nil, err
	}
	views, shared := make([]*ApprovalView, 0, len(records)), s.viewing(org)
	for bytes, glanced := 0, 0; len(views) < len(records) && bytes < PageBytes; {
		record := records[len(views)]
		view, err := s.bareView(record, org)
		switch {
		case err != nil:
		case !filter.Bare:
			err = s.complete(ctx, view, shared)
		case filter.Glance && glanced < PageBytes:
			_, err = s.readPayload(ctx, view)
		}
		if errors.Is(err, ledger.ErrStateTampered) {
			s.log.Error(tamperedLog, "of", "an approval")
			view, err = &ApprovalView{Approval: &ledger.Approval{ID: record.ID, RequestedAt: record.RequestedAt}, Tampered: true}, nil
		}
		if err != nil {
			return nil, err
		}
		if filter.Bare {
			glanced += len(view.Payload)
		} else {
			bytes += len(view.Payload)
		}
		views = append(views, view)
	}
	if err := s.attend(ctx, caller, views...); err != nil {
		return nil, err
	}
	return views, nil
}

// DecideApproval takes a person's verdict. The first decision stands.
func (s *Service) DecideApproval(ctx context.Context, caller *Caller, id ledger.ApprovalID, verdict *ledger.Verdict) (*ApprovalView, error) {
	s.granted(caller.Org) // perhaps: before anything is read
	if err := caller.require(ledger.RoleMember); err != nil {
		return nil, err
	}
	// Nothing is decided about a payload that is not the one that was recorded.
	seen, err := s.ownApproval(ctx, caller, id)
	if err != nil {
		return nil, err
	}
	op := &moveApproval{id: id, chain: seen.Chain, org: caller.Org, caller: caller, verdict: verdict, counters: counting{idsOfUses(seen.Reserved.Uses)}}
	if verdict.Approve && seen.Approval.Status.Open() {
		// An event never changes, so it is read before the transaction.
		if op.event, op.action, err = s.recordedAction(caller.Org, seen.event); err != nil {
			return nil, visible(err)
		}
		op.nameVoters(seen.Approval)
	}
	var actions []*ledger.Action
	if op.action != nil {
		actions = append(actions, op.action)
	}
	err = s.commitExamined(ctx, op, caller.Org, actions...)
	for again := 0; errors.Is(err, errVoterNotLoaded) && again < mostAgain; again++ {
		err = s.commitExamined(ctx, op, caller.Org, actions...)
	}
	switch {
	case err != nil:
		return nil, err
	case op.refused != nil:
		return nil, op.refused
	}
	return s.ownApproval(ctx, caller, id)
}

// CancelApproval ends an approval that its client has given up on: an agent's own,
// or for a member any. A client that merely dies cancels nothing: its wait can be
// taken up again.
func (s *Service) CancelApproval(ctx context.Context, caller *Caller, id ledger.ApprovalID, comment string) (*ApprovalView, error) {
	if err := caller.require(ledger.RoleAgent); err != nil {
		return nil, err
	}
	seen, err := s.ownApproval(ctx, caller, id)
	if err != nil {
		return nil, err
	}
	op := &moveApproval{id: id, chain: seen.Chain, org: caller.Org, caller: caller, giveUp: &comment, counters: counting{idsOfUses(seen.Reserved.Uses)}}
	if err := s.commitWhole(ctx, op); err != nil {
		return nil, err
	}
	return s.ownApproval(ctx, caller, id)
}

// AdvanceApproval does what the time asks for: escalation, or the time-out. It
// returns the moment at which to look again, 0 when there is none.
func (s *Service) AdvanceApproval(ctx context.Context, id ledger.ApprovalID) (next ledger.Time, err error) {
	record, err := s.store.Approval(ctx, id)
	if err != nil {
		return 0, visible(err)
	}
	op := &moveApproval{id: id, chain: record.Chain, org: record.Org}
	if err := s.commitWhole(ctx, op); err != nil {
		return 0, err
	}
	return op.next, nil
}

// moveApproval is a step of an approval: a verdict, a client that gives up, or the
// passing of time.
type moveApproval struct {
	id      ledger.ApprovalID
	chain   ledger.ChainID
	org     ledger.OrgID
	caller  *Caller         // nil for the passing of time
	verdict *ledger.Verdict // nil for any other step
	giveUp  *string         // the comment of a client that gives up, nil for any other step
	// The action that a yes is about and those who said yes before it; nil for any other
	// step.
	event  *ledger.RecordedEvent
	action *ledger.Action
	voters []ledger.KeyID

	counters counting // in which the action waits
	next     ledger.Time
	refused  error // committed, and to be answered with this
}

func (o *moveApproval) tenant() ledger.OrgID { return o.org }

func (o *moveApproval) size() int { return smallOperation }

func (o *moveApproval) need(needs *store.Needs) {
	if o.caller != nil {
		needs.Keys = append(needs.Keys, o.caller.Key)
		needs.Logs = append(needs.Logs, o.org)
	}
	needs.Keys = append(needs.Keys, o.voters...)
	needs.Orgs = append(needs.Orgs, o.org)
	needs.Chains = append(needs.Chains, o.chain)
	needs.Approvals = append(needs.Approvals, o.id)
	needs.SigningKeys = append(needs.SigningKeys, o.org)
	needs.ApprovalsOf = append(needs.ApprovalsOf, o.chain)
	o.counters.need(needs)
}

func (o *moveApproval) plan(b *batch) error {
	if o.caller != nil {
		if err := b.confirm(o.caller); err != nil {
			return err
		}
	}
	live, err := b.chainOf(o.org, o.chain)
	if err != nil {
		return err
	}
	asked, err := b.approval(o.id)
	if err != nil {
		return err
	}
	if err := o.fresh(b, live, asked.approval); err != nil {
		return err
	}
	org, err := b.org(o.org)
	if err != nil {
		return err
	}
	if asked.approval.Status.Open() {
		if err := o.counters.loaded(b, idsOfUses(asked.approval.Reserved.Uses)); err != nil {
			return err
		}
	}
	before := *asked.approval
	o.refused = nil
	changed, err := o.move(b, org, live, asked.approval)
	if err != nil {
		return err
	}
	o.next = asked.approval.NextStep()
	if !changed {
		return nil
	}
	return o.moved(b, org, live, asked, &before)
}

// fresh refuses an approval that stands open in its row although its end was
// entered into the chain: the row was put back. Then more approvals stand open than the
// chain waits for, or another one is hidden.
func (o *moveApproval) fresh(b *batch, live *liveChain, approval *ledger.Approval) error {
	if !approval.Status.Open() {
		return nil
	}
	_, err := b.approvalsOf(live)
	return err
}

func (o *moveApproval) move(b *batch, org *ledger.Organization, live *liveChain, approval *ledger.Approval) (changed bool, err error) {
	if o.giveUp != nil {
		return approval.GiveUp(*o.giveUp, b.now)
	}
	if o.verdict == nil {
		return approval.Advance(b.now), nil
	}
	var settlement *ledger.Settlement
	if o.verdict.Approve && approval.At(b.now).Open() {
		if settlement, err = o.settlement(b, org, live, approval); err != nil {
			return false, err
		}
	}
	reviewer := ledger.Reviewer{Key: o.caller.Key, Name: o.caller.Name}
	changed, err = approval.Decide(o.verdict, reviewer, settlement, b.now)
	if changed && approval.DeniedBy != nil {
		o.refused = approval.DeniedBy.PolicyChanged()
	}
	return changed, err
}

// moved writes a step of an approval: into the chain where it is the end, into
// the audit log where a person made it, and to those who are told.
func (o *moveApproval) moved(b *batch, org *ledger.Organization, live *liveChain, asked *askedApproval, before *ledger.Approval) error {
	asked.changed = true
	approval := asked.approval
	b.changes.Signals = append(b.changes.Signals, approval.ID.UUID)
	if !approval.Status.Open() {
		if err := b.sign(approval); err != nil {
			b.broken = err // the approval has moved already, and must not be written unsigned
			return err
		}
		b.settle(live, approval)
		b.changes.NewJobs = append(b.changes.NewJobs,
			anchorJobs(b.service.anchoring, approval.Org, ledger.SubjectApproval, approval.ID.UUID, 0, approval.Hash(), b.now)...)
	}
	if kind := stepKind(before.Status, approval.Status); kind != "" {
		b.notice(org, approvalNotice(kind, live.chain, approval), approval.ID.String())
	}
	if o.caller == nil {
		return nil
	}
	return b.act(o.caller.actor(), org, approvalDeed(o.name(approval), live.chain, before, approval))
}

// name is what the audit log calls the step of a caller.
func (o *moveApproval) name(approval *ledger.Approval) string {
	switch {
	case approval.DeniedBy != nil:
		return ledger.ActApprovalOverrule
	case o.giveUp != nil:
		return ledger.ActApprovalCancel
	case o.verdict.Approve:
		return ledger.ActApprovalApprove
	default:
		return ledger.ActApprovalDeny
	}
}

// settle enters an approval's end into its chain.
func (b *batch) settle(live *liveChain, approval *ledger.Approval) {
	addendum := live.state.Settle(approval, b.now)
	b.settleUses(approval)
	live.changed = true
	b.enter(addendum)
}

func stepKind(before, after ledger.ApprovalStatus) notify.Kind {
	switch {
	case before == after:
		return ""
	case after == ledger.ApprovalEscalated:
		return notify.ApprovalEscalated
	case after == ledger.ApprovalTimedOut:
		return notify.ApprovalTimedOut
	default:
		return notify.ApprovalDecided
	}
}

// askedApproval is an approval that the batch works on.
type askedApproval struct {
	record   *store.ApprovalRecord
	approval *ledger.Approval
	fresh    bool // made by this batch
	changed  bool
}

// approval finds an approval that the operation named among its needs, as the
// batch leaves it so far.
func (b *batch) approval(id ledger.ApprovalID) (*askedApproval, error) {
	if asked := b.asked[id]; asked != nil {
		return asked, nil
	}
	record := b.loaded.Approvals[id]
	if record == nil {
		return nil, ledger.ErrNotFound
	}
	approval, err := b.service.store.ReadApproval(record)
	if err != nil {
		return nil, err
	}
	asked := &askedApproval{record: record, approval: approval}
	b.asked[id] = asked
	return asked, nil
}

// ask enters an approval that an action of this batch needs, with its deadline.
func (b *batch) ask(live *liveChain, approval *ledger.Approval, org *ledger.Organization) {
	b.asked[approval.ID] = &askedApproval{
		fresh: true, approval: approval,
		record: &store.ApprovalRecord{
			ID: approval.ID, Org: approval.Org, Chain: approval.Chain, Sequence: approval.Sequence,
			OpenedBy: live.chain.OpenedBy, RequestedAt: approval.RequestedAt,
		},
	}
	b.changes.NewJobs = append(b.changes.NewJobs, &store.Job{
		Org: org.ID, Kind: JobDeadline, RunAt: approval.EscalatesAt, Body: []byte(approval.ID.String()),
	})
	b.notice(org, approvalNotice(notify.ApprovalRequested, live.chain, approval), approval.ID.String())
}

func (a *askedApproval) write(b *batch) {
	if !a.fresh && !a.changed {
		return
	}
	a.record.Status = a.approval.Status
	a.record.Body, a.record.MAC = a.approval.Encode(b.service.keys)
	if a.fresh {
		b.changes.NewApprovals = append(b.changes.NewApprovals, a.record)
	} else {
		b.changes.Approvals = append(b.changes.Approvals, a.record)
	}
}
