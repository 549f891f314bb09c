package gateway

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"sync/atomic"
	"time"

	"countersign/internal/cli"
)

// serve stands between the clients of a loopback address and a server that is reached over HTTP.
func (c *Command) serve(p *cli.Process, log func(string, ...any)) error {
	upstream, err := c.check()
	if err != nil {
		return cli.Usage(err)
	}
	api, err := c.Connect(p)
	if err != nil {
		return cli.Usage(err)
	}
	listener, err := cli.Listen(p.Ctx, c.Listen)
	if err != nil {
		return cli.Inconclusive(err)
	}
	reporting, stopReporting := context.WithCancel(context.WithoutCancel(p.Ctx))
	defer stopReporting()
	newest := new(atomic.Int64)
	g := newHTTPGateway(upstream, func() *session {
		s := c.newSession(api, log, newest)
		s.reporting = reporting
		return s
	}, log)
	log("the tool calls of %s are decided by %s; its clients use http://%s%s", upstream, api.Base, listener.Addr(), upstream.Path)
	stopProbing := startProbe(p.Ctx, api, log)
	defer stopProbing()
	err = g.serve(p.Ctx, listener)
	defer time.AfterFunc(reportTime, stopReporting).Stop()
	g.endAll(p.Ctx)
	return err
}

// check parses the URL of the server. Whoever reaches the gateway acts as its agent, so it listens on
// this machine only.
func (c *Command) check() (*url.URL, error) {
	upstream, err := url.Parse(c.Upstream)
	if err != nil || upstream.Host == "" || upstream.Scheme != "http" && upstream.Scheme != "https" || upstream.User != nil || upstream.RawQuery != "" || upstream.Fragment != "" {
		return nil, errors.New("--upstream must have the form https://host/path")
	}
	if upstream.Path == "" {
		upstream.Path = "/"
	}
	if err := cli.CheckListen("--listen", c.Listen); err != nil {
		return nil, err
	}
	host, _, _ := net.SplitHostPort(c.Listen)
	if address, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !address.IsLoopback()) {
		return nil, errors.New("--listen must be an address of this machine alone, such as 127.0.0.1:8808: whoever reaches the gateway acts as its agent")
	}
	return upstream, nil
}

func newHTTPGateway(upstream *url.URL, newSession func() *session, log func(string, ...any)) *httpGateway {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = maxOpenCalls // connecting takes some of the time of a permit
	return &httpGateway{newSession: newSession, upstream: upstream, transport: transport, log: log, sessions: make(map[string]*httpSession)}
}

// serve serves until ctx ends.
func (g *httpGateway) serve(ctx context.Context, listener net.Listener) error {
	requests, cancelRequests := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelRequests()
	// Without timeouts for whole requests: streams last as long as their sessions.
	server := &http.Server{
		Handler: g, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		BaseContext: func(net.Listener) context.Context { return requests },
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	ticker := time.NewTicker(time.Minute)
	defer ticker.Stop()
	for {
		select {
		case now := <-ticker.C:
			g.endUnused(ctx, now.Add(-sessionTime))
		case err := <-served:
			return cli.Inconclusive(err)
		case <-ctx.Done():
			cancelRequests() // gives up the calls that wait, and ends the streams
			shutDown(requests, server)
			return nil
		}
	}
}

// closeTime is how long requests may take to end after they were given up.
const closeTime = time.Second

// shutDown stops a server. A client that does not read its answer, or send the rest of its request, does
// not hold it up.
func shutDown(ctx context.Context, server *http.Server) {
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
	defer done()
	if server.Shutdown(ctx) != nil {
		_ = server.Close() // it has no way to fail: the listener is closed already
	}
}
