package ledger

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"

	"countersign/internal/canon"
)

// Replay recomputes a chain's running digest from its stored entries, and checks every column and
// payload against the facts that the digest covers. Entries must be added in order of their
// positions.
type Replay struct {
	chain   ChainID
	digest  [32]byte
	entries int64
	actions int64 // events, including markers
	summary Summary
	asked   map[ApprovalID]int64 // sequences of the events that required approval
	settled map[ApprovalID]*Entry
}

// NewReplay returns a Replay before a chain's first entry.
func NewReplay(chain ChainID) *Replay {
	return &Replay{
		chain: chain, digest: sha256.Sum256(nil),
		asked: make(map[ApprovalID]int64), settled: make(map[ApprovalID]*Entry),
	}
}

// Event adds the chain's next event.
func (r *Replay) Event(e *StoredEvent) error {
	event, err := DecodeEvent(e.Body)
	if err != nil {
		return err
	}
	expected := r.actions + 1
	switch {
	case event.Chain != r.chain || e.Chain != r.chain:
		return fmt.Errorf("event %d belongs to another chain", expected)
	case event.Sequence != expected || e.Sequence != expected:
		return fmt.Errorf("event %d is missing or out of order", expected)
	case event.Action.IdempotencyKey != e.IdempotencyKey:
		return fmt.Errorf("event %d: the stored idempotency key is not the recorded one", expected)
	}
	if fault := event.payloadFault(e); fault != "" {
		return fmt.Errorf("event %d: %s", expected, fault)
	}
	r.actions = expected
	if event.Approval != (ApprovalID{}) {
		r.asked[event.Approval] = expected
	}
	r.summary.Count(&event.Event)
	r.enter(e.Body)
	return nil
}

// Addendum adds the chain's next addendum.
func (r *Replay) Addendum(a *Addendum) error {
	entry, err := DecodeEntry(a.Body)
	if err != nil {
		return err
	}
	if a.Chain != r.chain || a.Position != r.entries+1 || entry.Position != a.Position || entry.Sequence != a.Sequence || a.Sequence > r.actions {
		return fmt.Errorf("entry %d is out of place", r.entries+1)
	}
	if entry.Kind == EntryApproval {
		if r.settled[entry.Approval] != nil {
			return fmt.Errorf("the approval of event %d was settled twice", entry.Sequence)
		}
		r.settled[entry.Approval] = entry
	}
	r.enter(a.Body)
	return nil
}

func (r *Replay) enter(body []byte) {
	r.digest = NextDigest(r.digest, body)
	r.entries++
}

// Matches checks the replay against a chain's state: its digest, and its number of events including
// markers.
func (r *Replay) Matches(digest [32]byte, events int64) error {
	if r.actions != events {
		return fmt.Errorf("%d events are stored, %d were recorded", r.actions, events)
	}
	if r.digest != digest {
		return fmt.Errorf("the stored events do not give the sealed digest")
	}
	return nil
}

// Supports checks the replay against what a receipt attests.
func (r *Replay) Supports(a *Attested) error {
	actions := r.actions
	if a.Format != receiptFormat1 {
		actions -= r.summary.markers
	}
	if actions != a.Actions {
		return fmt.Errorf("%d actions are stored, %d were sealed", actions, a.Actions)
	}
	return errors.Join(r.Matches(a.EventsDigest, r.actions), r.summarises(a.Summary, a.Format))
}

// summarises checks the events against the lines that a receipt signed. The lines of a failed chain
// end with one that has no event.
func (r *Replay) summarises(signed []byte, format string) error {
	own := appendSummary(nil, r.summary.lines, format)
	if bytes.Equal(signed, own) {
		return nil
	}
	open := own[:len(own)-1]
	last, ok := bytes.CutPrefix(signed, open)
	if ok && len(r.summary.lines) > 0 {
		last, ok = bytes.CutPrefix(last, []byte(","))
	}
	if failure, err := canon.Parse(bytes.TrimSuffix(last, []byte("]"))); ok && err == nil {
		if kind, _ := failure.Get("action_type"); kind.Str() == actionTypeFailure {
			return nil
		}
	}
	return fmt.Errorf("the sealed summary is not that of the stored events")
}

// Approvals checks a chain's stored approvals against its entries: each one that an event required
// exists, is about that event, and ended as recorded.
func (r *Replay) Approvals(approvals []*Approval) error {
	for _, a := range approvals {
		sequence, asked := r.asked[a.ID]
		entry := r.settled[a.ID]
		switch {
		case !asked || a.Sequence != sequence || a.Chain != r.chain:
			return fmt.Errorf("an approval is stored that no event asked for")
		case a.Status.Open() != (entry == nil):
			return fmt.Errorf("the approval of event %d does not stand as it was recorded", sequence)
		case entry != nil && (entry.ApprovalStatus != a.Status || entry.ApprovalHash != a.Hash()):
			return fmt.Errorf("the approval of event %d was changed", sequence)
		}
		delete(r.asked, a.ID)
	}
	for _, sequence := range r.asked {
		return fmt.Errorf("the approval of event %d is missing", sequence)
	}
	return nil
}

// Entries returns the number of entries replayed.
func (r *Replay) Entries() int64 { return r.entries }
