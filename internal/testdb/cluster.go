package testdb

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Cluster is a PostgreSQL server for one test, which the test may freeze, stop and promote. It is
// removed when the test ends.
type Cluster struct {
	folder string
	port   int
}

// binaries returns the folder of PostgreSQL's programs.
func binaries() string {
	if folder := os.Getenv("COUNTERSIGN_POSTGRES_BIN"); folder != "" {
		return folder
	}
	return "/usr/lib/postgresql/15/bin"
}

// NewCluster starts a server.
func NewCluster(t testing.TB) *Cluster {
	t.Helper()
	c := newCluster(t)
	c.run(t, "initdb", "-D", c.data(), "-U", "countersign", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync")
	c.configure(t, "max_wal_senders = 4\nhot_standby = on\n")
	c.start(t)
	return c
}

// Standby starts a standby of the server. From then on the server acknowledges no commit before the
// standby has it.
func (c *Cluster) Standby(t testing.TB) *Cluster {
	t.Helper()
	s := newCluster(t)
	c.run(t, "pg_basebackup", "-D", s.data(), "-R", "-X", "stream", "-c", "fast", "--no-sync",
		"-d", fmt.Sprintf("host=127.0.0.1 port=%d user=countersign application_name=standby", c.port))
	s.configure(t, "")
	s.start(t)
	c.exec(t, "alter system set synchronous_standby_names = 'standby'")
	c.exec(t, "select pg_reload_conf()")
	return s
}

func newCluster(t testing.TB) *Cluster {
	t.Helper()
	folder, err := os.MkdirTemp("", "countersign-cluster-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	if os.Geteuid() == 0 { // PostgreSQL refuses to run as root
		owner, err := user.Lookup("postgres")
		if err != nil {
			t.Fatal(err)
		}
		uid, _ := strconv.Atoi(owner.Uid)
		gid, _ := strconv.Atoi(owner.Gid)
		if err := os.Chown(folder, uid, gid); err != nil {
			t.Fatal(err)
		}
	}
	return &Cluster{folder: folder}
}

func (c *Cluster) data() string { return filepath.Join(c.folder, "data") }

// URL returns the address of the cluster's database, followed by the hosts of the other clusters.
func (c *Cluster) URL(also ...*Cluster) string {
	hosts := []string{fmt.Sprintf("127.0.0.1:%d", c.port)}
	for _, other := range also {
		hosts = append(hosts, fmt.Sprintf("127.0.0.1:%d", other.port))
	}
	return "postgres://countersign@" + strings.Join(hosts, ",") + "/postgres?sslmode=disable"
}

func (c *Cluster) configure(t testing.TB, more string) {
	t.Helper()
	settings := fmt.Sprintf("\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = '%s'\n%s", c.folder, more)
	file, err := os.OpenFile(filepath.Join(c.data(), "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = file.WriteString(settings)
	if err = errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
}

// start picks a free port. Another process may take it first, so it tries several times.
func (c *Cluster) start(t testing.TB) {
	t.Helper()
	var err error
	for range 5 {
		listener, listenErr := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
		if listenErr != nil {
			t.Fatal(listenErr)
		}
		c.port = listener.Addr().(*net.TCPAddr).Port
		_ = listener.Close()
		if err = c.command("pg_ctl", "-D", c.data(), "-l", filepath.Join(c.folder, "log"), "-o", fmt.Sprintf("-p %d", c.port), "-w", "-t", "60", "start"); err == nil {
			t.Cleanup(func() {
				c.Thaw()
				_ = c.command("pg_ctl", "-D", c.data(), "-m", "immediate", "-w", "stop")
			})
			return
		}
	}
	t.Fatalf("PostgreSQL does not start: %v", err)
}

// Stop ends the server like a crash.
func (c *Cluster) Stop(t testing.TB) {
	t.Helper()
	c.run(t, "pg_ctl", "-D", c.data(), "-m", "immediate", "-w", "stop")
}

// Promote makes a standby the primary and returns when it accepts writes.
func (c *Cluster) Promote(t testing.TB) {
	t.Helper()
	c.run(t, "pg_ctl", "-D", c.data(), "-w", "promote")
}

// Freeze stops every process of the server, so that it neither answers nor refuses anything.
func (c *Cluster) Freeze(t testing.TB) {
	t.Helper()
	if err := c.signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
}

// Thaw resumes the processes of a frozen server.
func (c *Cluster) Thaw() { _ = c.signal(syscall.SIGCONT) }

func (c *Cluster) signal(signal syscall.Signal) error {
	content, err := os.ReadFile(filepath.Join(c.data(), "postmaster.pid"))
	if err != nil {
		return err
	}
	first, _, _ := strings.Cut(string(content), "\n")
	postmaster, err := strconv.Atoi(first)
	if err != nil {
		return err
	}
	if err := syscall.Kill(postmaster, signal); err != nil { // first, so that it starts no more processes
		return err
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", postmaster, postmaster))
	if err != nil {
		return err
	}
	for _, text := range strings.Fields(string(children)) {
		if pid, err := strconv.Atoi(text); err == nil {
			_ = syscall.Kill(pid, signal) // it may have exited
		}
	}
	return nil
}

func (c *Cluster) run(t testing.TB, program string, args ...string) {
	t.Helper()
	if err := c.command(program, args...); err != nil {
		t.Fatal(err)
	}
}

// command runs one of PostgreSQL's programs as the owner of the cluster.
func (c *Cluster) command(program string, args ...string) error {
	name, args := filepath.Join(binaries(), program), args
	if os.Geteuid() == 0 {
		name, args = "runuser", append([]string{"-u", "postgres", "--", name}, args...)
	}
	command := exec.CommandContext(context.Background(), name, args...)
	command.Dir = c.folder
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	// The server inherits the output and keeps it open.
	command.WaitDelay = time.Second
	if err := command.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return fmt.Errorf("%s: %w\n%s", program, err, output.String())
	}
	return nil
}

func (c *Cluster) exec(t testing.TB, statement string) {
	t.Helper()
	err := connected(c.URL(), func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, statement)
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}
