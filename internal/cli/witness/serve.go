package witness

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"countersign/internal/cli"
	"countersign/internal/observe"
	"countersign/internal/witness"
)

type witnessServeCommand struct {
	witnessFolder
	Listen    string        `help:"Address to listen on; port 0 picks a free one." default:"127.0.0.1:8081" env:"COUNTERSIGN_WITNESS_LISTEN"`
	Follow    []string      `help:"Also fetch the checkpoints that a log publishes here, with its tiles (repeatable)." env:"COUNTERSIGN_WITNESS_FOLLOW" placeholder:"URL"`
	Interval  time.Duration `help:"How often to fetch." default:"30s" env:"COUNTERSIGN_WITNESS_INTERVAL"`
	MaxAge    time.Duration `help:"Raise an alarm if a log could not be fetched and checked for this long." default:"10m" env:"COUNTERSIGN_WITNESS_MAX_AGE"`
	MaxIdle   time.Duration `help:"Raise an alarm if a log has not grown for this long; 0 for never." default:"0" env:"COUNTERSIGN_WITNESS_MAX_IDLE"`
	Once      bool          `help:"Check the followed logs once and exit, without serving (0: fine, 1: alarm, 2: could not read)." env:"-"`
	Metrics   string        `name:"metrics-listen" help:"Address to serve Prometheus metrics on, at /metrics; off by default." env:"COUNTERSIGN_WITNESS_METRICS_LISTEN" placeholder:"ADDR"`
	TLSCert   string        `name:"tls-cert" help:"Certificate file for TLS; read at startup." type:"path" env:"COUNTERSIGN_WITNESS_TLS_CERT" placeholder:"FILE"`
	TLSKey    string        `name:"tls-key" help:"Key file for TLS." type:"path" env:"COUNTERSIGN_WITNESS_TLS_KEY" placeholder:"FILE"`
	LogLevel  string        `help:"Log level (${enum})." enum:"debug,info,warn,error" default:"info"`
	LogFormat string        `help:"Format of the log on standard error: ${enum}." enum:"json,text" default:"json"`
}

// Help is shown below the flags.
func (witnessServeCommand) Help() string {
	return "Logs submit at /add-checkpoint; /readyz shows alarms. Example: countersign witness serve --state ./witness --listen 127.0.0.1:8081"
}

// Run serves until the process is asked to stop, then finishes the requests in flight.
func (c *witnessServeCommand) Run(p *cli.Process) (err error) {
	if err := c.check(); err != nil {
		return cli.Usage(err)
	}
	log := observe.NewLogger(p.Err, c.LogFormat, cli.LogLevel(c.LogLevel))
	opened, err := witness.Open(c.State, log)
	if err != nil {
		return cli.Inconclusive(err)
	}
	defer opened.Close()
	if c.Once {
		return c.once(p, opened)
	}
	return c.serve(p, log, opened)
}

// check refuses invalid flags.
func (c *witnessServeCommand) check() error {
	if c.Once && len(c.Follow) == 0 {
		return errors.New("--once needs a --follow")
	}
	if c.Interval < time.Second || c.MaxAge < c.Interval || c.MaxIdle < 0 {
		return errors.New("--interval is 1s or more, --max-age not shorter than it, and --max-idle 0 (off) or more")
	}
	for i, address := range c.Follow {
		base, err := cli.ParseBaseURL("--follow", address)
		if err != nil {
			return err
		}
		c.Follow[i] = strings.TrimRight(base, "/")
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		return errors.New("--tls-cert and --tls-key must be given together")
	}
	if err := cli.CheckListen("--listen", c.Listen); err != nil || c.Metrics == "" {
		return err
	}
	return cli.CheckListen("--metrics-listen", c.Metrics)
}

