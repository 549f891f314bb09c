package architecture

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Directives in the doc comment of a function of a test file.
const (
	// raceDirective marks a test that scripts/test-go runs under the race detector.
	// It is the last line before the function: the script looks for it there. With
	// the word "twice" the test also runs without the detector, where it does more.
	raceDirective = "//countersign:race"
	// hostDirective, with a reason behind it, marks a helper whose goroutine does
	// nothing beside the test: it runs a server, or bounds a wait.
	hostDirective = "//countersign:host"
	// noRaceDirective, with a reason behind it, excuses a test. The nightly run has
	// it under the race detector all the same.
	noRaceDirective = "//countersign:norace"
	// replicaDirective marks a helper that starts one service. A test that calls it
	// twice has replicas.
	replicaDirective = "//countersign:replica"
)

// concurrentSuites are functions of other packages that start goroutines.
var concurrentSuites = []string{"storetest.RunConcurrent"}

// A test in which several things happen at once runs under the race detector.
// The rule is checked here, so that neither a new test nor a new name can escape
// it.
func TestConcurrentTestsAreMarked(t *testing.T) {
	t.Parallel()
	marked, unmarked := make(map[string]string), make(map[string]string) // folders by the names of their tests
	for _, folder := range testFolders(t) {
		suite := parseSuite(t, folder, "*_test.go")
		for _, violation := range suite.violations() {
			t.Errorf("%s: %s", folder, violation)
		}
		for _, test := range suite.tests() {
			if test.marked {
				marked[test.name] = folder
			} else {
				unmarked[test.name] = folder
			}
		}
	}
	for name, folder := range marked {
		if other, taken := unmarked[name]; taken {
			t.Errorf("%s marks %s and %s does not: tests are chosen by name, so give one of them another", folder, name, other)
		}
	}
	if len(marked) < 50 {
		t.Errorf("only %d tests are marked with %s: is the directive still read?", len(marked), raceDirective)
	}
}

// The conformance suite says of each case whether it starts goroutines; those that
// do not run without the race detector.
func TestConformanceCasesAreMarked(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(root, "internal", "store", "storetest")
	functions := parseSuite(t, folder, "*.go")
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for run, marked := range conformanceCases(parsed) {
			if len(functions[run]) == 0 {
				continue
			}
			checked++
			if why := functions.why(functions[run][0], make(map[*testFunction]bool)); (why != "") != marked {
				t.Errorf("the case %s is marked concurrent: %t, and it starts %q", run, marked, why)
			}
		}
	}
	if checked < 80 {
		t.Errorf("only %d cases were found", checked)
	}
}

// conformanceCases maps the functions of a file's cases to whether their case is
// marked concurrent.
func conformanceCases(file *ast.File) map[string]bool {
	cases := make(map[string]bool)
	ast.Inspect(file, func(node ast.Node) bool {
		literal, ok := node.(*ast.CompositeLit)
		if !ok {
			return true
		}
		run, marked := "", false
		for _, element := range literal.Elts {
			if pair, ok := element.(*ast.KeyValueExpr); ok {
				marked = marked || fmt.Sprint(pair.Key) == "concurrent"
				if name, ok := pair.Value.(*ast.Ident); ok && fmt.Sprint(pair.Key) == "run" {
					run = name.Name
				}
			}
		}
		if run != "" {
			cases[run] = marked
		}
		return true
	})
	return cases
}

