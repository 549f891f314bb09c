package console

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// cookieName depends on the connection: over TLS the prefix makes browsers
// refuse a cookie of that name that came from a subdomain or without TLS.
func (v *visit) cookieName(name string) string {
	if v.console.secure(v.r) {
		return "__Host-countersign_" + name
	}
	return "countersign_" + name
}

// cookie lets links lead here: notices carry them, and a strict cookie would stay
// behind when a mailbox in the browser opens one. Nothing is changed by a GET, and
// a form of another site is refused with or without the cookie.
func (v *visit) cookie(name, value string) *http.Cookie {
	return &http.Cookie{ //nolint:gosec // Secure follows the connection, which may be plain HTTP on the machine itself
		Name: v.cookieName(name), Value: value, Path: "/",
		HttpOnly: true, Secure: v.console.secure(v.r), SameSite: http.SameSiteLaxMode,
	}
}

// kept is what the browser holds under a name, "" for nothing. More than one
// cookie of the name is somebody's doing, and none of them is taken.
func (v *visit) kept(name string, longest int) string {
	cookies := v.r.CookiesNamed(v.cookieName(name))
	if len(cookies) != 1 || len(cookies[0].Value) > longest {
		return ""
	}
	return cookies[0].Value
}

func (v *visit) drop(name string) {
	gone := v.cookie(name, "") //nolint:gosec // Secure follows the connection: see cookie
	gone.MaxAge = -1
	http.SetCookie(v.w, gone)
}

const (
	headingCookie  = "heading"
	headingTime    = time.Hour
	longestHeading = 2000
)

// keepHeading remembers the page that somebody wanted who is not signed in. The
// link that signs them in comes from elsewhere and cannot know it.
func (v *visit) keepHeading() {
	path := v.r.URL.RequestURI()
	if v.r.Method != http.MethodGet || localPath(path) != path {
		return
	}
	cookie := v.cookie(headingCookie, base64.RawURLEncoding.EncodeToString([]byte(path))) //nolint:gosec // Secure follows the connection: see cookie
	cookie.MaxAge = int(headingTime.Seconds())
	if len(cookie.Value) <= longestHeading {
		http.SetCookie(v.w, cookie)
	}
}

// headedFor is the page that they wanted, once; the start page for none.
func (v *visit) headedFor() string {
	kept := v.kept(headingCookie, longestHeading)
	if kept == "" {
		return "/"
	}
	v.drop(headingCookie)
	path, err := base64.RawURLEncoding.DecodeString(kept)
	if err != nil {
		return "/"
	}
	return localPath(string(path))
}

// localPath is a path of this very server, and the start page in place of anything
// that a browser could take for an address elsewhere.
func localPath(path string) string {
	address, err := url.Parse(path)
	foreign := err != nil || address.Host != "" || address.Scheme != "" || address.User != nil || address.Opaque != ""
	odd := func(r rune) bool { return r <= ' ' || r == '\\' || r > '~' }
	if foreign || !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "//") || strings.ContainsFunc(path, odd) {
		return "/"
	}
	return path
}

const (
	onceCookie = "once"
	mostOnces  = 20
	maxOnce    = 100
)

// once reads what tells one form from the next of its kind.
func (f form) once() (string, error) {
	once := f.text("once")
	odd := func(r rune) bool { return !strings.ContainsRune("0123456789abcdefghijklmnopqrstuvwxyz_", r) }
	if once == "" || len(once) > maxOnce || strings.ContainsFunc(once, odd) {
		return "", errBadForm
	}
	return once, nil
}

// onlyOnce does what a form asks for. Where the answer shows a secret it cannot
// send the browser on, and a reload sends the form again: the browser itself
// remembers which it has sent, whichever server the reload reaches.
func (v *visit) onlyOnce(sent form, do func() error) (again bool, err error) {
	once, err := sent.once()
	if err != nil {
		return false, err
	}
	before := strings.Split(v.kept(onceCookie, mostOnces*(maxOnce+1)), ".")
	if slices.Contains(before, once) {
		return true, nil
	}
	if err := do(); err != nil {
		return false, err
	}
	before = append(before[max(0, len(before)-mostOnces+1):], once)
	http.SetCookie(v.w, v.cookie(onceCookie, strings.Trim(strings.Join(before, "."), ".")))
	return false, nil
}
