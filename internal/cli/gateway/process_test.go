package gateway

import (
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"countersign/internal/cli"
	"countersign/internal/ledger"
)

// A server that does not end with its input is asked to end and then killed, and so are the processes
// that it has started: nothing of it is left when the session is over.
//
//countersign:race
func TestServersThatDoNotEnd(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"another process":     `sleep 100; true`,
		"ignored signals":     `trap "" TERM; sleep 100; true`,
		"another that forks":  `sh -c "sleep 100; true"; true`,
		"closed its output":   `exec >&- 2>&-; sleep 100; true`,
		"ends with its input": `cat`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, err := (&Command{Server: []string{"sh", "-c", script}}).start(t.Context(), io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			server.stopTime = 100 * time.Millisecond
			drained, read := make(chan struct{}), make(chan error, 1)
			go func() {
				read <- readLines(server.output, func([]byte) error { return nil })
				close(drained)
			}()
			_ = server.end(drained) // how it ended is its own business
			// The pipe has an end of its own only when nobody holds the other side any more.
			if err := <-read; err != nil {
				t.Errorf("a process of the server is left: %v", err)
			}
		})
	}
}

// A message that is too long ends the session, also if the server is still writing it.
//
//countersign:race
func TestServersThatWriteWithoutEnd(t *testing.T) {
	t.Parallel()
	c := &Command{Server: []string{"cat", "/dev/zero"}}
	server, err := c.start(t.Context(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	server.stopTime = 100 * time.Millisecond
	s := &lineSession{c.newSession(cli.NewClient("http://127.0.0.1:1", ledger.Secret{}), t.Logf, new(atomic.Int64)), &lineWriter{w: io.Discard}, &lineWriter{w: server.input}}
	in, client := io.Pipe() // which stays open
	defer client.Close()
	if err := s.run(t.Context(), in, server); !errors.Is(err, errLongLine) {
		t.Errorf("the session ended with %v", err)
	}
}
