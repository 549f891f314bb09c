package anchor_test

import (
	"slices"
	"strings"
	"testing"

	"countersign/internal/anchor"
)

// A proof is verified by the earliest block that contains it, pending while a promise may still
// lead to one, and failed otherwise.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	digest := digestOf("verdict")
	message := string(digest[:])
	blocks := newChain()
	for height, root := range map[int]string{5: hashed(message), 6: hashed(hashed(message)), 7: hashed("other")} {
		blocks.mine([32]byte([]byte(root)), height)
	}
	verified := func(height int) anchor.Verdict {
		return anchor.Verdict{Status: anchor.Verified, Height: height, BlockTime: blocks.time(height)}
	}
	failed := func(reason anchor.Reason) anchor.Verdict {
		return anchor.Verdict{Status: anchor.Failed, Reason: reason}
	}
	reversed := []byte(hashed(message))
	slices.Reverse(reversed)
	blocks.mine([32]byte(reversed), 8)
	waiting := anchor.Verdict{Status: anchor.Pending}
	const promise = "https://calendar.example"
	tests := map[string]struct {
		tree string
		want anchor.Verdict
	}{
		"in a block":                  {sha256Op + inBlock(5), verified(5)},
		"in two, the earlier counts":  {sha256Op + fork + sha256Op + inBlock(6) + inBlock(5), verified(5)},
		"in one, not the other":       {sha256Op + fork + inBlock(7) + inBlock(5), verified(5)},
		"in one, and none known":      {sha256Op + fork + inBlock(99) + inBlock(5), verified(5)},
		"in one, and promised":        {fork + pending(promise) + sha256Op + inBlock(5), verified(5)},
		"in one, and unknown":         {fork + unknown("x") + sha256Op + inBlock(5), verified(5)},
		"in another":                  {sha256Op + inBlock(7), failed(anchor.WrongBlock)},
		"in reverse":                  {sha256Op + inBlock(8), failed(anchor.WrongBlock)},
		"not hashed":                  {appendOp("x") + inBlock(5), failed(anchor.WrongBlock)},
		"promised":                    {pending(promise), waiting},
		"promised twice":              {fork + pending(promise) + pending(promise+"/b"), waiting},
		"promised, another failed":    {fork + appendOp("a") + sha256Op + pending(promise) + sha256Op + inBlock(7), waiting},
		"promised, and that failed":   {fork + pending(promise) + sha256Op + inBlock(7), failed(anchor.WrongBlock)},
		"unknown":                     {unknown("x"), failed(anchor.Unattested)},
		"not there":                   {"", failed(anchor.Malformed)},
		"followed by something":       {sha256Op + inBlock(5) + "x", failed(anchor.Malformed)},
		"by an unknown operation":     {unknownOp + inBlock(5), failed(anchor.Unattested)},
		"in one, after an unknown op": {fork + unknownOp + inBlock(7) + sha256Op + inBlock(5), verified(5)},
		"in one, before unknown ops":  {fork + sha256Op + inBlock(5) + unknownOp + unknownOp + fork + appendOp("x") + inBlock(5) + inBlock(6), verified(5)},
		"in one, within unknown ops":  {sha256Op + fork + unknownOp + fork + sha256Op + pending(promise) + inBlock(6) + inBlock(5), verified(5)},
		"promised, after an unknown":  {fork + unknownOp + unknown("x") + pending(promise), waiting},
		"promised below an unknown":   {unknownOp + pending(promise), failed(anchor.Unattested)},
		"odd, but below an unknown":   {fork + unknownOp + pending("") + sha256Op + inBlock(5), verified(5)},
		"cut off in an unknown":       {fork + sha256Op + inBlock(5) + unknownOp, failed(anchor.Malformed)},
		"with a doubled separator":    {fork + fork + sha256Op + inBlock(5) + pending(promise), failed(anchor.Malformed)},
		"of a height beyond all":      {bitcoinKind + counted("\x80\x80\x80\x80\x10"), failed(anchor.Malformed)},
		"of a height in a long form":  {bitcoinKind + counted("\x85\x00"), failed(anchor.Malformed)},
		"of a height and more":        {bitcoinKind + counted("\x05\x05"), failed(anchor.Malformed)},
		"promised by a strange host":  {pending("https://user:x@calendar.example?q"), failed(anchor.Malformed)},
		"promised by nobody":          {pending(""), failed(anchor.Malformed)},
		"promised by a long name":     {pending("https://" + strings.Repeat("x", 1000)), failed(anchor.Malformed)},
		"with an empty argument":      {appendOp("") + inBlock(5), failed(anchor.Malformed)},
		"with a long argument":        {appendOp(strings.Repeat("x", 4097)) + inBlock(5), failed(anchor.Malformed)},
		"with a long result":          {appendOp(strings.Repeat("x", 4096)) + inBlock(5), failed(anchor.Malformed)},
		"with a long attestation":     {unknown(strings.Repeat("x", 8193)), failed(anchor.Malformed)},
		"as deep as allowed":          {strings.Repeat(sha256Op, 256) + pending(promise), waiting},
		"deeper":                      {strings.Repeat(sha256Op, 257) + pending(promise), failed(anchor.Malformed)},
		"with too many blocks":        {strings.Repeat(fork+inBlock(5), 20) + inBlock(5), failed(anchor.Malformed)},
		"with too many branches":      {strings.Repeat(fork+unknown(""), 4200) + pending(promise), failed(anchor.Malformed)},
		"far too long":                {strings.Repeat(fork+unknown(strings.Repeat("x", 8000)), 9) + pending(promise), failed(anchor.Malformed)},
		"with every other operation":  {"\x02\x03\xf2\xf3" + pending(promise), waiting},
		"with a result out of bounds": {appendOp(strings.Repeat("x", 3000)) + "\xf3" + pending(promise), failed(anchor.Malformed)},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			expect(t, blocks, []byte(magic+message+test.tree), digest, test.want)
		})
	}
	t.Run("about another digest", func(t *testing.T) {
		t.Parallel()
		expect(t, blocks, []byte(magic+message+sha256Op+inBlock(5)), digestOf("other"), failed(anchor.WrongImprint))
	})
	t.Run("every byte counts", func(t *testing.T) {
		t.Parallel()
		good := []byte(magic + message + appendOp("0123") + sha256Op + inBlock(9))
		blocks.mine([32]byte([]byte(hashed(message, "0123"))), 9)
		expect(t, blocks, good, digest, verified(9))
		for at := range good {
			for bit := range 8 {
				changed := slices.Clone(good)
				changed[at] ^= 1 << bit
				if verdict, err := blocks.verifier().Verify(t.Context(), changed, digest); err == nil && verdict.Status == anchor.Verified {
					t.Errorf("byte %d, bit %d: still verified", at, bit)
				}
			}
		}
	})
}
