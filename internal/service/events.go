package service

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"math"
	"slices"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/verify"
)

// EventView is a stored event with the entries that were recorded about it later.
type EventView struct {
	// StoredEvent has only the chain and the sequence if the facts are missing or fail
	// authentication, and no payload if the payload fails.
	*ledger.StoredEvent
	Facts    *ledger.RecordedEvent // nil if they fail authentication
	Outcome  *ledger.Entry         // nil if none was reported
	Approval *ledger.Entry         // the end of the event's approval; nil for none
	// Entries are all entries about the event, by position; none if the running digest does
	// not cover them.
	Entries []*ledger.Addendum
	// Integrity reports what did not verify. The view contains nothing that failed.
	Integrity ledger.Integrity
}

// maxSequence bounds the sequence of an event: JSON cannot represent larger integers exactly.
const maxSequence = 1 << 53

// Events lists a chain's events by sequence. An event that was changed or deleted outside the
// service keeps its position and is marked.
func (s *recordService) Events(ctx context.Context, caller *Caller, chain ledger.ChainID, after int64, limit int) ([]*EventView, error) {
	if err := s.authorize(ctx, caller, ledger.RoleMember); err != nil {
		return nil, err
	}
	view, err := s.chains.ownChain(ctx, caller, chain)
	if err != nil {
		return nil, err
	}
	s.chains.polledBy(caller, view)
	views, more, err := s.readEvents(ctx, caller.Org, chain, after, limit)
	if err != nil {
		return nil, visible(err)
	}
	return s.withEntries(ctx, chain, withGaps(views, chain, after, view.State.Actions, limit, more))
}

// readEvents reads a page of events: at most limit, and none after the payloads have reached
// PageBytes. more reports that others may follow the last one.
func (s *recordService) readEvents(ctx context.Context, org ledger.OrgID, chain ledger.ChainID, after int64, limit int) (views []*EventView, more bool, err error) {
	// Payloads are usually small but can be as large as a request, so the first read is small, and
	// none is large.
	for bytes, size := 0, 4; len(views) < limit; size = min(4*size, 32) {
		page, err := s.store.Events(ctx, chain, after, min(size, limit-len(views)))
		if err != nil {
			return nil, false, err
		}
		for _, event := range page {
			if event.Sequence > maxSequence { // it is forged, and sorts last
				s.log.Error(tamperedLog, "of", "an event")
				s.findings.NoteTampering(org, fmt.Errorf("an event of the chain %s stands in a place that the service gives to none: %w", chain, ledger.ErrStateTampered))
				return views, false, nil
			}
			view := s.eventView(org, event)
			views, after = append(views, view), event.Sequence
			if bytes += len(view.Payload); bytes >= PageBytes {
				return views, true, nil
			}
		}
		if len(page) < size && len(views) < limit {
			return views, false, nil
		}
	}
	return views, true, nil
}

// eventView returns a view of the parts of a stored event that are authentic.
func (s *recordService) eventView(org ledger.OrgID, stored *ledger.StoredEvent) *EventView {
	facts, err := s.store.ReadEvent(org, stored)
	if err != nil {
		s.log.Error(tamperedLog, "of", "an event")
		return lostEvent(stored.Chain, stored.Sequence)
	}
	view := &EventView{StoredEvent: stored, Facts: facts}
	if !facts.Carries(stored) {
		s.log.Error(tamperedLog, "of", "an event's payload")
		shown := *stored
		shown.Payload, shown.Redactions = nil, nil
		view.StoredEvent, view.Integrity = &shown, ledger.IntegrityFailed
	}
	return view
}

// lostEvent marks an event that cannot be shown.
func lostEvent(chain ledger.ChainID, sequence int64) *EventView {
	return &EventView{StoredEvent: &ledger.StoredEvent{Chain: chain, Sequence: sequence}, Integrity: ledger.IntegrityFailed}
}

// withGaps inserts a marked view for each missing event, given the number of actions in the
// chain's state, and whether more events may follow those found. It returns at most limit
// views.
func withGaps(found []*EventView, chain ledger.ChainID, after, actions int64, limit int, more bool) []*EventView {
	views := make([]*EventView, 0, len(found))
	next := min(max(after, 0), maxSequence) + 1
	fill := func(to int64) {
		for ; next < to && len(views) < limit; next++ {
			views = append(views, lostEvent(chain, next))
		}
	}
	for _, view := range found {
		fill(min(view.Sequence, actions+1))
		if len(views) == limit {
			return views
		}
		views, next = append(views, view), view.Sequence+1
	}
	if !more {
		fill(actions + 1)
	}
	return views
}

