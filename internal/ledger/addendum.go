package ledger

import (
	"errors"

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

// Result is what became of an allowed action.
type Result string

// The results that a client can report.
const (
	Succeeded Result = "succeeded"
	Failed    Result = "failed"
	Unknown   Result = "unknown"
)

// OutcomeReport says what became of an action, as it is stored and shown.
type OutcomeReport struct {
	Event      EventID
	Sequence   int64
	Position   int64
	Result     Result
	Detail     string
	RecordedAt Time
}

// ParseOutcomeReport reads the body of a request that reports an outcome.
func ParseOutcomeReport(v canon.Value) (*OutcomeReport, error) {
	f := NewFields(v)
	report := &OutcomeReport{
		Result: Result(f.OneOf("outcome", string(Succeeded), string(Failed), string(Unknown))),
		Detail: f.Text("detail", maxText),
	}
	if !f.Has("outcome") {
		f.Fault("outcome", "is required: succeeded, failed or unknown")
	}
	if err := f.Err(); err != nil {
		return nil, err
	}
	return report, nil
}

// Encode writes the canonical bytes that the running digest covers.
func (r *OutcomeReport) Encode() []byte {
	w := canon.BeginObject(make([]byte, 0, 256))
	w.StringOrNull("detail", r.Detail)
	w.Value(appendQuotedID(w.Name("event_id"), r.Event.UUID))
	w.String("kind", "outcome")
	w.String("outcome", string(r.Result))
	w.Int("position", r.Position)
	w.String("recorded_at", r.RecordedAt.String())
	w.Int("sequence", r.Sequence)
	return w.End()
}

var errUnreadableAddendum = errors.New("stored addendum cannot be read")

// DecodeOutcomeReport reads what Encode wrote.
func DecodeOutcomeReport(body []byte) (*OutcomeReport, error) {
	v, err := canon.Parse(body)
	if err != nil {
		return nil, errUnreadableAddendum
	}
	f := NewFields(v)
	f.Ignore("kind")
	id, idErr := ParseID(f.Text("event_id", maxName))
	recorded := f.Time("recorded_at")
	report := &OutcomeReport{
		Event:    EventID{id},
		Sequence: f.Int("sequence", 1, maxCount),
		Position: f.Int("position", 1, maxCount),
		Result:   Result(f.Text("outcome", maxName)),
		Detail:   f.Text("detail", maxText),
	}
	if idErr != nil || recorded == nil || f.Err() != nil {
		return nil, errUnreadableAddendum
	}
	report.RecordedAt = *recorded
	return report, nil
}

// ReportOutcome enters what became of an event. The same report again changes
// nothing and returns the earlier one; an unknown result may be settled later,
// any other stands.
func (s *ChainState) ReportOutcome(event *RecordedEvent, earlier []*OutcomeReport, report OutcomeReport, now Time) (*OutcomeReport, *Addendum, error) {
	if n := len(earlier); n > 0 {
		last := earlier[n-1]
		if last.Result == report.Result && last.Detail == report.Detail {
			return last, nil, nil
		}
		if last.Result != Unknown || report.Result == Unknown {
			return nil, nil, Errorf(CodeOutcomeConflict, "another outcome was reported for this event already, and the first one stands: the list of events shows it")
		}
	}
	if s.Status.Sealed() {
		return nil, nil, errSealed()
	}
	if event.Status == EventDenied {
		return nil, nil, Errorf(CodeOutcomeConflict, "the action was denied: it has no outcome")
	}
	s.LastAt = Later(now, s.LastAt)
	report.Event, report.Sequence = event.ID, event.Sequence
	report.Position, report.RecordedAt = s.Entries+1, s.LastAt
	body := report.Encode()
	s.enter(body)
	return &report, &Addendum{Chain: event.Chain, Position: report.Position, Sequence: event.Sequence, Body: body}, nil
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
	return s.admits(action.AgentName)
}

// Open refuses what cannot be recorded in a sealed chain.
func (s *ChainState) Open() error {
	if s.Status.Sealed() {
		return errSealed()
	}
	return nil
}
