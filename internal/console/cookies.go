package console

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// cookieName returns the full name of a cookie. Over TLS it has the __Host- prefix, so that browsers
// refuse such a cookie from a subdomain or over plain HTTP.
func (v *visit) cookieName(name string) string {
	if v.console.secure(v.r) {
		return "__Host-countersign_" + name
	}
	return "countersign_" + name
}

// cookie returns a cookie with SameSite=Lax. Notifications contain links to the console, and browsers
// would not send a strict cookie when a web mailer opens one. Lax is safe: a GET changes nothing, and
// forms of other sites are refused anyway.
func (v *visit) cookie(name, value string) *http.Cookie {
	return &http.Cookie{ //nolint:gosec // Secure follows the connection, which may be plain HTTP on the machine itself
		Name: v.cookieName(name), Value: value, Path: "/",
		HttpOnly: true, Secure: v.console.secure(v.r), SameSite: http.SameSiteLaxMode,
	}
}

// cookieValue returns the value of a cookie, or "" if there is none or it is longer than longest bytes.
// It also returns "" if there are several of the same name: somebody else has set one of them.
func (v *visit) cookieValue(name string, longest int) string {
	cookies := v.r.CookiesNamed(v.cookieName(name))
	if len(cookies) != 1 || len(cookies[0].Value) > longest {
		return ""
	}
	return cookies[0].Value
}

func (v *visit) deleteCookie(name string) {
	expired := v.cookie(name, "") //nolint:gosec // Secure follows the connection: see cookie
	expired.MaxAge = -1
	http.SetCookie(v.w, expired)
}

const (
	pageCookie    = "heading"
	pageCookieAge = time.Hour
	maxPageCookie = 2000 // bytes
)

// rememberPage stores the requested page, or the page of the form that was sent, in a cookie, to return
// to it after the sign-in. The sign-in link itself knows nothing of the page.
func (v *visit) rememberPage() {
	path := v.r.URL.RequestURI()
	switch v.r.Method {
	case http.MethodGet:
	case http.MethodPost:
		path = v.formPage()
	default:
		return
	}
	if localPath(path) != path {
		return
	}
	cookie := v.cookie(pageCookie, base64.RawURLEncoding.EncodeToString([]byte(path))) //nolint:gosec // Secure follows the connection: see cookie
	cookie.MaxAge = int(pageCookieAge.Seconds())
	if len(cookie.Value) <= maxPageCookie {
		http.SetCookie(v.w, cookie)
	}
}

// formPage returns the path of the page that has the form of this route: the nearest page above it.
func (v *visit) formPage() string {
	path, pattern := v.r.URL.EscapedPath(), v.route.pattern
	for !v.console.pages[pattern] && pattern != "" {
		path, pattern = path[:strings.LastIndexByte(path, '/')], pattern[:strings.LastIndexByte(pattern, '/')]
	}
	return cmp.Or(path, "/")
}

// rememberedPage returns the page of rememberPage, or the start page, and deletes the cookie.
func (v *visit) rememberedPage() string {
	if v.cookieValue(pageCookie, maxPageCookie) != "" {
		v.deleteCookie(pageCookie)
	}
	return v.heading()
}

// heading returns the page of rememberPage, or the start page.
func (v *visit) heading() string {
	kept := v.cookieValue(pageCookie, maxPageCookie)
	if kept == "" {
		return "/"
	}
	path, err := base64.RawURLEncoding.DecodeString(kept)
	if err != nil {
		return "/"
	}
	return localPath(string(path))
}

// localPath returns a path on this server. It returns the start page for anything that a browser could
// take for an address on another host.
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
	onceCookie    = "once"
	maxOnces      = 20   // forms that a browser remembers
	maxOnce       = 100  // bytes of a token
	maxOnceCookie = 2000 // bytes
)

// once reads the token that identifies one rendered page. All forms of the page have the same token.
func (f form) once() (string, error) {
	once := f.text("once")
	odd := func(r rune) bool { return !strings.ContainsRune("0123456789abcdefghijklmnopqrstuvwxyz_", r) }
	if once == "" || len(once) > maxOnce || strings.ContainsFunc(once, odd) {
		return "", errBadForm
	}
	return once, nil
}

// formID identifies one form of a rendered page by the page's token and by what distinguishes the form
// from the page's other forms.
func formID(once string, parts ...string) string {
	sum := sha256.Sum256([]byte(once + "\n" + strings.Join(parts, "\n")))
	return hex.EncodeToString(sum[:16])
}

// onlyOnce runs do unless the same form of the same page was sent before. A response that shows a secret
// cannot be a redirect, so a reload sends the form again. A cookie records which forms the browser has
// sent, so this works whichever replica the reload reaches.
func (v *visit) onlyOnce(sent form, do func() error) (again bool, err error) {
	once, err := sent.once()
	if err != nil {
		return false, err
	}
	id := formID(once, v.r.URL.Path)
	before := strings.Split(v.cookieValue(onceCookie, maxOnceCookie), ".")
	if slices.Contains(before, id) {
		return true, nil
	}
	if err := do(); err != nil {
		return false, err
	}
	before = append(before[max(0, len(before)-maxOnces+1):], id)
	http.SetCookie(v.w, v.cookie(onceCookie, strings.Trim(strings.Join(before, "."), ".")))
	return false, nil
}
