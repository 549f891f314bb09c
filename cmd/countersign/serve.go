package main

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime/debug"

	"countersign/internal/cli"
	"countersign/internal/httpapi"
	"countersign/internal/notify"
	"countersign/internal/observe"
	"countersign/internal/pricing"
	"countersign/internal/service"
	"countersign/internal/sso"
	"countersign/internal/witness"
)

// serveCommand is the serve command and its flags.
type serveCommand struct {
	cli.Storage
	Listen               string   `help:"Address to listen on; port 0 picks a free one." default:"127.0.0.1:8080"`
	MetricsListen        string   `help:"Address to serve Prometheus metrics on, at /metrics; off by default." placeholder:"ADDR"`
	TLSCert              string   `name:"tls-cert" help:"Certificate file for TLS; reloaded when it changes." type:"path" placeholder:"FILE"`
	TLSKey               string   `name:"tls-key" help:"Key file for TLS." type:"path" placeholder:"FILE"`
	TrustedProxies       []string `help:"Networks whose X-Forwarded-For header is trusted." placeholder:"CIDR"`
	PublicRate           float64  `help:"Requests per second and client address on the public routes, with a burst of four times that; 0 for no limit." default:"50"`
	FailureRate          float64  `help:"Failed authentications per second and client address; 0 for no limit." default:"5"`
	WebhooksAllowPrivate bool     `help:"Allow webhooks to use plain http and private addresses; only if every admin is trusted."`
	LogLevel             string   `help:"Log level (${enum}); debug logs every request." enum:"debug,info,warn,error" default:"info"`
	LogFormat            string   `help:"Format of the log on standard error: ${enum}." enum:"json,text" default:"json"`
	PublicURL            string   `name:"public-url" help:"Public URL of the console, for links in notifications, to sign in, and to share." placeholder:"URL"`
	InstanceName         string   `help:"Name of this instance in the origins of new transparency logs; the default is the host of --public-url, or countersign." placeholder:"NAME"`
	cli.MailFlags
	cli.SSOFlags
	cli.SlackFlags
	anchorFlags
	Witness      []string `help:"Witness that cosigns the checkpoints of the transparency logs: its verifier key and its URL; may be repeated." sep:"none" placeholder:"VKEY=URL"`
	Prices       string   `help:"JSON file of language model prices that replaces the built-in table." type:"path" placeholder:"FILE"`
	OTLPEndpoint string   `name:"otlp-endpoint" help:"OTLP/HTTP collector to send traces to, such as http://localhost:4318; off by default." env:"COUNTERSIGN_OTLP_ENDPOINT,OTEL_EXPORTER_OTLP_ENDPOINT" placeholder:"URL"`
}

// Run serves until the process is told to stop, then finishes the requests in flight.
func (c *serveCommand) Run(p *cli.Process) error {
	settings, err := c.check()
	if err != nil {
		return cli.Usage(err)
	}
	log := observe.NewLogger(p.Err, c.LogFormat, cli.LogLevel(c.LogLevel))
	if c.Embedded() {
		release, err := cli.LockFolder(c.Data)
		if err != nil {
			return err
		}
		defer release()
	}
	tuneRuntime()
	s := &server{command: c, process: p, log: log, settings: settings}
	if err := s.open(); err != nil {
		// Whatever it could not read: a supervisor need not tell the reasons apart.
		return &cli.ExitError{Code: cli.ExitFailed, Err: errors.Join(err, s.close())}
	}
	err = s.serve()
	return errors.Join(err, s.close())
}

// tuneRuntime lets the heap grow further between collections, unless GOGC is set. The
// server keeps little in memory, and with Go's default the heap would be collected
// hundreds of times a second under load.
func tuneRuntime() {
	const heapGrowth = 300
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(heapGrowth)
	}
}

