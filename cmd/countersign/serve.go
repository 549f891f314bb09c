package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"countersign/internal/httpapi"
	"countersign/internal/service"
)

var randomness = rand.Reader

// serveCommand runs the server.
type serveCommand struct {
	storage
	Listen         string   `help:"Address to serve on; port 0 takes a free one." default:"127.0.0.1:8080"`
	TLSCert        string   `name:"tls-cert" help:"Certificate file for TLS." type:"path"`
	TLSKey         string   `name:"tls-key" help:"Key file for TLS." type:"path"`
	TrustedProxies []string `help:"Networks (CIDR) whose X-Forwarded-For is believed." placeholder:"CIDR"`
	PublicRate     float64  `help:"Requests a second and address on the public routes; 0 for no limit." default:"50"`
	FailureRate    float64  `help:"Failed authentications a second and address; 0 for no limit." default:"5"`
	LogLevel       string   `help:"How much to log: debug shows every request." enum:"debug,info,warn,error" default:"info"`
}

// Run serves until the process is told to stop, then finishes what it began.
func (c *serveCommand) Run(p *process) error {
	proxies, err := parsePrefixes(c.TrustedProxies)
	if err != nil {
		return &exitError{2, err}
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		return &exitError{2, errors.New("--tls-cert and --tls-key go together")}
	}
	log := slog.New(slog.NewJSONHandler(p.errOutput, &slog.HandlerOptions{Level: logLevel(c.LogLevel)}))
	if c.embedded() {
		release, err := lockFolder(c.Data)
		if err != nil {
			return err
		}
		defer release()
	}
	o, err := c.openService(p.ctx, service.Config{Log: log})
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return errors.Join(err, o.close())
	}
	scheme := "http"
	if c.TLSCert != "" {
		certificate, err := tls.LoadX509KeyPair(c.TLSCert, c.TLSKey)
		if err != nil {
			return errors.Join(fmt.Errorf("TLS: %w", err), o.close())
		}
		listener = tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}})
		scheme = "https"
	}
	address := scheme + "://" + listener.Addr().String()
	first, err := o.service.Operator().Bootstrap(p.ctx)
	if err != nil {
		return errors.Join(err, o.close())
	}
	if first != nil {
		announce(p, address, first)
	}
	api := httpapi.New(httpapi.Config{Service: o.service, Log: log, TrustedProxies: proxies, PublicRate: c.PublicRate, FailureRate: c.FailureRate})
	log.Info("serving", "address", address)
	return errors.Join(serve(p.ctx, listener, api.Handler(), log), o.close())
}

// announce shows the first key and link. They go to standard output, once, and
// never to the log.
func announce(p *process, address string, first *service.FirstStart) {
	fmt.Fprintf(p.out, "\nThis is the first start. These are shown once; keep them safe.\n\n"+
		"  API key (admin):  %s\n  Sign-in link:     %s/sign-in#%s\n\n", first.Key.Text.Reveal(), address, first.SignIn.Reveal())
}

const shutdownTimeout = 30 * time.Second

// serve answers requests until ctx ends. Then it takes no new ones, lets those
// under way finish, and returns when all are answered.
func serve(ctx context.Context, listener net.Listener, handler http.Handler, log *slog.Logger) error {
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      90 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	log.Info("stopping: finishing the requests under way")
	ending, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	if err := server.Shutdown(ending); err != nil {
		return fmt.Errorf("shutdown: %w", err)
	}
	return nil
}

func logLevel(name string) slog.Level {
	var level slog.Level
	_ = level.UnmarshalText([]byte(name)) // the flag's enum allows only valid names
	return level
}

func parsePrefixes(texts []string) ([]netip.Prefix, error) {
	var prefixes []netip.Prefix
	for _, text := range texts {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("--trusted-proxies: %q is not a network such as 10.0.0.0/8", text)
		}
		prefixes = append(prefixes, prefix)
	}
	return prefixes, nil
}

// lockFolder refuses a second server on the same folder: the embedded store has
// one writer.
func lockFolder(folder string) (release func(), err error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(folder, "serve.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock data folder: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another countersign serves the folder %s already: stop it, or use another --data", folder), file.Close())
	}
	return func() { _ = file.Close() }, nil // closing gives the lock back
}
