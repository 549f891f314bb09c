package gateway

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
)

const (
	// maxOpenCalls bounds the calls of one session that are decided or carried out at the same time.
	maxOpenCalls = 100
	// progressTime is how often a client is told that its call still waits. Many give up a call after a
	// minute without such a message.
	progressTime = 10 * time.Second
	// cancelTime is how long a server may take to answer a call that was cancelled. It need not answer.
	cancelTime = 30 * time.Second
	// reportTime is how long outcomes are reported after the session has ended.
	reportTime = 10 * time.Second
)

// session is the use of one server by one client.
type session struct {
	governor *governor
	chains   *chains
	parties  parties
	log      func(format string, args ...any)

	reporting context.Context // of the reports of outcomes
	reports   sync.WaitGroup
	slots     chan struct{} // one for each call that is under way

	// shared is set if several clients use the session, whose requests may have the same ids.
	shared bool

	mu       sync.Mutex
	open     map[string]*openCall // by the ids of the calls
	expiry   time.Duration        // cancelTime
	deciding sync.WaitGroup       // Add is called with mu held, before the session has ended, or by a call
	ended    bool
}

// openCall is a call that the client waits for.
type openCall struct {
	request   string             // its id
	cancel    context.CancelFunc // ends the wait for a decision
	permit    *permit            // nil until the server gets the call
	cancelled bool               // after the server got it
}

// governedCall is a call that is being decided.
type governedCall struct {
	*toolCall
	id      string // in its session: that of the request, unless the session is shared
	request string // the id of the request
	ctx     context.Context
	cancel  context.CancelFunc
}

// exchange is the way of one call to the server, and back to the client.
type exchange interface {
	// tell tells the client something before the answer. Without a text, it only shows that the call is
	// still waiting, if the client could think otherwise.
	tell(text []byte) error
	// answer answers the client instead of the server.
	answer(text []byte) error
	// send sends the call to the server, if the permit is still valid when its turn has come, and admit
	// returns true then. It returns false only if the server got nothing of it.
	send(p *permit, admit func() bool) bool
}

// prepare admits a call to the session. If it cannot be admitted, prepare returns what to answer.
func (s *session) prepare(ctx context.Context, m *message) (c *governedCall, refusal []byte) {
	call, err := toolCallOf(m)
	if err != nil {
		return nil, errorMessage(m.id, err)
	}
	select {
	case s.slots <- struct{}{}:
	default:
		return nil, toolErrorMessage(m.id, notCarriedOut(call.tool, fmt.Errorf("%d calls are under way already; call it again when one has ended", cap(s.slots))))
	}
	c = &governedCall{toolCall: call, id: m.id, request: m.id}
	if s.shared {
		c.id, c.client = uuid.NewString(), clientOf(m)
	}
	c.ctx, c.cancel = context.WithCancel(ctx)
	if err := s.enter(c.id, &openCall{request: m.id, cancel: c.cancel}); err != nil {
		<-s.slots
		c.cancel()
		return nil, errorMessage(m.id, err)
	}
	return c, nil
}

// govern has a call decided, and sends it to the server or answers it. It reports whether the server got
// the call.
func (s *session) govern(c *governedCall, x exchange) bool {
	defer s.deciding.Done()
	defer c.cancel()
	began, stopTelling := time.Now(), func() {}
	waiting := func(w wait) {
		s.log("the call of %q waits for a person to decide: %s", w.tool, w.url)
		stopTelling() // of an earlier wait: an exchange has one user at a time
		stopTelling = startTelling(c, w, x, began)
	}
	err := s.governor.decide(c.ctx, s.chains, c.toolCall, waiting, func(p *permit) bool {
		stopTelling() // the rest of the exchange is the server's
		return s.begin(c, p, x)
	})
	stopTelling()
	if err == nil {
		return true
	}
	s.leave(c.id)
	if c.ctx.Err() != nil {
		return false // nobody waits for an answer
	}
	s.log("%v", err)
	// If the client is gone, reading from it says so.
	_ = x.answer(toolErrorMessage(c.request, err))
	return false
}

// begin sends a call to the server, if the permit is still valid.
func (s *session) begin(c *governedCall, p *permit, x exchange) bool {
	s.chains.keep(p.chain)
	// Until its turn has come, the client can give it up.
	if x.send(p, func() bool { return s.admit(c.ctx, c.id, p) }) {
		return true
	}
	if !s.admit(c.ctx, c.id, nil) {
		s.report(p, outcome{"failed", "the client gave it up before it began"})
		return false
	}
	s.chains.leave(c.ctx, p.chain)
	return false
}

