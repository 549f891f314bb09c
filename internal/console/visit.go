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

// visit is one request from a browser and its response. It is used by one goroutine.
type visit struct {
	console *Console
	w       http.ResponseWriter
	r       *http.Request
	route   *route
	id      string
	caller  *service.Caller // nil if nobody is signed in
	ended   error           // why the session has ended, if the page should say so
	// organization is the caller's. It is nil for agents, who see only their own approvals.
	organization *ledger.Organization
	status       int    // of the response; 0 until it is sent
	endRead      func() // releases the slot for reading; nil if the visit holds none
}

// serve returns the handler of a route. All routes share it.
func (c *Console) serve(route route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		v := &visit{console: c, w: w, r: r, route: &route, id: c.ids.Next()}
		v.guard()
		defer v.releaseRead()
		err := v.attempt()
		broken := errors.Is(err, problem.ErrPanicked) && v.status != 0
		if err != nil && !broken {
			v.fail(err)
		}
		took := time.Since(began)
		if broken { // part of the page was sent: abort, so that it is not taken for complete
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

// guard sets the headers of every response.
func (v *visit) guard() {
	header := v.w.Header()
	header.Set("X-Request-Id", v.id)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Content-Security-Policy", contentPolicy)
	header.Set("Cache-Control", "no-store")
	header.Set("Referrer-Policy", "no-referrer")
	if v.r.Header.Get("Sec-Fetch-Site") == "" {
		// Browsers send Sec-Fetch-Site only over TLS and to localhost. On other connections, only
		// the Origin header tells our forms from those of other sites, and browsers withhold it
		// under no-referrer.
		header.Set("Referrer-Policy", "same-origin")
	}
}

// allowPolling lets the script of a page ask this server for changes.
func (v *visit) allowPolling() {
	v.w.Header().Set("Content-Security-Policy", contentPolicy+"; connect-src 'self'")
}

// attempt handles the request. A panic of the handler is logged with its stack and returned as an
// error, so that the browser gets a page.
func (v *visit) attempt() (err error) {
	defer func() {
		if fault := recover(); fault != nil {
			v.console.log.LogAttrs(v.r.Context(), slog.LevelError, "request panicked", slog.String("request_id", v.id),
				slog.String("route", v.route.pattern), slog.String("stack", string(debug.Stack())))
			err = problem.ErrPanicked
		}
	}()
	return v.handle()
}

func (v *visit) handle() error {
	if err := v.console.origins.Check(v.r); err != nil {
		return fault.Errorf(fault.CodeForbidden, "the form came from another site, or the browser did not say where it came from; open the page here and send the form again")
	}
	if !v.route.asset {
		if err := v.identify(); err != nil {
			return err
		}
	}
	if err := v.admitRead(); err != nil {
		return err
	}
	return v.route.handle(v)
}

// admitRead waits for a slot for a page that somebody who is signed in opens, and loads what every
// page shows.
func (v *visit) admitRead() (err error) {
	if v.caller == nil {
		return nil
	}
	if v.route.method == http.MethodGet {
		if v.endRead, err = v.console.limits.Read(v.r.Context(), v.caller); err != nil {
			return err
		}
	}
	if v.caller.Role.Includes(ledger.RoleMember) {
		// Every page shows whether the kill switch is active.
		v.organization, err = v.console.service.Organization(v.r.Context(), v.caller)
	}
	return err
}

// releaseRead releases the slot of admitRead. It may be called more than once.
func (v *visit) releaseRead() {
	if v.endRead != nil {
		v.endRead()
		v.endRead = nil
	}
}

// page is the data of the layout. Body is the data of the page's own template.
type page struct {
	Title      string
	Pattern    string // of the route
	SignedIn   bool
	KeyName    string
	Role       ledger.Role
	Member     bool
	Admin      bool
	KillSwitch *ledger.KillSwitch // nil if it is not active
	Tampering  *tamperBanner      // nil if there is nothing to show
	Once       string             // unique for each rendered page, to detect a form that is sent twice
	Body       any
}

// Here returns the aria-current of a navigation link: "page" on the page itself, "true" on a page
// below it, and "" elsewhere.
func (p page) Here(address string) string {
	switch {
	case p.Pattern == address:
		return "page"
	case strings.HasPrefix(p.Pattern, address+"/"):
		return "true"
	}
	return ""
}

// show renders a page completely before it sends anything, so that the browser gets either the whole
// page or an error page.
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
	v.releaseRead() // the page is complete, so a slow browser must not occupy the slot
	v.w.Header().Set("Content-Type", contentType)
	v.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	v.w.WriteHeader(status)
	if _, err := v.w.Write(body); err != nil {
		v.console.log.Debug("response not delivered", "request_id", v.id)
	}
}

// seeOther redirects the browser after a form, so that a reload does not send the form again.
func (v *visit) seeOther(path string) {
	v.status = http.StatusSeeOther
	v.w.Header().Set("Location", path)
	v.w.WriteHeader(v.status)
}

// pathID reads an id from the path.
func (v *visit) pathID(name string) (uuid.UUID, error) {
	id, err := ledger.ParseID(v.r.PathValue(name))
	if err != nil {
		return uuid.Nil, fault.ErrNotFound
	}
	return id, nil
}

// readID reads the position in a list that is an id. It returns the zero id if there is none.
func (v *visit) readID(name string) (uuid.UUID, error) {
	text := v.r.URL.Query().Get(name)
	if text == "" {
		return uuid.Nil, nil
	}
	id, err := ledger.ParseID(text)
	if err != nil {
		return uuid.Nil, errPosition
	}
	return id, nil
}
