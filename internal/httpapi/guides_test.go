package httpapi_test

import (
	"html"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"countersign/internal/httpapi"
	"countersign/internal/service"
)

// documents lists the Markdown files of the folder of documents, by their paths from
// there.
func documents(t *testing.T) []string {
	t.Helper()
	var found []string
	err := fs.WalkDir(os.DirFS(documentFolder), ".", func(file string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && path.Ext(file) == ".md" {
			found = append(found, file)
		}
		return err
	})
	if err != nil || len(found) == 0 {
		t.Fatalf("%d documents: %v", len(found), err)
	}
	return found
}

var documentFolder = filepath.Join("..", "..", "docs")

// serveGuides answers GET requests without a store or a service.
func serveGuides() func(path string) *httptest.ResponseRecorder {
	handler := httpapi.New(httpapi.Config{Service: new(service.Service), Log: slog.New(slog.DiscardHandler)}).Handler()
	return func(path string) *httptest.ResponseRecorder {
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, http.NoBody))
		return answer
	}
}

// Every document is on the list of guides and has a page with its title, without scripts
// and without other hosts.
func TestEveryGuideIsListedAndRenders(t *testing.T) {
	t.Parallel()
	get := serveGuides()
	list := get(httpapi.GuidesPath)
	if slash := get(httpapi.GuidesPath + "/"); list.Code != http.StatusOK || slash.Body.String() != list.Body.String() {
		t.Fatalf("the list is answered %d, and %d with a slash", list.Code, slash.Code)
	}
	for _, file := range documents(t) {
		address := httpapi.GuidesPath + "/" + strings.TrimSuffix(file, ".md")
		if !strings.Contains(list.Body.String(), `href="`+address+`"`) {
			t.Errorf("%s is not on the list", file)
		}
		source, err := os.ReadFile(filepath.Join(documentFolder, filepath.FromSlash(file)))
		if err != nil {
			t.Fatal(err)
		}
		first, _, _ := strings.Cut(string(source), "\n")
		title := strings.ReplaceAll(strings.TrimPrefix(first, "# "), "`", "")
		page := get(address)
		body := page.Body.String()
		if page.Code != http.StatusOK || page.Header().Get("Content-Type") != "text/html; charset=utf-8" ||
			!strings.Contains(body, "<title>"+html.EscapeString(title)+" · Countersign</title>") {
			t.Errorf("%s: answered %d, not as a page with the title %q", address, page.Code, title)
		}
		if unwanted := regexp.MustCompile(`(?i)<script|rel="stylesheet"|\sstyle=|src="[a-z]+:`).FindString(body); unwanted != "" {
			t.Errorf("%s has %s", address, unwanted)
		}
		if !strings.Contains(body, `href="/docs"`) || !strings.Contains(body, `href="`+httpapi.GuidesPath+`"`) {
			t.Errorf("%s does not link back", address)
		}
		policy := page.Header().Get("Content-Security-Policy")
		if !strings.HasPrefix(policy, "default-src 'none'; style-src 'sha256-") || !strings.Contains(policy, "frame-ancestors 'none'") || strings.Contains(policy, "script-src") {
			t.Errorf("%s has the policy %q", address, policy)
		}
	}
}

// Every link within the guides leads to a page and a heading that are there, and every
// relative link in their sources to a file of the repository.
func TestGuideLinksResolve(t *testing.T) {
	t.Parallel()
	get := serveGuides()
	links := regexp.MustCompile(`(?:href|src)="([^"]*)"`)
	addresses := []string{httpapi.GuidesPath}
	for _, file := range documents(t) {
		addresses = append(addresses, httpapi.GuidesPath+"/"+strings.TrimSuffix(file, ".md"))
		checkSourceLinks(t, file)
	}
	checked := 0
	for _, address := range addresses {
		here := &url.URL{Path: address}
		for _, link := range links.FindAllStringSubmatch(get(address).Body.String(), -1) {
			target, err := here.Parse(html.UnescapeString(link[1]))
			if err != nil {
				t.Errorf("%s: %v", address, err)
				continue
			}
			if target.IsAbs() {
				continue
			}
			checked++
			page := get(target.Path)
			if page.Code != http.StatusOK {
				t.Errorf("%s links to %s, which is answered %d", address, target, page.Code)
			} else if target.Fragment != "" && !strings.Contains(page.Body.String(), ` id="`+target.Fragment+`"`) {
				t.Errorf("%s links to %s, and there is no such heading", address, target)
			}
		}
	}
	if checked == 0 {
		t.Error("found no link")
	}
}

// checkSourceLinks checks that the relative links of a Markdown file lead to files.
func checkSourceLinks(t *testing.T, file string) {
	t.Helper()
	source, err := os.ReadFile(filepath.Join(documentFolder, filepath.FromSlash(file)))
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range regexp.MustCompile(`\]\(([^)\s#]+)[^)]*\)`).FindAllSubmatch(source, -1) {
		target := string(link[1])
		if strings.Contains(target, ":") {
			continue // another host
		}
		if _, err := os.Stat(filepath.Join(documentFolder, filepath.FromSlash(path.Join(path.Dir(file), target)))); err != nil {
			t.Errorf("docs/%s links to %s: %v", file, target, err)
		}
	}
}

// What is no guide and no image is answered 404, also where the folder has such a file.
func TestNoGuide(t *testing.T) {
	t.Parallel()
	get := serveGuides()
	for _, name := range []string{"nothing", "policies.md", "embed.go", "embed", "design", "design/", "images", "images/nothing.png", "policies/", ".png", "%2e%2e/api/docs.html"} {
		if answer := get(httpapi.GuidesPath + "/" + name); answer.Code != http.StatusNotFound {
			t.Errorf("%s is answered %d", name, answer.Code)
		}
	}
}

// A guide fits on a phone, and breaks no content policy.
func TestGuidesInABrowser(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(httpapi.New(httpapi.Config{Service: new(service.Service), Log: slog.New(slog.DiscardHandler)}).Handler())
	t.Cleanup(server.Close)
	b := openTab(t)
	for _, name := range []string{"", "/policies", "/rules", "/receipt-format", "/design/transparency"} {
		b.do(t, chromedp.Navigate(server.URL+httpapi.GuidesPath+name))
		b.fits(t)
	}
	b.quiet(t)
}
