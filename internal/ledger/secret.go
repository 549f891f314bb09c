package ledger

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"math/big"
	"strings"
)

const redacted = "<redacted>"

// Secret is a text that must not leave the process by accident: printed, logged or encoded, it is
// "<redacted>". Only Reveal returns it, so that a search for that name finds every use. The zero
// Secret is empty.
type Secret struct {
	// reveal is a function because fmt and similar packages print unexported fields of a struct
	// without calling their methods; of a function they print only an address. It also makes the
	// compiler refuse ==, whose duration would reveal how much of two texts matched.
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

// Equal reports whether both texts are equal, in a time that depends only on their lengths.
func (s Secret) Equal(other Secret) bool {
	return subtle.ConstantTimeCompare([]byte(s.Reveal()), []byte(other.Reveal())) == 1
}

// String implements fmt.Stringer.
func (Secret) String() string { return redacted }

// GoString implements fmt.GoStringer.
func (Secret) GoString() string { return redacted }

// Format implements fmt.Formatter. Without it, verbs such as %x and %d would bypass String.
func (Secret) Format(state fmt.State, _ rune) { _, _ = io.WriteString(state, redacted) }

// MarshalJSON implements json.Marshaler.
func (Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// MarshalText implements encoding.TextMarshaler.
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// LogValue implements slog.LogValuer.
func (Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// Format of an API key's text: prefix, 256 random bits, and a CRC-32 of both, in base62.
const (
	apiKeyPrefix    = "csk_"
	opaqueBodyWidth = 43 // base62 digits needed for 256 bits
	checkWidth      = 6  // base62 digits needed for 32 bits
	apiKeyWidth     = len(apiKeyPrefix) + opaqueBodyWidth + checkWidth
	hintWidth       = 4
)

// ErrMalformedKey says that a text cannot be an API key. It indicates a bad paste, which the user
// can fix, as opposed to an unknown key. Errors that wrap it never contain any part of the text.
var ErrMalformedKey = errors.New("malformed API key")

// The causes are allocated once, so that a flood of bad keys does not cost an allocation each.
var (
	errKeyPrefix  = fmt.Errorf("%w: it must begin with %s", ErrMalformedKey, apiKeyPrefix)
	errKeyLength  = fmt.Errorf("%w: it must be %d characters long; was it cut off, or pasted with a space?", ErrMalformedKey, apiKeyWidth)
	errKeyForeign = fmt.Errorf("%w: after %s it may hold only the letters a-z, A-Z and digits", ErrMalformedKey, apiKeyPrefix)
	errKeyCheck   = fmt.Errorf("%w: its last %d characters do not match the rest; was it mistyped?", ErrMalformedKey, checkWidth)
)

// APIKey is a well-formed API key, issued or not. It contains the hash and the hint but not the
// text, so that it cannot leak the key.
type APIKey struct {
	hash [sha256.Size]byte
	tail [hintWidth]byte
}

// NewAPIKey returns the API key for 256 random bits.
func NewAPIKey(entropy [32]byte) Secret {
	signed := apiKeyPrefix + base62(new(big.Int).SetBytes(entropy[:]), opaqueBodyWidth)
	check := new(big.Int).SetUint64(uint64(crc32.ChecksumIEEE([]byte(signed))))
	return NewSecret(signed + base62(check, checkWidth))
}

// ParseAPIKey checks the form of an API key. Every error wraps ErrMalformedKey.
func ParseAPIKey(text string) (APIKey, error) {
	if !strings.HasPrefix(text, apiKeyPrefix) {
		return APIKey{}, errKeyPrefix
	}
	if len(text) != apiKeyWidth {
		return APIKey{}, errKeyLength
	}
	if !isBase62(text[len(apiKeyPrefix):]) {
		return APIKey{}, errKeyForeign
	}
	raw := []byte(text)
	signed, check := raw[:apiKeyWidth-checkWidth], raw[apiKeyWidth-checkWidth:]
	if base62Value(check) != uint64(crc32.ChecksumIEEE(signed)) {
		return APIKey{}, errKeyCheck
	}
	return APIKey{hash: sha256.Sum256(raw), tail: [hintWidth]byte(raw[apiKeyWidth-hintWidth:])}, nil
}

// Hash returns the hash that a store keeps and looks up. A plain SHA-256 is enough: passwords need
// a slow, salted hash because they can be guessed, and 256 random bits cannot.
func (k APIKey) Hash() [sha256.Size]byte { return k.hash }

// Hint identifies the key in lists: the prefix and the last four characters. They come from the
// check digits, not from the body, and reveal 24 of the 256 bits; the rest is still impossible to
// guess.
func (k APIKey) Hint() string { return apiKeyPrefix + "…" + string(k.tail[:]) }

// Format implements fmt.Formatter. The hash does not belong in a log either.
func (APIKey) Format(state fmt.State, _ rune) { _, _ = io.WriteString(state, redacted) }

// LogValue implements slog.LogValuer.
func (APIKey) LogValue() slog.Value { return slog.StringValue(redacted) }

// NewOpaqueToken returns 256 random bits as a bearer token. The prefix says what the token is for.
// It is hashed with the rest, so a token of one kind is never found as one of another.
func NewOpaqueToken(prefix string, entropy [32]byte) Secret {
	return NewSecret(prefix + base62(new(big.Int).SetBytes(entropy[:]), opaqueBodyWidth))
}

// HashToken returns the hash of a bearer token that a store keeps and looks up; see APIKey.Hash.
func HashToken(text string) [sha256.Size]byte { return sha256.Sum256([]byte(text)) }

const noDigit = 0xff

// base62Digits is the inverse of the alphabet 0-9a-zA-Z that math/big writes.
var base62Digits = func() (digits [256]uint8) {
	for i := range digits {
		digits[i] = noDigit
	}
	for i := range 62 {
		digits[big.NewInt(int64(i)).Text(62)[0]] = uint8(i)
	}
	return digits
}()

func base62(n *big.Int, width int) string {
	text := n.Text(62)
	return strings.Repeat("0", width-len(text)) + text
}

func isBase62(text string) bool {
	for i := range len(text) {
		if base62Digits[text[i]] == noDigit {
			return false
		}
	}
	return true
}

// base62Value parses at most ten base62 digits, which fit into 64 bits.
func base62Value(digits []byte) (value uint64) {
	for _, digit := range digits {
		value = value*62 + uint64(base62Digits[digit])
	}
	return value
}
