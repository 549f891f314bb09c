package anchor_test

import (
	"bytes"
	"crypto"
	"crypto/sha512"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"math/big"
	"testing"
	"time"

	"github.com/digitorus/timestamp"
	"github.com/sigstore/timestamp-authority/v2/pkg/verification"

	"countersign/internal/anchor"
	"countersign/internal/anchor/anchortest"
)

const artifact = "what was stamped"

// A token verifies only if its certificate was valid at its time, is only for timestamping, and
// leads to a trusted root.
func TestVerifyToken(t *testing.T) {
	t.Parallel()
	root := newIdentity(t, certificate{name: "Root", authority: true}, nil)
	middle := newIdentity(t, certificate{name: "Middle", authority: true, serial: 7}, root)
	stray := newIdentity(t, certificate{name: "Stray", authority: true, serial: 8}, nil)
	cross := newIdentity(t, certificate{name: "Root", authority: true, serial: 9, key: root.key}, stray)
	changed := func(change func(wanted *certificate)) *identity {
		wanted := signerCertificate()
		change(&wanted)
		return newIdentity(t, wanted, root)
	}
	signer := changed(func(*certificate) {})
	twin := changed(func(c *certificate) { c.key, c.till = signer.key, validTill.AddDate(1, 0, 0) })
	below := newIdentity(t, signerCertificate(), middle)
	lapsed := newIdentity(t, certificate{name: "Lapsed", authority: true, till: stampTime.AddDate(0, 0, -1)}, root)
	narrow := newIdentity(t, certificate{name: "Narrow", authority: true, extended: extendedUsage(false, codeSigning)}, root)

	embed := func(others ...*identity) func(*timestamp.Timestamp) {
		return func(stamp *timestamp.Timestamp) {
			for _, other := range others {
				stamp.Certificates = append(stamp.Certificates, other.Certificate)
			}
		}
	}
	bare := func(stamp *timestamp.Timestamp) { stamp.AddTSACertificate = false }
	tests := map[string]struct {
		signer *identity
		change func(stamp *timestamp.Timestamp)
		roots  []*identity
		want   anchor.Reason
		alone  string // why sigstore's verifier, the referee, disagrees
	}{
		"good":                    {signer: signer},
		"valid then, expired now": {signer: changed(func(c *certificate) { c.till = stampTime.AddDate(0, 0, 1) }), alone: "the signing library writes today's date beside the token's, and it believes that"},
		"expired at the time":     {signer: changed(func(c *certificate) { c.till = stampTime.AddDate(0, 0, -1) }), want: anchor.ExpiredAtTime},
		"not valid yet":           {signer: changed(func(c *certificate) { c.from = stampTime.AddDate(0, 0, 1) }), want: anchor.ExpiredAtTime},
		"issuer had expired":      {signer: newIdentity(t, signerCertificate(), lapsed), change: embed(lapsed), want: anchor.ExpiredAtTime},

		"for code signing":           {signer: changed(func(c *certificate) { c.extended = extendedUsage(true, codeSigning) }), want: anchor.Untrusted},
		"for timestamps and more":    {signer: changed(func(c *certificate) { c.extended = extendedUsage(true, timestamping, codeSigning) }), want: anchor.Untrusted},
		"for timestamps and unknown": {signer: changed(func(c *certificate) { c.extended = extendedUsage(true, timestamping, unknownUsage) }), want: anchor.Untrusted},
		"for timestamps, ignorable":  {signer: changed(func(c *certificate) { c.extended = extendedUsage(false, timestamping) }), want: anchor.Untrusted},
		"for anything":               {signer: changed(func(c *certificate) { c.extended = nil }), want: anchor.Untrusted},
		"issuer for code signing":    {signer: newIdentity(t, signerCertificate(), narrow), change: embed(narrow), want: anchor.Untrusted},
		"signed by an issuer":        {signer: changed(func(c *certificate) { c.authority = true }), want: anchor.Untrusted},
		"for agreeing on keys":       {signer: changed(func(c *certificate) { c.usage = x509.KeyUsageKeyAgreement }), want: anchor.Untrusted, alone: "it does not look at the key usage"},
		"another root":               {signer: signer, roots: []*identity{stray}, want: anchor.UntrustedRoot},
		"issuer embedded":            {signer: below, change: embed(middle)},
		"issuer and root embedded":   {signer: below, change: embed(middle, root)},
		"issuer configured":          {signer: below, roots: []*identity{root, middle}},
		"issuer missing":             {signer: below, want: anchor.UntrustedRoot},
		"nothing embedded":           {signer: signer, change: bare, want: anchor.Untrusted},
		"all configured":             {signer: below, change: bare, roots: []*identity{root, middle, below}},
		"signer without its issuer":  {signer: below, change: bare, roots: []*identity{root, below}, want: anchor.UntrustedRoot},
		"another of the same number": {signer: signer, change: bare, roots: []*identity{root, twin}, want: anchor.BadSignature, alone: "it does not compare the certificate with the signed hash of it"},
		"a stray certificate":        {signer: signer, change: embed(cross), want: anchor.Untrusted, alone: "it lets anything be embedded"},
		"a configured stray":         {signer: signer, change: embed(cross), roots: []*identity{root, cross}},
		"a stray with a root":        {signer: signer, change: embed(cross), roots: []*identity{root, stray}},
		"another digest":             {signer: signer, change: func(s *timestamp.Timestamp) { s.HashedMessage = bytes.Repeat([]byte{1}, 32) }, want: anchor.WrongImprint},
		"another hash":               {signer: signer, change: sha512Imprint, want: anchor.WrongImprint, alone: "it takes any strong hash of the data"},
		"a huge nonce":               {signer: signer, change: func(s *timestamp.Timestamp) { s.Nonce = new(big.Int).Lsh(big.NewInt(1), 64) }},
		"an unknown extension":       {signer: signer, change: extension(false)},
		"a critical extension":       {signer: signer, change: extension(true), want: anchor.Malformed, alone: "it does not look at extensions"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			roots := test.roots
			if roots == nil {
				roots = []*identity{root}
			}
			digest := digestOf(artifact)
			response := test.signer.stamp(t, timestamp.Timestamp{HashAlgorithm: crypto.SHA256, HashedMessage: digest[:], AddTSACertificate: true}, test.change)
			stamped, err := anchor.VerifyToken(tokenIn(t, response), digest, parseTrust(t, bundle(roots)), 0)
			if got := anchor.ReasonOf(err); got != test.want || (err == nil) != (test.want == "") {
				t.Fatalf("got the reason %q (%v), want %q", got, err, test.want)
			}
			if err == nil && (!stamped.Time.Equal(stampTime) || stamped.Policy != "1.2.3.4" || stamped.Authority != "Signer") {
				t.Errorf("got %+v", stamped)
			}
			referee := referee(response, test.signer, roots)
			if agrees := (referee == nil) == (err == nil); agrees == (test.alone != "") {
				t.Errorf("sigstore says %v, this package %v (expected difference: %q)", referee, err, test.alone)
			}
		})
	}
}

