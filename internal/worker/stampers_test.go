package worker_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/binary"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/digitorus/timestamp"

	"countersign/internal/anchor"
	"countersign/internal/servicetest"
)

// stamper is an RFC 3161 authority on a real port, made with a library other than the one under
// test.
type stamper struct {
	*anchor.Authority
	trust  *anchor.Trust
	mu     sync.Mutex
	status int // HTTP status instead of a token; 0: a token
	asked  int
}

func newStamper(t *testing.T, clock *servicetest.Clock) *stamper {
	t.Helper()
	certificate, key := timestampCertificate(t, clock.Now())
	s := &stamper{}
	server := httptest.NewServer(http.HandlerFunc(func(answer http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		status := s.status
		s.asked++
		s.mu.Unlock()
		if status != 0 {
			answer.WriteHeader(status)
			return
		}
		data, _ := io.ReadAll(r.Body)
		request, err := timestamp.ParseRequest(data)
		if err != nil {
			t.Error(err)
			return
		}
		stamp := timestamp.Timestamp{
			HashAlgorithm: request.HashAlgorithm, HashedMessage: request.HashedMessage, Nonce: request.Nonce,
			AddTSACertificate: request.Certificates, Time: clock.Now(), Policy: asn1.ObjectIdentifier{1, 2, 3, 4},
		}
		reply, err := stamp.CreateResponseWithOpts(certificate, key, crypto.SHA256)
		if err != nil {
			t.Error(err)
		}
		answer.Header().Set("Content-Type", "application/timestamp-reply")
		_, _ = answer.Write(reply)
	}))
	t.Cleanup(server.Close)
	var err error
	roots := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw})
	if s.trust, err = anchor.ParseTrust(roots); err != nil {
		t.Fatal(err)
	}
	if s.Authority, err = anchor.NewAuthority(anchor.AuthorityConfig{URL: server.URL + "/planted-path", Roots: roots}); err != nil {
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

// respond sets the status of responses; 0 for tokens.
func (s *stamper) respond(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status = status
}

func (s *stamper) requests() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

func timestampCertificate(t *testing.T, now time.Time) (*x509.Certificate, crypto.Signer) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	usage, err := asn1.Marshal([]asn1.ObjectIdentifier{{1, 3, 6, 1, 5, 5, 7, 3, 8}})
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Authority"}, KeyUsage: x509.KeyUsageDigitalSignature,
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(1, 0, 0), BasicConstraintsValid: true,
		ExtraExtensions: []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 37}, Critical: true, Value: usage}},
	}
	data, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(data)
	if err != nil {
		t.Fatal(err)
	}
	return certificate, key
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
