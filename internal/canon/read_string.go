package canon

import (
	"unicode/utf16"
	"unicode/utf8"
)

// plain marks the bytes that stand for themselves inside a string literal.
var plain = func() (table [256]bool) {
	for c := ' '; c < utf8.RuneSelf; c++ {
		table[c] = c != '"' && c != '\\'
	}
	return table
}()

// stringLiteral reads a string. Without escapes the result is a substring of
// the text and costs no allocation.
func (r *reader) stringLiteral() (string, *Error) {
	r.pos++
	from, escaped := r.pos, false
	for {
		r.skipPlain()
		switch c := r.peek(); {
		case c == '"':
			run := r.text[from:r.pos]
			r.pos++
			if !escaped {
				return run, nil
			}
			r.unescaped = append(r.unescaped, run...)
			return string(r.unescaped), nil
		case c == '\\':
			if !escaped {
				escaped, r.unescaped = true, r.unescaped[:0]
			}
			r.unescaped = append(r.unescaped, r.text[from:r.pos]...)
			if fault := r.escape(); fault != nil {
				return "", fault
			}
			from = r.pos
		case c < ' ':
			return "", r.fault(reasonControl)
		default:
			_, size := utf8.DecodeRuneInString(r.text[r.pos:])
			if size == 1 {
				return "", r.fault(reasonUTF8)
			}
			r.pos += size
		}
	}
}

func (r *reader) skipPlain() {
	rest := r.text[r.pos:]
	n := 0
	for n < len(rest) && plain[rest[n]] {
		n++
	}
	r.pos += n
}

// escape appends what the escape sequence at pos stands for to r.unescaped.
func (r *reader) escape() *Error {
	if r.pos+1 >= len(r.text) {
		r.pos = len(r.text)
		return r.fault(reasonEnd)
	}
	c := r.text[r.pos+1]
	switch c {
	case 'u':
		return r.unicodeEscape()
	case '"', '\\', '/':
	case 'b':
		c = '\b'
	case 'f':
		c = '\f'
	case 'n':
		c = '\n'
	case 'r':
		c = '\r'
	case 't':
		c = '\t'
	default:
		return r.fault(reasonEscape)
	}
	r.unescaped = append(r.unescaped, c)
	r.pos += 2
	return nil
}

func (r *reader) unicodeEscape() *Error {
	const length = len(`\u0000`)
	unit, ok := codeUnit(r.text, r.pos)
	if !ok {
		return r.fault(reasonEscape)
	}
	if !utf16.IsSurrogate(unit) {
		r.unescaped = utf8.AppendRune(r.unescaped, unit)
		r.pos += length
		return nil
	}
	low, _ := codeUnit(r.text, r.pos+length)
	joined := utf16.DecodeRune(unit, low)
	if joined == utf8.RuneError {
		return r.fault(reasonSurrogate)
	}
	r.unescaped = utf8.AppendRune(r.unescaped, joined)
	r.pos += 2 * length
	return nil
}

// codeUnit reads a \uXXXX sequence at i.
func codeUnit(text string, i int) (rune, bool) {
	if len(text)-i < 6 || text[i] != '\\' || text[i+1] != 'u' {
		return 0, false
	}
	var unit rune
	for _, c := range []byte(text[i+2 : i+6]) {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		unit = unit<<4 | rune(c)
	}
	return unit, true
}
