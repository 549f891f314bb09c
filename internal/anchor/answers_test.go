package anchor_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/digitorus/timestamp"

	"countersign/internal/anchor"
)

// Any dishonest answer of a timestamp authority is refused with its reason, and the error contains
// no credentials.
func TestAuthorityAnswers(t *testing.T) {
	t.Parallel()
	const reply = "application/timestamp-reply"
	root := newIdentity(t, certificate{name: "Root", authority: true}, nil)
	signer := newIdentity(t, signerCertificate(), root)
	refusal, err := timestamp.CreateErrorResponse(timestamp.Rejection, timestamp.BadAlgorithm)
	if err != nil {
		t.Fatal(err)
	}
	answer := func(status int, contentType string, body []byte) http.HandlerFunc {
		return func(writer http.ResponseWriter, _ *http.Request) {
			writer.Header().Set("Content-Type", contentType)
			writer.WriteHeader(status)
			_, _ = writer.Write(body)
		}
	}
	honest := func(writer http.ResponseWriter, request *http.Request) {
		writer.Header().Set("Content-Type", reply+"; charset=binary")
		_, _ = writer.Write(signer.answer(t, request.Body, nil))
	}
	forgetful := func(writer http.ResponseWriter, request *http.Request) {
		writer.Header().Set("Content-Type", reply)
		_, _ = writer.Write(signer.answer(t, request.Body, func(stamp *timestamp.Timestamp) { stamp.Nonce = nil }))
	}
	redirect := func(to string) http.HandlerFunc {
		return func(writer http.ResponseWriter, request *http.Request) {
			if request.URL.Path == "/again" {
				honest(writer, request)
				return
			}
			http.Redirect(writer, request, to, http.StatusTemporaryRedirect)
		}
	}
	elsewhere := httptest.NewServer(http.HandlerFunc(honest))
	t.Cleanup(elsewhere.Close)
	tests := map[string]struct {
		handler http.HandlerFunc
		policy  string
		want    anchor.Reason
	}{
		"honest":                         {honest, "", ""},
		"redirect on the host":           {redirect("/again"), "", ""},
		"redirect to another host":       {redirect(elsewhere.URL), "", anchor.Unavailable},
		"redirect without end":           {redirect("/round"), "", anchor.Unavailable},
		"no nonce":                       {forgetful, "", anchor.WrongNonce},
		"another policy":                 {honest, "1.2.3.9", anchor.Untrusted},
		"refused":                        {answer(200, reply, refusal), "", anchor.Refused},
		"a page":                         {answer(200, "text/html", []byte("<p>hello")), "", anchor.Unavailable},
		"no content type":                {answer(200, "", refusal), "", anchor.Unavailable},
		"not found":                      {answer(404, reply, nil), "", anchor.Refused},
		"forbidden":                      {answer(403, reply, nil), "", anchor.Refused},
		"too many requests":              {answer(429, reply, nil), "", anchor.Unavailable},
		"broken":                         {answer(500, reply, nil), "", anchor.Unavailable},
		"empty":                          {answer(200, reply, nil), "", anchor.Malformed},
		"granted without a token":        {answer(200, reply, []byte{0x30, 5, 0x30, 3, 2, 1, 0}), "", anchor.Malformed},
		"granted with something instead": {answer(200, reply, []byte{0x30, 7, 0x30, 3, 2, 1, 0, 0x30, 0}), "", anchor.Malformed},
		"endless":                        {answer(200, reply, make([]byte, 65<<10)), "", anchor.Malformed},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(test.handler)
			t.Cleanup(server.Close)
			address := strings.Replace(server.URL, "http://", "http://user:hush@", 1) + "/tsa?key=hush"
			authority := newAuthority(t, anchor.AuthorityConfig{URL: address, Roots: root.pem(), Policy: test.policy})
			token, err := authority.Stamp(t.Context(), digestOf(name), nonce)
			if got := anchor.ReasonOf(err); got != test.want || (err == nil) != (token != nil) {
				t.Fatalf("got the reason %q (%v), want %q", got, err, test.want)
			}
			if err != nil && strings.Contains(err.Error(), "hush") {
				t.Errorf("the error gives a secret away: %v", err)
			}
		})
	}
}

