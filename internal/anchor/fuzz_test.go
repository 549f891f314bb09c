package anchor

import (
	"bytes"
	"crypto/sha256"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func pendingAt(calendar string) attestation {
	return attestation{kind: kindPending, payload: appendBytes(nil, []byte(calendar)), calendar: calendar}
}

func confirmedAt(height int) attestation {
	return attestation{kind: kindBitcoin, payload: appendNumber(nil, uint64(height)), height: height}
}

func sampleProofs(t testing.TB) [][]byte {
	t.Helper()
	digest := sha256.Sum256([]byte("sample"))
	root, commitment, err := commit(digest, [16]byte{1})
	if err != nil {
		t.Fatal(err)
	}
	commitment.attestations = []attestation{pendingAt("https://calendar.example"), confirmedAt(358391), {kind: [8]byte{1}, payload: []byte("?")}}
	data, err := (&proof{digest: digest, root: root}).encode()
	if err != nil {
		t.Fatal(err)
	}
	samples := [][]byte{data, data[:len(data)-4], data[:70], nil}
	// Proofs made by others, if they are available.
	files, err := filepath.Glob(filepath.Join("..", "..", "..", "shared", "ots", "*.ots"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		sample, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		samples = append(samples, sample)
	}
	return samples
}

// A proof that can be parsed is encoded as the same tree. The bytes may differ: a node's
// attestations are written before its branches.
func FuzzProof(f *testing.F) {
	for _, sample := range sampleProofs(f) {
		f.Add(sample)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		parsed, err := parseProof(data)
		if err != nil {
			return
		}
		written, err := parsed.encode()
		if err != nil || len(written) > len(data) {
			t.Fatalf("read %x, wrote %x: %v", data, written, err)
		}
		again, err := parseProof(written)
		if err != nil || again.root.merge(parsed.root) || parsed.root.merge(again.root) {
			t.Fatalf("read %x, wrote another tree: %x: %v", data, written, err)
		}
		verdict, err := Bitcoin{Now: func() time.Time { return time.Time{} }}.Verify(t.Context(), data, parsed.digest)
		if err == nil && verdict.Status == Verified {
			t.Fatal("verified without a header")
		}
	})
}

// Whatever the bytes are, parsing them ends with a result or an error.
func FuzzTokenParts(f *testing.F) {
	f.Add([]byte{0x30, 0})
	f.Add([]byte{0x30, 0x0f, 6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 7, 2, 0xa0, 2, 0x30, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		if info, err := parseTimestampInfo(data); err == nil && (info.serial == nil || info.time.IsZero()) {
			t.Errorf("half a timestamp: %+v", info)
		}
		if found, err := parseAttributes(data); err == nil && len(found.certificates) == 0 {
			t.Errorf("half the attributes: %+v", found)
		}
		if token, err := parseReply(data); err == nil && len(token) == 0 {
			t.Error("a reply without a token")
		}
	})
}

func drawNode(t *rapid.T, message []byte, depth int) *node {
	drawn := &node{message: message}
	for range rapid.IntRange(0, 2).Draw(t, "attestations") {
		drawn.attestations = append(drawn.attestations, rapid.SampledFrom([]attestation{
			pendingAt("https://a.example"), pendingAt("http://127.0.0.1:1/b"), confirmedAt(0), confirmedAt(maxHeight), {kind: [8]byte{9}, payload: []byte{}},
		}).Draw(t, "attestation"))
	}
	for _, tag := range rapid.SliceOfNDistinct(rapid.SampledFrom([]byte{opSHA1, opRIPEMD160, opSHA256, opAppend, opPrepend, opReverse, opHexlify}), 0, 2, rapid.ID).Draw(t, "tags") {
		step := operation{tag: tag}
		if takesArgument(tag) {
			step.argument = rapid.SliceOfN(rapid.Byte(), 1, 300).Draw(t, "argument")
		}
		next, err := step.apply(message)
		if err == nil && depth > 0 {
			drawn.branches = append(drawn.branches, branch{step, drawNode(t, next, depth-1)})
		}
	}
	if len(drawn.attestations)+len(drawn.branches) == 0 {
		drawn.attestations = []attestation{pendingAt("https://c.example")}
	}
	return drawn
}

// A proof is encoded and parsed unchanged, and merging two proofs loses nothing.
func TestTreesSurviveTheRoundTripAndMerge(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		digest := sha256.Sum256([]byte("tree"))
		one := drawNode(t, digest[:], 4)
		other := drawNode(t, digest[:], 4)
		if one.blocks()+other.blocks() > maxBlocks {
			return // more than a proof may contain
		}
		first := mustEncode(t, digest, one)
		second := mustEncode(t, digest, other)
		parsed, err := parseProof(first)
		if err != nil || !bytes.Equal(mustEncode(t, digest, parsed.root), first) {
			t.Fatalf("the round trip changed the proof: %v", err)
		}
		parsed.root.merge(other)
		merged, err := parseProof(mustEncode(t, digest, parsed.root))
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range [][]byte{first, second} {
			again, err := parseProof(part)
			if err != nil || merged.root.merge(again.root) {
				t.Fatalf("the merged tree lacked a part: %v", err)
			}
		}
	})
}

func mustEncode(t *rapid.T, digest [32]byte, root *node) []byte {
	data, err := (&proof{digest: digest, root: root}).encode()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// The compact form of a block's target is parsed as Bitcoin defines it.
func TestTargets(t *testing.T) {
	t.Parallel()
	tests := map[uint32]string{
		0x1d00ffff: "00000000ffff0000000000000000000000000000000000000000000000000000",
		0x181686f5: "00000000000000001686f5000000000000000000000000000000000000000000",
		0x03123456: "123456",
		0x02123456: "1234",
		0x01123456: "12",
		0x00123456: "0",
	}
	for bits, want := range tests {
		var block header
		block[bitsAt], block[bitsAt+1], block[bitsAt+2], block[bitsAt+3] = byte(bits), byte(bits>>8), byte(bits>>16), byte(bits>>24)
		number, _ := new(big.Int).SetString(want, 16)
		if got := block.target(); got.Cmp(number) != 0 {
			t.Errorf("%08x: got %x, want %x", bits, got, number)
		}
	}
}