// testFolders lists the folders of the module that hold test files.
func testFolders(t *testing.T) []string {
	t.Helper()
	folders := make(map[string]bool)
	for _, tree := range []string{"api", "cmd", "examples", "internal"} {
		err := filepath.WalkDir(filepath.Join(root, tree), func(file string, _ os.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(file, "_test.go") {
				folders[filepath.Dir(file)] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return slices.Sorted(maps.Keys(folders))
}

// suite is what the test files of one package declare.
type suite map[string][]*testFunction // by name: methods of several types may share one

type testFunction struct {
	name     string
	doc      string // without directives
	method   bool
	marked   bool
	excused  bool
	host     bool
	replica  bool
	starts   string           // what the function itself starts, "" for nothing
	mentions map[mention]bool // of functions and methods in its body
	calls    map[mention]int  // how often it calls them; twice in a loop
	declares map[string]bool  // parameters and variables, which hide functions of their name
}

// mention is a name as a function's body uses it, without knowing its type.
type mention struct {
	name   string
	method bool
}

func parseSuite(t *testing.T, folder, pattern string) suite {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, pattern))
	if err != nil {
		t.Fatal(err)
	}
	s := make(suite)
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		s.add(t, path.Base(file), string(source))
	}
	return s
}

func (s suite) add(t *testing.T, file, source string) {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, declared := range parsed.Decls {
		switch declared := declared.(type) {
		case *ast.FuncDecl:
			if declared.Body != nil {
				s.enter(readFunction(declared))
			}
		case *ast.GenDecl:
			for _, spec := range declared.Specs {
				if values, ok := spec.(*ast.ValueSpec); ok && len(values.Names) == 1 {
					s.enter(readTable(values))
				}
			}
		}
	}
}

func (s suite) enter(f *testFunction) { s[f.name] = append(s[f.name], f) }

// readTable reads a variable: a table of cases holds their functions.
func readTable(values *ast.ValueSpec) *testFunction {
	f := newTestFunction(values.Names[0].Name, false)
	for _, value := range values.Values {
		f.read(value, 1)
	}
	return f
}

func newTestFunction(name string, method bool) *testFunction {
	return &testFunction{
		name: name, method: method,
		mentions: make(map[mention]bool), calls: make(map[mention]int), declares: make(map[string]bool),
	}
}

func readFunction(function *ast.FuncDecl) *testFunction {
	f := newTestFunction(function.Name.Name, function.Recv != nil)
	f.doc = function.Doc.Text()
	f.parameters(function.Type)
	if function.Doc != nil {
		for _, line := range function.Doc.List {
			switch directive, reason, _ := strings.Cut(line.Text, " "); directive {
			case raceDirective:
				f.marked = true
			case noRaceDirective:
				f.excused = reason != ""
			case hostDirective:
				f.host = reason != ""
			case replicaDirective:
				f.replica = true
			}
		}
	}
	f.read(function.Body, 1)
	return f
}

func (f *testFunction) parameters(of *ast.FuncType) {
	for _, field := range of.Params.List {
		for _, name := range field.Names {
			f.declares[name.Name] = true
		}
	}
}

// read notes what a piece of a body does; times is 2 inside a loop.
func (f *testFunction) read(node ast.Node, times int) {
	ast.Inspect(node, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ForStmt:
			f.read(n.Body, 2)
			return false
		case *ast.RangeStmt:
			f.declare(n.Key, n.Value)
			f.read(n.X, times)
			f.read(n.Body, 2)
			return false
		case *ast.GoStmt:
			f.starts = "a goroutine"
		case *ast.CallExpr:
			f.call(n, times)
		case *ast.FuncLit:
			f.parameters(n.Type)
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				f.declare(n.Lhs...)
			}
		case *ast.SelectorExpr:
			f.mentions[mention{n.Sel.Name, true}] = true
			f.read(n.X, times)
			return false
		case *ast.KeyValueExpr:
			f.read(n.Value, times) // a key names a field
			return false
		case *ast.Ident:
			f.mentions[mention{n.Name, false}] = true
		}
		return true
	})
}

func (f *testFunction) declare(expressions ...ast.Expr) {
	for _, expression := range expressions {
		if name, ok := expression.(*ast.Ident); ok {
			f.declares[name.Name] = true
		}
	}
}

func (f *testFunction) call(call *ast.CallExpr, times int) {
	switch called := call.Fun.(type) {
	case *ast.Ident:
		f.calls[mention{called.Name, false}] += times
	case *ast.SelectorExpr:
		f.calls[mention{called.Sel.Name, true}] += times
		if name := called.Sel.Name; name == "Go" || name == "RunParallel" {
			f.starts = "a goroutine"
		}
		if from, ok := called.X.(*ast.Ident); ok && slices.Contains(concurrentSuites, from.Name+"."+called.Sel.Name) {
			f.starts = "goroutines in " + from.Name
		}
	}
}

// find lists the functions or methods that a mention in f may mean.
func (s suite) find(f *testFunction, m mention) (found []*testFunction) {
	if !m.method && f.declares[m.name] {
		return nil
	}
	for _, other := range s[m.name] {
		if other.method == m.method {
			found = append(found, other)
		}
	}
	return found
}

func (f *testFunction) isTest() bool {
	return !f.method && (strings.HasPrefix(f.name, "Test") || strings.HasPrefix(f.name, "Fuzz")) && f.name != "TestMain"
}

func (s suite) tests() (tests []*testFunction) {
	for _, name := range slices.Sorted(maps.Keys(s)) {
		for _, f := range s[name] {
			if f.isTest() {
				tests = append(tests, f)
			}
		}
	}
	return tests
}

