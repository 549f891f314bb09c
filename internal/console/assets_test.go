package console

import (
	"io/fs"
	"regexp"
	"strings"
	"testing"
)

// The policy forbids these, so a page that had them would be broken in a
// browser and look whole in every other test.
func TestNothingIsInline(t *testing.T) {
	t.Parallel()
	inline := regexp.MustCompile(`(?i)<style|\sstyle=|\son[a-z]+=|javascript:|<script(>|\s[^>]*>\s*[^<\s])`)
	elsewhere := regexp.MustCompile(`(?i)(href|src|action)="(https?:)?//`)
	eachFile(t, pageFiles, func(name, content string) {
		for _, rule := range []*regexp.Regexp{inline, elsewhere} {
			if found := rule.FindString(content); found != "" {
				t.Errorf("%s has %q", name, found)
			}
		}
	})
}

// Every asset that a page refers to exists, and every asset is used and has a
// content type.
func TestReferencedAssetsExist(t *testing.T) {
	t.Parallel()
	reference := regexp.MustCompile(`"/console/([^"]+)"`)
	used := make(map[string]bool)
	eachFile(t, pageFiles, func(name, content string) {
		for _, found := range reference.FindAllStringSubmatch(content, -1) {
			used[found[1]] = true
			if _, err := fs.Stat(assetFiles, "assets/"+found[1]); err != nil {
				t.Errorf("%s refers to %s, which is not there", name, found[1])
			}
		}
	})
	eachFile(t, assetFiles, func(name, content string) {
		base := strings.TrimPrefix(name, "assets/")
		if !used[base] || content == "" {
			t.Errorf("%s is empty or no page uses it", name)
		}
		if assetTypes[base[strings.LastIndexByte(base, '.'):]] == "" {
			t.Errorf("%s has no content type", name)
		}
	})
}

func eachFile(t *testing.T, files fs.FS, visit func(name, content string)) {
	t.Helper()
	visited := 0
	err := fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(files, name)
		visit(name, string(content))
		visited++
		return err
	})
	if err != nil || visited == 0 {
		t.Fatalf("visited %d files: %v", visited, err)
	}
}
