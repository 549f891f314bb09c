package anchor_test

import (
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
	"testing"
	"time"

	"github.com/digitorus/timestamp"

	"countersign/internal/anchor"
)

// The years in which the certificates of these tests are valid, and a time in between, long past.
var (
	validFrom = time.Date(2015, 1, 1, 0, 0, 0, 0, time.UTC)
	stampTime = time.Date(2017, 6, 1, 12, 0, 0, 0, time.UTC)
	validTill = time.Date(2049, 1, 1, 0, 0, 0, 0, time.UTC)
)

// certificate describes how a certificate differs from that of an authority.
type certificate struct {
	name      string
	authority bool // may issue others
	from      time.Time
	till      time.Time
	serial    int64
	key       crypto.Signer
	usage     x509.KeyUsage
	extended  []pkix.Extension
}

type identity struct {
	*x509.Certificate
	key crypto.Signer
}

func extendedUsage(critical bool, usages ...asn1.ObjectIdentifier) []pkix.Extension {
	value, err := asn1.Marshal(usages)
	if err != nil {
		panic(err)
	}
	return []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 37}, Critical: critical, Value: value}}
}

var (
	timestamping = asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 3, 8}
	codeSigning  = asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 3, 3}
	unknownUsage = asn1.ObjectIdentifier{1, 3, 9, 9}
)

func signerCertificate() certificate {
	return certificate{name: "Signer", serial: 2, usage: x509.KeyUsageDigitalSignature, extended: extendedUsage(true, timestamping)}
}

func newIdentity(t testing.TB, wanted certificate, issuer *identity) *identity {
	t.Helper()
	made := &identity{key: wanted.key}
	if made.key == nil {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		made.key = key
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(max(wanted.serial, 1)), Subject: pkix.Name{CommonName: wanted.name},
		NotBefore: validFrom, NotAfter: validTill,
		KeyUsage: wanted.usage, ExtraExtensions: wanted.extended,
		BasicConstraintsValid: true, IsCA: wanted.authority,
	}
	if wanted.authority {
		template.KeyUsage |= x509.KeyUsageCertSign
	}
	if !wanted.from.IsZero() {
		template.NotBefore = wanted.from
	}
	if !wanted.till.IsZero() {
		template.NotAfter = wanted.till
	}
	parent, parentKey := template, made.key
	if issuer != nil {
		parent, parentKey = issuer.Certificate, issuer.key
	}
	data, err := x509.CreateCertificate(rand.Reader, template, parent, made.key.Public(), parentKey)
	if err != nil {
		t.Fatal(err)
	}
	if made.Certificate, err = x509.ParseCertificate(data); err != nil {
		t.Fatal(err)
	}
	return made
}

func (i *identity) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.Raw})
}

func parseTrust(t testing.TB, text []byte) *anchor.Trust {
	t.Helper()
	trust, err := anchor.ParseTrust(text)
	if err != nil {
		t.Fatal(err)
	}
	return trust
}

// answer is the identity's response to a request, made with an independent library at stampTime.
func (i *identity) answer(t testing.TB, query io.Reader, change func(stamp *timestamp.Timestamp)) []byte {
	data, err := io.ReadAll(query)
	if err != nil {
		t.Error(err)
	}
	request, err := timestamp.ParseRequest(data)
	if err != nil {
		t.Error(err)
		return nil
	}
	return i.stamp(t, timestamp.Timestamp{HashAlgorithm: request.HashAlgorithm, HashedMessage: request.HashedMessage,
		Nonce: request.Nonce, AddTSACertificate: request.Certificates}, change)
}

// stamp returns a whole response with its token.
func (i *identity) stamp(t testing.TB, stamp timestamp.Timestamp, change func(stamp *timestamp.Timestamp)) []byte {
	t.Helper()
	stamp.Time, stamp.Policy = stampTime, asn1.ObjectIdentifier{1, 2, 3, 4}
	if change != nil {
		change(&stamp)
	}
	response, err := stamp.CreateResponseWithOpts(i.Certificate, i.key, crypto.SHA256)
	if err != nil {
		t.Error(err)
	}
	return response
}

// tokenIn extracts the token from a response.
func tokenIn(t testing.TB, response []byte) []byte {
	t.Helper()
	var reply struct{ Status, Token asn1.RawValue }
	if _, err := asn1.Unmarshal(response, &reply); err != nil {
		t.Fatal(err)
	}
	return reply.Token.FullBytes
}
