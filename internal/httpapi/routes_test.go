package httpapi_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"countersign/api"
	"countersign/internal/httpapi"
)

// pageParts are routes that serve the documentation page its own files: parts
// of GET /docs rather than operations of the API.
var pageParts = []string{"GET /docs/{asset}"}

// The API serves exactly the operations that the OpenAPI document describes, to the
// roles that it names.
func TestRoutesAreTheDocument(t *testing.T) {
	t.Parallel()
	r, err := theReferee()
	if err != nil {
		t.Fatal(err)
	}
	described := make(map[string]string)
	for path, item := range r.document.Paths.Map() {
		for method, operation := range item.Operations() {
			role, _ := operation.Extensions["x-role"].(string)
			described[method+" "+path] = role
		}
	}
	served := make(map[string]string)
	for _, route := range httpapi.New(httpapi.Config{}).Routes() {
		// The document has no word for a parameter with slashes in it.
		if name := route.Method + " " + strings.Replace(route.Pattern, "...}", "}", 1); !slices.Contains(pageParts, name) || described[name] != "" {
			served[name] = string(route.Access)
		}
	}
	if diff := cmp.Diff(described, served); diff != "" {
		t.Errorf("operations and who may call them differ (-document +router):\n%s", diff)
	}
}

// The OpenAPI document and its viewer are served to everyone, unchanged, cacheable
// and under a content security policy.
func TestDocumentIsServed(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		asJSON, err := api.JSON()
		if err != nil {
			t.Fatal(err)
		}
		files := map[string][]byte{"/openapi.json": asJSON, "/openapi.yaml": api.YAML}
		types := map[string]string{"/openapi.json": "application/json", "/openapi.yaml": "application/yaml"}
		for _, file := range api.DocsFiles() {
			files[file.Path], types[file.Path] = file.Body, file.ContentType
		}
		for path, want := range files {
			got := s.get(t, credential{}, path).expect(t, http.StatusOK)
			if string(got.body) != string(want) || got.header.Get("Content-Type") != types[path] {
				t.Errorf("%s is not served as it is: %s, %d bytes", path, got.header.Get("Content-Type"), len(got.body))
			}
			if got.header.Get("Cache-Control") != "public, max-age=300" {
				t.Errorf("%s: Cache-Control is %q", path, got.header.Get("Cache-Control"))
			}
		}
		page := s.get(t, credential{}, api.DocsPath)
		if page.header.Get("Content-Security-Policy") != api.DocsPolicy {
			t.Errorf("Content-Security-Policy is %q", page.header.Get("Content-Security-Policy"))
		}
		s.get(t, credential{}, "/docs/nothing.js").refuse(t, http.StatusNotFound, "not_found")
	})
}

// Without its store the service is alive and not ready.
func TestHealth(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		type report struct {
			Status string
			Checks []struct{ Name, Status, Detail string }
		}
		if got := decode[report](t, s.get(t, credential{}, "/readyz").expect(t, http.StatusOK)); got.Status != "ready" || len(got.Checks) == 0 {
			t.Errorf("ready says %+v", got)
		}
		if err := s.database.store.Close(); err != nil {
			t.Fatal(err)
		}
		got := decode[report](t, s.get(t, credential{}, "/readyz").expect(t, http.StatusServiceUnavailable))
		if got.Status != "unavailable" || got.Checks[0].Name != "storage" || got.Checks[0].Status != "failed" {
			t.Errorf("without a store, ready says %+v", got)
		}
		s.get(t, credential{}, "/healthz").expect(t, http.StatusOK)
		answered := s.get(t, s.acme.admin, "/v1/organization")
		if answered.status < http.StatusInternalServerError {
			t.Errorf("without a store, a request was answered %d", answered.status)
		}
	})
}
