// Package slacktest runs a Slack for tests, behind a real socket: the few methods that the service
// calls, with the answers and limits that Slack documents, and members who press buttons. What
// arrives is read with an independent library, not with the code under test.
package slacktest

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/slack-go/slack"
)

// The only team, and its only channel.
const (
	Team    = "T0AAAAAAA"
	Channel = "C0AAAAAAA"
)

// Message is a message as the channel shows it.
type Message struct {
	Channel, TS string
	User        string // who alone sees it; "" for everybody
	Text        string
	Blocks      slack.Blocks
	Changes     int // how often it was replaced
	raw         json.RawMessage
}

// Slack runs until its test ends.
type Slack struct {
	URL           string // of its API, with a slash at its end
	Token         string
	SigningSecret string

	mu       sync.Mutex // guards the fields below
	messages []*Message // in order of their arrival
	calls    []string   // names of methods
	faults   []string   // what a real Slack would not have accepted
	respond  func(method string, w http.ResponseWriter, r *http.Request) bool
}

// Start serves with secrets of its own.
func Start(t testing.TB) *Slack {
	t.Helper()
	s := &Slack{Token: "xoxb-" + rand.Text(), SigningSecret: rand.Text()}
	server := httptest.NewServer(s)
	s.URL = server.URL + "/api/"
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
		for _, fault := range s.faults {
			t.Errorf("Slack would not accept: %s", fault)
		}
	})
	return s
}

// Respond lets a function answer instead, where it returns true; nil for nothing.
func (s *Slack) Respond(respond func(method string, w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.respond = respond
}

// Refuse answers every call with an error code; "" for none.
func (s *Slack) Refuse(code string) {
	if code == "" {
		s.Respond(nil)
		return
	}
	s.Respond(func(_ string, w http.ResponseWriter, _ *http.Request) bool {
		answer(w, map[string]any{"ok": false, "error": code})
		return true
	})
}

// Messages returns what everybody sees.
func (s *Slack) Messages() []Message { return s.list(func(m *Message) bool { return m.User == "" }) }

// Told returns the texts that only one member sees.
func (s *Slack) Told() (texts []string) {
	for _, m := range s.list(func(m *Message) bool { return m.User != "" }) {
		texts = append(texts, m.User+": "+strings.Join(m.Lines(), " "))
	}
	return texts
}

// Calls returns the names of the methods that were called, in order.
func (s *Slack) Calls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

func (s *Slack) list(wanted func(*Message) bool) (found []Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.messages {
		if wanted(m) {
			found = append(found, *m)
		}
	}
	return found
}

// ServeHTTP answers a call of a method.
func (s *Slack) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	method := strings.TrimPrefix(r.URL.Path, "/api/")
	s.mu.Lock()
	s.calls = append(s.calls, method)
	respond := s.respond
	s.mu.Unlock()
	if respond != nil && respond(method, w, r) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Header.Get("Authorization") != "Bearer "+s.Token {
		answer(w, map[string]any{"ok": false, "error": "invalid_auth"})
		return
	}
	var arguments struct {
		Channel string          `json:"channel"`
		TS      string          `json:"ts"`
		User    string          `json:"user"`
		Text    string          `json:"text"`
		Blocks  json.RawMessage `json:"blocks"`
		Parse   string          `json:"parse"`
	}
	if err := json.NewDecoder(r.Body).Decode(&arguments); err != nil || !strings.HasPrefix(r.Header.Get("Content-Type"), "application/json") {
		answer(w, map[string]any{"ok": false, "error": "invalid_json"})
		return
	}
	if method == "auth.test" {
		answer(w, map[string]any{"ok": true, "url": "https://example.slack.com/", "team": "Example", "user": "countersign", "team_id": Team, "user_id": "U0BOT", "bot_id": "B0BOT"})
		return
	}
	m := &Message{Channel: arguments.Channel, TS: arguments.TS, User: arguments.User, Text: arguments.Text, raw: arguments.Blocks}
	if arguments.Blocks != nil {
		if err := json.Unmarshal(arguments.Blocks, &m.Blocks); err != nil {
			answer(w, map[string]any{"ok": false, "error": "invalid_blocks"})
			return
		}
	}
	s.faults = append(s.faults, m.check(arguments.Parse)...)
	if code := s.take(method, m); code != "" {
		answer(w, map[string]any{"ok": false, "error": code})
		return
	}
	answer(w, map[string]any{"ok": true, "channel": m.Channel, "ts": m.TS, "message_ts": m.TS, "message": map[string]any{"text": m.Text, "blocks": m.raw}})
}

// take keeps a message. It returns an error code, or "".
func (s *Slack) take(method string, m *Message) string {
	if m.Channel != Channel {
		return "channel_not_found"
	}
	switch method {
	case "chat.postMessage", "chat.postEphemeral":
		m.TS = fmt.Sprintf("%010d.%06d", 1700000000+len(s.messages), 100)
		s.messages = append(s.messages, m)
	case "chat.update":
		at := slices.IndexFunc(s.messages, func(known *Message) bool { return known.TS == m.TS && known.User == "" })
		if at < 0 {
			return "message_not_found"
		}
		m.Changes = s.messages[at].Changes + 1
		s.messages[at] = m
	default:
		return "unknown_method"
	}
	return ""
}

