package notify

import (
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"countersign/internal/ledger"
)

const testMessage = "msg_0001"

func receiver(t *testing.T, handle http.HandlerFunc) *httptest.Server {
	t.Helper()
	server := unstarted(t, handle)
	server.Start()
	return server
}

func tlsReceiver(t *testing.T, handle http.HandlerFunc) *httptest.Server {
	t.Helper()
	server := unstarted(t, handle)
	server.StartTLS()
	return server
}

// unstarted discards the server's error log, because some tests cause errors on purpose.
func unstarted(t *testing.T, handle http.HandlerFunc) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(handle)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	t.Cleanup(server.Close)
	return server
}

func local(t *testing.T) *Webhooks {
	t.Helper()
	w := NewWebhooks(Options{AllowPrivate: true})
	t.Cleanup(w.Close)
	return w
}

func endpoint(url string) Endpoint {
	return Endpoint{URL: url, Secrets: []ledger.Secret{testSecret(1)}}
}

func encoded(t *testing.T) []byte {
	t.Helper()
	body, err := fullNotice().Encode()
	if err != nil {
		t.Fatal(err)
	}
	return body
}

type delivery struct {
	header http.Header
	body   []byte
}

// deliverOnce delivers over a real socket and returns what arrived.
func deliverOnce(t *testing.T, secrets ...ledger.Secret) delivery {
	t.Helper()
	arrived := make(chan delivery, 1)
	server := receiver(t, func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		arrived <- delivery{r.Header.Clone(), body}
	})
	// The verifier uses the real clock.
	to := Endpoint{URL: server.URL + "/hooks?team=a", Secrets: secrets}
	if _, err := local(t).Deliver(t.Context(), to, testMessage, time.Now(), encoded(t)); err != nil {
		t.Fatal(err)
	}
	return <-arrived
}

func verify(t *testing.T, secret ledger.Secret, d delivery) error {
	t.Helper()
	verifier, err := standardwebhooks.NewWebhook(secret.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	return verifier.Verify(d.body, d.header)
}

// Another implementation of the standard verifies a webhook's signature, only with the right
// secret.
func TestAnotherImplementationVerifiesTheSignature(t *testing.T) {
	t.Parallel()
	got := deliverOnce(t, testSecret(1))
	if err := verify(t, testSecret(1), got); err != nil {
		t.Error(err)
	}
	if string(got.body) != string(encoded(t)) || got.header.Get("Content-Type") != "application/json" ||
		got.header.Get("webhook-id") != testMessage {
		t.Errorf("arrived as %s %v", got.body, got.header)
	}
	if err := verify(t, testSecret(2), got); !errors.Is(err, standardwebhooks.ErrNoMatchingSignature) {
		t.Error("another secret:", err)
	}
}

// Changing a webhook's body, id or timestamp invalidates its signature.
func TestTamperingBreaksTheSignature(t *testing.T) {
	t.Parallel()
	for name, tamper := range map[string]func(*delivery){
		"body":      func(d *delivery) { d.body[len(d.body)/2] ^= 1 },
		"shorter":   func(d *delivery) { d.body = d.body[1:] },
		"id":        func(d *delivery) { d.header.Set("webhook-id", "msg_0002") },
		"timestamp": func(d *delivery) { d.header.Set("webhook-timestamp", "1") },
		"signature": func(d *delivery) { d.header.Set("webhook-signature", "v1,AAAA") },
	} {
		got := deliverOnce(t, testSecret(1))
		tamper(&got)
		if err := verify(t, testSecret(1), got); err == nil {
			t.Errorf("a changed %s was not noticed", name)
		}
	}
}

// During a rotation a webhook is signed with both secrets.
func TestBothSecretsSignDuringRotation(t *testing.T) {
	t.Parallel()
	got := deliverOnce(t, testSecret(1), testSecret(2))
	for _, b := range []byte{1, 2} {
		if err := verify(t, testSecret(b), got); err != nil {
			t.Error(b, err)
		}
	}
}

// A 2xx status ends a delivery, 410 ends the webhook, and any other status is retried after the
// time that it names.
func TestAnswersAreJudged(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status     int
		retryAfter string
		ok         bool
		permanent  bool
		wait       time.Duration
	}{
		{status: 200, ok: true},
		{status: 204, ok: true},
		{status: 302},
		{status: 307},
		{status: 400},
		{status: 401},
		{status: 404},
		{status: 408},
		{status: 409},
		{status: 410, permanent: true},
		{status: 425},
		{status: 429, retryAfter: "120", wait: 2 * time.Minute},
		{status: 429, retryAfter: noon.Add(time.Hour).Format(http.TimeFormat), wait: time.Hour},
		{status: 429, retryAfter: "99999999", wait: 24 * time.Hour},
		{status: 429, retryAfter: noon.AddDate(9, 0, 0).Format(http.TimeFormat), wait: 24 * time.Hour},
		{status: 429, retryAfter: noon.Add(-time.Hour).Format(http.TimeFormat)},
		{status: 429, retryAfter: "-5"},
		{status: 429, retryAfter: "99999999999999999999"},
		{status: 429, retryAfter: "soon"},
		{status: 429},
		{status: 500},
		{status: 503, retryAfter: "1", wait: time.Second},
		{status: 599},
	} {
		server := receiver(t, func(w http.ResponseWriter, _ *http.Request) {
			if c.retryAfter != "" {
				w.Header().Set("Retry-After", c.retryAfter)
			}
			w.WriteHeader(c.status)
		})
		_, err := local(t).Deliver(t.Context(), endpoint(server.URL), testMessage, noon, encoded(t))
		wait, asked := RetryAfter(err)
		if (err == nil) != c.ok || Permanent(err) != c.permanent || EndpointGone(err) != c.permanent ||
			wait != c.wait || asked != (c.wait > 0) {
			t.Errorf("%d, Retry-After %q: %v, permanent %v, gone %v, wait %v %v",
				c.status, c.retryAfter, err, Permanent(err), EndpointGone(err), wait, asked)
		}
	}
}

// A delivery that is retried keeps its message id.
func TestAReceiverThatRecoversGetsTheSameMessage(t *testing.T) {
	t.Parallel()
	var ids []string
	server := receiver(t, func(w http.ResponseWriter, r *http.Request) {
		ids = append(ids, r.Header.Get("webhook-id"))
		if len(ids) == 1 {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	w := local(t)
	if _, err := w.Deliver(t.Context(), endpoint(server.URL), testMessage, noon, encoded(t)); err == nil || Permanent(err) {
		t.Error("first attempt:", err)
	}
	if _, err := w.Deliver(t.Context(), endpoint(server.URL), testMessage, noon, encoded(t)); err != nil {
		t.Error("second attempt:", err)
	}
	if len(ids) != 2 || ids[0] != ids[1] {
		t.Error("ids:", ids)
	}
}

// A webhook follows no redirect.
func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	var visits atomic.Int64
	inner := receiver(t, func(http.ResponseWriter, *http.Request) { visits.Add(1) })
	for _, location := range []string{inner.URL, "", "://"} {
		server := receiver(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", location)
			w.WriteHeader(http.StatusTemporaryRedirect)
		})
		_, err := local(t).Deliver(t.Context(), endpoint(server.URL), testMessage, noon, encoded(t))
		if err == nil || !strings.Contains(err.Error(), "307") {
			t.Errorf("location %q: %v", location, err)
		}
	}
	if visits.Load() != 0 {
		t.Error("the redirect was followed")
	}
}
