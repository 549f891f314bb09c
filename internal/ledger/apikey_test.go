package ledger

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"regexp"
	"strings"
	"testing"
)

func entropyOf(fill byte) (entropy [32]byte) {
	for i := range entropy {
		entropy[i] = fill
	}
	return entropy
}

// An API key is the prefix csk_ and 49 base62 digits, carries all of its entropy,
// and is stored as the SHA-256 of its text.
func TestNewAPIKeyHasAFixedForm(t *testing.T) {
	t.Parallel()
	form := regexp.MustCompile(`^csk_[0-9A-Za-z]{49}$`)
	for _, fill := range []byte{0x00, 0x01, 0x7f, 0x80, 0xff} {
		t.Run(fmt.Sprintf("%#x", fill), func(t *testing.T) {
			t.Parallel()
			entropy := entropyOf(fill)
			text := NewAPIKey(entropy).Reveal()
			if !form.MatchString(text) {
				t.Fatalf("key %q does not match %s", text, form)
			}
			body, ok := new(big.Int).SetString(text[4:47], 62)
			if !ok || body.Cmp(new(big.Int).SetBytes(entropy[:])) != 0 {
				t.Errorf("the body of %q does not read back as its entropy", text)
			}
			key, err := ParseAPIKey(text)
			if err != nil {
				t.Fatalf("ParseAPIKey: %v", err)
			}
			if key.Hash() != sha256.Sum256([]byte(text)) {
				t.Error("Hash is not the SHA-256 of the whole text")
			}
			if want := "csk_…" + text[len(text)-4:]; key.Hint() != want {
				t.Errorf("Hint() = %q, want %q", key.Hint(), want)
			}
		})
	}
}

// The check digits of an all-zero key, computed with another implementation of CRC-32: issued keys
// must parse forever.
func TestAPIKeyCheckIsPinned(t *testing.T) {
	t.Parallel()
	text := NewAPIKey([32]byte{}).Reveal()
	if got, want := text[len(text)-checkWidth:], "2aNC97"; got != want {
		t.Errorf("check = %q, want %q", got, want)
	}
}

// A key that was cut off, pasted twice or mistyped is refused with an error that says what is
// wrong.
func TestParseAPIKeyRefusesBadPastes(t *testing.T) {
	t.Parallel()
	good := NewAPIKey(entropyOf(0x5a)).Reveal()
	replace := func(at int, by string) string { return good[:at] + by + good[at+len(by):] }
	tests := []struct {
		name, text string
		want       error
	}{
		{"empty", "", errKeyPrefix},
		{"prefix of another kind", "cvt_" + good[4:], errKeyPrefix},
		{"prefix in capitals", "CSK_" + good[4:], errKeyPrefix},
		{"leading space", " " + good, errKeyPrefix},
		{"prefix alone", "csk_", errKeyLength},
		{"cut off", good[:len(good)-1], errKeyLength},
		{"trailing newline", good + "\n", errKeyLength},
		{"pasted twice", good + good, errKeyLength},
		{"very long", "csk_" + strings.Repeat("0", 1<<20), errKeyLength},
		{"hyphen in the body", replace(10, "-"), errKeyForeign},
		{"NUL in the body", replace(4, "\x00"), errKeyForeign},
		{"letter outside ASCII", replace(20, "é"), errKeyForeign},
		{"foreign character in the check", replace(len(good)-1, "_"), errKeyForeign},
		{"check replaced", replace(len(good)-checkWidth, "zzzzzz"), errKeyCheck},
		{"check beyond 32 bits", replace(len(good)-checkWidth, "ZZZZZZ"), errKeyCheck},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			key, err := ParseAPIKey(test.text)
			if err != test.want || !errors.Is(err, ErrMalformedKey) {
				t.Errorf("ParseAPIKey error = %v, want %v", err, test.want)
			}
			if key != (APIKey{}) {
				t.Error("ParseAPIKey returned a key along with an error")
			}
		})
	}
}

// The check digits of an API key reveal any single wrong character.
func TestParseAPIKeyFindsEverySingleTypo(t *testing.T) {
	t.Parallel()
	good := NewAPIKey(entropyOf(0xc3)).Reveal()
	for at := len(apiKeyPrefix); at < len(good); at++ {
		for _, digit := range "09azAZ" {
			if rune(good[at]) == digit {
				continue
			}
			typo := good[:at] + string(digit) + good[at+1:]
			if _, err := ParseAPIKey(typo); !errors.Is(err, ErrMalformedKey) {
				t.Errorf("a typo at %d went unnoticed: %v", at, err)
			}
		}
	}
}

// A parsed API key prints and logs as redacted.
func TestAPIKeyDoesNotPrintItsHash(t *testing.T) {
	t.Parallel()
	key, err := ParseAPIKey(NewAPIKey(entropyOf(0x11)).Reveal())
	if err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%d"} {
		if got := fmt.Sprintf(verb, key); got != redacted {
			t.Errorf("Sprintf(%q) = %q, want %q", verb, got, redacted)
		}
	}
	var logged bytes.Buffer
	slog.New(slog.NewJSONHandler(&logged, nil)).Info("event", "key", key)
	if !strings.Contains(logged.String(), redacted) {
		t.Errorf("logged %s, want it redacted", logged.String())
	}
}

// A token is its prefix and 43 base62 digits, and its hash covers the prefix.
func TestNewOpaqueToken(t *testing.T) {
	t.Parallel()
	link, token := NewOpaqueToken("csl_", entropyOf(0x42)), NewOpaqueToken("cvt_", entropyOf(0x42))
	if !regexp.MustCompile(`^csl_[0-9A-Za-z]{43}$`).MatchString(link.Reveal()) {
		t.Errorf("token %q is not the prefix and 43 base62 digits", link.Reveal())
	}
	if HashToken(link.Reveal()) == HashToken(token.Reveal()) {
		t.Error("tokens of two kinds have one hash")
	}
	if HashToken(link.Reveal()) != sha256.Sum256([]byte(link.Reveal())) {
		t.Error("HashToken is not the SHA-256 of the whole text")
	}
}

// Any text is either a key with the hash of exactly that text, or refused without being repeated.
func FuzzParseAPIKey(f *testing.F) {
	good := NewAPIKey(entropyOf(0x77)).Reveal()
	for _, seed := range []string{
		"", "csk_", good, good[:52], good + "0", " " + good, strings.ToUpper(good), "csk_" + strings.Repeat("\xff", 49),
		"csk_" + strings.Repeat("0", 49), "csk_" + strings.Repeat("Z", 49), "cvt_" + good[4:],
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		key, err := ParseAPIKey(text)
		if err != nil {
			if !errors.Is(err, ErrMalformedKey) {
				t.Fatalf("error %v is not ErrMalformedKey", err)
			}
			if len(text) > len(apiKeyPrefix)+checkWidth && strings.Contains(err.Error(), text) {
				t.Fatal("the error repeats the key")
			}
			return
		}
		if key.Hash() != sha256.Sum256([]byte(text)) {
			t.Fatal("a parsed key has another key's hash")
		}
		body, ok := new(big.Int).SetString(text[4:47], 62)
		if !ok || body.BitLen() > 256 {
			return // well-formed, but no entropy produces it
		}
		var entropy [32]byte
		body.FillBytes(entropy[:])
		if NewAPIKey(entropy).Reveal() != text {
			t.Fatal("a parsed key is not what its entropy writes")
		}
	})
}

func BenchmarkParseAPIKey(b *testing.B) {
	text := NewAPIKey(entropyOf(0x33)).Reveal()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseAPIKey(text); err != nil {
			b.Fatal(err)
		}
	}
}
