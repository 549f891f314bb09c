// Package httpapi serves the JSON routes. It decodes requests strictly, calls one use case of the
// service for each, and encodes the result. It contains no business rules, only limits, status codes
// and encodings.
package httpapi

import (
	"log/slog"
	"net/http"
	"net/netip"
	"path"
	"strings"
	"time"

	"countersign/internal/problem"
	"countersign/internal/service"
)

// Config configures an API.
type Config struct {
	Service *service.Service
	Log     *slog.Logger
	Observe Observer // optional
	// Faults reports the state of everything outside the database, such as files and witnesses,
	// for /readyz. It is optional.
	Faults func() []Fault
	// TrustedProxies are the addresses whose X-Forwarded-For is trusted.
	TrustedProxies []netip.Prefix
	// PublicRate is the number of requests per second that each address may make on public
	// routes. 0 means no limit.
	PublicRate float64
	// FailureRate is the number of failed authentications per second that each address may
	// make. 0 means no limit.
	FailureRate float64
	// MaxPolls is the number of requests that may wait for a decision at the same time. 0 means
	// half of the file descriptors that the process may open.
	MaxPolls int
}

// Observer is notified of every request, with the pattern of its route.
type Observer interface {
	Request(route string, status int, took time.Duration)
}

// LegacyObserver is an Observer that also counts requests on routes that exist only for
// compatibility. They can be removed when nobody uses them.
type LegacyObserver interface {
	LegacyRequest(route string)
}

// API is the HTTP front end.
type API struct {
	service  *service.Service
	log      *slog.Logger
	observe  Observer
	legacy   LegacyObserver // nil if observe does not implement it
	proxies  []netip.Prefix
	public   *limiter
	failures *limiter
	bodies   sharedSlots // large bodies in memory
	parses   sharedSlots // large bodies being parsed
	reads    orgSlots    // read requests by members and admins
	agents   orgSlots    // read requests by agents
	polls    pollSlots
	// throttledAuth is a semaphore for authentications from addresses with too many failures.
	throttledAuth chan struct{}
	ids           problem.IDs
	audits        audits
	survey        survey
	faults        func() []Fault
}

// MaxBody is the maximum size of a request body, in bytes.
const MaxBody = 1 << 20

// New returns an API.
func New(c Config) *API {
	a := &API{
		service: c.Service, log: c.Log, observe: c.Observe, proxies: c.TrustedProxies, faults: c.Faults,
		public:        newLimiter(c.PublicRate, 4*c.PublicRate),
		failures:      newLimiter(c.FailureRate, 10*c.FailureRate),
		bodies:        newSharedSlots(maxBodies, maxBodiesPerOrg),
		parses:        newSharedSlots(maxParses, 1),
		reads:         newOrgSlots(maxReads),
		agents:        newOrgSlots(maxReads),
		polls:         newPollSlots(c.MaxPolls),
		throttledAuth: make(chan struct{}, 1),
		ids:           problem.NewIDs("req_"),
	}
	if a.observe == nil {
		a.observe = silentObserver{}
	}
	a.legacy, _ = a.observe.(LegacyObserver)
	return a
}

type silentObserver struct{}

func (silentObserver) Request(string, int, time.Duration) {}

// Handler serves every route. Other paths and methods are answered with a problem document too.
func (a *API) Handler() http.Handler {
	mux := http.NewServeMux()
	routes := make(map[string][]Route)
	for _, route := range a.Routes() {
		routes[route.Pattern] = append(routes[route.Pattern], route)
	}
	for pattern, operations := range routes {
		mux.Handle(pattern, a.byMethod(pattern, operations))
	}
	unknown := a.serve(notFound)
	mux.Handle("/", unknown)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Do not let the mux redirect a path such as //v1/chains to its clean form: every object
		// has exactly one address. Only the list of guides has two, because people type the
		// trailing slash.
		if r.URL.Path != path.Clean(r.URL.Path) && r.URL.Path != GuidesPath+"/" {
			unknown.ServeHTTP(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// byMethod selects among the operations of one path. The mux selects only by path: with methods in
// its patterns, GET /v1/policies/check would match the route of a policy version.
func (a *API) byMethod(pattern string, operations []Route) http.Handler {
	handlers := make(map[string]http.Handler)
	var methods []string
	for _, operation := range operations {
		handlers[operation.Method] = a.serve(operation)
		methods = append(methods, operation.Method)
	}
	if get := handlers[http.MethodGet]; get != nil {
		handlers[http.MethodHead] = get
		methods = append(methods, http.MethodHead)
	}
	other := a.serve(wrongMethod(pattern, strings.Join(methods, ", ")))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if handler := handlers[r.Method]; handler != nil {
			handler.ServeHTTP(w, r)
			return
		}
		other.ServeHTTP(w, r)
	})
}
