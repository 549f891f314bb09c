package classify

import "strings"

// scan finds URLs of any scheme and e-mail addresses in a text. It reads each byte a bounded number
// of times, whatever the text.
func (h *hosts) scan(text string) {
	signs := sign(0)
	for i := range len(text) {
		signs |= signsOf[text[i]]
	}
	if signs == 0 {
		return
	}
	if signs&signColon != 0 {
		h.urls(text)
	}
	if signs&signSlash != 0 {
		h.relative(text)
	}
	if signs&signAt != 0 {
		h.emails(text)
	}
	if signs&signBreak != 0 {
		h.whole(text)
	}
}

// sign is a set of bytes. A text without any of them names no host; most texts have none and are
// skipped quickly.
type sign uint8

const (
	signColon sign = 1 << iota
	signSlash
	signAt
	signBreak
)

var signsOf = [256]sign{':': signColon, '/': signSlash, '\\': signSlash, '@': signAt, '\t': signBreak, '\r': signBreak, '\n': signBreak}

// isBreak reports whether web clients drop b anywhere in a URL.
func isBreak(b byte) bool { return b == '\t' || b == '\r' || b == '\n' }

func isSlash(b byte) bool { return b == '/' || b == '\\' }

func (h *hosts) urls(s string) {
	var span span
	for from := 0; ; {
		colon := strings.IndexByte(s[from:], ':')
		if colon < 0 {
			return
		}
		colon += from
		start, how, ok := authorityAfter(s, colon)
		from = max(start, colon+1)
		switch {
		case ok && how == asNoPort:
			h.slashless(s, start, &span)
		case ok:
			h.authority(s[start:endOfAuthority(s, start)], how)
		}
	}
}

// span is an authority that may contain others: without slashes nothing else ends them, and each
// byte must be read a bounded number of times.
type span struct {
	end int // 0 if there is none
	at  int // index of the last @, or -1
}

// slashless reads the authority after a scheme without slashes: the host after the last @, and
// whatever comes before punctuation with at most one colon in it.
func (h *hosts) slashless(s string, start int, in *span) {
	if start >= in.end {
		in.end = endOfAuthority(s, start)
		if in.at = strings.LastIndexByte(s[start:in.end], '@'); in.at >= 0 {
			in.at += start
			h.authority(s[in.at:in.end], asNoPort)
		}
	}
	limit := in.end
	if in.at >= start {
		limit = in.at
	}
	literal := start < limit && s[start] == '['
	colons, end := 0, start
	for end < limit && colons < 2 && strings.IndexByte(punctuation, s[end]) < 0 {
		if s[end] == ':' && !literal {
			colons++
		}
		literal = literal && s[end] != ']' && end-start < maxLiteral
		end++
	}
	if colons < 2 && (in.at < start || end < limit) {
		h.authority(s[start:end], asNoPort)
	}
}

// maxLiteral is more than the maximum length of an address in brackets, in bytes.
const maxLiteral = 64

// authorityAfter returns where the authority of a URL starts whose scheme ends at a colon. Web
// clients treat backslashes as slashes, accept any number of them or none, and drop line breaks.
func authorityAfter(s string, colon int) (start int, how reading, ok bool) {
	end, slashes, broken := afterSlashes(s, colon+1)
	scheme := colon
	for scheme > 0 && isBreak(s[scheme-1]) {
		scheme--
	}
	if scheme == 0 || classOf(s[scheme-1]) == separator {
		return end, asURL, false
	}
	begin, web := webScheme(s, scheme)
	switch {
	case web && slashes > 0:
		return end, asURL, true
	case web:
		// https:443 has a port, and xhttp:a.b has no scheme.
		return end, asNoPort, begin == 0 || classOf(s[begin-1]) == separator
	case slashes > 1 && !broken && scheme == colon && strings.HasPrefix(s[colon+1:], "//"):
		return colon + 3, asURL, true
	default:
		return end, asURL, false
	}
}

