package api

import _ "embed"

//go:embed docs.html
var docsHTML []byte

//go:embed docs.css
var docsCSS []byte

//go:embed docs.js
var docsJS []byte

// DocsPath is where the page stands. Error answers point below it, as
// DocsPath + "#" + code.
const DocsPath = "/docs"

// DocsPolicy is the Content-Security-Policy that the page is written for:
// nothing inline, nothing from another host, nothing to be framed in.
const DocsPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// DocsFile is one file of the page, to be served under its path.
type DocsFile struct {
	Path        string
	ContentType string
	Body        []byte // must not be changed
}

// DocsFiles are all that the page needs besides /openapi.json.
func DocsFiles() []DocsFile {
	return []DocsFile{
		{DocsPath, "text/html; charset=utf-8", docsHTML},
		{DocsPath + "/docs.css", "text/css; charset=utf-8", docsCSS},
		{DocsPath + "/docs.js", "text/javascript; charset=utf-8", docsJS},
	}
}
