package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/netutil"

	"countersign/internal/cli"
	"countersign/internal/console"
	"countersign/internal/notify"
	"countersign/internal/observe"
	"countersign/internal/service"
	"countersign/internal/sso"
	"countersign/internal/worker"
)

// server is the state of a running serve command. The goroutine of Run owns it; only
// files is shared.
type server struct {
	command *serveCommand
	process *cli.Process
	log     *slog.Logger
	settings

	metrics     *observe.Metrics
	traces      *observe.Traces // nil without a collector
	opened      *cli.Opened
	webhooks    *notify.Webhooks
	worker      *worker.Worker
	signOn      *sso.Client      // nil without single sign-on
	certificate *cli.Certificate // nil without TLS
	listener    net.Listener
	metricsAt   net.Listener // nil when off
	files       fileFaults
	hangups     <-chan os.Signal
	ignore      func() // ends hangups
}

// open opens everything up to the listeners. If it fails, close closes what it has
// opened so far.
func (s *server) open() (err error) {
	c, ctx := s.command, s.process.Ctx
	s.hangups, s.ignore = catchHangups()
	s.metrics = observe.NewMetrics(currentBuild().observed())
	if c.OTLPEndpoint != "" {
		if s.traces, err = observe.StartTraces(ctx, c.OTLPEndpoint, currentBuild().observed(), s.log); err != nil {
			return err
		}
	}
	if c.TLSCert != "" {
		if s.certificate, err = cli.LoadCertificate(c.TLSCert, c.TLSKey); err != nil {
			return err
		}
	}
	s.webhooks = notify.NewWebhooks(notify.Options{AllowPrivate: c.WebhooksAllowPrivate})
	if s.opened, err = c.OpenForServing(s.process, service.Config{
		Deliverer: s.webhooks,
		Log:       s.log, Meter: s.metrics, Prices: s.prices, PrivateWebhooks: c.WebhooksAllowPrivate, PublicURL: s.publicURL,
		Signing: &service.Signing{Instance: s.instance},
		Probe:   true, Anchoring: s.anchoring.methods, Timestamps: &s.anchoring.verifier, Mail: s.mailer != nil, Slack: s.slack,
		// A data folder has one server at a time, and other commands make no decisions.
		Alone: c.Embedded(),
	}); err != nil {
		return err
	}
	if s.opened.NewKeys {
		s.log.Info("new master keys were created: back them up, nothing can be verified without them", "path", c.KeyFile())
	}
	if err = s.checkRollback(); err != nil {
		return err
	}
	s.opened.Service.SignLogs()
	s.worker = worker.New(worker.Config{
		Service: s.opened.Service, Webhooks: s.webhooks, Mailer: s.mailer, Slack: s.slack, Anchoring: s.anchoring.Anchoring, Witnesses: s.witnesses, Log: s.log, Meter: s.metrics,
	})
	if s.listener, err = cli.Listen(ctx, c.Listen); err != nil {
		return fmt.Errorf("--listen: %w; give host:port, and another port if this one is taken (0 for any)", err)
	}
	s.listener = netutil.LimitListener(s.listener, maxConnections())
	if s.sso != nil {
		config := *s.sso
		config.Callback, config.Seal = s.base()+console.SSOCallbackPath, s.opened.Ring
		if s.signOn, err = sso.New(config); err != nil {
			return fmt.Errorf("single sign-on: %w", err)
		}
	}
	if c.MetricsListen != "" {
		if s.metricsAt, err = cli.Listen(ctx, c.MetricsListen); err != nil {
			return fmt.Errorf("--metrics-listen: %w", err)
		}
	}
	return nil
}

// maxConnections returns how many clients may be connected. It leaves file descriptors to the store,
// which must work however many clients connect.
func maxConnections() int {
	const reserved = 128
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return math.MaxInt32
	}
	return int(min(max(limit.Cur, 2*reserved)-reserved, math.MaxInt32))
}

func (s *server) scheme() string {
	if s.certificate != nil {
		return "https"
	}
	return "http"
}

// base returns what links to this server begin with.
func (s *server) base() string {
	return cmp.Or(s.publicURL, cli.ReachableURL(s.scheme(), s.listener.Addr().String()))
}

// serve answers requests until the process is told to stop. It then accepts no new
// requests and returns when those in flight are answered.
func (s *server) serve() error {
	base := s.base()
	if err := s.command.NoteAddress(base); err != nil {
		s.log.Warn("the server's address could not be stored: pass --url to countersign keys sign-in", "error", err)
	}
	first, err := s.opened.Operator().Bootstrap(s.process.Ctx)
	if err != nil {
		return err
	}
	if first != nil {
		announce(s.process, base, first)
	}
	if err := s.logOrganizationsWithoutPolicy(); err != nil {
		return err
	}
	s.worker.Start()
	if s.certificate == nil && !loopback(s.listener.Addr()) {
		s.log.Warn("serving plain HTTP beyond this machine: API keys can be read in transit; use --tls-cert and --tls-key, or a TLS proxy")
	}
	watching, stopWatching := context.WithCancel(s.process.Ctx)
	var background sync.WaitGroup
	background.Go(func() { s.watch(watching) })
	background.Go(func() { returnMemory(watching) })
	background.Go(func() { limitMemory(watching) })
	defer background.Wait()
	defer stopWatching()
	return s.answer()
}

