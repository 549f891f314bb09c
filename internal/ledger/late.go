package ledger

import "countersign/internal/canon"

// ActionTypeLateOutcome marks what became of an action whose chain was abandoned before
// it was reported. The chain's digest is sealed, so the report is an event of the
// successor. It is no action: nothing is decided on it, and only the service records it.
const ActionTypeLateOutcome = "late_outcome"

// checkLateOutcome refuses a marker that a client sends itself: it would be an action
// that nobody judged.
func checkLateOutcome(f *Fields, action *Action) {
	if action.ActionType == ActionTypeLateOutcome {
		f.Fault("action_type", "must not be %s: report what became of an action to the outcome route of its event", ActionTypeLateOutcome)
	}
}

// LateOutcomeKeys are the idempotency keys under which an event's late outcomes are
// recorded: one for an unknown result, one for what settles it.
func LateOutcomeKeys(event EventID) [2]string {
	return [2]string{lateOutcomeKey(event, Unknown), lateOutcomeKey(event, Succeeded)}
}

func lateOutcomeKey(event EventID, result Result) string {
	if result == Unknown {
		return "late-outcome-unknown:" + event.String()
	}
	return "late-outcome:" + event.String()
}

// JudgeLateOutcome refuses an outcome that an event of an abandoned chain cannot have,
// given all that was entered about it before. The same report again gives the
// earlier one.
func JudgeLateOutcome(event *RecordedEvent, earlier []*Entry, report *Entry) (again *Entry, err error) {
	last, approved := lastOutcome(earlier)
	if repeated, err := repeats(last, report); repeated || err != nil {
		return last, err
	}
	return nil, event.hasOutcome(approved)
}

// LateOutcome makes the marker that enters what became of an event into the
// successor, whose state this is.
func (s *ChainState) LateOutcome(event *RecordedEvent, report Entry) (marker *Action, entered *Entry) {
	report.Kind, report.Event, report.Sequence, report.Position = EntryOutcome, event.ID, event.Sequence, s.Entries+1
	w := canon.BeginObject(nil)
	w.Value(appendQuotedID(w.Name("chain_id"), event.Chain.UUID))
	w.StringOrNull("detail", report.Detail)
	w.Value(appendQuotedID(w.Name("event_id"), event.ID.UUID))
	w.String("outcome", string(report.Result))
	w.Int("position", report.Position)
	w.Int("sequence", report.Sequence)
	marker = &Action{
		AgentName: event.Action.AgentName, ActionType: ActionTypeLateOutcome, ActionName: event.Action.ActionName,
		ParentAgentName: event.Action.ParentAgentName, IdempotencyKey: lateOutcomeKey(event.ID, report.Result), Payload: w.End(),
	}
	return marker, &report
}

// ReadLateOutcome reads a marker back from an event under one of LateOutcomeKeys.
func ReadLateOutcome(marker *RecordedEvent, payload []byte) (*Entry, error) {
	if marker.Action.ActionType != ActionTypeLateOutcome {
		return nil, Errorf(CodeOutcomeConflict, "an action was recorded under the idempotency key that this outcome needs: the outcome cannot be recorded")
	}
	v, err := canon.Parse(payload)
	if err != nil || PayloadHash(payload) != marker.PayloadSHA256 {
		return nil, ErrStateTampered
	}
	f := NewFields(v)
	r := idReader{fields: f}
	entry := &Entry{
		Kind: EntryOutcome, Event: EventID{r.id("event_id")}, RecordedAt: marker.RecordedAt,
		Sequence: f.Int("sequence", 1, maxCount), Position: f.Int("position", 1, maxCount),
		Result: Result(f.Text("outcome", maxName)), Detail: f.Text("detail", maxStored),
	}
	r.id("chain_id")
	if r.failed || f.Err() != nil {
		return nil, ErrStateTampered
	}
	return entry, nil
}
