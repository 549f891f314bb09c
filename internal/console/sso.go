package console

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/sso"
)

// SSO proves who somebody is at an identity provider. What Begin and KeepProof return is kept by the
// browser, and nobody else can make it.
type SSO interface {
	Name() string
	Begin(ctx context.Context, returnTo string) (address, kept string, err error)
	Finish(ctx context.Context, kept string, answer url.Values) (who *sso.Identity, returnTo string, err error)
	KeepProof(who *sso.Identity, returnTo string) (kept string, err error)
	OpenProof(kept string) (who *sso.Identity, returnTo string, err error)
}

// Paths of single sign-on. Providers are configured with the path of the callback.
const (
	ssoPath         = "/sign-in/sso"
	SSOCallbackPath = ssoPath + "/callback"
)

const (
	flowCookie   = "sso"
	proofCookie  = "sso_proof"
	maxSSOCookie = 3000 // bytes
	maxReturnTo  = 1000 // bytes
)

var errNoSSO = fault.Errorf(fault.CodeNotFound, "single sign-on is not set up on this server; use a sign-in link")

// ssoButton is the link to the provider, on the pages of those who are not signed in.
type ssoButton struct{ Name, Address string }

// ssoButton returns nil without single sign-on. The address is absolute: the provider sends browsers
// back to one host name, and the cookie must be of the same.
func (v *visit) ssoButton() *ssoButton {
	if v.console.sso == nil {
		return nil
	}
	return &ssoButton{v.console.sso.Name(), v.console.ssoBase + ssoPath}
}

// beginSSO sends the browser to the provider. It changes nothing but the browser's cookie.
func beginSSO(v *visit) error {
	if v.console.sso == nil {
		return errNoSSO
	}
	to := v.heading()
	if len(to) > maxReturnTo {
		to = "/"
	}
	v.releaseRead() // the provider may be slow
	address, kept, err := v.console.sso.Begin(v.r.Context(), to)
	if err == nil && len(kept) > maxSSOCookie {
		address, kept, err = v.console.sso.Begin(v.r.Context(), "/")
	}
	if err != nil {
		return v.refuseSSO(err)
	}
	cookie := v.cookie(flowCookie, kept) //nolint:gosec // Secure follows the connection: see cookie
	cookie.MaxAge = int(sso.FlowLifetime.Seconds())
	http.SetCookie(v.w, cookie)
	v.seeOther(address)
	return nil
}

// finishSSO signs somebody in who comes back from the provider. Browsers come here with a GET, which
// the flow's cookie binds to the browser that began.
func finishSSO(v *visit) error {
	if v.console.sso == nil {
		return errNoSSO
	}
	if wait := v.console.limits.SignIn(v.r); wait > 0 {
		return v.tooMany(wait, "too many failed sign-ins from this address")
	}
	kept := v.cookieValue(flowCookie, maxSSOCookie)
	v.releaseRead() // the provider may be slow
	who, to, err := v.console.sso.Finish(v.r.Context(), kept, v.r.URL.Query())
	if !errors.Is(err, sso.ErrNotBegun) {
		v.deleteCookie(flowCookie) // any site can send the browser here with an answer to no flow
	}
	if errors.Is(err, sso.ErrNotBegun) {
		return v.afterFlow(err)
	}
	if err != nil {
		return v.refuseSSO(err)
	}
	keys, err := v.console.service.IdentityKeys(v.r.Context(), identityOf(who))
	if err != nil {
		return err
	}
	switch len(keys) {
	case 0:
		v.console.limits.SignInFailed(v.r)
		return v.show(http.StatusForbidden, "sso-unknown.html", "No key is for you yet", who)
	case 1:
		return v.enterAs(who, keys[0].Key, to)
	}
	proof, err := v.console.sso.KeepProof(who, to)
	if err == nil && len(proof) > maxSSOCookie {
		proof, err = v.console.sso.KeepProof(who, "/")
	}
	if err != nil {
		return err
	}
	cookie := v.cookie(proofCookie, proof) //nolint:gosec // Secure follows the connection: see cookie
	cookie.MaxAge = int(sso.ProofLifetime.Seconds())
	http.SetCookie(v.w, cookie)
	return v.showChoice(who, keys)
}