func (s suite) violations() (found []string) {
	for _, functions := range s {
		for _, f := range functions {
			if f.marked && !f.isTest() {
				found = append(found, fmt.Sprintf("%s carries %s and is no test", f.name, raceDirective))
			}
		}
	}
	for _, test := range s.tests() {
		if why := s.why(test, make(map[*testFunction]bool)); why != "" && !test.marked && !test.excused {
			found = append(found, fmt.Sprintf("%s starts %s: put %s on the line before it", test.name, why, raceDirective))
		}
	}
	return found
}

// why says what a function starts that runs beside it, by itself or through
// others; "" for nothing.
func (s suite) why(f *testFunction, seen map[*testFunction]bool) string {
	if seen[f] || f.host {
		return ""
	}
	seen[f] = true
	if f.starts != "" {
		return f.starts
	}
	services := 0
	for m := range f.mentions {
		for _, other := range s.find(f, m) {
			if other.replica {
				services += f.calls[m]
			}
			if why := s.why(other, seen); why != "" {
				return why + " (in " + m.name + ")"
			}
		}
	}
	if services > 1 {
		return "replicas"
	}
	return ""
}

// A mark for the race detector is wanted exactly where a test runs several things at
// once.
func TestMarksAreWanted(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		source string
		want   string // part of the violation, "" for none
	}{
		"nothing at once":          {`func TestX(t *testing.T) { work() }; func work() {}`, ""},
		"goroutine":                {`func TestX(t *testing.T) { go work() }; func work() {}`, "TestX starts a goroutine"},
		"group":                    {`func TestX(t *testing.T) { var g sync.WaitGroup; g.Go(func() {}) }`, "TestX starts a goroutine"},
		"in a closure":             {`func TestX(t *testing.T) { t.Run("x", func(t *testing.T) { go f() }) }`, "TestX starts a goroutine"},
		"through a helper":         {`func TestX(t *testing.T) { a() }; func a() { b() }; func b() { go c() }`, "(in b)"},
		"through a method":         {`func TestX(t *testing.T) { w.crowd() }; func (w *world) crowd() { go c() }`, "(in crowd)"},
		"through a function value": {`func TestX(t *testing.T) { each(crowd) }; func crowd() { go c() }`, "(in crowd)"},
		"conformance suite":        {`func TestX(t *testing.T) { storetest.RunConcurrent(t, nil) }`, "goroutines in storetest"},
		"fuzz target":              {`func FuzzX(f *testing.F) { go work() }`, "FuzzX starts a goroutine"},
		"marked":                   {"//countersign:race\nfunc TestX(t *testing.T) { go work() }", ""},
		"excused":                  {"//countersign:norace the servers are processes\nfunc TestX(t *testing.T) { go work() }", ""},
		"excused without a reason": {"//countersign:norace\nfunc TestX(t *testing.T) { go work() }", "TestX starts a goroutine"},
		"in a table of cases":      {"func TestX(t *testing.T) { each(cases) }\nvar cases = []any{crowd}\nfunc crowd() { go c() }", "(in crowd) (in cases)"},
		"marked helper":            {"//countersign:race\nfunc help() { go work() }", "is no test"},
		"host":                     {"func TestX(t *testing.T) { host() }\n//countersign:host runs the server\nfunc host() { go work() }", ""},
		"host without a reason":    {"func TestX(t *testing.T) { host() }\n//countersign:host\nfunc host() { go work() }", "(in host)"},
		"one service":              {"func TestX(t *testing.T) { serve() }\n//countersign:replica\nfunc serve() {}", ""},
		"two services":             {"func TestX(t *testing.T) { serve(); serve() }\n//countersign:replica\nfunc serve() {}", "starts replicas"},
		"services in a loop":       {"func TestX(t *testing.T) { for range 3 { serve() } }\n//countersign:replica\nfunc serve() {}", "starts replicas"},
		"a variable of the name":   {`func TestX(t *testing.T) { crowd := 1; use(crowd) }; func crowd() { go c() }; func use(int) {}`, ""},
		"a method of the name":     {`func TestX(t *testing.T) { crowd() }; func (w world) crowd() { go c() }; func crowd() {}`, ""},
		"two in a helper":          {"func TestX(t *testing.T) { pair() }\nfunc pair() { w.serve(); w.serve() }\n//countersign:replica\nfunc (w world) serve() {}", "starts replicas (in pair)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := make(suite)
			s.add(t, "x_test.go", "package x\n"+strings.ReplaceAll(test.source, "; func", "\nfunc"))
			got := strings.Join(s.violations(), "\n")
			if (test.want == "") != (got == "") || !strings.Contains(got, test.want) {
				t.Errorf("found %q, want %q", got, test.want)
			}
		})
	}
}
