package console

import (
	"embed"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"sync"

	"countersign/internal/fault"
)

var (
	//go:embed assets
	assetFiles embed.FS
	//go:embed pages
	pageFiles embed.FS
)

var assetTypes = map[string]string{
	".css": "text/css; charset=utf-8",
	".js":  "text/javascript; charset=utf-8",
	".svg": "image/svg+xml",
}

func serveAsset(v *visit) error {
	name := v.r.PathValue("asset")
	content, err := assetFiles.ReadFile("assets/" + name)
	if err != nil {
		return fault.Errorf(fault.CodeNotFound, "there is no such file")
	}
	v.w.Header().Set("Cache-Control", "public, max-age=300")
	v.write(http.StatusOK, assetTypes[path.Ext(name)], content)
	return nil
}

// pages returns the parsed templates, each with the layout and the shared parts. Parsing takes as long
// as the rest of the program's start, so it is delayed until the first request: most processes are
// commands that serve no pages.
var pages = sync.OnceValue(parsePages)

func parsePages() map[string]*template.Template {
	shared := template.Must(template.New("").Funcs(words).ParseFS(pageFiles, "pages/shared/*.html"))
	names, err := fs.Glob(pageFiles, "pages/*.html")
	if err != nil {
		panic(err) // the pattern is a constant
	}
	parsed := make(map[string]*template.Template)
	for _, name := range names {
		parsed[path.Base(name)] = template.Must(template.Must(shared.Clone()).ParseFS(pageFiles, name))
	}
	return parsed
}