// afterFlow answers a browser that came to the callback without a flow. It may have gone back after a
// sign-in, or loaded the page again on which somebody chooses a key.
func (v *visit) afterFlow(notBegun error) error {
	if v.caller != nil {
		v.seeOther("/")
		return nil
	}
	who, _, err := v.console.sso.OpenProof(v.cookieValue(proofCookie, maxSSOCookie))
	if err != nil {
		return v.refuseSSO(notBegun)
	}
	keys, err := v.console.service.IdentityKeys(v.r.Context(), identityOf(who))
	switch {
	case err != nil:
		return err
	case len(keys) == 0:
		return v.refuseSSO(notBegun)
	}
	return v.showChoice(who, keys)
}

func (v *visit) showChoice(who *sso.Identity, keys []service.IdentityKey) error {
	return v.show(http.StatusOK, "sso-choose.html", "Choose an organization", ssoChoice{who.SignInAs, keys})
}

// ssoChoice is the page for somebody with several keys.
type ssoChoice struct {
	SignInAs string
	Keys     []service.IdentityKey
}

// chooseKey signs somebody in with the key that they chose of several. The proof says who they are,
// and the service whether the key is theirs.
func chooseKey(v *visit) error {
	if v.console.sso == nil {
		return errNoSSO
	}
	if wait := v.console.limits.SignIn(v.r); wait > 0 {
		return v.tooMany(wait, "too many failed sign-ins from this address")
	}
	sent, err := v.form(maxForm)
	if err != nil {
		return err
	}
	id, err := ledger.ParseID(sent.text("key"))
	if err != nil {
		return errBadForm
	}
	who, to, err := v.console.sso.OpenProof(v.cookieValue(proofCookie, maxSSOCookie))
	if err != nil {
		return v.refuseSSO(err)
	}
	v.forgetProof()
	return v.enterAs(who, ledger.KeyID{UUID: id}, to)
}

// forgetProof keeps what was proven of somebody from signing in whoever uses the browser next.
func (v *visit) forgetProof() {
	if len(v.r.CookiesNamed(v.cookieName(proofCookie))) > 0 {
		v.deleteCookie(proofCookie)
	}
}

// enterAs opens a session of a key for who was proven.
func (v *visit) enterAs(who *sso.Identity, key ledger.KeyID, to string) error {
	session, expires, err := v.console.service.SignInByIdentity(v.r.Context(), identityOf(who), key)
	if codeOf(err) == fault.CodeUnauthenticated {
		return v.refuseSignIn(http.StatusUnauthorized, "This key is not for you, or not any more. Begin again, or ask an admin.")
	}
	if err != nil {
		return err
	}
	v.enter(session, expires)
	v.deleteCookie(pageCookie)
	v.seeOther(localPath(to))
	return nil
}

func identityOf(who *sso.Identity) *service.Identity {
	return &service.Identity{Issuer: who.Issuer, Subject: who.Subject, SignInAs: who.SignInAs}
}

// refuseSSO shows the sign-in page with what to do instead. A failure of the provider is none of the
// person's, and does not count.
func (v *visit) refuseSSO(err error) error {
	var why *sso.Error
	if !errors.As(err, &why) {
		return err
	}
	if why.Unavailable {
		v.logSSO(&v.console.ssoDown, why)
		return v.showSignIn(http.StatusServiceUnavailable, why.Shown)
	}
	// Anybody can send an answer to no flow: with lines in the log they could hide the others.
	if !errors.Is(err, sso.ErrNotBegun) {
		v.logSSO(&v.console.ssoRefused, why)
	}
	return v.refuseSignIn(http.StatusUnauthorized, why.Shown)
}

// logSSO logs why somebody was not signed in, unless there were too many such lines.
func (v *visit) logSSO(lines *lineLimit, why *sso.Error) {
	unlogged, ok := lines.take(v.console.service.Now().Std())
	if !ok {
		return
	}
	v.console.log.LogAttrs(v.r.Context(), slog.LevelWarn, "single sign-on failed",
		slog.String("request_id", v.id), slog.Any("error", why), slog.Int64("unlogged_before", unlogged))
}

// lineLimit limits the lines of one kind in the log, which strangers can cause: they could fill a disk, or
// hide other lines among them.
type lineLimit struct {
	pace     *rate.Limiter
	unlogged atomic.Int64 // since the last line
}

func newLineLimit() lineLimit {
	const pause, burst = 10 * time.Second, 20
	return lineLimit{pace: rate.NewLimiter(rate.Every(pause), burst)}
}

// take reports whether a line may be logged now, and how many were not since the last one.
func (l *lineLimit) take(now time.Time) (unlogged int64, ok bool) {
	if !l.pace.AllowN(now, 1) {
		l.unlogged.Add(1)
		return 0, false
	}
	return l.unlogged.Swap(0), true
}
