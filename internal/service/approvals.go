package service

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// approvalService lists approvals, records people's decisions, and lets clients wait for
// them.
type approvalService struct {
	*shared
	chains        *chainService
	findings      *findingService
	policies      *policyService
	waiters       waiters
	approvalPolls approvalPolls
	keyRecheck    time.Duration // how often a wait checks its key; tests replace it
}

// ApprovalView is an approval in its current state, with its payload.
type ApprovalView struct {
	*ledger.Approval
	Status  ledger.ApprovalStatus // now: one whose time has passed is timed out
	Payload []byte
	// Redactions are the digests of values removed from the payload; nil for none.
	Redactions []byte
	// Unbound are the places of removed values that no digest covers.
	Unbound []string
	// Killed reports that the kill switch is active: even an approved action must not begin
	// now.
	Killed     bool
	KillReason string
	// Overruled is the current decision of the rules if they deny an approved action; nil
	// otherwise.
	Overruled *ledger.Decision
	// TwoPerson reports whether two people must approve: because that was required when the
	// approval was requested, or because the organization's settings require it now.
	TwoPerson bool
	// Voters are the people who have approved, if two must.
	Voters []Voter
	Client *Attendance // for reviewers; nil for an agent
	// Tampered reports that the stored record, or its event, fails authentication. Then only
	// the id and the position in the list are set. Only lists return such views.
	Tampered bool

	event *ledger.StoredEvent // the event that needs the approval
}

// Now is the status to act on: an approved action is denied while the kill switch is active
// or the current rules deny it.
func (v *ApprovalView) Now() ledger.ApprovalStatus {
	if (v.Killed || v.Overruled != nil) && v.Status == ledger.ApprovalApproved {
		return ledger.ApprovalDenied
	}
	return v.Status
}

// Approval returns an approval. If it is open, Approval first waits up to the given time for
// it to end. The wait uses no connection to the store.
func (s *approvalService) Approval(ctx context.Context, caller *Caller, id ledger.ApprovalID, wait time.Duration) (*ApprovalView, error) {
	s.noteGrant(caller.Org) // possibly; noted before anything is read
	if err := s.authorize(ctx, caller, ledger.RoleAgent); err != nil {
		return nil, err
	}
	if wait <= 0 {
		view, err := s.ownApproval(ctx, caller, id)
		if err == nil && caller.isClientOf(view) {
			s.approvalPolls.note(id, s.now())
		}
		return view, err
	}
	timer := time.NewTimer(caller.longestWait(wait, s.now()))
	defer timer.Stop()
	// Subscribe before reading, so that no change is missed in between.
	woken, cancel := s.waiters.add(id.UUID, caller.Key.UUID)
	defer cancel()
	client := longPoll{polls: &s.approvalPolls, id: id}
	defer func() { client.end(s.now()) }()
	for ended := false; ; {
		// A disconnected caller is treated like one whose wait has timed out: the read
		// completes and returns the current state.
		view, err := s.ownApproval(context.WithoutCancel(ctx), caller, id)
		if err != nil {
			return nil, err
		}
		if caller.isClientOf(view) {
			client.begin(s.now())
		}
		if !view.Status.Open() {
			// Confirm the key after reading the approval, so that only a key that was valid
			// at the time of the decision learns of it.
			if err := s.confirm(context.WithoutCancel(ctx), caller); err != nil {
				return nil, err
			}
			return view, nil
		}
		if ended {
			return view, nil
		}
		if ended, err = s.await(ctx, caller, woken, timer); err != nil {
			return nil, err
		}
	}
}

// keyRecheck is how often a wait checks its key. A revocation by a server wakes the wait at
// once. The check is for changes that are not announced: by a command that runs beside a
// server on SQLite, or by someone who deletes a row by hand.
const keyRecheck = 10 * time.Second

