package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"countersign/internal/notify"
	"countersign/internal/pricing"
)

// mailFlags name the mail server.
type mailFlags struct {
	SMTPURL     string `name:"smtp-url" help:"Mail server for notices, smtp://USER:PASSWORD@HOST?from=ADDRESS; on a command line others can read it, so better use the variable or --smtp-url-file." placeholder:"URL"`
	SMTPURLFile string `name:"smtp-url-file" help:"File that holds the mail server's address." type:"path" placeholder:"FILE"`
}

// mailer reads the mail server's address; nil without one.
func (c *mailFlags) mailer() (*notify.Mailer, error) {
	address := c.SMTPURL
	if c.SMTPURLFile != "" {
		if address != "" {
			return nil, errors.New("--smtp-url and --smtp-url-file say the same: give one of them")
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

// prices reads the operator's table; nil without one.
func (c *serveCommand) prices() (*pricing.Table, error) {
	if c.Prices == "" {
		return nil, nil
	}
	file, err := os.Open(c.Prices)
	if err != nil {
		return nil, fmt.Errorf("--prices: %w", err)
	}
	defer file.Close()
	data, err := readBounded(file, maxPrices)
	if err != nil {
		return nil, fmt.Errorf("--prices: %s: %w", c.Prices, err)
	}
	table, err := pricing.Parse(data)
	if err != nil {
		return nil, fmt.Errorf("--prices: %s: %w", c.Prices, err)
	}
	return table, nil
}

const (
	maxPrices = 1 << 20
	maxSecret = 16 << 10
)

// readSecret reads a file that holds one secret, and refuses one that every user
// can read. Its group may: that is how secrets are handed to services.
func readSecret(flag, path string) (string, error) {
	// Without O_NONBLOCK a named pipe would hold us until someone writes to it.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) //nolint:gosec // the operator names the file
	if err != nil {
		return "", fmt.Errorf("%s: %w", flag, err)
	}
	defer file.Close()
	info, err := file.Stat()
	switch {
	case err != nil:
		return "", fmt.Errorf("%s: %w", flag, err)
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("%s: %s is not a file", flag, path)
	case info.Mode().Perm()&0o007 != 0:
		return "", fmt.Errorf("%s: %s is open to every user (mode %04o): run chmod 600 %s", flag, path, info.Mode().Perm(), path)
	}
	data, err := readBounded(file, maxSecret)
	if err != nil {
		return "", fmt.Errorf("%s: %s: %w", flag, path, err)
	}
	text := strings.TrimSpace(string(data))
	if text == "" {
		return "", fmt.Errorf("%s: %s is empty", flag, path)
	}
	return text, nil
}

// readBounded reads all of a file that must not be longer than it may.
func readBounded(r io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("it is longer than %d bytes", limit)
	}
	return data, nil
}
