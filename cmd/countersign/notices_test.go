package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"

	"github.com/emersion/go-smtp"

	"countersign/internal/cli"
	"countersign/internal/servicetest"
)

// mailbox is a real mail server that keeps what it is given.
type mailbox struct {
	address string
	mu      sync.Mutex
	letters []string
}

//countersign:host it runs a mail server
func newMailbox(t *testing.T) *mailbox {
	t.Helper()
	m := &mailbox{}
	server := smtp.NewServer(smtp.BackendFunc(func(*smtp.Conn) (smtp.Session, error) { return mailSession{m}, nil }))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	m.address = fmt.Sprintf("smtp://%s?from=countersign@example.com&starttls=off", listener.Addr())
	return m
}

func (m *mailbox) text() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return strings.Join(m.letters, "\n")
}

type mailSession struct{ box *mailbox }

func (mailSession) Reset()                                   {}
func (mailSession) Logout() error                            { return nil }
func (mailSession) Mail(string, *smtp.MailOptions) error     { return nil }
func (mailSession) Rcpt(_ string, _ *smtp.RcptOptions) error { return nil }

func (s mailSession) Data(r io.Reader) error {
	data, err := io.ReadAll(r)
	s.box.mu.Lock()
	defer s.box.mu.Unlock()
	s.box.letters = append(s.box.letters, string(data))
	return err
}

// hooks is an endpoint that keeps the kinds of what it is told.
type hooks struct {
	*httptest.Server
	mu    sync.Mutex
	kinds []string
	links []string
}

func newHooks(t *testing.T) *hooks {
	t.Helper()
	h := &hooks{}
	h.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var notice struct {
			Type string
			Data struct{ Link string }
		}
		_ = json.NewDecoder(r.Body).Decode(&notice)
		h.mu.Lock()
		defer h.mu.Unlock()
		h.kinds, h.links = append(h.kinds, notice.Type), append(h.links, notice.Data.Link)
	}))
	t.Cleanup(h.Close)
	return h
}

func (h *hooks) told() (kinds, links string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.kinds, " "), strings.Join(h.links, " ")
}

// An approval that nobody decides is reported by webhook and mail as requested,
// escalated and timed out, and the log names no receivers.
func TestNoticesFromServer(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *testStore) {
		box, h := newMailbox(t), newHooks(t)
		address := filepath.Join(t.TempDir(), "smtp-url")
		if err := os.WriteFile(address, []byte(box.address+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		flags := append([]string{"--webhooks-allow-private", "--smtp-url-file", address, "--public-url", "https://console.example/", "--metrics-listen", "127.0.0.1:0"}, s.flags...)
		server := start(t, flags...)
		if !strings.Contains(server.out.String(), "https://console.example/sign-in#") {
			t.Errorf("the sign-in link is elsewhere: %s", server.out.String())
		}
		admin := server.admin(t)
		admin.call(t, http.MethodPost, "/v1/webhooks", `{"url":"`+h.URL+`"}`, &struct{}{})
		admin.call(t, http.MethodPatch, "/v1/organization", `{"fallback_approvers":["ada@example.com"],"approval_timeout_hours":0.001}`, &struct{}{})
		id := admin.pay(t, `{"amount_usd":9000}`)
		servicetest.Eventually(t, "it is told, escalated and timed out", func() bool {
			kinds, _ := h.told()
			return strings.Contains(kinds, "approval.timed_out")
		})
		if kinds, links := h.told(); kinds != "approval.requested approval.escalated approval.timed_out" || strings.Count(links, "https://console.example/approvals/"+id) != 3 {
			t.Errorf("told %s with %s", kinds, links)
		}
		servicetest.Eventually(t, "the mail is out", func() bool { return strings.Contains(box.text(), "console.example/approvals/") })
		if status := admin.approvalStatus(t, id); status != "timed_out" {
			t.Errorf("it is %s", status)
		}
		metrics := metricsPattern.FindStringSubmatch(server.log.String())[1]
		servicetest.Eventually(t, "the jobs are counted", func() bool {
			_, body, err := (&client{base: metrics, http: servicetest.Client}).send(t.Context(), http.MethodGet, "", "")
			return err == nil && strings.Contains(string(body), `countersign_jobs_total{kind="webhook",result="done"} 3`)
		})
		if code := server.stop(t); code != 0 {
			t.Errorf("exit status %d", code)
		}
		if log := server.log.String(); strings.Contains(log, "ada@example.com") || strings.Contains(log, h.URL) {
			t.Errorf("the log names receivers: %s", log)
		}
	})
}