// once checks every followed log and prints the result of each.
func (c *witnessServeCommand) once(p *cli.Process, opened *witness.Witness) error {
	alarmed, unread := false, false
	for _, follower := range c.followers(opened) {
		err := follower.Check(p.Ctx)
		switch {
		case err == nil:
			fmt.Fprintf(p.Out, "ok %s\n", follower.URL)
		case witness.Alarming(err):
			alarmed = true
			fmt.Fprintf(p.Out, "ALARM %s: %v\n", follower.URL, err)
		default:
			unread = true
			fmt.Fprintf(p.Out, "unread %s: %v\n", follower.URL, err)
		}
	}
	switch {
	case alarmed:
		return &cli.ExitError{Code: cli.ExitFailed}
	case unread:
		return &cli.ExitError{Code: cli.ExitInconclusive}
	}
	return nil
}

func (c *witnessServeCommand) followers(opened *witness.Witness) (followers []*witness.Follower) {
	for _, address := range c.Follow {
		followers = append(followers, &witness.Follower{
			Witness: opened, URL: address, Interval: c.Interval, MaxAge: c.MaxAge, MaxIdle: c.MaxIdle,
		})
	}
	return followers
}

func (c *witnessServeCommand) serve(p *cli.Process, log *slog.Logger, opened *witness.Witness) error {
	scheme, renewable := "http", (*cli.Certificate)(nil)
	if c.TLSCert != "" {
		var err error
		if renewable, err = cli.LoadCertificate(c.TLSCert, c.TLSKey); err != nil {
			return err
		}
		scheme = "https"
	}
	listener, err := cli.Listen(p.Ctx, c.Listen)
	if err != nil {
		return fmt.Errorf("--listen: %w; give host:port, and another port if this one is taken (0 for any)", err)
	}
	followers, failed := c.followers(opened), make(chan error, 2)
	servers := []*http.Server{cli.NewHTTPServer(opened.Handler(), log)}
	if c.Metrics != "" {
		figures, err := c.serveMetrics(p.Ctx, log, opened, followers, failed)
		if err != nil {
			return errors.Join(err, listener.Close())
		}
		servers = append(servers, figures)
	}
	following, stop := context.WithCancel(p.Ctx)
	var running sync.WaitGroup
	for _, follower := range followers {
		running.Go(func() { follower.Run(following) })
	}
	defer running.Wait()
	defer stop()
	go func() { failed <- serveWitness(servers[0], listener, renewable) }()
	log.Info("serving", "address", scheme+"://"+listener.Addr().String(), "version", p.Version, "logs", opened.Logs(), "followed", len(c.Follow))
	select {
	case err = <-failed:
	case <-p.Ctx.Done():
		log.Info("stopping: finishing the requests in flight")
	}
	return errors.Join(err, cli.ShutDown(p.Ctx, servers))
}

// serveMetrics serves the figures of a witness, whose submissions it counts from here on. The
// server's error goes to failed.
func (c *witnessServeCommand) serveMetrics(ctx context.Context, log *slog.Logger, opened *witness.Witness, followers []*witness.Follower, failed chan<- error) (*http.Server, error) {
	listener, err := cli.Listen(ctx, c.Metrics)
	if err != nil {
		return nil, fmt.Errorf("--metrics-listen: %w", err)
	}
	metrics := observe.NewWitnessMetrics(witness.Results(), func() observe.WitnessFigures { return figures(ctx, opened, followers) })
	opened.Received = metrics.Received
	server := cli.NewHTTPServer(metrics.Handler(log), log)
	go func() { failed <- server.Serve(listener) }()
	log.Info("serving metrics", "address", "http://"+listener.Addr().String()+"/metrics")
	return server, nil
}

// figures reads the state of a witness.
func figures(ctx context.Context, opened *witness.Witness, followers []*witness.Follower) observe.WitnessFigures {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	found := observe.WitnessFigures{Logs: opened.Logs(), Followed: len(followers), Alarms: opened.CountAlarms(), Ages: make(map[int]time.Duration)}
	for _, follower := range followers {
		if number, at, ok := follower.LastNew(ctx); ok {
			found.Ages[number] = time.Since(at)
		}
	}
	return found
}

func serveWitness(server *http.Server, listener net.Listener, renewable *cli.Certificate) error {
	if renewable == nil {
		return server.Serve(listener)
	}
	server.TLSConfig = renewable.Config()
	return server.ServeTLS(listener, "", "")
}
