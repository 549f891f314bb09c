package worker_test

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"countersign/internal/anchor"
	"countersign/internal/anchor/anchortest"
	"countersign/internal/servicetest"
)

// stamper is a timestamp authority, and the client for it.
type stamper struct {
	*anchor.Authority
	server *anchortest.Authority
	trust  *anchor.Trust
}

func newStamper(t *testing.T, clock *servicetest.Clock) *stamper {
	t.Helper()
	s := &stamper{server: anchortest.Start(t, anchortest.Options{Now: clock.Now})}
	var err error
	if s.trust, err = anchor.ParseTrust(s.server.Roots); err != nil {
		t.Fatal(err)
	}
	if s.Authority, err = anchor.NewAuthority(anchor.AuthorityConfig{URL: s.server.URL + "/planted-path", Roots: s.server.Roots}); err != nil {
		t.Fatal(err)
	}
	return s
}

// stamper starts an authority whose tokens are trusted.
func (w *world) stamper() *stamper {
	w.t.Helper()
	s := newStamper(w.t, w.clock)
	w.believes.Trust = s.trust
	return s
}

// calendar is an OpenTimestamps calendar on a real port. It confirms each digest in its own block,
// whose Merkle root is the digest's hash.
type calendar struct {
	*anchor.Calendars
	url string

	mu        sync.Mutex
	height    int            // height of the first block; 0: none yet
	heights   map[string]int // heights of the blocks, by what they confirm
	submitted int
	headers   map[int][80]byte
}

func newCalendar(t *testing.T) *calendar {
	t.Helper()
	c := &calendar{headers: make(map[int][80]byte), heights: make(map[string]int)}
	routes := http.NewServeMux()
	routes.HandleFunc("POST /digest", func(answer http.ResponseWriter, _ *http.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.submitted++
		_, _ = answer.Write(attestation("\x83\xdf\xe3\x0d\x2e\xf9\x0c\x8e", counted(c.url)))
	})
	routes.HandleFunc("GET /timestamp/{commitment}", func(answer http.ResponseWriter, r *http.Request) {
		commitment, _ := hex.DecodeString(r.PathValue("commitment"))
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.height == 0 {
			answer.WriteHeader(http.StatusNotFound)
			return
		}
		height, ok := c.heights[string(commitment)]
		if !ok {
			height = c.height + len(c.heights)
			c.heights[string(commitment)] = height
		}
		c.headers[height] = mine(sha256.Sum256(commitment))
		_, _ = answer.Write(slices.Concat([]byte{0x08}, attestation("\x05\x88\x96\x0d\x73\xd7\x19\x01", binary.AppendUvarint(nil, uint64(height)))))
	})
	server := httptest.NewServer(routes)
	t.Cleanup(server.Close)
	c.url = server.URL
	var err error
	if c.Calendars, err = anchor.NewCalendars(anchor.CalendarsConfig{URLs: []string{c.url}}); err != nil {
		t.Fatal(err)
	}
	return c
}

func counted[T string | []byte](data T) []byte {
	return append(binary.AppendUvarint(nil, uint64(len(data))), data...)
}

func attestation(kind string, payload []byte) []byte {
	return slices.Concat([]byte{0}, []byte(kind), counted(payload))
}

// confirm puts everything into blocks, from a height on.
func (c *calendar) confirm(height int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.height = height
}

// Header returns a block's header.
func (c *calendar) Header(_ context.Context, height int) ([80]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	header, ok := c.headers[height]
	if !ok {
		return header, errors.New("no such block")
	}
	return header, nil
}

// replace replaces a block with another one.
func (c *calendar) replace(height int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.headers[height] = mine([32]byte{1})
}

var blockTime = time.Date(2026, 12, 31, 0, 0, 0, 0, time.UTC)

// easyBits is a difficulty that every second header meets by chance.
const easyBits = 0x207fffff

// mine tries nonces until the header has enough work.
func mine(root [32]byte) [80]byte {
	var header [80]byte
	copy(header[36:], root[:])
	binary.LittleEndian.PutUint32(header[68:], uint32(blockTime.Unix()))
	binary.LittleEndian.PutUint32(header[72:], easyBits)
	for nonce := range uint32(1 << 10) {
		binary.LittleEndian.PutUint32(header[76:], nonce)
		first := sha256.Sum256(header[:])
		if hash := sha256.Sum256(first[:]); hash[31] < 0x7f {
			return header
		}
	}
	panic("no nonce meets an easy difficulty")
}

// bitcoin accepts easy blocks of a source.
func bitcoin(clock *servicetest.Clock, source anchor.HeaderSource) anchor.Bitcoin {
	return anchor.Bitcoin{Headers: source, Now: clock.Now, Limit: func(int) *big.Int {
		return new(big.Int).Lsh(big.NewInt(0x7fffff), 8*(0x20-3))
	}}
}
