package ledger

import (
	"crypto/subtle"
	"fmt"
	"io"
	"log/slog"
)

const redacted = "<redacted>"

// Secret is a text that must not leave the process by accident: printed, logged
// or encoded it is "<redacted>". Only Reveal gives it away, so that every place
// that does is found by searching for that word. The zero Secret is empty.
type Secret struct {
	// fmt and others that look inside values call no methods on the unexported
	// fields of a struct that holds a Secret: they print what they find there,
	// and of a function they find an address. It also makes the compiler refuse
	// ==, which would tell by its duration how much of two texts matched.
	reveal func() string
}

// NewSecret wraps text.
func NewSecret(text string) Secret {
	return Secret{reveal: func() string { return text }}
}

// Reveal returns the wrapped text.
func (s Secret) Reveal() string {
	if s.reveal == nil {
		return ""
	}
	return s.reveal()
}

// Equal reports whether both hold the same text, in a time that depends on
// their lengths alone.
func (s Secret) Equal(other Secret) bool {
	return subtle.ConstantTimeCompare([]byte(s.Reveal()), []byte(other.Reveal())) == 1
}

// String implements fmt.Stringer.
func (Secret) String() string { return redacted }

// GoString implements fmt.GoStringer.
func (Secret) GoString() string { return redacted }

// Format implements fmt.Formatter: without it verbs such as %x and %d would
// reach past String.
func (Secret) Format(state fmt.State, _ rune) { _, _ = io.WriteString(state, redacted) }

// MarshalJSON implements json.Marshaler.
func (Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// MarshalText implements encoding.TextMarshaler.
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// LogValue implements slog.LogValuer.
func (Secret) LogValue() slog.Value { return slog.StringValue(redacted) }
