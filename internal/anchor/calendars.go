package anchor

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

const maxCalendars = 8

// CalendarsConfig configures the OpenTimestamps calendars.
type CalendarsConfig struct {
	URLs    []string      // the addresses that the calendars put into their answers, not that of a pool
	Needed  int           // how many must answer; 0: one
	Timeout time.Duration // of one request; 0: ten seconds
}

// Calendars are OpenTimestamps servers, which aggregate digests into Bitcoin. It is safe for
// concurrent use.
type Calendars struct {
	addresses []*url.URL
	needed    int
	client    *http.Client
}

// NewCalendars checks the configuration. It does not use the network.
func NewCalendars(config CalendarsConfig) (*Calendars, error) {
	needed := max(config.Needed, 1)
	if len(config.URLs) < needed || len(config.URLs) > maxCalendars {
		return nil, fmt.Errorf("opentimestamps: give %d to %d calendars", needed, maxCalendars)
	}
	calendars := &Calendars{needed: needed, client: newClient(config.Timeout)}
	for _, text := range config.URLs {
		address, err := parseAddress(strings.TrimRight(text, "/"))
		if err != nil {
			return nil, fmt.Errorf("opentimestamps calendar: %w", err)
		}
		if !isCalendarURI([]byte(address.String())) {
			return nil, errors.New("opentimestamps calendar: the address must have no user, query or escapes")
		}
		calendars.addresses = append(calendars.addresses, address)
	}
	return calendars, nil
}

// Stamp submits the digest to every calendar and returns the pending proof once enough of them have
// promised to have it confirmed. They see only a hash of the digest and the nonce, so none can tell
// what was stamped. The nonce must be unpredictable.
func (c *Calendars) Stamp(ctx context.Context, digest [32]byte, nonce [16]byte) ([]byte, error) {
	root, commitment, err := commit(digest, nonce)
	if err != nil {
		return nil, faultf(Malformed, "write the proof: %w", err)
	}
	answers := make([]*node, len(c.addresses))
	faults := make([]error, len(c.addresses))
	var asking sync.WaitGroup
	for i, address := range c.addresses {
		asking.Go(func() { answers[i], faults[i] = c.submit(ctx, address, commitment.message) })
	}
	asking.Wait()
	promised := 0
	for _, answer := range answers {
		if answer != nil {
			commitment.merge(answer)
			promised++
		}
	}
	if promised < c.needed {
		return nil, faultf(Unavailable, "%d of %d calendars answered, %d are needed: %w", promised, len(c.addresses), c.needed, errors.Join(faults...))
	}
	return encodeProof(&proof{digest: digest, root: root})
}

// commit builds the path from a digest to what is submitted to the calendars.
func commit(digest [32]byte, nonce [16]byte) (root, commitment *node, err error) {
	root = &node{message: digest[:]}
	commitment = root
	for _, step := range []operation{{opAppend, nonce[:]}, {tag: opSHA256}} {
		message, err := step.apply(commitment.message)
		if err != nil {
			return nil, nil, err
		}
		next := &node{message: message}
		commitment.branches = []branch{{step, next}}
		commitment = next
	}
	return root, commitment, nil
}

func encodeProof(made *proof) ([]byte, error) {
	data, err := made.encode()
	if err != nil {
		return nil, faultf(Malformed, "write the proof: %w", err)
	}
	return data, nil
}

// submit returns a calendar's promise about a message. A promise of a calendar that is not
// configured does not count, because it could never be redeemed.
func (c *Calendars) submit(ctx context.Context, calendar *url.URL, message []byte) (*node, error) {
	answer, err := c.ask(ctx, http.MethodPost, calendar.JoinPath("digest"), message)
	if err != nil {
		return nil, err
	}
	if answer.status != http.StatusOK {
		return nil, statusFault(calendar.Host, answer.status)
	}
	made, err := parseTimestamp(message, answer.body)
	if err != nil {
		return nil, faultf(Malformed, "read the answer of %s: %w", calendar.Host, err)
	}
	if len(c.promises(made)) != 1 {
		return nil, faultf(Untrusted, "%s does not promise for one configured calendar: configure the address of the calendar itself, not that of a pool", calendar.Host)
	}
	if made.confirmed() {
		return nil, faultf(Untrusted, "%s names a block for what it has only just received", calendar.Host)
	}
	made.dropUnknown() // other implementations refuse proofs with unknown operations
	return made, nil
}

