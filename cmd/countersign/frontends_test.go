package main

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"countersign/internal/servicetest"
)

// A browser that asks for an address that there is not gets a page with a way home. A
// program, and whoever asks the API, is told in JSON, and what there is stays as it is.
func TestUnknownAddresses(t *testing.T) {
	t.Parallel()
	p := start(t, newSQLite(t).args()...)
	const browser, program = "text/html,application/xhtml+xml,*/*;q=0.8", "*/*"
	cases := []struct {
		name, method, path, accept string
		status                     int
		contentType, says          string
	}{
		{"a browser", http.MethodGet, "/nowhere", browser, http.StatusNotFound, "text/html", `href="/"`},
		{"a browser, deeper", http.MethodGet, "/approvals/x/y/z", browser, http.StatusNotFound, "text/html", `href="/"`},
		{"a browser, with a slash behind", http.MethodGet, "/approvals/", browser, http.StatusNotFound, "text/html", `href="/"`},
		{"a browser, with two slashes", http.MethodGet, "//docs", browser, http.StatusNotFound, "text/html", `href="/"`},
		{"a browser, at the API", http.MethodGet, "/v1/nowhere", browser, http.StatusNotFound, "application/problem+json", "not_found"},
		{"a browser, with a form", http.MethodPost, "/nowhere", browser, http.StatusNotFound, "application/problem+json", "not_found"},
		{"a program", http.MethodGet, "/nowhere", program, http.StatusNotFound, "application/problem+json", "not_found"},
		{"a program that does not say", http.MethodGet, "/nowhere", "", http.StatusNotFound, "application/problem+json", "not_found"},
		{"a route of the API", http.MethodGet, "/healthz", browser, http.StatusOK, "application/json", "ok"},
		{"the verifier of bundles", http.MethodGet, "/verify", browser, http.StatusOK, "text/html", "Check an evidence file"},
		{"the check by a receipt's id", http.MethodGet, "/check", browser, http.StatusOK, "text/html", "receipt_id"},
		{"the API reference", http.MethodGet, "/docs", browser, http.StatusOK, "text/html", "Countersign"},
		{"the guides, with a slash", http.MethodGet, "/docs/guides/", browser, http.StatusOK, "text/html", "/docs/guides/policies"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			request, err := http.NewRequestWithContext(t.Context(), c.method, p.address+c.path, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			if c.accept != "" {
				request.Header.Set("Accept", c.accept)
			}
			response, err := servicetest.Client.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = response.Body.Close() }()
			body, err := io.ReadAll(response.Body)
			if err != nil {
				t.Fatal(err)
			}
			if got := response.Header.Get("Content-Type"); response.StatusCode != c.status || !strings.HasPrefix(got, c.contentType) || !strings.Contains(string(body), c.says) {
				t.Errorf("got %d %s:\n%.500s", response.StatusCode, got, body)
			}
		})
	}
}
