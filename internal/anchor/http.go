package anchor

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"time"
)

const (
	defaultTimeout = 10 * time.Second
	maxRedirects   = 3
	maxAddress     = 2048
)

// transport is shared, so that connections to one host are reused.
var transport = func() *http.Transport {
	shared := http.DefaultTransport.(*http.Transport).Clone()
	shared.MaxResponseHeaderBytes = 64 << 10
	return shared
}()

func newClient(timeout time.Duration) *http.Client {
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	return &http.Client{Timeout: timeout, Transport: transport, CheckRedirect: stayOnHost}
}

// stayOnHost keeps redirects from sending requests, and their credentials, to another host than the
// operator configured.
func stayOnHost(request *http.Request, via []*http.Request) error {
	first := via[0].URL
	if request.URL.Scheme != first.Scheme || request.URL.Host != first.Host {
		return errors.New("it redirects to another host; configure that address if it is meant")
	}
	if len(via) > maxRedirects {
		return errors.New("it redirects too often")
	}
	return nil
}

// parseAddress does not include the address in its errors, because it may contain a password.
func parseAddress(text string) (*url.URL, error) {
	address, err := url.Parse(text)
	if err != nil || len(text) > maxAddress || address.Host == "" || address.Fragment != "" ||
		(address.Scheme != "http" && address.Scheme != "https") {
		return nil, errors.New("the address is not one of the form https://HOST/PATH")
	}
	return address, nil
}

type answer struct {
	status      int
	contentType string
	body        []byte
}

// send makes a request and reads an answer of at most limit bytes, whatever its status is.
func send(client *http.Client, request *http.Request, limit int64) (answer, error) {
	host := request.URL.Host
	response, err := client.Do(request)
	if err != nil {
		return answer{}, faultf(Unavailable, "ask %s: %w", host, withoutAddress(err))
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusSwitchingProtocols {
		// No timeout would end the reading: net/http leaves such a connection to its caller.
		return answer{}, statusFault(host, response.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, limit+1))
	if err != nil {
		return answer{}, faultf(Unavailable, "read the answer of %s: %w", host, withoutAddress(err))
	}
	if int64(len(body)) > limit {
		return answer{}, faultf(Malformed, "the answer of %s is longer than %d bytes", host, limit)
	}
	return answer{response.StatusCode, response.Header.Get("Content-Type"), body}, nil
}

// withoutAddress unwraps the error in which net/http quotes the whole address.
func withoutAddress(err error) error {
	var layer *url.Error
	if errors.As(err, &layer) {
		return layer.Err
	}
	return err
}

// statusFault returns the error for an unsuccessful status. A client error will happen again if the
// request is repeated, except for a rate limit or a timeout.
func statusFault(host string, status int) *Error {
	reason := Unavailable
	if status >= 400 && status < 500 && status != http.StatusTooManyRequests && status != http.StatusRequestTimeout {
		reason = Refused
	}
	return faultf(reason, "%s answered with HTTP status %d", host, status)
}
