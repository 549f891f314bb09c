package architecture

import (
	"os"
	"path/filepath"
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
