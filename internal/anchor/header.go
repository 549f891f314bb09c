package anchor

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"math/big"
	"slices"
	"time"
)

// Offsets of the fields of a block header.
const (
	headerSize = 80
	rootAt     = 36
	timeAt     = 68
	bitsAt     = 72
)

// header is a Bitcoin block header as the network hashes it.
type header [headerSize]byte

// root returns the Merkle root in the byte order of the hash, which is also that of proofs. Block
// explorers show it reversed.
func (h *header) root() []byte { return h[rootAt:timeAt] }

func (h *header) time() time.Time {
	return time.Unix(int64(binary.LittleEndian.Uint32(h[timeAt:])), 0).UTC()
}

// work returns the hash as a number, which the miner had to bring below the target.
func (h *header) work() *big.Int {
	first := sha256.Sum256(h[:])
	second := sha256.Sum256(first[:])
	slices.Reverse(second[:])
	return new(big.Int).SetBytes(second[:])
}

// target returns the target in the header: a sign, 23 bits of a number and its length in bytes. It
// returns nil if it is negative or zero.
func (h *header) target() *big.Int {
	bits := binary.LittleEndian.Uint32(h[bitsAt:])
	mantissa, length := int64(bits&0x7fffff), int(bits>>24)
	if bits&0x800000 != 0 || mantissa == 0 || length > 34 {
		return nil
	}
	target := big.NewInt(mantissa)
	if length < 3 {
		return target.Rsh(target, uint(8*(3-length)))
	}
	return target.Lsh(target, uint(8*(length-3)))
}

const maxClockSkew = 2 * time.Hour // of blocks, a rule of the network

var firstBlock = time.Date(2009, time.January, 3, 18, 15, 5, 0, time.UTC)

// check requires the proof of work that makes a header expensive to forge, whoever delivers it.
func (h *header) check(limit *big.Int, now time.Time) error {
	target := h.target()
	switch {
	case target == nil || target.Cmp(limit) > 0:
		return errors.New("its difficulty is too low, or its block is older than this service")
	case h.work().Cmp(target) > 0:
		return errors.New("it does not carry the work that it claims")
	case h.time().Before(firstBlock) || h.time().After(now.Add(maxClockSkew)):
		return errors.New("its time is impossible")
	}
	return nil
}

// easiest is the target of difficulty 1.
var easiest = new(big.Int).Lsh(big.NewInt(0xffff), 208)

// Blocks before firstCounted are older than this service, so that no proof of its own is in one.
// With today's machines, their headers cost little to invent, for any root and any time. The later
// ones have always exceeded leastDifficulty, a round number with a margin.
const (
	firstCounted    = 700_000
	leastDifficulty = 10_000_000_000_000
)

// MainnetLimit returns the highest target, and so the least work, that a header of Bitcoin's main
// chain may have at a height. It is 0 for blocks that do not count.
func MainnetLimit(height int) *big.Int {
	if height < firstCounted {
		return new(big.Int)
	}
	return new(big.Int).Quo(easiest, big.NewInt(leastDifficulty))
}
