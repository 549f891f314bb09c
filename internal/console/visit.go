package console

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/problem"
	"countersign/internal/service"
)

// visit is one request and its answer.
type visit struct {
	console *Console
	w       http.ResponseWriter
	r       *http.Request
	route   *route
	id      string
	caller  *service.Caller // nil while nobody is signed in
	ended   error           // why the browser's session has ended, where that is worth saying
	// organization is the caller's; nil for agents, who see only what they asked.
	organization *ledger.Organization
	status       int
}

// serve is the one handler that every route goes through.
func (c *Console) serve(route route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		v := &visit{console: c, w: w, r: r, route: &route, id: c.ids.Next()}
		v.guard()
		err := v.attempt()
		broken := errors.Is(err, problem.ErrPanicked) && v.status != 0
		if err != nil && !broken {
			v.fail(err)
		}
		took := time.Since(began)
		if broken { // a part of another page is on its way: it must not pass for whole
			c.observe.Request(route.pattern, http.StatusInternalServerError, took)
			panic(http.ErrAbortHandler)
		}
		c.observe.Request(route.pattern, v.status, took)
		c.log.LogAttrs(v.r.Context(), slog.LevelDebug, "request",
			slog.String("request_id", v.id), slog.String("method", r.Method), slog.String("route", route.pattern),
			slog.Int("status", v.status), slog.Duration("took", took))
	})
}

const contentPolicy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; " +
	"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// guard sets the headers that every answer carries.
func (v *visit) guard() {
	header := v.w.Header()
	header.Set("X-Request-Id", v.id)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Content-Security-Policy", contentPolicy)
	header.Set("Cache-Control", "no-store")
	header.Set("Referrer-Policy", "no-referrer")
	if v.r.Header.Get("Sec-Fetch-Site") == "" {
		// A browser says this only to addresses that it trusts: TLS, and its own
		// machine. On any other, the Origin of a form is all that tells our forms
		// from a stranger's, and under no-referrer a browser withholds it.
		header.Set("Referrer-Policy", "same-origin")
	}
}

// attempt handles the request. A handler that panics has failed as others do: the browser
// is shown a page, and the log says where.
func (v *visit) attempt() (err error) {
	defer func() {
		if fault := recover(); fault != nil {
			v.console.log.LogAttrs(v.r.Context(), slog.LevelError, "a request panicked", slog.String("request_id", v.id),
				slog.String("route", v.route.pattern), slog.String("stack", string(debug.Stack())))
			err = problem.ErrPanicked
		}
	}()
	return v.handle()
}

func (v *visit) handle() error {
	if err := v.console.origins.Check(v.r); err != nil {
		return fault.Errorf(fault.CodeForbidden, "the form was sent from another site, or the browser did not say from where; open the page here and send it again")
	}
	if !v.route.asset {
		if err := v.identify(); err != nil {
			return err
		}
	}
	return v.route.handle(v)
}

// page is what the layout needs; each page's own content stands in Body.
type page struct {
	Title      string
	Pattern    string // of the route
	SignedIn   bool
	KeyName    string
	Role       ledger.Role
	Member     bool
	Admin      bool
	KillSwitch *ledger.KillSwitch // nil while it is not active
	Tampering  *tamperBanner      // nil while there is none to show
	Once       string             // tells a form of this page from the same one on the next
	Body       any
}

// Here is the value of aria-current for the navigation's entry at an address: "page" on
// that page, "true" on one that belongs to it, "" elsewhere.
func (p page) Here(address string) string {
	switch {
	case p.Pattern == address:
		return "page"
	case strings.HasPrefix(p.Pattern, address+"/"):
		return "true"
	}
	return ""
}

// show renders a page. It does so before anything is sent: a page is whole, or
// it is an error.
func (v *visit) show(status int, name, title string, body any) error {
	p := page{Title: title, Pattern: v.route.pattern, Once: v.id, Body: body}
	if v.caller != nil {
		p.SignedIn, p.KeyName, p.Role = true, v.caller.Name, v.caller.Role
		p.Member, p.Admin = v.caller.Role.Includes(ledger.RoleMember), v.caller.Role.Includes(ledger.RoleAdmin)
	}
	if v.organization != nil && v.organization.Controls.KillSwitch.Active {
		p.KillSwitch = &v.organization.Controls.KillSwitch
	}
	p.Tampering = v.tamperBanner()
	var content bytes.Buffer
	if err := pages()[name].ExecuteTemplate(&content, "layout", p); err != nil {
		return err
	}
	v.write(status, "text/html; charset=utf-8", content.Bytes())
	return nil
}

func (v *visit) write(status int, contentType string, body []byte) {
	v.status = status
	v.w.Header().Set("Content-Type", contentType)
	v.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	v.w.WriteHeader(status)
	if _, err := v.w.Write(body); err != nil {
		v.console.log.Debug("answer not delivered", "request_id", v.id)
	}
}

// seeOther sends the browser on after a form, so that reloading repeats nothing.
func (v *visit) seeOther(path string) {
	v.status = http.StatusSeeOther
	v.w.Header().Set("Location", path)
	v.w.WriteHeader(v.status)
}

// pathID reads an id of the route.
func (v *visit) pathID(name string) (uuid.UUID, error) {
	id, err := ledger.ParseID(v.r.PathValue(name))
	if err != nil {
		return uuid.Nil, fault.ErrNotFound
	}
	return id, nil
}

// readID reads an id's place in a list, zero for none.
func (v *visit) readID(name string) (uuid.UUID, error) {
	text := v.r.URL.Query().Get(name)
	if text == "" {
		return uuid.Nil, nil
	}
	id, err := ledger.ParseID(text)
	if err != nil {
		return uuid.Nil, errPlace
	}
	return id, nil
}
