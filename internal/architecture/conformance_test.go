package architecture

import (
	"bufio"
	"bytes"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// conformanceTable is the document that says which test holds which requirement.
const conformanceTable = "docs/conformance.md"

// specifiedSections are the sections of the specification that can be tested. The
// others (2.11, 4.8) list what the specification leaves open.
var specifiedSections = []string{
	"1", "2.1", "2.2", "2.3", "2.4", "2.5", "2.6", "2.7", "2.8", "2.9", "2.10", "3", "4",
	"4.1", "4.2", "4.3", "4.4", "4.5", "4.6", "4.7", "5", "6", "7", "8", "9",
}

// Every requirement of the specification names a test that exists and that make test
// runs, and no section of it is left out.
func TestEveryRequirementHasATest(t *testing.T) {
	t.Parallel()
	repository := os.DirFS(root)
	document, err := fs.ReadFile(repository, conformanceTable)
	if err != nil {
		t.Fatal(err)
	}
	table := readConformance(document)
	violations, err := table.check(repository, specifiedSections)
	if err != nil {
		t.Fatal(err)
	}
	for _, violation := range violations {
		t.Errorf("%s: %s", conformanceTable, violation)
	}
	if len(table.rows) < 150 {
		t.Errorf("only %d requirements were found: is the table still read?", len(table.rows))
	}
}

// conformance is the table as it was read.
type conformance struct {
	rows   []requirement
	faults []string // of its form
}

// requirement is one row.
type requirement struct {
	line          int
	section, text string
	tests         []string
}

var (
	sectionHeading = regexp.MustCompile(`^## (\d+(?:\.\d+)?)\b`)
	testCell       = regexp.MustCompile("^`[^`]+`(?:, `[^`]+`)*$")
	testName       = regexp.MustCompile("`([^`]+)`")
	testInRemark   = regexp.MustCompile("`([^` ]+(?:\\.(?:Test|Fuzz)[A-Z]|\\.py::)[^` ]*)`")
)

// readConformance reads the rows of every table below a heading that begins with a
// section's number. A row has three cells: requirement, tests, remark.
func readConformance(document []byte) *conformance {
	table := &conformance{}
	section := ""
	lines := bufio.NewScanner(bytes.NewReader(document))
	for number := 1; lines.Scan(); number++ {
		line := strings.TrimSpace(lines.Text())
		switch {
		case strings.HasPrefix(line, "#"):
			section = ""
			if found := sectionHeading.FindStringSubmatch(line); found != nil {
				section = found[1]
			}
		case strings.HasPrefix(line, "|") && section != "":
			table.read(number, section, line)
		}
	}
	return table
}

func (c *conformance) read(number int, section, line string) {
	cells := strings.Split(strings.Trim(line, "|"), "|")
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
	}
	if cells[0] == "requirement" || strings.Trim(cells[0], "-:") == "" && cells[0] != "" {
		return // the head of a table
	}
	row := requirement{line: number, section: section, text: cells[0]}
	switch {
	case len(cells) != 3 || row.text == "":
		c.faults = append(c.faults, fmt.Sprintf("line %d is no requirement with its tests and a remark", number))
		return
	case cells[1] == "":
		c.faults = append(c.faults, fmt.Sprintf("line %d names no test", number))
	case !testCell.MatchString(cells[1]):
		c.faults = append(c.faults, fmt.Sprintf("line %d: write tests as `name`, `name`", number))
	default:
		for _, found := range testName.FindAllStringSubmatch(cells[1], -1) {
			row.tests = append(row.tests, found[1])
		}
	}
	for _, found := range testInRemark.FindAllStringSubmatch(cells[2], -1) {
		row.tests = append(row.tests, found[1])
	}
	c.rows = append(c.rows, row)
}

// check holds the table against the repository.
func (c *conformance) check(repository fs.FS, sections []string) ([]string, error) {
	violations := slices.Clone(c.faults)
	lane, err := readPythonLanes(repository)
	if err != nil {
		return nil, err
	}
	lines, verdicts := make(map[string]int), make(map[string]string) // by requirement; by test
	for _, row := range c.rows {
		if !slices.Contains(sections, row.section) {
			violations = append(violations, fmt.Sprintf("line %d stands in section %s, which has nothing to test", row.line, row.section))
		}
		if first, taken := lines[row.section+row.text]; taken {
			violations = append(violations, fmt.Sprintf("line %d repeats line %d", row.line, first))
		}
		lines[row.section+row.text] = row.line
		for _, test := range row.tests {
			verdict, known := verdicts[test]
			if !known {
				verdict = whyNotRun(repository, lane, test)
				verdicts[test] = verdict
			}
			if verdict != "" {
				violations = append(violations, fmt.Sprintf("line %d: %s %s", row.line, test, verdict))
			}
		}
	}
	for _, section := range sections {
		if !slices.ContainsFunc(c.rows, func(row requirement) bool { return row.section == section }) {
			violations = append(violations, "section "+section+" has no requirement")
		}
	}
	return violations, nil
}

