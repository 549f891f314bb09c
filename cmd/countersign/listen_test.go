package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"countersign/internal/cli"
	"countersign/internal/servicetest"
)

// writeCertificate makes a certificate for 127.0.0.1 and returns a pool that
// trusts it.
func writeCertificate(t *testing.T, certFile, keyFile string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "countersign test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	encoded := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})
	writeFile(t, certFile, encoded)
	writeFile(t, keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(encoded)
	return pool
}

func writeFile(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// secureClient trusts one pool and keeps no connection, so that each request
// sees the certificate of the moment.
func secureClient(pool *x509.CertPool, config *tls.Config) *http.Client {
	config.RootCAs = pool
	return &http.Client{Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true, DisableKeepAlives: true}}
}

// The server speaks HTTP/2 over TLS 1.2 or newer, and picks up a renewed certificate
// without a restart.
func TestTLS(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	certFile, keyFile := filepath.Join(folder, "cert.pem"), filepath.Join(folder, "key.pem")
	pool := writeCertificate(t, certFile, keyFile)
	server := start(t, newSQLite(t).args("--tls-cert", certFile, "--tls-key", keyFile)...)
	if !strings.HasPrefix(server.address, "https://") || !strings.Contains(server.out.String(), server.address+"/sign-in#") {
		t.Fatalf("the server is at %s", server.address)
	}
	get := func(client *http.Client) (status, protocol int, err error) {
		response, err := client.Get(server.address + "/healthz")
		if err != nil {
			return 0, 0, err
		}
		defer response.Body.Close()
		_, err = io.Copy(io.Discard, response.Body)
		return response.StatusCode, response.ProtoMajor, err
	}
	status, protocol, err := get(secureClient(pool, &tls.Config{}))
	if err != nil {
		t.Fatal(err)
	}
	if status != http.StatusOK || protocol != 2 {
		t.Errorf("answered %d over HTTP/%d, want HTTP/2", status, protocol)
	}
	if _, _, err := get(secureClient(pool, &tls.Config{MaxVersion: tls.VersionTLS11})); err == nil {
		t.Error("TLS 1.1 is accepted")
	}
	renewed := secureClient(writeCertificate(t, certFile, keyFile), &tls.Config{})
	servicetest.Eventually(t, "the renewed certificate is shown", func() bool { _, _, err := get(renewed); return err == nil })
}

// A certificate needs its key, and both are read before a database is made.
func TestTLSNeedsBothFiles(t *testing.T) {
	t.Parallel()
	s := newSQLite(t)
	refuse(t, cli.ExitInconclusive, "must be given together", s.args("serve", "--tls-cert", "cert.pem")...)
	refuse(t, cli.ExitFailed, "TLS certificate", s.args("serve", "--tls-cert", "none.pem", "--tls-key", "none.pem")...)
	if _, err := os.Stat(s.folder + "/countersign.db"); !os.IsNotExist(err) {
		t.Errorf("a database was made before the certificate was read: %v", err)
	}
}

// Plain HTTP on an address beyond the loopback interface is warned of in the log.
//
//countersign:race
func TestPlainHTTPBeyondThisMachineIsWarnedOf(t *testing.T) {
	t.Parallel()
	const warning = "plain HTTP"
	if log := start(t, migratedSQLite(t).flags...).log.String(); strings.Contains(log, warning) {
		t.Errorf("warned of a loopback address: %s", log)
	}
	server := start(t, migratedSQLite(t).args("--listen", "0.0.0.0:0")...)
	if log := server.log.String(); !strings.Contains(log, warning) {
		t.Errorf("not warned: %s", log)
	}
	if !strings.Contains(server.out.String(), "http://localhost:") {
		t.Errorf("the link cannot be followed: %s", regexp.MustCompile(`cs._\w+`).ReplaceAllString(server.out.String(), "<redacted>"))
	}
}

// exhaust makes requests on a public route until they are refused, and returns
// how many were not.
func exhaust(t *testing.T, c *client, most int) int {
	t.Helper()
	for i := range most {
		if c.status(t, http.MethodGet, "/v1/receipts/00000000-0000-4000-8000-000000000000/verify", "") == http.StatusTooManyRequests {
			return i
		}
	}
	return most
}

// The forwarded address counts for rate limits only when a trusted proxy sent it.
//
//countersign:race
func TestTrustedProxies(t *testing.T) {
	t.Parallel()
	const rate, most = "0.01", 10
	forwarded := func(p *program, address string) *client {
		c := p.client("")
		c.header = http.Header{"X-Forwarded-For": {address}}
		return c
	}
	trusting := start(t, migratedSQLite(t).args("--public-rate", rate, "--trusted-proxies", "10.0.0.0/8,127.0.0.0/8")...)
	for _, address := range []string{"192.0.2.1", "192.0.2.2", "192.0.2.1, 10.1.1.1"} {
		want := 1
		if address == "192.0.2.1, 10.1.1.1" {
			want = 0 // the first one again, through one more proxy
		}
		if answered := exhaust(t, forwarded(trusting, address), most); answered != want {
			t.Errorf("%d requests of %s were answered, want %d", answered, address, want)
		}
	}
	wary := start(t, migratedSQLite(t).args("--public-rate", rate)...)
	if answered := exhaust(t, forwarded(wary, "192.0.2.1"), most); answered != 1 {
		t.Errorf("%d requests were answered", answered)
	}
	if answered := exhaust(t, forwarded(wary, "192.0.2.2"), most); answered != 0 {
		t.Errorf("%d more requests were answered to whoever claims another address", answered)
	}
	refuse(t, cli.ExitInconclusive, "10.0.0.0/8", newSQLite(t).args("serve", "--trusted-proxies", "10.0.0.1")...)
}

var metricsPattern = regexp.MustCompile(`"msg":"serving metrics","address":"([^"]+)"`)

// Metrics are served on a listener of their own, count by route and hold no ids.
func TestMetricsListener(t *testing.T) {
	t.Parallel()
	server := start(t, newSQLite(t).args("--metrics-listen", "127.0.0.1:0")...)
	admin := server.admin(t)
	sealed := admin.seal(t)
	admin.valid(t, sealed.ReceiptID)
	found := metricsPattern.FindStringSubmatch(server.log.String())
	if found == nil {
		t.Fatalf("the log names no address: %s", server.log.String())
	}
	figures := &client{base: strings.TrimSuffix(found[1], "/metrics"), http: servicetest.Client}
	status, body, err := figures.send(t.Context(), http.MethodGet, "/metrics", "")
	if err != nil || status != http.StatusOK {
		t.Fatalf("status %d, %v", status, err)
	}
	for _, line := range []string{
		"countersign_receipts_sealed_total 1",
		`countersign_http_requests_total{route="/v1/chains",status="201"} 1`,
		`countersign_http_requests_total{route="/v1/receipts/{receipt_id}/verify",status="200"} 1`,
		"countersign_build_info",
	} {
		if !strings.Contains(string(body), line) {
			t.Errorf("no %s", line)
		}
	}
	if strings.Contains(string(body), sealed.ReceiptID) {
		t.Error("the metrics hold a receipt's id")
	}
	if status := figures.status(t, http.MethodGet, "/v1/organization", ""); status != http.StatusNotFound {
		t.Errorf("the metrics' listener answers the API: %d", status)
	}
	if status := admin.status(t, http.MethodGet, "/metrics", ""); status != http.StatusNotFound {
		t.Errorf("the API's listener answers metrics: %d", status)
	}
}

// Traces reach the collector with spans named by route, without ids, keys or unknown
// paths.
func TestTracesReachTheCollector(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var text strings.Builder
	collecting := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var sent collector.ExportTraceServiceRequest
		if err := proto.Unmarshal(body, &sent); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		text.WriteString(sent.String())
	}))
	t.Cleanup(collecting.Close)
	server := start(t, newSQLite(t).args("--otlp-endpoint", collecting.URL)...)
	admin := server.admin(t)
	sealed := admin.seal(t)
	admin.valid(t, sealed.ReceiptID)
	admin.status(t, http.MethodGet, "/v1//receipts/"+sealed.ReceiptID, "")
	admin.status(t, http.MethodGet, "/nowhere/"+sealed.ReceiptID+"?q="+admin.key, "")
	if code := server.stop(t); code != 0 {
		t.Fatalf("exit status %d", code)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, name := range []string{"POST /v1/chains", "POST /v1/chains/{chain_id}/complete", "GET /v1/receipts/{receipt_id}/verify", "other"} {
		if !strings.Contains(text.String(), `"`+name+`"`) {
			t.Errorf("no span is named %q", name)
		}
	}
	for _, secret := range []string{sealed.ReceiptID, admin.key, "nowhere"} {
		if strings.Contains(text.String(), secret) {
			t.Errorf("the spans hold %q", secret)
		}
	}
}

