package canon

import "encoding/hex"

// ObjectWriter appends one canonical object member by member, for records whose
// members are known: no tree, no reflection, no sorting. The caller names the
// members in canonical order and with plain ASCII names; tests prove that it did
// by holding every writer's output against Parse and Append.
type ObjectWriter struct {
	dst     []byte
	members bool
}

// BeginObject starts an object at the end of dst.
func BeginObject(dst []byte) ObjectWriter {
	return ObjectWriter{dst: append(dst, '{')}
}

// End closes the object and returns the bytes with what stood before them.
func (w *ObjectWriter) End() []byte { return append(w.dst, '}') }

// Name appends a member's name; the caller appends its value to the returned
// bytes and hands them back with Value.
func (w *ObjectWriter) Name(name string) []byte {
	if w.members {
		w.dst = append(w.dst, ',')
	}
	w.members = true
	w.dst = append(w.dst, '"')
	w.dst = append(w.dst, name...)
	return append(w.dst, '"', ':')
}

// Value takes back what Name handed out, with a value appended.
func (w *ObjectWriter) Value(dst []byte) { w.dst = dst }

// String writes a string member.
func (w *ObjectWriter) String(name, value string) {
	w.dst = AppendString(w.Name(name), value)
}

// StringOrNull writes a string member, null for the empty string.
func (w *ObjectWriter) StringOrNull(name, value string) {
	if value == "" {
		w.Null(name)
		return
	}
	w.String(name, value)
}

// Strings writes an array of strings.
func (w *ObjectWriter) Strings(name string, values []string) {
	dst := append(w.Name(name), '[')
	for i, value := range values {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = AppendString(dst, value)
	}
	w.dst = append(dst, ']')
}

// Int writes an integer member.
func (w *ObjectWriter) Int(name string, value int64) {
	w.dst = AppendInt(w.Name(name), value)
}

// Number writes a number member.
func (w *ObjectWriter) Number(name string, value float64) {
	w.dst = AppendNumber(w.Name(name), value)
}

// Bool writes a boolean member.
func (w *ObjectWriter) Bool(name string, value bool) {
	if value {
		w.dst = append(w.Name(name), "true"...)
		return
	}
	w.dst = append(w.Name(name), "false"...)
}

// Null writes a null member.
func (w *ObjectWriter) Null(name string) {
	w.dst = append(w.Name(name), "null"...)
}

// Hex writes bytes as a string of lower-case hexadecimal digits.
func (w *ObjectWriter) Hex(name string, value []byte) {
	w.dst = append(hex.AppendEncode(append(w.Name(name), '"'), value), '"')
}

// Raw writes a member whose value is canonical JSON already, null for none.
func (w *ObjectWriter) Raw(name string, canonical []byte) {
	if len(canonical) == 0 {
		w.Null(name)
		return
	}
	w.dst = append(w.Name(name), canonical...)
}
