package classify

import (
	"net/netip"
	"slices"
	"strings"
	"unicode/utf8"
)

// hosts collects external domains, in any order and with doubles.
type hosts struct{ found []string }

// sorted returns the domains, at most MaxDomains of them.
func (h *hosts) sorted() []string {
	slices.Sort(h.found)
	h.found = slices.Compact(h.found)
	if len(h.found) > MaxDomains {
		h.found = slices.Insert(h.found[:MaxDomains-1:MaxDomains-1], 0, MoreDomains)
	}
	return h.found
}

// reading says how sure it is that a text is a host.
type reading uint8

const (
	// asURL is for what stands in an address or under a key of hosts.
	asURL reading = iota
	// asNoPort is for what stands in an address without a scheme or slashes: a short
	// number is a port there.
	asNoPort
	// asLink is for bare words under keys of links: a page's name is no host.
	asLink
	// asTarget is for bare words under keys that hold anything that is sent to or
	// copied: only what ends like a domain is a host.
	asTarget
)

// add takes a host, with or without a port, and keeps it if it is external.
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

// parseAddress asks the parser only where an address is likely: its refusals are
// costly.
func parseAddress(host string) (netip.Addr, bool) {
	if classOf(host[0]) != digit && strings.IndexByte(host, ':') < 0 {
		return netip.Addr{}, false
	}
	address, err := netip.ParseAddr(host)
	return address, err == nil
}

// addAddress leaves out the machine itself and private networks. Link-local
// addresses count: credentials of clouds are served there.
func (h *hosts) addAddress(address netip.Addr) {
	address = address.Unmap().WithZone("")
	if address.IsLoopback() || address.IsUnspecified() || address.IsPrivate() {
		return
	}
	h.keep(address.String())
}

// keep spares the list the most common double, the domain found last.
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

// isExternal tells the world's names from those of the own network. When in
// doubt a host is external: a name that cannot be judged must not slip past an
// allowlist.
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
		return true // an IP address in one of its odder spellings
	}
	if top == host || top == "localhost" || top == "local" || top == "internal" {
		return false
	}
	return host != "home.arpa" && !strings.HasSuffix(host, ".home.arpa")
}

// isNumeric covers decimal, octal and hexadecimal numbers.
func isNumeric(label string) bool {
	return allDigits(label) || strings.HasPrefix(label, "0x")
}

// lowerCase folds ASCII alone: other letters differ from language to language.
func lowerCase(s string) string {
	for i := range len(s) {
		if classOf(s[i]) == upper {
			return string(appendLower(make([]byte, 0, len(s)), s))
		}
	}
	return s
}

// lastBytes keeps the end, which is what an allowlist looks at, and cuts no
// character in two.
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
