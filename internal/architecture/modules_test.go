package architecture

import (
	"go/ast"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"
)

// testOnlyMark begins the comment above the block of go.mod for modules that only tests
// import.
const testOnlyMark = "// Only tests import these."

// testPackages exist for tests, although their files are not named _test.go. They may
// import the modules of the marked block, and only tests and each other may import them.
var testPackages = []string{"anchor/anchortest", "browsertest", "nightly", "notify/slacktest", "servicetest", "store/storetest", "testdb"}

// The marked block of go.mod contains exactly the modules that only tests import. No
// other code imports one of them, or a package that exists for tests.
func TestModulesOnlyForTestsAreMarked(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	modules := parseModules(t, string(text))
	used := make(map[string]bool) // the modules that code other than tests imports
	eachSource(t, func(file, name string, parsed *ast.File) {
		imported, violations := modules.check(name, parsed)
		for _, violation := range violations {
			t.Errorf("%s: %s", file, violation)
		}
		for _, module := range imported {
			used[module] = true
		}
	})
	for module, testOnly := range modules {
		if !testOnly && !used[module] {
			t.Errorf("go.mod: only tests import %s: move it to the block that says so", module)
		}
	}
}

// The check finds imports that belong to tests in files that are no tests.
func TestModuleCheckFindsEachKindOfViolation(t *testing.T) {
	t.Parallel()
	modules := parseModules(t, "module a\n\nrequire (\n\texample.com/used v1.0.0\n)\n\n"+
		testOnlyMark+" More words.\nrequire (\n\texample.com/referee v1.0.0\n\texample.com/used/inner v1.0.0\n)\n")
	check := func(name string, parsed *ast.File) []string {
		_, violations := modules.check(name, parsed)
		return violations
	}
	checkViolations(t, check, []violationCase{
		{"a module for all", "internal/ledger/a.go", `import "example.com/used/part"`, ""},
		{"a module for tests", "internal/ledger/a.go", `import "example.com/referee/part"`, "imports example.com/referee/part"},
		{"a module for tests inside another", "internal/ledger/a.go", `import "example.com/used/inner"`, "imports example.com/used/inner"},
		{"a name that only begins like a module", "internal/ledger/a.go", `import "example.com/refereed"`, ""},
		{"a module for tests in a package for tests", "internal/testdb/a.go", `import "example.com/referee"`, ""},
		{"a package for tests", "internal/bench/a.go", `import "countersign/internal/testdb"`, "imports testdb"},
		{"a package for tests in another", "internal/servicetest/a.go", `import "countersign/internal/testdb"`, ""},
	})
}

// modules maps the path of each directly required module to whether it is in the
// marked block.
type modules map[string]bool

func parseModules(t *testing.T, text string) modules {
	t.Helper()
	file, err := modfile.Parse("go.mod", []byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	marked := make(map[*modfile.Line]bool)
	for _, statement := range file.Syntax.Stmt {
		if block, ok := statement.(*modfile.LineBlock); ok && isMarked(block) {
			for _, line := range block.Line {
				marked[line] = true
			}
		}
	}
	if len(marked) == 0 {
		t.Fatalf("go.mod has no block with the comment %q", testOnlyMark)
	}
	found := make(modules)
	for _, required := range file.Require {
		if !required.Indirect {
			found[required.Mod.Path] = marked[required.Syntax]
		}
	}
	return found
}

func isMarked(block *modfile.LineBlock) bool {
	return slices.ContainsFunc(block.Before, func(comment modfile.Comment) bool {
		return strings.HasPrefix(comment.Token, testOnlyMark)
	})
}

// check returns the modules that a source file imports, none for a package that exists
// for tests, and what the file breaks.
func (m modules) check(name string, parsed *ast.File) (imported, violations []string) {
	if slices.Contains(testPackages, name) {
		return nil, nil
	}
	for importPath := range importsOf(parsed) {
		if own, ok := strings.CutPrefix(importPath, modulePath); ok && slices.Contains(testPackages, packageName(own)) {
			violations = append(violations, "imports "+packageName(own)+", which exists for tests")
		}
		module := m.providing(importPath)
		if module == "" {
			continue
		}
		imported = append(imported, module)
		if m[module] {
			violations = append(violations, "imports "+importPath+": move "+module+" out of the block of go.mod that is for tests")
		}
	}
	slices.Sort(violations)
	return imported, violations
}

// providing returns the module that a package belongs to, "" for none: of two that
// match, the longer path.
func (m modules) providing(importPath string) string {
	longest := ""
	for module := range m {
		if within(importPath, module) && len(module) > len(longest) {
			longest = module
		}
	}
	return longest
}
