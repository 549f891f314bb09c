package gateway

import (
	"io"
	"testing"
	"time"
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
		"ends with its input": `cat`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, err := (&Command{Server: []string{"sh", "-c", script}}).start(t.Context(), io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			server.stopTime = 100 * time.Millisecond
			drained, read := make(chan error), make(chan error, 1)
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
