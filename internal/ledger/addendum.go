package ledger

import (
	"errors"

	"countersign/internal/canon"
	"countersign/internal/fault"
)

// Addendum is recorded about an event after the event itself. It takes the next position in the
// running digest, and the event does not change.
type Addendum struct {
	Chain    ChainID
	Position int64 // among all entries of the chain, including events, from 1
	Sequence int64 // sequence of its event
	Body     []byte
}

// EntryKind is the kind of an addendum.
type EntryKind string

// The kinds of addenda.
const (
	EntryOutcome  EntryKind = "outcome"  // the outcome of an action
	EntryApproval EntryKind = "approval" // how an approval ended
	EntryResume   EntryKind = "resume"   // an auto-pause was lifted
)

// Entry is the content of an addendum. The kind determines which members are set.
type Entry struct {
	Kind       EntryKind
	Event      EventID
	Sequence   int64
	Position   int64
	RecordedAt Time

	Result Result // for an outcome
	Detail string // for an outcome; for a resume, who resumed the chain

	Approval       ApprovalID
	ApprovalHash   [32]byte
	ApprovalStatus ApprovalStatus
}

// Encode returns the canonical bytes that the running digest covers.
func (e *Entry) Encode() []byte {
	w := canon.BeginObject(make([]byte, 0, 384))
	if e.Kind == EntryApproval {
		w.String("approval_hash", FormatHash(e.ApprovalHash))
		writeID(&w, "approval_id", e.Approval.UUID)
		w.String("approval_status", string(e.ApprovalStatus))
	}
	w.StringOrNull("detail", e.Detail)
	writeID(&w, "event_id", e.Event.UUID)
	w.String("kind", string(e.Kind))
	if e.Kind == EntryOutcome {
		w.String("outcome", string(e.Result))
	}
	w.Int("position", e.Position)
	writeTime(&w, "recorded_at", e.RecordedAt)
	w.Int("sequence", e.Sequence)
	return w.End()
}

var errUnreadableAddendum = errors.New("stored addendum cannot be read")

// DecodeEntry decodes the result of Encode.
func DecodeEntry(body []byte) (*Entry, error) {
	r, err := openRecord(body)
	if err != nil {
		return nil, errUnreadableAddendum
	}
	entry := r.outcomeEntry()
	entry.Kind, entry.RecordedAt = EntryKind(r.Text("kind", maxName)), r.time("recorded_at")
	if entry.Kind == EntryApproval {
		entry.Approval = ApprovalID{r.id("approval_id")}
		entry.ApprovalStatus = ApprovalStatus(r.Text("approval_status", maxName))
		hash, ok := ParseHash(r.Text("approval_hash", maxName))
		if !ok {
			return nil, errUnreadableAddendum
		}
		entry.ApprovalHash = hash
	}
	if !r.readable() {
		return nil, errUnreadableAddendum
	}
	return entry, nil
}

// outcomeEntry reads the members that addenda and late outcomes share.
func (r *recordReader) outcomeEntry() *Entry {
	return &Entry{
		Event: EventID{r.id("event_id")}, Sequence: r.Int("sequence", 1, maxCount), Position: r.Int("position", 1, maxCount),
		Result: Result(r.Text("outcome", maxName)), Detail: r.Text("detail", maxStored),
	}
}

// DecodeEntries decodes the addenda of one event, which are ordered by position.
func DecodeEntries(addenda []*Addendum) ([]*Entry, error) {
	entries := make([]*Entry, 0, len(addenda))
	for _, addendum := range addenda {
		entry, err := DecodeEntry(addendum.Body)
		if err != nil {
			return nil, err
		}
		entries = append(entries, entry)
	}
	return entries, nil
}

// append adds an entry at the chain's next position, with the time of its newest record, and sets
// both in the entry.
func (s *ChainState) append(entry *Entry, chain ChainID) *Addendum {
	entry.Position, entry.RecordedAt = s.Entries+1, s.LastAt
	body := entry.Encode()
	s.enter(body)
	return &Addendum{Chain: chain, Position: entry.Position, Sequence: entry.Sequence, Body: body}
}

// Result is the outcome of an allowed action.
type Result string

// The results that a client can report.
const (
	Succeeded Result = "succeeded"
	Failed    Result = "failed"
	Unknown   Result = "unknown"
)

// ParseOutcome reads the body of a request that reports an outcome.
func ParseOutcome(v canon.Value) (*Entry, error) {
	f := canon.NewFields(v)
	entry := &Entry{
		Kind:   EntryOutcome,
		Result: Result(f.OneOf("outcome", string(Succeeded), string(Failed), string(Unknown))),
		Detail: withoutSecrets(f.Text("detail", maxText)),
	}
	if !f.Has("outcome") {
		f.Fault("outcome", "is required: succeeded, failed or unknown")
	}
	if err := f.Err(); err != nil {
		return nil, err
	}
	return entry, nil
}

