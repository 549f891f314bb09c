package architecture

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// A function literal of the service leaves the err of the function around it
// alone. The committer runs such functions on a goroutine of its own, and a
// caller whose context ends does not wait for them: both would write one
// variable.
func TestServiceClosuresKeepTheirErrors(t *testing.T) {
	t.Parallel()
	for _, file := range sourceFiles(t, "internal/service") {
		source, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range capturedErrors(t, file, string(source)) {
			t.Errorf("%s:%d: a function literal assigns the err of the function around it: declare its own", file, line)
		}
	}
}

// capturedErrors lists the lines on which a function literal assigns an err that
// it did not declare. Deferred literals run on their function's own goroutine.
func capturedErrors(t *testing.T, file, source string) (lines []int) {
	t.Helper()
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, file, source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(parsed, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.DeferStmt:
			return false
		case *ast.FuncLit:
			if declares(node.Type.Params, "err") || declares(node.Type.Results, "err") {
				return true
			}
			for _, assigned := range firstAssignments(node.Body) {
				lines = append(lines, files.Position(assigned).Line)
			}
		}
		return true
	})
	return lines
}

func declares(list *ast.FieldList, name string) bool {
	if list == nil {
		return false
	}
	for _, field := range list.List {
		for _, declared := range field.Names {
			if declared.Name == name {
				return true
			}
		}
	}
	return false
}

// firstAssignments finds plain assignments to err in a block where no statement
// before them, in this block or one around it, declares it.
func firstAssignments(block *ast.BlockStmt) (found []token.Pos) {
	declared := false
	for _, statement := range block.List {
		if declared {
			return found
		}
		ast.Inspect(statement, func(node ast.Node) bool {
			switch node := node.(type) {
			case *ast.FuncLit:
				return false // looked at by itself
			case *ast.IfStmt:
				if assigns(node.Init, token.DEFINE) {
					return false // its own, for all that follows inside
				}
			case *ast.BlockStmt:
				found = append(found, firstAssignments(node)...)
				return false
			case *ast.AssignStmt:
				if assigns(node, token.ASSIGN) {
					found = append(found, node.Pos())
				}
			}
			return true
		})
		declared = assigns(statement, token.DEFINE) || declaresVariable(statement)
	}
	return found
}

func assigns(statement ast.Stmt, how token.Token) bool {
	assignment, ok := statement.(*ast.AssignStmt)
	if !ok || assignment.Tok != how {
		return false
	}
	for _, left := range assignment.Lhs {
		if name, ok := left.(*ast.Ident); ok && name.Name == "err" {
			return true
		}
	}
	return false
}

func declaresVariable(statement ast.Stmt) bool {
	declaration, ok := statement.(*ast.DeclStmt)
	return ok && slices.Contains(variableNames(declaration), "err")
}

func variableNames(declaration *ast.DeclStmt) (names []string) {
	general, ok := declaration.Decl.(*ast.GenDecl)
	if !ok {
		return nil
	}
	for _, spec := range general.Specs {
		if values, ok := spec.(*ast.ValueSpec); ok {
			for _, name := range values.Names {
				names = append(names, name.Name)
			}
		}
	}
	return names
}

// The check finds each assignment to an outer err from inside a function literal,
// and no other.
func TestCapturedErrorsAreFound(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		body string
		want int
	}{
		"captured":                  {`err := f(); g(func() { err = f() })`, 1},
		"captured with a value":     {`v, err := f(); g(func() { v, err = f() })`, 1},
		"captured in a branch":      {`err := f(); g(func() { if true { err = f() } })`, 1},
		"captured in a condition":   {`err := f(); g(func() { if err = f(); err != nil { return } })`, 1},
		"captured before its own":   {`err := f(); g(func() { err = f(); err := f(); _ = err })`, 1},
		"its own":                   {`err := f(); g(func() { err := f(); err = f() })`, 0},
		"its own result":            {`err := f(); g(func() (err error) { err = f(); return err })`, 0},
		"its own variable":          {`err := f(); g(func() { var err error; err = f() })`, 0},
		"its own in a condition":    {`err := f(); g(func() { if err := f(); err != nil { err = nil } })`, 0},
		"deferred":                  {`err := f(); defer func() { err = f() }()`, 0},
		"in a literal in a literal": {`err := f(); g(func() { g(func() { err = f() }) })`, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source := "package x\nfunc h() { " + test.body + " }"
			if got := capturedErrors(t, "x.go", source); len(got) != test.want {
				t.Errorf("found %d, want %d", len(got), test.want)
			}
		})
	}
}
