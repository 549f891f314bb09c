package sso

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/oauth2"

	"countersign/internal/ledger"
)

// Identity is who somebody is, as the provider has proven.
type Identity struct {
	Issuer   string `json:"issuer"`
	Subject  string `json:"subject"`
	SignInAs string `json:"sign_in_as"` // the value of the claim, in its normal form
}

const badToken = "The identity provider's answer does not prove who you are. Begin again; if that does not help, tell whoever runs this server."

// identify verifies the ID token and reads the claim. The library checks the signature, the issuer,
// the audience and the times; the rest is checked here.
func (c *Client) identify(ctx context.Context, p *provider, f *flow, tokens *oauth2.Token) (*Identity, error) {
	raw, _ := tokens.Extra("id_token").(string)
	if raw == "" {
		return nil, refused(badToken, errors.New("the provider sends no ID token"))
	}
	token, err := p.verifier.Verify(ctx, raw)
	if err != nil {
		return nil, verifyError(err)
	}
	// By exact names: encoding/json would match the fields of a struct whatever their case.
	claims := make(map[string]json.RawMessage)
	if err := token.Claims(&claims); err != nil {
		return nil, refused(badToken, errors.New("the claims of the ID token cannot be read"))
	}
	if ambiguous(claims) {
		return nil, refused(badToken, errors.New("the ID token has a claim whose name differs from a registered one in case alone"))
	}
	if subtle.ConstantTimeCompare([]byte(text(claims["nonce"])), []byte(f.Nonce)) != 1 {
		return nil, refused(badToken, errors.New("the ID token has another nonce"))
	}
	if _, named := claims["azp"]; (named || len(token.Audience) > 1) && text(claims["azp"]) != c.config.ClientID {
		return nil, refused(badToken, errors.New("the ID token was issued to another client"))
	}
	subject := text(claims["sub"])
	if !plain(subject) {
		return nil, refused(badToken, errors.New("the ID token has no subject, or one that is too long or not visible ASCII"))
	}
	if _, found := claims[c.config.Claim]; !found {
		if claims, err = c.userInfo(ctx, p, tokens, subject); err != nil {
			return nil, err
		}
	}
	signInAs, err := c.read(claims)
	if err != nil {
		return nil, err
	}
	return &Identity{Issuer: c.config.Issuer, Subject: subject, SignInAs: signInAs}, nil
}

// ambiguous reports whether a claim has the name of one that the library has checked, in another
// case. Names of claims are case-sensitive, but the library takes the last of them for the claim.
func ambiguous(claims map[string]json.RawMessage) bool {
	for name := range claims {
		for _, checked := range []string{"iss", "aud", "exp", "nbf"} {
			if name != checked && strings.EqualFold(name, checked) {
				return true
			}
		}
	}
	return false
}

// verifyError tells a token that proves nothing from keys that could not be read. The library has no
// type for the latter, and puts the provider's answer into its text.
func verifyError(err error) error {
	if strings.Contains(err.Error(), "fetching keys") {
		return unavailable(errors.New("the provider's keys cannot be read"))
	}
	return refused(badToken, fmt.Errorf("verify the ID token: %w", err))
}

// userInfo asks the provider for claims that the ID token lacks. They must be about the same person.
func (c *Client) userInfo(ctx context.Context, p *provider, tokens *oauth2.Token, subject string) (map[string]json.RawMessage, error) {
	claims := make(map[string]json.RawMessage)
	if p.UserInfoEndpoint() == "" {
		return claims, nil
	}
	info, err := p.UserInfo(ctx, oauth2.StaticTokenSource(tokens))
	if err != nil {
		return nil, unavailable(fmt.Errorf("read the user's claims: %w", err))
	}
	if err := info.Claims(&claims); err != nil {
		return nil, unavailable(errors.New("the user's claims cannot be read"))
	}
	if text(claims["sub"]) != subject {
		return nil, refused(badToken, errors.New("the user's claims are about another subject"))
	}
	return claims, nil
}

// read returns the value of the claim in its normal form.
func (c *Client) read(claims map[string]json.RawMessage) (string, error) {
	name := c.config.Claim
	value := text(claims[name])
	if value == "" {
		return "", refused("The identity provider does not say who you are: it sends no "+name+". Whoever runs this server can choose another claim, such as --oidc-claim sub.",
			fmt.Errorf("there is no claim %q, or it is no text", name))
	}
	normal, ok := ledger.NormalSignInAs(value)
	switch {
	case !ok:
		return "", refused("Your "+name+" has spaces or characters that are not ASCII, or is too long. Whoever runs this server can choose another claim, such as --oidc-claim sub.",
			fmt.Errorf("the claim %q has no normal form", name))
	case name == EmailClaim && !verified(claims["email_verified"]):
		return "", refused("The identity provider has not verified your e-mail address, so it does not count. Have it verified there; "+
			"if the provider verifies none, whoever runs this server can choose another claim, such as --oidc-claim sub.",
			errors.New("email_verified is not true"))
	case name != EmailClaim && normal != value:
		// Only of e-mail addresses is it known that they do not differ in case alone.
		return "", refused("Your "+name+" has an @ and capital letters, and cannot be compared safely. Whoever runs this server can choose another claim, such as --oidc-claim sub.",
			fmt.Errorf("the claim %q is not in its normal form", name))
	}
	return normal, nil
}

// text returns a JSON string, or "" for anything else.
func text(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}

// verified reports whether the claim email_verified is true. Some providers send it as text.
func verified(raw json.RawMessage) bool { return string(raw) == "true" || string(raw) == `"true"` }

// plain reports whether a subject can be entered in the audit log: OpenID Connect allows at most 255
// ASCII characters.
func plain(subject string) bool {
	if subject == "" || len(subject) > ledger.MaxSignInAs {
		return false
	}
	for _, r := range subject {
		if r < ' ' || r > '~' {
			return false
		}
	}
	return true
}
