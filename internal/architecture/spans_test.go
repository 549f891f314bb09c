package architecture

import (
	"go/ast"
	"go/token"
	"slices"
	"testing"
)

// A ledger.Time is an instant, and spans are durations: no constant is a ledger.Time, because no
// instant is known before the program runs.
func TestSpansAreDurations(t *testing.T) {
	t.Parallel()
	eachSource(t, func(file, name string, parsed *ast.File) {
		for _, constant := range constantTimes(name, parsed) {
			t.Errorf("%s: %s is a ledger.Time: a span is a time.Duration", file, constant)
		}
	})
}

// The check finds constants by their type and by their value, in functions too.
func TestConstantTimesAreFound(t *testing.T) {
	t.Parallel()
	const source = `package a
const typed ledger.Time = 1
const (
	plain = 2
	converted = 3 * ledger.Time(1000)
)
var instant = ledger.Time(4)
func f() { const local = ledger.Time(5) }
const own = Time(6)`
	parsed := parse(t, "a.go", source)
	if got, want := constantTimes("service", parsed), []string{"typed", "converted", "local"}; !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
	if got, want := constantTimes("ledger", parsed), []string{"typed", "converted", "local", "own"}; !slices.Equal(got, want) {
		t.Errorf("found %q in package ledger, want %q", got, want)
	}
}

// constantTimes returns the names of the constants of a file that are instants.
func constantTimes(folder string, file *ast.File) (names []string) {
	ast.Inspect(file, func(node ast.Node) bool {
		declaration, ok := node.(*ast.GenDecl)
		if !ok || declaration.Tok != token.CONST {
			return true
		}
		for _, spec := range declaration.Specs {
			if values, ok := spec.(*ast.ValueSpec); ok && namesTime(folder, values) {
				for _, name := range values.Names {
					names = append(names, name.Name)
				}
			}
		}
		return true
	})
	return names
}

// namesTime reports whether a declaration names the type ledger.Time.
func namesTime(folder string, declaration *ast.ValueSpec) (found bool) {
	ast.Inspect(declaration, func(node ast.Node) bool {
		switch of := node.(type) {
		case *ast.SelectorExpr:
			from, ok := of.X.(*ast.Ident)
			found = found || ok && from.Name == "ledger" && of.Sel.Name == "Time"
			return false
		case *ast.Ident:
			found = found || folder == "ledger" && of.Name == "Time"
		}
		return true
	})
	return found
}
