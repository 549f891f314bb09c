package notify

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// script is a mail server with one fixed conversation: it sends each answer in turn, reads a line
// before the next, and then calls end.
//
//countersign:host it runs a mail server
func script(t *testing.T, end func(net.Conn, *bufio.Reader), answers ...string) *Mailer {
	t.Helper()
	listener := listen(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		lines := bufio.NewReader(conn)
		for i, answer := range answers {
			if i > 0 {
				if _, err := lines.ReadString('\n'); err != nil {
					return
				}
			}
			if _, err := fmt.Fprintf(conn, "%s\r\n", answer); err != nil {
				return
			}
		}
		end(conn, lines)
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-done
	})
	port := listener.Addr().(*net.TCPAddr).Port
	return mailerAt(t, fmt.Sprintf("smtp://127.0.0.1:%d?from=a@example.com&starttls=off", port))
}

func untilClosed(_ net.Conn, lines *bufio.Reader) { _, _ = io.Copy(io.Discard, lines) }

var polite = []string{"220 ready", "250 hello", "250 sender", "250 recipient", "354 go on"}

// A mail server that hangs at any stage causes a timeout that is retried.
func TestAHangingServerTimesOut(t *testing.T) {
	t.Parallel()
	for stage := range len(polite) + 1 {
		m := script(t, untilClosed, polite[:stage]...)
		m.timeout = 50 * time.Millisecond
		err := m.Send(t.Context(), testMessage, reviewers, fullNotice())
		if err == nil || Permanent(err) || !strings.Contains(err.Error(), "in time") || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after %d answers: %v", stage, err)
		}
	}
}

// Sending a mail ends when its caller gives up.
func TestAMailCanBeGivenUp(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	m := script(t, func(conn net.Conn, lines *bufio.Reader) {
		cancel()
		untilClosed(conn, lines)
	}, polite...)
	err := m.Send(ctx, testMessage, reviewers, fullNotice())
	if !errors.Is(err, context.Canceled) || Permanent(err) {
		t.Error(err)
	}
}

// A mail that the server accepted is sent, even if the connection breaks after that.
func TestALostFarewellTakesNothingBack(t *testing.T) {
	t.Parallel()
	m := script(t, func(conn net.Conn, lines *bufio.Reader) {
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				return
			}
			if line == ".\r\n" {
				_, _ = io.WriteString(conn, "250 taken\r\n")
				return // breaks the connection
			}
		}
	}, polite...)
	if err := m.Send(t.Context(), testMessage, reviewers, fullNotice()); err != nil {
		t.Error(err)
	}
}

// watched counts how often a connection was closed.
type watched struct {
	net.Conn
	closed *atomic.Int64
}

func (w watched) Close() error {
	w.closed.Add(1)
	return w.Conn.Close()
}

// A session that fails before the mail is sent closes its connection.
func TestAFailedSetUpLeavesNoConnection(t *testing.T) {
	t.Parallel()
	for name, answers := range map[string][]string{
		"no STARTTLS": {"220 ready", "250 hello"},
		"no greeting": {"220 ready", "502 no", "502 no"},
	} {
		m := mailerAt(t, fmt.Sprintf("smtp://127.0.0.1:%d?from=a@example.com", script(t, untilClosed, answers...).port))
		connect, closed := m.connect, &atomic.Int64{}
		m.connect = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := connect(ctx, network, address)
			return watched{conn, closed}, err
		}
		err := m.Send(t.Context(), testMessage, reviewers, fullNotice())
		if err == nil || Permanent(err) || closed.Load() == 0 {
			t.Errorf("%s: %v, closed %d times", name, err, closed.Load())
		}
	}
}

// A mail server that refuses the connection is a failure that is retried.
func TestNobodyListens(t *testing.T) {
	t.Parallel()
	m := mailerAt(t, "smtp://127.0.0.1:1?from=a@example.com")
	err := m.Send(t.Context(), testMessage, reviewers, fullNotice())
	if err == nil || Permanent(err) || !strings.Contains(err.Error(), "refused") {
		t.Error(err)
	}
}

// A mail with invalid recipients, id or content fails permanently, and the error contains none of
// it.
func TestSendRefusesWhatNoRetryMends(t *testing.T) {
	t.Parallel()
	m := mailerAt(t, "smtp://127.0.0.1:1?from=a@example.com")
	for name, c := range map[string]struct {
		message string
		to      []string
		notice  Notice
	}{
		"no recipient":         {testMessage, nil, fullNotice()},
		"too many recipients":  {testMessage, make([]string, maxRecipients+1), fullNotice()},
		"no address":           {testMessage, []string{"planted"}, fullNotice()},
		"a second header":      {testMessage, []string{"planted@example.com\r\nBcc: b@example.com"}, fullNotice()},
		"an id with brackets":  {"<planted>", reviewers, fullNotice()},
		"a notice of no kind":  {testMessage, reviewers, Notice{Organization: "planted"}},
		"a link to a program":  {testMessage, reviewers, Notice{Kind: WebhookTest, Organization: "acme", Link: "planted:x"}},
		"a quoted line break":  {testMessage, []string{"\"planted\r\n\"@example.com"}, fullNotice()},
		"two addresses in one": {testMessage, []string{"planted@example.com, b@example.com"}, fullNotice()},
	} {
		err := m.Send(t.Context(), c.message, c.to, c.notice)
		if !Permanent(err) || strings.Contains(err.Error(), "planted") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Every kind of notice has its wording, and only requests for a decision ask for one.
func TestEveryKindHasItsWords(t *testing.T) {
	t.Parallel()
	if len(wordings) != len(Kinds()) {
		t.Errorf("%d wordings for %d kinds", len(wordings), len(Kinds()))
	}
	for _, kind := range Kinds() {
		words := wordings[kind]
		decides := kind == ApprovalRequested || kind == ApprovalEscalated
		if words.headline == "" || words.advice == "" || strings.HasSuffix(words.advice, adviceDecide) != decides {
			t.Errorf("%s: %+v", kind, words)
		}
	}
}
