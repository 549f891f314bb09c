package classify

import "strings"

// Lengths from which on a word inside a text is taken for a secret. Shorter ones
// are more likely names: pk_id, hf_hub.
const (
	minSecret       = 8  // behind the prefix
	minBearer       = 8  // with a digit in it
	minPlainBearer  = 20 // without one
	bearerWithSpace = "bearer "
)

// RedactText takes secrets out of free text: words that begin like a secret,
// bearer tokens, and the values in name=value and "name":"value" under a
// sensitive name. Redacting twice changes nothing more.
func RedactText(s string) string {
	if prefix := secrets.beginning(s); prefix != "" {
		return Redacted + redactWords(s[endOfSecret(s, len(prefix)):])
	}
	return redactWords(s)
}

// redactWords goes through a text once. It copies only from the first secret on.
func redactWords(s string) string {
	t := text{s: s}
	for i := 0; i < len(s); {
		if !isWordByte(s[i]) {
			i = t.afterName(i)
			continue
		}
		i = t.word(i)
	}
	if t.copied == 0 {
		return s
	}
	t.out.WriteString(s[t.copied:])
	return t.out.String()
}

// text is a text on its way to being redacted.
type text struct {
	s      string
	out    strings.Builder
	copied int // how much of s is in out, replaced or not
	name   int // where the run of word bytes and hyphens before the cursor began
	ended  int // where that run ended
}

// replace puts the mark in the place of a stretch of the text and returns its end.
func (t *text) replace(from, to int) int {
	t.out.WriteString(t.s[t.copied:from])
	t.out.WriteString(Redacted)
	t.copied = to
	return to
}

// word looks at the word that begins at i, and returns where to go on.
func (t *text) word(i int) int {
	if t.ended != i || i == 0 {
		t.name = i
	}
	if prefix := secrets.beginning(t.s[i:]); prefix != "" {
		if end := endOfSecret(t.s, i+len(prefix)); end-i-len(prefix) >= minSecret {
			return t.replace(i, end)
		}
	}
	if start, end, ok := bearerToken(t.s, i); ok {
		return t.replace(start, end)
	}
	for i < len(t.s) && isWordByte(t.s[i]) {
		i++
	}
	t.ended = i
	return i
}

// afterName looks at a byte that belongs to no word. A name that ends before it
// may make what follows a secret.
func (t *text) afterName(i int) int {
	if t.ended != i || i == 0 {
		return i + 1
	}
	if t.s[i] == '-' {
		t.ended = i + 1 // api-key is one name
		return i + 1
	}
	opens, quote := opensValue(t.s, i)
	name := t.s[t.name:i]
	if opens == 0 || !isSensitive(name) {
		return i + 1
	}
	end := endOfValue(t.s, opens, quote)
	if end == opens || isCounter(name) && allDigits(t.s[opens:end]) {
		return end
	}
	return t.replace(opens, end)
}

// opensValue returns where the value begins that is given to a name which ends
// at i, in name=value, name="value" or "name": "value", and the quote it stands
// in. It begins nowhere, at 0, when none is given.
func opensValue(s string, i int) (int, byte) {
	if s[i] == '=' {
		return opensQuoted(s, i+1, i+1)
	}
	if s[i] != '"' && s[i] != '\'' {
		return 0, 0
	}
	colon := skip(s, i+1, ' ')
	value := skip(s, colon, ':')
	if value == colon {
		return 0, 0
	}
	return opensQuoted(s, skip(s, value, ' '), 0)
}

// opensQuoted passes the quote at i, if there is one.
func opensQuoted(s string, i, unquoted int) (int, byte) {
	if i < len(s) && (s[i] == '"' || s[i] == '\'') {
		return i + 1, s[i]
	}
	return unquoted, 0
}

// skip passes one byte, if it is there.
func skip(s string, i int, b byte) int {
	if i < len(s) && s[i] == b {
		return i + 1
	}
	return i
}

// endOfValue stops at the closing quote, or without one at what parts the
// assignments of a query string or a sentence.
func endOfValue(s string, from int, quote byte) int {
	if quote != 0 {
		return endOfQuoted(s, from, quote)
	}
	for from < len(s) && s[from] > ' ' && strings.IndexByte("&;,\"'`<>)}", s[from]) < 0 {
		from++
	}
	return from
}

func endOfQuoted(s string, from int, quote byte) int {
	for from < len(s) && s[from] != quote {
		if s[from] == '\\' {
			from++
		}
		from++
	}
	return min(from, len(s))
}

// endOfSecret passes over the alphabets of base64 and of URLs. The dot that ends a
// sentence is no part of the secret.
func endOfSecret(s string, from int) int {
	start := from
	for from < len(s) && (isWordByte(s[from]) || strings.IndexByte("-.~+/=%", s[from]) >= 0) {
		from++
	}
	for from > start && s[from-1] == '.' {
		from--
	}
	return from
}

// bearerToken returns the bounds of the token of an authorization header that
// begins at i. In "bearer bonds" stands none; a text that is nothing but the
// header has one whatever it looks like.
func bearerToken(s string, i int) (start, end int, ok bool) {
	start = i + len(bearerWithSpace)
	if start > len(s) || !equalFold(s[i:start], bearerWithSpace) {
		return 0, 0, false
	}
	end = endOfSecret(s, start)
	token := s[start:end]
	switch {
	case token == "":
		return 0, 0, false
	case i == 0 && end == len(s):
		return start, end, true
	default:
		return start, end, len(token) >= minPlainBearer || len(token) >= minBearer && strings.ContainsAny(token, "0123456789")
	}
}

func isWordByte(b byte) bool {
	return b < 0x80 && classOf(b) != separator || b == '_'
}
