package cli

import (
	"errors"
	"fmt"

	"countersign/internal/ledger"
	"countersign/internal/notify"
)

// SlackFlags are the flags that name the server's Slack app.
type SlackFlags struct {
	SlackTokenFile         string `name:"slack-token-file" help:"File that holds the bot token of a Slack app, for approvals in Slack; off by default." type:"path" placeholder:"FILE"`
	SlackSigningSecretFile string `name:"slack-signing-secret-file" help:"File that holds the signing secret of the Slack app." type:"path" placeholder:"FILE"`
	SlackAPIURL            string `name:"slack-api-url" help:"Address of Slack's API, for a proxy of your own; https, or loopback." default:"https://slack.com/api/" placeholder:"URL"`
}

// Slack returns the Slack app, or nil if none is configured.
func (c *SlackFlags) Slack() (*notify.Slack, error) {
	if c.SlackTokenFile == "" && c.SlackSigningSecretFile == "" {
		return nil, nil
	}
	if c.SlackTokenFile == "" || c.SlackSigningSecretFile == "" {
		return nil, errors.New("--slack-token-file and --slack-signing-secret-file must be given together: one is for sending to Slack, the other for believing it")
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
	address, err := notify.CheckSlackURL(c.SlackAPIURL)
	if err != nil {
		return nil, fmt.Errorf("--slack-api-url %w", err)
	}
	return notify.NewSlack(notify.SlackConfig{Token: ledger.NewSecret(token), SigningSecret: ledger.NewSecret(secret), URL: address}), nil
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
