package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// crashServerVariable makes this test binary be the program itself, so that the
// crash tests need no second build and their servers have the race detector
// whenever the tests have it.
const crashServerVariable = "COUNTERSIGN_CRASH_SERVER"

func init() {
	if os.Getenv(crashServerVariable) == "" {
		return
	}
	// Whoever runs the tests may let a tracer make its system calls fail.
	const setPtracer, anyProcess = 0x59616d61, ^uintptr(0)
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, setPtracer, anyProcess, 0)
	go func() {
		// Standard input ends with the test that holds its other end: a test
		// that dies leaves no server behind.
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	main()
}

const (
	crashStartTimeout = 30 * time.Second
	crashStopTimeout  = 45 * time.Second
)

// crashServer is one process that serves.
type crashServer struct {
	command *exec.Cmd
	stdout  bytes.Buffer // to be read once the process has exited
	log     *crashLog
	address string
	// signalled is set before the signal is sent, so that a client that loses
	// its connection can tell a crash that was meant from one that was not.
	signalled atomic.Bool
	exited    chan struct{}
	exit      error
}

// startCrashServer passes the address of a database in the environment: it has a password, and
// every process can read a command line.
func startCrashServer(ctx context.Context, args ...string) (*crashServer, error) {
	environment := crashEnvironment()
	if at := slices.Index(args, "--database"); at >= 0 {
		environment = append(environment, "COUNTERSIGN_DATABASE="+args[at+1])
		args = slices.Delete(slices.Clone(args), at, at+2)
	}
	command := exec.Command(os.Args[0], append([]string{"serve", "--listen", "127.0.0.1:0"}, args...)...)
	command.Env = environment
	return launchCrashServer(ctx, command)
}

// launchCrashServer runs a command that becomes a server, in an environment of crashEnvironment.
func launchCrashServer(ctx context.Context, command *exec.Cmd) (*crashServer, error) {
	s := &crashServer{command: command, log: newCrashLog(), exited: make(chan struct{})}
	s.command.Stdout, s.command.Stderr = &s.stdout, s.log
	if _, err := s.command.StdinPipe(); err != nil {
		return nil, err
	}
	if err := s.command.Start(); err != nil {
		return nil, err
	}
	go func() {
		s.exit = s.command.Wait()
		close(s.exited)
	}()
	var err error
	select {
	case s.address = <-s.log.serving:
		return s, nil
	case <-s.exited:
		return nil, fmt.Errorf("the server ended before it served: %s\n%s", s.command.ProcessState, s.log)
	case <-time.After(crashStartTimeout):
		err = fmt.Errorf("the server does not serve after %s\n%s", crashStartTimeout, s.log)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	return nil, errors.Join(err, s.kill())
}

// crashEnvironment keeps the settings of whoever runs the tests away from the
// servers.
func crashEnvironment() []string {
	environment := []string{
		crashServerVariable + "=yes",
		// The race detector would let each server that stops linger for a second.
		"GORACE=atexit_sleep_ms=10",
	}
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "COUNTERSIGN_") {
			environment = append(environment, entry)
		}
	}
	return environment
}

// kill ends the process as a power cut would, and waits until it is gone.
func (s *crashServer) kill() error {
	if err := s.signal(syscall.SIGKILL); err != nil {
		return err
	}
	return s.log.fault()
}

// stop asks the process to end; it must do so by itself and without complaint.
func (s *crashServer) stop() error {
	if err := s.signal(syscall.SIGTERM); err != nil {
		return err
	}
	if s.exit != nil {
		return fmt.Errorf("the server did not stop cleanly: %w\n%s", s.exit, s.log)
	}
	return s.log.fault()
}

func (s *crashServer) signal(signal syscall.Signal) error {
	select {
	case <-s.exited:
		return fmt.Errorf("the server had ended by itself: %s\n%s", s.command.ProcessState, s.log)
	default:
	}
	s.signalled.Store(true)
	if err := s.command.Process.Signal(signal); err != nil {
		return err
	}
	select {
	case <-s.exited:
		return nil
	case <-time.After(crashStopTimeout):
		return errors.Join(fmt.Errorf("the server does not end after %s\n%s", crashStopTimeout, s.log), s.command.Process.Kill())
	}
}

// dispose makes sure that the process is gone, whatever became of the test.
func (s *crashServer) dispose() {
	s.signalled.Store(true)
	_ = s.command.Process.Kill()
	<-s.exited
}

var crashKeyPattern = regexp.MustCompile(`csk_[0-9A-Za-z]+`)

// firstKey is the API key that a first start printed. The process must have
// ended: only then is its output sure to be here.
func (s *crashServer) firstKey() (string, error) {
	key := crashKeyPattern.FindString(s.stdout.String())
	if key == "" {
		return "", errors.New("the first start printed no API key")
	}
	return key, nil
}

// crashLog takes a server's log and finds the address it serves on.
type crashLog struct {
	serving chan string
	mu      sync.Mutex
	text    bytes.Buffer
	rest    []byte // a line not yet whole
	stray   []string
}

func newCrashLog() *crashLog { return &crashLog{serving: make(chan string, 1)} }

func (l *crashLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(p)
	l.rest = append(l.rest, p...)
	for {
		line, rest, whole := bytes.Cut(l.rest, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		l.rest = rest
		l.take(line)
	}
}

func (l *crashLog) take(line []byte) {
	var entry struct{ Level, Msg, Address string }
	if err := json.Unmarshal(line, &entry); err != nil {
		// Panics and reports of the race detector look like this.
		l.stray = append(l.stray, string(line))
		return
	}
	if entry.Msg == "serving" && entry.Address != "" {
		select {
		case l.serving <- entry.Address:
		default:
		}
	}
}

func (l *crashLog) fault() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.stray) == 0 {
		return nil
	}
	return fmt.Errorf("the server's log holds what is no log line:\n%s", strings.Join(l.stray, "\n"))
}

func (l *crashLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