// afterSlashes skips slashes and line breaks, and counts the slashes.
func afterSlashes(s string, from int) (end, slashes int, broken bool) {
	for end = from; end < len(s); end++ {
		switch {
		case isSlash(s[end]):
			slashes++
		case isBreak(s[end]):
			broken = true
		default:
			return end, slashes, broken
		}
	}
	return end, slashes, broken
}

// webScheme looks for a web scheme that ends at an index, and returns where it starts. It may
// contain line breaks.
func webScheme(s string, end int) (begin int, ok bool) {
	for _, scheme := range [...]string{"https", "http", "wss", "ws", "ftp"} {
		if begin, ok = beforeFold(s, end, scheme); ok {
			return begin, true
		}
	}
	return 0, false
}

// beforeFold matches a lower-case text backwards from an index.
func beforeFold(s string, end int, lowerCase string) (begin int, ok bool) {
	for i := len(lowerCase) - 1; i >= 0; i-- {
		for end > 0 && i < len(lowerCase)-1 && isBreak(s[end-1]) {
			end--
		}
		if end == 0 || lowerByte(s[end-1]) != lowerCase[i] {
			return 0, false
		}
		end--
	}
	return end, true
}

// relative finds URLs without a scheme: at the start of a text, or in an attribute or a link.
func (h *hosts) relative(s string) {
	begin := 0
	for begin < len(s) && s[begin] <= ' ' {
		begin++
	}
	if end, slashes, _ := afterSlashes(s, begin); slashes > 1 {
		h.relativeOne(s[end:])
	}
	for from := begin; ; {
		at := strings.Index(s[from:], "//")
		if at < 0 {
			return
		}
		at += from
		from = at + 2
		if at > 0 && strings.IndexByte(`"'=(`, s[at-1]) >= 0 {
			end, _, _ := afterSlashes(s, at)
			h.relativeOne(s[end:])
			from = end
		}
	}
}

func (h *hosts) relativeOne(s string) {
	if !strings.HasPrefix(s, ".") {
		h.authority(s[:endOfAuthority(s, 0)], asNoPort)
	}
}

// whole reads a text that starts like a URL in the way that a web client reads it if it gets all of
// it: without line breaks. Prose that starts with a URL is not affected, unless the break is at a
// character that continues the host.
func (h *hosts) whole(s string) {
	s = trimControls(s)
	head := s[:min(len(s), maxWhole)]
	if !beginsAddress(head) {
		return
	}
	joined := joinLines(head, strings.IndexByte(s, ' ') < 0)
	if joined == head {
		return
	}
	h.urls(joined)
	h.relative(joined)
}

// maxWhole bounds where a host may end that is read without its breaks, in bytes.
const maxWhole = 4096

// trimControls trims blanks and control characters, like web clients.
func trimControls(s string) string {
	for s != "" && s[0] <= ' ' {
		s = s[1:]
	}
	for s != "" && s[len(s)-1] <= ' ' {
		s = s[:len(s)-1]
	}
	return s
}

func beginsAddress(s string) bool {
	if s == "" {
		return false
	}
	if isSlash(s[0]) {
		_, slashes, _ := afterSlashes(s, 0)
		return slashes > 1
	}
	colon := strings.IndexByte(s, ':')
	if colon < 0 {
		return false
	}
	for colon > 0 && isBreak(s[colon-1]) {
		colon--
	}
	begin, ok := webScheme(s, colon)
	return ok && begin == 0
}

// joinLines drops line breaks. A break is kept before another URL. If all is false, it is also kept
// unless a host character is next to it.
func joinLines(s string, all bool) string {
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); {
		if !isBreak(s[i]) {
			out = append(out, s[i])
			i++
			continue
		}
		end := i
		for end < len(s) && isBreak(s[end]) {
			end++
		}
		next := s[end:]
		marked := len(out) > 0 && strings.IndexByte(hostMarks, out[len(out)-1]) >= 0 || next != "" && strings.IndexByte(hostMarks, next[0]) >= 0
		if !all && !marked || beginsAddress(next[:min(len(next), 16)]) && len(out) > 0 && out[len(out)-1] != ':' {
			out = append(out, '\n')
		}
		i = end
	}
	return string(out)
}