// withEntries adds the entries recorded about events later, if the chain's digest covers
// them.
func (s *recordService) withEntries(ctx context.Context, chain ledger.ChainID, views []*EventView) ([]*EventView, error) {
	if len(views) == 0 {
		return views, nil
	}
	addenda, err := s.store.Addenda(ctx, chain, views[0].Sequence, views[len(views)-1].Sequence)
	if err != nil {
		return nil, visible(err)
	}
	// Read last, so that its digest covers all entries read before.
	record, err := s.store.Chain(ctx, chain)
	if err != nil {
		return nil, visible(err)
	}
	recorded, err := s.judge.EntriesOf(ctx, record)
	if err != nil {
		return nil, visible(err)
	}
	of := make(map[int64][]*ledger.Addendum)
	for _, addendum := range addenda {
		of[addendum.Sequence] = append(of[addendum.Sequence], addendum)
	}
	for _, view := range views {
		view.addEntries(recorded, of[view.Sequence])
	}
	return views, nil
}

func (v *EventView) addEntries(recorded *verify.Entries, addenda []*ledger.Addendum) {
	entries, err := ledger.DecodeEntries(addenda)
	switch {
	case recorded.Integrity == ledger.IntegrityNotChecked && err == nil:
		v.Integrity = cmp.Or(v.Integrity, ledger.IntegrityNotChecked)
	case recorded.Integrity == ledger.IntegrityFailed && len(addenda) == 0:
		v.Integrity = cmp.Or(v.Integrity, ledger.IntegrityNotChecked) // entries may have been deleted
		return
	case recorded.Integrity != "" || err != nil || !recorded.Match(v.Sequence, addenda):
		v.Integrity = ledger.IntegrityFailed
		return
	}
	v.Entries = addenda
	for _, entry := range entries {
		switch entry.Kind {
		case ledger.EntryOutcome:
			v.Outcome = entry
		case ledger.EntryApproval:
			v.Approval = entry
		}
	}
}

// ReportOutcome records the outcome of an allowed action.
func (s *recordService) ReportOutcome(ctx context.Context, caller *Caller, chain ledger.ChainID, id ledger.EventID, report *ledger.Entry) (*Outcome, error) {
	if err := caller.require(ledger.RoleAgent); err != nil {
		return nil, err
	}
	event, view, err := s.eventByID(ctx, caller, chain, id)
	if err != nil {
		return nil, err
	}
	if err := s.readEntries(ctx, view); err != nil {
		return nil, err
	}
	op := &reportOutcome{caller: caller, event: event, report: *report, line: s.chains.lineage(chain)}
	if err := s.chains.retryLineage(op.line, func() error { return s.committer.commit(ctx, op) }); err != nil {
		return nil, err
	}
	return &op.result, nil
}

// Outcome is the recorded outcome of an event.
type Outcome struct {
	*ledger.Entry
	// ContinuedBy is as in Recorded. An outcome that is reported after its chain was
	// abandoned is recorded in that chain.
	ContinuedBy *ledger.ChainID
}

// eventByID reads an event and its chain before the transaction that needs them: the event's
// facts never change. The transaction checks again whether the caller may see it.
func (s *recordService) eventByID(ctx context.Context, caller *Caller, chain ledger.ChainID, id ledger.EventID) (*ledger.RecordedEvent, *ChainView, error) {
	if id.Sequence() == 0 {
		return nil, nil, fault.ErrNotFound
	}
	view, err := s.chains.ownChain(ctx, caller, chain)
	if err != nil {
		return nil, nil, err
	}
	stored, err := s.store.Event(ctx, store.EventAt{Chain: chain, Sequence: id.Sequence()})
	if err != nil {
		return nil, nil, visible(err)
	}
	event, err := s.store.ReadEvent(caller.Org, stored)
	if err != nil {
		return nil, nil, visible(err)
	}
	if event.ID != id {
		return nil, nil, fault.ErrNotFound
	}
	return event, view, nil
}

