package httpapi_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// A client that sends all of its body before it looks for an answer, as most do, is
// told why it was refused, and its connection is not broken under it: whatever the
// reason, with an announced length and in chunks. What is longer than 8 MiB is cut off.
func TestRefusedWhileStillSending(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		const chains = "POST /v1/chains HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
		authorized := "Authorization: Bearer " + s.acme.agent.text + "\r\n"
		for name, test := range map[string]struct {
			head    string
			size    int // bytes of the body
			chunked bool
			status  int
		}{
			"just over the limit":   {chains + authorized, 1<<20 + 1, false, http.StatusRequestEntityTooLarge},
			"3 MB":                  {chains + authorized, 3_000_000, false, http.StatusRequestEntityTooLarge},
			"3 MB in chunks":        {chains + authorized, 3_000_000, true, http.StatusRequestEntityTooLarge},
			"7 MiB":                 {chains + authorized, 7 << 20, false, http.StatusRequestEntityTooLarge},
			"7 MiB in chunks":       {chains + authorized, 7 << 20, true, http.StatusRequestEntityTooLarge},
			"7 MiB without a key":   {chains, 7 << 20, false, http.StatusUnauthorized},
			"7 MiB to nowhere":      {"POST /v1/nowhere HTTP/1.1\r\nHost: h\r\n", 7 << 20, false, http.StatusNotFound},
			"7 MiB, method refused": {"DELETE /v1/chains HTTP/1.1\r\nHost: h\r\n" + authorized, 7 << 20, true, http.StatusMethodNotAllowed},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				conn := s.dial(t)
				if err := sendBody(conn, test.head, test.size, test.chunked); err != nil {
					t.Fatalf("the body could not be sent: %v", err)
				}
				answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil {
					t.Fatalf("no answer: %v", err)
				}
				defer answer.Body.Close()
				if body, err := io.ReadAll(answer.Body); err != nil || answer.StatusCode != test.status {
					t.Errorf("status %d, want %d; %v: %s", answer.StatusCode, test.status, err, body)
				}
			})
		}
	})
}

// A client that asks before it sends is answered at once, and one that goes on sending
// for ever is cut off.
func TestRefusedBeforeAndWithoutEnd(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		head := "POST /v1/chains HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nAuthorization: Bearer " + s.acme.agent.text + "\r\n"
		conn := s.dial(t)
		if _, err := io.WriteString(conn, head+"Expect: 100-continue\r\nContent-Length: 9000000\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || answer.StatusCode != http.StatusRequestEntityTooLarge {
			t.Fatalf("answered %v, %v", answer, err)
		}
		answer.Body.Close()
		if err := sendBody(s.dial(t), head, 1<<30, false); err == nil {
			t.Error("a body of 1 GiB was read to its end")
		}
	})
}

// dial connects as a client with small buffers does, so that what the server does not
// read is not sent either.
func (s *stack) dial(t *testing.T) net.Conn {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(s.base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).SetWriteBuffer(64 << 10); err != nil {
		t.Fatal(err)
	}
	return conn
}

// sendBody sends a request to its end without looking for an answer.
func sendBody(conn net.Conn, head string, size int, chunked bool) error {
	framing, before, after, end := fmt.Sprintf("Content-Length: %d\r\n\r\n", size), "", "", ""
	const piece = 1000
	if chunked {
		framing, before, after, end = "Transfer-Encoding: chunked\r\n\r\n", fmt.Sprintf("%x\r\n", piece), "\r\n", "0\r\n\r\n"
		size -= size % piece
	}
	w := bufio.NewWriterSize(conn, 64<<10)
	w.WriteString(head + framing)
	for size > 0 {
		n := min(size, piece)
		size -= n
		if _, err := w.WriteString(before + strings.Repeat(" ", n) + after); err != nil {
			return err
		}
	}
	w.WriteString(end)
	return w.Flush()
}
