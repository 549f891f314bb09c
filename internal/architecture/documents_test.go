package architecture

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"countersign/internal/ledger"
)

// What a stop reaches is said once: the three documents that carry the table carry
// the same one, and its figures are those of the code.
func TestTheTableOfStopsIsTheSameEverywhere(t *testing.T) {
	t.Parallel()
	documents := []string{"SECURITY.md", "README.md", "docs/python.md"}
	first := stopsTable(t, documents[0])
	for _, document := range documents[1:] {
		if diff := cmp.Diff(first, stopsTable(t, document)); diff != "" {
			t.Errorf("the table of stops in %s differs from the one in %s:\n%s", document, documents[0], diff)
		}
	}
	text := strings.Join(first, "\n")
	for _, stop := range []string{"kill switch", "pause", "person's denial", "revoked", "rotation", "time-out",
		"any replica", "Python client", "forked process", "cannot reach the service"} {
		if !strings.Contains(text, stop) {
			t.Errorf("the table says nothing of %q", stop)
		}
	}
	for figure, is := range map[string]bool{
		"lease of one second": ledger.LeaseTime.Seconds() == 1, "1,250 ms after the commit": ledger.LeaseRunOut.Milliseconds() == 1250,
	} {
		if !is || !strings.Contains(text, figure) {
			t.Errorf("the table and the code differ about %q", figure)
		}
	}
}

// stopsTable is the table between its marks in a document, line by line.
func stopsTable(t *testing.T, document string) []string {
	t.Helper()
	body, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(document)))
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(body), "<!-- stops:")
	table, _, ended := strings.Cut(after, "<!-- end of the table -->")
	if !found || !ended || strings.Count(string(body), "<!-- stops:") != 1 {
		t.Fatalf("%s does not carry the table of stops once, between its marks", document)
	}
	return strings.Split(table, "\n")
}

// realForms are the forms of what must not stand in a document: documents show
// placeholders.
var realForms = map[string]*regexp.Regexp{
	"an API key":          regexp.MustCompile(`csk_[0-9A-Za-z]{49}`),
	"a public token":      regexp.MustCompile(`cvt_[0-9A-Za-z]{43}`),
	"an id":               regexp.MustCompile(`[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}`),
	"a hash or signature": regexp.MustCompile(`[0-9a-fA-F]{64}`),
	"a private key":       regexp.MustCompile(`BEGIN [A-Z ]*PRIVATE KEY-`),
}

// No document shows a token, an id, a signature, a key or a hash: where one belongs
// stands a placeholder. The API's own document shows none of the secrets; its examples
// of ids and hashes are made up.
func TestDocumentsShowPlaceholders(t *testing.T) {
	t.Parallel()
	secrets := []string{"an API key", "a public token", "a private key"}
	read := 0
	err := fs.WalkDir(os.DirFS(root), ".", func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && file != "." && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "node_modules" || entry.Name() == "data"):
			return fs.SkipDir
		case path.Ext(file) != ".md" && file != "api/openapi.yaml" && !strings.HasPrefix(file, "examples/"):
			return nil
		case entry.IsDir():
			return nil
		}
		text, err := fs.ReadFile(os.DirFS(root), file)
		if err != nil {
			return err
		}
		read++
		for what, form := range realForms {
			if file == "api/openapi.yaml" && !slices.Contains(secrets, what) {
				continue
			}
			if form.Match(text) {
				t.Errorf("%s shows %s: write a placeholder, such as <API_KEY>", file, what)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if read < 30 {
		t.Errorf("only %d documents were read", read)
	}
}
