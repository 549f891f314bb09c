package anchor

import (
	"context"
	"encoding/binary"

	"countersign/internal/ledger"
)

// Verifier judges existing anchors with the current trust configuration. It does not use the
// network and is safe for concurrent use.
type Verifier struct {
	Trust   *Trust  // nil: no token is trusted
	Bitcoin Bitcoin // its source of headers is not used
}

// Judge returns the standing of an anchor whose proof was valid when it was made. The caller has
// authenticated it.
func (v *Verifier) Judge(a *ledger.Anchor) ledger.AnchorFinding {
	var reason Reason
	switch a.Method {
	case ledger.MethodTSA:
		_, err := VerifyToken(a.Proof, a.Digest, v.Trust, 0)
		if reason = ReasonOf(err); err != nil && reason == "" {
			reason = Malformed
		}
	case ledger.MethodOpenTimestamps:
		reason = v.proof(a)
	default:
		reason = Unattested
	}
	if reason != "" {
		return ledger.AnchorFinding{Standing: ledger.AnchorFailed, Reason: string(reason)}
	}
	return ledger.AnchorFinding{Standing: ledger.AnchorVerified}
}

// proof follows a proof from its digest to the block that was found to attest it.
func (v *Verifier) proof(a *ledger.Anchor) Reason {
	if a.Block == nil {
		return attested(a)
	}
	known, err := decodeBlock(a.Block)
	if err != nil {
		return Malformed
	}
	bitcoin := v.Bitcoin
	bitcoin.Headers = known
	verdict, err := bitcoin.Verify(context.Background(), a.Proof, a.Digest)
	switch {
	case err != nil && ReasonOf(err) == Untrusted: // its work is not enough for the current limit
		return Untrusted
	case err != nil: // the proof names other blocks than the stored one
		return WrongBlock
	case verdict.Status == Verified:
		return ""
	case verdict.Status == Failed:
		return verdict.Reason
	default: // it only promises a block, but was found in one
		return WrongBlock
	}
}

// attested judges a proof whose block was not stored: it must lead from the digest to a block. That
// the block contains it was checked by the service, which has authenticated it.
func attested(a *ledger.Anchor) Reason {
	parsed, err := parseProof(a.Proof)
	switch {
	case err != nil:
		return Malformed
	case parsed.digest != a.Digest:
		return WrongImprint
	case !parsed.root.confirmed():
		return Unattested
	}
	return ""
}

// block is a source with one header.
type block struct {
	height int
	header [headerSize]byte
}

const heightSize = 8

// Block returns the block of a verdict in its stored form: its height and its header.
func (v Verdict) Block() []byte {
	kept := binary.BigEndian.AppendUint64(make([]byte, 0, heightSize+headerSize), uint64(v.Height)) //nolint:gosec // a height is never negative
	return append(kept, v.Header[:]...)
}

func decodeBlock(kept []byte) (*block, error) {
	if len(kept) != heightSize+headerSize {
		return nil, faultf(Malformed, "a kept block has %d bytes", len(kept))
	}
	height := binary.BigEndian.Uint64(kept)
	if height > maxHeight {
		return nil, faultf(Malformed, "a kept block's height is too large")
	}
	return &block{height: int(height), header: [headerSize]byte(kept[heightSize:])}, nil
}

// Header implements HeaderSource.
func (b *block) Header(_ context.Context, height int) ([headerSize]byte, error) {
	if height != b.height {
		return [headerSize]byte{}, faultf(Unavailable, "the proof was found in another block")
	}
	return b.header, nil
}
