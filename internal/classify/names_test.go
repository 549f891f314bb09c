package classify

import (
	"testing"
	"unicode"

	"pgregory.net/rapid"
)

// Names that people read as the same fold to the same, in Go as in Python.
func TestFoldNameVectors(t *testing.T) {
	t.Parallel()
	type pair struct{ Name, One, Other string }
	var vectors struct {
		Same []struct {
			Name, Folded string
			Spellings    []string
		}
		Different, Homoglyphs []pair
	}
	readVectors(t, "names.json", &vectors)
	if len(vectors.Same) < 20 || len(vectors.Different) < 10 || len(vectors.Homoglyphs) == 0 {
		t.Fatal("cases are missing")
	}
	for _, c := range vectors.Same {
		for _, spelling := range append(c.Spellings, c.Folded) {
			if got := FoldName(spelling); got != c.Folded {
				t.Errorf("%s: %+q folds to %+q, want %+q", c.Name, spelling, got, c.Folded)
			}
		}
	}
	for _, c := range append(vectors.Different, vectors.Homoglyphs...) {
		if FoldName(c.One) == FoldName(c.Other) {
			t.Errorf("%s: %+q and %+q are the same", c.Name, c.One, c.Other)
		}
	}
}

// TestFoldNameProperties: folding is idempotent, and neither the case of ASCII letters nor an
// invisible character makes another name.
func TestFoldNameProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.String().Draw(t, "name")
		folded := FoldName(name)
		if again := FoldName(folded); again != folded {
			t.Fatalf("%+q folds to %+q, then to %+q", name, folded, again)
		}
		at := rapid.IntRange(0, len([]rune(name))).Draw(t, "at")
		span := rapid.SampledFrom(invisible[:]).Draw(t, "span")
		hidden := string([]rune(name)[:at]) + string(rapid.RuneFrom(nil, spanTable(span)).Draw(t, "invisible")) + string([]rune(name)[at:])
		if got := FoldName(hidden); got != folded {
			t.Fatalf("%+q folds to %+q, %+q to %+q", name, folded, hidden, got)
		}
	})
}

func BenchmarkFoldName(b *testing.B) {
	for name, text := range map[string]string{"folded": "billing-agent", "capitals": "Billing Agent", "unicode": "B\u00fcro-Agent\u200b"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				FoldName(text)
			}
		})
	}
}

func spanTable(span [2]rune) *unicode.RangeTable {
	if span[1] > 0xffff {
		return &unicode.RangeTable{R32: []unicode.Range32{{Lo: uint32(span[0]), Hi: uint32(span[1]), Stride: 1}}}
	}
	return &unicode.RangeTable{R16: []unicode.Range16{{Lo: uint16(span[0]), Hi: uint16(span[1]), Stride: 1}}}
}
