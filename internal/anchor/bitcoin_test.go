package anchor_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"countersign/internal/anchor"
)

// A block header without enough work or with an impossible time is not trusted.
func TestHeadersThatCannotBeBelieved(t *testing.T) {
	t.Parallel()
	digest := digestOf("lie")
	proof := []byte(magic + string(digest[:]) + inBlock(5))
	header := func(at time.Time, bits uint32, meets bool) [80]byte { return mineHeader(digest, at, bits, meets) }
	then := now.Add(-time.Hour)
	tests := map[string]struct {
		header  [80]byte
		mainnet bool
		want    anchor.Reason
	}{
		"believable":              {header(then, easyBits, true), false, ""},
		"easier than allowed":     {header(then, easyBits, true), true, anchor.Untrusted},
		"without the work":        {header(then, easyBits, false), false, anchor.Untrusted},
		"without any work":        {header(then, 0x1d00ffff, false), true, anchor.Untrusted},
		"with a target of zero":   {header(then, 0x20000000, false), false, anchor.Untrusted},
		"with a target below":     {header(then, 0x20ffffff, true), false, anchor.Untrusted},
		"with a target above all": {header(then, 0xff7fffff, true), false, anchor.Untrusted},
		"with a small target":     {header(then, 0x03000001, false), false, anchor.Untrusted},
		"from before the first":   {header(time.Unix(1231006504, 0), easyBits, true), false, anchor.Untrusted},
		"just ahead of the clock": {header(now.Add(time.Hour), easyBits, true), false, ""},
		"from the future":         {header(now.Add(3*time.Hour), easyBits, true), false, anchor.Untrusted},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			blocks := newChain()
			blocks.headers[5] = test.header
			verifier := blocks.verifier()
			if test.mainnet {
				verifier.Limit = nil
			}
			verdict, err := verifier.Verify(t.Context(), proof, digest)
			if anchor.ReasonOf(err) != test.want || (err == nil) != (verdict.Status == anchor.Verified) {
				t.Errorf("got %+v, %v; want %q", verdict, err, test.want)
			}
		})
	}
	t.Run("without a source", func(t *testing.T) {
		t.Parallel()
		if verdict, err := (anchor.Bitcoin{}).Verify(t.Context(), proof, digest); anchor.ReasonOf(err) != anchor.Unavailable {
			t.Errorf("got %+v, %v", verdict, err)
		}
	})
	t.Run("without an answer", func(t *testing.T) {
		t.Parallel()
		if verdict, err := newChain().verifier().Verify(t.Context(), proof, digest); err == nil {
			t.Errorf("got %+v", verdict)
		}
	})
}

// No block counts that is older than the service, and of the others none with less work than the
// network's: headers of the first years could be made by anyone today, for any root and time.
func TestMainnetLimit(t *testing.T) {
	t.Parallel()
	for _, height := range []int{0, 1, realHeight, 699_999} {
		if limit := anchor.MainnetLimit(height); limit.Sign() != 0 {
			t.Errorf("the limit at %d is %x", height, limit)
		}
	}
	want := new(big.Int).Quo(new(big.Int).Lsh(big.NewInt(0xffff), 208), big.NewInt(10_000_000_000_000))
	for _, height := range []int{700_000, newerHeight, 1<<31 - 1} {
		if limit := anchor.MainnetLimit(height); limit.Cmp(want) != 0 {
			t.Errorf("the limit at %d is %x, want %x", height, limit, want)
		}
	}
}

// The headers of real blocks, public since 2009, 2015 and 2023.
const (
	firstHeader = "010000006fe28c0ab6f1b372c1a6a246ae63f74f931e8365e15a089c68d6190000000000" +
		"982051fd1e4ba744bbbe680e1fee14677ba1a3c3540bf7b1cdb606e857233e0e61bc6649ffff001d01e36299"
	realHeight = 358391
	hexHeader  = "02000000b96394585a281b7e5f438fd1c9ed492645a1fd61cb3802040000000000000000" +
		"007ee445d23ad061af4a36b809501fab1ac4f2d7e7a739817dd0cbb7ec661b8a1e376755f58616186272def6"
	newerHeight = 800_000
	newerHeader = "00601d3455bb9fbd966b3ea2dc42d0c22722e4c0c1729fad172101000000000000000000" +
		"55087fab0c8f3f89f8bcfd4df26c504d81b0a88e04907161838c0c53001af09135edbd64943805175e955e06"
)

func realChain(t testing.TB) *chain {
	t.Helper()
	blocks := newChain()
	for height, text := range map[int]string{1: firstHeader, realHeight: hexHeader, newerHeight: newerHeader} {
		data, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		blocks.headers[height] = [80]byte(data)
	}
	return blocks
}

// A real header passes the limits of the main chain, and its Merkle root is read correctly. One of
// little work is not trusted, although it has the work that it claims.
func TestRealHeaders(t *testing.T) {
	t.Parallel()
	blocks := realChain(t)
	verify := func(height int) (anchor.Verdict, error) {
		header := blocks.headers[height]
		root := [32]byte(header[36:68])
		return anchor.Bitcoin{Headers: blocks}.Verify(t.Context(), []byte(magic+string(root[:])+inBlock(height)), root)
	}
	got, err := verify(newerHeight)
	if err != nil {
		t.Fatal(err)
	}
	want := anchor.Verdict{Status: anchor.Verified, Height: newerHeight, BlockTime: time.Date(2023, 7, 24, 3, 17, 9, 0, time.UTC), Header: blocks.headers[newerHeight]}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the verdict differs (-want +got):\n%s", diff)
	}
	for _, height := range []int{1, realHeight} {
		if got, err := verify(height); anchor.ReasonOf(err) != anchor.Untrusted {
			t.Errorf("block %d: %+v, %v", height, got, err)
		}
	}
}

// Proofs made by others verify, if they are available. The tests above create the same kinds.
func TestProofsOfOthers(t *testing.T) {
	t.Parallel()
	folder := filepath.Join("..", "..", "..", "shared", "ots")
	if _, err := os.Stat(folder); errors.Is(err, os.ErrNotExist) {
		t.Log("no proofs of others here")
		return
	}
	tests := map[string]anchor.Verdict{
		"hello-world":    {Status: anchor.Verified, Height: realHeight, BlockTime: time.Date(2015, 5, 28, 15, 41, 18, 0, time.UTC), Header: realChain(t).headers[realHeight]},
		"bad-stamp":      {Status: anchor.Failed, Reason: anchor.WrongBlock},
		"incomplete":     {Status: anchor.Pending},
		"two-calendars":  {Status: anchor.Pending},
		"unknown-notary": {Status: anchor.Failed, Reason: anchor.Unattested},
	}
	for name, want := range tests {
		text, err := os.ReadFile(filepath.Join(folder, name+".txt"))
		if err != nil {
			t.Fatal(err)
		}
		proof, err := os.ReadFile(filepath.Join(folder, name+".txt.ots"))
		if err != nil {
			t.Fatal(err)
		}
		// These proofs are older than what counts.
		limit := new(big.Int).Quo(new(big.Int).Lsh(big.NewInt(0xffff), 208), big.NewInt(1_000_000_000))
		verifier := anchor.Bitcoin{Headers: realChain(t), Limit: func(int) *big.Int { return limit }}
		got, err := verifier.Verify(t.Context(), proof, sha256.Sum256(text))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: the verdict differs (-want +got):\n%s", name, diff)
		}
	}
}
