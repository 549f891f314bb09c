package classify

import (
	"net/netip"
	"slices"
	"strings"
	"unicode/utf8"
)

// hosts collects external domains, unordered and with duplicates.
type hosts struct{ found []string }

// sorted returns at most MaxDomains domains.
func (h *hosts) sorted() []string {
	slices.Sort(h.found)
	h.found = slices.Compact(h.found)
	if len(h.found) > MaxDomains {
		h.found = slices.Insert(h.found[:MaxDomains-1:MaxDomains-1], 0, MoreDomains)
	}
	return h.found
}

// reading says how certain it is that a text is a host.
type reading uint8

const (
	// asURL is for a part of a URL or the value of a key for hosts.
	asURL reading = iota
	// asNoPort is for a URL without a scheme or slashes, where a short number is a port.
	asNoPort
	// asLink is for bare words under keys for links: the name of a page is not a host.
	asLink
	// asTarget is for bare words under keys for anything that is sent to or copied: only what ends
	// like a domain is a host.
	asTarget
)

// add adds a host, with or without a port, if it is external.
func (h *hosts) add(host string, how reading) {
	host = withoutPort(host)
	if host == "" || how == asNoPort && len(host) <= len("65535") && allDigits(host) {
		return
	}
	if address, ok := parseAddress(host); ok {
		h.addAddress(address)
		return
	}
	host = strings.TrimRight(lowerCase(host), ".")
	if !isExternal(host) || how >= asLink && !endsLikeDomain(host, how) {
		return
	}
	h.keep(lastBytes(host, maxDomain))
}

// parseAddress calls the parser only if an address is likely, because its errors are expensive.
func parseAddress(host string) (netip.Addr, bool) {
	if classOf(host[0]) != digit && strings.IndexByte(host, ':') < 0 {
		return netip.Addr{}, false
	}
	address, err := netip.ParseAddr(host)
	return address, err == nil
}

// addAddress ignores the machine itself and private networks. Link-local addresses count, because
// clouds serve credentials there.
func (h *hosts) addAddress(address netip.Addr) {
	address = address.Unmap().WithZone("")
	if address.IsLoopback() || address.IsUnspecified() || address.IsPrivate() {
		return
	}
	h.keep(address.String())
}

// keep skips the most common duplicate, the last domain.
func (h *hosts) keep(domain string) {
	if n := len(h.found); n > 0 && h.found[n-1] == domain {
		return
	}
	h.found = append(h.found, domain)
}

func withoutPort(host string) string {
	if literal, bracketed := strings.CutPrefix(host, "["); bracketed {
		literal, _, _ = strings.Cut(literal, "]")
		return literal
	}
	first := strings.IndexByte(host, ':')
	if first < 0 || strings.IndexByte(host[first+1:], ':') >= 0 {
		return host // without a port, or a bare IPv6 address
	}
	return host[:first]
}

// isExternal distinguishes public names from those of the own network. In doubt a host is external:
// a name that cannot be judged must not bypass an allowlist.
func isExternal(host string) bool {
	if host == "" {
		return false
	}
	for i := range len(host) {
		if host[i] >= utf8.RuneSelf || host[i] == '%' {
			return true
		}
	}
	top := host[strings.LastIndexByte(host, '.')+1:]
	if isNumeric(top) {
		return true // an IP address in an unusual spelling
	}
	if top == host || top == "localhost" || top == "local" || top == "internal" {
		return false
	}
	return host != "home.arpa" && !strings.HasSuffix(host, ".home.arpa")
}

// isNumeric reports whether a label is a decimal, octal or hexadecimal number.
func isNumeric(label string) bool {
	return allDigits(label) || strings.HasPrefix(label, "0x")
}

// lowerCase folds only ASCII, because other letters depend on the language.
func lowerCase(s string) string {
	for i := range len(s) {
		if classOf(s[i]) == upper {
			return string(appendLower(make([]byte, 0, len(s)), s))
		}
	}
	return s
}

// lastBytes keeps the end of a text, which is what an allowlist compares, without splitting a
// character.
func lastBytes(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	s = s[len(s)-limit:]
	for s != "" && !utf8.RuneStart(s[0]) {
		s = s[1:]
	}
	return s
}
