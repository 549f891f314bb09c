package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/notify"
	"countersign/internal/store"
	"countersign/internal/verify"
)

// DecideApproval records a person's decision. The first decision is final.
func (s *approvalService) DecideApproval(ctx context.Context, caller *Caller, id ledger.ApprovalID, verdict *ledger.Verdict) (*ApprovalView, error) {
	s.noteGrant(caller.Org) // possibly; noted before anything is read
	if err := caller.require(ledger.RoleMember); err != nil {
		return nil, err
	}
	// This also checks that the payload is the one that was recorded.
	seen, err := s.ownApproval(ctx, caller, id)
	if err != nil {
		return nil, err
	}
	op := &approvalStep{id: id, chain: seen.Chain, org: caller.Org, caller: caller, verdict: verdict, counters: counting{idsOfUses(seen.Reserved.Uses)}}
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
	err = s.policies.commitExamined(ctx, op, caller.Org, actions...)
	switch {
	case err != nil:
		return nil, err
	case op.refused != nil:
		return nil, op.refused
	}
	return s.ownApproval(ctx, caller, id)
}

// CancelApproval ends an approval that its client has given up on. An agent may cancel its
// own approvals, a member any. A client that merely crashes cancels nothing: its wait can be
// resumed.
func (s *approvalService) CancelApproval(ctx context.Context, caller *Caller, id ledger.ApprovalID, comment string) (*ApprovalView, error) {
	if err := caller.require(ledger.RoleAgent); err != nil {
		return nil, err
	}
	seen, err := s.ownApproval(ctx, caller, id)
	if err != nil {
		return nil, err
	}
	op := &approvalStep{id: id, chain: seen.Chain, org: caller.Org, caller: caller, giveUp: &comment, counters: counting{idsOfUses(seen.Reserved.Uses)}}
	if err := s.commitLoaded(ctx, op); err != nil {
		return nil, err
	}
	return s.ownApproval(ctx, caller, id)
}

// AdvanceApproval escalates an approval or times it out, if that is due. It returns when to
// call it again, or 0 for never.
func (s *approvalService) AdvanceApproval(ctx context.Context, id ledger.ApprovalID) (next ledger.Time, err error) {
	record, err := s.store.Approval(ctx, id)
	if err != nil {
		return 0, visible(err)
	}
	op := &approvalStep{id: id, chain: record.Chain, org: record.Org}
	if err := s.commitLoaded(ctx, op); err != nil {
		return 0, err
	}
	return op.next, nil
}

// approvalStep changes the status of an approval: by a verdict, by a client that gives up, or
// because time has passed.
type approvalStep struct {
	id      ledger.ApprovalID
	chain   ledger.ChainID
	org     ledger.OrgID
	caller  *Caller         // nil if time has passed
	verdict *ledger.Verdict // nil for other steps
	giveUp  *string         // comment of a client that gives up; nil for other steps
	// The action to be approved and the keys of earlier votes; nil for other steps.
	event  *ledger.RecordedEvent
	action *ledger.Action
	voters []ledger.KeyID

	counters counting    // that hold the action's reservations
	next     ledger.Time // result: when the next step is due; 0 for never
	refused  error       // result: the step was committed, but the caller gets this error
}

func (o *approvalStep) tenant() ledger.OrgID { return o.org }

func (o *approvalStep) size() int { return smallOperation }

