package main

import (
	"bufio"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"countersign/internal/nightly"
)

// readinessReport is what /readyz answers.
type readinessReport struct {
	code    int // HTTP status
	Status  string
	Reasons []struct{ Name string }
	Checks  []struct{ Name, Status, Detail string }
}

// readiness asks /readyz, which must answer soon whatever happens.
func (c *client) readiness(t *testing.T) (report readinessReport) {
	t.Helper()
	began := time.Now()
	status, body, err := c.send(t.Context(), http.MethodGet, "/readyz", "")
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > faultTime {
		t.Errorf("/readyz answered after %s", took)
	}
	if err := json.Unmarshal(body, &report); err != nil {
		t.Fatal(err)
	}
	report.code = status
	return report
}

// detail is what a check says, with its status.
func (r readinessReport) detail(name string) (status, detail string) {
	for _, check := range r.Checks {
		if check.Name == name {
			return check.Status, check.Detail
		}
	}
	return "", ""
}

const (
	// faultTime is how late a fault may show, and clear, on a machine that is busy.
	faultTime = 15 * time.Second
	// shownTime is how late a fault may show otherwise.
	shownTime = 5 * time.Second
)

// promised measures up to three times, until something takes no longer than promised: other tests
// keep the machine busy now and then, but not always.
func promised(t *testing.T, what string, promise time.Duration, measure func() time.Duration) {
	t.Helper()
	const attempts = 3
	for range attempts {
		took := measure()
		t.Logf("%s after %s, %s is promised", what, took.Round(10*time.Millisecond), promise)
		if took <= promise || t.Failed() {
			return
		}
	}
	t.Errorf("%s later than %s, %d times", what, promise, attempts)
}

// awaitStorage waits until the check of the store has a status and says something. It returns
// how long that took.
func (c *client) awaitStorage(t *testing.T, code int, says string) time.Duration {
	t.Helper()
	began := time.Now()
	for {
		report := c.readiness(t)
		status, detail := report.detail("storage")
		if report.code == code && strings.Contains(detail, says) && (status == "ok") == (code == http.StatusOK) {
			took := time.Since(began)
			t.Logf("%d %q after %s", code, detail, took.Round(10*time.Millisecond))
			return took
		}
		if time.Since(began) > faultTime {
			t.Fatalf("/readyz says %+v, want %d and %q", report, code, says)
		}
		<-time.After(50 * time.Millisecond) // as a load balancer asks again
	}
}

// traced makes system calls of a server fail until the returned function is called.
func (s *crashServer) traced(t *testing.T, calls, outcome string, paths ...string) (heal func()) {
	t.Helper()
	args := []string{"-f", "-o", "/dev/null", "-e", "trace=" + calls, "-e", "inject=" + calls + ":" + outcome}
	for _, path := range paths {
		args = append(args, "-P", path)
	}
	tracer := exec.Command("strace", append(args, "-p", strconv.Itoa(s.command.Process.Pid))...)
	output, err := tracer.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := tracer.Start(); err != nil {
		t.Fatalf("strace: %v; make setup installs it", err)
	}
	lines := bufio.NewScanner(output)
	if !lines.Scan() || !strings.Contains(lines.Text(), "attached") {
		t.Fatalf("strace does not attach: %s", lines.Text())
	}
	healed := false
	heal = func() {
		if !healed {
			healed = true
			_ = tracer.Process.Signal(syscall.SIGTERM)
			for lines.Scan() { // until it has let go
			}
			_ = tracer.Wait()
		}
	}
	t.Cleanup(heal)
	return heal
}

// problemCode is the code of a problem.
func problemCode(body []byte) string {
	var document struct{ Code string }
	_ = json.Unmarshal(body, &document)
	return document.Code
}

