package architecture

import (
	"go/ast"
	"path"
	"strings"
	"testing"
)

// A guard that never fires looks like one with nothing to report: so each kind
// of violation is shown to it once.
func TestCheckFindsEachKindOfViolation(t *testing.T) {
	t.Parallel()
	checkViolations(t, check, []violationCase{
		{"downwards", "internal/ledger/a.go", `import "countersign/internal/canon"`, ""},
		{"upwards", "internal/canon/a.go", `import "countersign/internal/ledger"`, "imports ledger"},
		{"sideways", "internal/httpapi/a.go", `import "countersign/internal/console"`, "imports console"},
		{"past the service", "internal/worker/a.go", `import "countersign/internal/store"`, "imports store"},
		{"the other store", "internal/store/sqlite/a.go", `import "countersign/internal/store/postgres"`, "imports store/postgres"},
		{"a store outside cmd", "internal/service/a.go", `import "countersign/internal/store/sqlite"`, "imports store/sqlite"},
		{"a store in cmd", "cmd/countersign/a.go", `import "countersign/internal/store/sqlite"`, ""},
		{"a store in bench", "internal/bench/a.go", `import "countersign/internal/store/postgres"`, ""},
		{"cmd in bench", "internal/bench/a.go", `import "countersign/cmd/countersign"`, "imports cmd/countersign"},
		{"a driver in its store", "internal/store/postgres/a.go", `import "github.com/jackc/pgx/v5/pgxpool"`, ""},
		{"a driver elsewhere", "internal/service/a.go", `import "github.com/jackc/pgx/v5/pgxpool"`, "imports github.com/jackc/pgx"},
		{"SQL in the port", "internal/store/a.go", `import "database/sql"`, "imports database/sql"},
		{"context in the core", "internal/policy/a.go", `import "context"`, "imports context"},
		{"context elsewhere", "internal/store/a.go", `import "context"`, ""},
		{"network in the core", "internal/ledger/a.go", `import "net/http"`, "imports net/http"},
		{"parsing in the core", "internal/ledger/a.go", `import "net/url"`, ""},
		{"randomness in the core", "internal/canon/a.go", `import "math/rand/v2"`, "imports math/rand/v2"},
		{"clock in the core", "internal/ledger/a.go", "import \"time\"\nvar now = time.Now()", "uses time.Now"},
		{"clock by another name", "internal/ledger/a.go", "import t \"time\"\nvar clock = t.Now", "uses time.Now"},
		{"clock elsewhere", "internal/worker/a.go", "import \"time\"\nvar now = time.Now()", ""},
		{"time without the clock", "internal/ledger/a.go", "import \"time\"\nvar day = 24 * time.Hour", ""},
		{"unknown package", "internal/surprise/a.go", "", "add it to the table"},
	})
}

// violationCase is a file with the violation that a check finds in it.
type violationCase struct {
	name, file, source string
	want               string // part of the only violation; none when empty
}

// checkViolations shows each file to a check.
func checkViolations(t *testing.T, check func(name string, parsed *ast.File) []string, cases []violationCase) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := check(packageName(path.Dir(c.file)), parse(t, c.file, "package a\n"+c.source))
			switch {
			case c.want == "" && len(got) != 0:
				t.Errorf("got %q, want no violation", got)
			case c.want != "" && (len(got) != 1 || !strings.Contains(got[0], c.want)):
				t.Errorf("got %q, want one that contains %q", got, c.want)
			}
		})
	}
}
