// Package anchortest runs an RFC 3161 timestamp authority for tests, behind a real socket. Its
// answers are made by an independent library, not by the code under test.
package anchortest

import (
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/digitorus/timestamp"
)

// The authority's name and policy.
const (
	Name   = "Test TSA Timestamping"
	Policy = "1.3.6.1.4.1.57264.2"
)

// Options are the differences between authorities.
type Options struct {
	IncludeChain bool             // answers include all certificates except the root
	Status       int              // HTTP status of an answer; 0 means 200
	Now          func() time.Time // the authority's clock; nil means time.Now
	Accuracy     time.Duration    // by how much it may be wrong; 0 means a second
}

// Authority runs until its test ends.
type Authority struct {
	URL   string
	Roots []byte // PEM

	options      Options
	requests     atomic.Int64
	refusal      atomic.Int64 // HTTP status of answers without a token; 0: none
	signer       *x509.Certificate
	key          crypto.Signer
	intermediate *x509.Certificate
}

// Start creates the authority's certificates, including a root and an intermediate, and serves.
func Start(t testing.TB, options Options) *Authority {
	t.Helper()
	if options.Now == nil {
		options.Now = time.Now
	}
	a := &Authority{options: options}
	root, rootKey := a.certify(t, &x509.Certificate{Subject: pkix.Name{CommonName: "Test TSA Root"}, IsCA: true, KeyUsage: x509.KeyUsageCertSign}, nil, nil)
	var intermediateKey crypto.Signer
	a.intermediate, intermediateKey = a.certify(t,
		&x509.Certificate{Subject: pkix.Name{CommonName: "Test TSA Intermediate"}, IsCA: true, KeyUsage: x509.KeyUsageCertSign}, root, rootKey)
	usage, err := asn1.Marshal([]asn1.ObjectIdentifier{{1, 3, 6, 1, 5, 5, 7, 3, 8}}) // only timeStamping
	if err != nil {
		t.Fatal(err)
	}
	a.signer, a.key = a.certify(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: Name}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtraExtensions: []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 37}, Critical: true, Value: usage}},
	}, a.intermediate, intermediateKey)
	for _, certificate := range []*x509.Certificate{a.intermediate, root} {
		a.Roots = append(a.Roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw})...)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { a.serve(t, w, r) }))
	t.Cleanup(server.Close)
	a.URL = server.URL
	return a
}

func (a *Authority) certify(t testing.TB, wanted, issuer *x509.Certificate, issuerKey crypto.Signer) (*x509.Certificate, crypto.Signer) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	wanted.SerialNumber = randomNumber(t)
	wanted.NotBefore, wanted.NotAfter = a.options.Now().Add(-time.Hour), a.options.Now().AddDate(1, 0, 0)
	wanted.BasicConstraintsValid = true
	if issuer == nil {
		issuer, issuerKey = wanted, key
	}
	der, err := x509.CreateCertificate(rand.Reader, wanted, issuer, key.Public(), issuerKey)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return certificate, key
}

func randomNumber(t testing.TB) *big.Int {
	t.Helper()
	number, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 100))
	if err != nil {
		t.Fatal(err)
	}
	return number
}

// Refuse makes the authority answer with an HTTP status and no token; 0 ends that.
func (a *Authority) Refuse(status int) { a.refusal.Store(int64(status)) }

// Requests returns the number of requests so far.
func (a *Authority) Requests() int { return int(a.requests.Load()) }

func (a *Authority) serve(t testing.TB, w http.ResponseWriter, r *http.Request) {
	a.requests.Add(1)
	if status := a.refusal.Load(); status != 0 {
		w.WriteHeader(int(status))
		return
	}
	query, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil {
		t.Errorf("timestamp authority: read the request: %v", err)
		return
	}
	request, err := timestamp.ParseRequest(query)
	if err != nil {
		http.Error(w, "not a timestamp request", http.StatusBadRequest)
		return
	}
	stamp := timestamp.Timestamp{
		HashAlgorithm: request.HashAlgorithm, HashedMessage: request.HashedMessage, Nonce: request.Nonce,
		Time: a.options.Now(), Policy: request.TSAPolicyOID, SerialNumber: randomNumber(t), Accuracy: cmp.Or(a.options.Accuracy, time.Second),
		AddTSACertificate: request.Certificates,
	}
	if stamp.Policy == nil {
		stamp.Policy = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 2} // Policy
	}
	if a.options.IncludeChain {
		stamp.Certificates = []*x509.Certificate{a.intermediate}
	}
	answer, err := stamp.CreateResponseWithOpts(a.signer, a.key, crypto.SHA256)
	if err != nil {
		t.Errorf("timestamp authority: %v", err)
		return
	}
	w.Header().Set("Content-Type", "application/timestamp-reply")
	if a.options.Status != 0 {
		w.WriteHeader(a.options.Status)
	}
	_, _ = w.Write(answer)
}
