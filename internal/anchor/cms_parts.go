package anchor

import (
	"bytes"
	"crypto"
	_ "crypto/sha1"   //nolint:gosec // identifies a certificate in older tokens; see readCertificateHash
	_ "crypto/sha256" // registers the hashes
	_ "crypto/sha512"
	"crypto/x509"
	encoding "encoding/asn1"
	"errors"

	"golang.org/x/crypto/cryptobyte"
	"golang.org/x/crypto/cryptobyte/asn1"
)

const maxAttributes = 32

var digestAlgorithms = map[string]crypto.Hash{
	"2.16.840.1.101.3.4.2.1": crypto.SHA256,
	"2.16.840.1.101.3.4.2.2": crypto.SHA384,
	"2.16.840.1.101.3.4.2.3": crypto.SHA512,
}

type signatureScheme struct {
	oid    string
	digest crypto.Hash
}

var signatureAlgorithms = map[signatureScheme]x509.SignatureAlgorithm{
	{"1.2.840.113549.1.1.1", crypto.SHA256}:  x509.SHA256WithRSA,
	{"1.2.840.113549.1.1.1", crypto.SHA384}:  x509.SHA384WithRSA,
	{"1.2.840.113549.1.1.1", crypto.SHA512}:  x509.SHA512WithRSA,
	{"1.2.840.113549.1.1.11", crypto.SHA256}: x509.SHA256WithRSA,
	{"1.2.840.113549.1.1.12", crypto.SHA384}: x509.SHA384WithRSA,
	{"1.2.840.113549.1.1.13", crypto.SHA512}: x509.SHA512WithRSA,
	{"1.2.840.10045.4.3.2", crypto.SHA256}:   x509.ECDSAWithSHA256,
	{"1.2.840.10045.4.3.3", crypto.SHA384}:   x509.ECDSAWithSHA384,
	{"1.2.840.10045.4.3.4", crypto.SHA512}:   x509.ECDSAWithSHA512,
	{"1.3.101.112", crypto.SHA512}:           x509.PureEd25519,
}

// Types of the attributes that RFC 3161 and RFC 5816 require.
const (
	oidContentType          = "1.2.840.113549.1.9.3"
	oidMessageDigest        = "1.2.840.113549.1.9.4"
	oidSigningCertificate   = "1.2.840.113549.1.9.16.2.12"
	oidSigningCertificateV2 = "1.2.840.113549.1.9.16.2.47"
)

// attributes are the relevant signed attributes.
type attributes struct {
	messageDigest []byte
	certificates  []certificateHash
}

// certificateHash binds the signature to a certificate, not just to its key.
type certificateHash struct {
	hash crypto.Hash
	sum  []byte
}

// names says whether every hash in the attributes is the certificate's.
func (a *attributes) names(certificate *x509.Certificate) bool {
	for _, named := range a.certificates {
		if !bytes.Equal(sumWith(named.hash, certificate.Raw), named.sum) {
			return false
		}
	}
	return true
}

var errAttributes = errors.New("the token's signed attributes are not those of a timestamp")

func parseAttributes(set cryptobyte.String) (attributes, error) {
	values, err := readAttributes(set)
	if err != nil {
		return attributes{}, err
	}
	kind, digest := values[oidContentType], values[oidMessageDigest]
	var parsed attributes
	var sum cryptobyte.String
	if !readOID(&kind, oidTimestampInfo) || !kind.Empty() ||
		!digest.ReadASN1(&sum, asn1.OCTET_STRING) || !digest.Empty() {
		return attributes{}, errAttributes
	}
	parsed.messageDigest = sum
	for _, oid := range []string{oidSigningCertificate, oidSigningCertificateV2} {
		value, present := values[oid]
		if !present {
			continue
		}
		hash, ok := readCertificateHash(value, oid == oidSigningCertificateV2)
		if !ok {
			return attributes{}, errAttributes
		}
		parsed.certificates = append(parsed.certificates, hash)
	}
	if len(parsed.certificates) == 0 {
		return attributes{}, errors.New("the token does not say which certificate signed it")
	}
	return parsed, nil
}

// readAttributes returns the single value of each attribute by its type.
func readAttributes(set cryptobyte.String) (map[string]cryptobyte.String, error) {
	var list cryptobyte.String
	if !set.ReadASN1(&list, asn1.SET) || !set.Empty() {
		return nil, errAttributes
	}
	values := map[string]cryptobyte.String{}
	for !list.Empty() {
		var attribute, value cryptobyte.String
		var kind encoding.ObjectIdentifier
		if len(values) == maxAttributes || !list.ReadASN1(&attribute, asn1.SEQUENCE) ||
			!attribute.ReadASN1ObjectIdentifier(&kind) ||
			!attribute.ReadASN1(&value, asn1.SET) || !attribute.Empty() {
			return nil, errAttributes
		}
		if _, twice := values[kind.String()]; twice {
			return nil, errAttributes
		}
		values[kind.String()] = value
	}
	return values, nil
}

// readCertificateHash reads the first entry of a signing-certificate attribute, which is that of
// the signer. Version 1 always uses SHA-1, which is still good enough here: it only selects a
// certificate that must be trusted on its own. Version 2 names its hash, or uses SHA-256.
func readCertificateHash(value cryptobyte.String, second bool) (certificateHash, bool) {
	var body, list, entry, sum cryptobyte.String
	if !value.ReadASN1(&body, asn1.SEQUENCE) || !value.Empty() ||
		!body.ReadASN1(&list, asn1.SEQUENCE) || !list.ReadASN1(&entry, asn1.SEQUENCE) {
		return certificateHash{}, false
	}
	hash, known := crypto.SHA1, true
	if second {
		hash = crypto.SHA256
	}
	if second && entry.PeekASN1Tag(asn1.SEQUENCE) {
		hash, known = readDigest(&entry)
	}
	if !known || !entry.ReadASN1(&sum, asn1.OCTET_STRING) {
		return certificateHash{}, false
	}
	return certificateHash{hash, sum}, true
}

func sumWith(digest crypto.Hash, data []byte) []byte {
	hash := digest.New()
	_, _ = hash.Write(data) // a hash never fails
	return hash.Sum(nil)
}

func readOID(input *cryptobyte.String, wanted encoding.ObjectIdentifier) bool {
	var found encoding.ObjectIdentifier
	return input.ReadASN1ObjectIdentifier(&found) && found.Equal(wanted)
}

func readVersion(input *cryptobyte.String, wanted int) bool {
	var found int
	return input.ReadASN1Integer(&found) && found == wanted
}

// readAlgorithm reads an algorithm identifier whose parameters are absent or NULL, as for all
// supported algorithms.
func readAlgorithm(input *cryptobyte.String) (string, bool) {
	var body, null cryptobyte.String
	var oid encoding.ObjectIdentifier
	if !input.ReadASN1(&body, asn1.SEQUENCE) || !body.ReadASN1ObjectIdentifier(&oid) ||
		!body.ReadOptionalASN1(&null, nil, asn1.NULL) || !null.Empty() || !body.Empty() {
		return "", false
	}
	return oid.String(), true
}

func readDigest(input *cryptobyte.String) (crypto.Hash, bool) {
	oid, ok := readAlgorithm(input)
	digest, known := digestAlgorithms[oid]
	return digest, ok && known
}

func readSignatureAlgorithm(input *cryptobyte.String, digest crypto.Hash) (x509.SignatureAlgorithm, bool) {
	oid, ok := readAlgorithm(input)
	algorithm, known := signatureAlgorithms[signatureScheme{oid, digest}]
	return algorithm, ok && known
}
