package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// scripts/bench passes PostgreSQL's address, which holds a password, by the environment
// variable of the flag. Its arguments, which every user of the machine can list, are only
// those that it was given.
func TestBenchScriptHidesTheAddress(t *testing.T) {
	t.Parallel()
	script, err := os.ReadFile("../../scripts/bench")
	if err != nil {
		t.Fatal(err)
	}
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	for _, name := range []string{"scripts", "bin"} {
		if err := os.Mkdir(filepath.Join(folder, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	writeFile(t, filepath.Join(folder, "scripts", "bench"), script)
	// In place of the program stands bash, for which the command's name is a file to run.
	if err := os.Symlink(bash, filepath.Join(folder, "bin", "countersign")); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(folder, "bench"), []byte(`printf '%s\n' "$COUNTERSIGN_POSTGRES" "$@"`))

	const address = "postgres://user:<PASSWORD>@127.0.0.1:5432/postgres"
	cmd := exec.CommandContext(t.Context(), bash, filepath.Join(folder, "scripts", "bench"), "--rounds", "1")
	cmd.Env = append(os.Environ(), "COUNTERSIGN_TEST_POSTGRES="+address)
	out, err := cmd.CombinedOutput()
	if want := address + "\n--rounds\n1\n"; err != nil || string(out) != want {
		t.Errorf("the variable and the arguments are %q, want %q (%v)", out, want, err)
	}
	if help := succeed(t, "bench", "--help"); !strings.Contains(help, "$COUNTERSIGN_POSTGRES") {
		t.Errorf("the flag is not read from that variable:\n%s", help)
	}
}
