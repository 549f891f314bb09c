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

// The easiest accepted target for a Bitcoin block never rises with its height.
func TestMainnetLimitOnlyFalls(t *testing.T) {
	t.Parallel()
	last := anchor.MainnetLimit(0)
	if want := new(big.Int).Lsh(big.NewInt(0xffff), 208); last.Cmp(want) != 0 {
		t.Errorf("the first limit is %x, want %x", last, want)
	}
	for height := 0; height <= 1_000_000; height += 50_000 {
		limit := anchor.MainnetLimit(height)
		if limit.Cmp(last) > 0 || limit.Sign() <= 0 {
			t.Errorf("the limit at %d is %x, after %x", height, limit, last)
		}
		last = limit
	}
}

// The header of a real block, public since 2015.
const (
	realHeight = 358391
	hexHeader  = "02000000b96394585a281b7e5f438fd1c9ed492645a1fd61cb3802040000000000000000" +
		"007ee445d23ad061af4a36b809501fab1ac4f2d7e7a739817dd0cbb7ec661b8a1e376755f58616186272def6"
)

func realChain(t testing.TB) *chain {
	t.Helper()
	data, err := hex.DecodeString(hexHeader)
	if err != nil {
		t.Fatal(err)
	}
	return &chain{headers: map[int][80]byte{realHeight: [80]byte(data)}}
}

// A real header passes the limits of the main chain, and its Merkle root is read correctly.
func TestRealHeader(t *testing.T) {
	t.Parallel()
	blocks := realChain(t)
	header := blocks.headers[realHeight]
	root := [32]byte(header[36:68])
	want := anchor.Verdict{Status: anchor.Verified, Height: realHeight, BlockTime: time.Date(2015, 5, 28, 15, 41, 18, 0, time.UTC), Header: header}
	got, err := anchor.Bitcoin{Headers: blocks}.Verify(t.Context(), []byte(magic+string(root[:])+inBlock(realHeight)), root)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the verdict differs (-want +got):\n%s", diff)
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
		got, err := anchor.Bitcoin{Headers: realChain(t)}.Verify(t.Context(), proof, sha256.Sum256(text))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: the verdict differs (-want +got):\n%s", name, diff)
		}
	}
}