type reportOutcome struct {
	caller *Caller
	event  *ledger.RecordedEvent
	report ledger.Entry
	line   *lineage
	late   bool // the event's chain turned out to be abandoned: see planLate
	result Outcome
}

func (o *reportOutcome) at() store.EventAt {
	return store.EventAt{Chain: o.event.Chain, Sequence: o.event.Sequence}
}

func (o *reportOutcome) tenant() ledger.OrgID { return o.caller.Org }

func (o *reportOutcome) size() int { return smallOperation }

func (o *reportOutcome) need(needs *store.Needs) {
	needs.Keys = append(needs.Keys, o.caller.Key)
	needs.Orgs = append(needs.Orgs, o.caller.Org)
	needs.Chains = append(needs.Chains, o.event.Chain)
	needs.Addenda = append(needs.Addenda, o.at())
	if o.event.Status == ledger.EventAwaiting {
		needs.Approvals = append(needs.Approvals, o.event.Approval)
	}
	if o.late {
		o.line.need(needs)
		for chain := range o.line.all() {
			needs.Repeats = append(needs.Repeats, o.markers(chain)...)
		}
	}
}

func (o *reportOutcome) plan(b *batch) error {
	if err := b.confirm(o.caller); err != nil {
		return err
	}
	live, err := b.chain(o.caller, o.event.Chain)
	if err != nil {
		return err
	}
	if err := b.mayRecord(o.caller, o.event.Action.AgentName); err != nil {
		return err
	}
	earlier, err := b.recordedAbout(live, o.event.Sequence)
	if err != nil {
		return err
	}
	if err := o.decided(b, earlier); err != nil {
		return err
	}
	if live.state.Abandoned {
		return o.planLate(b, earlier)
	}
	report, addendum, err := live.state.ReportOutcome(o.event, earlier, o.report, b.now)
	if err != nil {
		return err
	}
	o.result = Outcome{Entry: report}
	if addendum == nil {
		b.service.chainPolls.note(live.chain, live.state.LastAt, b.now)
	} else {
		live.changed = true
		b.addAddendum(addendum)
	}
	return nil
}

// decided refuses entries about a decision that contradict the approval.
func (o *reportOutcome) decided(b *batch, earlier []*ledger.Entry) error {
	if o.event.Status != ledger.EventAwaiting {
		return nil
	}
	approval, err := b.approvalOf(o.event)
	if err != nil {
		return err
	}
	consistent := approval.Status.Open()
	for _, entry := range earlier {
		if entry.Kind == ledger.EntryApproval {
			consistent = entry.ApprovalStatus == approval.Status
		}
	}
	if !consistent {
		return fmt.Errorf("an approval does not stand as its end was recorded: %w", ledger.ErrStateTampered)
	}
	return nil
}

// entryLog holds the hashes of a chain's addenda, as far as the running digest in the chain's
// state covers them. An addendum has no authenticator of its own: the digest proves which ones
// exist. A log is extended with new entries, so that each entry is read once.
//
// It belongs to the goroutine that has taken it out of the cache.
type entryLog struct {
	entries int64 // number of entries covered
	events  int64 // number of events among them; the sequence of the last
	digest  [32]byte
	bodies  map[int64][][32]byte // hashes in order of position, by the event's sequence
	late    map[string]bool      // the idempotency keys of late outcomes
}

func newEntryLog() *entryLog {
	return &entryLog{digest: sha256.Sum256(nil), bodies: make(map[int64][][32]byte), late: make(map[string]bool)}
}

// extend adds the following entries until the log covers to of them. It returns the remaining
// addenda.
func (l *entryLog) extend(to int64, events []*ledger.StoredEvent, addenda []*ledger.Addendum) []*ledger.Addendum {
	for l.entries < to {
		switch {
		case len(addenda) > 0 && addenda[0].Position == l.entries+1:
			a := addenda[0]
			l.bodies[a.Sequence] = append(l.bodies[a.Sequence], sha256.Sum256(a.Body))
			l.digest, addenda = ledger.NextDigest(l.digest, a.Body), addenda[1:]
		case len(events) > 0 && events[0].Sequence == l.events+1:
			l.addEvent(events[0])
			events = events[1:]
		default:
			return addenda
		}
		l.entries++
	}
	return addenda
}

