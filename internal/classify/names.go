package classify

import (
	"strings"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// FoldName returns the form in which names are compared: compatibility characters replaced (NFKC),
// case folded, invisible characters removed, blanks trimmed and runs of them reduced to one.
// Letters that only look alike (a Cyrillic and a Latin a) stay different.
func FoldName(name string) string {
	if isASCII(name) {
		return foldBlanks(lowerCase(name))
	}
	folded := norm.NFKC.String(strings.Map(visible, name))
	folded = norm.NFKC.String(strings.Map(foldCherokee, cases.Fold().String(folded)))
	// Folding can produce invisible characters and new combinations.
	folded = norm.NFKC.String(strings.Map(visible, folded))
	return foldBlanks(folded)
}

// foldCherokee folds to capitals, as Unicode does for this script. The package cases swaps its
// letters instead.
func foldCherokee(r rune) rune {
	switch {
	case r >= 0xab70 && r <= 0xabbf:
		return r - 0xab70 + 0x13a0
	case r >= 0x13f8 && r <= 0x13fd:
		return r - 8
	}
	return r
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

// foldBlanks trims blanks and reduces runs of them to one. It removes ASCII control characters,
// which strings.Map has already removed from other texts.
func foldBlanks(s string) string {
	clean := true
	for i := range len(s) {
		if s[i] < ' ' || s[i] == 0x7f || s[i] == ' ' && (i == 0 || i == len(s)-1 || s[i-1] == ' ') {
			clean = false
			break
		}
	}
	if clean {
		return s
	}
	return strings.Join(strings.FieldsFunc(strings.Map(visible, s), func(r rune) bool { return r == ' ' }), " ")
}

// visible maps blanks to a space and removes invisible characters.
func visible(r rune) rune {
	switch {
	case r == ' ' || r >= '\t' && r <= '\r' || r == 0x85 || r == 0xa0 || r == 0x1680 || r >= 0x2000 && r <= 0x200a ||
		r == 0x2028 || r == 0x2029 || r == 0x202f || r == 0x205f || r == 0x3000:
		return ' '
	case r < ' ' || r >= 0x7f && r <= 0x9f || isInvisible(r):
		return -1
	}
	return r
}

// invisible are the ranges of characters that Unicode calls default-ignorable or format characters,
// and the Braille blank. They are spelled out, so that all languages agree whatever their version
// of Unicode is.
var invisible = [...][2]rune{
	{0xad, 0xad}, {0x34f, 0x34f}, {0x600, 0x605}, {0x61c, 0x61c}, {0x6dd, 0x6dd}, {0x70f, 0x70f}, {0x890, 0x891}, {0x8e2, 0x8e2},
	{0x115f, 0x1160}, {0x17b4, 0x17b5}, {0x180b, 0x180f}, {0x200b, 0x200f}, {0x202a, 0x202e}, {0x2060, 0x206f}, {0x2800, 0x2800},
	{0x3164, 0x3164}, {0xfe00, 0xfe0f}, {0xfeff, 0xfeff}, {0xffa0, 0xffa0}, {0xfff0, 0xfffb}, {0x110bd, 0x110bd}, {0x110cd, 0x110cd},
	{0x13430, 0x1343f}, {0x1bca0, 0x1bca3}, {0x1d173, 0x1d17a}, {0xe0000, 0xe0fff},
}

func isInvisible(r rune) bool {
	for _, span := range invisible {
		if r <= span[1] {
			return r >= span[0]
		}
	}
	return false
}
