package httpapi

import (
	"bytes"
	_ "embed" // for the page and its style
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

// GuidesPath is the path of the list of guides. Each guide is below it, under its file name without
// the extension.
const GuidesPath = "/docs/guides"

var (
	//go:embed pages/guide.html
	guideHTML string
	//go:embed pages/guide.css
	guideCSS string

	guideStyle = publicCSS + guideCSS
	guidePage  = template.Must(template.New("guide").Parse(guideHTML))
	// guidePolicy allows only the page's own style, images from this server and the inline icon.
	guidePolicy = "default-src 'none'; style-src 'sha256-" + sourceHash(guideStyle) + "'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

// guide is one Markdown document.
type guide struct {
	Name   string // the path in the docs folder, without the extension
	Title  string
	Body   template.HTML // empty for the list
	Path   string        // of the page
	Design bool          // the document is a design note
}

// guides renders all documents on first use. The result must not be modified.
var guides = sync.OnceValues(func() (map[string][]byte, error) { return renderGuides(docs.Files) })

func listGuides(x *exchange) error { return x.guide("") }

func showGuide(x *exchange) error { return x.guide(x.r.PathValue("name")) }

// guide answers with the page or the image of that name. The name of the list is "".
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
		return errNoGuide
	}
	image, err := docs.Files.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return errNoGuide
	}
	if err != nil {
		return err
	}
	x.cacheable()
	x.w.Header().Set("Content-Security-Policy", guidePolicy) // an SVG file is a document too
	x.write(http.StatusOK, contentType, image)
	return nil
}

var errNoGuide = fault.Errorf(fault.CodeNotFound, "there is no guide with this name")

var imageTypes = map[string]string{
	".gif": "image/gif", ".jpg": "image/jpeg", ".png": "image/png", ".svg": "image/svg+xml", ".webp": "image/webp",
}

// renderGuides renders every Markdown document in files. It returns the pages by name, with the list
// under the name "".
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
	}{g, template.CSS(guideStyle), list}) //nolint:gosec // the style is a constant of the program
	return page.Bytes(), err
}

// markdown omits raw HTML, which is the default. Cells are aligned by an attribute, because the
// Content-Security-Policy forbids inline styles.
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
		Name: name, Title: titleOf(document, source, name), Body: template.HTML(body.String()), //nolint:gosec // the document is embedded, and raw HTML is omitted
		Path: GuidesPath + "/" + name, Design: strings.HasPrefix(name, "design/"),
	}, nil
}

// titleOf returns the text of the first heading, or the document's name if it has none.
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

// resolveLinks rewrites relative links to the pages and images that this server serves. A link to
// any other file of the repository becomes plain text, because it would lead nowhere.
func resolveLinks(files fs.FS, file string, document ast.Node) {
	var links []*ast.Link
	// The walk cannot fail, because the function never returns an error.
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

// guideTarget returns the address on this server of a document's link. It returns false if the file
// is not served.
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

// headingIDs generates the same heading ids as GitHub, so that links with a fragment work in both
// places.
type headingIDs struct {
	used map[string]int // how often each id was generated
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

// Put implements [parser.IDs]. It does nothing, because no document sets its own ids.
func (h *headingIDs) Put([]byte) {}