func (l *entryLog) addEvent(event *ledger.StoredEvent) {
	l.events = event.Sequence
	l.digest = ledger.NextDigest(l.digest, event.Body)
	if bytes.Contains(event.Body, []byte(ledger.ActionTypeLateOutcome)) {
		if facts, err := ledger.DecodeEvent(event.Body); err == nil && facts.Action.ActionType == ledger.ActionTypeLateOutcome {
			l.late[facts.Action.IdempotencyKey] = true
		}
	}
}

// are reports whether these are exactly the addenda recorded about an event.
func (l *entryLog) are(sequence int64, addenda []*ledger.Addendum) bool {
	return slices.EqualFunc(l.bodies[sequence], addenda, func(known [32]byte, a *ledger.Addendum) bool {
		return known == sha256.Sum256(a.Body)
	})
}

// size estimates the memory of the log, in bytes.
func (l *entryLog) size() int { return 200 + 120*int(l.entries-l.events) + 120*len(l.late) }

// entryLogBytes bounds the cache of entry logs.
const entryLogBytes = 8 << 20

// manyEntries is the number of entries above which a chain's entries are read before the
// transaction, so that the chain is not locked for long.
const manyEntries = 500

// readEntries caches the log of a large chain if it is not cached. If the entries do not match
// the chain's digest, nothing is cached, and the transaction reports it.
func (s *recordService) readEntries(ctx context.Context, chain *ChainView) error {
	if _, known := s.entryLogs.Get(chain.Chain.ID); known || chain.State.Entries < manyEntries {
		return nil
	}
	addenda, err := s.store.Addenda(ctx, chain.Chain.ID, math.MinInt64, math.MaxInt64)
	if err != nil {
		return visible(err)
	}
	log := newEntryLog()
	err = s.store.EachPage(ctx, chain.Chain.ID, 0, func(events []*ledger.StoredEvent) error {
		addenda = log.extend(chain.State.Entries, events, addenda)
		return nil
	})
	if err == nil && log.entries == chain.State.Entries && log.digest == chain.State.Digest {
		s.entryLogs.Put(chain.Chain.ID, log, log.size())
	}
	return visible(err)
}

// entriesOf returns the log of a chain as it was loaded, without the additions of this batch.
func (b *batch) entriesOf(live *liveChain) (*entryLog, error) {
	id := live.chain.ID
	if log := b.entries[id]; log != nil {
		return log, nil
	}
	log, known := b.service.entryLogs.Take(id)
	if known && log.entries <= live.loaded.Entries {
		valid, err := b.catchUpEntries(live, log)
		if err != nil || valid {
			return log, err
		}
	}
	log = newEntryLog()
	valid, err := b.catchUpEntries(live, log)
	if err != nil {
		return nil, err
	}
	if !valid {
		return nil, fmt.Errorf("entries of a chain are not as recorded: %w", ledger.ErrStateTampered)
	}
	return log, nil
}

// catchUpEntries extends a log with the loaded entries, and reports whether it matches the
// digest in the chain's state.
func (b *batch) catchUpEntries(live *liveChain, log *entryLog) (valid bool, err error) {
	if log.entries < live.loaded.Entries {
		events, err := b.loaded.EventsAfter(live.chain.ID, log.events)
		if err != nil {
			b.broken = err
			return false, err
		}
		addenda, err := b.loaded.AddendaAfter(live.chain.ID, log.entries)
		if err != nil {
			b.broken = err
			return false, err
		}
		log.extend(live.loaded.Entries, events, addenda)
	}
	if log.entries != live.loaded.Entries || log.digest != live.loaded.Digest {
		return false, nil
	}
	b.entries[live.chain.ID] = log
	return true, nil
}

// addAddendum adds an addendum, for later operations of the batch and for the store.
func (b *batch) addAddendum(addendum *ledger.Addendum) {
	b.changes.NewAddenda = append(b.changes.NewAddenda, addendum)
	at := store.EventAt{Chain: addendum.Chain, Sequence: addendum.Sequence}
	b.loaded.Addenda[at] = append(b.loaded.Addenda[at], addendum)
	b.addedAddenda[at]++
}

