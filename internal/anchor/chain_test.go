package anchor_test

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"math/big"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"countersign/internal/anchor"
)

// easyBits is a difficulty that every second header meets by chance.
const easyBits = 0x207fffff

var easyLimit = new(big.Int).Lsh(big.NewInt(0x7fffff), 8*(0x20-3))

// chain is a source of headers that were mined for the test.
type chain struct {
	mutex   sync.Mutex
	headers map[int][80]byte
}

func newChain() *chain { return &chain{headers: map[int][80]byte{}} }

func (c *chain) Header(_ context.Context, height int) ([80]byte, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	found, ok := c.headers[height]
	if !ok {
		return [80]byte{}, errors.New("no such block")
	}
	return found, nil
}

var now = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func (c *chain) time(height int) time.Time {
	return now.Add(-time.Hour * time.Duration(100-height))
}

func (c *chain) mine(root [32]byte, height int) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.headers[height] = mineHeader(root, c.time(height), easyBits, true)
}

// mineHeader tries nonces until the header meets its bits, or does not.
func mineHeader(root [32]byte, at time.Time, bits uint32, meets bool) [80]byte {
	var header [80]byte
	copy(header[36:], root[:])
	binary.LittleEndian.PutUint32(header[68:], uint32(at.Unix()))
	binary.LittleEndian.PutUint32(header[72:], bits)
	target := new(big.Int).Lsh(big.NewInt(int64(bits&0x7fffff)), uint(8*(bits>>24-3)))
	for nonce := range uint32(1 << 16) {
		binary.LittleEndian.PutUint32(header[76:], nonce)
		first := sha256.Sum256(header[:])
		hash := sha256.Sum256(first[:])
		slices.Reverse(hash[:])
		if (new(big.Int).SetBytes(hash[:]).Cmp(target) <= 0) == meets {
			return header
		}
	}
	panic("no nonce met the bits")
}

func (c *chain) verifier() anchor.Bitcoin {
	return anchor.Bitcoin{
		Headers: c,
		Limit:   func(int) *big.Int { return easyLimit },
		Now:     func() time.Time { return now },
	}
}

func expect(t *testing.T, blocks *chain, proof []byte, digest [32]byte, want anchor.Verdict) {
	t.Helper()
	got, err := blocks.verifier().Verify(t.Context(), proof, digest)
	if err != nil {
		t.Fatal(err)
	}
	if got.Status == anchor.Verified && got.Header != blocks.headers[got.Height] {
		t.Errorf("the verdict's header is not that of block %d", got.Height)
	}
	got.Header = [80]byte{}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the verdict differs (-want +got):\n%s", diff)
	}
}
