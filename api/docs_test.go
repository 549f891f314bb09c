package api

import (
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Every file of the documentation page has content, a type and a path of its own
// below /docs.
func TestDocsFilesAreServable(t *testing.T) {
	t.Parallel()
	paths := make(map[string]bool)
	for _, file := range DocsFiles() {
		if len(file.Body) == 0 || file.ContentType == "" || paths[file.Path] {
			t.Errorf("%s is empty, has no type or occurs twice", file.Path)
		}
		if file.Path != DocsPath && !strings.HasPrefix(file.Path, DocsPath+"/") {
			t.Errorf("%s is not below %s", file.Path, DocsPath)
		}
		paths[file.Path] = true
	}
}

// Names of XML namespaces look like addresses, but nothing is loaded from them.
var namespace = regexp.MustCompile(`xmlns='[^']*'`)

// The documentation page loads nothing from another host.
func TestDocsNeedNoOtherHost(t *testing.T) {
	t.Parallel()
	elsewhere := regexp.MustCompile(`(?i)(https?:)?//[a-z0-9-]+\.[a-z]|@import|\burl\(`)
	for _, file := range DocsFiles() {
		body := namespace.ReplaceAll(file.Body, nil)
		if found := elsewhere.Find(body); found != nil {
			t.Errorf("%s refers to another host or file: %s", file.Path, found)
		}
	}
}

// The documentation page has no inline code, and its script makes no markup from
// text.
func TestDocsHaveNothingInline(t *testing.T) {
	t.Parallel()
	inline := regexp.MustCompile(`(?i)<style|\sstyle=|\son[a-z]+=|javascript:|<script(>|\s[^>]*>\s*[^<\s])`)
	if found := inline.Find(docsHTML); found != nil {
		t.Errorf("the page has inline code, which its policy forbids: %s", found)
	}
	markup := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function`)
	if found := markup.Find(docsJS); found != nil {
		t.Errorf("the script makes markup or code of texts: %s", found)
	}
}

// Every file that the documentation page refers to is served.
func TestDocsReferencesResolve(t *testing.T) {
	t.Parallel()
	served := []string{"/openapi.json", "/openapi.yaml", "/docs/guides"}
	for _, file := range DocsFiles() {
		served = append(served, file.Path)
	}
	page := &url.URL{Path: DocsPath}
	references := regexp.MustCompile(`(?:href|src)="([^"#][^"]*)"`).FindAllSubmatch(docsHTML, -1)
	checked := 0
	for _, reference := range references {
		target, err := page.Parse(string(reference[1]))
		if err != nil {
			t.Fatalf("%s: %v", reference[1], err)
		}
		if target.Scheme == "data" {
			continue
		}
		checked++
		if !slices.Contains(served, target.Path) {
			t.Errorf("%s leads to %s, which is not served", reference[1], target.Path)
		}
	}
	if checked == 0 {
		t.Error("the page refers to nothing")
	}
}

// Without scripts the documentation page links to the OpenAPI document.
func TestDocsCanBeReadWithoutScript(t *testing.T) {
	t.Parallel()
	fallback := regexp.MustCompile(`(?s)<noscript>.*href="openapi\.yaml".*</noscript>`)
	if !fallback.Match(docsHTML) {
		t.Error("without a script the page does not lead to the document")
	}
}

// The script of the documentation page stays below 400 lines.
func TestDocsScriptStaysSmall(t *testing.T) {
	t.Parallel()
	const most = 400
	if lines := strings.Count(string(docsJS), "\n"); lines >= most {
		t.Errorf("the script has %d lines, want fewer than %d", lines, most)
	}
}