// A token shows that its digest existed by its time and the accuracy that it states, in whichever of the
// three units.
func TestTokenAccuracy(t *testing.T) {
	t.Parallel()
	signer := newIdentity(t, signerCertificate(), nil)
	digest := digestOf(artifact)
	trust := parseTrust(t, bundle([]*identity{signer}))
	for _, accuracy := range []time.Duration{0, time.Second, 90 * time.Second, 500 * time.Millisecond, 7 * time.Microsecond, 2*time.Hour + 3*time.Millisecond + 4*time.Microsecond} {
		response := signer.stamp(t, timestamp.Timestamp{HashAlgorithm: crypto.SHA256, HashedMessage: digest[:], AddTSACertificate: true},
			func(stamp *timestamp.Timestamp) { stamp.Accuracy = accuracy })
		stamped, err := anchor.VerifyToken(tokenIn(t, response), digest, trust, 0)
		if err != nil || !stamped.Time.Equal(stampTime) || !stamped.By.Equal(stampTime.Add(accuracy)) {
			t.Errorf("accuracy %v: from %v, by %v, %v", accuracy, stamped.Time, stamped.By, err)
		}
	}
}

func bundle(identities []*identity) []byte {
	var text []byte
	for _, one := range identities {
		text = append(text, one.pem()...)
	}
	return text
}

