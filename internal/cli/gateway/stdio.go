package gateway

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

const (
	maxLine = 64 << 20 // bytes of one message
	// progressTime is how often a client is told that its call still waits. Many give up a call after a
	// minute without such a message.
	progressTime = 10 * time.Second
	// reportTime is how long outcomes are reported after the session has ended.
	reportTime = 10 * time.Second
)

// session is the use of one server by one client, over lines of text.
type session struct {
	governor *governor
	chains   *chains
	parties  parties
	client   *lineWriter
	server   *lineWriter
	log      func(format string, args ...any)

	reporting context.Context // of the reports of outcomes
	reports   sync.WaitGroup
	slots     chan struct{} // one for each call that is under way

	mu       sync.Mutex
	open     map[string]*openCall // by the ids of their requests
	deciding sync.WaitGroup       // Add is called with mu held, before the session has ended
	ended    bool
}

// openCall is a call that the client waits for.
type openCall struct {
	cancel context.CancelFunc // ends the wait for a decision
	permit *permit            // nil until the server gets the call
}

// fromClient handles a message of the client. ctx ends with the session.
func (s *session) fromClient(ctx context.Context, text []byte) error {
	m, err := parse(text)
	if err != nil {
		return s.client.write(errorMessage(m.id, err))
	}
	s.parties.noteClient(m)
	switch {
	case m.method == methodCallTool:
		return s.startCall(ctx, m)
	case m.method == methodCancelled && s.cancelCall(cancelledID(m)):
		return nil // the server has not heard of the call
	}
	return s.pass(m)
}

// pass sends a message to the server as it is.
func (s *session) pass(m *message) error {
	if m.method == methodCallTool {
		return errors.New("a tool call needs a permit")
	}
	return s.server.write(m.text)
}

// startCall has a call decided in the background.
func (s *session) startCall(ctx context.Context, m *message) error {
	call, err := toolCallOf(m)
	if err != nil {
		return s.client.write(errorMessage(m.id, err))
	}
	select {
	case s.slots <- struct{}{}:
	default:
		return s.client.write(toolErrorMessage(m.id, fmt.Sprintf("The call of %q was not carried out: %d calls are under way already.", call.tool, cap(s.slots))))
	}
	ctx, cancel := context.WithCancel(ctx)
	if !s.enter(m.id, &openCall{cancel: cancel}) {
		<-s.slots
		cancel()
		return s.client.write(errorMessage(m.id, refuse(codeInvalidRequest, "another request with this id is not answered yet")))
	}
	go func() {
		defer s.deciding.Done()
		defer cancel()
		s.govern(ctx, m, call)
	}()
	return nil
}

// govern has a call decided, and sends it to the server or answers it.
func (s *session) govern(ctx context.Context, m *message, call *toolCall) {
	ended := make(chan struct{})
	defer close(ended)
	waiting := func(w wait) {
		s.log("the call of %q waits for a person to decide: %s", w.tool, w.url)
		if !call.token.IsNull() {
			go s.tellProgress(call, w, ended)
		}
	}
	err := s.governor.decide(ctx, s.chains, call, waiting, func(p *permit) bool { return s.begin(ctx, m, p) })
	if err == nil {
		return
	}
	s.leave(m.id)
	if ctx.Err() != nil {
		return // nobody waits for an answer
	}
	s.log("%v", err)
	// If the client is gone, reading from it says so.
	_ = s.client.write(toolErrorMessage(m.id, err.Error()))
}

// begin sends a call to the server, if the permit is still valid.
func (s *session) begin(ctx context.Context, m *message, p *permit) bool {
	s.chains.keep(p.chain)
	if !s.admit(ctx, m.id, p) {
		s.report(p, outcome{"failed", "the client gave it up before it began"})
		return false
	}
	sent, err := s.server.writeIf(func() bool { return p.valid(time.Now()) }, m.text)
	if !sent && err == nil {
		s.admit(ctx, m.id, nil)
		s.chains.leave(ctx, p.chain)
		return false
	}
	// A server that cannot be written to has ended. The session reports the calls that it left open.
	return true
}

// tellProgress tells the client that a call waits, until it is decided.
func (s *session) tellProgress(call *toolCall, w wait, ended <-chan struct{}) {
	began := time.Now()
	ticker := time.NewTicker(progressTime)
	defer ticker.Stop()
	for {
		text := fmt.Sprintf("waiting for a person to decide: %s", w.url)
		if s.client.write(progressMessage(call.token, int64(time.Since(began).Seconds()), text)) != nil {
			return
		}
		select {
		case <-ended:
			return
		case <-ticker.C:
		}
	}
}

// fromServer handles a message of the server: it is passed on, whatever it is.
func (s *session) fromServer(text []byte) error {
	err := s.client.write(text)
	r, id := responseOf(text)
	if id == "" {
		return err
	}
	s.parties.noteServer(&r)
	if call := s.answered(id); call != nil {
		s.report(call.permit, r.outcome())
	}
	return err
}

// report reports an outcome in the background.
func (s *session) report(p *permit, result outcome) {
	s.reports.Go(func() { s.chains.report(s.reporting, p, result) })
}

// end ends the session, after neither party is read from any more.
func (s *session) end(ctx context.Context) {
	s.mu.Lock()
	s.ended = true
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

// enter adds an open call. It returns false if there is one with this id, or the session has ended.
func (s *session) enter(id string, call *openCall) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.open[id]; known || s.ended {
		return false
	}
	s.open[id] = call
	s.deciding.Add(1)
	return true
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

// cancelCall cancels a call that waits for a decision. It returns false if there is none.
func (s *session) cancelCall(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	call := s.open[id]
	if call == nil || call.permit != nil {
		return false
	}
	call.cancel()
	return true
}

// lineWriter writes messages, one per line. It is safe for concurrent use.
type lineWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lineWriter) write(text []byte) error {
	_, err := l.writeIf(func() bool { return true }, text)
	return err
}

// writeIf writes a message if it may still be written when its turn has come.
func (l *lineWriter) writeIf(may func() bool, text []byte) (written bool, err error) {
	line := append(bytes.Clone(text), '\n')
	l.mu.Lock()
	defer l.mu.Unlock()
	if !may() {
		return false, nil
	}
	_, err = l.w.Write(line)
	return err == nil, err
}

var errLongLine = fmt.Errorf("a message is longer than %d MiB", maxLine>>20)

// readLines calls each for every line that is not empty, until the end of r or an error.
func readLines(r io.Reader, each func([]byte) error) error {
	reader := bufio.NewReaderSize(r, 64<<10)
	var line []byte
	for {
		part, err := reader.ReadSlice('\n')
		if len(line)+len(part) > maxLine {
			return errLongLine
		}
		line = append(line, part...)
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if text := bytes.TrimSpace(line); len(text) > 0 {
			if err := each(bytes.Clone(text)); err != nil {
				return err
			}
		}
		line = line[:0]
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
