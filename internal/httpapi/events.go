package httpapi

import (
	"net/http"

	"countersign/internal/canon"
	"countersign/internal/ledger"
	"countersign/internal/problem"
	"countersign/internal/service"
)

func recordEvent(x *exchange) error {
	id, err := x.chainID()
	if err != nil {
		return err
	}
	action, err := parsed(x, ledger.ParseAction)
	if err != nil {
		return err
	}
	recorded, err := x.api.service.RecordEvent(x.r.Context(), x.caller, id, action)
	if err != nil {
		return err
	}
	return answerBuffered(x, http.StatusOK, func(dst []byte) []byte { return appendDecision(dst, recorded) })
}

// reportEvents records what a client decided by itself. An event that could not be recorded has an
// error in its place and does not affect the others.
func reportEvents(x *exchange) error {
	id, err := x.chainID()
	if err != nil {
		return err
	}
	actions, err := parsed(x, ledger.ParseReported)
	if err != nil {
		return err
	}
	report, err := x.api.service.ReportEvents(x.r.Context(), x.caller, id, actions)
	if err != nil {
		return err
	}
	w := canon.BeginObject(make([]byte, 0, 1024*(len(report.Results)+1)))
	writeTerms(&w, &report.Terms)
	writeChainID(&w, "continued_by", report.ContinuedBy)
	list := append(w.Name("results"), '[')
	for i := range report.Results {
		if i > 0 {
			list = append(list, ',')
		}
		if list, err = x.appendReported(list, &report.Results[i]); err != nil {
			return err
		}
	}
	w.Value(append(list, ']'))
	return x.answer(http.StatusOK, w.End())
}

func (x *exchange) appendReported(dst []byte, r *service.Reported) ([]byte, error) {
	w := canon.BeginObject(dst)
	if r.Err == nil {
		writeDecision(&w, r.Recorded)
		w.Bool("violation", r.Event.Decision.Violated())
		return w.End(), nil
	}
	shown, kind := problem.Of(r.Err)
	body, err := encode(x.document(shown, kind))
	w.Raw("error", body)
	return w.End(), err
}

func listEvents(x *exchange) error {
	id, err := x.chainID()
	if err != nil {
		return err
	}
	q := x.query()
	limit, after := q.limit(), q.numberCursor(eventCursor)
	if err := q.err(); err != nil {
		return err
	}
	events, err := x.api.service.Events(x.r.Context(), x.caller, id, after, limit)
	if err != nil {
		return err
	}
	cursor := func(e *service.EventView) string { return encodeNumberCursor(eventCursor, e.Sequence) }
	return list(x, events, limit, cursor, appendEvent)
}

func reportOutcome(x *exchange) error {
	id, err := x.chainID()
	if err != nil {
		return err
	}
	event, err := x.pathID("event_id")
	if err != nil {
		return err
	}
	report, err := parsed(x, ledger.ParseOutcome)
	if err != nil {
		return err
	}
	result, err := x.api.service.ReportOutcome(x.r.Context(), x.caller, id, ledger.EventID{UUID: event}, report)
	if err != nil {
		return err
	}
	return x.answer(http.StatusOK, appendOutcome(nil, id, result))
}
