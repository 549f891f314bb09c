package worker_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emersion/go-smtp"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"countersign/internal/ledger"
	"countersign/internal/notify"
	"countersign/internal/service"
	"countersign/internal/store"
)

// message is a webhook message as it arrived.
type message struct {
	id, kind, approval, status string
}

// receiver is an endpoint on a real port.
type receiver struct {
	server *httptest.Server
	secret ledger.Secret
	record *store.WebhookRecord

	mu       sync.Mutex
	answer   func(w http.ResponseWriter, m message) // nil: 200
	messages []message
	forged   int
}

// receiver adds an endpoint for the given kinds, or for all if none is given.
func (w *world) receiver(kinds ...string) *receiver {
	w.t.Helper()
	r := &receiver{}
	r.server = httptest.NewServer(http.HandlerFunc(r.receive))
	w.t.Cleanup(r.server.Close)
	var err error
	r.record, r.secret, err = w.service.CreateWebhook(w.t.Context(), w.admin, &service.WebhookRequest{URL: r.server.URL + "/planted-path", Events: kinds})
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

func (r *receiver) receive(w http.ResponseWriter, request *http.Request) {
	body, _ := io.ReadAll(request.Body)
	var notice struct {
		Type string
		Data struct {
			Approval string `json:"approval_id"`
			Status   string
		}
	}
	_ = json.Unmarshal(body, &notice)
	m := message{request.Header.Get("webhook-id"), notice.Type, notice.Data.Approval, notice.Data.Status}
	r.mu.Lock()
	// The clock is the test's, so only the signature is checked.
	if verifier, err := standardwebhooks.NewWebhook(r.secret.Reveal()); err != nil || verifier.VerifyIgnoringTimestamp(body, request.Header) != nil {
		r.forged++
	}
	r.messages = append(r.messages, m)
	answer := r.answer
	r.mu.Unlock()
	if answer != nil {
		answer(w, m)
	}
}

func (r *receiver) respond(answer func(w http.ResponseWriter, m message)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = answer
}

func (r *receiver) status(code int) {
	r.respond(func(w http.ResponseWriter, _ message) { w.WriteHeader(code) })
}

// arrived returns what has arrived so far, and checks that all of it was signed.
func (r *receiver) arrived(t *testing.T) []message {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.forged > 0 {
		t.Errorf("%d messages have a wrong signature", r.forged)
	}
	return slices.Clone(r.messages)
}

func kindsOf(messages []message) string {
	kinds := make([]string, len(messages))
	for i, m := range messages {
		kinds[i] = m.kind
	}
	return strings.Join(kinds, " ")
}

// postOffice is a real mail server that refuses some recipients.
type postOffice struct {
	refused string // address
	port    int

	mu      sync.Mutex
	letters []letter
}

type letter struct {
	to   []string
	data string
}

//countersign:host it runs a mail server
func newPostOffice(t *testing.T) *postOffice {
	t.Helper()
	p := &postOffice{}
	server := smtp.NewServer(smtp.BackendFunc(func(*smtp.Conn) (smtp.Session, error) { return &session{office: p}, nil }))
	server.Domain = "localhost"
	server.ReadTimeout, server.WriteTimeout = 20*time.Second, 20*time.Second
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.port = listener.Addr().(*net.TCPAddr).Port
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	return p
}

func (p *postOffice) mailer(t *testing.T) *notify.Mailer {
	t.Helper()
	mailer, err := notify.ParseSMTP(fmt.Sprintf("smtp://127.0.0.1:%d?from=countersign@example.com&starttls=off", p.port))
	if err != nil {
		t.Fatal(err)
	}
	return mailer
}

// mailed returns the recipients of all mails that contain the words, sorted.
func (p *postOffice) mailed(words string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var to []string
	for _, l := range p.letters {
		if strings.Contains(l.data, words) {
			to = append(to, l.to...)
		}
	}
	slices.Sort(to)
	return to
}

type session struct {
	office *postOffice
	letter letter
}

func (s *session) Reset()                               { s.letter = letter{} }
func (s *session) Logout() error                        { return nil }
func (s *session) Mail(string, *smtp.MailOptions) error { return nil }

func (s *session) Rcpt(to string, _ *smtp.RcptOptions) error {
	if to == s.office.refused {
		return &smtp.SMTPError{Code: 550, EnhancedCode: smtp.EnhancedCode{5, 1, 1}, Message: "no such mailbox"}
	}
	s.letter.to = append(s.letter.to, to)
	return nil
}

func (s *session) Data(r io.Reader) error {
	data, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	s.letter.data = string(data)
	s.office.mu.Lock()
	defer s.office.mu.Unlock()
	s.office.letters = append(s.office.letters, s.letter)
	return nil
}
