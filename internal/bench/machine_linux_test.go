package bench

import (
	"bufio"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// The processor time of PostgreSQL's first process includes that of its children,
// running or ended, and a child leads to its parent if it is the right program.
func TestFamilyTime(t *testing.T) {
	t.Parallel()
	const busy = `i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; echo $$; read line`
	// What follows the inner shell keeps the outer one from becoming it.
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "sh -c '"+busy+"'; echo ended; read line")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	parent, lines := cmd.Process.Pid, bufio.NewScanner(out)
	childrens := func() bool { return familyTime(parent)-processorTime(parent) > 0 }

	lines.Scan()
	child, err := strconv.Atoi(lines.Text())
	if err != nil {
		t.Fatal(err)
	}
	if !childrens() {
		t.Error("the time of a running child is missing")
	}
	if got := parentOf(child, "read line"); got != parent {
		t.Errorf("the parent is %d, want %d", got, parent)
	}
	if got := parentOf(child, "another program"); got != 0 {
		t.Errorf("the parent of another program is %d, want 0", got)
	}
	if _, err := in.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	if lines.Scan(); strings.TrimSpace(lines.Text()) != "ended" {
		t.Fatalf("got %q, want the child's end", lines.Text())
	}
	if !childrens() {
		t.Error("the time of an ended child is missing")
	}
	if _, err := in.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// The machine tells how long its cores were idle.
func TestIdleTimes(t *testing.T) {
	t.Parallel()
	cores := availableCores()
	got := idleTimes(cores.server)
	if got.count < len(cores.all) || got.server <= 0 || got.all < got.server {
		t.Errorf("got %+v on %d cores", got, len(cores.all))
	}
}
