package anchor

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	encoding "encoding/asn1"
	"errors"
	"slices"
	"time"
)

const maxTokenBytes = 64 << 10

// Stamped is the content of a valid token.
type Stamped struct {
	Time      time.Time // when the authority saw the digest, by its own clock
	By        time.Time // the digest existed by then: Time and the accuracy that the token states
	Serial    string    // the token's number at the authority, in hexadecimal
	Policy    string    // object identifier of its policy
	Authority string    // the name in the signing certificate
}

// VerifyToken verifies a token (RFC 3161) over a digest: the imprint, the nonce unless it is 0, the
// signature, and the certificate chain with its purpose at the token's time, so that a later expiry
// of a certificate has no effect. A token without an embedded certificate needs the signer's
// certificate in trust. Its errors have a Reason.
func VerifyToken(token []byte, digest [32]byte, trust *Trust, nonce uint64) (Stamped, error) {
	if trust == nil || trust.roots == nil {
		// Without this, crypto/x509 would use the roots of the machine.
		return Stamped{}, faultf(UntrustedRoot, "there are no timestamp roots to verify the token with")
	}
	if len(token) > maxTokenBytes {
		return Stamped{}, faultf(Malformed, "the token is longer than %d bytes", maxTokenBytes)
	}
	message, err := parseSignedData(token)
	if err != nil {
		return Stamped{}, faultf(Malformed, "read the token: %w", err)
	}
	info, err := parseTimestampInfo(message.content)
	if err != nil {
		return Stamped{}, faultf(Malformed, "read the token: %w", err)
	}
	if info.hash != crypto.SHA256 || !bytes.Equal(info.imprint, digest[:]) {
		return Stamped{}, faultf(WrongImprint, "the token is about other data")
	}
	if nonce != 0 && (info.nonce == nil || !info.nonce.IsUint64() || info.nonce.Uint64() != nonce) {
		return Stamped{}, faultf(WrongNonce, "the token answers another request")
	}
	signer, err := message.verifySigner(trust, info.time)
	if err != nil {
		return Stamped{}, err
	}
	return Stamped{Time: info.time, By: info.time.Add(info.accuracy), Serial: info.serial.Text(16), Policy: info.policy.String(), Authority: nameOf(signer)}, nil
}

func nameOf(certificate *x509.Certificate) string {
	if name := certificate.Subject.CommonName; name != "" {
		return name
	}
	return certificate.Subject.String()
}

func (d *signedData) verifySigner(trust *Trust, at time.Time) (*x509.Certificate, error) {
	candidates := slices.Concat(d.certificates, trust.certificates)
	found := slices.IndexFunc(candidates, d.signer.names)
	if found < 0 {
		return nil, faultf(Untrusted, "the token embeds no certificate of its signer: add the authority's to the file of timestamp roots")
	}
	signer := candidates[found]
	if err := d.verify(signer); err != nil {
		return nil, faultf(BadSignature, "verify the token's signature: %w", err)
	}
	chains, err := trust.chains(signer, d.certificates, at)
	if err != nil {
		return nil, err
	}
	if err := mayTimestamp(signer); err != nil {
		return nil, faultf(Untrusted, "the token's certificate is not that of a timestamp authority: %w", err)
	}
	for _, embedded := range d.certificates {
		// A certificate outside the chain is not vouched for: anyone could have put it there.
		if !onChain(chains, embedded) && !trust.knows(embedded) {
			return nil, faultf(Untrusted, "the token embeds a certificate of %q that leads to no root: add it to the file of timestamp roots if it belongs there", nameOf(embedded))
		}
	}
	return signer, nil
}

// chains returns every chain from the certificate to a root at a time.
func (t *Trust) chains(certificate *x509.Certificate, embedded []*x509.Certificate, at time.Time) ([][]*x509.Certificate, error) {
	intermediates := x509.NewCertPool()
	for _, other := range slices.Concat(embedded, t.certificates) {
		intermediates.AddCert(other)
	}
	chains, err := certificate.Verify(x509.VerifyOptions{
		Roots:         t.roots,
		Intermediates: intermediates,
		CurrentTime:   at,
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageTimeStamping},
	})
	var invalid x509.CertificateInvalidError
	if errors.As(err, &invalid) && invalid.Reason == x509.Expired {
		return nil, faultf(ExpiredAtTime, "a certificate was not valid at the token's time: %w", err)
	}
	if unknown := (x509.UnknownAuthorityError{}); err != nil && !errors.As(err, &unknown) {
		return nil, faultf(Untrusted, "the token's certificates do not allow it: %w", err)
	}
	if err != nil {
		return nil, faultf(UntrustedRoot, "the token leads to no configured root: %w", err)
	}
	return chains, nil
}

func onChain(chains [][]*x509.Certificate, certificate *x509.Certificate) bool {
	return slices.ContainsFunc(chains, func(chain []*x509.Certificate) bool {
		return slices.ContainsFunc(chain, certificate.Equal)
	})
}

var oidExtendedKeyUsage = encoding.ObjectIdentifier{2, 5, 29, 37}

// mayTimestamp requires what RFC 3161, 2.3 says: the certificate is only for timestamping, and
// marked so that software that does not know this purpose must not use it.
func mayTimestamp(certificate *x509.Certificate) error {
	critical := slices.ContainsFunc(certificate.Extensions, func(extension pkix.Extension) bool {
		return extension.Critical && extension.Id.Equal(oidExtendedKeyUsage)
	})
	only := slices.Equal(certificate.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageTimeStamping}) &&
		len(certificate.UnknownExtKeyUsage) == 0
	signs := certificate.KeyUsage == 0 ||
		certificate.KeyUsage&(x509.KeyUsageDigitalSignature|x509.KeyUsageContentCommitment) != 0
	switch {
	case certificate.IsCA:
		return errors.New("it belongs to a certificate authority")
	case !only || !critical:
		return errors.New("its extended key usage is not timestamping alone, marked critical")
	case !signs:
		return errors.New("its key usage is not signing")
	}
	return nil
}
