package gateway

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
)

const maxLine = 64 << 20 // bytes of one message

// lineSession is a session over lines of text.
type lineSession struct {
	*session
	client, server *lineWriter
}

// fromClient handles a message of the client. ctx ends with the session.
func (s *lineSession) fromClient(ctx context.Context, text []byte) error {
	m, err := parse(text)
	if err == nil && bytes.ContainsAny(text, "\r\n") {
		// Many servers end a line there, such as all that read a text file of Python's, and would find
		// another message in the middle of this one.
		err = refuse(codeInvalidRequest, "the message has a line break in it")
	}
	if err != nil {
		return s.client.write(errorMessage(requestID(text), err))
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
func (s *lineSession) pass(m *message) error {
	if m.method == methodCallTool {
		return errors.New("a tool call needs a permit")
	}
	return s.server.write(m.text)
}

// startCall has a call decided in the background.
func (s *lineSession) startCall(ctx context.Context, m *message) error {
	c, refusal := s.prepare(ctx, m)
	if refusal != nil {
		return s.client.write(refusal)
	}
	go s.govern(c, &lineExchange{s, m})
	return nil
}

// lineExchange is the exchange of a call over lines of text.
type lineExchange struct {
	s *lineSession
	m *message
}

func (x *lineExchange) tell(text []byte) error {
	if text == nil {
		return nil
	}
	return x.s.client.write(text)
}

func (x *lineExchange) answer(text []byte) error { return x.s.client.write(text) }

func (x *lineExchange) send(p *permit, admit func() bool) bool {
	sent, err := x.s.server.writeIf(func() bool { return p.valid() && admit() }, x.m.text)
	// A server that cannot be written to has ended. The session reports the calls that it left open.
	return sent || err != nil
}

// fromServer handles a message of the server: it is passed on, whatever it is.
func (s *lineSession) fromServer(text []byte) error {
	err := s.client.write(text)
	s.observe(text)
	return err
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
