package notify

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"countersign/internal/ledger"
)

// The answer of a receiver is read up to a limit.
func TestAnEndlessAnswerIsCutOff(t *testing.T) {
	t.Parallel()
	cut := make(chan bool, 1)
	server := receiver(t, func(w http.ResponseWriter, _ *http.Request) {
		chunk := make([]byte, 1<<20)
		for range 256 {
			if _, err := w.Write(chunk); err != nil {
				cut <- true
				return
			}
		}
		cut <- false
	})
	if _, err := local(t).Deliver(t.Context(), endpoint(server.URL), testMessage, noon, encoded(t)); err != nil {
		t.Error(err)
	}
	if !<-cut {
		t.Error("the whole answer was read")
	}
}

// A receiver that answers with very long headers fails, and the error contains none of them.
func TestEndlessHeadersAreCutOff(t *testing.T) {
	t.Parallel()
	server := receiver(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Long", strings.Repeat("x", 1<<20))
	})
	_, err := local(t).Deliver(t.Context(), endpoint(server.URL), testMessage, noon, encoded(t))
	if err == nil || Permanent(err) || strings.Contains(err.Error(), "xx") {
		t.Errorf("%.200v", err)
	}
}

// A receiver that hangs causes a timeout that is retried and reported as silence.
func TestAHangingReceiverTimesOut(t *testing.T) {
	t.Parallel()
	server := receiver(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // the server notices a lost client only after that
		<-r.Context().Done()
	})
	w := newWebhooks(newDialer(true), nil, 50*time.Millisecond)
	t.Cleanup(w.Close)
	_, err := w.Deliver(t.Context(), endpoint(server.URL), testMessage, noon, encoded(t))
	if err == nil || Permanent(err) || !TimedOut(err) || !strings.Contains(err.Error(), "in time") || errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	given, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.Deliver(given, endpoint(server.URL), testMessage, noon, encoded(t)); err == nil || TimedOut(err) {
		t.Errorf("given up by the caller: %v", err)
	}
}

// The rest of an answer is not awaited beyond the timeout of the attempt. On a busy machine that
// can expire before the status arrives.
func TestAnAnswerThatNeverEndsHoldsUpNobody(t *testing.T) {
	t.Parallel()
	server := receiver(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusAccepted)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	w := newWebhooks(newDialer(true), nil, 50*time.Millisecond)
	t.Cleanup(w.Close)
	_, err := w.Deliver(t.Context(), endpoint(server.URL), testMessage, noon, encoded(t))
	if err != nil && !strings.Contains(err.Error(), "in time") {
		t.Error(err)
	}
}

// A receiver that switches protocols, which nobody asked for, does not hold up the delivery: net/http
// leaves such a connection to its caller, beyond every timeout.
func TestASwitchOfProtocolsHoldsUpNobody(t *testing.T) {
	t.Parallel()
	server := receiver(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute)) // far beyond the timeout of the attempt
		_, _ = conn.Read(make([]byte, 1))
	})
	w := newWebhooks(newDialer(true), nil, time.Second)
	t.Cleanup(w.Close)
	began := time.Now()
	status, err := w.Deliver(t.Context(), endpoint(server.URL), testMessage, noon, encoded(t))
	if status != http.StatusSwitchingProtocols || err == nil || Permanent(err) || ClassOf(err) != ClassStatus {
		t.Errorf("%d, %v", status, err)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("it took %s, far beyond the timeout", took)
	}
}

// A delivery ends when its caller gives up.
func TestACallerCanGiveUp(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	server := receiver(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		cancel()
		<-r.Context().Done()
	})
	_, err := local(t).Deliver(ctx, endpoint(server.URL), testMessage, noon, encoded(t))
	if !errors.Is(err, context.Canceled) || Permanent(err) {
		t.Error(err)
	}
}

// public pretends that example.com, which the test certificate is for, has public addresses:
// connections to them end at the server.
func public(server *httptest.Server, roots *x509.CertPool, lists ...[]string) *Webhooks {
	connect := func(ctx context.Context, network, address string) (net.Conn, error) {
		if addr := netip.MustParseAddrPort(address); !isPublic(addr.Addr()) {
			return nil, errors.New("connected to a private address")
		}
		return (&net.Dialer{}).DialContext(ctx, network, server.Listener.Addr().String())
	}
	return newWebhooks(&dialer{resolve: answers(lists...), connect: connect}, roots, webhookTimeout)
}

func trusting(server *httptest.Server) *x509.CertPool {
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	return roots
}

// A name that resolves to a private address on a later delivery is then refused.
func TestARebindingNameIsRefused(t *testing.T) {
	t.Parallel()
	var visits atomic.Int64
	server := tlsReceiver(t, func(w http.ResponseWriter, _ *http.Request) {
		visits.Add(1)
		w.Header().Set("Connection", "close") // makes the next delivery resolve the name again
	})
	w := public(server, trusting(server), []string{"8.8.8.8"}, []string{"127.0.0.1"})
	t.Cleanup(w.Close)
	if _, err := w.Deliver(t.Context(), endpoint("https://example.com/hooks"), testMessage, noon, encoded(t)); err != nil {
		t.Error("public:", err)
	}
	_, err := w.Deliver(t.Context(), endpoint("https://example.com/hooks"), testMessage, noon, encoded(t))
	if err == nil || !strings.Contains(err.Error(), "private or reserved") || Permanent(err) {
		t.Error("rebound:", err)
	}
	if visits.Load() != 1 {
		t.Errorf("%d visits, want 1", visits.Load())
	}
}

