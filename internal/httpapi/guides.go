package httpapi

import (
	"bytes"
	_ "embed" // the page and its style are part of the program
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
	"unicode"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"

	"countersign/docs"
	"countersign/internal/fault"
)

// GuidesPath is the list of the guides. Each guide is below it, under its file name
// without the extension.
const GuidesPath = "/docs/guides"

var (
	//go:embed pages/guide.html
	guideHTML string
	//go:embed pages/guide.css
	guideCSS string

	guideStyle = publicCSS + guideCSS
	guidePage  = template.Must(template.New("guide").Parse(guideHTML))
	// guidePolicy lets a browser apply the page's own style, show images of this
	// server and its own icon, and do nothing else.
	guidePolicy = "default-src 'none'; style-src 'sha256-" + sourceHash(guideStyle) + "'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

// guide is one Markdown document.
type guide struct {
	Name   string // its path in the folder of documents, without the extension
	Title  string
	Body   template.HTML // empty on the list
	Path   string        // of its page
	Design bool          // a note on why something is built as it is
}

// guides renders all documents on first use. The result must not be changed.
var guides = sync.OnceValues(func() (map[string][]byte, error) { return renderGuides(docs.Files) })

func listGuides(x *exchange) error { return x.guide("") }

func showGuide(x *exchange) error { return x.guide(x.r.PathValue("name")) }

// guide answers with a page; the list has the empty name. Images are served as they are.
func (x *exchange) guide(name string) error {
	pages, err := guides()
	if err != nil {
		return err
	}
	if page, ok := pages[name]; ok {
		x.cacheable()
		x.w.Header().Set("Content-Security-Policy", guidePolicy)
		x.write(http.StatusOK, "text/html; charset=utf-8", page)
		return nil
	}
	contentType, ok := imageTypes[path.Ext(name)]
	if !ok || !fs.ValidPath(name) {
		return fault.ErrNotFound
	}
	image, err := docs.Files.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return fault.ErrNotFound
	}
	if err != nil {
		return err
	}
	x.cacheable()
	x.w.Header().Set("Content-Security-Policy", guidePolicy) // an SVG file is a document too
	x.write(http.StatusOK, contentType, image)
	return nil
}

var imageTypes = map[string]string{
	".gif": "image/gif", ".jpg": "image/jpeg", ".png": "image/png", ".svg": "image/svg+xml", ".webp": "image/webp",
}

// renderGuides makes the page of every Markdown document of files, by its name, and the
// list of them under the empty name.
func renderGuides(files fs.FS) (map[string][]byte, error) {
	var found []*guide
	err := fs.WalkDir(files, ".", func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || path.Ext(file) != ".md" {
			return err
		}
		rendered, err := renderGuide(files, file)
		found = append(found, rendered)
		return err
	})
	if err != nil {
		return nil, err
	}
	pages := make(map[string][]byte, len(found)+1)
	for _, g := range found {
		if pages[g.Name], err = executeGuide(g, nil); err != nil {
			return nil, err
		}
	}
	pages[""], err = executeGuide(&guide{Title: "Guides"}, found)
	return pages, err
}

func executeGuide(g *guide, list []*guide) ([]byte, error) {
	var page bytes.Buffer
	err := guidePage.Execute(&page, struct {
		*guide
		Style template.CSS
		List  []*guide
	}{g, template.CSS(guideStyle), list}) //nolint:gosec // it is embedded
	return page.Bytes(), err
}

// markdown leaves raw HTML out, which is its default. Cells are aligned by an
// attribute: the content policy forbids inline styles.
var markdown = goldmark.New(
	goldmark.WithExtensions(extension.NewTable(extension.WithTableCellAlignMethod(extension.TableCellAlignAttribute))),
	goldmark.WithParserOptions(parser.WithAutoHeadingID()),
)