// await waits until the approval may have changed, or until the wait has ended. It fails if
// the caller's key has ended.
func (s *approvalService) await(ctx context.Context, caller *Caller, woken <-chan struct{}, timer *time.Timer) (ended bool, err error) {
	recheck := time.NewTicker(s.keyRecheck)
	defer recheck.Stop()
	for {
		rechecking := false
		select {
		case <-woken:
		case <-recheck.C:
			rechecking = true
		case <-timer.C:
			ended = true
		case <-ctx.Done():
			ended = true
		case <-s.closing:
			ended = true
		}
		err := s.confirm(context.WithoutCancel(ctx), caller)
		if rechecking && (err == nil || errors.Is(err, store.ErrUnavailable)) {
			continue
		}
		return ended, err
	}
}

func (s *approvalService) ownApproval(ctx context.Context, caller *Caller, id ledger.ApprovalID) (*ApprovalView, error) {
	record, err := s.store.Approval(ctx, id)
	if err != nil {
		return nil, visible(err)
	}
	if !caller.sees(record) {
		return nil, fault.ErrNotFound
	}
	if record.OpenedBy == caller.Key {
		s.chains.chainPolls.noteAt(polledChain{record.Org, record.Chain}, record.RequestedAt, s.now())
	}
	org, err := s.organization(ctx, record.Org)
	if err != nil {
		return nil, err
	}
	approvalViewer := s.viewer(org)
	if _, watched := s.chains.seenChain(record.Chain); watched { // refuse a chain that was rolled back
		if _, err := approvalViewer.chain(ctx, record.Chain); err != nil {
			return nil, visible(err)
		}
	}
	view, err := s.approvalView(ctx, record, approvalViewer)
	if err == nil && caller.Role.Includes(ledger.RoleMember) {
		err = s.stillWaits(ctx, view, approvalViewer)
	}
	if err == nil {
		err = s.addAttendance(ctx, caller, view)
	}
	if err != nil {
		return nil, err
	}
	return view, nil
}

// stillWaits fails if an approval is open although its end was recorded in the chain: the row was put
// back. People are not asked for it again. Agents are not told, and wait: what they poll most stays
// cheap.
func (s *approvalService) stillWaits(ctx context.Context, view *ApprovalView, v *approvalViewer) error {
	if !view.Approval.Status.Open() {
		return nil
	}
	chain, err := v.chain(ctx, view.Chain)
	if err == nil {
		_, _, err = s.countedApprovals(ctx, chain)
	}
	return visible(err)
}

// sees reports whether the caller may see an approval. An agent sees those of chains that its
// own key opened; all others see every approval of their organization.
func (c *Caller) sees(record *store.ApprovalRecord) bool {
	return record.Org == c.Org && (c.Role != ledger.RoleAgent || record.OpenedBy == c.Key)
}

func (s *approvalService) approvalView(ctx context.Context, record *store.ApprovalRecord, v *approvalViewer) (*ApprovalView, error) {
	view, err := s.bareView(record, v.org)
	if err == nil {
		err = s.complete(ctx, view, v)
	}
	if err != nil {
		return nil, err
	}
	return view, nil
}

