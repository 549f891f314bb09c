package architecture

import (
	"fmt"
	"strings"
	"testing"
)

// Every test says above its function what it promises about the product.
func TestTestsSayWhatTheyPromise(t *testing.T) {
	t.Parallel()
	checked := 0
	for _, folder := range testFolders(t) {
		suite := parseSuite(t, folder, "*_test.go")
		for _, violation := range suite.silent() {
			t.Errorf("%s: %s", folder, violation)
		}
		checked += len(suite.tests())
	}
	if checked < 500 {
		t.Errorf("only %d tests were found", checked)
	}
}

// silent lists the tests that do not say what they promise.
func (s suite) silent() (found []string) {
	for _, test := range s.tests() {
		if !test.promises() {
			found = append(found, fmt.Sprintf("%s does not say what it promises: put a sentence above it", test.name))
		}
	}
	return found
}

// promises reports whether a test's comment says more than that it is a test.
func (f *testFunction) promises() bool {
	words := strings.Fields(f.doc)
	if len(words) == 0 {
		return false
	}
	if strings.Trim(words[0], ".:") != f.name {
		return true
	}
	return len(words) > 1 && words[1] != "tests" && words[1] != "checks"
}

// A comment counts as a promise when it is above the function, is no directive
// and says more than the name.
func TestPromisesAreWanted(t *testing.T) {
	t.Parallel()
	const function = "func TestX(t *testing.T) {}"
	for name, test := range map[string]struct {
		source  string
		promise bool
	}{
		"nothing":                  {function, false},
		"a promise":                {"// A revoked key ends.\n" + function, true},
		"a promise of two lines":   {"// A revoked key\n// ends.\n" + function, true},
		"a promise in a block":     {"/* A revoked key ends. */\n" + function, true},
		"a promise with the name":  {"// TestX ends a revoked key.\n" + function, true},
		"a directive":              {"//countersign:race\n" + function, false},
		"a directive with words":   {"//countersign:norace the servers are processes\n" + function, false},
		"a promise and directive":  {"// A revoked key ends.\n//\n//countersign:race\n" + function, true},
		"an empty comment":         {"//\n" + function, false},
		"a comment further above":  {"// A revoked key ends.\n\n" + function, false},
		"a comment in the body":    {"func TestX(t *testing.T) {\n// A revoked key ends.\n}", false},
		"the name alone":           {"// TestX.\n" + function, false},
		"what tests do":            {"// TestX tests revoked keys.\n" + function, false},
		"what checks do":           {"// TestX checks revoked keys.\n" + function, false},
		"a fuzz target":            {"func FuzzX(f *testing.F) {}", false},
		"a fuzz target's promise":  {"// Any text is read.\nfunc FuzzX(f *testing.F) {}", true},
		"a helper":                 {"func help() {}", true},
		"a method":                 {"func (w world) TestX() {}", true},
		"what runs all the others": {"func TestMain(m *testing.M) {}", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := make(suite)
			s.add(t, "x_test.go", "package x\n"+test.source)
			if found := s.silent(); (len(found) == 0) != test.promise {
				t.Errorf("found %q", found)
			}
		})
	}
}
