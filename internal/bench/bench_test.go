package bench_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"countersign/internal/bench"
	"countersign/internal/testdb"
)

// theBinary is the path of the real program: the bench measures processes. make test
// has built it already; other runs build it once.
func theBinary(t *testing.T) string {
	t.Helper()
	binary, err := builtBinary()
	if err != nil {
		t.Fatal(err)
	}
	return binary
}

// builtFolder holds the program while the tests of this package run. TestMain
// makes and removes it.
var builtFolder string

var builtBinary = sync.OnceValues(func() (string, error) {
	if binary := os.Getenv("COUNTERSIGN_TEST_BINARY"); binary != "" {
		return binary, nil
	}
	binary := filepath.Join(builtFolder, "countersign")
	out, err := exec.Command("go", "build", "-ldflags=-w", "-o", binary, "countersign/cmd/countersign").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return binary, nil
})

func TestMain(m *testing.M) {
	if served, err := runStandIn(); served {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(withFolder(m.Run))
}

func withFolder(run func() int) int {
	var err error
	if builtFolder, err = os.MkdirTemp("", "countersign-bench-test-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(builtFolder) }()
	return run()
}

func smallConfig(t *testing.T, binary string) bench.Config {
	return bench.Config{
		Executable: binary, Dir: t.TempDir(), Rounds: 1, Duration: 20 * time.Millisecond,
		Chains: 200, Receipts: 50, Preload: 100, Waiters: 20,
	}
}

// A benchmark run measures every scenario on every target and leaves nothing behind.
func TestRunMeasuresEveryScenario(t *testing.T) {
	t.Parallel()
	config := smallConfig(t, theBinary(t))
	config.Postgres = testdb.ServerURL(t)
	report, err := bench.Run(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{
		"events":     {"bare net/http", "SQLite", "PostgreSQL"},
		"latency":    {"bare net/http", "SQLite", "PostgreSQL", "fdatasync"},
		"complete":   {"bare net/http", "SQLite", "PostgreSQL"},
		"log":        {"SQLite", "PostgreSQL"},
		"tokens":     {"bare net/http", "SQLite, first", "SQLite, fresh", "SQLite, reused", "PostgreSQL, first", "PostgreSQL, fresh", "PostgreSQL, reused", "SQLite, read again"},
		"verify":     {"bare net/http", "SQLite", "PostgreSQL"},
		"pgbench":    {"PostgreSQL", "pgbench"},
		"raw":        {"fdatasync"},
		"audit":      nil,
		"memory":     {"SQLite", "PostgreSQL"},
		"decide":     nil,
		"rules":      {"SQLite", "SQLite, 20 rules", "PostgreSQL", "PostgreSQL, 20 rules"},
		"approvals":  {"SQLite", "PostgreSQL"},
		"peers":      nil, // without their programs; TestRunMeasuresPeers has them
		"builds":     nil, // TestRunComparesBuilds has them
		"neighbours": {"SQLite", "SQLite, noisy", "PostgreSQL", "PostgreSQL, noisy"},
	}
	got := make(map[string][]string)
	for _, s := range report.Scenarios {
		got[s.Name] = nil
		for _, row := range s.Rows {
			got[s.Name] = append(got[s.Name], row.Target)
			if row.Rate <= 0 || row.P50 <= 0 || len(row.Rounds) != 1 {
				t.Errorf("%s, %s: nothing was measured: %+v", s.Name, row.Target, row)
			}
		}
		for _, figure := range s.Figures {
			if figure.Value <= 0 {
				t.Errorf("%s: nothing was measured: %+v", s.Name, figure)
			}
		}
		for _, bar := range s.Bars {
			if bar.Got <= 0 {
				t.Errorf("%s: a bar is held against nothing: %+v", s.Name, bar)
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what was measured (-want +got):\n%s", diff)
	}
	var table bytes.Buffer
	if err := report.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	for _, name := range bench.ScenarioNames() {
		if !strings.Contains(table.String(), "\n"+name+": ") {
			t.Errorf("the table lacks %s:\n%s", name, table.String())
		}
	}
	requireEmpty(t, config.Dir)
}

func requireEmpty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) != 0 {
		t.Errorf("the bench left %v behind", left)
	}
}

// Builds are compared with the first one that was given, in events and in completions.
func TestRunComparesBuilds(t *testing.T) {
	t.Parallel()
	binary := theBinary(t)
	other := filepath.Join(t.TempDir(), "other")
	if err := os.Symlink(binary, other); err != nil {
		t.Fatal(err)
	}
	config := smallConfig(t, binary)
	config.Scenarios, config.Builds, config.Rounds = []string{"builds"}, []string{binary, other}, 2
	report, err := bench.Run(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, figure := range report.Scenarios[0].Figures {
		got = append(got, figure.What)
		if figure.Value <= 0 {
			t.Errorf("nothing was measured: %+v", figure)
		}
	}
	own := filepath.Base(binary)
	want := []string{"event, " + own, "event, other", "event, other", "completion, " + own, "completion, other", "completion, other"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what was measured (-want +got):\n%s", diff)
	}
	requireEmpty(t, config.Dir)
}

// A build that does not serve fails the comparison, and says which it is.
func TestRunRefusesABrokenBuild(t *testing.T) {
	t.Parallel()
	config := smallConfig(t, theBinary(t))
	config.Scenarios, config.Builds = []string{"builds"}, []string{config.Executable, "/bin/false"}
	if _, err := bench.Run(t.Context(), config); err == nil || !strings.Contains(err.Error(), "/bin/false") {
		t.Errorf("got %v, want an error that names the build", err)
	}
	requireEmpty(t, config.Dir)
}

// An interrupted benchmark stops at once and leaves nothing behind.
func TestRunStopsWhenInterrupted(t *testing.T) {
	t.Parallel()
	config := smallConfig(t, theBinary(t))
	config.Scenarios, config.Duration = []string{"events"}, time.Minute
	ctx, interrupt := context.WithCancel(t.Context())
	config.Progress = func(format string, _ ...any) {
		if strings.Contains(format, "all servers answer") {
			interrupt()
		}
		if strings.Contains(format, "round") {
			t.Error("a round ended after the interruption")
		}
	}
	if _, err := bench.Run(ctx, config); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	requireEmpty(t, config.Dir)
}

// A scenario that only computes ends early as well when it is interrupted, and what it
// found until then is not reported.
func TestComputingStopsWhenInterrupted(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"raw", "audit", "decide"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := smallConfig(t, "unused")
			config.Scenarios, config.Duration = []string{name}, 10*time.Minute
			ctx, interrupt := context.WithTimeout(t.Context(), 2*time.Second)
			defer interrupt()
			began := time.Now()
			if report, err := bench.Run(ctx, config); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v, %v, want %v", report, err, context.DeadlineExceeded)
			}
			if took := time.Since(began); took > time.Minute {
				t.Errorf("it took %s", took)
			}
			requireEmpty(t, config.Dir)
		})
	}
}