// logOrganizationsWithoutPolicy logs a single line about all organizations that have no policy set.
func (s *server) logOrganizationsWithoutPolicy() error {
	slugs, err := s.opened.Operator().OrganizationsWithoutPolicy(s.process.Ctx)
	if err != nil || len(slugs) == 0 {
		return err
	}
	const most = 3
	named := slugs[:min(len(slugs), most)]
	s.log.Info("organizations have no policy set: payments above the thresholds wait for a person, other risky actions are only flagged; "+
		"countersign policy put --pack starter puts a first set in force",
		"count", len(slugs), "organizations", strings.Join(named, ", "))
	return nil
}

func (s *server) answer() error {
	main := cli.NewHTTPServer(s.handler(), s.log)
	failed := make(chan error, 2)
	go func() { failed <- s.serveMain(main) }()
	servers := []*http.Server{main}
	if s.metricsAt != nil {
		figures := cli.NewHTTPServer(s.metrics.Handler(s.log), s.log)
		go func() { failed <- figures.Serve(s.metricsAt) }()
		servers = append(servers, figures)
		s.log.Info("serving metrics", "address", "http://"+s.metricsAt.Addr().String()+"/metrics")
	}
	s.log.Info("serving", "address", s.scheme()+"://"+s.listener.Addr().String(), "version", currentBuild().Version)
	var err error
	select {
	case err = <-failed:
	case <-s.process.Ctx.Done():
		s.log.Info("stopping: finishing the requests in flight")
	}
	return errors.Join(err, s.finish(servers))
}

// finish waits for the requests and deliveries in flight. It first releases the requests
// that wait for an approval, which would otherwise delay the shutdown.
func (s *server) finish(servers []*http.Server) error {
	s.opened.Service.Release()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.process.Ctx), deliveryTimeout)
	defer cancel()
	var deliveries sync.WaitGroup
	deliveries.Go(func() { s.worker.Stop(ctx) })
	err := cli.ShutDown(s.process.Ctx, servers)
	deliveries.Wait()
	s.flush()
	return err
}

// flush stores the counters that are only kept in memory. It has a timeout of its own:
// the steps before it may have used up theirs.
func (s *server) flush() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.process.Ctx), flushTimeout)
	defer cancel()
	if flushErr := s.opened.Service.FlushTokenUse(ctx); flushErr != nil {
		s.log.Warn("the last use of tokens was not stored", "error", flushErr)
	}
	if flushErr := s.opened.Service.FlushPolls(ctx); flushErr != nil {
		s.log.Warn("the last polls of chains and approvals were not stored", "error", flushErr)
	}
	if flushErr := s.opened.Service.FlushKeyUse(ctx); flushErr != nil {
		s.log.Warn("the last use of API keys was not stored", "error", flushErr)
	}
	if flushErr := s.opened.Service.FlushLegacyUse(ctx); flushErr != nil {
		s.log.Warn("the use of legacy routes was not stored", "error", flushErr)
	}
}

func (s *server) serveMain(main *http.Server) error {
	if s.certificate == nil {
		return main.Serve(s.listener)
	}
	main.TLSConfig = s.certificate.Config()
	return main.ServeTLS(s.listener, "", "") // also offers HTTP/2
}

const (
	// deliveryTimeout is shorter than the one for requests: an interrupted delivery is
	// retried.
	deliveryTimeout = 10 * time.Second
	// flushTimeout bounds the small writes at the end.
	flushTimeout = 5 * time.Second
)

// close closes what open has opened, in reverse order: queued writes are committed
// before the store is closed.
func (s *server) close() error {
	defer s.ignore()
	var errs []error
	for _, listener := range []net.Listener{s.metricsAt, s.listener} {
		if listener != nil {
			if err := listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
				errs = append(errs, err)
			}
		}
	}
	if s.webhooks != nil {
		s.webhooks.Close()
	}
	if s.slack != nil {
		s.slack.Close()
	}
	if s.opened != nil {
		errs = append(errs, s.opened.Close())
		s.keepHeads() // after the last acknowledgement
		s.keepChains()
		errs = append(errs, s.opened.Chains.Close())
	}
	if s.traces != nil {
		if err := s.traces.Shutdown(s.process.Ctx); err != nil {
			s.log.Warn("the last traces were not sent", "error", err)
		}
	}
	return errors.Join(errs...)
}
