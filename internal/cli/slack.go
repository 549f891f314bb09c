package cli

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"countersign/internal/ledger"
	"countersign/internal/notify"
	"countersign/internal/sso"
)

// SlackFlags are the flags that name the server's Slack app.
type SlackFlags struct {
	SlackTokenFile         string `name:"slack-token-file" help:"File that holds the bot token (xoxb-…) of a Slack app, for approvals in Slack; off by default." type:"path" placeholder:"FILE"`
	SlackSigningSecretFile string `name:"slack-signing-secret-file" help:"File that holds the signing secret of the Slack app; needed with --slack-token-file." type:"path" placeholder:"FILE"`
	SlackAPIURL            string `name:"slack-api-url" help:"Address of Slack's API, for a proxy of your own; https, or loopback." default:"https://slack.com/api/" placeholder:"URL"`
}

// Slack returns the Slack app, or nil if none is configured.
func (c *SlackFlags) Slack() (*notify.Slack, error) {
	if c.SlackTokenFile == "" && c.SlackSigningSecretFile == "" {
		return nil, nil
	}
	if c.SlackTokenFile == "" || c.SlackSigningSecretFile == "" {
		return nil, errors.New("--slack-token-file and --slack-signing-secret-file must be given together: the token sends messages, and the secret shows that a press of a button comes from Slack")
	}
	token, err := readSecret("--slack-token-file", c.SlackTokenFile)
	if err != nil {
		return nil, err
	}
	secret, err := readSecret("--slack-signing-secret-file", c.SlackSigningSecretFile)
	if err != nil {
		return nil, err
	}
	if !visibleASCII(token) || !visibleASCII(secret) {
		return nil, errors.New("the files of --slack-token-file and --slack-signing-secret-file must each hold one secret of Slack and nothing else")
	}
	// Slack would say of a swapped pair only that it does not know the token, and a wrong secret shows at
	// the first press.
	if !strings.HasPrefix(token, "xoxb-") {
		return nil, errors.New("--slack-token-file must hold the bot token, which begins with xoxb-: it is the Bot User OAuth Token on the app's page OAuth & Permissions")
	}
	if strings.HasPrefix(secret, "xox") || strings.HasPrefix(secret, "xapp-") {
		return nil, errors.New("--slack-signing-secret-file holds a token: give the Signing Secret, on the app's page Basic Information")
	}
	address, err := slackURL(c.SlackAPIURL)
	if err != nil {
		return nil, fmt.Errorf("--slack-api-url %w", err)
	}
	return notify.NewSlack(notify.SlackConfig{Token: ledger.NewSecret(token), SigningSecret: ledger.NewSecret(secret), URL: address}), nil
}

// slackURL returns the normal form of an address of Slack's API, with a slash at its end. The token is
// sent there, so it must use https, except on loopback.
func slackURL(address string) (string, error) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
		return "", errors.New("must be a URL such as " + notify.SlackURL + ", without a user or a query")
	}
	if !sso.Guarded(address) {
		return "", errors.New("must use https, because the token is sent there; only an address on loopback may use http")
	}
	return strings.TrimSuffix(u.String(), "/") + "/", nil
}

// visibleASCII reports whether a text can be sent in a header.
func visibleASCII(text string) bool {
	for i := range len(text) {
		if text[i] <= ' ' || text[i] > '~' {
			return false
		}
	}
	return true
}