func renderGuide(files fs.FS, file string) (*guide, error) {
	source, err := fs.ReadFile(files, file)
	if err != nil {
		return nil, err
	}
	context := parser.NewContext(parser.WithIDs(&headingIDs{used: make(map[string]int)}))
	document := markdown.Parser().Parse(text.NewReader(source), parser.WithContext(context))
	resolveLinks(files, file, document)
	var body bytes.Buffer
	if err := markdown.Renderer().Render(&body, source, document); err != nil {
		return nil, fmt.Errorf("render %s: %w", file, err)
	}
	name := strings.TrimSuffix(file, ".md")
	return &guide{
		Name: name, Title: titleOf(document, source, name), Body: template.HTML(body.String()), //nolint:gosec // it is embedded, and raw HTML is left out
		Path: GuidesPath + "/" + name, Design: strings.HasPrefix(name, "design/"),
	}, nil
}

// titleOf is the text of the first heading; without one, the document's name.
func titleOf(document ast.Node, source []byte, name string) string {
	for node := document.FirstChild(); node != nil; node = node.NextSibling() {
		if heading, ok := node.(*ast.Heading); ok {
			var title strings.Builder
			writeText(&title, heading, source)
			return title.String()
		}
	}
	return name
}

func writeText(to *strings.Builder, node ast.Node, source []byte) {
	for child := node.FirstChild(); child != nil; child = child.NextSibling() {
		if leaf, ok := child.(*ast.Text); ok {
			to.Write(leaf.Value(source))
		}
		writeText(to, child, source)
	}
}

// resolveLinks points relative links at the pages and images that are served here. A
// link to another file of the repository becomes plain text: a reader of this server
// cannot follow it.
func resolveLinks(files fs.FS, file string, document ast.Node) {
	var links []*ast.Link
	// The walk never fails: the function returns no error.
	_ = ast.Walk(document, func(node ast.Node, entering bool) (ast.WalkStatus, error) {
		switch node := node.(type) {
		case *ast.Link:
			if entering {
				links = append(links, node)
			}
		case *ast.Image:
			if target, ok := guideTarget(files, file, string(node.Destination)); ok {
				node.Destination = []byte(target)
			}
		}
		return ast.WalkContinue, nil
	})
	for _, link := range links {
		if target, ok := guideTarget(files, file, string(link.Destination)); ok {
			link.Destination = []byte(target)
			continue
		}
		parent := link.Parent()
		for child := link.FirstChild(); child != nil; child = link.FirstChild() {
			parent.InsertBefore(parent, link, child)
		}
		parent.RemoveChild(parent, link)
	}
}

// guideTarget is where a link of a document leads on this server. It is false for a
// file that is not served.
func guideTarget(files fs.FS, file, link string) (string, bool) {
	if strings.HasPrefix(link, "#") || strings.HasPrefix(link, "https://") || strings.HasPrefix(link, "http://") || strings.HasPrefix(link, GuidesPath) {
		return link, true
	}
	name, fragment, _ := strings.Cut(link, "#")
	name = path.Join(path.Dir(file), name)
	if _, err := fs.Stat(files, name); err != nil {
		return "", false
	}
	extension := path.Ext(name)
	if _, image := imageTypes[extension]; !image && extension != ".md" {
		return "", false
	}
	target := GuidesPath + "/" + strings.TrimSuffix(name, ".md")
	if fragment != "" {
		target += "#" + fragment
	}
	return target, true
}

// headingIDs names headings as GitHub does, so that links with a fragment work in both
// places.
type headingIDs struct {
	used map[string]int // how often each name was made
}

// Generate implements [parser.IDs].
func (h *headingIDs) Generate(heading []byte, _ ast.NodeKind) []byte {
	var id strings.Builder
	for _, char := range strings.ToLower(string(heading)) {
		switch {
		case char == ' ':
			id.WriteByte('-')
		case unicode.IsLetter(char), unicode.IsDigit(char), char == '-', char == '_':
			id.WriteRune(char)
		}
	}
	name := id.String()
	count := h.used[name]
	h.used[name]++
	if count > 0 {
		name += "-" + strconv.Itoa(count)
	}
	return []byte(name)
}

// Put implements [parser.IDs]. No document sets an id of its own.
func (h *headingIDs) Put([]byte) {}
