package architecture

import (
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
)

// legacyLinks finds the older public addresses of an approval, but for the routes'
// patterns, which have {approval_id} in the place of the id.
var legacyLinks = regexp.MustCompile(`/public/approvals/(?:[^{]|\{[^a]|$)|/v1/approvals/[^{\s][^\s/]*/verify\b`)

// Nothing makes a public link of an approval's id any more: the older routes answer
// those that exist, and new links carry a token.
func TestNoLegacyLinkIsMade(t *testing.T) {
	t.Parallel()
	read := 0
	for _, tree := range []string{"api", "cmd", "internal", "sdk/python/src", "examples"} {
		err := fs.WalkDir(os.DirFS(root), tree, func(file string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case entry.IsDir() && (entry.Name() == "testdata" || entry.Name() == "__pycache__"):
				return fs.SkipDir
			case entry.IsDir() || strings.HasSuffix(file, "_test.go"):
				return nil
			}
			switch path.Ext(file) {
			case ".go", ".py", ".html", ".js", ".yaml":
			default:
				return nil
			}
			text, err := fs.ReadFile(os.DirFS(root), file)
			if err != nil {
				return err
			}
			read++
			if found := legacyLinks.Find(text); found != nil {
				t.Errorf("%s makes the link %q of an approval's id: make one of a token", file, found)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if read < 300 {
		t.Errorf("only %d files were read", read)
	}
}

// The check knows a link from a route's pattern.
func TestLegacyLinksAreFound(t *testing.T) {
	t.Parallel()
	for text, link := range map[string]bool{
		`"/public/approvals/" + id`:            true,
		`f"/public/approvals/{id}"`:            true,
		`"/public/approvals/%s"`:               true,
		`"/v1/approvals/" + id + "/verify"`:    false, // in parts it cannot be told from another address
		`"/v1/approvals/%s/verify"`:            true,
		`"/public/approvals/{approval_id}"`:    false,
		`"/v1/approvals/{approval_id}/verify"`: false,
		`"/v1/approvals/%s/approve"`:           false,
		`"/public/v2/verify/" + token`:         false,
	} {
		if legacyLinks.MatchString(text) != link {
			t.Errorf("%s is taken for a link: %t", text, !link)
		}
	}
}
