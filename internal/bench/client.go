package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// connection speaks just enough HTTP/1.1 to load a server: it writes requests
// made beforehand and reads answers of a known length. A full client would spend
// more on a request than the server under test does.
type connection struct {
	conn net.Conn
	in   []byte // what has been read and not used yet begins at 0
}

const maxAnswer = 1 << 20

func dial(ctx context.Context, address string) (*connection, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return &connection{conn: conn, in: make([]byte, 0, 8<<10)}, nil
}

// patience bounds how long a round waits for answers after its end.
const patience = 60 * time.Second

func (c *connection) expire(end time.Time) error { return c.conn.SetDeadline(end.Add(patience)) }

func (c *connection) close() { _ = c.conn.Close() } // every answer has been read

var (
	endOfHeader    = []byte("\r\n\r\n")
	lengthHeader   = []byte("\r\nContent-Length: ")
	statusLine     = []byte("HTTP/1.1 ")
	errNotHTTP     = errors.New("the answer is not HTTP/1.1")
	errNoLength    = errors.New("the answer does not tell its length")
	errSurplus     = errors.New("the server sent more than one answer")
	errUnexpected  = errors.New("the answer is not what is measured")
	errAnswerLarge = errors.New("the answer is too large")
)

// exchange sends one request and returns the answer's body, which is valid until
// the next one. Every status but success is an error.
func (c *connection) exchange(request []byte) ([]byte, error) {
	if _, err := c.conn.Write(request); err != nil {
		return nil, fmt.Errorf("send: %w", err)
	}
	c.in = c.in[:0]
	header := -1
	for searched := 0; header < 0; {
		if err := c.read(); err != nil {
			return nil, err
		}
		if at := bytes.Index(c.in[searched:], endOfHeader); at >= 0 {
			header = searched + at
		}
		searched = max(0, len(c.in)-len(endOfHeader)+1)
	}
	length, err := contentLength(c.in[:header+2])
	if err != nil {
		return nil, err
	}
	body := header + len(endOfHeader)
	for len(c.in) < body+length {
		if err := c.read(); err != nil {
			return nil, err
		}
	}
	if len(c.in) > body+length {
		return nil, errSurplus
	}
	return c.in[body:], successful(c.in)
}

// expect sends a request whose answer must hold a text. Not every refusal has the status
// of one.
func (c *connection) expect(request []byte, text string) error {
	body, err := c.exchange(request)
	if err == nil && !bytes.Contains(body, []byte(text)) {
		err = fmt.Errorf("%w: %.600q", errUnexpected, body)
	}
	return err
}

func (c *connection) read() error {
	if len(c.in) > maxAnswer {
		return errAnswerLarge
	}
	if len(c.in) == cap(c.in) {
		c.in = append(c.in, make([]byte, cap(c.in))...)[:len(c.in)]
	}
	n, err := c.conn.Read(c.in[len(c.in):cap(c.in)])
	c.in = c.in[:len(c.in)+n]
	if errors.Is(err, io.EOF) && n > 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("receive: %w", err)
	}
	return nil
}

func contentLength(header []byte) (int, error) {
	at := bytes.Index(header, lengthHeader)
	if at < 0 {
		return 0, errNoLength
	}
	digits, _, _ := bytes.Cut(header[at+len(lengthHeader):], []byte("\r"))
	length, err := strconv.Atoi(string(digits))
	if err != nil || length < 0 || length > maxAnswer {
		return 0, errNoLength
	}
	return length, nil
}

func successful(answer []byte) error {
	if !bytes.HasPrefix(answer, statusLine) || len(answer) < len(statusLine)+3 {
		return errNotHTTP
	}
	if answer[len(statusLine)] == '2' {
		return nil
	}
	const shown = 600
	return fmt.Errorf("the server refused a request: %q", answer[:min(len(answer), shown)])
}

// call makes one request with net/http, where it does not matter what that costs. Every
// status but success is an error.
func call(ctx context.Context, client *http.Client, address, method, path, apiKey, body string) (*answer, error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://"+address+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+apiKey)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	response, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }() // it was read to its end
	got, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	if response.StatusCode/100 != 2 {
		return nil, fmt.Errorf("%s %s: %s: %s", method, path, response.Status, got)
	}
	a := &answer{Status: response.StatusCode, Body: got}
	for name := range response.Header {
		if name != "Date" && name != "Content-Length" { // net/http's own
			a.Header = append(a.Header, [2]string{name, response.Header.Get(name)})
		}
	}
	return a, nil
}

// idIn cuts the id that follows a text out of an answer.
func idIn(body []byte, text string) (string, error) {
	at := bytes.Index(body, []byte(text)) + len(text)
	if at < len(text) || len(body) < at+idWidth {
		return "", fmt.Errorf("an answer without %s", text)
	}
	return string(body[at : at+idWidth]), nil
}
