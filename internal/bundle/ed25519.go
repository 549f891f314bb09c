package bundle

import (
	"crypto/ed25519"
	"encoding/hex"

	"golang.org/x/mod/sumdb/note"
)

// smallOrder are the points of small order of Ed25519's curve, in all their encodings, without the
// sign of x. Anyone can make signatures for such a key. Libraries and browsers disagree on whether
// one verifies, and also on a signature that begins with such a point, so a bundle has neither.
var smallOrder = func() map[[ed25519.PublicKeySize]byte]bool {
	points := make(map[[ed25519.PublicKeySize]byte]bool)
	for _, text := range []string{
		"0000000000000000000000000000000000000000000000000000000000000000",
		"0100000000000000000000000000000000000000000000000000000000000000",
		"26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
		"c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
		"ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
		"edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
		"eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
	} {
		point, _ := hex.DecodeString(text)
		points[[ed25519.PublicKeySize]byte(point)] = true
	}
	return points
}()

// isSmallOrder reports whether 32 bytes encode a point of small order.
func isSmallOrder(point []byte) bool {
	y := [ed25519.PublicKeySize]byte(point)
	y[len(y)-1] &= 0x7f
	return smallOrder[y]
}

// verifyEd25519 reports whether a signature is good.
func verifyEd25519(public ed25519.PublicKey, message, signature []byte) bool {
	return len(signature) == ed25519.SignatureSize && !isSmallOrder(public) && !isSmallOrder(signature[:ed25519.PublicKeySize]) &&
		ed25519.Verify(public, message, signature)
}

// strictVerifier is a key for notes that refuses what verifyEd25519 refuses. The key itself was
// checked when it was read.
type strictVerifier struct{ note.Verifier }

// Verify implements note.Verifier. A cosignature has a time before the signature.
func (v strictVerifier) Verify(message, signature []byte) bool {
	begin := len(signature) - ed25519.SignatureSize
	return begin >= 0 && !isSmallOrder(signature[begin:begin+ed25519.PublicKeySize]) && v.Verifier.Verify(message, signature)
}
