package anchor

import (
	"bytes"
	"context"
	encoding "encoding/asn1"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"golang.org/x/crypto/cryptobyte"
	"golang.org/x/crypto/cryptobyte/asn1"
)

// AuthorityConfig configures a timestamp authority and how to verify it.
type AuthorityConfig struct {
	URL     string        // https://HOST/PATH; a user and password are sent as basic authentication
	Roots   []byte        // PEM, see ParseTrust
	Policy  string        // object identifier of the requested policy; empty: the authority's default
	Timeout time.Duration // of one request; 0: ten seconds
}

// Authority is an RFC 3161 timestamp authority. It is safe for concurrent use.
type Authority struct {
	address *url.URL
	trust   *Trust
	policy  encoding.ObjectIdentifier
	client  *http.Client
}

// NewAuthority checks the configuration. It does not use the network.
func NewAuthority(config AuthorityConfig) (*Authority, error) {
	address, err := parseAddress(config.URL)
	if err != nil {
		return nil, fmt.Errorf("timestamp authority: %w", err)
	}
	trust, err := ParseTrust(config.Roots)
	if err != nil {
		return nil, fmt.Errorf("timestamp authority: %w", err)
	}
	policy, err := parsePolicy(config.Policy)
	if err != nil {
		return nil, fmt.Errorf("timestamp authority: %w", err)
	}
	return &Authority{address: address, trust: trust, policy: policy, client: newClient(config.Timeout)}, nil
}

func parsePolicy(text string) (encoding.ObjectIdentifier, error) {
	if text == "" {
		return nil, nil
	}
	var policy encoding.ObjectIdentifier
	for part := range strings.SplitSeq(text, ".") {
		number, err := strconv.ParseUint(part, 10, 31)
		if err != nil {
			return nil, errors.New("the policy is not an object identifier such as 1.3.6.1")
		}
		policy = append(policy, int(number))
	}
	if _, err := encoding.Marshal(policy); err != nil {
		return nil, errors.New("the policy is not an object identifier such as 1.3.6.1")
	}
	return policy, nil
}

// Stamp requests a token over the digest and returns it if VerifyToken accepts it with the nonce
// and the configured roots. The nonce must be unpredictable and not 0.
func (a *Authority) Stamp(ctx context.Context, digest [32]byte, nonce uint64) ([]byte, error) {
	if nonce == 0 {
		return nil, faultf(Malformed, "a request for a timestamp needs a nonce other than 0")
	}
	reply, err := a.ask(ctx, digest, nonce)
	if err != nil {
		return nil, err
	}
	token, err := parseReply(reply)
	if err != nil {
		return nil, err
	}
	stamped, err := VerifyToken(token, digest, a.trust, nonce)
	if err != nil {
		return nil, err
	}
	if a.policy != nil && stamped.Policy != a.policy.String() {
		return nil, faultf(Untrusted, "the authority used policy %s instead of the configured one", stamped.Policy)
	}
	return token, nil
}

// Verify verifies a stored token with the authority's roots.
func (a *Authority) Verify(token []byte, digest [32]byte) (Stamped, error) {
	return VerifyToken(token, digest, a.trust, 0)
}

func (a *Authority) ask(ctx context.Context, digest [32]byte, nonce uint64) ([]byte, error) {
	query, err := marshalQuery(digest, a.policy, nonce)
	if err != nil {
		return nil, faultf(Malformed, "write the request for a timestamp: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, a.address.String(), bytes.NewReader(query))
	if err != nil {
		return nil, faultf(Malformed, "write the request for a timestamp: %w", withoutAddress(err))
	}
	request.Header.Set("Content-Type", "application/timestamp-query")
	request.Header.Set("Accept", "application/timestamp-reply")
	reply, err := send(a.client, request, maxTokenBytes)
	if err != nil {
		return nil, err
	}
	// Some authorities answer "created".
	if reply.status != http.StatusOK && reply.status != http.StatusCreated {
		return nil, statusFault(a.address.Host, reply.status)
	}
	if kind, _, _ := mime.ParseMediaType(reply.contentType); kind != "application/timestamp-reply" {
		return nil, faultf(Unavailable, "%s did not answer with a timestamp: check the address", a.address.Host)
	}
	return reply.body, nil
}

// marshalQuery encodes a TimeStampReq (RFC 3161, 2.4.1).
func marshalQuery(digest [32]byte, policy encoding.ObjectIdentifier, nonce uint64) ([]byte, error) {
	var query cryptobyte.Builder
	query.AddASN1(asn1.SEQUENCE, func(body *cryptobyte.Builder) {
		body.AddASN1Int64(1)
		body.AddASN1(asn1.SEQUENCE, func(imprint *cryptobyte.Builder) {
			imprint.AddASN1(asn1.SEQUENCE, func(algorithm *cryptobyte.Builder) {
				algorithm.AddASN1ObjectIdentifier(oidSHA256)
				algorithm.AddASN1NULL()
			})
			imprint.AddASN1OctetString(digest[:])
		})
		if policy != nil {
			body.AddASN1ObjectIdentifier(policy)
		}
		body.AddASN1Uint64(nonce)
		body.AddASN1Boolean(true) // certReq: the token must include its certificate
	})
	return query.Bytes()
}

// parseReply returns the token of a TimeStampResp (RFC 3161, 2.4.2).
func parseReply(reply []byte) ([]byte, error) {
	input := cryptobyte.String(reply)
	var body, status, token cryptobyte.String
	var code int
	if !input.ReadASN1(&body, asn1.SEQUENCE) || !input.Empty() ||
		!body.ReadASN1(&status, asn1.SEQUENCE) || !status.ReadASN1Integer(&code) {
		return nil, faultf(Malformed, "the authority's answer is not a timestamp response")
	}
	if code != 0 && code != 1 { // granted, granted with changes
		return nil, faultf(Refused, "the authority refused with status %d%s", code, refusalText(status))
	}
	if !body.ReadASN1Element(&token, asn1.SEQUENCE) || !body.Empty() {
		return nil, faultf(Malformed, "the authority's answer contains no token")
	}
	return token, nil
}

// refusalText returns the first text of an authority's refusal, shortened.
func refusalText(status cryptobyte.String) string {
	const longest = 200
	var texts, text cryptobyte.String
	if !status.ReadOptionalASN1(&texts, nil, asn1.SEQUENCE) || !texts.ReadASN1(&text, asn1.UTF8String) {
		return ""
	}
	return fmt.Sprintf(": %q", text[:min(len(text), longest)])
}
