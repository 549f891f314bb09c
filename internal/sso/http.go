package sso

import (
	"fmt"
	"io"
	"net/http"
	"time"
)

const (
	maxAnswer = 1 << 20 // bytes
	maxHeader = 64 << 10
)

// newHTTPClient follows no redirect: the client's secret and people's tokens are for the addresses of
// the discovery document only.
func newHTTPClient(timeout time.Duration) *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxResponseHeaderBytes = maxHeader
	return &http.Client{
		Transport: boundedTransport{transport}, Timeout: timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// boundedTransport bounds answers. It turns a status that says failure into an error, because the
// libraries above would put the whole answer into theirs; only the answer to a code has a body that
// says why.
type boundedTransport struct{ next http.RoundTripper }

func (t boundedTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	if !guarded(request.URL) {
		return nil, fmt.Errorf("%s is not https", request.URL.Redacted())
	}
	response, err := t.next.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	status := response.StatusCode
	if status >= 300 && status < 400 || status != http.StatusOK && request.Method == http.MethodGet {
		_ = response.Body.Close()
		if status < 400 {
			return nil, fmt.Errorf("it answered %d: redirects are not followed", status)
		}
		return nil, fmt.Errorf("it answered %d", status)
	}
	response.Body = &boundedBody{response.Body, maxAnswer}
	return response, nil
}

type boundedBody struct {
	io.ReadCloser
	left int
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf("the answer is longer than %d bytes", maxAnswer)
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}
