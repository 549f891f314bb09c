package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"syscall"

	"countersign/internal/httpapi"
	"countersign/internal/notify"
	"countersign/internal/observe"
	"countersign/internal/pricing"
	"countersign/internal/service"
)

// serveCommand runs the server.
type serveCommand struct {
	storage
	Listen               string   `help:"Address to serve on; port 0 takes a free one." default:"127.0.0.1:8080"`
	MetricsListen        string   `help:"Address to serve Prometheus metrics on, at /metrics; none without one." placeholder:"ADDR"`
	TLSCert              string   `name:"tls-cert" help:"Certificate file for TLS; read again when it changes." type:"path" placeholder:"FILE"`
	TLSKey               string   `name:"tls-key" help:"Key file for TLS." type:"path" placeholder:"FILE"`
	TrustedProxies       []string `help:"Networks whose X-Forwarded-For is believed." placeholder:"CIDR"`
	PublicRate           float64  `help:"Requests a second and address on the public routes, burst four times that; 0 for no limit." default:"50"`
	FailureRate          float64  `help:"Failed authentications a second and address; 0 for no limit." default:"5"`
	WebhooksAllowPrivate bool     `help:"Let webhooks use plain http and private addresses; only where every admin is trusted."`
	LogLevel             string   `help:"How much to log (${enum}); debug shows every request." enum:"debug,info,warn,error" default:"info"`
	LogFormat            string   `help:"Form of the log on standard error: ${enum}." enum:"json,text" default:"json"`
	PublicURL            string   `name:"public-url" help:"Where people reach the console, for links in notices and for the first sign-in." placeholder:"URL"`
	mailFlags
	anchorFlags
	Prices       string `help:"JSON file with what language models cost, instead of the built-in table." type:"path" placeholder:"FILE"`
	OTLPEndpoint string `name:"otlp-endpoint" help:"OTLP/HTTP collector to send traces to, such as http://localhost:4318; none without one." env:"COUNTERSIGN_OTLP_ENDPOINT,OTEL_EXPORTER_OTLP_ENDPOINT" placeholder:"URL"`
}

// Run serves until the process is told to stop, then finishes what it began.
func (c *serveCommand) Run(p *process) error {
	settings, err := c.check()
	if err != nil {
		return misused(err)
	}
	log := observe.NewLogger(p.errOutput, c.LogFormat, logLevel(c.LogLevel))
	if c.embedded() {
		release, err := lockFolder(c.Data)
		if err != nil {
			return err
		}
		defer release()
	}
	tuneRuntime()
	s := &server{command: c, process: p, log: log, settings: settings}
	return errors.Join(s.open(), s.serve(), s.close())
}

// tuneRuntime fits Go's defaults to this server; its own environment variables
// still win.
//
// The heap may grow further between collections: what the server keeps is small,
// and the default would have it collected hundreds of times a second under load.
func tuneRuntime() {
	const heapGrowth = 300
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(heapGrowth)
	}
}

// settings are the flags that have to be read first.
type settings struct {
	proxies   []netip.Prefix
	mailer    *notify.Mailer // nil: no mail
	prices    *pricing.Table // nil: the built-in ones
	anchoring anchoring
	publicURL string
}

func (c *serveCommand) check() (read settings, err error) {
	if (c.TLSCert == "") != (c.TLSKey == "") {
		return read, errors.New("--tls-cert and --tls-key go together")
	}
	if c.PublicRate < 0 || c.FailureRate < 0 {
		return read, errors.New("--public-rate and --failure-rate are 0 (no limit) or more")
	}
	if err := c.checkAddresses(); err != nil {
		return read, err
	}
	if c.PublicURL != "" {
		if read.publicURL, err = parseBase("--public-url", c.PublicURL); err != nil {
			return read, err
		}
	}
	if read.mailer, err = c.mailer(); err != nil {
		return read, err
	}
	if read.prices, err = c.prices(); err != nil {
		return read, err
	}
	if read.anchoring, err = c.anchorFlags.read(); err != nil {
		return read, err
	}
	read.proxies, err = parsePrefixes(c.TrustedProxies)
	return read, err
}

func (c *serveCommand) checkAddresses() error {
	if err := checkListen("--listen", c.Listen); err != nil || c.MetricsListen == "" {
		return err
	}
	return checkListen("--metrics-listen", c.MetricsListen)
}

// checkListen refuses what cannot be an address. Whether it can be listened on
// shows when that is tried.
func checkListen(flag, address string) error {
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return fmt.Errorf("%s must have the form host:port, such as 127.0.0.1:8080; port 0 takes a free one", flag)
	}
	return nil
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

func logLevel(name string) slog.Level {
	var level slog.Level
	_ = level.UnmarshalText([]byte(name)) // the flag's enum allows only valid names
	return level
}

// lockFolder refuses a second server on the same folder: the embedded store has
// one writer.
func lockFolder(folder string) (release func(), err error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	file, err := os.OpenFile(lockFile(folder), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock data folder: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another countersign serves the folder %s already: stop it, or use another --data", folder), file.Close())
	}
	return func() { _ = file.Close() }, nil // closing gives the lock back
}

func lockFile(folder string) string { return filepath.Join(folder, "serve.lock") }

// announce shows the first key and link. They go to standard output, once, and
// never to the log.
func announce(p *process, address string, first *service.FirstStart) {
	fmt.Fprintf(p.out, "\nThis is the first start. These are shown once; keep them safe.\n\n"+
		"  API key (admin):  %s\n  Sign-in link:     %s\n\n", first.Key.Text.Reveal(), signInLink(address, first.SignIn))
}

// otherRoute stands for every address that is no route of the API.
const otherRoute = "other"

// routeNames tells a request's route by its pattern, for the names of spans. It
// matches with a router of its own, so that nothing but the patterns that the API
// declares can ever be a name.
func routeNames(routes []httpapi.Route) func(*http.Request) string {
	known, router := make(map[string]bool), http.NewServeMux()
	for _, route := range routes {
		pattern := route.Method + " " + route.Pattern
		known[pattern] = true
		router.Handle(pattern, http.NotFoundHandler())
	}
	return func(r *http.Request) string {
		if _, pattern := router.Handler(r); known[pattern] {
			return pattern
		}
		return otherRoute
	}
}

// reachable is an address that a person can follow: a server on every interface
// is found on this machine's own.
func reachable(scheme, address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return scheme + "://" + address
	}
	if bound, err := netip.ParseAddr(host); host == "" || (err == nil && bound.IsUnspecified()) {
		host = "localhost"
	}
	return scheme + "://" + net.JoinHostPort(host, port)
}

func loopback(address net.Addr) bool {
	bound, err := netip.ParseAddrPort(address.String())
	return err == nil && bound.Addr().Unmap().IsLoopback()
}
