package cli

import (
	"errors"
	"fmt"

	"countersign/internal/ledger"
	"countersign/internal/sso"
)

// SSOFlags are the flags that name the identity provider for single sign-on.
type SSOFlags struct {
	OIDCIssuer           string `name:"oidc-issuer" help:"Issuer URL of an OpenID Connect provider, for single sign-on to the console; off by default." placeholder:"URL"`
	OIDCClientID         string `name:"oidc-client-id" help:"Id of this server's client at the provider." placeholder:"ID"`
	OIDCClientSecretFile string `name:"oidc-client-secret-file" help:"File that holds the client's secret." type:"path" placeholder:"FILE"`
	OIDCClaim            string `name:"oidc-claim" help:"Claim whose value API keys name as sign_in_as; the default is email, which counts only if it is verified." default:"email" placeholder:"CLAIM"`
	OIDCName             string `name:"oidc-name" help:"Name of the provider on the sign-in page; the default is the issuer's host." placeholder:"NAME"`
}

// SSOConfig returns the settings for single sign-on, or nil if it is off.
func (c *SSOFlags) SSOConfig() (*sso.Config, error) {
	if c.OIDCIssuer == "" {
		if c.OIDCClientID != "" || c.OIDCClientSecretFile != "" {
			return nil, errors.New("--oidc-client-id and --oidc-client-secret-file need --oidc-issuer")
		}
		return nil, nil
	}
	if _, err := sso.CheckIssuer(c.OIDCIssuer); err != nil {
		return nil, fmt.Errorf("--oidc-issuer: %w", err)
	}
	if c.OIDCClientID == "" || c.OIDCClientSecretFile == "" {
		return nil, errors.New("--oidc-issuer needs --oidc-client-id and --oidc-client-secret-file")
	}
	secret, err := readSecret("--oidc-client-secret-file", c.OIDCClientSecretFile)
	if err != nil {
		return nil, err
	}
	return &sso.Config{
		Issuer: c.OIDCIssuer, ClientID: c.OIDCClientID, ClientSecret: ledger.NewSecret(secret), Claim: c.OIDCClaim, Name: c.OIDCName,
	}, nil
}
