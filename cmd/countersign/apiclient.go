package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"countersign/internal/ledger"
)

// remote says which server a command speaks to, and as whom.
type remote struct {
	URL     string `name:"url" help:"Where the server is reached." default:"http://127.0.0.1:8080" env:"COUNTERSIGN_URL"`
	KeyFile string `help:"File that holds the API key; without one, the variable COUNTERSIGN_API_KEY does." type:"path" placeholder:"FILE"`
}

const (
	keyVariable    = "COUNTERSIGN_API_KEY"
	requestTimeout = 30 * time.Second
	maxAnswer      = 64 << 20 // a page of approvals, each with its payload
)

// apiClient speaks to a server's API with one key.
type apiClient struct {
	base string
	key  ledger.Secret
	http *http.Client
}

// connect reads the key. It is never a flag: other users can read those.
func (r *remote) connect(p *process) (*apiClient, error) {
	base, err := parseBase("--url", r.URL)
	if err != nil {
		return nil, err
	}
	text := os.Getenv(keyVariable)
	if r.KeyFile != "" {
		if text, err = readSecret("--key-file", r.KeyFile); err != nil {
			return nil, err
		}
	}
	if text == "" {
		return nil, errors.New("an API key is needed: put it into the variable " + keyVariable + ", or name a file that holds it with --key-file")
	}
	if _, err := ledger.ParseAPIKey(strings.TrimSpace(text)); err != nil {
		return nil, fmt.Errorf("the API key is not complete: %w", err)
	}
	if exposed(base) {
		p.say("Warning: the API key travels unencrypted to another machine; use https.")
	}
	return newAPIClient(base, ledger.NewSecret(strings.TrimSpace(text))), nil
}

// newAPIClient speaks with a key, or with the zero Secret as a stranger.
func newAPIClient(base string, key ledger.Secret) *apiClient {
	return &apiClient{base: base, key: key, http: &http.Client{
		Timeout: requestTimeout,
		// Wherever else it leads, the key is not for there.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// exposed reports whether others can listen on the way to a server.
func exposed(base string) bool {
	u, err := url.Parse(base)
	if err != nil || u.Scheme == "https" || u.Hostname() == "localhost" {
		return false
	}
	address, err := netip.ParseAddr(u.Hostname())
	return err != nil || !address.Unmap().IsLoopback()
}

// remoteError is a server's refusal, as an RFC 9457 problem tells it.
type remoteError struct {
	Status int                 `json:"status"`
	Detail string              `json:"detail"`
	Code   ledger.Code         `json:"code"`
	Errors []ledger.FieldError `json:"errors"`
}

func (e *remoteError) Error() string {
	text := e.Detail
	for _, field := range e.Errors {
		text += fmt.Sprintf("; %s %s", field.Pointer, field.Detail)
	}
	return text
}

// rawBody is sent as it is; every other body is sent as JSON.
type rawBody struct {
	kind string // the Content-Type
	text []byte
}

// call makes one request and reads its answer. Errors name the server by its
// address alone: a path could hold an id.
func (c *apiClient) call(ctx context.Context, method, path string, body, into any) error {
	request, err := c.request(ctx, method, path, body)
	if err != nil {
		return err
	}
	response, err := c.http.Do(request)
	if err != nil {
		return unclear(fmt.Errorf("the server at %s cannot be reached: %w; is it running, and is --url right?", c.base, withoutURL(err)))
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err != nil || len(data) > maxAnswer {
		return unclear(fmt.Errorf("the answer of the server at %s broke off, or is too long: try again", c.base))
	}
	if response.StatusCode < 200 || response.StatusCode > 299 {
		return c.refused(response, data)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return unclear(fmt.Errorf("the server at %s does not answer as countersign does: is --url right?", c.base))
	}
	return nil
}

func (c *apiClient) request(ctx context.Context, method, path string, body any) (*http.Request, error) {
	var content io.Reader = http.NoBody
	kind := "application/json"
	if raw, ok := body.(rawBody); ok {
		kind, content = raw.kind, bytes.NewReader(raw.text)
	} else if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(data)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, content)
	if err != nil {
		return nil, unclear(errors.New("--url cannot be used as the address of a server"))
	}
	if key := c.key.Reveal(); key != "" {
		request.Header.Set("Authorization", "Bearer "+key)
	}
	request.Header.Set("Accept", "application/json")
	if body != nil {
		request.Header.Set("Content-Type", kind)
	}
	return request, nil
}

func (c *apiClient) refused(response *http.Response, data []byte) error {
	var problem remoteError
	if err := json.Unmarshal(data, &problem); err != nil || problem.Code == "" {
		return unclear(fmt.Errorf("the server at %s answered %s, and not as countersign does: is --url right?", c.base, response.Status))
	}
	return &problem
}

// withoutURL drops the request's address from an error of the HTTP client.
func withoutURL(err error) error {
	var outer *url.Error
	if errors.As(err, &outer) {
		return outer.Err
	}
	return err
}