// A stop does not wait for people, who have a day for it.
//
//countersign:race
func TestStopEndsWaiting(t *testing.T) {
	t.Parallel()
	s := migratedSQLite(t)
	server := start(t, s.flags...)
	admin := server.admin(t)
	id := admin.pay(t, `{"amount_usd":9000}`)
	answered := make(chan string, 1)
	go func() {
		_, body, _ := admin.send(t.Context(), http.MethodGet, "/v1/approvals/"+id+"?wait=60", "")
		answered <- string(body)
	}()
	servicetest.Eventually(t, "the request waits", func() bool {
		var stacks strings.Builder
		_ = pprof.Lookup("goroutine").WriteTo(&stacks, 1)
		return strings.Contains(stacks.String(), "service.(*approvalService).Approval+")
	})
	if code := server.stop(t); code != 0 {
		t.Errorf("exit status %d\n%s", code, server.log.String())
	}
	if body := <-answered; !strings.Contains(body, `"status":"pending"`) {
		t.Errorf("who waited was answered %s", body)
	}
}

// Bad mail, price and address settings stop the server at its start, and the error
// repeats no secret.
func TestOutboundSettingsAreChecked(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	open, prices := filepath.Join(folder, "open"), filepath.Join(folder, "prices.json")
	if err := os.WriteFile(open, []byte("smtp://host?from=a@example.com"), 0o644); err != nil {
		t.Fatal(err)
	}
	writeFile(t, prices, []byte(`{"effective":"today"}`))
	for name, test := range map[string]struct {
		flags []string
		says  string
	}{
		"a mail server that is none":  {[]string{"--smtp-url", "planted-word"}, "smtp://"},
		"two mail servers":            {[]string{"--smtp-url", "smtp://planted-word?from=a@example.com", "--smtp-url-file", open}, "give one of them"},
		"a file that all can read":    {[]string{"--smtp-url-file", open}, "chmod 600"},
		"a file that is not there":    {[]string{"--smtp-url-file", open + ".none"}, "no such file"},
		"a folder":                    {[]string{"--smtp-url-file", folder}, "is not a file"},
		"prices that are none":        {[]string{"--prices", prices}, "effective"},
		"prices that are not there":   {[]string{"--prices", prices + ".none"}, "no such file"},
		"an address without a scheme": {[]string{"--public-url", "console.example"}, "--public-url"},
		"an address with a password":  {[]string{"--public-url", "https://u:planted-word@console.example"}, "--public-url"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := refuse(t, cli.ExitInconclusive, test.says, newSQLite(t).args(append([]string{"serve", "--listen", "127.0.0.1:0"}, test.flags...)...)...)
			if strings.Contains(r.err, "planted-word") {
				t.Errorf("the error repeats a secret: %s", r.err)
			}
		})
	}
}

// The operator's price list sets what a model call is estimated to cost.
func TestPricesOfTheOperator(t *testing.T) {
	t.Parallel()
	prices := filepath.Join(t.TempDir(), "prices.json")
	writeFile(t, prices, []byte(`{"effective":"2026-01-31","currency":"USD","models":[{"model":"house-model","input_per_million":"1000000","output_per_million":"0"}]}`))
	server := start(t, newSQLite(t).args("--prices", prices)...)
	admin := server.admin(t)
	var chain struct{ ID string }
	admin.call(t, http.MethodPost, "/v1/chains", `{"name":"priced"}`, &chain)
	var decision struct {
		Cost *float64 `json:"estimated_cost_usd"`
	}
	admin.call(t, http.MethodPost, "/v1/chains/"+chain.ID+"/events",
		`{"agent_name":"a","action_type":"llm_call","action_name":"draft","payload":{},"metadata":{"model":"house-model","input_tokens":3,"output_tokens":1}}`, &decision)
	if decision.Cost == nil || *decision.Cost != 3 {
		t.Errorf("the call costs %v", decision.Cost)
	}
}
