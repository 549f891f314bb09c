package console

import (
	"net/http"
	"strings"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

const sessionCookie = "session"

// session returns the browser's session token, or "".
func (v *visit) session() string { return v.cookieValue(sessionCookie, 200) }

// identify sets the caller from the session. An ended session is not an error. A store that does not
// answer is one, so that the browser is not treated as signed out.
func (v *visit) identify() error {
	session := v.session()
	if session == "" {
		return nil
	}
	caller, err := v.console.service.SessionCaller(v.r.Context(), session)
	switch codeOf(err) {
	case fault.CodeNotFound, fault.CodeUnauthenticated:
		return nil
	case fault.CodeKeyExpired:
		v.ended = err
		return nil
	}
	v.caller = caller
	return err
}

// signedIn returns the caller for pages that agents may see too.
func (v *visit) signedIn() (*service.Caller, error) {
	if v.caller == nil {
		v.rememberPage()
		if v.ended != nil {
			return nil, v.ended
		}
		if v.route.method == http.MethodPost {
			return nil, fault.Errorf(fault.CodeUnauthenticated, "you are not signed in, or your session has ended. Nothing was changed: sign in, and send the form again")
		}
		return nil, fault.Errorf(fault.CodeUnauthenticated, "you are not signed in, or your session has ended")
	}
	return v.caller, nil
}

// member returns the caller for pages that members and admins may see.
func (v *visit) member() (*service.Caller, error) {
	caller, err := v.signedIn()
	if err == nil && !caller.Role.Includes(ledger.RoleMember) {
		return nil, fault.Errorf(fault.CodeForbidden, "you are signed in with an agent's key, which sees only its own approvals; sign out, and sign in with a link for a member's or an admin's key")
	}
	return caller, err
}

// admin returns the caller for pages and forms of admins.
func (v *visit) admin() (*service.Caller, error) {
	caller, err := v.member()
	if err == nil && !caller.Role.Includes(ledger.RoleAdmin) {
		return nil, fault.Errorf(fault.CodeForbidden, "this is for admins; ask one, or sign in with a link for an admin's key")
	}
	return caller, err
}

// signInPage asks for a sign-in link. Fault says what was wrong with the last attempt.
type signInPage struct {
	Fault string
	SSO   *ssoButton // nil without single sign-on
}

const signInTitle = "Sign in"

func showSignIn(v *visit) error {
	return v.showSignIn(http.StatusOK, "")
}

func (v *visit) showSignIn(status int, fault string) error {
	return v.show(status, "sign-in.html", signInTitle, signInPage{fault, v.ssoButton()})
}

func signIn(v *visit) error {
	if wait := v.console.limits.SignIn(v.r); wait > 0 {
		return v.tooMany(wait, "too many failed sign-ins from this address")
	}
	form, err := v.form(maxForm)
	if err != nil {
		return err
	}
	link, problem := readLink(form.text("link"))
	if problem != "" {
		return v.refuseSignIn(http.StatusUnprocessableEntity, problem)
	}
	session, expires, err := v.console.service.SignIn(v.r.Context(), link)
	switch codeOf(err) {
	case fault.CodeUnauthenticated:
		return v.refuseSignIn(http.StatusUnauthorized, "This sign-in link has been used, has expired or is wrong.")
	case fault.CodeKeyExpired:
		return v.refuseSignIn(http.StatusUnauthorized, "The API key that this sign-in link is for has expired.")
	}
	if err != nil {
		return err
	}
	v.enter(session, expires)
	v.seeOther(v.rememberedPage())
	return nil
}

// enter gives a new session to the browser.
func (v *visit) enter(session ledger.Secret, expires ledger.Time) {
	v.closeSession()
	v.forgetProof()
	cookie := v.cookie(sessionCookie, session.Reveal()) //nolint:gosec // Secure follows the connection: see cookie
	cookie.Expires = expires.Std()
	http.SetCookie(v.w, cookie)
}

func (v *visit) refuseSignIn(status int, fault string) error {
	v.console.limits.SignInFailed(v.r)
	if status == http.StatusUnauthorized {
		v.challenge()
	}
	return v.showSignIn(status, fault)
}

const linkPrefix = "csl_"

// readLink returns the token of a link. It accepts the whole link or just the token.
func readLink(given string) (link, fault string) {
	link = given[strings.LastIndexByte(given, '#')+1:]
	switch {
	case link == "":
		return "", "Paste the sign-in link first."
	case strings.HasPrefix(link, "csk_"):
		return "", "This is an API key. Never paste it into a form: to sign in, you need a sign-in link."
	case !strings.HasPrefix(link, linkPrefix) || len(link) > 100:
		return "", "This is not a sign-in link. A link ends with # and a text that begins with csl_. Was it cut off?"
	}
	return link, ""
}

func signOut(v *visit) error {
	// Ending a session writes to the store, so skip it if there is no session.
	if session := v.session(); session != "" && v.caller != nil {
		if err := v.console.service.SignOut(v.r.Context(), session); err != nil {
			return err
		}
	}
	v.deleteCookie(sessionCookie)
	v.forgetProof()
	v.seeOther("/")
	return nil
}

// closeSession ends the session that a new one replaces. A failure does not fail the sign-in, because
// the old session expires anyway.
func (v *visit) closeSession() {
	session := v.session()
	if session == "" {
		return
	}
	if err := v.console.service.SignOut(v.r.Context(), session); err != nil {
		v.console.log.Warn("previous session was not closed", "request_id", v.id, "error", err)
	}
}