func answer(w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	_ = json.NewEncoder(w).Encode(body)
}

// check returns what exceeds the documented limits, or could be more than plain text.
func (m Message) check(parse string) (faults []string) {
	complain := func(what string, text string) { faults = append(faults, fmt.Sprintf("%s: %.80q", what, text)) }
	limit := func(what string, text *slack.TextBlockObject, most int) {
		switch {
		case text == nil:
		case text.Type != slack.PlainTextType:
			complain(what+" is not plain text", text.Text)
		case text.Text == "" || utf8.RuneCountInString(text.Text) > most:
			complain(what+" is empty or too long", text.Text)
		}
	}
	if strings.ContainsAny(m.Text, "<>") || parse != "none" {
		complain("text that is not escaped", m.Text)
	}
	if len(m.Blocks.BlockSet) > 50 {
		complain("too many blocks", "")
	}
	for _, block := range m.Blocks.BlockSet {
		switch block := block.(type) {
		case *slack.HeaderBlock:
			limit("a header", block.Text, 150)
		case *slack.SectionBlock:
			limit("a section", block.Text, 3000)
			if len(block.Fields) > 10 || len(block.Fields) == 0 && block.Text == nil {
				complain("a section with too many fields, or nothing", "")
			}
			for _, field := range block.Fields {
				limit("a field", field, 2000)
			}
		case *slack.ActionBlock:
			for _, element := range block.Elements.ElementSet {
				button, ok := element.(*slack.ButtonBlockElement)
				if !ok {
					complain("an element that is no button", "")
					continue
				}
				limit("a button", button.Text, 75)
				if len(button.Value) > 2000 || len(button.URL) > 3000 {
					complain("a button's value or link is too long", button.Value)
				}
				if c := button.Confirm; c != nil {
					limit("a dialog's title", c.Title, 100)
					limit("a dialog", c.Text, 300)
					limit("a dialog's yes", c.Confirm, 30)
					limit("a dialog's no", c.Deny, 30)
				}
			}
		default:
			complain("a block of another type", string(block.BlockType()))
		}
	}
	return faults
}

// Lines returns all texts of the blocks, in order.
func (m Message) Lines() (lines []string) {
	for _, block := range m.Blocks.BlockSet {
		switch block := block.(type) {
		case *slack.HeaderBlock:
			lines = append(lines, block.Text.Text)
		case *slack.SectionBlock:
			if block.Text != nil {
				lines = append(lines, strings.Split(block.Text.Text, "\n")...)
			}
			for _, field := range block.Fields {
				lines = append(lines, field.Text)
			}
		}
	}
	return lines
}

// Buttons returns the buttons by their actions.
func (m Message) Buttons() map[string]*slack.ButtonBlockElement {
	found := make(map[string]*slack.ButtonBlockElement)
	for _, block := range m.Blocks.BlockSet {
		if actions, ok := block.(*slack.ActionBlock); ok {
			for _, element := range actions.Elements.ElementSet {
				if button, ok := element.(*slack.ButtonBlockElement); ok {
					found[button.ActionID] = button
				}
			}
		}
	}
	return found
}

// Press is what Slack sends when a member presses a button.
type Press struct {
	User   string // member id
	Action string
	Value  string
	Team   string    // "": Team
	At     time.Time // zero: now
	Secret string    // "": the signing secret
}

// Request returns the signed request.
func (s *Slack) Request(t testing.TB, to string, p Press) *http.Request {
	t.Helper()
	if p.Team == "" {
		p.Team = Team
	}
	if p.At.IsZero() {
		p.At = time.Now()
	}
	if p.Secret == "" {
		p.Secret = s.SigningSecret
	}
	payload, err := json.Marshal(map[string]any{
		"type": "block_actions", "api_app_id": "A0AAAAAAA", "token": "unused", "trigger_id": "1.2.3", "is_enterprise_install": false, "enterprise": nil,
		"user": map[string]any{"id": p.User, "username": "someone", "name": "someone", "team_id": p.Team},
		"team": map[string]any{"id": Team, "domain": "example"}, "channel": map[string]any{"id": Channel, "name": "approvals"},
		"container":    map[string]any{"type": "message", "message_ts": "1700000000.000100", "channel_id": Channel, "is_ephemeral": false},
		"response_url": "https://hooks.slack.invalid/actions/never-called",
		"actions": []any{map[string]any{
			"type": "button", "action_id": p.Action, "block_id": "b", "value": p.Value, "action_ts": "1700000001.000100",
			"text": map[string]any{"type": "plain_text", "text": "a button", "emoji": true},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return s.Sign(t, to, []byte(url.Values{"payload": {string(payload)}}.Encode()), p.At, p.Secret)
}

// Sign returns a request with any body.
func (s *Slack) Sign(t testing.TB, to string, body []byte, at time.Time, secret string) *http.Request {
	t.Helper()
	stamp := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, []byte(secret))
	fmt.Fprintf(mac, "v0:%s:%s", stamp, body)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, to, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	request.Header.Set("X-Slack-Request-Timestamp", stamp)
	request.Header.Set("X-Slack-Signature", "v0="+hex.EncodeToString(mac.Sum(nil)))
	return request
}