// A server that shuts down under load keeps every event that it acknowledged.
//
//countersign:race
func TestShutdownUnderLoadLosesNothing(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *testStore) {
		server := start(t, s.flags...)
		admin := server.admin(t)
		var chain struct{ ID string }
		admin.call(t, http.MethodPost, "/v1/chains", `{"name":"load"}`, &chain)
		var acknowledged atomic.Int64
		var workers sync.WaitGroup
		for range 8 {
			workers.Go(func() {
				for {
					status, _, err := admin.send(context.Background(), http.MethodPost, "/v1/chains/"+chain.ID+"/events", anAction)
					if err != nil || status != http.StatusOK {
						return // the server has stopped
					}
					acknowledged.Add(1)
				}
			})
		}
		servicetest.Eventually(t, "the load is on", func() bool { return acknowledged.Load() >= 100 })
		if code := server.stop(t); code != 0 {
			t.Errorf("exit status %d: %s", code, server.log.String())
		}
		workers.Wait()

		var after struct {
			Actions int64 `json:"total_actions"`
		}
		start(t, s.flags...).client(admin.key).call(t, http.MethodGet, "/v1/chains/"+chain.ID, "", &after)
		// An event whose answer was cut off may be stored as well.
		if got := acknowledged.Load(); after.Actions < got || after.Actions > got+8 {
			t.Errorf("%d events were acknowledged, %d are stored", got, after.Actions)
		}
		succeed(t, s.args("audit")...)
	})
}
