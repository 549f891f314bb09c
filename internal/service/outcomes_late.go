package service

import (
	"fmt"
	"slices"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// markers are where late outcomes of the event stand in a chain, if there are any.
func (o *reportOutcome) markers(chain ledger.ChainID) []store.EventRef {
	var refs []store.EventRef
	for _, key := range ledger.LateOutcomeKeys(o.event.ID) {
		refs = append(refs, store.EventRef{Chain: chain, Key: key})
	}
	return refs
}

// planLate records what became of an event of an abandoned chain in the newest
// chain that continues it. Earlier is what the event's own chain says of it.
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
		if live, err = b.succeed(live, policy); err != nil {
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
	}
	b.changes.NewEvents = append(b.changes.NewEvents, recorded.Stored)
	b.loaded.Repeats[store.EventRef{Chain: live.chain.ID, Key: marker.IdempotencyKey}] = recorded.Stored
	entry.RecordedAt = recorded.Event.RecordedAt
	o.result = Outcome{Entry: entry, ContinuedBy: o.line.continuedBy(live)}
	return nil
}

// reportedLate is what the chains up to the newest say of the event, in the order in
// which it can have been reported: an unknown result before the one that settled it.
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
			continue // nothing of it is stored
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