// ReportOutcome records the outcome of an event, given the earlier entries about it. Repeating a
// report changes nothing and returns the earlier one. An unknown result may be replaced later, any
// other is final.
func (s *ChainState) ReportOutcome(event *RecordedEvent, earlier []*Entry, report Entry, now Time) (*Entry, *Addendum, error) {
	last, approved := lastOutcome(earlier)
	if again, err := repeats(last, &report); again || err != nil {
		return last, nil, err
	}
	if err := s.Open(); err != nil {
		return nil, nil, err
	}
	if err := event.hasOutcome(approved); err != nil {
		return nil, nil, err
	}
	s.LastAt = Later(now, s.LastAt)
	report.about(event)
	return &report, s.append(&report, event.Chain), nil
}

// about makes the entry an outcome of the event.
func (e *Entry) about(event *RecordedEvent) {
	e.Kind, e.Event, e.Sequence = EntryOutcome, event.ID, event.Sequence
}

// repeats reports whether a report repeats the last one. It refuses a report that contradicts a
// final one.
func repeats(last, report *Entry) (bool, error) {
	switch {
	case last == nil:
		return false, nil
	case last.Result == report.Result && last.Detail == report.Detail:
		return true, nil
	case last.Result != Unknown || report.Result == Unknown:
		return false, fault.Errorf(fault.CodeOutcomeConflict, "another outcome was reported for this event already, and the first one stands: the list of events shows it")
	}
	return false, nil
}

// hasOutcome refuses an outcome of an action that was not allowed to happen.
func (e *RecordedEvent) hasOutcome(approved bool) error {
	switch {
	case e.Status == EventDenied:
		return fault.Errorf(fault.CodeOutcomeConflict, "the action was denied: it has no outcome")
	case e.Status == EventAwaiting && !approved:
		return fault.Errorf(fault.CodeOutcomeConflict, "the action was not approved: it has no outcome")
	}
	return nil
}

func lastOutcome(entries []*Entry) (last *Entry, approved bool) {
	for _, entry := range entries {
		switch entry.Kind {
		case EntryOutcome:
			last = entry
		case EntryApproval:
			approved = entry.ApprovalStatus == ApprovalApproved
		}
	}
	return last, approved
}

// ActionTypeLateOutcome marks the outcome of an action whose chain was abandoned before it was
// reported. The chain's digest is sealed, so the report is an event of the successor. It is not an
// action: nothing is decided about it, and only the service records it.
const ActionTypeLateOutcome = "late_outcome"

// checkLateOutcome refuses a marker that a client sends itself: it would be an action that nobody
// has decided.
func checkLateOutcome(f *canon.Fields, action *Action) {
	if action.ActionType == ActionTypeLateOutcome {
		f.Fault("action_type", "must not be %s: report what became of an action to the outcome route of its event", ActionTypeLateOutcome)
	}
}

// LateOutcomeKeys returns the idempotency keys of an event's late outcomes: one for an unknown
// result, and one for the final result.
func LateOutcomeKeys(event EventID) [2]string {
	return [2]string{lateOutcomeKey(event, Unknown), lateOutcomeKey(event, Succeeded)}
}

func lateOutcomeKey(event EventID, result Result) string {
	if result == Unknown {
		return "late-outcome-unknown:" + event.String()
	}
	return "late-outcome:" + event.String()
}

// JudgeLateOutcome refuses an outcome that is impossible for an event of an abandoned chain, given
// all earlier entries about it. If the report repeats an earlier one, it returns that.
func JudgeLateOutcome(event *RecordedEvent, earlier []*Entry, report *Entry) (again *Entry, err error) {
	last, approved := lastOutcome(earlier)
	if repeated, err := repeats(last, report); repeated || err != nil {
		return last, err
	}
	return nil, event.hasOutcome(approved)
}

// LateOutcome returns the marker that records an event's outcome in the successor, whose state this
// is.
func (s *ChainState) LateOutcome(event *RecordedEvent, report Entry) (marker *Action, entered *Entry) {
	report.about(event)
	report.Position = s.Entries + 1 // where Record will put the marker
	w := canon.BeginObject(nil)
	writeID(&w, "chain_id", event.Chain.UUID)
	w.StringOrNull("detail", report.Detail)
	writeID(&w, "event_id", event.ID.UUID)
	w.String("outcome", string(report.Result))
	w.Int("position", report.Position)
	w.Int("sequence", report.Sequence)
	marker = &Action{
		AgentName: event.Action.AgentName, ActionType: ActionTypeLateOutcome, ActionName: event.Action.ActionName,
		ParentAgentName: event.Action.ParentAgentName, IdempotencyKey: lateOutcomeKey(event.ID, report.Result), Payload: w.End(),
	}
	return marker, &report
}

// ReadLateOutcome decodes a marker from an event with one of LateOutcomeKeys.
func ReadLateOutcome(marker *RecordedEvent, payload []byte) (*Entry, error) {
	if marker.Action.ActionType != ActionTypeLateOutcome {
		return nil, fault.Errorf(fault.CodeOutcomeConflict, "an action was recorded under the idempotency key that this outcome needs: the outcome cannot be recorded")
	}
	r, err := openRecord(payload)
	if err != nil || PayloadHash(payload) != marker.PayloadSHA256 {
		return nil, ErrStateTampered
	}
	entry := r.outcomeEntry()
	entry.Kind, entry.RecordedAt = EntryOutcome, marker.RecordedAt
	r.id("chain_id")
	if !r.readable() {
		return nil, ErrStateTampered
	}
	return entry, nil
}
