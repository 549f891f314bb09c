package ledger

import (
	"encoding/hex"
	"errors"
	"strings"

	"countersign/internal/canon"
)

// Addendum is what is recorded about an event after its first facts: it takes
// the next position in the running digest, and the event itself stays as it was.
type Addendum struct {
	Chain    ChainID
	Position int64 // among all entries of the chain, events included, from 1
	Sequence int64 // of the event it is about
	Body     []byte
}

// EntryKind says what an addendum records.
type EntryKind string

// The kinds of addenda.
const (
	EntryOutcome  EntryKind = "outcome"  // what became of an action
	EntryApproval EntryKind = "approval" // how the wait for a person ended
	EntryResume   EntryKind = "resume"   // an auto-pause was lifted
)

// Result is what became of an allowed action.
type Result string

// The results that a client can report.
const (
	Succeeded Result = "succeeded"
	Failed    Result = "failed"
	Unknown   Result = "unknown"
)

// Entry is an addendum's content. Which members are set depends on the kind.
type Entry struct {
	Kind       EntryKind
	Event      EventID
	Sequence   int64
	Position   int64
	RecordedAt Time

	Result Result // of an outcome
	Detail string // of an outcome, or who resumed the chain

	Approval       ApprovalID
	ApprovalHash   [32]byte
	ApprovalStatus ApprovalStatus
}

// ParseOutcome reads the body of a request that reports an outcome.
func ParseOutcome(v canon.Value) (*Entry, error) {
	f := NewFields(v)
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

// Encode writes the canonical bytes that the running digest covers.
func (e *Entry) Encode() []byte {
	w := canon.BeginObject(make([]byte, 0, 384))
	if e.Kind == EntryApproval {
		w.String("approval_hash", FormatHash(e.ApprovalHash))
		w.Value(appendQuotedID(w.Name("approval_id"), e.Approval.UUID))
		w.String("approval_status", string(e.ApprovalStatus))
	}
	w.StringOrNull("detail", e.Detail)
	w.Value(appendQuotedID(w.Name("event_id"), e.Event.UUID))
	w.String("kind", string(e.Kind))
	if e.Kind == EntryOutcome {
		w.String("outcome", string(e.Result))
	}
	w.Int("position", e.Position)
	w.String("recorded_at", e.RecordedAt.String())
	w.Int("sequence", e.Sequence)
	return w.End()
}

var errUnreadableAddendum = errors.New("stored addendum cannot be read")

// DecodeEntry reads what Encode wrote.
func DecodeEntry(body []byte) (*Entry, error) {
	v, err := canon.Parse(body)
	if err != nil {
		return nil, errUnreadableAddendum
	}
	f := NewFields(v)
	r := idReader{fields: f}
	entry := &Entry{
		Kind:       EntryKind(f.Text("kind", maxName)),
		Event:      EventID{r.id("event_id")},
		Sequence:   f.Int("sequence", 1, maxCount),
		Position:   f.Int("position", 1, maxCount),
		RecordedAt: r.time("recorded_at"),
		Result:     Result(f.Text("outcome", maxName)),
		Detail:     f.Text("detail", maxStored),
	}
	if entry.Kind == EntryApproval {
		entry.Approval = ApprovalID{r.id("approval_id")}
		entry.ApprovalStatus = ApprovalStatus(f.Text("approval_status", maxName))
		hash, err := hex.DecodeString(strings.TrimPrefix(f.Text("approval_hash", maxName), hashPrefix))
		if err != nil || len(hash) != len(entry.ApprovalHash) {
			return nil, errUnreadableAddendum
		}
		copy(entry.ApprovalHash[:], hash)
	}
	if r.failed || f.Err() != nil {
		return nil, errUnreadableAddendum
	}
	return entry, nil
}

// DecodeEntries reads several, of one event, by position.
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

// append gives an entry the next place in the chain.
func (s *ChainState) append(entry Entry, chain ChainID) *Addendum {
	entry.Position, entry.RecordedAt = s.Entries+1, s.LastAt
	body := entry.Encode()
	s.enter(body)
	return &Addendum{Chain: chain, Position: entry.Position, Sequence: entry.Sequence, Body: body}
}

// ReportOutcome enters what became of an event, given what was entered about it
// before. The same report again changes nothing and returns the earlier one; an
// unknown result may be settled later, any other stands.
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
	report.Kind, report.Event, report.Sequence = EntryOutcome, event.ID, event.Sequence
	addendum := s.append(report, event.Chain)
	report.Position, report.RecordedAt = addendum.Position, s.LastAt
	return &report, addendum, nil
}

// repeats reports whether a report says what the last one said, and refuses one that
// says otherwise of what was settled.
func repeats(last, report *Entry) (bool, error) {
	switch {
	case last == nil:
		return false, nil
	case last.Result == report.Result && last.Detail == report.Detail:
		return true, nil
	case last.Result != Unknown || report.Result == Unknown:
		return false, Errorf(CodeOutcomeConflict, "another outcome was reported for this event already, and the first one stands: the list of events shows it")
	}
	return false, nil
}

// hasOutcome refuses an outcome of an action that was not let happen.
func (e *RecordedEvent) hasOutcome(approved bool) error {
	switch {
	case e.Status == EventDenied:
		return Errorf(CodeOutcomeConflict, "the action was denied: it has no outcome")
	case e.Status == EventAwaiting && !approved:
		return Errorf(CodeOutcomeConflict, "the action was not approved: it has no outcome")
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

func errSealed() *Error {
	return Errorf(CodeChainSealed, "the chain is completed: nothing more can be recorded in it; open a new chain")
}

// Accepts refuses an action that the chain has no room for.
func (s *ChainState) Accepts(action *Action) error {
	if err := s.Open(); err != nil {
		return err
	}
	if s.Actions >= MaxEventsCeiling {
		return Errorf(CodeChainSealed, "the chain holds %d events, the most it can: complete it and open a new one", s.Actions)
	}
	return s.admits(action)
}

// Open refuses what cannot be recorded in a sealed chain.
func (s *ChainState) Open() error {
	if s.Status.Sealed() {
		return errSealed()
	}
	return nil
}
