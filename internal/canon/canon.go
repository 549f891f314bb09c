// Package canon reads strict JSON and writes canonical JSON (RFC 8785).
//
// Signatures and hashes are taken over bytes, so two parties must agree on
// the one text of a document. The reader therefore refuses whatever readers
// disagree on (duplicate names, invalid UTF-8, lone surrogates, numbers that
// a double would silently change) instead of repairing it, and the writer has
// no options.
//
// The package is pure: it knows no time, files, network or randomness.
package canon

// MaxDepth is the deepest nesting of arrays and objects that Parse accepts.
// Values built with the constructors are not held to it; whoever wraps a
// parsed value in further levels and wants to read the result back must count.
const MaxDepth = 64

// maxInt is the largest n for which every integer of [-n, n] is a double.
const maxInt = 1 << 53

// Parse reads exactly one JSON value, with optional whitespace around it.
// The value keeps no reference to data. The error is always an *Error.
func Parse(data []byte) (Value, error) {
	text := string(data)
	v, fault := (&reader{text: text}).document()
	if fault == nil {
		return v, nil
	}
	if fault.WellFormed {
		// The first pass stopped at a number we refuse. What follows may not be
		// JSON at all, and that is the graver fault to report.
		if _, graver := (&reader{text: text, anyNumber: true}).document(); graver != nil && !graver.WellFormed {
			fault = graver
		}
	}
	return Value{}, fault
}

// Canonicalize returns the canonical text of the JSON value in data. It
// accepts what Parse accepts.
func Canonicalize(data []byte) ([]byte, error) {
	v, err := Parse(data)
	if err != nil {
		return nil, err
	}
	return v.Append(make([]byte, 0, len(data))), nil
}
