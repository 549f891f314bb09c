package classify

import (
	"slices"
	"strings"

	"golang.org/x/net/idna"
)

// A domain with letters beyond ASCII has two forms: bücher.example, and xn--bcher-kva.example, which
// is looked up. Domains are compared in the second form. Look-alikes of letters stay different in it.

// earlier reads names as programs that follow IDNA 2003 do. To them ß is ss.
var earlier = idna.New(idna.MapForLookup(), idna.BidiRule(), idna.Transitional(true))

// ASCIIDomain returns the form of a domain that is compared. ok is false if no program that follows
// the standard would look it up. A name in ASCII is returned as it is.
func ASCIIDomain(domain string) (ascii string, ok bool) {
	if isASCII(domain) {
		return domain, true
	}
	ascii, err := idna.Lookup.ToASCII(domain)
	return ascii, err == nil && ascii != "" && len(ascii) <= maxDomain
}

// ASCIIDomains replaces each host by the names that programs look up for it, sorted and without
// duplicates. Programs disagree on a few letters, such as ß: then both names count. A host that
// cannot be looked up stays as it is.
func ASCIIDomains(hosts []string) []string {
	if !slices.ContainsFunc(hosts, func(host string) bool { return !isASCII(host) }) {
		return hosts
	}
	names := make([]string, 0, len(hosts)+1)
	for _, host := range hosts {
		ascii, ok := ASCIIDomain(host)
		if !ok {
			names = append(names, host)
			continue
		}
		names = append(names, ascii)
		if other, err := earlier.ToASCII(host); err == nil && other != "" && len(other) <= maxDomain {
			names = append(names, other)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// BothForms adds the form with letters beyond ASCII to the domains that have one. It is for texts
// that people write, and may be in either form.
func BothForms(domains []string) []string {
	both := domains
	for _, domain := range domains {
		if !strings.HasPrefix(domain, "xn--") && !strings.Contains(domain, ".xn--") {
			continue
		}
		if readable, err := idna.Display.ToUnicode(domain); err == nil && readable != domain {
			both = append(both[:len(both):len(both)], readable)
		}
	}
	return both
}
