package sso

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/google/uuid"
	"golang.org/x/oauth2"
)

const (
	// FlowLifetime is how long somebody may take at the provider.
	FlowLifetime = 10 * time.Minute
	// ProofLifetime is how long somebody may take to choose a key.
	ProofLifetime = 5 * time.Minute

	maxCode = 8 << 10 // bytes
)

// Labels keep what was sealed for one use from being opened for another.
const (
	flowLabel  = "single sign-on flow"
	proofLabel = "single sign-on proof"
)

// flow is what a browser keeps while its user is at the provider.
type flow struct {
	State    string `json:"state"`
	Nonce    string `json:"nonce"`
	Verifier string `json:"verifier"`
	ReturnTo string `json:"return_to"`
	Expires  int64  `json:"expires"`
}

// Begin returns the address at the provider to send a browser to, and what the browser must keep
// until it comes back. returnTo comes out of Finish as it is.
func (c *Client) Begin(ctx context.Context, returnTo string) (address, kept string, err error) {
	p, err := c.discover(ctx)
	if err != nil {
		return "", "", err
	}
	f := flow{
		State: random(), Nonce: random(), Verifier: oauth2.GenerateVerifier(), ReturnTo: returnTo,
		Expires: c.config.Clock().Add(FlowLifetime).Unix(),
	}
	if kept, err = c.seal(flowLabel, f); err != nil {
		return "", "", err
	}
	return p.oauth.AuthCodeURL(f.State, oidc.Nonce(f.Nonce), oauth2.S256ChallengeOption(f.Verifier)), kept, nil
}

// random returns 256 bits that nobody can guess.
func random() string {
	var bits [32]byte
	_, _ = rand.Read(bits[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(bits[:])
}

// ErrNotBegun says that what a browser sent belongs to no flow that it began, or to one that has ended.
var ErrNotBegun = refused("This sign-in was not begun in this browser, or it took too long. Begin again.", errors.New("the answer belongs to no flow of this browser"))

// Finish proves who has come back from the provider: kept is what Begin gave to the browser, answer
// the query that it came back with.
func (c *Client) Finish(ctx context.Context, kept string, answer url.Values) (who *Identity, returnTo string, err error) {
	var f flow
	if !c.open(flowLabel, kept, &f) || c.config.Clock().Unix() >= f.Expires {
		return nil, "", ErrNotBegun
	}
	if state := answer["state"]; len(state) != 1 || subtle.ConstantTimeCompare([]byte(state[0]), []byte(f.State)) != 1 {
		return nil, "", ErrNotBegun
	}
	if issuer := answer["iss"]; len(issuer) > 1 || len(issuer) == 1 && issuer[0] != c.config.Issuer {
		return nil, "", refused("The answer came from another identity provider. Begin again.", errors.New("the answer names another issuer"))
	}
	if answer.Has("error") {
		code := plainCode(answer.Get("error"))
		return nil, "", refused("The identity provider signed nobody in ("+code+"). Begin again, or use a sign-in link.", fmt.Errorf("the provider answers %s", code))
	}
	code := answer["code"]
	if len(code) != 1 || code[0] == "" || len(code[0]) > maxCode {
		return nil, "", refused("The identity provider's answer cannot be read. Begin again.", errors.New("the answer has no code, or several"))
	}
	who, err = c.exchange(ctx, &f, code[0])
	return who, f.ReturnTo, err
}

// exchange exchanges the code for tokens. A bounded number of them at a time: each holds a
// connection to the provider.
func (c *Client) exchange(ctx context.Context, f *flow, code string) (*Identity, error) {
	select {
	case c.exchanges <- struct{}{}:
		defer func() { <-c.exchanges }()
	default:
		return nil, unavailable(errors.New("too many sign-ins at once"))
	}
	p, err := c.discover(ctx)
	if err != nil {
		return nil, err
	}
	ctx = oidc.ClientContext(ctx, c.http)
	tokens, err := p.oauth.Exchange(ctx, code, oauth2.VerifierOption(f.Verifier))
	if err != nil {
		return nil, exchangeError(err)
	}
	return c.identify(ctx, p, f, tokens)
}

// exchangeError says why a code was not exchanged, without the provider's answer, which may hold
// anything.
func exchangeError(err error) error {
	var answered *oauth2.RetrieveError
	if !errors.As(err, &answered) {
		return unavailable(fmt.Errorf("exchange the code: %w", err))
	}
	code := plainCode(answered.ErrorCode)
	status := 0
	if answered.Response != nil {
		status = answered.Response.StatusCode
	}
	why := fmt.Errorf("the provider refuses the code: %d, %s", status, code)
	switch code {
	case "invalid_grant":
		return refused("The identity provider refused this sign-in: it was used before, or took too long. Begin again.", why)
	case "invalid_request": // some providers say this of a code that they cannot read
		return refused("The identity provider refused this sign-in. Begin again; if that does not help, use a sign-in link.", why)
	}
	return unavailable(why)
}

// plainCode returns an error code of a provider, or "unknown" if it has anything but letters and
// underscores.
func plainCode(code string) string {
	const longest = 50
	if code == "" || len(code) > longest {
		return "unknown"
	}
	for _, r := range code {
		if r != '_' && (r < 'a' || r > 'z') {
			return "unknown"
		}
	}
	return code
}

// proof is who was proven, for a browser to keep until its user has chosen a key.
type proof struct {
	Who      Identity `json:"who"`
	ReturnTo string   `json:"return_to"`
	Expires  int64    `json:"expires"`
}

// KeepProof returns what a browser must keep to be taken for the identity by OpenProof, for
// ProofLifetime.
func (c *Client) KeepProof(who *Identity, returnTo string) (kept string, err error) {
	return c.seal(proofLabel, proof{Who: *who, ReturnTo: returnTo, Expires: c.config.Clock().Add(ProofLifetime).Unix()})
}

// OpenProof returns what was given to KeepProof.
func (c *Client) OpenProof(kept string) (who *Identity, returnTo string, err error) {
	var p proof
	if !c.open(proofLabel, kept, &p) || c.config.Clock().Unix() >= p.Expires {
		return nil, "", ErrNotBegun
	}
	return &p.Who, p.ReturnTo, nil
}

// label also names the provider, the client and its secret: nothing that was kept outlives a change of
// one of them, and who has a master key, perhaps a former one or one from a backup, can make nothing
// that is opened without the secret.
func (c *Client) label(use string) string {
	secret := sha256.Sum256([]byte(c.config.ClientSecret.Reveal()))
	return use + "\n" + c.config.Issuer + "\n" + c.config.ClientID + "\n" + c.config.Claim + "\n" + hex.EncodeToString(secret[:])
}

func (c *Client) seal(use string, v any) (string, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return "", fmt.Errorf("%s: %w", use, err)
	}
	sealed, err := c.config.Seal.Seal(uuid.Nil, c.label(use), text)
	if err != nil {
		return "", fmt.Errorf("%s: %w", use, err)
	}
	return base64.RawURLEncoding.EncodeToString(sealed), nil
}

func (c *Client) open(use, kept string, v any) bool {
	sealed, err := base64.RawURLEncoding.Strict().DecodeString(kept)
	if err != nil {
		return false
	}
	text, err := c.config.Seal.Open(uuid.Nil, c.label(use), sealed)
	return err == nil && json.Unmarshal(text, v) == nil
}
