package main

import (
	"errors"
	"fmt"
	"os"

	"countersign/internal/anchor"
	"countersign/internal/ledger"
	"countersign/internal/worker"
)

// anchorFlags say how decisions and receipts are anchored in time.
type anchorFlags struct {
	TSAURL         string   `name:"tsa-url" help:"RFC 3161 timestamp authority that anchors decisions and receipts; none without one." placeholder:"URL"`
	TSARoots       string   `name:"tsa-roots" help:"PEM file of the certificates by which the authority's tokens are judged." type:"path" placeholder:"FILE"`
	TSAPolicy      string   `name:"tsa-policy" help:"Policy to ask the authority for; its own without one." placeholder:"OID"`
	OTSCalendars   []string `name:"ots-calendars" help:"OpenTimestamps calendars, at most eight; none without any." placeholder:"URL"`
	BitcoinHeaders string   `name:"bitcoin-headers" help:"Where Bitcoin's block headers come from: rpc+http://USER:PASSWORD@HOST:PORT, rpc+http://HOST:PORT?cookie=FILE, esplora+https://HOST/PATH or file:PATH; without a source proofs stay pending." placeholder:"SOURCE"`
}

// anchoring is how anchors are made and judged.
type anchoring struct {
	worker.Anchoring
	methods  []string // by which anchors are made
	verifier anchor.Verifier
}

// read checks the flags and reaches no network. Its errors repeat no address: one
// may hold a password.
func (f *anchorFlags) read() (how anchoring, err error) {
	var roots []byte
	if f.TSARoots != "" {
		if roots, how.verifier.Trust, err = f.roots(); err != nil {
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
		return how, errors.New("--tsa-policy says what to ask an authority for: name it with --tsa-url")
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
		return how, errors.New("--bitcoin-headers is there to verify OpenTimestamps proofs: name calendars with --ots-calendars")
	}
	if how.Bitcoin.Headers, err = anchor.ParseHeaderSource(f.BitcoinHeaders); err != nil {
		return how, fmt.Errorf("--bitcoin-headers: %w", err)
	}
	return how, nil
}

const maxRoots = 1 << 20

// roots reads the certificates by which tokens are judged, also those of an authority
// that is not asked any more.
func (f *anchorFlags) roots() ([]byte, *anchor.Trust, error) {
	file, err := os.Open(f.TSARoots)
	if err != nil {
		return nil, nil, fmt.Errorf("--tsa-roots: %w", err)
	}
	defer file.Close()
	roots, err := readBounded(file, maxRoots)
	if err != nil {
		return nil, nil, fmt.Errorf("--tsa-roots: %s: %w", f.TSARoots, err)
	}
	trust, err := anchor.ParseTrust(roots)
	if err != nil {
		return nil, nil, fmt.Errorf("--tsa-roots: %w", err)
	}
	return roots, trust, nil
}

func (f *anchorFlags) authority(roots []byte) (*anchor.Authority, error) {
	if roots == nil {
		return nil, errors.New("--tsa-url needs --tsa-roots: a token is worth what the certificates say by which it is judged")
	}
	authority, err := anchor.NewAuthority(anchor.AuthorityConfig{URL: f.TSAURL, Roots: roots, Policy: f.TSAPolicy})
	if err != nil {
		return nil, fmt.Errorf("--tsa-url, --tsa-roots, --tsa-policy: %w", err)
	}
	return authority, nil
}
