package anchor

import (
	"bytes"
	"crypto"
	"crypto/x509"
	encoding "encoding/asn1"
	"errors"
	"math/big"

	"golang.org/x/crypto/cryptobyte"
	"golang.org/x/crypto/cryptobyte/asn1"
)

const maxEmbeddedCertificates = 16

var (
	tag0 = asn1.Tag(0).ContextSpecific().Constructed()
	tag1 = asn1.Tag(1).ContextSpecific().Constructed()

	oidSignedData    = encoding.ObjectIdentifier{1, 2, 840, 113549, 1, 7, 2}
	oidSHA256        = encoding.ObjectIdentifier{2, 16, 840, 1, 101, 3, 4, 2, 1}
	oidTimestampInfo = encoding.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 16, 1, 4}
)

// signedData is a CMS message (RFC 5652) in the only form that a token needs: one signer,
// identified by issuer and serial number, with signed attributes. Anything else that CMS permits
// and the signature would not cover is refused, so that nothing that a token attests can be changed.
type signedData struct {
	content      []byte
	certificates []*x509.Certificate
	signer       signerInfo
}

type signerInfo struct {
	issuer     []byte
	serial     *big.Int
	digest     crypto.Hash
	algorithm  x509.SignatureAlgorithm
	attributes attributes
	signed     []byte // the attributes in the signed encoding
	signature  []byte
}

var errSignedData = errors.New("the token is not a CMS message in DER with one signer and nothing unsigned")

func parseSignedData(token []byte) (*signedData, error) {
	input := cryptobyte.String(token)
	var info, outer, body cryptobyte.String
	if !input.ReadASN1(&info, asn1.SEQUENCE) || !input.Empty() ||
		!readOID(&info, oidSignedData) || !info.ReadASN1(&outer, tag0) || !info.Empty() ||
		!outer.ReadASN1(&body, asn1.SEQUENCE) || !outer.Empty() {
		return nil, errSignedData
	}
	var digests, content, signers cryptobyte.String
	var certificates cryptobyte.String
	var embedded bool
	if !readVersion(&body, 3) || !body.ReadASN1(&digests, asn1.SET) ||
		!body.ReadASN1(&content, asn1.SEQUENCE) ||
		!body.ReadOptionalASN1(&certificates, &embedded, tag0) ||
		!body.ReadASN1(&signers, asn1.SET) || !body.Empty() {
		return nil, errSignedData
	}
	message := &signedData{}
	var err error
	if message.content, err = parseContent(content); err != nil {
		return nil, err
	}
	if message.certificates, err = parseCertificates(certificates); err != nil {
		return nil, err
	}
	if message.signer, err = parseSigner(signers); err != nil {
		return nil, err
	}
	if digest, ok := readDigest(&digests); !ok || !digests.Empty() || digest != message.signer.digest {
		return nil, errSignedData
	}
	return message, nil
}

func parseContent(input cryptobyte.String) ([]byte, error) {
	var outer, content cryptobyte.String
	if !readOID(&input, oidTimestampInfo) {
		return nil, errors.New("the CMS message contains no timestamp")
	}
	if !input.ReadASN1(&outer, tag0) || !input.Empty() ||
		!outer.ReadASN1(&content, asn1.OCTET_STRING) || !outer.Empty() {
		return nil, errSignedData
	}
	return content, nil
}

func parseCertificates(input cryptobyte.String) ([]*x509.Certificate, error) {
	var certificates []*x509.Certificate
	for !input.Empty() {
		var element cryptobyte.String
		if len(certificates) == maxEmbeddedCertificates {
			return nil, errors.New("the token embeds too many certificates")
		}
		if !input.ReadASN1Element(&element, asn1.SEQUENCE) {
			return nil, errSignedData
		}
		certificate, err := x509.ParseCertificate(element)
		if err != nil {
			return nil, err
		}
		certificates = append(certificates, certificate)
	}
	return certificates, nil
}

func parseSigner(input cryptobyte.String) (signerInfo, error) {
	signer := signerInfo{serial: new(big.Int)}
	var body, id, issuer, signed, signature cryptobyte.String
	if !input.ReadASN1(&body, asn1.SEQUENCE) || !input.Empty() ||
		!readVersion(&body, 1) || !body.ReadASN1(&id, asn1.SEQUENCE) ||
		!id.ReadASN1Element(&issuer, asn1.SEQUENCE) || !id.ReadASN1Integer(signer.serial) || !id.Empty() {
		return signer, errSignedData
	}
	var known bool
	if signer.digest, known = readDigest(&body); !known {
		return signer, errors.New("the token's digest algorithm is not SHA-256, SHA-384 or SHA-512")
	}
	if !body.ReadASN1Element(&signed, tag0) {
		return signer, errSignedData
	}
	if signer.algorithm, known = readSignatureAlgorithm(&body, signer.digest); !known {
		return signer, errors.New("the token's signature algorithm is not one of RSA (PKCS #1), ECDSA and Ed25519 with its digest algorithm")
	}
	if !body.ReadASN1(&signature, asn1.OCTET_STRING) || !body.Empty() {
		return signer, errSignedData
	}
	signer.issuer, signer.signature = issuer, signature
	// The signature covers the attributes as a SET, but the message tags them [0].
	signer.signed = append([]byte{byte(asn1.SET)}, signed[1:]...)
	var err error
	signer.attributes, err = parseAttributes(signer.signed)
	return signer, err
}

// verify checks that the certificate's key signed the content, and that it is the certificate that
// the signer named.
func (d *signedData) verify(certificate *x509.Certificate) error {
	if !bytes.Equal(sumWith(d.signer.digest, d.content), d.signer.attributes.messageDigest) {
		return errors.New("the signed digest is not the content's")
	}
	if err := certificate.CheckSignature(d.signer.algorithm, d.signer.signed, d.signer.signature); err != nil {
		return err
	}
	if !d.signer.attributes.names(certificate) {
		return errors.New("the token was signed in the name of another certificate")
	}
	return nil
}

// names reports whether the signer refers to this certificate.
func (s *signerInfo) names(certificate *x509.Certificate) bool {
	return bytes.Equal(certificate.RawIssuer, s.issuer) && certificate.SerialNumber.Cmp(s.serial) == 0
}