// hostMarks occur inside or before authorities.
const hostMarks = `.-@:[]/\`

// endOfAuthority stops at characters that no authority can contain.
func endOfAuthority(s string, from int) int {
	for from < len(s) {
		switch s[from] {
		case '/', '?', '#', '\\', '"', '<', '>', '`':
			return from
		}
		if s[from] <= ' ' {
			return from
		}
		from++
	}
	return from
}

// punctuation may end a URL in prose, and may also occur in the user part of an authority.
const punctuation = ",;()'}!*|"

// authority reads the host after the last @. If there is punctuation before it, the text may also
// be a host next to an e-mail address.
func (h *hosts) authority(s string, how reading) {
	if at := strings.LastIndexByte(s, '@'); at >= 0 {
		if cut := strings.IndexAny(s[:at], punctuation); cut >= 0 {
			h.add(s[:cut], how)
		}
		s = s[at+1:]
	}
	if cut := strings.IndexAny(s, punctuation); cut >= 0 {
		s = s[:cut]
	}
	if !strings.HasPrefix(s, "[") {
		s = strings.TrimRight(s, "]")
	}
	h.add(s, how)
}

func (h *hosts) emails(s string) {
	for from := 0; ; {
		at := strings.IndexByte(s[from:], '@')
		if at < 0 {
			return
		}
		at += from
		end := endOfDomain(s, at+1)
		if domain := strings.TrimRight(s[at+1:end], ".-"); endsLocalPart(s, at) && isMailDomain(domain) {
			h.add(domain, asURL)
		}
		from = end
	}
}

// endsLocalPart is permissive: a client may accept an improper address, and it may be the user part
// of a URL.
func endsLocalPart(s string, at int) bool {
	return at > 0 && s[at-1] > ' ' && strings.IndexByte("/([{<>@", s[at-1]) < 0
}

func endOfDomain(s string, from int) int {
	if from < len(s) && s[from] == '[' {
		return endOfAuthority(s, from)
	}
	for from < len(s) && (classOf(s[from]) != separator || s[from] == '.' || s[from] == '-' || s[from] == '_') {
		from++
	}
	return from
}

// isMailDomain distinguishes versions from domains: name@1.2.3 has none.
func isMailDomain(domain string) bool {
	if strings.HasPrefix(domain, "[") {
		return true
	}
	dot := strings.LastIndexByte(domain, '.')
	return dot > 0 && dot+1 < len(domain) && classOf(domain[dot+1]) != digit
}

// bare reads the value of a key for hosts or addresses, with or without a scheme, one or several.
// Some clients drop line breaks inside an address, others treat each line as one: both readings
// count.
func (h *hosts) bare(text string, how reading) {
	if strings.ContainsAny(text, "\t\r\n") {
		joined := strings.NewReplacer("\t", "", "\r", "", "\n", "").Replace(text)
		if how == asURL {
			h.scan(joined)
		}
		h.bareParts(joined, how)
	}
	h.bareParts(text, how)
}

func (h *hosts) bareParts(text string, how reading) {
	for text != "" {
		end := 0
		for end < len(text) && text[end] != ',' && text[end] != ';' && !isBreak(text[end]) {
			end++
		}
		h.bareOne(trimControls(text[:end]), how)
		text = text[min(end+1, len(text)):]
	}
}

// bareOne leaves URLs with a scheme to scan, and ignores relative ones and prose.
func (h *hosts) bareOne(s string, how reading) {
	if colon := strings.IndexByte(s, ':'); colon >= 0 {
		if begin, web := webScheme(s, colon); web && begin == 0 {
			s = s[colon+1:]
		}
	}
	host := strings.TrimLeft(s, `/\`)
	if len(s)-len(host) == 1 || strings.HasPrefix(host, ".") {
		return
	}
	end := endOfAuthority(host, 0)
	rest := host[end:]
	switch {
	case strings.HasPrefix(rest, "//") && strings.HasSuffix(host[:end], ":"):
		return // another scheme
	case strings.HasPrefix(rest, " ") || how != asURL && isFileName(host):
		return
	}
	h.authority(host[:end], how)
}
