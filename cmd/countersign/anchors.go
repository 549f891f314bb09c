package main

import (
	"errors"
	"fmt"

	"countersign/internal/anchor"
	"countersign/internal/cli/operate"
	"countersign/internal/ledger"
	"countersign/internal/worker"
)

// anchorFlags configure how decisions and receipts are anchored in time.
type anchorFlags struct {
	TSAURL         string   `name:"tsa-url" help:"RFC 3161 timestamp authority that anchors decisions and receipts; off by default." placeholder:"URL"`
	TSARoots       string   `name:"tsa-roots" help:"PEM file of the root certificates that the authority's tokens are verified with." type:"path" placeholder:"FILE"`
	TSAPolicy      string   `name:"tsa-policy" help:"Policy to request from the authority; the default is the authority's own." placeholder:"OID"`
	OTSCalendars   []string `name:"ots-calendars" help:"OpenTimestamps calendars, at most eight; off by default." placeholder:"URL"`
	BitcoinHeaders string   `name:"bitcoin-headers" help:"Source of Bitcoin block headers: rpc+http://USER:PASSWORD@HOST:PORT, rpc+http://HOST:PORT?cookie=FILE, esplora+https://HOST/PATH or file:PATH; without a source proofs stay pending." placeholder:"SOURCE"`
}

// anchoring holds what creates and verifies anchors.
type anchoring struct {
	worker.Anchoring
	methods  []string // of the anchors to create
	verifier anchor.Verifier
}

// read parses the flags, without network access. Its errors do not repeat addresses,
// which may hold a password.
func (f *anchorFlags) read() (how anchoring, err error) {
	var roots []byte
	if f.TSARoots != "" {
		if roots, how.verifier.Trust, err = operate.ReadTSARoots(f.TSARoots); err != nil {
			return how, err
		}
	}
	switch {
	case f.TSAURL != "":
		authority, err := f.authority(roots)
		if err != nil {
			return how, err
		}
		how.Authority, how.methods = authority, append(how.methods, ledger.MethodTSA)
	case f.TSAPolicy != "":
		return how, errors.New("--tsa-policy needs an authority: name one with --tsa-url")
	}
	if len(f.OTSCalendars) > 0 {
		calendars, err := anchor.NewCalendars(anchor.CalendarsConfig{URLs: f.OTSCalendars})
		if err != nil {
			return how, fmt.Errorf("--ots-calendars: %w", err)
		}
		how.Calendars, how.methods = calendars, append(how.methods, ledger.MethodOpenTimestamps)
	}
	if f.BitcoinHeaders == "" {
		return how, nil
	}
	if how.Calendars == nil {
		return how, errors.New("--bitcoin-headers is only used for OpenTimestamps proofs: name calendars with --ots-calendars")
	}
	if how.Bitcoin.Headers, err = anchor.ParseHeaderSource(f.BitcoinHeaders); err != nil {
		return how, fmt.Errorf("--bitcoin-headers: %w", err)
	}
	return how, nil
}

func (f *anchorFlags) authority(roots []byte) (*anchor.Authority, error) {
	if roots == nil {
		return nil, errors.New("--tsa-url needs --tsa-roots: tokens cannot be verified without root certificates")
	}
	authority, err := anchor.NewAuthority(anchor.AuthorityConfig{URL: f.TSAURL, Roots: roots, Policy: f.TSAPolicy})
	if err != nil {
		return nil, fmt.Errorf("--tsa-url, --tsa-roots, --tsa-policy: %w", err)
	}
	return authority, nil
}
