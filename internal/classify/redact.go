package classify

import (
	"strconv"
	"strings"

	"countersign/internal/canon"
)

// Redacted stands where a secret stood.
const Redacted = "[REDACTED]"

var redactedValue = mustString(Redacted)

// Redact takes secrets out of a value: whatever stands under a sensitive name,
// strings that begin like a secret, and secrets inside longer strings. What holds
// none comes back as it is. Redacting twice changes nothing more.
func Redact(v canon.Value) canon.Value {
	clean, _ := redact(v)
	return clean
}

// Redaction is a value that was taken out.
type Redaction struct {
	Pointer string // where it stood, as a JSON pointer
	Raw     canon.Value
}

// RedactListed is Redact that also lists what it took out, in order.
func RedactListed(v canon.Value) (canon.Value, []Redaction) {
	clean, changed := redact(v)
	if !changed {
		return v, nil
	}
	return clean, appendReplaced(nil, "", v, clean)
}

// appendReplaced compares a value with its redacted form, which differs in the values
// that were taken out and in nothing else.
func appendReplaced(list []Redaction, pointer string, raw, clean canon.Value) []Redaction {
	switch {
	case raw.Kind() == canon.Object && clean.Kind() == canon.Object:
		members := clean.Members()
		for i, member := range raw.Members() {
			list = appendReplaced(list, pointer+"/"+canon.PointerToken(member.Name), member.Value, members[i].Value)
		}
	case raw.Kind() == canon.Array && clean.Kind() == canon.Array:
		items := clean.Items()
		for i, item := range raw.Items() {
			list = appendReplaced(list, pointer+"/"+strconv.Itoa(i), item, items[i])
		}
	case clean.Kind() == canon.String && (raw.Kind() != canon.String || raw.Str() != clean.Str()):
		list = append(list, Redaction{pointer, raw})
	}
	return list
}

// redact also reports whether anything changed: most values are clean and need
// no copy.
func redact(v canon.Value) (canon.Value, bool) {
	switch v.Kind() {
	case canon.String:
		return redactString(v)
	case canon.Array:
		return redactArray(v)
	case canon.Object:
		return redactObject(v)
	default:
		return v, false
	}
}

func redactString(v canon.Value) (canon.Value, bool) {
	text := v.Str()
	if secrets.beginning(text) != "" {
		return redactedValue, true
	}
	clean := redactWords(text)
	if clean == text {
		return v, false
	}
	return mustString(clean), true
}

func redactArray(v canon.Value) (canon.Value, bool) {
	var clean []canon.Value
	for i, item := range v.Items() {
		replacement, changed := redact(item)
		if !changed {
			continue
		}
		if clean == nil {
			clean = append(clean, v.Items()...)
		}
		clean[i] = replacement
	}
	if clean == nil {
		return v, false
	}
	return canon.ArrayValue(clean...), true
}

func redactObject(v canon.Value) (canon.Value, bool) {
	var clean []canon.Member
	for i, member := range v.Members() {
		replacement, changed := redactMember(member)
		if !changed {
			continue
		}
		if clean == nil {
			clean = append(clean, v.Members()...)
		}
		clean[i].Value = replacement
	}
	if clean == nil {
		return v, false
	}
	object, err := canon.ObjectValue(clean...)
	if err != nil {
		return redactedValue, true // cannot happen: the names are an object's
	}
	return object, true
}

func redactMember(m canon.Member) (canon.Value, bool) {
	if !isSensitive(m.Name) {
		return redactHeader(m)
	}
	if m.Value.Kind() == canon.Number && isCounter(m.Name) {
		return m.Value, false
	}
	return redactedValue, m.Value.Str() != Redacted
}

// redactHeader looks at the headers that hold secrets in some of their values.
func redactHeader(m canon.Member) (canon.Value, bool) {
	kind := m.Value.Kind()
	switch {
	case isCookie(m.Name) && (kind == canon.Object || kind == canon.Array):
		return redactedValue, true
	case isCookie(m.Name) && kind == canon.String:
		return redactedValue, m.Value.Str() != Redacted
	case kind == canon.String && isAuthorization(m.Name):
		if at := credentials(m.Value.Str()); at >= 0 {
			clean := m.Value.Str()[:at] + Redacted
			return mustString(clean), clean != m.Value.Str()
		}
	}
	return redact(m.Value)
}

// mustString is for texts that are valid UTF-8 by construction.
func mustString(text string) canon.Value {
	v, err := canon.StringValue(text)
	if err != nil {
		panic("a redacted text is not valid UTF-8")
	}
	return v
}

// patterns are texts by their first byte: most bytes begin none, and are passed
// at once.
type patterns [256][]string

