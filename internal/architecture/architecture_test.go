// Package architecture holds the tests that keep the shape of the code base:
// which package may import which, and what the pure core must not touch.
package architecture

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

// Every package imports only what its layer may import, and every edge that the table
// allows is used.
func TestImportsRunOneWay(t *testing.T) {
	t.Parallel()
	checked := 0
	used := make(map[string]map[string]bool) // by importing package, what it imports of this module
	eachSource(t, func(file, name string, parsed *ast.File) {
		for _, violation := range check(name, parsed) {
			t.Errorf("%s: %s", file, violation)
		}
		checked++
		if used[name] == nil {
			used[name] = make(map[string]bool)
		}
		for imported := range importsOf(parsed) {
			if own, ok := strings.CutPrefix(imported, modulePath); ok {
				used[name][packageName(own)] = true
			}
		}
	})
	for name, rule := range packages {
		for _, allowed := range rule.may {
			if allowed != everything && !used[name][allowed] {
				t.Errorf("%s may import %s, and does not: take the edge out of the table", name, allowed)
			}
		}
	}
	if checked == 0 {
		t.Fatalf("found no source file: is %q still the module's root?", root)
	}
}

// eachSource visits the non-test Go files of the module, each with the table's name of its package.
func eachSource(t *testing.T, visit func(file, name string, parsed *ast.File)) {
	t.Helper()
	for _, tree := range []string{"api", "cmd", "docs", "internal"} {
		for _, file := range sourceFiles(t, tree) {
			source, err := os.ReadFile(filepath.Join(root, file))
			if err != nil {
				t.Fatal(err)
			}
			visit(file, packageName(path.Dir(file)), parse(t, file, string(source)))
		}
	}
}

// sourceFiles lists the non-test Go files below a folder of the module, which
// need not exist yet, as slash-separated paths from the module's root.
func sourceFiles(t *testing.T, tree string) []string {
	t.Helper()
	var files []string
	err := fs.WalkDir(os.DirFS(root), tree, func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil && file == tree:
			return fs.SkipAll
		case err != nil:
			return err
		case entry.IsDir() && entry.Name() == "testdata":
			return fs.SkipDir
		case !entry.IsDir() && isSource(file):
			files = append(files, file)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func isSource(file string) bool {
	return strings.HasSuffix(file, ".go") && !strings.HasSuffix(file, "_test.go")
}

func parse(t *testing.T, file, source string) *ast.File {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// check holds one source file of a package against the tables and returns what it breaks.
func check(name string, parsed *ast.File) []string {
	rule, known := packages[name]
	if !known {
		return []string{"package " + name + " has no import rule: add it to the table in internal/architecture/rules_test.go"}
	}
	var violations []string
	for imported := range importsOf(parsed) {
		violations = append(violations, checkImport(name, rule, imported)...)
	}
	if isPure(name) {
		violations = append(violations, impureCalls(parsed)...)
	}
	slices.Sort(violations)
	return violations
}

// packageName is the table's name of a folder: its path in the module, without
// the "internal/" that nearly all share.
func packageName(folder string) string {
	return strings.TrimPrefix(folder, "internal/")
}

func checkImport(name string, rule rule, imported string) []string {
	var violations []string
	if own, ok := strings.CutPrefix(imported, modulePath); ok {
		if target := packageName(own); !rule.mayImport(target) {
			violations = append(violations, "imports "+target+": "+rule.reason)
		}
	}
	if isPure(name) {
		if reason, banned := lookUp(impureImports, imported); banned {
			violations = append(violations, "imports "+imported+": the core is pure: "+reason)
		}
	}
	if home, confined := lookUp(confinedImports, imported); confined && !slices.Contains(home.packages, name) {
		violations = append(violations, "imports "+imported+": "+home.reason)
	}
	return violations
}

func isPure(name string) bool {
	return slices.ContainsFunc(purePackages, func(pure string) bool { return within(name, pure) })
}

// within says whether an import path is root or lies below it.
func within(importPath, root string) bool {
	return importPath == root || strings.HasPrefix(importPath, root+"/")
}

// lookUp finds the entry whose path covers the import; the table of harmless
// imports makes exceptions.
func lookUp[V any](table map[string]V, imported string) (V, bool) {
	if !slices.Contains(harmless, imported) {
		for root, value := range table {
			if within(imported, root) {
				return value, true
			}
		}
	}
	var none V
	return none, false
}

// importsOf maps each import path of a file to the name the file calls it by.
func importsOf(file *ast.File) map[string]string {
	imports := make(map[string]string)
	for _, spec := range file.Imports {
		imported := strings.Trim(spec.Path.Value, "`\"")
		imports[imported] = path.Base(imported)
		if spec.Name != nil {
			imports[imported] = spec.Name.Name
		}
	}
	return imports
}

// impureCalls finds uses of functions that read the clock or make randomness,
// also where they are only passed on as values.
func impureCalls(file *ast.File) []string {
	var violations []string
	for imported, localName := range importsOf(file) {
		banned := impureFunctions[imported]
		ast.Inspect(file, func(node ast.Node) bool {
			selector, ok := node.(*ast.SelectorExpr)
			if !ok || !slices.Contains(banned, selector.Sel.Name) {
				return true
			}
			if of, ok := selector.X.(*ast.Ident); ok && of.Name == localName {
				violations = append(violations, "uses "+imported+"."+selector.Sel.Name+
					": the core is pure: times and ids arrive as arguments")
			}
			return true
		})
	}
	return violations
}
