package canon

import (
	"strconv"
	"unicode/utf8"
)

// maxPointer bounds Error.Pointer in bytes: names come from outside and can
// be as long as the document.
const maxPointer = 256

const ellipsis = "…"

// The reasons name the fault and never the value, which may be a secret.
const (
	reasonEnd        = "the text ends too early"
	reasonValue      = "expected a value"
	reasonName       = "expected a name in double quotes"
	reasonColon      = "expected ':' after a name"
	reasonNextItem   = "expected ',' or ']'"
	reasonNextMember = "expected ',' or '}'"
	reasonTrailing   = "unexpected bytes after the value"
	reasonNumeral    = "malformed number"
	reasonControl    = "control character in a string: escape it"
	reasonEscape     = "invalid escape sequence in a string"
	reasonSurrogate  = "lone surrogate in a string: escape both halves of the pair"
	reasonUTF8       = "invalid UTF-8 in a string"
	reasonDuplicate  = "duplicate name in an object"
	reasonDepth      = "nested deeper than 64 levels"
	reasonInexact    = "a double cannot hold this number exactly: send it as a string"
	reasonNotFinite  = "a number must be finite"
)

// Error says where and why a text or a value is refused. It never repeats a
// value of the document, only names, in Pointer.
type Error struct {
	// Pointer is the RFC 6901 pointer to the offending value, "" for the whole
	// document. Beyond 256 bytes it is cut and ends in "…".
	Pointer string
	// Offset is the byte at which the fault was noticed. For a duplicate name
	// it is where the object begins.
	Offset int
	// Reason names the kind of fault.
	Reason string
	// WellFormed tells a JSON text that our rules refuse (a number that a double
	// cannot hold, nesting beyond MaxDepth) from a text that is broken. Beyond
	// MaxDepth the text is not read any further, and counts as well-formed.
	WellFormed bool
}

func (e *Error) Error() string {
	// Quoted, because a name may hold line breaks that would forge log lines.
	return "json: " + e.Reason + " (at " + strconv.Quote(e.Pointer) + ", byte " + strconv.Itoa(e.Offset) + ")"
}

// under moves the error one level down, into the member or item called token.
// Cutting at every level keeps the work bounded however long the names are.
func (e *Error) under(token string) *Error {
	e.Pointer = cutPointer("/" + pointerEscapes.Replace(cutPointer(token)) + e.Pointer)
	return e
}

func (e *Error) underItem(index int) *Error {
	return e.under(strconv.Itoa(index))
}

func cutPointer(s string) string {
	if len(s) <= maxPointer {
		return s
	}
	end := maxPointer - len(ellipsis)
	for !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + ellipsis
}
