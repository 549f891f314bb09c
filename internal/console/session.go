package console

import (
	"net/http"
	"strings"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

const sessionCookie = "session"

// session is the token that the browser holds, "" for none.
func (v *visit) session() string { return v.kept(sessionCookie, 200) }

// identify finds who is signed in. A session that has ended is nobody's; a store
// that does not answer is an error, not a sign-out.
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
	if err == nil && caller.Role.Includes(ledger.RoleMember) {
		// Every page says whether the kill switch is active.
		v.organization, err = v.console.service.Organization(v.r.Context(), caller)
	}
	return err
}

// signedIn is the way into what agents' keys may see too.
func (v *visit) signedIn() (*service.Caller, error) {
	if v.caller == nil {
		v.keepHeading()
		if v.ended != nil {
			return nil, v.ended
		}
		return nil, fault.Errorf(fault.CodeUnauthenticated, "this page belongs to an organization, and you are not signed in, or your session has ended")
	}
	return v.caller, nil
}

// member is the way into every other page of an organization.
func (v *visit) member() (*service.Caller, error) {
	caller, err := v.signedIn()
	if err == nil && !caller.Role.Includes(ledger.RoleMember) {
		return nil, fault.Errorf(fault.CodeForbidden, "you are signed in with an agent's key, and those see only the approvals that they wait for; sign out, and use a link for a member's or an admin's key")
	}
	return caller, err
}

// admin is the way into what only admins may see or change.
func (v *visit) admin() (*service.Caller, error) {
	caller, err := v.member()
	if err == nil && !caller.Role.Includes(ledger.RoleAdmin) {
		return nil, fault.Errorf(fault.CodeForbidden, "this is for admins; ask one, or sign in with a link for an admin's key")
	}
	return caller, err
}

// signInPage asks for a link. Fault says what was wrong with the last one.
type signInPage struct{ Fault string }

const signInTitle = "Sign in"

func showSignIn(v *visit) error {
	return v.show(http.StatusOK, "sign-in.html", signInTitle, signInPage{})
}

func signIn(v *visit) error {
	if wait := v.console.limits.SignIn(v.r); wait > 0 {
		return v.tooMany(wait, "too many sign-ins from this address have failed")
	}
	form, err := v.form(maxForm)
	if err != nil {
		return err
	}
	link, problem := readLink(form.text("link"))
	if problem != "" {
		return v.refuseLink(http.StatusUnprocessableEntity, problem)
	}
	session, expires, err := v.console.service.SignIn(v.r.Context(), link)
	switch codeOf(err) {
	case fault.CodeUnauthenticated:
		return v.refuseLink(http.StatusUnauthorized, "This sign-in link was used already, has expired, or never existed.")
	case fault.CodeKeyExpired:
		return v.refuseLink(http.StatusUnauthorized, "The API key that this sign-in link is for has expired.")
	}
	if err != nil {
		return err
	}
	v.closeSession()
	cookie := v.cookie(sessionCookie, session.Reveal()) //nolint:gosec // Secure follows the connection: see cookie
	cookie.Expires = expires.Std()
	http.SetCookie(v.w, cookie)
	v.seeOther(v.headedFor())
	return nil
}

func (v *visit) refuseLink(status int, fault string) error {
	v.console.limits.SignInFailed(v.r)
	if status == http.StatusUnauthorized {
		v.challenge()
	}
	return v.show(status, "sign-in.html", signInTitle, signInPage{Fault: fault})
}

const linkPrefix = "csl_"

// readLink takes a whole link or the token at its end.
func readLink(given string) (link, fault string) {
	link = given[strings.LastIndexByte(given, '#')+1:]
	switch {
	case link == "":
		return "", "Paste the sign-in link first."
	case strings.HasPrefix(link, "csk_"):
		return "", "This is an API key. Keep it out of forms: signing in takes a link of its own."
	case !strings.HasPrefix(link, linkPrefix) || len(link) > 100:
		return "", "This is not a sign-in link. It ends with # and a text that begins with csl_; was it cut off?"
	}
	return link, ""
}

func signOut(v *visit) error {
	// Ending a session writes, and only one that exists is worth a write.
	if session := v.session(); session != "" && v.caller != nil {
		if err := v.console.service.SignOut(v.r.Context(), session); err != nil {
			return err
		}
	}
	v.drop(sessionCookie)
	v.seeOther("/")
	return nil
}

// closeSession ends the session that a new one replaces. Should that fail, it
// ends by itself soon enough, and the sign-in stands.
func (v *visit) closeSession() {
	session := v.session()
	if session == "" {
		return
	}
	if err := v.console.service.SignOut(v.r.Context(), session); err != nil {
		v.console.log.Warn("replaced session not closed", "request_id", v.id, "error", err)
	}
}
