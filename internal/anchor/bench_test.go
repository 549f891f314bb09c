package anchor_test

import (
	"crypto"
	"strings"
	"testing"

	"github.com/digitorus/timestamp"

	"countersign/internal/anchor"
)

func BenchmarkVerifyToken(b *testing.B) {
	root := newIdentity(b, certificate{name: "Root", authority: true}, nil)
	signer := newIdentity(b, signerCertificate(), root)
	digest := digestOf(artifact)
	token := tokenIn(b, signer.stamp(b, timestamp.Timestamp{HashAlgorithm: crypto.SHA256, HashedMessage: digest[:], AddTSACertificate: true}, nil))
	trust := parseTrust(b, root.pem())
	b.SetBytes(int64(len(token)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := anchor.VerifyToken(token, digest, trust, 0); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkVerifyProof verifies a proof as long as that of a busy calendar: 40 steps of two or
// three operations.
func BenchmarkVerifyProof(b *testing.B) {
	digest := digestOf(artifact)
	message, tree := string(digest[:]), ""
	for range 40 {
		sibling := hashed(message, "sibling")
		tree += appendOp(sibling) + sha256Op + sha256Op
		message = hashed(hashed(message, sibling))
	}
	blocks := newChain()
	blocks.mine([32]byte([]byte(message)), 9)
	proof := []byte(magic + string(digest[:]) + tree + inBlock(9))
	b.SetBytes(int64(len(proof)))
	b.ReportAllocs()
	for b.Loop() {
		if verdict, err := blocks.verifier().Verify(b.Context(), proof, digest); err != nil || verdict.Status != anchor.Verified {
			b.Fatal(verdict, err)
		}
	}
}

// BenchmarkRefuseHugeProof refuses the most expensive proof, with every limit reached.
func BenchmarkRefuseHugeProof(b *testing.B) {
	digest := digestOf(artifact)
	heavy := appendOp(strings.Repeat("x", 4000)) + strings.Repeat(fork+sha256Op+unknown(""), 4000) + unknown("")
	proof := []byte(magic + string(digest[:]) + heavy)
	b.SetBytes(int64(len(proof)))
	b.ReportAllocs()
	for b.Loop() {
		if verdict, err := newChain().verifier().Verify(b.Context(), proof, digest); err != nil || verdict.Status != anchor.Failed {
			b.Fatal(verdict, err)
		}
	}
}
