// Package httpapi serves the JSON routes: it reads requests strictly, calls one
// use case each, and writes its answer. Rules live elsewhere; here are bounds,
// statuses and bytes.
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

// Config is what the routes stand on.
type Config struct {
	Service *service.Service
	Log     *slog.Logger
	Observe Observer // optional
	// Faults says what is wrong beside the database, with its files and with witnesses, for
	// the readiness; optional.
	Faults func() []Fault
	// TrustedProxies are the addresses whose X-Forwarded-For is believed.
	TrustedProxies []netip.Prefix
	// PublicRate is how many requests a second each address may make on the
	// public routes; 0 for no limit.
	PublicRate float64
	// FailureRate is how many failed authentications a second each address may
	// make; 0 for no limit.
	FailureRate float64
	// MaxPolls is how many requests may wait for a decision at once; 0 for half of what
	// the process may have open.
	MaxPolls int
}

// Observer hears of every request, by its route's pattern.
type Observer interface {
	Request(route string, status int, took time.Duration)
}

// LegacyObserver is an Observer that also counts requests on routes that are kept
// for compatibility alone: they can go when nobody uses them.
type LegacyObserver interface {
	LegacyRequest(route string)
}

// API is the HTTP front end.
type API struct {
	service  *service.Service
	log      *slog.Logger
	observe  Observer
	legacy   LegacyObserver // nil where nobody counts
	proxies  []netip.Prefix
	public   *limiter
	failures *limiter
	bodies   sharedSlots // large bodies that are in memory
	large    sharedSlots // those of them that are being parsed
	reads    orgSlots    // requests that read, of members and admins
	agents   orgSlots    // the same of agents
	polls    pollSlots
	unproven chan struct{} // bounds how many keys are tried for addresses that have guessed too often
	ids      problem.IDs
	audits   audits
	survey   survey
	faults   func() []Fault
}

// MaxBody bounds every request's body.
const MaxBody = 1 << 20

// New makes the front end.
func New(c Config) *API {
	a := &API{
		service: c.Service, log: c.Log, observe: c.Observe, proxies: c.TrustedProxies, faults: c.Faults,
		public:   newLimiter(c.PublicRate, 4*c.PublicRate),
		failures: newLimiter(c.FailureRate, 10*c.FailureRate),
		bodies:   newSharedSlots(mostBodies, mostBodiesOfEach),
		large:    newSharedSlots(mostLarge, 1),
		reads:    newOrgSlots(mostReads),
		agents:   newOrgSlots(mostReads),
		polls:    newPollSlots(c.MaxPolls),
		unproven: make(chan struct{}, 1),
		ids:      problem.NewIDs("req_"),
	}
	if a.observe == nil {
		a.observe = silentObserver{}
	}
	a.legacy, _ = a.observe.(LegacyObserver)
	return a
}

type silentObserver struct{}

func (silentObserver) Request(string, int, time.Duration) {}

// Handler serves every route, and answers everything else in the same manner.
func (a *API) Handler() http.Handler {
	mux := http.NewServeMux()
	routes := make(map[string][]Route)
	for _, route := range a.Routes() {
		routes[route.Pattern] = append(routes[route.Pattern], route)
	}
	for pattern, operations := range routes {
		mux.Handle(pattern, a.byMethod(pattern, operations))
	}
	elsewhere := a.serve(nowhere)
	mux.Handle("/", elsewhere)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Left to itself, the mux would redirect to the shorter form of a path such
		// as //v1/chains: an object has one address. The list of guides has two, since
		// people type the one with the slash.
		if r.URL.Path != path.Clean(r.URL.Path) && r.URL.Path != GuidesPath+"/" {
			elsewhere.ServeHTTP(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// byMethod chooses among the operations of one path. The mux is left to choose
// by path alone: it would take GET /v1/policies/check for a policy's version.
func (a *API) byMethod(pattern string, operations []Route) http.Handler {
	handlers := make(map[string]http.Handler)
	var methods []string
	for _, operation := range operations {
		handlers[operation.Method] = a.serve(operation)
		methods = append(methods, operation.Method)
	}
	if get := handlers[http.MethodGet]; get != nil {
		handlers[http.MethodHead] = get
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
