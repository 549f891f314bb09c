package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"
)

// The peers' names.
const (
	opaName    = "OPA, decisions"
	immudbName = "immudb, Set"
)

// measurePeers compares durable events with what two known servers do for half of
// the work: OPA decides and stores nothing, immudb stores and decides nothing.
func measurePeers(ctx context.Context, b *bench) (*Scenario, error) {
	s := &Scenario{Title: fmt.Sprintf("durable events, OPA's decisions and immudb's Set, %d connections", manyConnections)}
	if b.Peers == "" {
		s.Notes = append(s.Notes, "not measured: no folder with the peers' programs was given (--peers)")
		return s, nil
	}
	found := make(map[string]string) // programs by the peers' names
	for _, p := range peers {
		program, err := findPeer(b.Peers, p.program)
		if err != nil {
			s.Notes = append(s.Notes, p.name+" not measured: "+err.Error())
			continue
		}
		found[p.name] = program
		s.Notes = append(s.Notes, filepath.Base(program)+": "+p.does)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("there is no peer in %s: scripts/bench-peers builds them", b.Peers)
	}
	s.Notes = append(s.Notes, openingNote)
	err := b.withTargets(ctx, nothing, func(targets []*target) error {
		return b.measureBeside(ctx, s, targets, found)
	})
	if err != nil {
		return nil, err
	}
	s.compareWithBare()
	for _, name := range b.serviceNames() {
		for _, p := range peers {
			if found[p.name] != "" {
				ratio := against(s.row(name).Rounds, s.row(p.name).Rounds, (*Measurement).rate)
				s.Bars = append(s.Bars, atLeast("events on "+name+", times "+p.name, p.wanted, ratio, ""))
			}
		}
	}
	return s, nil
}

// peers are the servers to compare with. One that could not be built is left out.
var peers = []struct {
	name, program, does string
	wanted              float64 // how many times its rate the service's should be
}{
	{opaName, "opa", "three rules over the action of an event, log level error; nothing is stored", 1.8},
	{immudbName, "immudb", fmt.Sprintf("an event's bytes under a key of its own, in its default settings: synced, and indexed before it answers; %d connections", immudbConnections), 5},
}

// immudbConnections is how many commits immudb accepts at a time in its default settings. It
// refuses more.
const immudbConnections = 30

// findPeer finds the newest build of a program: its name, @, and its version.
func findPeer(dir, name string) (string, error) {
	found, _ := filepath.Glob(filepath.Join(dir, name+"@*")) // a folder that cannot be read has none
	if len(found) == 0 {
		return "", fmt.Errorf("there is no %s@VERSION in %s: scripts/bench-peers builds it", name, dir)
	}
	return newest(found), nil
}

// measureBeside starts the peers beside the other targets.
func (b *bench) measureBeside(ctx context.Context, s *Scenario, targets []*target, found map[string]string) error {
	if program := found[opaName]; program != "" {
		server, err := b.startOPA(ctx, program)
		if err != nil {
			return err
		}
		defer server.end()
		targets = append(targets, &target{name: opaName, server: server})
	}
	var sessionID string
	if program := found[immudbName]; program != "" {
		server, id, err := b.startImmudb(ctx, program)
		if err != nil {
			return err
		}
		defer server.end()
		sessionID = id
		targets = append(targets, &target{name: immudbName, server: server})
	}
	return b.rounds(ctx, targets, s, func(ctx context.Context, t *target) (*Measurement, error) {
		connections := manyConnections
		if t.name == immudbName {
			connections = immudbConnections
		}
		l := b.eventLoad(t, connections)
		switch t.name {
		case opaName:
			l.session = func(int) session { return newDecisionSession() }
		case immudbName:
			l.session = func(int) session { return newSetSession(ctx, t.server.address, sessionID) }
		}
		return l.drive(ctx)
	})
}

// end stops a peer. How it exits says nothing about what was measured.
func (s *server) end() { _ = s.stop() }

// startPeer starts another project's server at an address of the bench's choice, and
// asks until it answers.
func (b *bench) startPeer(ctx context.Context, name, program, address string, answers func() error, arguments ...string) (*server, error) {
	s, err := b.spawn(ctx, name, program, nil, arguments...)
	if err != nil {
		return nil, err
	}
	s.address = address
	end := time.Now().Add(startTimeout)
	for {
		if err = answers(); err == nil {
			return s, nil
		}
		select {
		case <-s.ended:
			return nil, fmt.Errorf("%s ended before it served: %w\n%s", name, errors.Join(s.err, err), s.log.tail())
		case <-ctx.Done():
			s.end()
			return nil, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(end) {
			s.end()
			return nil, fmt.Errorf("%s does not serve after %s: %w\n%s", name, startTimeout, err, s.log.tail())
		}
	}
}

// freeAddress is a port of this machine that nobody used a moment ago: the peers do
// not say which port they got.
func freeAddress(ctx context.Context) (address, port string, err error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", "", err
	}
	address = listener.Addr().String()
	_, port, err = net.SplitHostPort(address)
	return address, port, errors.Join(err, listener.Close())
}

// opaPolicy has three rules of the kind that companies write. None holds for what
// the bench records, so each is evaluated.
const opaPolicy = `package bench

default decision := "allow"

decision := "deny" if {
	input.agent_name == "payroll"
	input.action_name == "wire_transfer"
}

decision := "deny" if input.payload.amount_usd > 5000

decision := "deny" if input.payload.customer.country == "XX"
`

func (b *bench) startOPA(ctx context.Context, program string) (*server, error) {
	policy := filepath.Join(b.dir, "bench.rego")
	if err := os.WriteFile(policy, []byte(opaPolicy), 0o600); err != nil {
		return nil, err
	}
	address, _, err := freeAddress(ctx)
	if err != nil {
		return nil, err
	}
	answers := func() error {
		c, err := dial(ctx, address)
		if err != nil {
			return err
		}
		defer c.close()
		if err := c.expire(time.Now()); err != nil {
			return err
		}
		_, err = newDecisionSession().step(c)
		return err
	}
	// At its default level OPA logs each request twice, which would be half its work.
	return b.startPeer(ctx, opaName, program, address, answers,
		"run", "--server", "--addr", address, "--disable-telemetry", "--log-level", "error", policy)
}

// decisionSession asks OPA to decide on the action of an event.
type decisionSession struct{ request []byte }

func newDecisionSession() session {
	input := `{"input":` + eventValue + `}`
	return &decisionSession{request: request("POST", "/v1/data/bench/decision", "", input)}
}

func (s *decisionSession) step(c *connection) (bool, error) {
	return true, c.expect(s.request, `"result":"allow"`)
}

// startImmudb also opens the session under which everything is set.
func (b *bench) startImmudb(ctx context.Context, program string) (_ *server, sessionID string, err error) {
	dir, err := os.MkdirTemp(b.dir, "immudb-")
	if err != nil {
		return nil, "", fmt.Errorf("folder of immudb: %w", err)
	}
	address, port, err := freeAddress(ctx)
	if err != nil {
		return nil, "", err
	}
	answers := func() (err error) {
		sessionID, err = openImmudbSession(ctx, address)
		return err
	}
	// What it serves beside its own protocol listens on fixed ports, and has no part
	// in a Set.
	s, err := b.startPeer(ctx, immudbName, program, address, answers,
		"--dir", dir, "--address", "127.0.0.1", "--port", port,
		"--synced=true", "--pgsql-server=false", "--web-server=false", "--metrics-server=false")
	return s, sessionID, err
}