// promise is a node that a configured calendar has promised to have confirmed.
type promise struct {
	at       *node
	calendar *url.URL
}

func (c *Calendars) promises(root *node) []promise {
	var found []promise
	for at := range root.all() {
		for _, attested := range at.attestations {
			if calendar := c.configured(attested.calendar); calendar != nil {
				found = append(found, promise{at, calendar})
			}
		}
	}
	return found
}

// configured returns the calendar with the address in an attestation. Requests go to the configured
// address, so a proof cannot redirect them.
func (c *Calendars) configured(uri string) *url.URL {
	found := slices.IndexFunc(c.addresses, func(address *url.URL) bool {
		return uri != "" && address.String() == strings.TrimRight(uri, "/")
	})
	if found < 0 {
		return nil
	}
	return c.addresses[found]
}

// Upgrade asks the configured calendars of a pending proof for the rest of the path to a block. It
// returns the proof, extended if changed is true. It is not an error if a calendar has nothing yet.
// It is an error if one could not be asked, unless another one extended the proof.
func (c *Calendars) Upgrade(ctx context.Context, kept []byte) (upgraded []byte, changed bool, err error) {
	parsed, err := parseProof(kept)
	if err != nil {
		return nil, false, faultf(Malformed, "read the proof: %w", err)
	}
	var faults []error
	promises := c.promises(parsed.root)
	for _, made := range promises[:min(len(promises), maxCalendars)] {
		if made.at.confirmed() {
			continue
		}
		rest, err := c.redeem(ctx, made)
		if err != nil {
			faults = append(faults, err)
		}
		if rest != nil && made.at.merge(rest) {
			changed = true
		}
	}
	if changed {
		upgraded, err = encodeProof(parsed)
		return upgraded, err == nil, err
	}
	if len(faults) > 0 {
		return kept, false, faultf(ReasonOf(faults[0]), "upgrade the proof: %w", errors.Join(faults...))
	}
	return kept, false, nil
}

// redeem returns nil if the calendar has nothing yet.
func (c *Calendars) redeem(ctx context.Context, made promise) (*node, error) {
	address := made.calendar.JoinPath("timestamp", hex.EncodeToString(made.at.message))
	answer, err := c.ask(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	switch answer.status {
	case http.StatusOK:
	case http.StatusNotFound:
		return nil, nil
	default:
		return nil, statusFault(made.calendar.Host, answer.status)
	}
	rest, err := parseTimestamp(made.at.message, answer.body)
	if err != nil {
		return nil, faultf(Malformed, "read the answer of %s: %w", made.calendar.Host, err)
	}
	switch blocks := rest.blocks(); {
	case blocks == 0:
		return nil, nil
	case blocks > maxAnswerBlocks:
		return nil, faultf(Malformed, "%s names %d blocks, and not at most %d", made.calendar.Host, blocks, maxAnswerBlocks)
	}
	rest.prune()
	return rest, nil
}

func (c *Calendars) ask(ctx context.Context, method string, address *url.URL, body []byte) (answer, error) {
	request, err := http.NewRequestWithContext(ctx, method, address.String(), bytes.NewReader(body))
	if err != nil {
		return answer{}, faultf(Malformed, "ask %s: %w", address.Host, withoutAddress(err))
	}
	request.Header.Set("Accept", "application/vnd.opentimestamps.v1")
	if body != nil {
		request.Header.Set("Content-Type", "application/octet-stream")
	}
	return send(c.client, request, maxAnswerBytes)
}
