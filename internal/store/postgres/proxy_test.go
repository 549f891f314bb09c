package postgres_test

import (
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
)

// proxy sits between a store and its server and can interfere with a COMMIT.
type proxy struct {
	listener net.Listener
	server   string
	// onCommit is called once, for the next COMMIT. If it is nil, the COMMIT passes.
	onCommit atomic.Pointer[interference]
	// cancels counts the cancel requests that passed, statements the statements that were executed,
	// and trips the points at which the client waited for all results.
	cancels, statements, trips atomic.Int64

	mu      sync.Mutex
	links   []*link
	running sync.WaitGroup
}

// freeze stops forwarding on all existing connections without closing them, like a broken network.
func (p *proxy) freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.links {
		l.frozen.Store(true)
	}
}

func (p *proxy) add(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.links = append(p.links, l)
}

// interference returns what is sent to the server instead of the COMMIT, or nil for nothing.
type interference func(link *link, commit []byte) []byte

// link is one connection through the proxy.
type link struct {
	client, server net.Conn
	cutOnAnswer    atomic.Bool
	frozen         atomic.Bool
	hold           atomic.Pointer[chan struct{}] // if set, answers wait until it is closed
}

func (l *link) cut() {
	_ = l.client.Close()
	_ = l.server.Close()
}

// newProxy returns a proxy and the URL that leads through it.
//
//countersign:host it passes bytes on, one after the other
func newProxy(t *testing.T, address string) (*proxy, string) {
	t.Helper()
	parsed, err := url.Parse(address)
	if err != nil {
		t.Fatal("the address of a database is not a URL")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: listener, server: parsed.Host}
	parsed.Host = listener.Addr().String()
	p.running.Go(p.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		p.running.Wait()
	})
	return p, parsed.String()
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		l := &link{client: client, server: server}
		p.add(l)
		p.running.Go(func() { defer l.cut(); p.forward(l) })
		p.running.Go(func() { defer l.cut(); answer(l) })
	}
}

// forward reads message by message. Only the first has no type byte.
func (p *proxy) forward(l *link) {
	first, err := readMessage(l.client, 0)
	if err != nil {
		return
	}
	const cancelRequest = 80877102
	if binary.BigEndian.Uint32(first[4:]) == cancelRequest {
		p.cancels.Add(1)
	}
	message := first
	for err == nil {
		if string(message) == commitMessage {
			if interfere := p.onCommit.Swap(nil); interfere != nil {
				message = (*interfere)(l, message)
			}
		}
		if l.frozen.Load() {
			message = nil
		}
		if _, err = l.server.Write(message); err == nil {
			message, err = readMessage(l.client, 1)
			p.count(message)
		}
	}
}

func (p *proxy) count(message []byte) {
	if len(message) == 0 {
		return
	}
	switch message[0] {
	case 'E': // execute
		p.statements.Add(1)
	case 'S', 'Q': // sync, and a simple query
		p.trips.Add(1)
	}
}

const commitMessage = "Q\x00\x00\x00\x0bcommit\x00"

func readMessage(from io.Reader, typeBytes int) ([]byte, error) {
	header := make([]byte, typeBytes+4)
	if _, err := io.ReadFull(from, header); err != nil {
		return nil, err
	}
	message := make([]byte, typeBytes+int(binary.BigEndian.Uint32(header[typeBytes:])))
	_, err := io.ReadFull(from, message[copy(message, header):])
	return message, err
}

func answer(l *link) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := l.server.Read(buffer)
		if err != nil || l.cutOnAnswer.Load() {
			return
		}
		if l.frozen.Load() {
			continue
		}
		if hold := l.hold.Load(); hold != nil {
			<-*hold
		}
		if _, err := l.client.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// Ways to interfere with a COMMIT.

func losesCommit(l *link, _ []byte) []byte {
	l.cut()
	return nil
}

func losesAnswer(l *link, commit []byte) []byte {
	l.cutOnAnswer.Store(true)
	return commit
}

func warns(l *link, commit []byte) []byte {
	notice := &pgproto3.NoticeResponse{
		Severity: "WARNING", SeverityUnlocalized: "WARNING", Code: "01000",
		Message: "canceling wait for synchronous replication due to user request",
	}
	encoded, err := notice.Encode(nil)
	if err == nil {
		_, err = l.client.Write(encoded)
	}
	if err != nil {
		l.cut()
	}
	return commit
}

func rollsBack(*link, []byte) []byte {
	encoded, _ := (&pgproto3.Query{String: "rollback"}).Encode(nil)
	return encoded
}