// startTelling tells the client that a call waits, until stop is called. stop may be called again.
func startTelling(c *governedCall, w wait, x exchange, began time.Time) (stop func()) {
	var telling sync.WaitGroup
	stopped := make(chan struct{})
	telling.Go(func() { tellProgress(c, w, x, began, stopped) })
	return sync.OnceFunc(func() {
		close(stopped)
		telling.Wait()
	})
}

// tellProgress tells the client that a call waits, until stopped is closed.
func tellProgress(c *governedCall, w wait, x exchange, began time.Time, stopped <-chan struct{}) {
	ticker := time.NewTicker(progressTime)
	defer ticker.Stop()
	for {
		var text []byte
		if !c.token.IsNull() {
			text = progressMessage(c.token, int64(time.Since(began).Seconds()), "waiting for a person to decide: "+w.url)
		}
		if x.tell(text) != nil {
			c.cancel() // nobody would get the answer
			return
		}
		select {
		case <-stopped:
			return
		case <-ticker.C:
		}
	}
}

// observe reads a message of the server, which was passed on.
func (s *session) observe(text []byte) {
	r, id := responseOf(text)
	if id == "" {
		return
	}
	s.parties.noteServer(&r)
	s.settle(id, r.outcome())
}

// settle reports the outcome of a call that the server has got, unless that was done already.
func (s *session) settle(id string, result outcome) {
	if call := s.answered(id); call != nil {
		s.report(call.permit, result)
	}
}

// report reports an outcome in the background.
func (s *session) report(p *permit, result outcome) {
	s.reports.Go(func() { s.chains.report(s.reporting, p, result) })
}

// end ends the session. The calls that wait are given up.
func (s *session) end(ctx context.Context) {
	s.mu.Lock()
	s.ended = true
	for _, call := range s.open {
		if call.permit == nil {
			call.cancel()
		}
	}
	s.mu.Unlock()
	s.deciding.Wait()
	s.mu.Lock()
	for id, call := range s.open {
		if call.permit != nil {
			s.report(call.permit, outcome{"unknown", "the session ended before it did"})
		}
		delete(s.open, id)
	}
	s.mu.Unlock()
	s.chains.end(ctx)
	s.reports.Wait()
}

// enter adds an open call.
func (s *session) enter(id string, call *openCall) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return refuse(codeInvalidRequest, "the session has ended")
	}
	if _, known := s.open[id]; known {
		return refuse(codeInvalidRequest, "another request with this id is not answered yet")
	}
	s.open[id] = call
	s.deciding.Add(1)
	return nil
}

// leave removes a call that does not reach the server.
func (s *session) leave(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, id)
	<-s.slots
}

// admit records that the server gets a call, or with nil that it does not get it. It returns false if
// the client has cancelled the call.
func (s *session) admit(ctx context.Context, id string, p *permit) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		return false
	}
	s.open[id].permit = p
	return true
}

// answered removes and returns a call that the server has answered, or nil if there is none.
func (s *session) answered(id string) *openCall {
	s.mu.Lock()
	defer s.mu.Unlock()
	call := s.open[id]
	if call == nil || call.permit == nil {
		return nil
	}
	delete(s.open, id)
	<-s.slots
	return call
}

// cancelCall cancels the call of a request, if it waits for a decision. It returns false if there is none:
// then the server is to hear of it. Which of its clients wants that, a shared session does not know: all
// such calls are cancelled that wait, and none that the server has got.
func (s *session) cancelCall(request string) (waited bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, call := range s.open {
		switch {
		case call.request != request:
		case call.permit == nil:
			call.cancel()
			waited = true
		case !call.cancelled && !s.shared:
			call.cancelled = true
			time.AfterFunc(s.expiry, func() { s.expire(id, call) })
		}
	}
	return waited
}

// expire gives up a call that was cancelled, if the server has not answered it.
func (s *session) expire(id string, call *openCall) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[id] != call || call.permit == nil {
		return
	}
	delete(s.open, id)
	<-s.slots
	s.report(call.permit, outcome{"unknown", "the client cancelled it, and the server did not answer"})
}
