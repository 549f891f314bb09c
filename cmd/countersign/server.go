package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"countersign/internal/notify"
	"countersign/internal/observe"
	"countersign/internal/service"
	"countersign/internal/worker"
)

// server is a running serve command: what is open and has to be closed again.
type server struct {
	command *serveCommand
	process *process
	log     *slog.Logger
	settings

	metrics     *observe.Metrics
	traces      *observe.Traces // nil without a collector
	opened      *opened
	webhooks    *notify.Webhooks
	worker      *worker.Worker
	certificate *certificate // nil without TLS
	listener    net.Listener
	metricsAt   net.Listener // nil when off
	files       fileFaults
	failed      bool // open failed: there is nothing to serve
}

// open opens everything up to the listeners. What it opened before it failed is
// close's to close.
func (s *server) open() (err error) {
	defer func() { s.failed = err != nil }()
	c, ctx := s.command, s.process.ctx
	s.metrics = observe.NewMetrics(currentBuild().observed())
	if c.OTLPEndpoint != "" {
		if s.traces, err = observe.StartTraces(ctx, c.OTLPEndpoint, currentBuild().observed(), s.log); err != nil {
			return err
		}
	}
	if c.TLSCert != "" {
		if s.certificate, err = loadCertificate(c.TLSCert, c.TLSKey); err != nil {
			return err
		}
	}
	if s.opened, err = c.openService(ctx, service.Config{
		Log: s.log, Meter: s.metrics, Prices: s.prices, PrivateWebhooks: c.WebhooksAllowPrivate, PublicURL: s.publicURL,
		Probe: true, Anchoring: s.anchoring.methods, Timestamps: &s.anchoring.verifier, Mail: s.mailer != nil,
		// A folder has one server at a time; the commands that work beside it decide
		// nothing.
		Alone: c.embedded(),
	}); err != nil {
		return err
	}
	if s.opened.newKeys {
		s.log.Info("new master keys were made: back them up, nothing can be verified without them", "path", c.keyFile())
	}
	if err = s.lookBack(); err != nil {
		return err
	}
	s.webhooks = notify.NewWebhooks(notify.Options{AllowPrivate: c.WebhooksAllowPrivate})
	s.worker = worker.New(worker.Config{
		Service: s.opened.service, Webhooks: s.webhooks, Mailer: s.mailer, Anchoring: s.anchoring.Anchoring, Log: s.log, Meter: s.metrics,
	})
	if s.listener, err = listen(ctx, c.Listen); err != nil {
		return fmt.Errorf("--listen: %w; give host:port, and another port if this one is taken (0 for any)", err)
	}
	if c.MetricsListen != "" {
		if s.metricsAt, err = listen(ctx, c.MetricsListen); err != nil {
			return fmt.Errorf("--metrics-listen: %w", err)
		}
	}
	return nil
}

func listen(ctx context.Context, address string) (net.Listener, error) {
	return new(net.ListenConfig).Listen(ctx, "tcp", address)
}

func (s *server) scheme() string {
	if s.certificate != nil {
		return "https"
	}
	return "http"
}

// serve answers requests until the process is told to stop. Then it takes no new
// ones, lets those under way finish, and returns when all are answered.
func (s *server) serve() error {
	if s.failed {
		return nil
	}
	first, err := s.opened.operator().Bootstrap(s.process.ctx)
	if err != nil {
		return err
	}
	if first != nil {
		announce(s.process, cmp.Or(s.publicURL, reachable(s.scheme(), s.listener.Addr().String())), first)
	}
	s.worker.Start()
	if s.certificate == nil && !loopback(s.listener.Addr()) {
		s.log.Warn("serving plain HTTP beyond this machine: API keys can be read on the way; use --tls-cert and --tls-key, or a proxy that does TLS")
	}
	hangups, releaseHangups := catchHangups()
	defer releaseHangups()
	watching, stopWatching := context.WithCancel(s.process.ctx)
	var background sync.WaitGroup
	background.Go(func() { s.watch(watching, hangups) })
	background.Go(func() { returnMemory(watching) })
	defer background.Wait()
	defer stopWatching()
	return s.answer()
}

