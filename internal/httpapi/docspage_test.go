package httpapi_test

import (
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"countersign/internal/httpapi"
	"countersign/internal/service"
)

// openDocs opens the API reference in a browser, at an address with this fragment, and waits until it
// is laid out.
func openDocs(t *testing.T, fragment string) *tab {
	t.Helper()
	server := httptest.NewServer(httpapi.New(httpapi.Config{Service: new(service.Service)}).Handler())
	t.Cleanup(server.Close)
	b := openTab(t)
	b.do(t, chromedp.Navigate(server.URL+"/docs"+fragment))
	ask[bool](t, b, `new Promise((done) => {
		const look = () => document.getElementById("state") ? requestAnimationFrame(look) : done(true);
		look();
	})`)
	return b
}

// The API reference describes what every list contains: the members of its elements, and of what
// stands in for an element that was tampered with. Each type is named once.
func TestTheReferenceDescribesTheElementsOfLists(t *testing.T) {
	t.Parallel()
	b := openDocs(t, "")
	for operation, want := range map[string][]string{
		"listChains": {"agents_involved", "integrity"}, "listEvents": {"payload", "integrity"}, "listApprovals": {"expires_at", "integrity"},
		"listReceipts": {"receipt_number", "integrity"}, "listActs": {"sequence", "integrity"}, "listApiKeys": {"hint"},
	} {
		names := ask[[]string](t, b, `[...document.querySelectorAll("#`+operation+` .answers .field b")].map((name) => name.textContent)`)
		for _, name := range want {
			if !slices.Contains(names, name) {
				t.Errorf("the reference does not describe %s in the answers of %s, only %q", name, operation, names)
			}
		}
	}
	for _, text := range ask[[]string](t, b, `[...document.querySelectorAll(".type")].map((type) => type.textContent)`) {
		if strings.Contains(text, "array of any") || strings.Contains(text, "object or object") {
			t.Errorf("the reference says of a type: %s", text)
		}
	}
	b.fits(t)
	b.quiet(t)
}

// The API reference opens at any fragment, and its search leaves what matches.
func TestTheReferenceOpensAtAnyFragment(t *testing.T) {
	t.Parallel()
	b := openDocs(t, "#%")
	b.fill(t, "search", "approval_expired")
	shown := ask[[]string](t, b, `[...document.querySelectorAll("[data-search]")].filter((card) => !card.hidden).map((card) => card.id)`)
	if !slices.Contains(shown, "approval_expired") || slices.Contains(shown, "openChain") {
		t.Errorf("a search for an error code shows %q", shown)
	}
	b.quiet(t)
}