// An authority that is unreachable, hangs, switches protocols or is given up on is reported as
// unavailable within the timeout.
func TestAuthorityOutOfReach(t *testing.T) {
	t.Parallel()
	root := newIdentity(t, certificate{name: "Root", authority: true}, nil)
	hanging := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) {
		_, _ = io.Copy(io.Discard, request.Body) // otherwise the server does not notice that the client has left
		<-request.Context().Done()
	}))
	t.Cleanup(hanging.Close)
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()

	switching := httptest.NewServer(http.HandlerFunc(func(writer http.ResponseWriter, request *http.Request) {
		_, _ = io.Copy(io.Discard, request.Body)
		conn, _, err := http.NewResponseController(writer).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute)) // far beyond the timeout of the request
		_, _ = conn.Read(make([]byte, 1))
	}))
	t.Cleanup(switching.Close)
	began := time.Now()

	for name, url := range map[string]string{"gone": gone.URL, "hanging": hanging.URL, "switching protocols": switching.URL} {
		authority := newAuthority(t, anchor.AuthorityConfig{URL: url, Roots: root.pem(), Timeout: 50 * time.Millisecond})
		if _, err := authority.Stamp(t.Context(), digestOf(name), nonce); anchor.ReasonOf(err) != anchor.Unavailable {
			t.Errorf("%s: got %v, want it unavailable", name, err)
		}
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("it took %s, far beyond the timeouts", took)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	authority := newAuthority(t, anchor.AuthorityConfig{URL: hanging.URL, Roots: root.pem()})
	if _, err := authority.Stamp(ended, digestOf("ended"), nonce); anchor.ReasonOf(err) != anchor.Unavailable || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want it unavailable and cancelled", err)
	}
	if _, err := authority.Stamp(t.Context(), digestOf("no nonce"), 0); anchor.ReasonOf(err) != anchor.Malformed {
		t.Errorf("a nonce of 0: got %v, want it refused", err)
	}
}

// An authority without a usable address, root certificate or policy is refused, and the error
// contains no credentials.
func TestAuthorityConfig(t *testing.T) {
	t.Parallel()
	root := newIdentity(t, certificate{name: "Root", authority: true}, nil)
	signer := newIdentity(t, signerCertificate(), root)
	good := anchor.AuthorityConfig{URL: "https://tsa.example", Roots: root.pem(), Policy: "1.2.3"}
	newAuthority(t, good)
	tests := map[string]func(config *anchor.AuthorityConfig){
		"no address":       func(c *anchor.AuthorityConfig) { c.URL = "" },
		"another scheme":   func(c *anchor.AuthorityConfig) { c.URL = "ftp://user:hush@tsa.example" },
		"no host":          func(c *anchor.AuthorityConfig) { c.URL = "https:///hush" },
		"not an address":   func(c *anchor.AuthorityConfig) { c.URL = "https://user:hush@tsa example" },
		"a long address":   func(c *anchor.AuthorityConfig) { c.URL += "/" + strings.Repeat("x", 4000) },
		"no roots":         func(c *anchor.AuthorityConfig) { c.Roots = nil },
		"only a signer":    func(c *anchor.AuthorityConfig) { c.Roots = signer.pem() },
		"a key":            func(c *anchor.AuthorityConfig) { c.Roots = []byte("-----BEGIN KEY-----\n-----END KEY-----\n") },
		"a broken root":    func(c *anchor.AuthorityConfig) { c.Roots = bytes.Replace(root.pem(), []byte("M"), []byte("N"), 1) },
		"far too long":     func(c *anchor.AuthorityConfig) { c.Roots = make([]byte, 2<<20) },
		"too many":         func(c *anchor.AuthorityConfig) { c.Roots = bytes.Repeat(root.pem(), 600) },
		"a named policy":   func(c *anchor.AuthorityConfig) { c.Policy = "strict" },
		"half a policy":    func(c *anchor.AuthorityConfig) { c.Policy = "1." },
		"an unreal policy": func(c *anchor.AuthorityConfig) { c.Policy = "7.99" },
	}
	for name, spoil := range tests {
		config := good
		spoil(&config)
		if _, err := anchor.NewAuthority(config); err == nil || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: got %v, want a refusal that gives nothing away", name, err)
		}
	}
}
