package classify

import (
	"encoding/base64"
	"strings"
)

// Minimum lengths of a word inside a text that counts as a secret. Shorter ones are more likely to
// be names: pk_id, hf_hub.
const (
	minSecret       = 8  // after the prefix
	minBearer       = 8  // if it contains a digit
	minPlainBearer  = 20 // if it contains none
	bearerWithSpace = "bearer "
	basicWithSpace  = "basic "
	authorization   = "authorization"
	maxBasic        = 1000 // longer ones are not a name and a password
)

// RedactText removes secrets from free text: words that start like a secret, private keys, bearer
// tokens, credentials and passwords in URLs, and the values in name=value and "name":"value" under
// a sensitive name. It is idempotent.
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
		switch {
		case i == t.password && i > 0:
			i = t.replace(i, t.at)
		case isWordByte(s[i]):
			i = t.word(i)
		case s[i] == '-' && strings.HasPrefix(s[i:], pemBegin) && isPrivateKey(s[i:]):
			i = t.replace(i, endOfPEM(s, i))
		default:
			i = t.afterName(i)
		}
	}
	if t.copied == 0 {
		return s
	}
	t.out.WriteString(s[t.copied:])
	return t.out.String()
}

// text is a text that is being redacted.
type text struct {
	s      string
	out    strings.Builder
	copied int // how much of s is in out, replaced or not
	name   int // where the run of word bytes and hyphens before the cursor starts
	ended  int // where that run ends

	password, at int // bounds of the password in the current URL
}

// replace replaces a part of the text with the mark and returns its end.
func (t *text) replace(from, to int) int {
	t.out.WriteString(t.s[t.copied:from])
	t.out.WriteString(Redacted)
	t.copied = to
	return to
}

// word handles the word that starts at i, and returns where to continue.
func (t *text) word(i int) int {
	if t.ended != i || i == 0 {
		t.name = i
	}
	if prefix := secrets.beginning(t.s[i:]); prefix != "" {
		if end := endOfSecret(t.s, i+len(prefix)); end-i-len(prefix) >= minSecret {
			return t.replace(i, end)
		}
	}
	if end := endOfLikely(t.s, i); end > 0 {
		return t.replace(i, end)
	}
	if b := t.s[i]; b == 'b' || b == 'B' {
		if start, end, ok := bearerToken(t.s, i); ok {
			return t.replace(start, end)
		}
		if start, end, ok := basicCredentials(t.s, i); ok {
			return t.replace(start, end)
		}
	}
	for i < len(t.s) && isWordByte(t.s[i]) {
		i++
	}
	t.ended = i
	return i
}

// afterName handles a byte outside words. A name that ends before it may make what follows a
// secret.
func (t *text) afterName(i int) int {
	if t.ended != i || i == 0 {
		return i + 1
	}
	if t.s[i] == '-' {
		t.ended = i + 1 // api-key is one name
		return i + 1
	}
	name := t.s[t.name:i]
	if t.s[i] == ':' {
		return t.afterColon(i, name)
	}
	opens, quote := opensValue(t.s, i)
	if opens == 0 || !isSensitive(name) && !isCookie(name) {
		return i + 1
	}
	end := endOfValue(t.s, opens, quote)
	if end == opens || (isCounter(name) || isCookie(name)) && allDigits(t.s[opens:end]) {
		return end
	}
	return t.replace(opens, end)
}

// afterColon handles what follows a scheme or the name of a header.
func (t *text) afterColon(i int, name string) int {
	if strings.HasPrefix(t.s[i:], "://") {
		t.password, t.at = passwordIn(t.s, i+3)
		return i + 3
	}
	start := i + 1
	for start < len(t.s) && t.s[start] == ' ' {
		start++
	}
	if start == i+1 {
		return start
	}
	end := endOfValue(t.s, start, 0)
	switch {
	case isCookie(name) && strings.IndexByte(t.s[start:end], '=') > 0:
		return t.replace(start, endOfHeader(t.s, start))
	case strings.IndexByte(name, '-') >= 0 && isSensitive(name) && isRandom(withoutMarks(t.s[start:end])):
		return t.replace(start, end)
	}
	return i + 1
}

// passwordIn returns the bounds of the password in the authority that starts at an index, or zeros.
func passwordIn(s string, start int) (from, to int) {
	authority := s[start:endOfAuthority(s, start)]
	at := strings.LastIndexByte(authority, '@')
	if at < 0 {
		return 0, 0
	}
	colon := strings.IndexByte(authority[:at], ':')
	if colon < 0 || colon+1 == at {
		return 0, 0
	}
	return start + colon + 1, start + at
}

// endOfHeader stops at the end of the line or of the quotes around the header.
func endOfHeader(s string, from int) int {
	for from < len(s) && strings.IndexByte("\r\n\"'`", s[from]) < 0 {
		from++
	}
	return from
}

// opensValue returns where the value of a name starts that ends at i, in name=value, name="value"
// or "name": "value", and its quote. It returns 0 if there is no value.
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

