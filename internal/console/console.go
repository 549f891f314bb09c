// Package console serves the pages for people: signing in, deciding what agents
// wait for, stopping them, what the organization's chains and receipts say, how it
// is governed, and the check of a receipt that needs no account. The pages are
// rendered here and work without a script; rules live elsewhere.
package console

import (
	"log/slog"
	"net/http"
	"slices"
	"time"

	"countersign/internal/problem"
	"countersign/internal/service"
)

// Config is what the pages stand on.
type Config struct {
	Service *service.Service
	Log     *slog.Logger // optional
	Observe Observer     // optional
	Limits  Limits       // optional
	// Secure reports whether a request reached its first server over TLS;
	// optional. Without it only a connection that is TLS here counts, so behind a
	// proxy that ends TLS this must ask what the proxy says.
	Secure func(*http.Request) bool
}

// Observer hears of every request, by its route's pattern.
type Observer interface {
	Request(route string, status int, took time.Duration)
}

// Limits holds addresses to a rate. A wait above zero refuses the request.
type Limits interface {
	// Public counts one use of a public form.
	Public(*http.Request) (wait time.Duration)
	// SignIn looks whether too many sign-ins failed, and counts nothing.
	SignIn(*http.Request) (wait time.Duration)
	// SignInFailed counts one.
	SignInFailed(*http.Request)
}

// Console is the front end for browsers. It is safe for concurrent use.
type Console struct {
	service *service.Service
	log     *slog.Logger
	observe Observer
	limits  Limits
	secure  func(*http.Request) bool
	origins *http.CrossOriginProtection
	ids     problem.IDs
}

// New makes the front end.
func New(c Config) *Console {
	console := &Console{
		service: c.Service, log: c.Log, observe: c.Observe, limits: c.Limits, secure: c.Secure,
		origins: http.NewCrossOriginProtection(), ids: problem.NewIDs("web_"),
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
	if console.secure == nil {
		console.secure = func(r *http.Request) bool { return r.TLS != nil }
	}
	return console
}

type silent struct{}

func (silent) Request(string, int, time.Duration) {}
func (silent) Public(*http.Request) time.Duration { return 0 }
func (silent) SignIn(*http.Request) time.Duration { return 0 }
func (silent) SignInFailed(*http.Request)         {}

// route is one page, or what one form does.
type route struct {
	method  string
	pattern string
	handle  func(*visit) error
	// asset: the same for everyone, and served also while the store is down, so
	// that the page that says so is a page.
	asset bool
}

// Patterns lists what Handler serves, for a mux that it shares with others.
func (c *Console) Patterns() []string {
	var patterns []string
	for _, route := range routes {
		if !slices.Contains(patterns, route.pattern) {
			patterns = append(patterns, route.pattern)
		}
	}
	return patterns
}

// NotFound answers any address with the page that says that there is none.
func (c *Console) NotFound() http.Handler { return c.serve(nowhere) }

// Handler serves the pages, and answers everything else with one too.
func (c *Console) Handler() http.Handler {
	mux := http.NewServeMux()
	allowed := make(map[string]string)
	for _, route := range routes {
		mux.Handle(route.method+" "+route.pattern, c.serve(route))
		if allowed[route.pattern] != "" {
			allowed[route.pattern] += ", "
		}
		allowed[route.pattern] += route.method
	}
	for pattern, methods := range allowed {
		mux.Handle(pattern, c.serve(wrongMethod(pattern, methods)))
	}
	mux.Handle("/", c.serve(nowhere))
	return mux
}
