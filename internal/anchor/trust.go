package anchor

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
)

const (
	maxTrustBytes        = 1 << 20
	maxTrustCertificates = 512
)

// Trust is the set of trusted certificates: roots, and the intermediate and signing certificates of
// authorities whose tokens do not include them.
type Trust struct {
	roots        *x509.CertPool
	certificates []*x509.Certificate // all of them, including the roots
}

// ParseTrust parses certificates in PEM. Self-issued ones are the roots, and there must be at least
// one. The others only help to build a chain to a root.
func ParseTrust(text []byte) (*Trust, error) {
	if len(text) > maxTrustBytes {
		return nil, fmt.Errorf("the file of timestamp roots is longer than %d bytes: keep only the authority's own certificates", maxTrustBytes)
	}
	trust := &Trust{roots: x509.NewCertPool()}
	rooted := false
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("the file of timestamp roots holds a block %q: only certificates belong there", block.Type)
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("read certificate %d of the timestamp roots: %w", len(trust.certificates)+1, err)
		}
		trust.certificates = append(trust.certificates, certificate)
		if len(trust.certificates) > maxTrustCertificates {
			return nil, fmt.Errorf("the file of timestamp roots holds more than %d certificates: keep only the authority's own", maxTrustCertificates)
		}
		if bytes.Equal(certificate.RawSubject, certificate.RawIssuer) {
			trust.roots.AddCert(certificate)
			rooted = true
		}
	}
	if !rooted {
		return nil, errors.New("the file of timestamp roots holds no root certificate: add the self-signed one at the top of the authority's chain, in PEM")
	}
	return trust, nil
}

func (t *Trust) knows(certificate *x509.Certificate) bool {
	return slices.ContainsFunc(t.certificates, certificate.Equal)
}