// recordedAbout returns the entries about an event, including those of this batch. The
// operation must have named the event's addenda among its needs.
func (b *batch) recordedAbout(live *liveChain, sequence int64) ([]*ledger.Entry, error) {
	log, err := b.entriesOf(live)
	if err != nil {
		return nil, err
	}
	at := store.EventAt{Chain: live.chain.ID, Sequence: sequence}
	addenda := b.loaded.Addenda[at]
	if !log.are(sequence, addenda[:len(addenda)-b.addedAddenda[at]]) {
		return nil, fmt.Errorf("what was recorded about an event is not what is stored: %w", ledger.ErrStateTampered)
	}
	entries, err := ledger.DecodeEntries(addenda)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ledger.ErrStateTampered, err)
	}
	return entries, nil
}

// markers returns the references under which late outcomes of the event may be stored in a
// chain.
func (o *reportOutcome) markers(chain ledger.ChainID) []store.EventRef {
	var refs []store.EventRef
	for _, key := range ledger.LateOutcomeKeys(o.event.ID) {
		refs = append(refs, store.EventRef{Chain: chain, Key: key})
	}
	return refs
}

// planLate records the outcome of an event of an abandoned chain in the newest chain that
// continues it. Earlier are the entries about the event in its own chain.
func (o *reportOutcome) planLate(b *batch, earlier []*ledger.Entry) error {
	if !o.late {
		o.late = true
		return errLineage
	}
	live, err := o.line.newest(b, o.caller)
	if err != nil {
		return err
	}
	later, err := o.reportedLate(b, live)
	if err != nil {
		return err
	}
	org, err := b.org(o.caller.Org)
	if err != nil {
		return err
	}
	policy, err := b.policy(org)
	if err != nil {
		return err
	}
	again, err := ledger.JudgeLateOutcome(o.event, append(earlier, later...), &o.report)
	if err != nil {
		return err
	}
	if again != nil {
		b.service.chainPolls.note(live.chain, live.state.LastAt, b.now)
		o.result = Outcome{Entry: again, ContinuedBy: o.line.continuedBy(live)}
		return nil
	}
	if live.state.Abandoned {
		if live, err = b.openSuccessor(live, policy); err != nil {
			return err
		}
	}
	marker, entry := live.state.LateOutcome(o.event, o.report)
	if err := live.state.Accepts(marker); err != nil {
		return err
	}
	recorded := live.state.Record(&ledger.Recording{
		Keys: b.service.keys, Policy: policy, Org: org, Chain: live.chain, Action: marker, By: o.caller.Key,
		Now: b.now, Random: b.service.timedRandom(), NewApproval: b.service.approvalID,
	})
	live.changed = true
	if live.summary != nil {
		live.summary.Count(recorded.Event)
		live.rows = recorded.Stored.Extend(live.rows)
	}
	b.changes.NewEvents = append(b.changes.NewEvents, recorded.Stored)
	b.loaded.Repeats[store.EventRef{Chain: live.chain.ID, Key: marker.IdempotencyKey}] = recorded.Stored
	entry.RecordedAt = recorded.Event.RecordedAt
	o.result = Outcome{Entry: entry, ContinuedBy: o.line.continuedBy(live)}
	return nil
}

// reportedLate returns the late outcomes of the event, in the order in which they can have
// been reported: an unknown result before the final one.
func (o *reportOutcome) reportedLate(b *batch, newest *liveChain) ([]*ledger.Entry, error) {
	var entries []*ledger.Entry
	chains := append(slices.Clone(newest.chain.Continues), newest.chain.ID)
	logs := make(map[ledger.ChainID]*entryLog)
	for _, chain := range chains {
		live, err := o.line.member(b, newest, chain)
		if err != nil {
			return nil, err
		}
		if live.fresh {
			continue // it is not stored yet
		}
		if logs[chain], err = b.entriesOf(live); err != nil {
			return nil, err
		}
	}
	for _, key := range ledger.LateOutcomeKeys(o.event.ID) {
		for _, chain := range chains {
			stored := b.loaded.Repeats[store.EventRef{Chain: chain, Key: key}]
			if stored == nil {
				if log := logs[chain]; log != nil && log.late[key] {
					return nil, fmt.Errorf("a late outcome is missing: %w", ledger.ErrStateTampered)
				}
				continue
			}
			marker, err := b.service.store.ReadEvent(o.caller.Org, stored)
			if err != nil {
				return nil, err
			}
			entry, err := ledger.ReadLateOutcome(marker, stored.Payload)
			if err != nil {
				return nil, err
			}
			entries = append(entries, entry)
		}
	}
	return entries, nil
}