// A disk that fails under a running server shows in /readyz, with the kind of the fault,
// and in answers that say so, and never as a fault of the service's own. When the disk
// works again, so does the server, by itself.
//
//countersign:norace its servers are processes
func TestFailingDisk(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name                 string
		calls, outcome, says string
		written              bool // what was read before can still be written
	}{
		{name: "syncing fails", calls: "fsync,fdatasync", outcome: "error=EIO", says: "input/output error"},
		{name: "reading fails", calls: "pread64", outcome: "error=EIO", says: "cannot be read", written: true},
		{name: "the disk is read-only", calls: "pwrite64", outcome: "error=EROFS", says: "read-only"},
		{name: "writing fails", calls: "pwrite64", outcome: "error=EIO", says: "input/output error"},
		{name: "the disk is full", calls: "pwrite64", outcome: "error=ENOSPC", says: "no space left"},
	}
	for _, test := range tests[:nightly.Count(3, len(tests))] {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			f := startFaulty(t, "--data", folder)
			c := f.client()
			c.awaitStorage(t, http.StatusOK, "")
			receipt := c.seal(t).ReceiptID
			file := filepath.Join(folder, "countersign.db")
			t.Cleanup(func() {
				if t.Failed() {
					t.Log(f.log)
				}
			})
			var heal func()
			promised(t, "the fault shows", shownTime, func() time.Duration {
				if heal != nil {
					heal()
					c.awaitStorage(t, http.StatusOK, "")
				}
				heal = f.traced(t, test.calls, test.outcome, file, file+"-wal")
				return c.awaitStorage(t, http.StatusServiceUnavailable, test.says)
			})
			for _, request := range []struct{ method, path, body string }{
				{http.MethodPost, "/v1/chains", `{"name":"n"}`},
				{http.MethodGet, "/v1/chains", ""},
				{http.MethodGet, "/v1/receipts/" + receipt, ""},
				{http.MethodGet, "/v1/policies", ""},
				{http.MethodGet, "/v1/audit-log", ""},
				{http.MethodGet, "/v1/approvals", ""},
			} {
				status, body, err := c.send(t.Context(), request.method, request.path, request.body)
				code := problemCode(body)
				told := status == http.StatusServiceUnavailable && (code == "storage_unavailable" || code == "outcome_unknown")
				fine := status < 300 && (request.method == http.MethodGet || test.written)
				if err != nil || !told && !fine {
					t.Errorf("%s %s: status %d, %v: %s", request.method, request.path, status, err, body)
				}
			}
			heal()
			c.awaitStorage(t, http.StatusOK, "")
			c.seal(t)
			if err := f.stop(); err != nil {
				t.Fatal(err)
			}
			succeed(t, "audit", "--data", folder)
		})
	}
}

// A folder whose file system is full refuses writes, says so in /readyz, answers reads,
// and goes on when there is room again.
//
//countersign:norace its servers are processes
func TestFullFileSystem(t *testing.T) {
	t.Parallel()
	folder := smallFileSystem(t)
	f := startFaulty(t, "--data", folder, "--keys", filepath.Join(t.TempDir(), "keys.json"))
	c := f.client()
	c.awaitStorage(t, http.StatusOK, "")
	receipt := c.seal(t).ReceiptID
	filler := filepath.Join(folder, "filler")
	promised(t, "the full file system shows", shownTime, func() time.Duration {
		if os.Remove(filler) == nil {
			c.awaitStorage(t, http.StatusOK, "")
		}
		if err := exec.Command("dd", "if=/dev/zero", "of="+filler, "bs=1k").Run(); err == nil {
			t.Fatal("the file system took everything")
		}
		return c.awaitStorage(t, http.StatusServiceUnavailable, "no space left")
	})
	if status := c.status(t, http.MethodPost, "/v1/chains", `{"name":"n"}`); status != http.StatusServiceUnavailable {
		t.Errorf("a chain was opened on a full disk: %d", status)
	}
	if !c.valid(t, receipt) {
		t.Error("a receipt is not valid any more")
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	c.awaitStorage(t, http.StatusOK, "")
	c.seal(t)
}

// smallFileSystem is a folder with a little room of its own.
func smallFileSystem(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	if err := exec.Command("mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", folder).Run(); err != nil {
		t.Fatalf("mount a small file system: %v; this test needs to be root", err)
	}
	t.Cleanup(func() {
		if err := exec.Command("umount", "-l", folder).Run(); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return folder
}