func (o *approvalStep) need(needs *store.Needs) {
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

func (o *approvalStep) plan(b *batch) error {
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
	return o.write(b, org, live, asked, &before)
}

// fresh refuses an approval whose row is open although its end was recorded in the chain: the
// row was reset. In that case more approvals are open than the chain's state counts, or
// another one was removed to hide that.
func (o *approvalStep) fresh(b *batch, live *liveChain, approval *ledger.Approval) error {
	if !approval.Status.Open() {
		return nil
	}
	_, err := b.approvalsOf(live)
	return err
}

func (o *approvalStep) move(b *batch, org *ledger.Organization, live *liveChain, approval *ledger.Approval) (changed bool, err error) {
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

// write records a step: in the chain if the approval has ended, in the audit log if a caller
// made it, and as a notice to recipients.
func (o *approvalStep) write(b *batch, org *ledger.Organization, live *liveChain, asked *liveApproval, before *ledger.Approval) error {
	asked.changed = true
	approval := asked.approval
	b.changes.Signals = append(b.changes.Signals, approval.ID.UUID)
	if !approval.Status.Open() {
		if err := b.endSigned(live, approval); err != nil {
			return err
		}
	}
	if kind := stepKind(before.Status, approval.Status); kind != "" {
		b.queueNotice(org, approvalNotice(kind, live.chain, approval), approval.ID.String())
	}
	if o.caller == nil {
		return nil
	}
	return b.logAct(o.caller.actor(), org, approvalAuditEntry(o.name(approval), live.chain, before, approval, o.caller.slackMember))
}

// name is the action of a caller's step in the audit log.
func (o *approvalStep) name(approval *ledger.Approval) string {
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

// endSigned signs the end of an approval, records it in its chain and queues its anchors. The
// operation must have named the signing keys among its needs.
func (b *batch) endSigned(live *liveChain, approval *ledger.Approval) error {
	if err := b.sign(approval); err != nil {
		b.broken = err // the approval has changed already, and must not be written unsigned
		return err
	}
	b.endApproval(live, approval)
	b.changes.NewJobs = append(b.changes.NewJobs,
		anchorJobs(b.service.anchoring, approval.Org, ledger.SubjectApproval, approval.ID.UUID, 0, approval.Hash(), b.now)...)
	return nil
}

// endApproval records an approval's end in its chain.
func (b *batch) endApproval(live *liveChain, approval *ledger.Approval) {
	addendum := live.state.Settle(approval, b.now)
	b.releaseUses(approval)
	live.changed = true
	b.addAddendum(addendum)
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

// liveApproval is an approval in use by the batch.
type liveApproval struct {
	record   *store.ApprovalRecord
	approval *ledger.Approval
	fresh    bool // requested by this batch
	changed  bool
}

// approval returns an approval, including earlier changes of this batch. The operation must
// have named it among its needs.
func (b *batch) approval(id ledger.ApprovalID) (*liveApproval, error) {
	if asked := b.approvals[id]; asked != nil {
		return asked, nil
	}
	record := b.loaded.Approvals[id]
	if record == nil {
		return nil, fault.ErrNotFound
	}
	approval, err := b.service.store.ReadApproval(record)
	if err != nil {
		return nil, err
	}
	asked := &liveApproval{record: record, approval: approval}
	b.approvals[id] = asked
	return asked, nil
}

// approvalOf returns the approval that an event refers to. It must be stored, and about that
// event.
func (b *batch) approvalOf(event *ledger.RecordedEvent) (*ledger.Approval, error) {
	asked, err := b.approval(event.Approval)
	if errors.Is(err, fault.ErrNotFound) || err == nil && asked.approval.Event != event.ID {
		return nil, fmt.Errorf("the approval of an event is missing or another's: %w", ledger.ErrStateTampered)
	}
	if err != nil {
		return nil, err
	}
	return asked.approval, nil
}

// requestApproval adds the approval that an action of this batch needs, and the job for its
// deadline.
func (b *batch) requestApproval(live *liveChain, approval *ledger.Approval, org *ledger.Organization) {
	b.approvals[approval.ID] = &liveApproval{
		fresh: true, approval: approval,
		record: &store.ApprovalRecord{
			ID: approval.ID, Org: approval.Org, Chain: approval.Chain, Sequence: approval.Sequence,
			OpenedBy: live.chain.OpenedBy, RequestedAt: approval.RequestedAt,
		},
	}
	b.postApproval(live.chain, approval)
	b.changes.NewJobs = append(b.changes.NewJobs, &store.Job{
		Org: org.ID, Kind: JobDeadline, RunAt: approval.EscalatesAt, Body: []byte(approval.ID.String()),
	})
	b.queueNotice(org, approvalNotice(notify.ApprovalRequested, live.chain, approval), approval.ID.String())
}

func (a *liveApproval) write(b *batch) {
	if !a.fresh && !a.changed {
		return
	}
	b.queueSlack(a.approval)
	a.record.Status = a.approval.Status
	a.record.Body, a.record.MAC = a.approval.Encode(b.service.keys)
	if a.fresh {
		b.changes.NewApprovals = append(b.changes.NewApprovals, a.record)
	} else {
		b.changes.Approvals = append(b.changes.Approvals, a.record)
	}
}

// Voter is a person's vote, and why it no longer counts.
type Voter struct {
	ledger.Vote
	Discounted string // reason; "" if the vote counts or the approval has ended
}

// Counting returns the number of votes that count.
func (v *ApprovalView) Counting() (n int) {
	for i := range v.Voters {
		if v.Voters[i].Discounted == "" {
			n++
		}
	}
	return n
}

// judgeVotes sets whether each vote would count now, for reviewers. Votes are judged again
// when the approval ends.
func (v *approvalViewer) judgeVotes(ctx context.Context, view *ApprovalView, stored *ledger.StoredEvent) error {
	event, policy, question, err := v.question(ctx, view.Approval, stored)
	if errors.Is(err, ledger.ErrStateTampered) {
		// Nobody can approve it now. It is still shown, because it can be denied.
		for i := range view.Voters {
			view.Voters[i].Discounted = "the rules in force were changed outside the service"
		}
		return nil
	}
	if err != nil {
		return err
	}
	keys := make(map[ledger.KeyID]*ledger.KeyRecord, len(view.Voters))
	for i := range view.Voters {
		id := view.Voters[i].Reviewer.Key
		key, err := v.service.store.Key(ctx, id)
		if err != nil && !errors.Is(err, store.ErrNotFound) && !errors.Is(err, ledger.ErrStateTampered) {
			return err
		}
		keys[id] = key
	}
	if err := v.service.policies.examine(ctx, v.org.ID, policy, question.Action); err != nil {
		return err
	}
	settlement := event.Settlement(policy, question, view.Approval)
	settlement.Key = func(id ledger.KeyID) *ledger.KeyRecord { return keys[id] }
	for i := range view.Voters {
		view.Voters[i].Discounted = view.DiscountReason(&view.Voters[i].Vote, settlement)
	}
	return nil
}

// nameVoters adds the keys of earlier voters to the operation's needs.
func (o *approvalStep) nameVoters(approval *ledger.Approval) {
	o.voters = nil
	for i := range approval.Votes {
		o.voters = append(o.voters, approval.Votes[i].Reviewer.Key)
	}
}

// settlement returns what an approval is checked against, as read in this transaction. The
// transaction holds the organization's lock, so no key, policy or setting changes before the
// commit.
func (o *approvalStep) settlement(b *batch, org *ledger.Organization, live *liveChain, approval *ledger.Approval) (*ledger.Settlement, error) {
	if o.event == nil || o.event.ID != approval.Event {
		return nil, fmt.Errorf("an approval is about another event than the one in its place: %w", ledger.ErrStateTampered)
	}
	for i := range approval.Votes {
		if !slices.Contains(o.voters, approval.Votes[i].Reviewer.Key) { // a vote since the keys were named
			o.nameVoters(approval)
			return nil, errNotLoaded
		}
	}
	policy, err := b.policyFor(org, o.action)
	if err != nil {
		return nil, err
	}
	now := ledger.Later(b.now, live.state.LastAt)
	standings, err := b.standAgain(&o.counters, org, policy, approvalSubject(approval, live.chain), o.action, approval.Reserved.Uses, now)
	if err != nil {
		return nil, err
	}
	settlement := o.event.Settlement(policy, &ledger.Question{
		Org: org, Chain: live.chain, State: live.state, Action: o.action, Now: now, Standings: standings,
	}, approval)
	settlement.Key = func(id ledger.KeyID) *ledger.KeyRecord { return b.loaded.Keys[id] }
	return settlement, nil
}

// QueueDeadlines ensures that each open approval has a job for its deadline. A job that was
// deleted, postponed, leased forever or buried is queued again.
func (s *approvalService) QueueDeadlines(ctx context.Context) error {
	orgs, err := s.findings.organizations(ctx)
	if err != nil {
		return err
	}
	var jobs []*store.Job
	var failed []error // an unreadable organization must not block the others
	for _, org := range orgs {
		missing, err := s.judge.Approvals.MissingDeadlines(ctx, org.ID)
		if err != nil {
			failed = append(failed, visible(err))
			continue
		}
		for id, next := range missing {
			jobs = append(jobs, &store.Job{
				Org: org.ID, Kind: JobDeadline, RunAt: next, Body: []byte(id.String()),
				Once: fmt.Sprint(JobDeadline, "/", id, "/", s.now().Period(verify.DeadlineSlack)), // several replicas may queue it
			})
		}
	}
	if len(jobs) == 0 {
		return errors.Join(failed...)
	}
	s.log.Warn("jobs for the deadlines of approvals were missing and are queued again: run countersign audit", "approvals", len(jobs))
	return errors.Join(append(failed, s.committer.commit(ctx, &queueJobs{jobs}))...)
}

// approvalPolls records when the clients of approvals last polled them, so that a reviewer
// can see whether a client still waits. It is informational: no decision depends on it, so
// it has no authenticator and is stored apart from the approvals.
//
// This process sees its own polls at once. Other replicas, and this one after a restart, read
// them from the store. The worker writes them there every few seconds; requests never do.
type approvalPolls struct {
	mu     sync.Mutex                // guards the fields below
	open   map[ledger.ApprovalID]int // long polls under way in this process
	recent map[ledger.ApprovalID]poll
}

type poll struct {
	at      ledger.Time
	written ledger.Time // the stored value; 0 for none
}

const (
	// stillWaiting is how long after its last poll a client counts as waiting. It exceeds the
	// pause between two polls plus the lag of another replica.
	stillWaiting = time.Minute
	// maxPolls bounds the map. Further polls are ignored until older ones are written and
	// removed.
	maxPolls = 10_000
)

// note records a poll.
func (p *approvalPolls) note(id ledger.ApprovalID, now ledger.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.noteLocked(id, now)
}

// noteLocked is note for callers that hold mu.
func (p *approvalPolls) noteLocked(id ledger.ApprovalID, now ledger.Time) {
	if p.recent == nil {
		p.recent = make(map[ledger.ApprovalID]poll)
	}
	known, found := p.recent[id]
	if now > known.at && (found || len(p.recent) < maxPolls) {
		p.recent[id] = poll{at: now, written: known.written}
	}
}

// longPoll is a client's wait for one approval. It counts as polling from begin to end, and
// belongs to one goroutine.
type longPoll struct {
	polls *approvalPolls
	id    ledger.ApprovalID
	begun bool
}

// begin records the start of the wait. Further calls do nothing.
func (l *longPoll) begin(now ledger.Time) {
	if l.begun {
		return
	}
	l.begun = true
	p := l.polls
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open == nil {
		p.open = make(map[ledger.ApprovalID]int)
	}
	p.open[l.id]++
	p.noteLocked(l.id, now)
}

// end records the end of the wait, if it was begun.
func (l *longPoll) end(now ledger.Time) {
	if !l.begun {
		return
	}
	p := l.polls
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open[l.id]--; p.open[l.id] == 0 {
		delete(p.open, l.id)
	}
	p.noteLocked(l.id, now)
}

// last returns when the client last polled this process; 0 for never or not recently.
func (p *approvalPolls) last(id ledger.ApprovalID, now ledger.Time) ledger.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open[id] > 0 {
		return now
	}
	return p.recent[id].at
}

// unwritten returns the polls that are not stored yet, including those in progress. It
// removes old ones that are.
func (p *approvalPolls) unwritten(now ledger.Time) map[ledger.ApprovalID]ledger.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id := range p.open {
		p.noteLocked(id, now)
	}
	found := make(map[ledger.ApprovalID]ledger.Time)
	for id, poll := range p.recent {
		switch {
		case poll.at > poll.written:
			found[id] = poll.at
		case poll.at < now.Add(-stillWaiting):
			delete(p.recent, id)
		}
	}
	return found
}

func (p *approvalPolls) wrote(written map[ledger.ApprovalID]ledger.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, at := range written {
		if known, found := p.recent[id]; found {
			p.recent[id] = poll{at: known.at, written: at}
		}
	}
}

// FlushPolls stores when clients last polled their chains and approvals. A server calls it
// when it shuts down.
func (s *approvalService) FlushPolls(ctx context.Context) error {
	return errors.Join(s.chains.FlushChainPolls(ctx), s.FlushApprovalPolls(ctx))
}

// FlushApprovalPolls stores when clients last polled their approvals. The worker calls it
// every few seconds, one call at a time.
func (s *approvalService) FlushApprovalPolls(ctx context.Context) error {
	unwritten := s.approvalPolls.unwritten(s.now())
	if len(unwritten) == 0 {
		return nil
	}
	if err := s.store.PutPolls(ctx, unwritten); err != nil {
		return visible(err)
	}
	s.approvalPolls.wrote(unwritten)
	return nil
}

// isClientOf reports whether a caller is the client of an approval: it presents the key that
// opened the chain. A browser session is a person, whatever its key.
func (c *Caller) isClientOf(view *ApprovalView) bool {
	return c.secret != nil && c.Key == view.OpenedBy
}

// Attendance reports whether a client waits for an approval, judging by its requests. A
// client that is away may return: a wait can be resumed.
type Attendance struct {
	// LastPolledAt is when the client last polled the approval, accurate to some seconds; nil
	// for never.
	LastPolledAt *ledger.Time
	// Waiting reports that the approval is open and the client has polled within the last
	// minute.
	Waiting bool
}

// addAttendance sets whether the clients of approvals are waiting, for reviewers.
func (s *approvalService) addAttendance(ctx context.Context, caller *Caller, views ...*ApprovalView) error {
	if !caller.Role.Includes(ledger.RoleMember) || len(views) == 0 {
		return nil
	}
	ids := make([]ledger.ApprovalID, len(views))
	for i, view := range views {
		ids[i] = view.ID
	}
	stored, err := s.store.Polls(ctx, ids)
	if err != nil {
		return visible(err)
	}
	now := s.now()
	for _, view := range views {
		// Another replica's clock may run ahead of this one's.
		last := min(ledger.Later(stored[view.ID], s.approvalPolls.last(view.ID, now)), now)
		view.Client = new(Attendance)
		if last > 0 {
			view.Client.LastPolledAt = &last
			view.Client.Waiting = view.Status.Open() && now < last.Add(stillWaiting)
		}
	}
	return nil
}

// waiters wakes callers that wait for an approval when the approval or the caller's API key
// has changed. A wake-up only means that something may have changed: the caller reads again.
type waiters struct {
	mu      sync.Mutex                           // guards waiting
	waiting map[uuid.UUID]map[chan struct{}]bool // by the id of the approval or key
}

// add subscribes to ids until cancel is called. The channel buffers one wake-up, so that none
// is lost while its owner reads the store.
func (w *waiters) add(ids ...uuid.UUID) (woken <-chan struct{}, cancel func()) {
	c := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiting == nil {
		w.waiting = make(map[uuid.UUID]map[chan struct{}]bool)
	}
	for _, id := range ids {
		if w.waiting[id] == nil {
			w.waiting[id] = make(map[chan struct{}]bool)
		}
		w.waiting[id][c] = true
	}
	return c, func() { w.remove(c, ids) }
}

func (w *waiters) remove(c chan struct{}, ids []uuid.UUID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		delete(w.waiting[id], c)
		if len(w.waiting[id]) == 0 {
			delete(w.waiting, id)
		}
	}
}

// wake wakes the callers that wait for an id.
func (w *waiters) wake(id uuid.UUID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.waiting[id] {
		nudge(c)
	}
}

// wakeAll wakes all callers, because notifications may have been lost.
func (w *waiters) wakeAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, channels := range w.waiting {
		for c := range channels {
			nudge(c)
		}
	}
}

// nudge sends a value unless one is already buffered. It never blocks.
func nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
