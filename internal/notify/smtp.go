package notify

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	netmail "net/mail"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/wneessen/go-mail"

	"countersign/internal/ledger"
)

const mailTimeout = 30 * time.Second // for the whole attempt; mail servers may take long to accept

// Mailer sends notices through one mail server. It is safe for concurrent use.
type Mailer struct {
	host string
	port int

	implicitTLS bool
	startTLS    mail.TLSPolicy // used without implicitTLS

	user     string // "" for no sign-in
	password ledger.Secret
	from     netmail.Address

	roots   *x509.CertPool // nil: the system's authorities
	timeout time.Duration
	connect func(ctx context.Context, network, address string) (net.Conn, error)
}

var errSMTPForm = errors.New(
	"the mail server must be given as smtp://USER:PASSWORD@HOST:PORT?from=ADDRESS, or smtps://…, " +
		"with special characters in the user name and password percent-encoded")

// ParseSMTP parses the address of a mail server:
//
//	smtp://USER:PASSWORD@HOST:587?from=ADDRESS&starttls=required|optional|off
//	smtps://USER:PASSWORD@HOST:465?from=ADDRESS
//
// STARTTLS is required unless the address says otherwise. Errors do not contain any part of the
// address.
func ParseSMTP(address string) (*Mailer, error) {
	u, err := url.Parse(strings.TrimSpace(address))
	if err != nil || len(address) > maxURL || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" || u.Fragment != "" {
		return nil, errSMTPForm
	}
	m := &Mailer{host: u.Hostname(), timeout: mailTimeout, connect: (&net.Dialer{Timeout: connectTimeout}).DialContext}
	settings, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, errSMTPForm
	}
	for _, set := range []func(*url.URL, url.Values) error{m.setScheme, m.setPort, m.setSender, m.setSecurity, m.setUser} {
		if err := set(u, settings); err != nil {
			return nil, err
		}
	}
	for name := range settings {
		if name != "from" && name != "starttls" || len(settings[name]) > 1 {
			return nil, errors.New("the mail server's address takes from and starttls, each once, and no other setting")
		}
	}
	return m, nil
}

func (m *Mailer) setScheme(u *url.URL, _ url.Values) error {
	switch u.Scheme {
	case "smtp":
		m.port = 587
	case "smtps":
		m.port, m.implicitTLS = 465, true
	default:
		return errSMTPForm
	}
	return nil
}

func (m *Mailer) setPort(u *url.URL, _ url.Values) error {
	if !isPort(u.Port()) {
		return errors.New("the mail server's port must be from 1 to 65535")
	}
	if u.Port() != "" {
		m.port, _ = strconv.Atoi(u.Port())
	}
	return nil
}

func (m *Mailer) setSender(_ *url.URL, settings url.Values) error {
	from, err := netmail.ParseAddress(settings.Get("from"))
	if err != nil {
		return errors.New("the mail server's address needs from=ADDRESS, the sender of all mail, with + written as %2B")
	}
	m.from = *from
	return nil
}

func (m *Mailer) setSecurity(_ *url.URL, settings url.Values) error {
	if m.implicitTLS {
		if settings.Has("starttls") {
			return errors.New("smtps:// is encrypted from the start: leave starttls out, or use smtp://")
		}
		m.startTLS = mail.NoTLS
		return nil
	}
	switch settings.Get("starttls") {
	case "", "required":
		m.startTLS = mail.TLSMandatory
	case "optional":
		m.startTLS = mail.TLSOpportunistic
	case "off":
		m.startTLS = mail.NoTLS
	default:
		return errors.New("starttls must be required, optional or off")
	}
	return nil
}

func (m *Mailer) setUser(u *url.URL, _ url.Values) error {
	if u.User == nil {
		return nil
	}
	password, _ := u.User.Password()
	if u.User.Username() == "" || password == "" {
		return errors.New("the mail server's address needs both a user name and a password, or neither")
	}
	// An attacker on the network can remove an offer of STARTTLS.
	if !m.implicitTLS && m.startTLS != mail.TLSMandatory {
		return errors.New("a password is only sent encrypted: use smtps://, or smtp:// with starttls=required")
	}
	m.user, m.password = u.User.Username(), ledger.NewSecret(password)
	return nil
}

// String returns the server's address without credentials.
func (m *Mailer) String() string { return fmt.Sprintf("%s port %d", m.host, m.port) }

func (m *Mailer) security() *tls.Config {
	return &tls.Config{ServerName: m.host, RootCAs: m.roots, MinVersion: tls.VersionTLS12}
}
