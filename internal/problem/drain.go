package problem

import (
	"io"
	"net/http"
	"time"
)

const (
	// drainBytes and drainTime bound how much of a body is discarded, and for how long.
	drainBytes = 8 << 20
	drainTime  = 10 * time.Second
)

// Drain reads and discards the rest of a request's body before the request is refused. Most
// clients send the whole body before they read the answer. If the connection is closed
// meanwhile, they get a broken pipe and never see the answer that says why. A body beyond the
// bounds is cut off nevertheless.
func Drain(w http.ResponseWriter, r *http.Request) {
	if r.Body == nil || r.Body == http.NoBody {
		return
	}
	if r.Header.Get("Expect") != "" && r.ContentLength >= 0 {
		// The client waits for 100 Continue before it sends the body, and will not get it.
		return
	}
	// If the writer does not support deadlines, the server's read timeout applies.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(drainTime))
	_, _ = io.CopyN(io.Discard, r.Body, drainBytes)
}
