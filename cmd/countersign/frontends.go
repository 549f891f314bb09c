package main

import (
	"net/http"
	"path"
	"strings"

	"countersign/internal/console"
	"countersign/internal/httpapi"
)

// handler puts the front ends together: the console has its own few paths, and
// everything else is the API's. They share one set of limits, so an address gains
// nothing by knocking at both.
func (s *server) handler() http.Handler {
	c := s.command
	api := httpapi.New(httpapi.Config{
		Service: s.opened.service, Log: s.log, Observe: s.metrics, Files: s.files.report, TrustedProxies: s.proxies,
		PublicRate: c.PublicRate, FailureRate: c.FailureRate,
	})
	pages := console.New(console.Config{Service: s.opened.service, Log: s.log, Observe: s.metrics, Limits: api, Secure: api.Secure})
	handler := frontends(api.Handler(), api.Routes(), pages)
	if s.traces == nil {
		return handler
	}
	return s.traces.Middleware(handler, routeNames(api.Routes()))
}

func frontends(api http.Handler, routes []httpapi.Route, pages *console.Console) http.Handler {
	paths := http.NewServeMux()
	for _, pattern := range pages.Patterns() {
		paths.Handle(pattern, pages.Handler())
	}
	nameOf, nowhere := routeNames(routes), pages.NotFound()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A path that is not in its shortest form names nothing; a mux would
		// redirect it instead.
		shortest := r.URL.Path == path.Clean(r.URL.Path)
		if !strings.HasPrefix(r.URL.Path, "/v1/") && shortest {
			if page, pattern := paths.Handler(r); pattern != "" {
				page.ServeHTTP(w, r)
				return
			}
		}
		if asksForPage(r) && (!shortest || nameOf(r) == otherRoute) {
			nowhere.ServeHTTP(w, r)
			return
		}
		api.ServeHTTP(w, r)
	})
}

// asksForPage reports whether a person's browser asks, and not for the API: programs
// are told in JSON what is wrong.
func asksForPage(r *http.Request) bool {
	return (r.Method == http.MethodGet || r.Method == http.MethodHead) && !strings.HasPrefix(r.URL.Path, "/v1/") &&
		strings.Contains(r.Header.Get("Accept"), "text/html")
}
