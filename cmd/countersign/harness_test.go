package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"countersign/internal/servicetest"
)

// deadline bounds every wait of these tests. It is long because the machine may
// be busy, and costs nothing when it is not.
const deadline = 60 * time.Second

// result is a command that has ended.
type result struct {
	code     int
	out, err string
}

// execute runs a command to its end.
func execute(t *testing.T, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	var out, errOutput servicetest.Buffer
	code := run(ctx, args, strings.NewReader(""), &out, &errOutput)
	return result{code, out.String(), errOutput.String()}
}

// succeed is execute for a command that must not fail.
func succeed(t *testing.T, args ...string) string {
	t.Helper()
	r := execute(t, args...)
	if r.code != 0 {
		t.Fatalf("countersign %s: exit status %d\n%s%s", strings.Join(args, " "), r.code, r.out, r.err)
	}
	return r.out
}

// refuse is execute for a command that must fail, saying certain words.
func refuse(t *testing.T, code int, says string, args ...string) result {
	t.Helper()
	r := execute(t, args...)
	if r.code != code || !strings.Contains(r.out+r.err, says) {
		t.Fatalf("countersign %s: exit status %d, want %d and %q in\n%s%s", strings.Join(args, " "), r.code, code, says, r.out, r.err)
	}
	return r
}

// program is a command, mostly a server, that runs in this process.
type program struct {
	out, log servicetest.Buffer
	address  string
	end      context.CancelFunc
	ended    chan int
}

var addressPattern = regexp.MustCompile(`"msg":"serving","address":"([^"]+)"`)

// secretPattern is what has no business in any log line.
var secretPattern = regexp.MustCompile(`(?i)c(sk|sl|ss|vt)_[0-9a-z]{8}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{64}|sha256:`)

// start serves on a free port until the test ends or stop is called.
//
//countersign:replica
func start(t *testing.T, args ...string) *program {
	t.Helper()
	p := begin(t, append([]string{"serve", "--listen", "127.0.0.1:0", "--log-level", "debug"}, args...)...)
	servicetest.Eventually(t, "the server serves", func() bool {
		select {
		case code := <-p.ended:
			p.ended <- code
			t.Fatalf("the server ended with status %d\n%s", code, p.log.String())
		default:
		}
		found := addressPattern.FindStringSubmatch(p.log.String())
		if found != nil {
			p.address = found[1]
		}
		return found != nil
	})
	return p
}

// begin runs a command until the test ends or stop is called.
//
//countersign:host it runs the program that the test talks to
func begin(t *testing.T, args ...string) *program {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := &program{end: cancel, ended: make(chan int, 1)}
	go func() { p.ended <- run(ctx, args, strings.NewReader(""), &p.out, &p.log) }()
	t.Cleanup(func() {
		cancel()
		<-p.ended
		if leak := secretPattern.FindString(p.log.String()); leak != "" {
			t.Errorf("the log shows what must never be logged: %s", leak)
		}
		if t.Failed() {
			const enough = 10_000
			log := p.log.String()
			t.Logf("the log of %s ends with\n%s", args[0], log[max(0, len(log)-enough):])
		}
	})
	return p
}

// stop ends the server as a signal would and returns its exit status.
func (p *program) stop(t *testing.T) int {
	t.Helper()
	p.end()
	select {
	case code := <-p.ended:
		p.ended <- code // for the clean-up
		return code
	case <-time.After(deadline):
		t.Fatalf("the server does not stop\n%s", p.log.String())
		return -1
	}
}

var keyPattern = regexp.MustCompile(`csk_[0-9A-Za-z]+`)

// client speaks to a server with one API key.
type client struct {
	base, key string
	http      *http.Client
	header    http.Header
}

// admin is a client with the key that a first start announced.
func (p *program) admin(t *testing.T) *client {
	t.Helper()
	key := keyPattern.FindString(p.out.String())
	if key == "" {
		t.Fatalf("no key was announced:\n%s", p.out.String())
	}
	return p.client(key)
}

func (p *program) client(key string) *client {
	return &client{base: p.address, key: strings.TrimSpace(key), http: servicetest.Client}
}

// send makes a request and returns status and body.
func (c *client) send(ctx context.Context, method, path, body string) (int, []byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if c.header != nil {
		request.Header = c.header.Clone()
	}
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	if c.key != "" {
		request.Header.Set("Authorization", "Bearer "+c.key)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	return response.StatusCode, data, err
}

// status makes a request for its status alone.
func (c *client) status(t *testing.T, method, path, body string) int {
	t.Helper()
	status, _, err := c.send(t.Context(), method, path, body)
	if err != nil {
		t.Fatal(err)
	}
	return status
}

// call makes a request that must succeed and reads its answer.
func (c *client) call(t *testing.T, method, path, body string, into any) {
	t.Helper()
	status, data, err := c.send(t.Context(), method, path, body)
	if err != nil {
		t.Fatal(err)
	}
	if status >= 300 {
		t.Fatalf("%s %s: status %d: %s", method, path, status, data)
	}
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatalf("%s %s: %v in %s", method, path, err, data)
	}
}

type receiptAnswer struct {
	ReceiptID string `json:"receipt_id"`
	Receipt   struct {
		KeyID  string `json:"key_id"`
		Number string `json:"receipt_number"`
	} `json:"receipt"`
}

const anAction = `{"agent_name":"clerk","action_type":"tool_call","action_name":"look_up","payload":{"n":1}}`

// seal opens a chain, records an action and completes it.
func (c *client) seal(t *testing.T) receiptAnswer {
	t.Helper()
	var chain struct{ ID string }
	c.call(t, http.MethodPost, "/v1/chains", `{"name":"test"}`, &chain)
	c.call(t, http.MethodPost, "/v1/chains/"+chain.ID+"/events", anAction, &struct{}{})
	var sealed receiptAnswer
	c.call(t, http.MethodPost, "/v1/chains/"+chain.ID+"/complete", "", &sealed)
	if sealed.ReceiptID == "" || sealed.Receipt.KeyID == "" {
		t.Fatalf("completing answered no receipt: %+v", sealed)
	}
	return sealed
}

// valid asks the public check.
func (c *client) valid(t *testing.T, receipt string) bool {
	t.Helper()
	var check struct{ Valid bool }
	c.call(t, http.MethodGet, "/v1/receipts/"+receipt+"/verify", "", &check)
	return check.Valid
}

// decode reads the JSON that a command printed.
func decode[T any](t *testing.T, text string) (value T) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return value
}
