package httpapi_test

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"countersign/internal/store"
)

// gate is a store whose transactions wait, once it is armed, until it is opened:
// what is sent meanwhile becomes one batch.
type gate struct {
	store.Store
	armed   atomic.Bool
	entered chan struct{}
	opened  chan struct{}
}

func (g *gate) Transact(ctx context.Context, needs *store.Needs, plan func(*store.Loaded) (*store.Changes, error)) error {
	if g.armed.CompareAndSwap(true, false) {
		close(g.entered)
		<-g.opened
	}
	return g.Store.Transact(ctx, needs, plan)
}

// queue hears how many operations wait.
type queue chan int

func (q queue) Queued(operations int)      { q <- operations }
func (queue) Committed(int, time.Duration) {}
func (queue) Sealed(int)                   {}
func (queue) Decided(string)               {}
func (queue) ApprovalMoved(string)         {}

func (queue) OverBudget(string, string, string) {}

// What is written to a chain in one batch with its completion is in the receipt
// when it came first, and refused when it came after.
//
//countersign:race
func TestCompletionAmongEvents(t *testing.T) {
	eachStore(t, func(t *testing.T, open func(*testing.T) *database) {
		g := &gate{entered: make(chan struct{}), opened: make(chan struct{})}
		queued := make(queue, 100)
		s := start(t, open(t), setup{meter: queued, wrap: func(inner store.Store) store.Store { g.Store = inner; return g }})
		id := s.open(t, s.acme.agent, `{"name":"batch"}`)
		s.record(t, s.acme.agent, id, anAction)
		g.armed.Store(true)
		events, complete := "/v1/chains/"+id+"/events", "/v1/chains/"+id+"/complete"
		requests := []struct{ path, body string }{
			{events, anAction}, {events, anAction}, {complete, ""}, {events, anAction}, {complete, ""}, {complete, `{"outcome":"failed"}`},
		}
		answers := make([]*answer, len(requests))
		var all sync.WaitGroup
		for len(queued) > 0 {
			<-queued
		}
		for i, request := range requests {
			all.Go(func() { answers[i] = s.post(t, s.acme.agent, request.path, request.body) })
			<-queued // each takes its place before the next is sent
			if i == 0 {
				<-g.entered
			}
		}
		close(g.opened)
		all.Wait()
		for i, want := range []int{200, 200, 200, 409, 200, 409} {
			if answers[i].status != want {
				t.Errorf("request %d was answered %d, want %d: %s", i+1, answers[i].status, want, answers[i].body)
			}
		}
		sealed := decode[chain](t, answers[2].expect(t, http.StatusOK))
		made := decode[receipt](t, &answer{body: sealed.Receipt})
		if made.Actions != 3 || made.Events[0].Count != 3 || string(answers[4].body) != string(answers[2].body) {
			t.Errorf("sealed as %s, repeated as %s", answers[2].body, answers[4].body)
		}
		if want := digestOf(t, everyPage[map[string]any](t, s, s.acme.member, events, 50)); made.Digest != want {
			t.Errorf("events_digest is %s, the events give %s", made.Digest, want)
		}
	})
}

// flaky is a store whose next transaction fails: before it began, or after it was
// committed.
type flaky struct {
	store.Store
	lost, unknown atomic.Bool
}

func (f *flaky) Transact(ctx context.Context, needs *store.Needs, plan func(*store.Loaded) (*store.Changes, error)) error {
	if f.lost.CompareAndSwap(true, false) {
		return store.ErrUnavailable
	}
	err := f.Store.Transact(ctx, needs, plan)
	if err == nil && f.unknown.CompareAndSwap(true, false) {
		return store.ErrOutcomeUnknown
	}
	return err
}

// A write whose fate is not known is answered so, and sent again it has happened
// once.
func TestRetriesSettle(t *testing.T) {
	eachStore(t, func(t *testing.T, open func(*testing.T) *database) {
		f := &flaky{}
		s := start(t, open(t), setup{wrap: func(inner store.Store) store.Store { f.Store = inner; return f }})
		fail := map[string]*atomic.Bool{"storage_unavailable": &f.lost, "outcome_unknown": &f.unknown}
		for code, next := range fail {
			t.Run(code, func(t *testing.T) {
				retried := func(c call) *answer {
					c.method, c.key = http.MethodPost, s.acme.agent.text
					next.Store(true)
					s.do(t, c).refuse(t, http.StatusServiceUnavailable, code).without(t, planted)
					return s.do(t, c)
				}
				opened := decode[chain](t, retried(call{path: "/v1/chains", body: []byte(`{"name":"n"}`), header: http.Header{"Idempotency-Key": {"planted-" + code}}}).expect(t, http.StatusCreated))
				events := "/v1/chains/" + opened.ID + "/events"
				recorded := decode[decision](t, retried(call{path: events, body: []byte(action(`,"idempotency_key":"planted-k"`))}).expect(t, http.StatusOK))
				retried(call{path: events + "/" + recorded.EventID + "/outcome", body: []byte(`{"outcome":"failed"}`)}).expect(t, http.StatusOK)
				sealed := decode[chain](t, retried(call{path: "/v1/chains/" + opened.ID + "/complete"}).expect(t, http.StatusOK))
				made := decode[receipt](t, &answer{body: sealed.Receipt})
				stored := everyPage[map[string]any](t, s, s.acme.member, events, 50)
				if recorded.Sequence != 1 || len(stored) != 1 || made.Digest != digestOf(t, stored) {
					t.Errorf("after retries, %d events are stored and the receipt is %s", len(stored), sealed.Receipt)
				}
			})
		}
		for i, r := range everyPage[receipt](t, s, s.acme.member, "/v1/receipts", 50) {
			if r.Number[9:] != []string{"00002", "00001"}[i] {
				t.Errorf("receipts are numbered %s", r.Number)
			}
		}
	})
}

// The service does not build on a record that was changed behind its back.
func TestTamperedState(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		id := s.open(t, s.acme.agent, `{"name":"tampered"}`)
		event := s.record(t, s.acme.agent, id, anAction).EventID
		if _, err := s.database.direct.ExecContext(t.Context(), "UPDATE chain_states SET mac = state"); err != nil {
			t.Fatal(err)
		}
		kept := []string{"chains", "chain_states", "events", "addenda", "receipts", "heads"} // a finding is written down elsewhere
		before := s.database.dumpOf(t, kept...)
		for _, got := range []*answer{
			s.get(t, s.acme.agent, "/v1/chains/"+id),
			s.post(t, s.acme.agent, "/v1/chains/"+id+"/events", anAction),
			s.post(t, s.acme.agent, "/v1/chains/"+id+"/events/"+event+"/outcome", `{"outcome":"failed"}`),
			s.post(t, s.acme.agent, "/v1/chains/"+id+"/complete", ""),
		} {
			got.refuse(t, http.StatusInternalServerError, "evidence_tampered").without(t, planted, id, s.acme.id)
		}
		want := `{"data":[{"id":"` + id + `","integrity":"failed"}],"next_cursor":null}`
		if got := s.get(t, s.acme.agent, "/v1/chains").expect(t, http.StatusOK); string(got.body) != want {
			t.Errorf("the list is %s, want %s", got.body, want)
		}
		if s.database.dumpOf(t, kept...) != before {
			t.Error("a record that fails its authenticator was written over")
		}
		s.get(t, s.rival.admin, "/v1/chains").expect(t, http.StatusOK)
	})
}