// A benchmark with settings out of range is refused before anything is made.
func TestRunRefusesBadConfig(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name   string
		change func(*bench.Config)
		want   string
	}{
		{"unknown scenario", func(c *bench.Config) { c.Scenarios = []string{"dance"} }, `no scenario "dance"`},
		{"no rounds", func(c *bench.Config) { c.Rounds = 0 }, "rounds must be"},
		{"too long", func(c *bench.Config) { c.Duration = time.Hour }, "duration of a round"},
		{"no chains", func(c *bench.Config) { c.Chains = 0 }, "at least 1"},
		{"too few chains for builds", func(c *bench.Config) { c.Builds, c.Chains = []string{"a"}, 1 }, "at least 2 chains"},
		{"too many receipts", func(c *bench.Config) { c.Receipts = 1 << 40 }, "at most"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			config := smallConfig(t, "unused")
			c.change(&config)
			_, err := bench.Run(t.Context(), config)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
			requireEmpty(t, config.Dir)
		})
	}
}

// A benchmark whose server does not start fails and says so.
func TestRunFailsLoudly(t *testing.T) {
	t.Parallel()
	config := smallConfig(t, "/bin/false")
	config.Scenarios = []string{"events"}
	_, err := bench.Run(t.Context(), config)
	if err == nil || !strings.Contains(err.Error(), "ended before it served") {
		t.Errorf("got %v, want an error that says that the server ended", err)
	}
	requireEmpty(t, config.Dir)
}
