// Package sso signs people in at an OpenID Connect provider: the authorization code flow with PKCE.
// It proves who somebody is. What they may do is decided elsewhere: the package knows no key, no
// organization and no store.
//
// What a flow needs to remember is in a cookie of the browser, encrypted with a key that is derived
// from the key file. So any replica can finish what another began, no table grows with flows that
// nobody finishes, and only the browser that began a flow can finish it.
package sso

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"

	"countersign/internal/ledger"
)

// EmailClaim is the claim that counts only where the provider has verified it.
const EmailClaim = "email"

// Config configures a Client.
type Config struct {
	Issuer       string // exactly as the provider writes it
	ClientID     string
	ClientSecret ledger.Secret
	Claim        string // whose value keys name
	Name         string // for people; optional: the issuer's host
	Callback     string // URL that the provider sends browsers back to
	Seal         Sealer
	Clock        func() time.Time // optional
	Timeout      time.Duration    // of each call to the provider; optional
}

// Sealer encrypts what a browser keeps. Only the same key file can open it.
type Sealer interface {
	Seal(org uuid.UUID, label string, plaintext []byte) ([]byte, error)
	Open(org uuid.UUID, label string, sealed []byte) ([]byte, error)
}

const (
	callTimeout = 10 * time.Second
	maxSetting  = 500 // bytes of a setting
)

// Client signs people in at one provider. It is safe for concurrent use.
type Client struct {
	config    Config
	http      *http.Client
	discovery *discovery
	exchanges chan struct{} // holds one element for each code that is being exchanged
}

// New returns a Client. It makes no call: a provider that is down does not keep a server from
// starting.
func New(c Config) (*Client, error) {
	issuer, err := CheckIssuer(c.Issuer)
	if err != nil {
		return nil, err
	}
	if !Guarded(c.Callback) {
		return nil, fmt.Errorf("browsers must come back over https, not to %s: give a public URL with https", c.Callback)
	}
	switch {
	case c.ClientID == "" || c.ClientSecret.Reveal() == "" || c.Claim == "":
		return nil, errors.New("the client's id, its secret and a claim are required")
	case len(c.ClientID) > maxSetting || len(c.Claim) > maxSetting || len(c.Name) > maxSetting:
		return nil, fmt.Errorf("the client's id, the claim and the name have at most %d bytes", maxSetting)
	}
	if c.Name == "" {
		c.Name = issuer.Hostname()
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	if c.Timeout == 0 {
		c.Timeout = callTimeout
	}
	const atOnce = 16
	return &Client{config: c, http: newHTTPClient(c.Timeout), discovery: newDiscovery(), exchanges: make(chan struct{}, atOnce)}, nil
}

// CheckIssuer checks the form of an issuer. Its secret and its tokens must not cross a network in
// the clear.
func CheckIssuer(text string) (*url.URL, error) {
	issuer, err := url.Parse(text)
	if err != nil || issuer.Host == "" || issuer.User != nil || strings.ContainsAny(text, "?#") || len(text) > maxSetting {
		return nil, errors.New("an issuer has the form https://host/path")
	}
	if !guarded(issuer) {
		return nil, errors.New("an issuer must use https, except on this machine")
	}
	return issuer, nil
}

// Guarded reports whether nobody on a network can read or change what is exchanged with an address.
func Guarded(address string) bool {
	parsed, err := url.Parse(address)
	return err == nil && guarded(parsed)
}

func guarded(address *url.URL) bool {
	if address.Scheme != "http" || address.Hostname() == "localhost" {
		return (address.Scheme == "https" || address.Scheme == "http") && address.Host != ""
	}
	ip, err := netip.ParseAddr(address.Hostname())
	return err == nil && ip.Unmap().IsLoopback()
}

// Name is the provider's name, for people.
func (c *Client) Name() string { return c.config.Name }

// Check fails if the provider cannot be reached, or its discovery document is not about the issuer
// or cannot be used.
func (c *Client) Check(ctx context.Context) error {
	_, err := c.discover(ctx)
	return err
}

// Error is why somebody was not signed in. Its text is for the log, and has no token, code or
// secret; Shown is for the person.
type Error struct {
	Shown string
	// Unavailable says that the provider failed, and not the person.
	Unavailable bool
	Why         error
}

func (e *Error) Error() string {
	const most = 300
	text := e.Why.Error()
	return text[:min(len(text), most)]
}

func (e *Error) Unwrap() error { return e.Why }

func refused(shown string, why error) *Error { return &Error{Shown: shown, Why: why} }

func unavailable(why error) *Error {
	return &Error{Shown: "The identity provider does not answer as it should. Use a sign-in link, or try again in a minute.", Unavailable: true, Why: why}
}
