package httpapi

import (
	"bytes"
	_ "embed" // for the page, its style and its scripts
	"html/template"
	"net/http"
	"sync"
)

// verifyPath is the page that verifies evidence bundles in the reader's browser. The files never
// reach the server.
const verifyPath = "/verify"

var (
	//go:embed pages/verify.html
	verifyHTML string
	//go:embed pages/verify.css
	verifyCSS string
	//go:embed pages/bundle-format.js
	bundleFormatJS string
	//go:embed pages/bundle-checks.js
	bundleChecksJS string
	//go:embed pages/verify.js
	verifyJS string
	//go:embed pages/verify-page.js
	verifyPageJS string

	// bundleScript defines verifyBundle and hashesOfCopy. Each part depends on the parts before it.
	bundleScript = bundleFormatJS + bundleChecksJS + verifyJS
	verifyScript = bundleScript + verifyPageJS
	// verifyPolicy allows only the page's own script and style. The page also contains it in a meta
	// element, because a saved page has no headers.
	verifyPolicy = "default-src 'none'; script-src 'sha256-" + sourceHash(verifyScript) + "'; style-src 'sha256-" + sourceHash(verifyCSS) +
		"'; connect-src 'none'; base-uri 'none'; form-action 'none'"
)

// verifyDocument renders the page, which is one self-contained file.
var verifyDocument = sync.OnceValues(func() ([]byte, error) {
	page, err := template.New("verify").Parse(verifyHTML)
	if err != nil {
		return nil, err
	}
	var document bytes.Buffer
	err = page.Execute(&document, struct {
		Policy string
		Style  template.CSS
		Script template.JS
	}{verifyPolicy, template.CSS(verifyCSS), template.JS(verifyScript)}) //nolint:gosec // both are constants of the program
	return document.Bytes(), err
})

func verifyPage(x *exchange) error {
	document, err := verifyDocument()
	if err != nil {
		return err
	}
	x.cacheable()
	x.w.Header().Set("Content-Security-Policy", verifyPolicy+"; frame-ancestors 'none'")
	x.write(http.StatusOK, "text/html; charset=utf-8", document)
	return nil
}
