package classify

import (
	"strconv"
	"strings"

	"countersign/internal/canon"
)

// Redacted replaces a secret.
const Redacted = "[REDACTED]"

var redactedValue = mustString(Redacted)

// Redaction is a value that was removed.
type Redaction struct {
	Pointer string // JSON pointer of its place
	Raw     canon.Value
}

// RedactListed removes secrets from a value: everything under a sensitive name, strings that start
// like a secret, and secrets inside longer strings. It lists what it removed, in order. A value
// without secrets is returned unchanged, and so is one from which they were removed.
func RedactListed(v canon.Value) (canon.Value, []Redaction) {
	clean, changed := redact(v)
	if !changed {
		return v, nil
	}
	return clean, appendReplaced(nil, "", v, clean)
}

// appendReplaced compares a value with its redacted form, which differs only in the removed values.
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

// redact also reports whether anything changed, because most values are clean and need no copy.
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
		return redactedValue, true // cannot happen: the names come from an object
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

// redactHeader handles the headers that have secrets in some of their values.
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

// patterns are texts by their first byte. Most bytes start none and are skipped quickly.
type patterns [256][]string

func newPatterns(texts ...string) *patterns {
	var p patterns
	for _, text := range texts {
		p[text[0]] = append(p[text[0]], text)
	}
	return &p
}

// beginning returns the pattern that a text starts with, or "".
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

// Names of two words are stored without a separator. Those of the specification come first,
// followed by additional ones.
var (
	sensitiveNames  = newPatterns("password", "secret", "token", "ssn", "passwd", "pwd", "passphrase")
	sensitivePhrase = newPatterns("apikey", "creditcard", "privatekey", "accountkey", "sharedaccesskey")
)

// isSensitive looks for the sensitive names anywhere in a name, in any case. The names of two words
// are also found in apiKey and api-key. The others are not matched across words, or business_name
// would contain ssn.
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

// counters are words that make a name with token in it the name of a number: token_count,
// tokenLimit.
var counters = wordSet(`budget count counts limit number total usage used`)

// isCounter reports whether a name is that of a token count and contains nothing else that is
// sensitive.
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

// isCookie finds cookie as the last word of a name: cookie_policy and cookies_accepted contain
// none.
func isCookie(name string) bool {
	return endsWithWord(name, "cookie") || endsWithWord(name, "cookies")
}

func isAuthorization(name string) bool { return endsWithWord(name, authorization) }

// endsWithWord compares the end first, because few names are worth splitting into words.
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

// secrets are the prefixes of well-known secrets: those of the specification, including our own API
// keys, and other unmistakable ones.
var secrets = newPatterns("sk_", "pk_", "ghp_", "hf_", "eyJ", "AKIA", "csk_",
	"sk-ant-", "sk-proj-", "sk-svcacct-", "sk-or-v1-", "xoxb-", "xoxp-", "xoxa-", "xoxr-", "xoxs-", "xapp-", "AIza", "github_pat_",
	"gho_", "ghu_", "ghs_", "ghr_", "glpat-", "ya29.", "dop_v1_", "shpat_", "whsec_")

// likely are prefixes that words also have. A secret has at least as many letters and digits after
// them, without anything in between.
var likely = [...]struct {
	prefix string
	least  int
}{{"ASIA", 8}, {"SG.", 16}, {"npm_", 16}, {"sk-", 20}}

// endOfLikely returns the end of such a secret that starts at i, or 0.
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
