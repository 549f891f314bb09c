package main

import (
	"net/http"
	"path"
	"strings"

	"countersign/internal/console"
	"countersign/internal/httpapi"
)

// handler joins the front ends: the console has its own few paths, and everything else
// belongs to the API. They share one set of rate limits, so a client gains nothing by
// using both.
func (s *server) handler() http.Handler {
	c := s.command
	api := httpapi.New(httpapi.Config{
		Service: s.opened.Service, Log: s.log, Observe: s.metrics, Faults: s.faults, TrustedProxies: s.proxies,
		PublicRate: c.PublicRate, FailureRate: c.FailureRate,
	})
	config := console.Config{
		Service: s.opened.Service, Log: s.log, Observe: s.metrics, Limits: api, Secure: api.Secure, PublicURL: s.publicURL,
	}
	if s.signOn != nil {
		config.SSO, config.SSOBase = s.signOn, s.base()
	}
	pages := console.New(config)
	handler := frontends(api.Handler(), api.Routes(), pages)
	if s.traces == nil {
		return handler
	}
	return s.traces.Middleware(handler, routeNames(api.Routes()))
}

func frontends(api http.Handler, routes []httpapi.Route, pages *console.Console) http.Handler {
	paths, handler := http.NewServeMux(), pages.Handler()
	for _, pattern := range pages.Patterns() {
		paths.Handle(pattern, handler)
	}
	nameOf, notFound := routeNames(routes), pages.NotFound()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A path that is not clean does not exist; a mux would redirect it.
		clean := r.URL.Path == path.Clean(r.URL.Path) || r.URL.Path == httpapi.GuidesPath+"/"
		if !strings.HasPrefix(r.URL.Path, "/v1/") && clean {
			if page, pattern := paths.Handler(r); pattern != "" {
				page.ServeHTTP(w, r)
				return
			}
		}
		if asksForPage(r) && (!clean || nameOf(r) == otherRoute) {
			notFound.ServeHTTP(w, r)
			return
		}
		api.ServeHTTP(w, r)
	})
}

// asksForPage reports whether a browser requests a page. Other clients get errors as
// JSON.
func asksForPage(r *http.Request) bool {
	return (r.Method == http.MethodGet || r.Method == http.MethodHead) && !strings.HasPrefix(r.URL.Path, "/v1/") &&
		strings.Contains(r.Header.Get("Accept"), "text/html")
}
