package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// server is a server process that this bench started.
type server struct {
	name    string
	address string        // host:port
	core    int           // that it is pinned to
	started time.Duration // from the start of the process to its first answer
	// postmaster is the process id of PostgreSQL's first process, if the server uses
	// one on this machine; else 0.
	postmaster int
	cmd        *exec.Cmd
	log        *logWatch
	ended      chan struct{}
	err        error // of the process, once ended
}

const (
	// servingMessage is the log line in which a server tells its address.
	servingMessage = "serving"
	startTimeout   = 2 * time.Minute
	stopTimeout    = 40 * time.Second
)

// launch starts this program with other arguments on the server's core, and
// waits until it answers.
func (b *bench) launch(ctx context.Context, name string, environment []string, arguments ...string) (*server, error) {
	return b.launchProgram(ctx, name, b.Executable, environment, arguments...)
}

// launchProgram does the same with another build of this program.
func (b *bench) launchProgram(ctx context.Context, name, program string, environment []string, arguments ...string) (*server, error) {
	began := time.Now()
	s, err := b.spawn(ctx, name, program, environment, arguments...)
	if err != nil {
		return nil, err
	}
	if err := s.await(ctx); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	s.started = time.Since(began)
	return s, nil
}

// spawn starts a program on the server's core. Settings of the bench's own
// environment must not change what is measured, so the process gets only those
// named here.
func (b *bench) spawn(ctx context.Context, name, program string, environment []string, arguments ...string) (*server, error) {
	s := &server{name: name, core: b.cores.server, log: newLogWatch(), ended: make(chan struct{})}
	s.cmd = exec.CommandContext(ctx, program, arguments...) //nolint:gosec // this program itself, or one that the user named
	s.cmd.Env = append(foreignEnvironment(), environment...)
	s.cmd.Stderr = s.log
	s.cmd.Cancel = func() error { return s.cmd.Process.Signal(syscall.SIGTERM) }
	s.cmd.WaitDelay = stopTimeout
	if err := b.cores.start(s.cmd, s.core); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		s.err = s.cmd.Wait()
		close(s.ended)
	}()
	return s, nil
}

func foreignEnvironment() []string {
	var kept []string
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "COUNTERSIGN_") && !strings.HasPrefix(variable, "GOMAXPROCS=") {
			kept = append(kept, variable)
		}
	}
	return kept
}

// await waits for the address and for a first answer from it.
func (s *server) await(ctx context.Context) error {
	timeout := time.NewTimer(startTimeout)
	defer timeout.Stop()
	select {
	case s.address = <-s.log.address:
	case <-s.ended:
		return fmt.Errorf("%s ended before it served: %w\n%s", s.name, s.err, s.log.tail())
	case <-timeout.C:
		return fmt.Errorf("%s does not serve after %s\n%s", s.name, startTimeout, s.log.tail())
	case <-ctx.Done():
		return ctx.Err()
	}
	c, err := dial(ctx, s.address)
	if err != nil {
		return err
	}
	defer c.close()
	if err := c.expire(time.Now()); err != nil {
		return err
	}
	_, err = c.exchange(request("GET", "/healthz", "", ""))
	return err
}

func (s *server) pid() int { return s.cmd.Process.Pid }

// stop asks the process to end, and kills it if that takes too long.
func (s *server) stop() error {
	_ = s.cmd.Process.Signal(syscall.SIGTERM) // it may have ended already
	select {
	case <-s.ended:
	case <-time.After(stopTimeout):
		_ = s.cmd.Process.Kill()
		<-s.ended
	}
	if s.err != nil {
		return fmt.Errorf("%s: %w\n%s", s.name, s.err, s.log.tail())
	}
	return nil
}

// logWatch reads a server's log as it is written: it finds the address and
// keeps the last lines for an error's explanation.
type logWatch struct {
	address chan string
	mu      sync.Mutex
	rest    []byte
	lines   []string
	found   bool
}

func newLogWatch() *logWatch { return &logWatch{address: make(chan string, 1)} }

const keptLines = 20

// Write implements io.Writer.
func (l *logWatch) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest = append(l.rest, p...)
	for {
		line, rest, whole := bytes.Cut(l.rest, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		l.take(line)
		l.rest = rest
	}
}

func (l *logWatch) take(line []byte) {
	l.lines = append(l.lines, string(line))
	if len(l.lines) > keptLines {
		l.lines = l.lines[1:]
	}
	var entry struct{ Msg, Address string }
	if !l.found && json.Unmarshal(line, &entry) == nil && entry.Msg == servingMessage {
		l.found = true
		l.address <- strings.TrimPrefix(entry.Address, "http://")
	}
}

func (l *logWatch) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}