// settings are the parsed values of the flags that need parsing.
type settings struct {
	proxies   []netip.Prefix
	mailer    *notify.Mailer // nil: no mail
	prices    *pricing.Table // nil: the built-in ones
	anchoring anchoring
	witnesses []*witness.Client
	publicURL string
	sso       *sso.Config   // nil: no single sign-on
	slack     *notify.Slack // nil: no Slack app
	instance  string
}

func (c *serveCommand) check() (read settings, err error) {
	if (c.TLSCert == "") != (c.TLSKey == "") {
		return read, errors.New("--tls-cert and --tls-key must be given together")
	}
	if c.PublicRate < 0 || c.FailureRate < 0 {
		return read, errors.New("--public-rate and --failure-rate must be 0 (no limit) or more")
	}
	if err := c.checkAddresses(); err != nil {
		return read, err
	}
	if c.PublicURL != "" {
		if read.publicURL, err = cli.ParseBaseURL("--public-url", c.PublicURL); err != nil {
			return read, err
		}
	}
	if read.instance, err = instanceName(c.InstanceName, read.publicURL); err != nil {
		return read, err
	}
	if read.mailer, err = c.Mailer(); err != nil {
		return read, err
	}
	if read.sso, err = c.ssoConfig(read.publicURL); err != nil {
		return read, err
	}
	if read.slack, err = c.Slack(); err != nil {
		return read, err
	}
	if read.prices, err = c.prices(); err != nil {
		return read, err
	}
	if read.anchoring, err = c.anchorFlags.read(); err != nil {
		return read, err
	}
	if read.witnesses, err = parseWitnesses(c.Witness); err != nil {
		return read, err
	}
	read.proxies, err = parsePrefixes(c.TrustedProxies)
	return read, err
}

// ssoConfig returns the settings for single sign-on, or nil if it is off. Without a public URL the
// provider sends browsers back to the listener's own address, which only those on this machine reach.
func (c *serveCommand) ssoConfig(publicURL string) (*sso.Config, error) {
	config, err := c.SSOConfig()
	if err != nil || config == nil {
		return nil, err
	}
	switch {
	case publicURL == "" && !sso.Guarded("http://"+c.Listen):
		return nil, errors.New("--oidc-issuer needs --public-url, to which the identity provider sends browsers back")
	case publicURL != "" && !sso.Guarded(publicURL):
		return nil, errors.New("--oidc-issuer needs a --public-url with https: whoever signs in must not be seen on the way back")
	}
	return config, nil
}

func (c *serveCommand) checkAddresses() error {
	if err := cli.CheckListen("--listen", c.Listen); err != nil || c.MetricsListen == "" {
		return err
	}
	return cli.CheckListen("--metrics-listen", c.MetricsListen)
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

// announce prints the first key and sign-in link. They go to standard output, once, and
// never to the log.
func announce(p *cli.Process, address string, first *service.FirstStart) {
	link := cli.SignInLink(address, first.SignIn)
	if first.SignIn.Reveal() == "" {
		link = "could not be made; countersign keys sign-in " + first.Key.Record.ID.String() + " makes one"
	}
	fmt.Fprintf(p.Out, "\nThis is the first start. These are shown once; keep them safe.\n\n"+
		"  API key (admin):  %s\n  Sign-in link:     %s\n\n"+
		"For each agent, make a key of its own:  countersign keys create --role agent --name NAME\n"+
		"No policy is in force yet: payments above the thresholds wait for a person, and shells, SQL writes, deletions and mail are flagged.\n"+
		"To have those wait too:  countersign policy put --pack starter, or the offer in the console\n\n", first.Key.Text.Reveal(), link)
}

// otherRoute is the name of every path that is not a route of the API.
const otherRoute = "other"

// routeNames returns a function that names a request's route by its pattern, for the
// names of spans. It has a router of its own, so that only patterns that the API
// declares can become names.
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

func loopback(address net.Addr) bool {
	bound, err := netip.ParseAddrPort(address.String())
	return err == nil && bound.Addr().Unmap().IsLoopback()
}