// A webhook is delivered only with TLS 1.2 or later, to a host with a trusted certificate for its
// name.
func TestTLSIsChecked(t *testing.T) {
	t.Parallel()
	current := tlsReceiver(t, func(http.ResponseWriter, *http.Request) {})
	old := unstarted(t, func(http.ResponseWriter, *http.Request) {})
	old.TLS = &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}
	old.StartTLS()
	plain := receiver(t, func(http.ResponseWriter, *http.Request) {})

	for name, c := range map[string]struct {
		server *httptest.Server
		roots  *x509.CertPool
		url    string
		want   string
	}{
		"trusted":         {current, trusting(current), "https://example.com/", ""},
		"another name":    {current, trusting(current), "https://example.org/", "certificate"},
		"unknown issuer":  {current, nil, "https://example.com/", "certificate"},
		"TLS 1.1":         {old, trusting(old), "https://example.com/", "TLS 1.2"},
		"no TLS":          {plain, trusting(current), "https://example.com/", "TLS 1.2"},
		"plain is a rule": {plain, trusting(current), "http://example.com/", "https://"},
	} {
		w := public(c.server, c.roots, []string{"8.8.8.8"})
		_, err := w.Deliver(t.Context(), endpoint(c.url), testMessage, noon, encoded(t))
		w.Close()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// A delivery with an invalid id, body, URL or secret fails permanently, and nothing is sent.
func TestDeliverRefusesWhatNoRetryMends(t *testing.T) {
	t.Parallel()
	var visits atomic.Int64
	server := receiver(t, func(http.ResponseWriter, *http.Request) { visits.Add(1) })
	good := endpoint(server.URL)
	short := ledger.NewSecret("whsec_c2hvcnQ=")
	for name, c := range map[string]struct {
		to      Endpoint
		message string
		body    []byte
	}{
		"an id with a line break": {good, "msg\r\nX: y", nil},
		"an empty id":             {good, "", nil},
		"a long body":             {good, testMessage, make([]byte, maxBody+1)},
		"a bad URL":               {endpoint("gopher://127.0.0.1/"), testMessage, nil},
		"no secret":               {Endpoint{URL: server.URL}, testMessage, nil},
		"a short secret":          {Endpoint{URL: server.URL, Secrets: []ledger.Secret{short}}, testMessage, nil},
		"a bare secret":           {Endpoint{URL: server.URL, Secrets: []ledger.Secret{ledger.NewSecret("x")}}, testMessage, nil},
		"many secrets":            {Endpoint{URL: server.URL, Secrets: make([]ledger.Secret, 5)}, testMessage, nil},
	} {
		_, err := local(t).Deliver(t.Context(), c.to, c.message, noon, c.body)
		if !Permanent(err) || EndpointGone(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	strict := NewWebhooks(Options{})
	if _, err := strict.Deliver(t.Context(), good, testMessage, noon, nil); !Permanent(err) {
		t.Error("a private URL:", err)
	}
	if visits.Load() != 0 {
		t.Error("something was sent all the same")
	}
}

// However a delivery fails, its error contains neither what was sent nor what was answered.
func TestWebhookErrorsKeepSecrets(t *testing.T) {
	t.Parallel()
	const planted = "planted"
	tlsServer := tlsReceiver(t, func(http.ResponseWriter, *http.Request) {})
	closed := receiver(t, func(http.ResponseWriter, *http.Request) {})
	closed.Close()
	urls := []string{
		closed.URL, tlsServer.URL,
		strings.Replace(tlsServer.URL, "https", "http", 1),
		receiver(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "https://example.com/"+planted)
			w.WriteHeader(http.StatusFound)
		}).URL,
		receiver(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, planted, http.StatusTeapot) }).URL,
		receiver(t, func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_, _ = io.WriteString(conn, planted+" is no HTTP\r\n\r\n")
				_ = conn.Close()
			}
		}).URL,
		"https://" + planted + ".invalid:x",
		"http://[" + planted + "]",
	}
	signed, err := signatures([]ledger.Secret{testSecret(1)}, testMessage, noon, encoded(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, url := range urls {
		to := endpoint(url + "/" + planted + "?key=" + planted)
		_, err := local(t).Deliver(t.Context(), to, testMessage, noon, encoded(t))
		if err == nil {
			t.Errorf("%s: no error", url)
			continue
		}
		for _, secret := range []string{planted, testSecret(1).Reveal(), signed, testMessage, "approval-1"} {
			if strings.Contains(err.Error(), secret) {
				t.Errorf("%s: %q holds %q", url, err, secret)
			}
		}
	}
}
