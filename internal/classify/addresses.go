package classify

import "strings"

// scan finds URLs of any scheme and e-mail addresses in a text. Each byte is
// looked at a fixed number of times, whatever the text.
func (h *hosts) scan(text string) {
	h.urls(text)
	h.emails(text)
}

func (h *hosts) urls(s string) {
	for from := 0; ; {
		colon := strings.IndexByte(s[from:], ':')
		if colon < 0 {
			return
		}
		colon += from
		start, ok := authorityAfter(s, colon)
		from = max(start, colon+1)
		if ok {
			h.authority(s[start:endOfAuthority(s, start)])
		}
	}
}

// authorityAfter returns where the authority of a URL begins whose scheme ends at
// a colon. Web clients take backslashes for slashes and any number of them.
func authorityAfter(s string, colon int) (int, bool) {
	end := colon + 1
	for end < len(s) && (s[end] == '/' || s[end] == '\\') {
		end++
	}
	slashes := s[colon+1 : end]
	switch {
	case slashes == "" || colon == 0 || classOf(s[colon-1]) == separator:
		return end, false
	case isWebScheme(s[:colon]):
		return end, true
	case strings.HasPrefix(slashes, "//"):
		return colon + 3, true
	default:
		return end, false
	}
}

// isWebScheme reports whether a text ends with a scheme of the web.
func isWebScheme(before string) bool {
	for _, scheme := range [...]string{"http", "https", "ws", "wss", "ftp"} {
		if cut := len(before) - len(scheme); cut >= 0 && equalFold(before[cut:], scheme) {
			return true
		}
	}
	return false
}

// endOfAuthority stops at what can stand in no authority.
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

// punctuation may end a URL in prose, and may also stand in the user part that
// an authority begins with.
const punctuation = ",;()'}!*|"

// authority takes the host behind the last @. When punctuation stands before it,
// the text may also be a host and an e-mail address side by side.
func (h *hosts) authority(s string) {
	if at := strings.LastIndexByte(s, '@'); at >= 0 {
		if cut := strings.IndexAny(s[:at], punctuation); cut >= 0 {
			h.add(s[:cut])
		}
		s = s[at+1:]
	}
	if cut := strings.IndexAny(s, punctuation); cut >= 0 {
		s = s[:cut]
	}
	if !strings.HasPrefix(s, "[") {
		s = strings.TrimRight(s, "]")
	}
	h.add(s)
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
			h.add(domain)
		}
		from = end
	}
}

// endsLocalPart is generous: what is no proper address may still be read as one
// by a client, or be the user part of a URL.
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

// isMailDomain keeps versions apart from domains: in name@1.2.3 stands none.
func isMailDomain(domain string) bool {
	if strings.HasPrefix(domain, "[") {
		return true
	}
	dot := strings.LastIndexByte(domain, '.')
	return dot > 0 && dot+1 < len(domain) && classOf(domain[dot+1]) != digit
}

// bare reads the value of a key that is said to hold hosts or addresses, with or
// without a scheme, one or several.
func (h *hosts) bare(text string) {
	if strings.ContainsAny(text, "\t\r\n") {
		// Some clients drop these characters inside an address.
		joined := strings.NewReplacer("\t", "", "\r", "", "\n", "").Replace(text)
		h.scan(joined)
		text = joined
	}
	for text != "" {
		end := strings.IndexAny(text, ",;")
		if end < 0 {
			end = len(text)
		}
		h.bareOne(strings.Trim(text[:end], " "))
		text = text[min(end+1, len(text)):]
	}
}

// bareOne leaves URLs with a scheme to scan, and relative ones and prose alone.
func (h *hosts) bareOne(s string) {
	if strings.Contains(s, "://") || strings.IndexByte(s, ' ') >= 0 {
		return
	}
	if colon := strings.IndexByte(s, ':'); colon >= 0 && isWebScheme(s[:colon]) {
		s = s[colon+1:]
	}
	hostFirst := strings.TrimLeft(s, `/\`)
	if len(s)-len(hostFirst) == 1 || strings.HasPrefix(hostFirst, ".") {
		return
	}
	h.authority(hostFirst[:endOfAuthority(hostFirst, 0)])
}
