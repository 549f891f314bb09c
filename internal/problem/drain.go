package problem

import (
	"io"
	"net/http"
	"time"
)

const (
	// drainBytes and drainTime bound what is read of a body that nobody wants.
	drainBytes = 8 << 20
	drainTime  = 10 * time.Second
)

// Drain reads what is left of a request's body and drops it, before the request is
// refused. Most clients send all of a body before they look for an answer: a
// connection that is closed under them is a broken pipe to them, and the answer that
// says why is lost. What is longer than the bounds is cut off all the same.
func Drain(w http.ResponseWriter, r *http.Request) {
	if r.Body == nil || r.Body == http.NoBody {
		return
	}
	if r.Header.Get("Expect") != "" && r.ContentLength >= 0 {
		// The client waits to be asked for a body that was either read or is not wanted.
		return
	}
	// Where the writer cannot set a deadline, the server's own bounds the reading.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(drainTime))
	_, _ = io.CopyN(io.Discard, r.Body, drainBytes)
}
