package main

import (
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"countersign/internal/servicetest"
)

// listener is an endpoint that keeps what it is told, and whether it was signed.
type listener struct {
	*httptest.Server
	secret string

	mu     sync.Mutex
	bodies []string
	forged int
}

func newListener(t *testing.T, admin *client, kinds string) *listener {
	t.Helper()
	l := &listener{}
	l.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		l.mu.Lock()
		defer l.mu.Unlock()
		if verifier, err := standardwebhooks.NewWebhook(l.secret); err != nil || verifier.Verify(body, r.Header) != nil {
			l.forged++
		}
		l.bodies = append(l.bodies, string(body))
	}))
	t.Cleanup(l.Close)
	var created struct{ Secret string }
	admin.call(t, http.MethodPost, "/v1/webhooks", fmt.Sprintf(`{"url":%q,"events":[%s]}`, l.URL, kinds), &created)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.secret = created.Secret
	return l
}

// heard is what has come when nothing more is on its way.
func (l *listener) heard(t *testing.T, s *testStore) []string {
	t.Helper()
	servicetest.Eventually(t, "all is delivered", func() bool { return s.count(t, "jobs WHERE kind IN ('notice', 'webhook', 'email')") == 0 })
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.forged > 0 {
		t.Errorf("%d messages have a wrong signature", l.forged)
	}
	return append([]string(nil), l.bodies...)
}

// count counts rows past the program.
func (s *testStore) count(t *testing.T, of string) (n int) {
	t.Helper()
	db, err := sql.Open(s.Driver, s.Source)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM "+of).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// An edited receipt is reported once by webhook and mail when a member's check finds
// it, and not by public checks. The notice shows no evidence.
//
//countersign:race
func TestTamperingIsTold(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *testStore) {
		box := newMailbox(t)
		address := filepath.Join(t.TempDir(), "smtp-url")
		if err := os.WriteFile(address, []byte(box.address+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		server := start(t, append([]string{"--webhooks-allow-private", "--smtp-url-file", address, "--public-url", "https://console.example"}, s.flags...)...)
		admin := server.admin(t)
		admin.call(t, http.MethodPatch, "/v1/organization", `{"fallback_approvers":["ada@example.com"]}`, &struct{}{})
		l := newListener(t, admin, `"ledger.tamper_found"`)
		var ids []string
		for range 3 {
			ids = append(ids, admin.seal(t).ReceiptID)
		}
		look := func() {
			admin.call(t, http.MethodGet, "/v1/verification/v2/receipts/"+ids[1], "", &struct{}{})
			admin.call(t, http.MethodGet, "/v1/verification/v2/ledger", "", &struct{}{})
		}
		look()
		if heard := l.heard(t, s); len(heard) != 0 {
			t.Errorf("of an untouched ledger is told %q", heard)
		}
		tampering := tamperings["edited"]
		statement := tampering.sqlite
		if s.Kind != "sqlite" {
			statement = tampering.postgres
		}
		s.exec(t, statement)
		for range 3 { // strangers cause no mail
			if admin.valid(t, ids[1]) {
				t.Fatal("the edited receipt is valid")
			}
		}
		if heard := l.heard(t, s); len(heard) != 0 {
			t.Errorf("after public checks is told %q", heard)
		}
		for range 3 {
			look()
		}
		heard := l.heard(t, s)
		if len(heard) != 1 || !strings.Contains(heard[0], `"type":"ledger.tamper_found"`) || !strings.Contains(heard[0], `"status":"signature"`) ||
			!strings.Contains(heard[0], `"link":"https://console.example/receipts/`+ids[1]+`"`) {
			t.Fatalf("told %q", heard)
		}
		if strings.Contains(heard[0], "clark") || strings.Contains(heard[0], "hmac") || strings.Contains(heard[0], "sha256") {
			t.Errorf("the message shows evidence: %s", heard[0])
		}
		if letters := box.text(); strings.Count(letters, "Subject: [default] Tampering found in the ledger") != 1 {
			t.Errorf("the mail is %s", letters)
		}
		if code := server.stop(t); code != 0 {
			t.Errorf("exit status %d", code)
		}
		restarted := start(t, append([]string{"--webhooks-allow-private", "--smtp-url-file", address}, s.flags...)...)
		again := restarted.client(admin.key)
		again.call(t, http.MethodGet, "/v1/verification/v2/receipts/"+ids[1], "", &struct{}{})
		if heard := l.heard(t, s); len(heard) != 1 {
			t.Errorf("after a restart is told %q", heard[1:])
		}
		if code := restarted.stop(t); code != 0 {
			t.Errorf("exit status %d", code)
		}
		if log := server.log.String() + restarted.log.String(); !strings.Contains(log, "tampering was found") || strings.Contains(log, ids[1]) {
			t.Errorf("the log says %s", log)
		}
	})
}
