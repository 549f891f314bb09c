package cli

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

	"countersign/internal/fault"
	"countersign/internal/ledger"
)

// Remote is the flags of every command that uses the API: which server, and which key.
type Remote struct {
	URL     string `name:"url" help:"URL of the Countersign server." default:"http://127.0.0.1:8080" env:"COUNTERSIGN_URL"`
	KeyFile string `help:"File that holds the API key; the default is the variable COUNTERSIGN_API_KEY." type:"path" placeholder:"FILE"`
}

const (
	keyVariable    = "COUNTERSIGN_API_KEY"
	requestTimeout = 30 * time.Second
	maxAnswer      = 64 << 20 // a page of approvals, each with its payload
)

// Client is a client of a server's API with one key.
type Client struct {
	Base string
	key  ledger.Secret
	http *http.Client
}

// Connect reads the key and returns a client. The key is never a flag, since other users
// can read command lines.
func (r *Remote) Connect(p *Process) (*Client, error) {
	base, err := ParseBaseURL("--url", r.URL)
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
		return nil, errors.New("an API key is needed: set the variable " + keyVariable + ", or name a file that holds it with --key-file")
	}
	if _, err := ledger.ParseAPIKey(strings.TrimSpace(text)); err != nil {
		return nil, fmt.Errorf("the API key is not complete: %w", err)
	}
	if exposed(base) {
		p.Notef("Warning: the API key is sent unencrypted to another machine; use https.")
	}
	return NewClient(base, ledger.NewSecret(strings.TrimSpace(text))), nil
}

// transport is shared by all clients of a process, and by nobody else: a test that closes a server of
// its own closes the connections of the default one.
var transport = http.DefaultTransport.(*http.Transport).Clone()

// NewClient returns a client with a key, or without one for the zero Secret.
func NewClient(base string, key ledger.Secret) *Client {
	return &Client{Base: base, key: key, http: &http.Client{
		Timeout:   requestTimeout,
		Transport: transport,
		// A redirect is not followed: the key is for this server only.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// exposed reports whether requests to a server cross the network unencrypted.
func exposed(base string) bool {
	u, err := url.Parse(base)
	if err != nil || u.Scheme == "https" || u.Hostname() == "localhost" {
		return false
	}
	address, err := netip.ParseAddr(u.Hostname())
	return err != nil || !address.Unmap().IsLoopback()
}

// APIError is an error answer of a server, an RFC 9457 problem. Without a code, it is the answer of
// something else.
type APIError struct {
	Status int                `json:"status"`
	Detail string             `json:"detail"`
	Code   fault.Code         `json:"code"`
	Errors []fault.FieldError `json:"errors"`
}

// Error also names the faulty members. The detail refers to a member of the answer that a reader does not
// see.
func (e *APIError) Error() string {
	text := e.Detail
	if end := strings.LastIndexAny(text, ";:"); end >= 0 && strings.HasSuffix(text, " named in errors") {
		text = text[:end]
	}
	separator := ": "
	for _, field := range e.Errors {
		text += separator + field.Pointer + " " + field.Detail
		separator = "; "
	}
	return text
}

// RawBody is a request body that is sent as it is; any other body is sent as JSON.
type RawBody struct {
	ContentType string
	Data        []byte
}

// Call makes a request and decodes its JSON answer into into.
func (c *Client) Call(ctx context.Context, method, path string, body, into any) error {
	request, err := c.request(ctx, method, path, body)
	if err != nil {
		return err
	}
	return c.decode(request, into)
}

func (c *Client) decode(request *http.Request, into any) error {
	data, err := c.do(request)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return c.UnexpectedAnswer()
	}
	return nil
}

// CallOnce is Call for a POST request with an idempotency key: repeating it has no further effect.
func (c *Client) CallOnce(ctx context.Context, key, path string, body, into any) error {
	request, err := c.request(ctx, http.MethodPost, path, body)
	if err != nil {
		return err
	}
	request.Header.Set("Idempotency-Key", key)
	return c.decode(request, into)
}

// UnexpectedAnswer returns the error for an answer that a countersign server does not
// give.
func (c *Client) UnexpectedAnswer() error {
	return Inconclusive(fmt.Errorf("the server at %s does not answer like a countersign server: check --url", c.Base))
}

// Send makes a request and returns the body of its answer. Its errors name only the
// server, since a path may hold an id.
func (c *Client) Send(ctx context.Context, method, path string, body any) ([]byte, error) {
	request, err := c.request(ctx, method, path, body)
	if err != nil {
		return nil, err
	}
	return c.do(request)
}

func (c *Client) do(request *http.Request) ([]byte, error) {
	response, err := c.http.Do(request)
	if err != nil {
		return nil, Inconclusive(fmt.Errorf("the server at %s cannot be reached: %w; check that it is running, and --url", c.Base, WithoutURL(err)))
	}
	defer response.Body.Close()
	data, err := ReadAnswer(response, maxAnswer)
	if err != nil {
		return nil, Inconclusive(fmt.Errorf("the answer of the server at %s is incomplete or too long: try again", c.Base))
	}
	if response.StatusCode < 200 || response.StatusCode > 299 {
		return nil, c.refused(response, data)
	}
	return data, nil
}

// ReadAnswer reads the body of an answer, up to a limit in bytes. The body of an answer that switches
// protocols is the connection, which no timeout of the request ends, so nothing is read of it.
func ReadAnswer(response *http.Response, limit int64) ([]byte, error) {
	if response.StatusCode == http.StatusSwitchingProtocols {
		return nil, nil
	}
	return ReadBounded(response.Body, limit)
}

func (c *Client) request(ctx context.Context, method, path string, body any) (*http.Request, error) {
	var content io.Reader = http.NoBody
	kind := "application/json"
	if raw, ok := body.(RawBody); ok {
		kind, content = raw.ContentType, bytes.NewReader(raw.Data)
	} else if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(data)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.Base+path, content)
	if err != nil {
		return nil, Inconclusive(errors.New("--url cannot be used as the address of a server"))
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

func (c *Client) refused(response *http.Response, data []byte) error {
	var problem APIError
	if err := json.Unmarshal(data, &problem); err != nil || problem.Code == "" {
		return Inconclusive(&APIError{
			Status: response.StatusCode,
			Detail: fmt.Sprintf("the server at %s answered %s, but not like a countersign server: check --url", c.Base, response.Status),
		})
	}
	problem.Status = response.StatusCode
	switch problem.Code {
	case fault.CodeNotFound, fault.CodeInvalid: // a word on the command line names nothing, or is none
		return Inconclusive(&problem)
	}
	return &problem
}

// WithoutURL removes the request's URL from an error of the HTTP client.
func WithoutURL(err error) error {
	var outer *url.Error
	if errors.As(err, &outer) {
		return outer.Err
	}
	return err
}
