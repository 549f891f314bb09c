package canon

import (
	"math"
	"strconv"
	"unicode/utf8"
)

// Append appends the canonical text of v to dst.
func (v Value) Append(dst []byte) []byte {
	switch v.kind {
	case Bool:
		return strconv.AppendBool(dst, v.Bool())
	case Number:
		return AppendNumber(dst, v.number)
	case String:
		return appendValid(dst, v.str)
	case Array:
		return appendArray(dst, v.Items())
	case Object:
		return appendObject(dst, v.Members())
	default:
		return append(dst, "null"...)
	}
}

// Bytes returns the canonical text of v.
func (v Value) Bytes() []byte { return v.Append(make([]byte, 0, v.length())) }

// length estimates the length of the canonical text of v, in bytes. It does not
// count escapes.
func (v Value) length() int {
	const number, punctuation = 8, 4 // a usual number; quotes, colon and comma
	n := len(v.str) + punctuation
	if v.kind == Number {
		n = number
	}
	for _, item := range v.Items() {
		n += item.length()
	}
	for i := range v.Members() {
		n += len(v.children.members[i].Name) + punctuation + v.children.members[i].Value.length()
	}
	return n
}

func appendArray(dst []byte, items []Value) []byte {
	dst = append(dst, '[')
	for i := range items {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = items[i].Append(dst)
	}
	return append(dst, ']')
}

func appendObject(dst []byte, members []Member) []byte {
	dst = append(dst, '{')
	for i := range members {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendValid(dst, members[i].Name)
		dst = append(dst, ':')
		dst = members[i].Value.Append(dst)
	}
	return append(dst, '}')
}

// AppendString appends the canonical string literal of s, quotes included. In
// a string that is not valid UTF-8 each invalid byte becomes U+FFFD.
func AppendString(dst []byte, s string) []byte {
	if !utf8.ValidString(s) {
		s = string([]rune(s))
	}
	return appendValid(dst, s)
}

func appendValid(dst []byte, s string) []byte {
	dst = append(dst, '"')
	from := 0
	for i := range len(s) {
		c := s[i]
		if plain[c] || c >= utf8.RuneSelf {
			continue
		}
		dst = append(dst, s[from:i]...)
		dst = appendEscape(dst, c)
		from = i + 1
	}
	dst = append(dst, s[from:]...)
	return append(dst, '"')
}

func appendEscape(dst []byte, c byte) []byte {
	const hex = "0123456789abcdef"
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\b':
		return append(dst, `\b`...)
	case '\t':
		return append(dst, `\t`...)
	case '\n':
		return append(dst, `\n`...)
	case '\f':
		return append(dst, `\f`...)
	case '\r':
		return append(dst, `\r`...)
	default:
		return append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&0xF])
	}
}

// AppendNumber appends f as ECMAScript writes numbers. NaN and the infinities
// have no JSON form: it panics, because by then the caller has lost track of
// what it signs. NumberValue refuses them with an error.
func AppendNumber(dst []byte, f float64) []byte {
	abs := math.Abs(f)
	switch {
	case math.IsNaN(f) || math.IsInf(f, 0):
		panic("canon: " + reasonNotFinite)
	case f == 0:
		return append(dst, '0') // also for negative zero
	case abs <= maxInt && f == math.Trunc(f):
		return strconv.AppendInt(dst, int64(f), 10)
	case 1e-6 <= abs && abs < 1e21:
		return strconv.AppendFloat(dst, f, 'f', -1, 64)
	}
	dst = strconv.AppendFloat(dst, f, 'e', -1, 64)
	// Go pads an exponent to two digits, ECMAScript does not. Only negative ones
	// are short enough here.
	if n := len(dst); dst[n-3] == '-' && dst[n-2] == '0' {
		dst[n-2] = dst[n-1]
		dst = dst[:n-1]
	}
	return dst
}

// AppendInt appends n. Beyond ±2^53 a reader's double would not hold n, and it
// panics as AppendNumber does.
func AppendInt(dst []byte, n int64) []byte {
	if n < -maxInt || n > maxInt {
		panic("canon: " + reasonInexact)
	}
	return strconv.AppendInt(dst, n, 10)
}