// whyNotRun says why make test does not run a test; "" where it does.
func whyNotRun(repository fs.FS, lane *pythonLanes, test string) string {
	if file, function, ok := strings.Cut(test, "::"); ok {
		return lane.whyNotRun(repository, file, function)
	}
	folder, function, ok := cutLast(test, ".")
	if !ok || !strings.HasPrefix(function, "Test") && !strings.HasPrefix(function, "Fuzz") {
		return "is written neither as folder.TestName nor as file.py::test_name"
	}
	return whyGoTestDoesNotRun(repository, folder, function)
}

func cutLast(text, separator string) (before, after string, found bool) {
	at := strings.LastIndex(text, separator)
	if at < 0 {
		return text, "", false
	}
	return text[:at], text[at+len(separator):], true
}

// goFolders are the trees whose packages scripts/test-go runs, by ./... and by name.
var goFolders = []string{"api", "cmd", "examples", "internal"}

func whyGoTestDoesNotRun(repository fs.FS, folder, function string) string {
	parts := strings.Split(folder, "/")
	if !slices.Contains(goFolders, parts[0]) {
		return "lies outside of what scripts/test-go runs"
	}
	for _, part := range parts {
		if part == "testdata" || strings.HasPrefix(part, "_") || strings.HasPrefix(part, ".") {
			return "lies in a folder that go test leaves out"
		}
	}
	files, err := fs.Glob(repository, path.Join(folder, "*_test.go"))
	if err != nil {
		return err.Error()
	}
	for _, file := range files {
		declared, err := declaresTest(repository, file, function)
		if err != nil {
			return err.Error()
		}
		if !declared {
			continue
		}
		// Without build tags, which make test does not set.
		context := build.Default
		context.OpenFile = func(name string) (io.ReadCloser, error) { return repository.Open(filepath.ToSlash(name)) }
		if runs, err := context.MatchFile(folder, path.Base(file)); err != nil || !runs {
			return "stands in a file that needs a build tag"
		}
		return ""
	}
	return "does not exist"
}

func declaresTest(repository fs.FS, file, function string) (bool, error) {
	source, err := fs.ReadFile(repository, file)
	if err != nil {
		return false, err
	}
	if !bytes.Contains(source, []byte("func "+function+"(")) {
		return false, nil
	}
	parsed, err := parser.ParseFile(token.NewFileSet(), file, source, parser.SkipObjectResolution)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(parsed.Decls, func(declared ast.Decl) bool {
		f, ok := declared.(*ast.FuncDecl)
		return ok && f.Recv == nil && f.Name.Name == function
	}), nil
}

// pythonTests is the folder of the client's tests.
const pythonTests = "sdk/python/tests/"

// pythonLanes is what make test runs of the client's tests.
type pythonLanes struct {
	leftOut    []string // folders that pytest does not enter
	frameworks []string // whose adapters are tested by scripts/test-adapters
}

var (
	leftOutFolders    = regexp.MustCompile(`(?m)^norecursedirs = \[([^\]]*)\]`)
	testedFrameworks  = regexp.MustCompile(`\|\| frameworks=\(([^)]*)\)`)
	pythonDefinition  = `(?m)((?:^@.*\n(?:^[ \t)\]].*\n)*)*)^(?:async )?def %s\(`
	pythonConditional = regexp.MustCompile(`\bmark\.(\w+)`)
	skippedModule     = regexp.MustCompile(`(?m)^pytestmark = .*mark\.(skip|skipif|xfail)|importorskip|pytest\.skip\(`)
	// harmlessMarks do not keep a test from running.
	harmlessMarks = []string{"parametrize", "usefixtures", "filterwarnings"}
)

