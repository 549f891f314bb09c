package architecture

import (
	"fmt"
	"go/ast"
	"testing"
)

// maxMethods bounds the methods of a type: with more, a reader no longer sees which of its fields
// a method depends on.
const maxMethods = 60

// largeTypes may have more methods than maxMethods, for the reason given.
var largeTypes = map[string]string{
	"console.visit":            "the helpers of every page",
	"evidence.Store":           "implements the storage port",
	"store/postgres.Store":     "implements the storage port",
	"store/sqlite.Store":       "implements the storage port",
	"store/sqlite.transaction": "loads and writes the rows of every table",
	"store/storetest.world":    "makes the rows of every table",
}

// No type has more methods than a reader can keep in mind, except those in the table, which lists
// no type without need.
func TestTypesHaveFewMethods(t *testing.T) {
	t.Parallel()
	count := make(methodCount)
	eachSource(t, func(_, name string, parsed *ast.File) { count.add(name, parsed) })
	for _, violation := range count.violations(largeTypes) {
		t.Error(violation)
	}
}

// The check counts the methods of all files of a package, with any receiver, and finds an
// exception without need.
func TestManyMethodsAreFound(t *testing.T) {
	t.Parallel()
	count := make(methodCount)
	for i := range maxMethods {
		count.add("a", parse(t, "a.go", fmt.Sprintf("package a\nfunc (x *wide[K, V]) m%d() {}\nfunc (x narrow) m%d() {}\nfunc m%d() {}", i, i, i)))
	}
	if got := count.violations(nil); len(got) != 0 {
		t.Errorf("got %q at the limit, want no violation", got)
	}
	count.add("a", parse(t, "b.go", "package a\nfunc (wide[K, V]) last() {}"))
	if got := count.violations(nil); len(got) != 1 {
		t.Errorf("got %q, want one violation", got)
	}
	if got := count.violations(map[string]string{"a.wide": "a reason"}); len(got) != 0 {
		t.Errorf("got %q with an exception, want no violation", got)
	}
	if got := count.violations(map[string]string{"a.wide": "a reason", "a.narrow": "a reason"}); len(got) != 1 {
		t.Errorf("got %q with an exception without need, want one violation", got)
	}
}

// methodCount counts the methods of each type, which is named with its package.
type methodCount map[string]int

func (c methodCount) add(name string, file *ast.File) {
	for _, declaration := range file.Decls {
		if function, ok := declaration.(*ast.FuncDecl); ok && function.Recv != nil {
			c[name+"."+receiverName(function.Recv.List[0].Type)]++
		}
	}
}

func (c methodCount) violations(exceptions map[string]string) (found []string) {
	for name, methods := range c {
		if _, allowed := exceptions[name]; methods > maxMethods && !allowed {
			found = append(found, fmt.Sprintf("%s has %d methods, more than %d: split it", name, methods, maxMethods))
		}
	}
	for name := range exceptions {
		if c[name] <= maxMethods {
			found = append(found, name+" needs no exception: take it out of the table")
		}
	}
	return found
}

// receiverName returns the name of a receiver's type, without pointer and type parameters.
func receiverName(receiver ast.Expr) string {
	switch of := receiver.(type) {
	case *ast.StarExpr:
		return receiverName(of.X)
	case *ast.IndexExpr:
		return receiverName(of.X)
	case *ast.IndexListExpr:
		return receiverName(of.X)
	case *ast.Ident:
		return of.Name
	}
	return ""
}
