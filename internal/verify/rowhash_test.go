package verify

import (
	"bytes"
	"slices"
	"testing"
)

// TestRowHashTellsRowsApart hashes lists of fields that differ in one place each: a byte, a border
// between two fields, nil for empty, an order, far behind or in front of the border of a block.
// Equal lists have equal hashes, and no two others have.
func TestRowHashTellsRowsApart(t *testing.T) {
	t.Parallel()
	long := bytes.Repeat([]byte("0123456789abcdef"), blockSize/16)
	other := slices.Clone(long)
	other[0]++
	lists := map[string][][]byte{
		"no field":                nil,
		"a nil field":             {nil},
		"an empty field":          {{}},
		"two empty fields":        {{}, {}},
		"text":                    {[]byte("ab"), []byte("c")},
		"another border":          {[]byte("a"), []byte("bc")},
		"one field":               {[]byte("abc")},
		"another order":           {[]byte("c"), []byte("ab")},
		"a zero byte":             {{0}},
		"two zero bytes":          {{0, 0}},
		"one long field":          {long},
		"another long field":      {other},
		"long fields":             {long, long, long},
		"another in front":        {other, long, long},
		"another in the middle":   {long, other, long},
		"another at the end":      {long, long, other},
		"a short one in front":    {[]byte("a"), long, long},
		"a short one at the end":  {long, long, []byte("a")},
		"a longer one at the end": {long, long, append(slices.Clone(long), 0)},
	}
	sum := func(list [][]byte) [rowHashSize]byte {
		h := newRowHash()
		for _, field := range list {
			h.fields(field)
		}
		return h.sum()
	}
	seen := make(map[[rowHashSize]byte]string)
	for name, list := range lists {
		hash := sum(list)
		if sum(list) != hash {
			t.Errorf("%s: two hashes", name)
		}
		if twin, ok := seen[hash]; ok {
			t.Errorf("%s and %s have the same hash", name, twin)
		}
		seen[hash] = name
	}
}
