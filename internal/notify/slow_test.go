package notify

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// A receiver has the whole time of an attempt to answer.
//
//countersign:race
func TestAnAnswerJustInTimeCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		defer there.Close()
		d := newDialer(true)
		d.connect = func(context.Context, string, string) (net.Conn, error) { return here, nil }
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			request, err := http.ReadRequest(bufio.NewReader(there))
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, request.Body)
			time.Sleep(webhookTimeout - time.Second)
			_, _ = io.WriteString(there, "HTTP/1.1 204 No Content\r\n\r\n")
		}()
		w := newWebhooks(d, nil, webhookTimeout)
		defer w.Close()
		status, err := w.Deliver(t.Context(), endpoint("http://127.0.0.1/hooks"), testMessage, noon, encoded(t))
		if status != http.StatusNoContent || err != nil {
			t.Errorf("%d, %v", status, err)
		}
		<-answered
	})
}
