package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"countersign/internal/cli"
)

// Command is the gateway command.
type Command struct {
	cli.Remote
	Agent    string        `help:"Name of the agent whose calls are recorded; the default is the name that the client gives." placeholder:"NAME"`
	Name     string        `help:"Name of the chains; the default is the name that the server gives." placeholder:"NAME" env:"-"`
	Wait     time.Duration `help:"How long a call waits for a person before it is answered; the same call then takes up the wait. By default, as long as its client waits." placeholder:"DURATION" env:"-"`
	Upstream string        `help:"URL of an MCP server that is reached over streamable HTTP, instead of a command." placeholder:"URL" env:"-"`
	Listen   string        `help:"Address for the clients of that server, on this machine; port 0 picks a free one." default:"127.0.0.1:8808" env:"-"`
	Server   []string      `arg:"" optional:"" help:"Command that starts the MCP server, after --." name:"command" passthrough:""`
}

// Help is shown below the flags.
func (Command) Help() string {
	return `Put it into the configuration of an MCP client, in front of the server's own command. The service decides every tool
call before the server gets it: a denied call is answered as a tool error, and one that needs approval waits for a
person. Everything else is passed on unchanged. While the service cannot be reached, no call is carried out.

Examples:
  countersign gateway -- npx -y @modelcontextprotocol/server-filesystem /data
  countersign gateway --agent desk --key-file desk.key -- python server.py
  countersign gateway --agent desk --upstream https://tools.example/mcp      # clients use http://127.0.0.1:8808/mcp`
}

const (
	// stopTime is how long a server may take to end after its input was closed, and again after it was
	// asked to end. Clients kill the gateway four seconds after they have closed its input: by then the
	// chain must be completed.
	stopTime = 1500 * time.Millisecond
	// killTime is how long the output of a server that was killed is read.
	killTime = 500 * time.Millisecond

	maxName = 200 // characters that the service takes
)

// noteTime is how long a note on standard error may take. Nobody need read it, and calls wait for it.
const noteTime = time.Second

// Run stands between the clients and the server until either has ended, or the program is asked to.
func (c *Command) Run(p *cli.Process) error {
	if err := c.checkFlags(); err != nil {
		return cli.Usage(err)
	}
	log := func(format string, args ...any) {
		ctx, done := context.WithTimeout(context.WithoutCancel(p.Ctx), noteTime)
		defer done()
		fmt.Fprintln(&boundedWriter{ctx, p.Err}, "countersign:", cli.OneLine(fmt.Sprintf(format, args...)))
	}
	if c.Upstream != "" {
		return c.serve(p, log)
	}
	api, err := c.Connect(p)
	if err != nil {
		return cli.Usage(err)
	}
	// A client that is gone must not end the gateway before it has ended the session.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	server, err := c.start(context.WithoutCancel(p.Ctx), p.Err)
	if err != nil {
		return cli.Inconclusive(fmt.Errorf("the MCP server cannot be started: %s: %w", c.Server[0], startError(err)))
	}
	log("the tool calls of %s are decided by %s", filepath.Base(c.Server[0]), api.Base)
	stopProbing := startProbe(p.Ctx, api, log)
	defer stopProbing()
	s := &lineSession{c.newSession(api, log, new(atomic.Int64)), &lineWriter{w: p.Out}, &lineWriter{w: server.input}}
	return s.run(p.Ctx, p.In, server)
}

// startProbe says at the start what would make the calls fail, such as a wrong URL or key. The gateway runs
// on, because the service may only be restarting.
func startProbe(ctx context.Context, api *cli.Client, log func(string, ...any)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var probing sync.WaitGroup
	probing.Go(func() {
		err := api.Call(ctx, http.MethodGet, "/v1/chains?limit=1", nil, &struct{}{})
		if err == nil || ctx.Err() != nil {
			return
		}
		var refused *cli.APIError
		if errors.As(err, &refused) && refused.Status == http.StatusNotFound {
			err = fmt.Errorf("%w; check --url", err)
		}
		log("no call can be decided now: %v", err)
	})
	return func() {
		cancel()
		probing.Wait()
	}
}

// checkFlags checks the command line. Everything after the command is the server's, with or without --.
func (c *Command) checkFlags() error {
	if len(c.Server) > 0 && c.Server[0] == "--" {
		c.Server = c.Server[1:]
	}
	if (c.Upstream == "") == (len(c.Server) == 0) {
		return errors.New("name the command that starts the MCP server after --, or its URL with --upstream")
	}
	if c.Wait < 0 {
		return errors.New("--wait must not be negative")
	}
	for flag, name := range map[string]string{"--agent": c.Agent, "--name": c.Name} {
		if strings.ContainsFunc(name, unicode.IsControl) || utf8.RuneCountInString(name) > maxName {
			return fmt.Errorf("%s must be one line of at most %d characters", flag, maxName)
		}
	}
	return nil
}

// startError is the reason why a command could not be started, without the words of the system call.
func startError(err error) error {
	var unknown *exec.Error
	var failed *os.PathError
	switch {
	case errors.As(err, &unknown):
		return unknown.Err
	case errors.As(err, &failed):
		return failed.Err
	}
	return err
}