func sha512Imprint(stamp *timestamp.Timestamp) {
	sum := sha512.Sum512([]byte(artifact))
	stamp.HashAlgorithm, stamp.HashedMessage = crypto.SHA512, sum[:]
}

func extension(critical bool) func(stamp *timestamp.Timestamp) {
	return func(stamp *timestamp.Timestamp) {
		stamp.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 3, 9, 9}, Critical: critical, Value: []byte{5, 0}}}
	}
}

// referee returns the result of sigstore's verifier. It needs the data instead of its digest, which
// is why it is only the referee.
func referee(response []byte, signer *identity, configured []*identity) error {
	var options verification.VerifyOpts
	for _, one := range configured {
		switch {
		case bytes.Equal(one.RawSubject, one.RawIssuer):
			options.Roots = append(options.Roots, one.Certificate)
		case one.IsCA:
			options.Intermediates = append(options.Intermediates, one.Certificate)
		case one.SerialNumber.Cmp(signer.SerialNumber) == 0:
			options.TSACertificate = one.Certificate
		}
	}
	_, err := verification.VerifyTimestampResponse(response, bytes.NewReader([]byte(artifact)), options)
	return err
}

// A token with any byte changed, or cut off anywhere, does not verify.
func TestNoBitOfATokenCanChange(t *testing.T) {
	t.Parallel()
	digest := digestOf("bits")
	everyBit := func(int) []byte { return []byte{1, 2, 4, 8, 16, 32, 64, 128, 0xff} }
	oneBit := func(at int) []byte { return []byte{1 << (at % 8), 0xff} } // fewer flips for the longer token, to finish in seconds
	tests := map[string]struct {
		start func(t *testing.T) standing
		flips func(at int) []byte
	}{
		"another library with its chain": {func(t *testing.T) standing { return startAuthority(t, anchortest.Options{IncludeChain: true}) }, oneBit},
		"openssl":                        {func(t *testing.T) standing { return startOpenSSL(t, "30", ecKeys...).standing }, everyBit},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			real := test.start(t)
			trust := parseTrust(t, real.roots)
			token, err := newAuthority(t, anchor.AuthorityConfig{URL: real.url, Roots: real.roots}).Stamp(t.Context(), digest, nonce)
			if err != nil {
				t.Fatal(err)
			}
			for at := range token {
				for _, flip := range test.flips(at) {
					changed := bytes.Clone(token)
					changed[at] ^= flip
					if _, err := anchor.VerifyToken(changed, digest, trust, 0); anchor.ReasonOf(err) == "" {
						t.Fatalf("byte %d of %d, changed by %#x: got %v, want a refusal", at, len(token), flip, err)
					}
				}
				if _, err := anchor.VerifyToken(token[:at], digest, trust, 0); anchor.ReasonOf(err) != anchor.Malformed {
					t.Fatalf("cut off at byte %d: got %v, want it malformed", at, err)
				}
			}
		})
	}
}

// Of all mutations of a valid token, only the token itself is valid.
func FuzzToken(f *testing.F) {
	root := newIdentity(f, certificate{name: "Root", authority: true}, nil)
	signer := newIdentity(f, signerCertificate(), root)
	digest := digestOf(artifact)
	good := tokenIn(f, signer.stamp(f, timestamp.Timestamp{HashAlgorithm: crypto.SHA256, HashedMessage: digest[:], AddTSACertificate: true}, nil))
	trust := parseTrust(f, root.pem())
	f.Add(good)
	f.Add(good[:len(good)/2])
	f.Fuzz(func(t *testing.T, data []byte) {
		_, err := anchor.VerifyToken(data, digest, trust, 0)
		if same := bytes.Equal(data, good); same != (err == nil) || same != (anchor.ReasonOf(err) == "") {
			t.Errorf("the token itself: %v; got %v", same, err)
		}
	})
}

// Without root certificates no token is trusted.
func TestNoRootsBelieveNobody(t *testing.T) {
	t.Parallel()
	for name, trust := range map[string]*anchor.Trust{"nil": nil, "zero": {}} {
		if _, err := anchor.VerifyToken(nil, digestOf(artifact), trust, 0); anchor.ReasonOf(err) != anchor.UntrustedRoot {
			t.Errorf("%s: got %v, want it untrusted", name, err)
		}
	}
}