// bareView returns the view of an approval without its payload and the current decision of
// the rules.
func (s *approvalService) bareView(record *store.ApprovalRecord, org *ledger.Organization) (*ApprovalView, error) {
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

// readPayload reads the event that needs the approval, and refuses any other event.
func (s *approvalService) readPayload(ctx context.Context, view *ApprovalView) (*ledger.StoredEvent, error) {
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

// complete reads the payload and judges the approval by the rules in force.
func (s *approvalService) complete(ctx context.Context, view *ApprovalView, v *approvalViewer) error {
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

// approvalViewer completes the views of one organization's approvals. It reads each chain
// once, and belongs to one goroutine.
type approvalViewer struct {
	service *approvalService
	org     *ledger.Organization
	chains  map[ledger.ChainID]*ChainView
}

func (s *approvalService) viewer(org *ledger.Organization) *approvalViewer {
	return &approvalViewer{service: s, org: org, chains: make(map[ledger.ChainID]*ChainView)}
}

func (v *approvalViewer) chain(ctx context.Context, id ledger.ChainID) (*ChainView, error) {
	if chain := v.chains[id]; chain != nil {
		return chain, nil
	}
	chain, err := v.service.chains.readChain(ctx, v.org.ID, id)
	if err == nil {
		v.chains[id] = chain
	}
	return chain, missingIsTampering(visible(err), "the chain of an approval")
}

// overruled checks an approved action against a pause of its chain and the current rules, as
// for a repeated event. It returns the decision if that is a denial, and nil otherwise.
func (v *approvalViewer) overruled(ctx context.Context, approval *ledger.Approval, stored *ledger.StoredEvent) (*ledger.Decision, error) {
	event, policy, question, err := v.question(ctx, approval, stored)
	if err != nil {
		return nil, err
	}
	if err := v.service.policies.examine(ctx, v.org.ID, policy, question.Action); err != nil {
		return nil, err
	}
	if now := event.AnswerRepeated(policy, question, approval); now.Decision.Outcome == ledger.Deny {
		return &now.Decision, nil
	}
	return nil, nil
}

// question returns what is needed to decide an approval's action again.
func (v *approvalViewer) question(ctx context.Context, approval *ledger.Approval, stored *ledger.StoredEvent) (*ledger.RecordedEvent, *ledger.Policy, *ledger.Question, error) {
	event, action, err := v.service.recordedAction(v.org.ID, stored)
	if err != nil {
		return nil, nil, nil, err
	}
	chain, err := v.chain(ctx, approval.Chain)
	if err != nil {
		return nil, nil, nil, err
	}
	newest := chain
	for newest.State.ContinuedBy != nil { // a pause applies to the newest chain
		if newest, err = v.chain(ctx, *newest.State.ContinuedBy); err != nil {
			return nil, nil, nil, err
		}
	}
	policy, err := v.service.policies.policyInForce(ctx, v.org)
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

// recordedAction decodes an event and its action, so that it can be decided again.
func (s *approvalService) recordedAction(org ledger.OrgID, stored *ledger.StoredEvent) (*ledger.RecordedEvent, *ledger.Action, error) {
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
	// Bare omits payloads, and with them the bound on a page's bytes: large payloads must
	// not hide other approvals from a reviewer.
	Bare bool
	// Glance adds payloads to the first approvals of a bare list, up to PageBytes in total.
	// It does not judge the approvals by the rules in force.
	Glance bool

	oldest bool // the oldest first
}

// Approvals lists approvals, newest first. Those that fail authentication are marked.
func (s *approvalService) Approvals(ctx context.Context, caller *Caller, filter ApprovalFilter) ([]*ApprovalView, error) {
	s.noteGrant(caller.Org) // possibly; noted before anything is read
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
		s.chains.chainPolls.noteAt(polledChain{caller.Org, *filter.Chain}, views[0].RequestedAt, s.now())
	}
	return views, err
}

// PageBytes bounds the payloads in one page of a list, in bytes: a page that has reached it
// ends there, before its limit.
const PageBytes = 1 << 20

func (s *approvalService) listApprovals(ctx context.Context, caller *Caller, filter ApprovalFilter) ([]*ApprovalView, error) {
	records, err := s.approvalRecords(ctx, caller, filter)
	if err != nil {
		return nil, err
	}
	org, err := s.organization(ctx, caller.Org)
	if err != nil {
		return nil, err
	}
	return s.showApprovals(ctx, caller, org, records, filter)
}

// approvalRecords reads the approvals that the caller may see.
func (s *approvalService) approvalRecords(ctx context.Context, caller *Caller, filter ApprovalFilter) ([]*store.ApprovalRecord, error) {
	query := store.ApprovalQuery{Org: caller.Org, Chain: filter.Chain, Status: filter.Status, Oldest: filter.oldest, Before: filter.Before, Limit: filter.Limit}
	if caller.Role == ledger.RoleAgent {
		query.OpenedBy = &caller.Key
	}
	records, err := s.store.Approvals(ctx, query)
	return records, visible(err)
}

const (
	// maxWaiting is the number of the oldest approvals of each open status that are considered for a list
	// of the most urgent, and waitingPage how many of them are in memory at a time.
	maxWaiting  = 1000
	waitingPage = 200
)

// WaitingApprovals lists approvals that can still be decided, in the order of their expiry, as a bare
// list with a glance (see ApprovalFilter). Those that fail authentication are marked and come first.
//
// The stores cannot sort by expiry, which is only in an approval's authenticated body. So the oldest
// maxWaiting of each open status are read and sorted here, and of more also the newest waitingPage:
// the oldest expire first, unless clients ask for shorter times.
func (s *approvalService) WaitingApprovals(ctx context.Context, caller *Caller, limit int) ([]*ApprovalView, error) {
	if err := s.authorize(ctx, caller, ledger.RoleAgent); err != nil {
		return nil, err
	}
	var urgent []waitingApproval
	for _, status := range []ledger.ApprovalStatus{ledger.ApprovalPending, ledger.ApprovalEscalated} {
		filter := ApprovalFilter{Status: status, Limit: waitingPage, oldest: true}
		for read := 0; ; {
			page, err := s.approvalRecords(ctx, caller, filter)
			if err != nil {
				return nil, err
			}
			urgent = s.mostUrgent(urgent, page, limit)
			if len(page) < waitingPage || !filter.oldest {
				break
			}
			last := page[len(page)-1]
			filter.Before = &store.ApprovalAt{RequestedAt: last.RequestedAt, ID: last.ID}
			if read += len(page); read == maxWaiting {
				filter.oldest, filter.Before = false, nil
			}
		}
	}
	org, err := s.organization(ctx, caller.Org)
	if err != nil {
		return nil, err
	}
	records := make([]*store.ApprovalRecord, len(urgent))
	for i, waiting := range urgent {
		records[i] = waiting.record
	}
	return s.showApprovals(ctx, caller, org, records, ApprovalFilter{Bare: true, Glance: true})
}

type waitingApproval struct {
	record  *store.ApprovalRecord
	expires ledger.Time // 0 if the approval fails authentication
}

// mostUrgent adds the open approvals of a page to a list and keeps the first in the order of their
// expiry, up to limit. It leaves out approvals whose expiry is not recorded yet.
func (s *approvalService) mostUrgent(list []waitingApproval, page []*store.ApprovalRecord, limit int) []waitingApproval {
	now := s.now()
	for _, record := range page {
		approval, err := s.store.ReadApproval(record)
		switch {
		case err != nil:
			list = append(list, waitingApproval{record: record})
		case approval.At(now).Open():
			list = append(list, waitingApproval{record, approval.ExpiresAt})
		}
	}
	slices.SortFunc(list, func(a, b waitingApproval) int {
		return cmp.Or(cmp.Compare(a.expires, b.expires), cmp.Compare(a.record.RequestedAt, b.record.RequestedAt), bytes.Compare(a.record.ID.UUID[:], b.record.ID.UUID[:]))
	})
	// One of the newest may have been among the oldest, too.
	list = slices.CompactFunc(list, func(a, b waitingApproval) bool { return a.record.ID == b.record.ID })
	return slices.Clip(list[:min(len(list), limit)])
}

// showApprovals returns the views of stored approvals for a list. Those that fail
// authentication are marked.
func (s *approvalService) showApprovals(ctx context.Context, caller *Caller, org *ledger.Organization, records []*store.ApprovalRecord, filter ApprovalFilter) ([]*ApprovalView, error) {
	views, shared := make([]*ApprovalView, 0, len(records)), s.viewer(org)
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
	if err := s.addAttendance(ctx, caller, views...); err != nil {
		return nil, err
	}
	return views, nil
}

// ChainApprovals holds a chain's approvals for clients that poll per chain.
type ChainApprovals struct {
	// Standing is the strictest current status: such a client must not proceed while an
	// approval is open, after a denial, while the kill switch is active, or when the rules
	// now deny one of the approvals shown. "" if there are no approvals.
	Standing ledger.ApprovalStatus
	Shown    []*ApprovalView // open ones first, each group oldest first
}

// ChainApprovals returns the approvals of a chain's lineage.
func (s *approvalService) ChainApprovals(ctx context.Context, caller *Caller, chain ledger.ChainID) (*ChainApprovals, error) {
	s.noteGrant(caller.Org) // possibly; noted before anything is read
	if err := s.authorize(ctx, caller, ledger.RoleAgent); err != nil {
		return nil, err
	}
	view, err := s.chains.newestOf(ctx, caller, chain)
	if err != nil {
		return nil, err
	}
	s.chains.polledBy(caller, view)
	approvals, err := s.readChainApprovals(ctx, caller, view)
	if err != nil {
		return nil, err
	}
	shown := approvals.shown
	if len(shown) == 0 {
		return &ChainApprovals{Shown: shown}, nil
	}
	for _, view := range shown {
		if view.Status.Open() && caller.isClientOf(view) { // there may be many ended ones
			s.approvalPolls.note(view.ID, s.now())
		}
	}
	slices.SortFunc(shown, func(a, b *ApprovalView) int {
		switch {
		case a.Status.Open() == b.Status.Open():
			return cmp.Or(cmp.Compare(a.RequestedAt, b.RequestedAt), cmp.Compare(a.Sequence, b.Sequence))
		case a.Status.Open():
			return -1
		default:
			return 1
		}
	})
	standing := shown[0].Status
	if !standing.Open() {
		held := func(v *ApprovalView) bool { return v.Killed || v.Now() != v.Status }
		standing = Polled(&ApprovalView{Status: approvals.strictestEnd(), Killed: slices.ContainsFunc(shown, held)})
	}
	return &ChainApprovals{Standing: standing, Shown: shown}, nil
}

// Polled returns the status for clients that poll per chain: the current one, with a
// cancelled approval shown as denied.
func Polled(v *ApprovalView) ledger.ApprovalStatus {
	if status := v.Now(); status != ledger.ApprovalCancelled {
		return status
	}
	return ledger.ApprovalDenied
}

// maxShown bounds how many approvals of a chain and its predecessors are shown.
const maxShown = 200

// chainApprovalList holds the approvals of a chain and its predecessors.
type chainApprovalList struct {
	shown []*ApprovalView                // newest chain first; within a chain, open ones first
	ends  map[ledger.ApprovalStatus]bool // of all ended approvals, shown or not
}

// strictestEnd returns the strictest status of ended approvals, if none is open.
func (a *chainApprovalList) strictestEnd() ledger.ApprovalStatus {
	for _, end := range []ledger.ApprovalStatus{ledger.ApprovalDenied, ledger.ApprovalTimedOut, ledger.ApprovalCancelled} {
		if a.ends[end] {
			return end
		}
	}
	return ledger.ApprovalApproved
}

// readChainApprovals reads the approvals of a chain and its predecessors: a denial outlives
// its chain. It fails if a chain or an approval is missing.
func (s *approvalService) readChainApprovals(ctx context.Context, caller *Caller, newest *ChainView) (*chainApprovalList, error) {
	org, err := s.organization(ctx, caller.Org)
	if err != nil {
		return nil, err
	}
	list := &chainApprovalList{ends: make(map[ledger.ApprovalStatus]bool)}
	lineage := append(slices.Clone(newest.Chain.Continues), newest.Chain.ID)
	for _, id := range slices.Backward(lineage) {
		view := newest
		if id != newest.Chain.ID {
			if view, err = s.chains.ownChain(ctx, caller, id); err != nil {
				return nil, missingIsTampering(err, "a chain that another continues")
			}
		}
		records, err := s.approvalsOf(ctx, view)
		if err != nil {
			return nil, visible(err)
		}
		if err := s.addApprovals(list, records, org); err != nil {
			return nil, err
		}
	}
	bytes, shared := 0, s.viewer(org)
	for i, view := range list.shown {
		if bytes >= PageBytes {
			list.shown = list.shown[:i]
			break
		}
		if err := s.complete(ctx, view, shared); err != nil {
			return nil, err
		}
		bytes += len(view.Payload)
	}
	if err := s.addAttendance(ctx, caller, list.shown...); err != nil {
		return nil, err
	}
	return list, nil
}

// addApprovals adds the approvals of one chain, which are sorted newest first.
func (s *approvalService) addApprovals(list *chainApprovalList, records []*store.ApprovalRecord, org *ledger.Organization) error {
	var open, ended []*ApprovalView
	for _, record := range records {
		view, err := s.bareView(record, org)
		if err != nil {
			return err
		}
		// An expired approval counts as timed out even if that is not recorded yet.
		if view.Status.Open() {
			open = append(open, view)
		} else {
			ended, list.ends[view.Status] = append(ended, view), true
		}
	}
	both := append(open, ended...)
	list.shown = append(list.shown, both[:min(len(both), maxShown-len(list.shown))]...)
	return nil
}

// approvalsOf reads all approvals of a chain, newest first. It fails if one is missing or was
// reset, so that deleting a denial does not turn the answer into an approval. The chain was
// read before its approvals: those requested since have a greater sequence, and those decided
// since are no longer open, so concurrent changes do not look like tampering.
func (s *approvalService) approvalsOf(ctx context.Context, chain *ChainView) ([]*store.ApprovalRecord, error) {
	records, tampered, err := s.countedApprovals(ctx, chain)
	if err == nil && tampered > 0 {
		return nil, fmt.Errorf("an approval of a chain fails: %w", ledger.ErrStateTampered)
	}
	return records, err
}

// countedApprovals is approvalsOf for lists, which mark rows that fail authentication. Such a
// row counts as present, because it may be one of the chain's approvals.
func (s *approvalService) countedApprovals(ctx context.Context, chain *ChainView) (records []*store.ApprovalRecord, tampered int64, err error) {
	query := store.ApprovalQuery{Org: chain.Org, Chain: &chain.Chain.ID, Limit: math.MaxInt32} // a chain has a bounded number
	records, err = s.store.Approvals(ctx, query)
	if err != nil {
		return nil, 0, err
	}
	var found, open int64
	for _, record := range records {
		approval, err := s.store.ReadApproval(record)
		switch {
		case errors.Is(err, ledger.ErrStateTampered):
			tampered++
		case err != nil:
			return nil, 0, err
		case approval.Sequence <= chain.State.Actions:
			found++
			if approval.Status.Open() {
				open++
			}
		}
	}
	if found > chain.State.Approvals || found+tampered < chain.State.Approvals || open > chain.State.Waiting {
		return nil, 0, fmt.Errorf("approvals of a chain are missing or put back: %w", ledger.ErrStateTampered)
	}
	return records, tampered, nil
}

// allListed fails if one of a chain's approvals is missing.
func (s *approvalService) allListed(ctx context.Context, caller *Caller, id ledger.ChainID) error {
	view, err := s.chains.ownChain(ctx, caller, id)
	if errors.Is(err, fault.ErrNotFound) {
		return nil // then the caller sees none of its approvals either
	}
	if err == nil {
		_, _, err = s.countedApprovals(ctx, view)
	}
	return visible(err)
}

// missingIsTampering turns ErrNotFound into a tampering error. It is for rows that an
// authentic row refers to: they must have been deleted.
func missingIsTampering(err error, what string) error {
	if errors.Is(err, fault.ErrNotFound) {
		return visible(fmt.Errorf("%s is missing: %w", what, ledger.ErrStateTampered))
	}
	return err
}