// newSession returns a session. Its reporting must be set. newest is shared by all sessions.
func (c *Command) newSession(api *cli.Client, log func(string, ...any), newest *atomic.Int64) *session {
	s := &session{log: log, slots: make(chan struct{}, maxOpenCalls), open: make(map[string]*openCall), expiry: cancelTime}
	agent := func(call *toolCall) string {
		client, _ := s.parties.names()
		return firstOf(c.Agent, client.Name, call.client.Name, "mcp-client")
	}
	describe := func() (string, map[string]string) {
		client, server := s.parties.names()
		metadata := make(map[string]string)
		for name, party := range map[string]party{"mcp_client": client, "mcp_server": server} {
			if text := strings.TrimSpace(party.Name + " " + party.Version); text != "" {
				metadata[name] = text
			}
		}
		return firstOf(c.Name, server.Name, "mcp-server"), metadata
	}
	s.governor = &governor{api: api, agent: agent, patience: c.Wait, newest: newest, clock: time.Now}
	s.chains = &chains{api: api, describe: describe, log: log}
	return s
}

// firstOf returns the first text that is not empty.
func firstOf(texts ...string) string {
	for _, text := range texts {
		if text = strings.TrimSpace(text); text != "" {
			return text
		}
	}
	return ""
}

// process is the MCP server.
type process struct {
	*exec.Cmd
	input    io.WriteCloser
	output   io.ReadCloser
	stopTime time.Duration
}

// start starts the MCP server. It does not get the API key: the key would let it record, and complete,
// what it likes.
func (c *Command) start(ctx context.Context, notes io.Writer) (*process, error) {
	server := &process{stopTime: stopTime, Cmd: exec.CommandContext(ctx, c.Server[0], c.Server[1:]...)} //nolint:gosec // the operator names the command
	// A command such as npx starts the server as a process of its own: both are ended.
	server.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "COUNTERSIGN_") {
			server.Env = append(server.Env, variable)
		}
	}
	server.Stderr = notes
	// Grandchildren may keep the pipes of a server that has ended.
	server.WaitDelay = stopTime
	var err error
	if server.input, err = server.StdinPipe(); err != nil {
		return nil, err
	}
	if server.output, err = server.StdoutPipe(); err != nil {
		return nil, err
	}
	err = server.Start()
	return server, err
}

// end ends the server in the way of the protocol: its input is closed, then it is asked to end, and
// then it is killed. drained is closed when its output is not read any more, which may be long before its
// end.
func (p *process) end(drained <-chan struct{}) error {
	// The server may have closed it already.
	_ = p.input.Close()
	exited, lost := make(chan error, 1), make(chan struct{})
	go func() {
		select { // Wait closes the output
		case <-drained:
		case <-lost:
		}
		exited <- p.Wait()
	}()
	for _, step := range []struct {
		after time.Duration
		do    func() error
	}{
		{p.stopTime, func() error { return p.signal(syscall.SIGTERM) }},
		{p.stopTime, func() error { return p.signal(syscall.SIGKILL) }},
		{killTime, func() error { close(lost); return nil }},
	} {
		timer := time.NewTimer(step.after)
		select {
		case err := <-exited:
			timer.Stop()
			return err
		case <-timer.C:
			_ = step.do() // it may have ended just now
		}
	}
	return <-exited
}

// signal sends a signal to the server and to the processes that it has started.
func (p *process) signal(signal syscall.Signal) error { return syscall.Kill(-p.Process.Pid, signal) }

// run serves the client until it, the server or ctx ends.
func (s *lineSession) run(ctx context.Context, client io.Reader, server *process) error {
	reporting, stopReporting := context.WithCancel(context.WithoutCancel(ctx))
	defer stopReporting()
	s.reporting = reporting
	writing, stopWriting := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWriting()
	s.client.w = &boundedWriter{writing, s.client.w}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	fromClient, fromServer, drained := make(chan error, 2), make(chan error, 1), make(chan struct{})
	go func() {
		fromClient <- readLines(client, func(text []byte) error { return s.fromClient(ctx, text) })
	}()
	go func() {
		defer close(drained)
		fromServer <- readLines(server.output, func(text []byte) error {
			if err := s.fromServer(text); err != nil {
				// The server is still read from, because its answers say how calls ended.
				select {
				case fromClient <- fmt.Errorf("the client cannot be written to: %w", err):
				default:
				}
			}
			return nil
		})
		// A server that cannot write does not end.
		_, _ = io.Copy(io.Discard, server.output)
	}()
	var ended error
	serverEnded := false
	select {
	case <-ctx.Done():
	case ended = <-fromClient:
	case ended = <-fromServer:
		serverEnded = ended == nil
	}
	cancel() // gives up the calls that wait
	exit := server.end(drained)
	stopWriting() // nothing waits any more for a client that does not read
	<-drained
	defer time.AfterFunc(reportTime, stopReporting).Stop()
	s.end(ctx)
	switch {
	case serverEnded && exit != nil:
		return fmt.Errorf("the MCP server has ended: %w", exit)
	case serverEnded:
		return errors.New("the MCP server has ended")
	}
	return ended // how the server ends after that is its own business
}

// boundedWriter gives a write up when ctx ends. Whoever holds the other end of a pipe need not read it.
type boundedWriter struct {
	ctx context.Context
	w   io.Writer
}

func (b *boundedWriter) Write(text []byte) (int, error) {
	if err := b.ctx.Err(); err != nil {
		return 0, err
	}
	written := make(chan error, 1)
	go func() {
		_, err := b.w.Write(text)
		written <- err
	}()
	select {
	case err := <-written:
		return len(text), err
	case <-b.ctx.Done():
		return 0, b.ctx.Err()
	}
}
