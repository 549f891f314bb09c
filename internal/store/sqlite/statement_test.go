package sqlite

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Parameters that are too long for SQLite's 32-bit lengths are refused.
func TestParametersAreBounded(t *testing.T) {
	t.Parallel()
	part := strings.Repeat("x", 1<<20)
	args := slices.Repeat([]any{part}, maxParameters/len(part)+1)
	if err := (&statement{connection: &connection{}}).bind(args); !errors.Is(err, errTooBig) {
		t.Errorf("bound %d bytes: %v", len(args)*len(part), err)
	}
}

// Running a prepared statement allocates only what a row is copied into: neither the
// parameters nor the targets of a scan are moved to the heap. It counts the allocations of
// the whole process, so it runs alone.
func TestStatementsAllocateOnlyRows(t *testing.T) {
	c, err := connect(filepath.Join(t.TempDir(), "test.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.close() })
	if err := c.exec("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, body BLOB)"); err != nil {
		t.Fatal(err)
	}
	number, name, body := int64(1000), strings.Repeat("n", 30), make([]byte, 400)
	write := func() {
		if err := c.exec("INSERT OR REPLACE INTO t VALUES (?, ?, ?)", number, name, body); err != nil {
			t.Fatal(err)
		}
	}
	read := func() {
		err := c.query("SELECT id, body FROM t WHERE id = ?", []any{number}, func(r row) error {
			var id int64
			var copied []byte
			return r.Scan(&id, &copied)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := testing.AllocsPerRun(100, write); got != 0 {
		t.Errorf("an insert made %v allocations, want none", got)
	}
	if got := testing.AllocsPerRun(100, read); got != 1 { // the copy of body
		t.Errorf("a select made %v allocations, want 1", got)
	}
}
