// Package console serves the web pages. People sign in, decide approvals, stop agents, read chains and
// receipts, and change the organization's policies and settings. Anyone can check a receipt without an
// account. The pages are rendered on the server and work without scripts. The package contains no
// business rules.
package console

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"countersign/internal/problem"
	"countersign/internal/service"
)

// Config configures a Console.
type Config struct {
	Service *service.Service
	Log     *slog.Logger // optional
	Observe Observer     // optional
	Limits  Limits       // optional
	// Secure reports whether the browser uses TLS. It is optional; without it, only TLS connections
	// to this process count. Behind a proxy that terminates TLS, it must evaluate the proxy's
	// headers.
	Secure func(*http.Request) bool
	// PublicURL is what links begin with that people pass on. Without it they have the host name of
	// the request, which a proxy may have replaced by its own name for this server.
	PublicURL string
	// SSO is single sign-on; nil without it. SSOBase is what its addresses begin with.
	SSO     SSO
	SSOBase string
}

// Observer is notified of every request, with the pattern of its route.
type Observer interface {
	Request(route string, status int, took time.Duration)
}

// Limits limits the rate of each address and the concurrent reads of each organization. A wait above
// zero means that the request is refused.
type Limits interface {
	// Public counts one use of a public form.
	Public(*http.Request) (wait time.Duration)
	// SignIn checks whether too many sign-ins failed. It counts nothing.
	SignIn(*http.Request) (wait time.Duration)
	// SignInFailed counts one failed sign-in.
	SignInFailed(*http.Request)
	// Read waits until the organization may read. Unless it fails, release must be called.
	Read(context.Context, *service.Caller) (release func(), err error)
}

// Console is the front end for browsers. It is safe for concurrent use.
type Console struct {
	service *service.Service
	log     *slog.Logger
	observe Observer
	limits  Limits
	secure  func(*http.Request) bool
	public  string
	sso     SSO // nil without it
	ssoBase string
	// Failures of the provider and refusals of people have a limit each, so that the one does not hide
	// the other.
	ssoDown, ssoRefused lineLimit

	origins *http.CrossOriginProtection
	ids     problem.IDs
	pages   map[string]bool // the patterns of pages, for handlers: they cannot refer to routes
}

// New returns a Console.
func New(c Config) *Console {
	console := &Console{
		service: c.Service, log: c.Log, observe: c.Observe, limits: c.Limits, public: c.PublicURL, sso: c.SSO, ssoBase: c.SSOBase,
		ssoDown: newLineLimit(), ssoRefused: newLineLimit(),
		origins: http.NewCrossOriginProtection(), ids: problem.NewIDs("web_"), pages: make(map[string]bool),
	}
	for _, route := range routes {
		if route.method == http.MethodGet {
			console.pages[route.pattern] = true
		}
	}
	if console.log == nil {
		console.log = slog.New(slog.DiscardHandler)
	}
	if console.observe == nil {
		console.observe = silent{}
	}
	if console.limits == nil {
		console.limits = silent{}
	}
	console.secure = secureAt(c.PublicURL, c.Secure)
	return console
}

// secureAt returns whether a browser uses TLS: if the given function says so or, without one, if it
// does to this process. It also does if it asked for the host of a public address with https: a proxy
// that is not known as one can hide that, and cookies must not depend on it.
func secureAt(public string, known func(*http.Request) bool) func(*http.Request) bool {
	if known == nil {
		known = func(r *http.Request) bool { return r.TLS != nil }
	}
	address, err := url.Parse(public)
	if err != nil || address.Scheme != "https" {
		return known
	}
	return func(r *http.Request) bool { return strings.EqualFold(r.Host, address.Host) || known(r) }
}

type silent struct{}

func (silent) Request(string, int, time.Duration) {}
func (silent) Public(*http.Request) time.Duration { return 0 }
func (silent) SignIn(*http.Request) time.Duration { return 0 }
func (silent) SignInFailed(*http.Request)         {}
func (silent) Read(context.Context, *service.Caller) (release func(), err error) {
	return func() {}, nil
}

// route is one page or the action of one form.
type route struct {
	method  string
	pattern string
	handle  func(*visit) error
	// asset marks a static file. It is served without identifying the caller, so that error pages
	// have their style while the store is down.
	asset bool
}

// Patterns lists the patterns that Handler serves, for a mux that other handlers share.
func (c *Console) Patterns() []string {
	var patterns []string
	for _, route := range routes {
		if !slices.Contains(patterns, route.pattern) {
			patterns = append(patterns, route.pattern)
		}
	}
	return patterns
}

// NotFound answers every request with the error page for an unknown address.
func (c *Console) NotFound() http.Handler { return c.serve(notFound) }

// Handler serves the pages. Every other request is answered with an error page.
func (c *Console) Handler() http.Handler {
	mux := http.NewServeMux()
	allowed := make(map[string]string)
	for _, route := range routes {
		mux.Handle(route.method+" "+route.pattern, c.serve(route))
		if allowed[route.pattern] != "" {
			allowed[route.pattern] += ", "
		}
		allowed[route.pattern] += route.method
		if route.method == http.MethodGet { // the mux serves HEAD with it
			allowed[route.pattern] += ", " + http.MethodHead
		}
	}
	for pattern, methods := range allowed {
		mux.Handle(pattern, c.serve(wrongMethod(pattern, methods)))
	}
	mux.Handle("/", c.serve(notFound))
	return mux
}