func newPatterns(texts ...string) *patterns {
	var p patterns
	for _, text := range texts {
		p[text[0]] = append(p[text[0]], text)
	}
	return &p
}

// beginning returns the pattern that a text begins with, "" for none.
func (p *patterns) beginning(text string) string {
	if text == "" {
		return ""
	}
	for _, pattern := range p[text[0]] {
		if strings.HasPrefix(text, pattern) {
			return pattern
		}
	}
	return ""
}

func (p *patterns) within(text []byte) bool {
	for i, b := range text {
		for _, pattern := range p[b] {
			if len(text)-i >= len(pattern) && string(text[i:i+len(pattern)]) == pattern {
				return true
			}
		}
	}
	return false
}

// The names of two words are kept without what parts them. Behind those of the
// specification stand those that we add.
var (
	sensitiveNames  = newPatterns("password", "secret", "token", "ssn", "passwd", "pwd", "passphrase")
	sensitivePhrase = newPatterns("apikey", "creditcard", "privatekey", "accountkey", "sharedaccesskey")
)

// isSensitive looks for the sensitive names anywhere in a name, in any case. The
// names of two words are also found in apiKey and api-key; the others are not
// looked for across words, or business_name would have an ssn in it.
func isSensitive(name string) bool {
	var buffer [64]byte
	folded := appendLower(buffer[:0], name)
	if sensitiveNames.within(folded) {
		return true
	}
	squeezed := folded[:0]
	for _, b := range folded {
		if b != '_' && b != '-' && b != ' ' {
			squeezed = append(squeezed, b)
		}
	}
	return sensitivePhrase.within(squeezed)
}

// counters are the words that make a name with token in it the name of a number:
// token_count, tokenLimit.
var counters = map[string]bool{
	"budget": true, "count": true, "counts": true, "limit": true, "number": true, "total": true, "usage": true, "used": true,
}

// isCounter reports whether a name is that of a count of tokens, and has nothing
// else that is sensitive in it.
func isCounter(name string) bool {
	var buffer [64]byte
	tokens, token, counted := false, false, false
	for start, end := nextWord(name, 0); start < len(name); start, end = nextWord(name, end) {
		word := appendLower(buffer[:0], name[start:end])
		switch {
		case string(word) == "tokens":
			tokens = true
		case string(word) == "token":
			token = true
		case counters[string(word)]:
			counted = true
		}
	}
	if !tokens && (!token || !counted) {
		return false
	}
	rest := strings.ReplaceAll(string(appendLower(buffer[:0], name)), "token", "")
	return !isSensitive(rest)
}

// isCookie finds cookie as the last word of a name: cookie_policy and
// cookies_accepted hold none.
func isCookie(name string) bool {
	return endsWithWord(name, "cookie") || endsWithWord(name, "cookies")
}

func isAuthorization(name string) bool { return endsWithWord(name, authorization) }

// endsWithWord compares the end first: few names are worth cutting into words.
func endsWithWord(name, word string) bool {
	end := len(name)
	for end > 0 && classOf(name[end-1]) == separator {
		end--
	}
	cut := end - len(word)
	if cut < 0 || !equalFold(name[cut:end], word) {
		return false
	}
	last := ""
	for start, stop := nextWord(name, 0); start < len(name); start, stop = nextWord(name, stop) {
		last = name[start:stop]
	}
	return len(last) == len(word)
}

// secrets are how well-known secrets begin: those of the specification, our own API
// keys among them, and others that begin like nothing else.
var secrets = newPatterns("sk_", "pk_", "ghp_", "hf_", "eyJ", "AKIA", "csk_",
	"sk-ant-", "sk-proj-", "sk-svcacct-", "sk-or-v1-", "xoxb-", "xoxp-", "xoxa-", "xoxr-", "xoxs-", "xapp-", "AIza", "github_pat_",
	"gho_", "ghu_", "ghs_", "ghr_", "glpat-", "ya29.", "dop_v1_", "shpat_", "whsec_")

// likely are beginnings that words have too. A secret has as many letters and
// digits behind them, and nothing else between.
var likely = [...]struct {
	prefix string
	least  int
}{{"ASIA", 8}, {"SG.", 16}, {"npm_", 16}, {"sk-", 20}}

// endOfLikely returns where such a secret ends that begins at i, 0 for none.
func endOfLikely(s string, i int) int {
	if b := s[i]; b != 'A' && b != 'S' && b != 'n' && b != 's' {
		return 0
	}
	for _, l := range likely {
		if !strings.HasPrefix(s[i:], l.prefix) {
			continue
		}
		body := i + len(l.prefix)
		end := body
		for end < len(s) && s[end] < 0x80 && classOf(s[end]) != separator {
			end++
		}
		if end-body >= l.least {
			return endOfSecret(s, end)
		}
	}
	return 0
}
