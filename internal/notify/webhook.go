package notify

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

const (
	webhookTimeout = 15 * time.Second // for the whole attempt

	maxAnswer       = 4 << 10 // bytes of an answer that are read and discarded
	maxAnswerHeader = 16 << 10

	maxRetryAfter = 24 * time.Hour
)

// Options configure webhooks.
type Options struct {
	// AllowPrivate permits plain http, and private and loopback addresses. It is for receivers next
	// to the service, if strangers cannot configure endpoints.
	AllowPrivate bool
	// Timeout bounds a whole attempt. It is optional; the default is 15 seconds.
	Timeout time.Duration
}

// Webhooks delivers to HTTP endpoints. It is safe for concurrent use, follows no redirects and uses
// no proxy.
type Webhooks struct {
	transport    *http.Transport // used without an http.Client, which would follow redirects
	allowPrivate bool
	timeout      time.Duration
}

// NewWebhooks returns a Webhooks that trusts the system's certificate authorities.
func NewWebhooks(options Options) *Webhooks {
	return newWebhooks(newDialer(options.AllowPrivate), nil, cmp.Or(options.Timeout, webhookTimeout))
}

func newWebhooks(d *dialer, roots *x509.CertPool, timeout time.Duration) *Webhooks {
	return &Webhooks{transport: &http.Transport{
		DialContext:            d.dial,
		TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    connectTimeout,
		MaxResponseHeaderBytes: maxAnswerHeader,
		MaxIdleConns:           16,
		MaxIdleConnsPerHost:    1,
		IdleConnTimeout:        30 * time.Second,
		DisableCompression:     true,
	}, allowPrivate: d.allowPrivate, timeout: timeout}
}

// Close closes idle connections.
func (w *Webhooks) Close() { w.transport.CloseIdleConnections() }

// Deliver makes one attempt to deliver body, an encoded notice, to the endpoint. Any 2xx status is
// success. The message id stays the same for all attempts. at is the time of this attempt, because
// receivers refuse old signatures. It returns the HTTP status, or 0 if there was no answer.
func (w *Webhooks) Deliver(ctx context.Context, to Endpoint, messageID string, at time.Time, body []byte) (status int, err error) {
	timed, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	request, err := w.request(timed, to, messageID, at, body)
	if err != nil {
		return 0, permanent(err)
	}
	response, err := w.transport.RoundTrip(request)
	if err != nil {
		return 0, unreachable(ctx, "the receiver", err, "broke the connection, or answered what is not HTTP")
	}
	defer response.Body.Close()
	// Reading a short answer to its end lets the connection be reused. Errors do not matter,
	// because the status is already known. After a switch of protocols, which nobody asked for,
	// no timeout would end the reading.
	if response.StatusCode != http.StatusSwitchingProtocols {
		_, _ = io.CopyN(io.Discard, response.Body, maxAnswer)
	}
	return response.StatusCode, judge(response, at)
}

func (w *Webhooks) request(
	ctx context.Context, to Endpoint, messageID string, at time.Time, body []byte,
) (*http.Request, error) {
	if err := CheckURL(to.URL, w.allowPrivate); err != nil {
		return nil, fmt.Errorf("the webhook's URL %w", err)
	}
	if err := checkMessageID(messageID); err != nil {
		return nil, err
	}
	if len(body) > maxBody {
		return nil, fmt.Errorf("a webhook's body must have at most %d bytes", maxBody)
	}
	signed, err := signatures(to.Secrets, messageID, at, body)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, to.URL, bytes.NewReader(body))
	if err != nil {
		return nil, errors.New("the webhook's URL cannot be requested")
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", "countersign-webhooks")
	request.Header.Set("webhook-id", messageID)
	request.Header.Set("webhook-timestamp", strconv.FormatInt(at.Unix(), 10))
	request.Header.Set("webhook-signature", signed)
	return request, nil
}

// judge follows Standard Webhooks: 410 is final, any other status that is not 2xx is retried. A 404
// or a 401 is often a failed deployment, and dropping the events in the meantime would be worse
// than a few useless requests.
func judge(response *http.Response, at time.Time) error {
	status := response.StatusCode
	switch {
	case status >= 200 && status < 300:
		return nil
	case status >= 300 && status < 400:
		return &failure{class: ClassRedirect, text: fmt.Sprintf(
			"the receiver answered %d: redirects are not followed, so give the webhook the URL they lead to", status)}
	case status == http.StatusGone:
		return &failure{class: ClassGone, text: "the receiver answered 410: it wants no more webhooks", permanent: true}
	}
	return &failure{
		class:      ClassStatus,
		text:       fmt.Sprintf("the receiver answered %d", status),
		retryAfter: parseRetryAfter(response.Header.Get("Retry-After"), at),
	}
}

// parseRetryAfter parses seconds or a date. It returns zero for anything else.
func parseRetryAfter(text string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return min(time.Duration(seconds)*time.Second, maxRetryAfter)
	}
	if date, err := http.ParseTime(text); err == nil {
		return min(max(date.Sub(now), 0), maxRetryAfter)
	}
	return 0
}
