package ledger

import (
	"crypto/ed25519"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"math/big"
	"slices"
	"strings"
	"testing"

	"github.com/gowebpki/jcs"
)

// An approval's signature is Ed25519 over the canonical JSON of its decision record: it is valid
// for that record and that key only.
func TestApprovalsAreSignedWithEd25519(t *testing.T) {
	t.Parallel()
	private := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	public := private.Public().(ed25519.PublicKey)
	key := SigningKeyID{NewRandomID([16]byte{5})}
	a := waiting()
	a.settle(ApprovalApproved, &ann, "seen", firstMoment)
	a.Sign(key, private)
	record := a.DecisionRecord()
	if canonical, err := jcs.Transform(record); err != nil || string(canonical) != string(record) {
		t.Errorf("the decision record is not in canonical form (%v): %s", err, record)
	}
	if a.SigningKey != key || !ed25519.Verify(public, record, a.Signature) || !a.SignedBy(public) {
		t.Error("the signature does not hold for the record")
	}
	other := ed25519.NewKeyFromSeed([]byte("another seed of thirty-two bytes")).Public().(ed25519.PublicKey)
	if a.SignedBy(other) || a.SignedBy(nil) {
		t.Error("the signature holds for another key")
	}
	for name, change := range map[string]func(*Approval){
		"the decision": func(a *Approval) { a.Status = ApprovalDenied },
		"the reviewer": func(a *Approval) { a.Reviewer = &bob },
		"the payload":  func(a *Approval) { a.PayloadSHA256 = "other" },
		"the moment":   func(a *Approval) { at := *a.DecidedAt + 1; a.DecidedAt = &at },
		"the policy":   func(a *Approval) { a.PolicyName = "other" },
	} {
		changed := *a
		if change(&changed); changed.SignedBy(public) {
			t.Errorf("the signature holds although %s was changed", name)
		}
	}
}

// A signature that begins with a point of small order, or is made for a key of small order, is not valid,
// although crypto/ed25519 accepts it: the service and the verifiers of bundles give one verdict.
func TestPointsOfSmallOrderSignNothing(t *testing.T) {
	t.Parallel()
	a := decidedElsewhere()
	key := elsewhere()
	neutral := append([]byte{1}, make([]byte, ed25519.PublicKeySize-1)...)
	// The first is a signature of every message by the key that is the neutral point.
	forged, err := hex.DecodeString("edc876d6831fd2105d0b4389ca2e283166469289146e2ce06faefe98b22548df05" + strings.Repeat("0", 62))
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		public    ed25519.PublicKey
		signature []byte
	}{
		"a key of small order":       {neutral, forged},
		"a signature of small order": {key.Public().(ed25519.PublicKey), neutralSignature(key, a.DecisionRecord())},
	} {
		if !ed25519.Verify(test.public, a.DecisionRecord(), test.signature) {
			t.Fatalf("%s: the signature does not show the difference", name)
		}
		if a.Signature = test.signature; a.SignedBy(test.public) {
			t.Errorf("%s is accepted", name)
		}
	}
	a.Signature = neutralSignature(key, a.DecisionRecord())
	encode := base64.StdEncoding.EncodeToString
	line := strings.Replace(importLineOf(a.DecisionRecord(), key), encode(ed25519.Sign(key, a.DecisionRecord())), encode(a.Signature), 1)
	if _, err := ParseImported([]byte(line)); err == nil || !strings.Contains(err.Error(), "the signature is not that") {
		t.Errorf("an import with such a signature: %v", err)
	}
}

// neutralSignature signs with 0 in place of a random number: R is the neutral point. It gives the key
// away, but verifies.
func neutralSignature(key ed25519.PrivateKey, message []byte) []byte {
	order, _ := new(big.Int).SetString("7237005577332262213973186563042994240857116359379907606001950938285454250989", 10)
	number := func(data []byte) *big.Int { // of bytes, the lowest first
		data = slices.Clone(data)
		slices.Reverse(data)
		return new(big.Int).SetBytes(data)
	}
	expanded := sha512.Sum512(key.Seed())
	expanded[0] &= 248
	expanded[31] = expanded[31]&127 | 64
	signature := append([]byte{1}, make([]byte, ed25519.SignatureSize-1)...)
	challenge := sha512.Sum512(slices.Concat(signature[:32], key.Public().(ed25519.PublicKey), message))
	s := new(big.Int).Mul(number(challenge[:]), number(expanded[:32]))
	s.Mod(s, order).FillBytes(signature[32:])
	slices.Reverse(signature[32:])
	return signature
}
