package httpapi

import (
	"net/http"

	"countersign/api"
	"countersign/internal/fault"
)

func health(x *exchange) error {
	return x.answer(http.StatusOK, []byte(`{"status":"ok"}`))
}

func openAPIJSON(x *exchange) error {
	document, err := api.JSON()
	if err != nil {
		return err
	}
	x.cacheable()
	return x.answer(http.StatusOK, document)
}

func openAPIYAML(x *exchange) error {
	x.cacheable()
	x.write(http.StatusOK, "application/yaml", api.YAML)
	return nil
}

func docsPage(x *exchange) error { return x.docs(api.DocsPath) }

func docsAsset(x *exchange) error { return x.docs(api.DocsPath + "/" + x.r.PathValue("asset")) }

func (x *exchange) docs(path string) error {
	for _, file := range api.DocsFiles() {
		if file.Path == path {
			x.cacheable()
			x.w.Header().Set("Content-Security-Policy", api.DocsPolicy)
			x.write(http.StatusOK, file.ContentType, file.Body)
			return nil
		}
	}
	return fault.ErrNotFound
}

// cacheable allows caches to store a response that is the same for everyone until the next version.
func (x *exchange) cacheable() { x.w.Header().Set("Cache-Control", "public, max-age=300") }