// opensQuoted skips the quote at i, if there is one.
func opensQuoted(s string, i, unquoted int) (int, byte) {
	if i < len(s) && (s[i] == '"' || s[i] == '\'') {
		return i + 1, s[i]
	}
	return unquoted, 0
}

// skip skips one byte if it is b.
func skip(s string, i int, b byte) int {
	if i < len(s) && s[i] == b {
		return i + 1
	}
	return i
}

// endOfValue stops at the closing quote or, without one, at a separator of a query string or a
// sentence.
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

// endOfSecret skips the alphabets of base64 and of URLs. The dot at the end of a sentence is not
// part of the secret.
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

// bearerToken returns the bounds of the token in an authorization header that starts at i. "bearer
// bonds" has none. A text that is nothing but the header always has one.
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
		return start, end, isRandom(token)
	}
}

// withoutMarks removes what an earlier redaction put in place of secrets. The marks must not make a
// value look longer, and random, that was left as it is before.
func withoutMarks(value string) string { return strings.ReplaceAll(value, Redacted, "") }

// isRandom distinguishes tokens from words.
func isRandom(token string) bool {
	return len(token) >= minPlainBearer || len(token) >= minBearer && strings.ContainsAny(token, "0123456789")
}

// basicCredentials returns the bounds of the credentials of basic authentication that starts at i.
// After a header's name they are whatever follows. Elsewhere they must be a name and a password in
// base64: "basic research" has none.
func basicCredentials(s string, i int) (start, end int, ok bool) {
	start = i + len(basicWithSpace)
	if start > len(s) || !equalFold(s[i:start], basicWithSpace) {
		return 0, 0, false
	}
	if endsWithHeader(s[:i]) {
		end = endOfSecret(s, start)
		return start, end, end > start
	}
	end = endOfBase64(s, start)
	return start, end, holdsPassword(s[start:end])
}

func endOfBase64(s string, from int) int {
	for from < len(s) && s[from] < 0x80 && (classOf(s[from]) != separator || s[from] == '+' || s[from] == '/') {
		from++
	}
	for from < len(s) && s[from] == '=' {
		from++
	}
	return from
}

// endsWithHeader reports whether a text ends with authorization: and anything that may come between
// it and the value.
func endsWithHeader(s string) bool {
	before := strings.TrimRight(s, " :=\"'")
	cut := len(before) - len(authorization)
	return len(before) < len(s) && cut >= 0 && equalFold(before[cut:], authorization)
}

// holdsPassword decodes base64 and looks for the colon after a name.
func holdsPassword(token string) bool {
	token = strings.TrimRight(token, "=")
	if len(token) < minSecret || len(token) > maxBasic {
		return false
	}
	plain, err := base64.RawStdEncoding.DecodeString(token)
	if err != nil {
		return false
	}
	for _, b := range plain {
		if b < ' ' || b > '~' {
			return false
		}
	}
	return strings.IndexByte(string(plain), ':') > 0
}

// credentials returns where the secret starts in the value of an authorization header: after the
// scheme, or at 0 if there is none. It returns -1 if the value has none: an authorization can also
// be pending.
func credentials(value string) int {
	scheme, rest, found := strings.Cut(value, " ")
	if !found {
		if isRandom(value) && endOfSecret(value, 0) == len(value) {
			return 0
		}
		return -1
	}
	for _, known := range [...]string{"basic", "bearer", "digest", "negotiate", "ntlm", "token", "apikey", "key", "hawk", "aws4-hmac-sha256"} {
		if equalFold(scheme, known) && strings.Trim(rest, " ") != "" {
			return len(scheme) + 1
		}
	}
	return -1
}

const pemBegin = "-----BEGIN "

// maxPEMLabel bounds the text between the dashes, in bytes.
const maxPEMLabel = 64

// isPrivateKey checks the first line of a key: capitals, digits and blanks between dashes.
func isPrivateKey(s string) bool {
	label := s[len(pemBegin):min(len(s), len(pemBegin)+maxPEMLabel)]
	end := 0
	for end < len(label) && (label[end] == ' ' || classOf(label[end]) == upper || classOf(label[end]) == digit) {
		end++
	}
	return strings.Contains(label[:end], "PRIVATE KEY") && strings.HasPrefix(label[end:], "-----")
}

// endOfPEM returns the end of the last line of the key, or the end of the text if it was cut.
func endOfPEM(s string, from int) int {
	const pemEnd = "-----END "
	at := strings.Index(s[from:], pemEnd)
	if at < 0 {
		return len(s)
	}
	at += from + len(pemEnd)
	dashes := strings.Index(s[at:min(len(s), at+maxPEMLabel)], "-----")
	if dashes < 0 {
		return len(s)
	}
	return at + dashes + len("-----")
}

func isWordByte(b byte) bool {
	return b < 0x80 && classOf(b) != separator || b == '_'
}
