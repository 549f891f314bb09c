package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// immudbCall is one method of immudb's gRPC service, called over and over on one
// connection. gRPC is HTTP/2 with five bytes before each message and the status in
// the trailer, so net/http is client enough.
type immudbCall struct {
	request   *http.Request
	transport *http.Transport // nil before the first call
}

func newImmudbCall(ctx context.Context, address, method, sessionID string) *immudbCall {
	r := (&http.Request{
		Method: http.MethodPost,
		URL:    &url.URL{Scheme: "http", Host: address, Path: "/immudb.schema.ImmuService/" + method},
		Header: http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}},
	}).WithContext(ctx)
	if sessionID != "" {
		r.Header.Set("sessionid", sessionID)
	}
	return &immudbCall{request: r}
}

const messagePrefix = 5 // a byte for compression, four for the length

// send calls the method with an encoded message and returns the encoded answer.
func (c *immudbCall) send(conn net.Conn, message []byte) ([]byte, error) {
	if c.transport == nil {
		c.transport = transportOver(conn)
	}
	frame := make([]byte, 0, messagePrefix+len(message))
	frame = append(frame, 0)                                           // not compressed
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(message))) //nolint:gosec // an event's size
	frame = append(frame, message...)
	c.request.Body, c.request.ContentLength = io.NopCloser(bytes.NewReader(frame)), int64(len(frame))
	response, err := c.transport.RoundTrip(c.request)
	if err != nil {
		return nil, fmt.Errorf("call immudb: %w", err)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return nil, fmt.Errorf("answer of immudb: %w", err)
	}
	// An answer without a message has its status in the header.
	status := response.Trailer.Get("Grpc-Status") + response.Header.Get("Grpc-Status")
	if status != "0" || len(body) < messagePrefix {
		text := response.Trailer.Get("Grpc-Message") + response.Header.Get("Grpc-Message")
		return nil, fmt.Errorf("immudb refused a request: %s, gRPC status %q: %s", response.Status, status, text)
	}
	return body[messagePrefix:], nil
}

var errOneConnection = errors.New("immudb closed the connection")

// transportOver speaks HTTP/2 over one connection that exists already.
func transportOver(conn net.Conn) *http.Transport {
	unused := make(chan net.Conn, 1)
	unused <- conn
	t := &http.Transport{
		Protocols:          new(http.Protocols),
		DisableCompression: true,
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			select {
			case conn := <-unused:
				return conn, nil
			default:
				return nil, errOneConnection
			}
		},
	}
	t.Protocols.SetUnencryptedHTTP2(true)
	return t
}

// appendField appends one field of bytes in protocol buffers' encoding.
func appendField(message []byte, number byte, value string) []byte {
	const bytesType = 2
	message = append(message, number<<3|bytesType)
	message = binary.AppendUvarint(message, uint64(len(value)))
	return append(message, value...)
}

var errNoSession = errors.New("immudb has opened no session")

// openImmudbSession signs in as the user that a new immudb has.
func openImmudbSession(ctx context.Context, address string) (string, error) {
	c, err := dial(ctx, address)
	if err != nil {
		return "", err
	}
	defer c.close()
	if err := c.expire(time.Now()); err != nil {
		return "", err
	}
	call := newImmudbCall(ctx, address, "OpenSession", "")
	var message []byte
	for i, value := range []string{"immudb", "immudb", "defaultdb"} { // user, password, database
		message = appendField(message, byte(i+1), value)
	}
	answer, err := call.send(c.conn, message)
	if err != nil {
		return "", err
	}
	// The session's id is the first field, and shorter than 128 bytes.
	if len(answer) < 2 || answer[0] != appendField(nil, 1, "")[0] || len(answer) < 2+int(answer[1]) {
		return "", errNoSession
	}
	return string(answer[2 : 2+int(answer[1])]), nil
}

// setSession stores an event's bytes under a new key with each step.
type setSession struct {
	call  *immudbCall
	key   []byte
	count uint64
}

// newSetSession begins anywhere, so that no other session has its keys.
func newSetSession(ctx context.Context, address, sessionID string) session {
	return &setSession{
		call: newImmudbCall(ctx, address, "Set", sessionID), key: make([]byte, keyWidth),
		count: rand.Uint64(), //nolint:gosec // nobody gains by guessing a key
	}
}

var eventValue = eventHead + strings.Repeat("0", keyWidth) + eventTail

func (s *setSession) step(c *connection) (bool, error) {
	s.count++
	writeHex(s.key, s.count)
	pair := appendField(appendField(nil, 1, string(s.key)), 2, eventValue)
	_, err := s.call.send(c.conn, appendField(nil, 1, string(pair)))
	return true, err
}