func readPythonLanes(repository fs.FS) (*pythonLanes, error) {
	lanes := &pythonLanes{}
	for _, setting := range []struct {
		file    string
		pattern *regexp.Regexp
		into    *[]string
	}{
		{"sdk/python/pyproject.toml", leftOutFolders, &lanes.leftOut},
		{"scripts/test-adapters", testedFrameworks, &lanes.frameworks},
	} {
		text, err := fs.ReadFile(repository, setting.file)
		if err != nil {
			return nil, err
		}
		found := setting.pattern.FindSubmatch(text)
		if found == nil {
			return nil, fmt.Errorf("%s does not say what is run: %s", setting.file, setting.pattern)
		}
		*setting.into = strings.FieldsFunc(string(found[1]), func(r rune) bool { return strings.ContainsRune("\", \n", r) })
	}
	return lanes, nil
}

func (l *pythonLanes) whyNotRun(repository fs.FS, file, function string) string {
	within, ok := strings.CutPrefix(file, pythonTests)
	name := path.Base(file)
	if !ok || !strings.HasPrefix(name, "test_") || !strings.HasSuffix(name, ".py") {
		return "is no file of tests below " + pythonTests
	}
	if !l.runs(within) {
		return "lies in a folder that make test does not run"
	}
	source, err := fs.ReadFile(repository, file)
	if err != nil {
		return "does not exist"
	}
	if !strings.HasPrefix(function, "test_") {
		return "is no test"
	}
	found := regexp.MustCompile(fmt.Sprintf(pythonDefinition, regexp.QuoteMeta(function))).FindSubmatch(source)
	if found == nil {
		return "does not exist"
	}
	for _, mark := range pythonConditional.FindAllSubmatch(found[1], -1) {
		if !slices.Contains(harmlessMarks, string(mark[1])) {
			return "carries the mark " + string(mark[1])
		}
	}
	if skippedModule.Match(source) {
		return "stands in a file that may be skipped"
	}
	return ""
}

// runs reports whether make test runs a file, by its path below the tests.
func (l *pythonLanes) runs(file string) bool {
	folders := strings.Split(path.Dir(file), "/")
	if path.Dir(file) == "adapters" {
		return slices.ContainsFunc(l.frameworks, func(framework string) bool {
			return strings.HasPrefix(path.Base(file), "test_"+framework)
		})
	}
	return !slices.ContainsFunc(folders, func(folder string) bool { return slices.Contains(l.leftOut, folder) })
}