func (s *server) answer() error {
	main := newHTTPServer(s.handler(), s.log)
	failed := make(chan error, 2)
	go func() { failed <- s.serveMain(main) }()
	servers := []*http.Server{main}
	if s.metricsAt != nil {
		figures := newHTTPServer(s.metrics.Handler(s.log), s.log)
		go func() { failed <- figures.Serve(s.metricsAt) }()
		servers = append(servers, figures)
		s.log.Info("serving metrics", "address", "http://"+s.metricsAt.Addr().String()+"/metrics")
	}
	s.log.Info("serving", "address", s.scheme()+"://"+s.listener.Addr().String(), "version", currentBuild().Version)
	var err error
	select {
	case err = <-failed:
	case <-s.process.ctx.Done():
		s.log.Info("stopping: finishing the requests under way")
	}
	return errors.Join(err, s.finish(servers))
}

// finish ends what is under way. Those who wait for a person are let go, or
// nothing would end before they do.
func (s *server) finish(servers []*http.Server) error {
	s.opened.service.Release()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.process.ctx), deliveryTimeout)
	defer cancel()
	var deliveries sync.WaitGroup
	deliveries.Go(func() { s.worker.Stop(ctx) })
	err := shutDown(s.process.ctx, servers)
	deliveries.Wait()
	s.flush()
	return err
}

// flush writes down what was only noted. It has time of its own: what came before may have
// used up all of its.
func (s *server) flush() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.process.ctx), flushTimeout)
	defer cancel()
	if flushErr := s.opened.service.FlushTokenUse(ctx); flushErr != nil {
		s.log.Warn("when tokens were last used was not stored", "error", flushErr)
	}
	if flushErr := s.opened.service.FlushPolls(ctx); flushErr != nil {
		s.log.Warn("when clients last polled chains and approvals was not stored", "error", flushErr)
	}
	if flushErr := s.opened.service.FlushKeyUse(ctx); flushErr != nil {
		s.log.Warn("when API keys were last used was not stored", "error", flushErr)
	}
	if flushErr := s.opened.service.FlushLegacyUse(ctx); flushErr != nil {
		s.log.Warn("how often legacy routes were used was not stored", "error", flushErr)
	}
}

func (s *server) serveMain(main *http.Server) error {
	if s.certificate == nil {
		return main.Serve(s.listener)
	}
	main.TLSConfig = s.certificate.config()
	return main.ServeTLS(s.listener, "", "") // it announces HTTP/2 as well
}

func newHTTPServer(handler http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      90 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

const (
	shutdownTimeout = 30 * time.Second
	// deliveryTimeout is shorter: a delivery that is broken off is made again.
	deliveryTimeout = 10 * time.Second
	// flushTimeout is for the small writes at the end.
	flushTimeout = 5 * time.Second
)

func shutDown(ctx context.Context, servers []*http.Server) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	var errs []error
	for _, server := range servers {
		if err := server.Shutdown(ctx); err != nil {
			errs = append(errs, fmt.Errorf("some requests were still under way after %s: %w", shutdownTimeout, err), server.Close())
		}
	}
	return errors.Join(errs...)
}

// close gives back what open took, the last first: queued writes are committed
// before the store goes.
func (s *server) close() error {
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
	if s.opened != nil {
		errs = append(errs, s.opened.close())
		s.keepHeads() // now that nothing more is acknowledged
		s.keepChains()
		errs = append(errs, s.opened.chains.Close())
	}
	if s.traces != nil {
		if err := s.traces.Shutdown(s.process.ctx); err != nil {
			s.log.Warn("the last traces were not sent", "error", err)
		}
	}
	return errors.Join(errs...)
}
