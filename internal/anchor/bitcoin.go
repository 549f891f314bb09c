package anchor

import (
	"bytes"
	"context"
	"math/big"
	"time"
)

// Status is the state of a proof.
type Status string

// The states of a proof.
const (
	Verified Status = "verified" // a block attests it
	Pending  Status = "pending"  // a calendar has promised, but no block attests it yet
	Failed   Status = "failed"   // it can never attest the digest
)

// Verdict is the result of verifying a proof. Height and BlockTime are those of the earliest block
// that attests it. The digest existed by then, within the two hours that a block's time may be off.
type Verdict struct {
	Status    Status
	Reason    Reason // only for Failed
	Height    int
	BlockTime time.Time
	Header    [headerSize]byte // of that block
}

// HeaderSource provides the block headers of Bitcoin's main chain.
type HeaderSource interface {
	// Header returns the 80 bytes of the header at a height, as the network hashes them. The source
	// need not be honest, only available, because the header's work is checked. Its errors contain
	// no credentials.
	Header(ctx context.Context, height int) ([80]byte, error)
}

// Bitcoin verifies proofs with block headers. It is safe for concurrent use if its source is.
type Bitcoin struct {
	Headers HeaderSource              // nil: a proof in a block cannot be verified
	Limit   func(height int) *big.Int // highest acceptable target; nil: MainnetLimit
	Now     func() time.Time          // nil: time.Now
}

// Verify verifies a proof about a digest. One block that attests it is enough, whatever its other
// attestations say. An error means that there is no verdict because no trustworthy header was
// available; it says nothing about the proof.
func (b Bitcoin) Verify(ctx context.Context, kept []byte, digest [32]byte) (Verdict, error) {
	parsed, err := parseProof(kept)
	if err != nil {
		return Verdict{Status: Failed, Reason: Malformed}, nil //nolint:nilerr // a proof that cannot be read has failed
	}
	if parsed.digest != digest {
		return Verdict{Status: Failed, Reason: WrongImprint}, nil
	}
	best := Verdict{Status: Failed, Reason: Unattested}
	var fault error
	for at := range parsed.root.all() {
		for _, found := range at.attestations {
			verdict, err := b.judge(ctx, at, found)
			if err != nil {
				fault = err
			} else if verdict.beats(best) {
				best = verdict
			}
		}
	}
	if best.Status != Verified && fault != nil {
		return Verdict{}, fault
	}
	return best, nil
}

// beats prefers the earliest block, then a promise, then the more specific failure.
func (v Verdict) beats(other Verdict) bool {
	if v.rank() != other.rank() {
		return v.rank() > other.rank()
	}
	return v.Height < other.Height
}

func (v Verdict) rank() int {
	switch {
	case v.Status == Verified:
		return 3
	case v.Status == Pending:
		return 2
	case v.Reason == WrongBlock:
		return 1
	}
	return 0
}

func (b Bitcoin) judge(ctx context.Context, at *node, found attestation) (Verdict, error) {
	switch {
	case found.kind == kindPending && !at.confirmed():
		return Verdict{Status: Pending}, nil
	case found.kind != kindBitcoin:
		return Verdict{Status: Failed, Reason: Unattested}, nil
	}
	block, err := b.header(ctx, found.height)
	if err != nil {
		return Verdict{}, err
	}
	if !bytes.Equal(block.root(), at.message) {
		return Verdict{Status: Failed, Reason: WrongBlock}, nil
	}
	return Verdict{Status: Verified, Height: found.height, BlockTime: block.time(), Header: *block}, nil
}

func (b Bitcoin) header(ctx context.Context, height int) (*header, error) {
	if b.Headers == nil {
		return nil, faultf(Unavailable, "there is no source of Bitcoin's block headers: configure one")
	}
	data, err := b.Headers.Header(ctx, height)
	if err != nil {
		return nil, err
	}
	limit, now := b.Limit, b.Now
	if limit == nil {
		limit = MainnetLimit
	}
	if now == nil {
		now = time.Now
	}
	found := header(data)
	if err := found.check(limit(height), now()); err != nil {
		return nil, faultf(Untrusted, "the source's header of block %d cannot be trusted: %w", height, err)
	}
	return &found, nil
}
