package httpapi_test

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"
)

// A clock that jumps back never makes an end precede its beginning, and an order
// that was recorded stays visible in the times.
func TestClockJumpsBack(t *testing.T) {
	eachStore(t, func(t *testing.T, open func(*testing.T) *database) {
		var offset atomic.Int64
		noon := time.Date(2026, 3, 1, 12, 0, 0, 123_999_999, time.UTC)
		clock := func() time.Time { return noon.Add(time.Duration(offset.Load())) }
		s := start(t, open(t), setup{clock: clock})
		id := s.open(t, s.acme.agent, `{"name":"clock"}`)
		var events []string
		for _, jump := range []time.Duration{time.Hour, -24 * time.Hour, time.Minute, -365 * 24 * time.Hour} {
			offset.Store(int64(jump))
			event := s.record(t, s.acme.agent, id, anAction).EventID
			s.post(t, s.acme.agent, "/v1/chains/"+id+"/events/"+event+"/outcome", `{"outcome":"succeeded"}`).expect(t, http.StatusOK)
			events = append(events, event)
		}
		sealed := s.complete(t, s.acme.agent, id, "")
		const hourLater = "2026-03-01T13:00:00.123Z"
		if sealed.StartedAt != "2026-03-01T12:00:00.123Z" || *sealed.CompletedAt != hourLater {
			t.Errorf("started at %s, completed at %s", sealed.StartedAt, *sealed.CompletedAt)
		}
		made := decode[receipt](t, &answer{body: sealed.Receipt})
		if made.CompletedAt < made.StartedAt || made.GeneratedAt < made.CompletedAt || made.Number != "CSN-2026-00001" {
			t.Errorf("the receipt %s runs from %s to %s, made at %s", made.Number, made.StartedAt, made.CompletedAt, made.GeneratedAt)
		}
		last := sealed.StartedAt
		for i, e := range decode[page[event]](t, s.get(t, s.acme.member, "/v1/chains/"+id+"/events")).Data {
			if e.ID != events[i] || e.RecordedAt < last || e.Outcome.RecordedAt < e.RecordedAt {
				t.Errorf("event %d was recorded at %s, its outcome at %s, and the one before at %s", i+1, e.RecordedAt, e.Outcome.RecordedAt, last)
			}
			last = e.Outcome.RecordedAt
		}
		if last > *sealed.CompletedAt {
			t.Errorf("completed at %s, before the last outcome at %s", *sealed.CompletedAt, last)
		}
		early := s.seal(t, s.acme.agent, "a year earlier")
		if *early.CompletedAt < early.StartedAt {
			t.Errorf("started at %s, completed at %s", early.StartedAt, *early.CompletedAt)
		}
	})
}
