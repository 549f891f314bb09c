package sso

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
)

const (
	discoveryAge   = time.Hour       // after which the document is read again
	discoveryPause = 5 * time.Second // after a failure
)

// discovery is what is known of the provider.
type discovery struct {
	known atomic.Pointer[provider] // as last read; nil if it never was
	turn  chan struct{}            // holds an element while somebody uses the fields below
	at    time.Time                // when the last attempt ended
	err   error                    // of the last attempt
}

func newDiscovery() *discovery { return &discovery{turn: make(chan struct{}, 1)} }

// enter waits for its turn, or until ctx is done.
func (d *discovery) enter(ctx context.Context) error {
	select {
	case d.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// provider is a provider whose discovery document was read.
type provider struct {
	*oidc.Provider
	oauth    oauth2.Config
	verifier *oidc.IDTokenVerifier
}

// discover returns the provider. It reads the discovery document if that is due, one caller at a
// time, and not again soon after a failure: somebody who presses the button all the time must not
// make this server a burden for the provider. If a later attempt fails, what was read before is used,
// and nobody waits for an attempt of somebody else if anything was.
func (c *Client) discover(ctx context.Context) (*provider, error) {
	d := c.discovery
	select {
	case d.turn <- struct{}{}:
	default:
		if known := d.known.Load(); known != nil {
			return known, nil
		}
		if err := d.enter(ctx); err != nil {
			return nil, unavailable(err)
		}
	}
	defer func() { <-d.turn }()
	age := c.config.Clock().Sub(d.at)
	if due := d.at.IsZero() || d.err == nil && age >= discoveryAge || d.err != nil && age >= discoveryPause; due {
		var found *provider
		if found, d.err = c.readDiscovery(ctx); d.err == nil {
			d.known.Store(found)
		}
		// The attempt may have taken longer than the pause, and those who wait must not repeat it.
		d.at = c.config.Clock()
	}
	if known := d.known.Load(); known != nil {
		return known, nil
	}
	return nil, unavailable(d.err)
}

// readDiscovery does not end with ctx, whose browser may go away: others wait for the result.
func (c *Client) readDiscovery(ctx context.Context) (*provider, error) {
	ctx = oidc.ClientContext(context.WithoutCancel(ctx), c.http)
	read, err := oidc.NewProvider(ctx, c.config.Issuer)
	if err != nil {
		return nil, fmt.Errorf("read the discovery document: %w", err)
	}
	var document struct {
		Keys    string   `json:"jwks_uri"`
		Methods []string `json:"token_endpoint_auth_methods_supported"`
	}
	if err := read.Claims(&document); err != nil {
		return nil, fmt.Errorf("read the discovery document: %w", err)
	}
	endpoint := read.Endpoint()
	for _, address := range []string{endpoint.AuthURL, endpoint.TokenURL, document.Keys} {
		if !Guarded(address) {
			return nil, fmt.Errorf("the discovery document has the address %q, which is not https", address)
		}
	}
	if endpoint.AuthStyle, err = authStyle(document.Methods); err != nil {
		return nil, err
	}
	return &provider{
		Provider: read,
		oauth: oauth2.Config{
			ClientID: c.config.ClientID, ClientSecret: c.config.ClientSecret.Reveal(), Endpoint: endpoint, RedirectURL: c.config.Callback, Scopes: c.scopes(),
		},
		verifier: read.Verifier(&oidc.Config{ClientID: c.config.ClientID, Now: c.config.Clock}),
	}, nil
}

// authStyle returns how the client presents its secret. Without this, the library would try one way
// after the other, and a provider may take the first attempt for the code's only use.
func authStyle(methods []string) (oauth2.AuthStyle, error) {
	switch {
	case len(methods) == 0 || slices.Contains(methods, "client_secret_basic"): // the default of the standard
		return oauth2.AuthStyleInHeader, nil
	case slices.Contains(methods, "client_secret_post"):
		return oauth2.AuthStyleInParams, nil
	}
	return 0, errors.New("the provider accepts neither client_secret_basic nor client_secret_post")
}

// scopes returns what is asked for: no more than the claim needs.
func (c *Client) scopes() []string {
	switch c.config.Claim {
	case "sub":
		return []string{oidc.ScopeOpenID}
	case EmailClaim:
		return []string{oidc.ScopeOpenID, oidc.ScopeEmail}
	default:
		return []string{oidc.ScopeOpenID, oidc.ScopeProfile}
	}
}
