package classify

import (
	"slices"
	"testing"
)

// Both forms of a domain are one domain, however it is written, and letters that only look alike are
// different domains. What programs read differently counts in each reading, and what cannot be
// looked up stays as it is.
func TestASCIIDomains(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		host string
		want []string
	}{
		{"example.com", []string{"example.com"}},
		{"xn--bcher-kva.example", []string{"xn--bcher-kva.example"}},
		{"b\u00fccher.example", []string{"xn--bcher-kva.example"}},
		{"bu\u0308cher.example", []string{"xn--bcher-kva.example"}},
		{"B\u00dcCHER.example", []string{"xn--bcher-kva.example"}},
		{"shop.b\u00fccher.example", []string{"shop.xn--bcher-kva.example"}},
		{"\u4f8b\u3048\u3002\u30c6\u30b9\u30c8", []string{"xn--r8jz45g.xn--zckzah"}},
		{"\uff45xample.com", []string{"example.com"}},
		{"\u0430pple.com", []string{"xn--pple-43d.com"}}, // a Cyrillic a
		{"appl\u0435.com", []string{"xn--appl-y4d.com"}}, // a Cyrillic e
		{"stra\u00dfe.example", []string{"strasse.example", "xn--strae-oqa.example"}},
		{"exa\u200cmple.com", []string{"exa\u200cmple.com"}},
		{"evil.com\u2100.example.com", []string{"evil.com\u2100.example.com"}}, // becomes a/c in some programs
		{"\u202ecom.example", []string{"\u202ecom.example"}},
		{"*", []string{"*"}},
	} {
		if got := ASCIIDomains([]string{c.host}); !slices.Equal(got, c.want) {
			t.Errorf("%q is compared as %q, want %q", c.host, got, c.want)
		}
	}
	if got := ASCIIDomains([]string{"b\u00fccher.example", "xn--bcher-kva.example", "a.example"}); !slices.Equal(got, []string{"a.example", "xn--bcher-kva.example"}) {
		t.Errorf("two forms of one domain are %q", got)
	}
}

// Rules may name a domain in either form. Names in ASCII, and what is no such form, stay alone.
func TestBothForms(t *testing.T) {
	t.Parallel()
	given := []string{"a.example", "shop.xn--bcher-kva.example", "xn--!.example"}
	want := append(slices.Clone(given), "shop.b\u00fccher.example")
	if got := BothForms(given); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