// The check finds each way in which a row can promise more than is tested.
func TestConformanceFaultsAreFound(t *testing.T) {
	t.Parallel()
	repository := fstest.MapFS{}
	for name, content := range map[string]string{
		"internal/a/a_test.go":                  "package a\nfunc TestA(t *testing.T) {}\nfunc (x) TestMethod() {}\n",
		"internal/a/tagged_test.go":             "//go:build nightly\n\npackage a\nfunc TestTagged(t *testing.T) {}\n",
		"internal/a/x_windows_test.go":          "package a\nfunc TestElsewhere(t *testing.T) {}\n",
		"internal/a/testdata/b/b_test.go":       "package b\nfunc TestB(t *testing.T) {}\n",
		"tools/c_test.go":                       "package c\nfunc TestC(t *testing.T) {}\n",
		"sdk/python/pyproject.toml":             "norecursedirs = [\".*\", \"adapters\", \"recipes\"]\n",
		"scripts/test-adapters":                 "((${#frameworks[@]})) || frameworks=(langgraph mcp)\n",
		"sdk/python/tests/test_a.py":            "def test_a() -> None:\n    pass\n\n@pytest.mark.nightly\ndef test_marked():\n    pass\n\n@pytest.mark.parametrize(\n    \"x\",\n    [1],\n)\nasync def test_many(x):\n    pass\n\n@pytest.mark.skipif(\n    True,\n)\n@each\ndef test_skipped():\n    pass\n",
		"sdk/python/tests/test_optional.py":     "x = pytest.importorskip(\"x\")\n\ndef test_a():\n    pass\n",
		"sdk/python/tests/adapters/test_mcp.py": "def test_a():\n    pass\n",
		"sdk/python/tests/adapters/test_new.py": "def test_a():\n    pass\n",
		"sdk/python/tests/recipes/test_dspy.py": "def test_a():\n    pass\n",
		"sdk/python/tests/helper.py":            "def test_a():\n    pass\n",
	} {
		repository[name] = &fstest.MapFile{Data: []byte(content)}
	}
	const head = "## 1 First\n\n| requirement | tests | remark |\n|---|---|---|\n"
	for name, test := range map[string]struct {
		document string
		want     string // part of the violation, "" for none
	}{
		"a Go test":              {head + "| a | `internal/a.TestA` | |", ""},
		"Python tests":           {head + "| a | `sdk/python/tests/test_a.py::test_a`, `sdk/python/tests/test_a.py::test_many` | why |", ""},
		"a remark":               {head + "| a | `internal/a.TestA` | not `nil`, see `internal/a.TestA` and `a.py` |", ""},
		"no such test, a remark": {head + "| a | `internal/a.TestA` | see `internal/a.TestMissing` |", "does not exist"},
		"an adapter's test":      {head + "| a | `sdk/python/tests/adapters/test_mcp.py::test_a` | |", ""},
		"no test":                {head + "| a | | |", "names no test"},
		"two cells":              {head + "| a | `internal/a.TestA` |", "is no requirement"},
		"four cells":             {head + "| a | `internal/a.TestA` | | |", "is no requirement"},
		"no requirement":         {head + "| | `internal/a.TestA` | |", "is no requirement"},
		"bare names":             {head + "| a | internal/a.TestA | |", "write tests as"},
		"words around names":     {head + "| a | see `internal/a.TestA` | |", "write tests as"},
		"a row twice":            {head + "| a | `internal/a.TestA` | |\n| a | `internal/a.TestA` | |", "line 6 repeats line 5"},
		"no such section":        {head + "| a | `internal/a.TestA` | |\n## 7\n| a | `internal/a.TestA` | |", "section 7, which has nothing"},
		"a section without rows": {"## 2 Second", "section 1 has no requirement"},
		"no such Go test":        {head + "| a | `internal/a.TestMissing` | |", "does not exist"},
		"no such package":        {head + "| a | `internal/z.TestA` | |", "does not exist"},
		"a method":               {head + "| a | `internal/a.TestMethod` | |", "does not exist"},
		"a subtest":              {head + "| a | `internal/a.TestA/case` | |", "does not exist"},
		"a build tag":            {head + "| a | `internal/a.TestTagged` | |", "needs a build tag"},
		"another system's":       {head + "| a | `internal/a.TestElsewhere` | |", "needs a build tag"},
		"testdata":               {head + "| a | `internal/a/testdata/b.TestB` | |", "go test leaves out"},
		"another tree":           {head + "| a | `tools.TestC` | |", "outside of what scripts/test-go runs"},
		"no test's name":         {head + "| a | `internal/a.helper` | |", "is written neither"},
		"no such Python test":    {head + "| a | `sdk/python/tests/test_a.py::test_b` | |", "does not exist"},
		"no such Python file":    {head + "| a | `sdk/python/tests/test_b.py::test_b` | |", "does not exist"},
		"a mark":                 {head + "| a | `sdk/python/tests/test_a.py::test_marked` | |", "carries the mark nightly"},
		"a skip":                 {head + "| a | `sdk/python/tests/test_a.py::test_skipped` | |", "carries the mark skipif"},
		"an optional module":     {head + "| a | `sdk/python/tests/test_optional.py::test_a` | |", "may be skipped"},
		"another framework":      {head + "| a | `sdk/python/tests/adapters/test_new.py::test_a` | |", "make test does not run"},
		"a recipe":               {head + "| a | `sdk/python/tests/recipes/test_dspy.py::test_a` | |", "make test does not run"},
		"a helper":               {head + "| a | `sdk/python/tests/helper.py::test_a` | |", "is no file of tests"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			violations, err := readConformance([]byte(test.document)).check(repository, []string{"1"})
			if err != nil {
				t.Fatal(err)
			}
			got := strings.Join(violations, "\n")
			if (test.want == "") != (got == "") || !strings.Contains(got, test.want) {
				t.Errorf("found %q, want %q", got, test.want)
			}
		})
	}
}

// What the table takes for granted about make test still stands in the scripts.
func TestMakeTestRunsWhatTheTableNames(t *testing.T) {
	t.Parallel()
	for file, lines := range map[string][]string{
		"Makefile":            {"scripts/test\n"},
		"scripts/test":        {"scripts/test-go --plain", "scripts/test-go --marked", "scripts/test-python \"${waiting[@]}\"", "scripts/test-python \"${waiting[@]/#/--ignore=}\"", "scripts/test-adapters newest"},
		"scripts/test-go":     {`{{.ImportPath}}' ./...`, `| names)" "${packages[@]}"`},
		"scripts/test-python": {"-m pytest"},
	} {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range lines {
			if !strings.Contains(string(text), line) {
				t.Errorf("%s has no %q: does make test still run the tests that %s names?", file, line, conformanceTable)
			}
		}
	}
}
