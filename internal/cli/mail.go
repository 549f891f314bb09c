package cli

import (
	"countersign/internal/notify"
	"errors"
)

// MailFlags are the flags that name the mail server.
type MailFlags struct {
	SMTPURL     string `name:"smtp-url" help:"Mail server for notifications, smtp://USER:PASSWORD@HOST?from=ADDRESS; other users can read command lines, so prefer the variable or --smtp-url-file." placeholder:"URL"`
	SMTPURLFile string `name:"smtp-url-file" help:"File that holds the mail server's address." type:"path" placeholder:"FILE"`
}

// Mailer returns the mail server, or nil if none is configured.
func (c *MailFlags) Mailer() (*notify.Mailer, error) {
	address := c.SMTPURL
	if c.SMTPURLFile != "" {
		if address != "" {
			return nil, errors.New("--smtp-url and --smtp-url-file exclude each other: give one of them")
		}
		var err error
		if address, err = readSecret("--smtp-url-file", c.SMTPURLFile); err != nil {
			return nil, err
		}
	}
	if address == "" {
		return nil, nil
	}
	return notify.ParseSMTP(address)
}
