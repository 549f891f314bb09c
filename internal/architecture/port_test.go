package architecture

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"testing"
)

// Use cases and judges reach the database through the evidence layer alone. Whoever can
// name the storage port, or a part of it, could be handed rows that nobody has
// authenticated: so its interfaces are named in the configuration, which passes the
// database on, and nowhere else.
func TestTheStoragePortIsReachedThroughEvidence(t *testing.T) {
	t.Parallel()
	port := interfacesOf(t, "internal/store")
	if !port["Store"] || !port["Writer"] || len(port) < 8 {
		t.Fatalf("the interfaces of the storage port are %v", port)
	}
	named := 0
	for _, folder := range []string{"internal/service", "internal/verify"} {
		for _, file := range sourceFiles(t, folder) {
			parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range portsNamed(parsed, port) {
				if parsed.Name.Name == "service" && name == "Store" {
					named++
					continue
				}
				t.Errorf("%s names store.%s: go through package evidence", file, name)
			}
		}
	}
	if named != 1 {
		t.Errorf("package service names store.Store %d times; want it in Config alone", named)
	}
}

func interfacesOf(t *testing.T, folder string) map[string]bool {
	t.Helper()
	found := make(map[string]bool)
	for _, file := range sourceFiles(t, folder) {
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if parsed.Name.Name != "store" {
			continue
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				if _, ok := spec.Type.(*ast.InterfaceType); ok {
					found[spec.Name.Name] = true
				}
			}
			return true
		})
	}
	return found
}

// portsNamed are the interfaces of the port that a file names.
func portsNamed(file *ast.File, port map[string]bool) []string {
	var named []string
	ast.Inspect(file, func(n ast.Node) bool {
		selector, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if of, ok := selector.X.(*ast.Ident); ok && of.Name == "store" && port[selector.Sel.Name] {
			named = append(named, selector.Sel.Name)
		}
		return true
	})
	return named
}
