package policy

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// within returns the byte offset in the document of the given character of a string.
//
// Quoting, folding and indentation add and remove white space and escapes, but never a visible
// character. So it counts the visible characters before the wanted one, and counts as many in the
// document.
func (t *source) within(n *node, character int) int {
	wanted, all := 0, 0
	index := 0
	for _, r := range n.value {
		if !unicode.IsSpace(r) {
			all++
			if index < character {
				wanted++
			}
		}
		index++
	}
	pos, end := t.content(n), 0
	for seen := 0; pos < len(t.data); {
		r, width := t.character(n.quoting, pos)
		if unicode.IsSpace(r) {
			pos += width
			continue
		}
		if seen == wanted && wanted < all {
			return pos
		}
		if seen == wanted {
			break // beyond the last character; use the end
		}
		seen++
		pos += width
		end = pos
	}
	return max(end, t.content(n))
}

// content returns where the characters of a string start.
func (t *source) content(n *node) int {
	switch n.quoting {
	case singleQuoted, doubleQuoted:
		return n.start + 1
	case block:
		line, _ := t.position(n.start)
		return t.offset(line+1, 1)
	default:
		return n.start
	}
}

// character reads one character of a string, which may be written as several.
func (t *source) character(q quoting, pos int) (r rune, width int) {
	rest := t.data[pos:]
	switch {
	case q == singleQuoted && strings.HasPrefix(rest, "''"):
		return '\'', 2
	case q == doubleQuoted && rest[0] == '\\' && len(rest) > 1:
		return escaped(rest)
	}
	return utf8.DecodeRuneInString(rest)
}

// escaped reads an escape sequence. It does not matter which visible character it stands for, only
// whether it is visible.
func escaped(rest string) (r rune, width int) {
	var digits int
	switch rest[1] {
	case 'x':
		digits = 2
	case 'u':
		digits = 4
	case 'U':
		digits = 8
	case 'n', 'r', 't', 'v', 'f', ' ', '\t', '\n', '\r', 'N', '_', 'L', 'P':
		return ' ', 2
	default:
		return '.', 2
	}
	width = min(2+digits, len(rest))
	code, err := strconv.ParseUint(rest[2:width], 16, 31)
	if err != nil {
		return '.', width
	}
	if utf16.IsSurrogate(rune(code)) { // in JSON, the second half follows
		return '.', min(2*width, len(rest))
	}
	return rune(code), width
}
