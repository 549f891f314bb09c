package httpapi_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

// call is one request.
type call struct {
	method, path string
	key          string
	body         []byte
	header       http.Header
	chunked      bool // the length is not announced
}

// answer is what came back.
type answer struct {
	status  int
	header  http.Header
	body    []byte
	problem problem
}

type problem struct {
	Type, Title, Detail, Code string
	Status                    int
	RequestID                 string `json:"request_id"`
	Errors                    []struct{ Pointer, Detail string }
}

// do sends one request and lets the referee judge the exchange. It may run on any
// goroutine: it reports, and leaves the end of the test to others.
func (s *stack) do(t *testing.T, c call) *answer {
	t.Helper()
	var body io.Reader
	if c.body != nil {
		body = bytes.NewReader(c.body)
	}
	if c.chunked {
		body = struct{ io.Reader }{body}
	}
	request, err := http.NewRequestWithContext(t.Context(), c.method, s.base+c.path, body)
	if err != nil {
		t.Errorf("make request: %v", err)
		return &answer{}
	}
	if c.body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if c.key != "" {
		request.Header.Set("Authorization", "Bearer "+c.key)
	}
	for name, values := range c.header {
		request.Header[name] = values
	}
	response, err := s.client.Do(request)
	if err != nil {
		t.Errorf("%s: %v", c.method, err)
		return &answer{}
	}
	defer func() { _ = response.Body.Close() }()
	received, err := io.ReadAll(response.Body)
	if err != nil {
		t.Errorf("%s: read answer: %v", c.method, err)
	}
	got := &answer{status: response.StatusCode, header: response.Header, body: received}
	if got.header.Get("Content-Type") == problemType {
		if err := json.Unmarshal(received, &got.problem); err != nil {
			t.Errorf("problem is not JSON: %v", err)
		}
	}
	s.referee(t).judge(t, request, c.body, got)
	return got
}

func (s *stack) get(t *testing.T, key credential, path string) *answer {
	t.Helper()
	return s.do(t, call{method: http.MethodGet, path: path, key: key.text})
}

// post sends a body; "" is none at all.
func (s *stack) post(t *testing.T, key credential, path, body string) *answer {
	t.Helper()
	return s.do(t, call{method: http.MethodPost, path: path, key: key.text, body: bodyOf(body)})
}

func (s *stack) patch(t *testing.T, key credential, body string) *answer {
	t.Helper()
	return s.do(t, call{method: http.MethodPatch, path: "/v1/organization", key: key.text, body: bodyOf(body)})
}

func bodyOf(text string) []byte {
	if text == "" {
		return nil
	}
	return []byte(text)
}

func (a *answer) expect(t *testing.T, status int) *answer {
	t.Helper()
	if a.status != status {
		t.Fatalf("answered %d, want %d: %s", a.status, status, a.body)
	}
	return a
}

// refuse expects an error with a code.
func (a *answer) refuse(t *testing.T, status int, code string) *answer {
	t.Helper()
	if a.status != status || a.problem.Code != code {
		t.Fatalf("answered %d %s, want %d %s: %s", a.status, a.problem.Code, status, code, a.body)
	}
	return a
}

// without expects texts not to be in the answer. A few hexadecimal digits are refused: an
// id or a hash contains them by chance.
func (a *answer) without(t *testing.T, texts ...string) *answer {
	t.Helper()
	for _, text := range texts {
		if len(text) < 8 && strings.Trim(text, "0123456789abcdef") == "" {
			t.Fatalf("%q can be part of an id", text)
		}
		if bytes.Contains(a.body, []byte(text)) {
			t.Errorf("the answer shows %q: %s", text, a.body)
		}
		for name, values := range a.header {
			if strings.Contains(strings.Join(values, "\n"), text) {
				t.Errorf("the answer's header %s shows %q", name, text)
			}
		}
	}
	return a
}

// anonymous is the body without what differs between any two problems.
func (a *answer) anonymous() string {
	if a.problem.RequestID == "" {
		return string(a.body)
	}
	return strings.ReplaceAll(string(a.body), a.problem.RequestID, "")
}

func (a *answer) pointers() []string {
	var pointers []string
	for _, fault := range a.problem.Errors {
		pointers = append(pointers, fault.Pointer)
	}
	return pointers
}

func decode[T any](t *testing.T, a *answer) T {
	t.Helper()
	var value T
	if err := json.Unmarshal(a.body, &value); err != nil {
		t.Fatalf("decode: %v: %s", err, a.body)
	}
	return value
}

// What the tests read of the answers; the referee knows the rest.
type (
	chain struct {
		ID          string          `json:"id"`
		Name        string          `json:"name"`
		ExternalID  *string         `json:"external_chain_id"`
		Metadata    json.RawMessage `json:"metadata"`
		Environment string          `json:"environment"`
		Status      string          `json:"status"`
		StartedAt   string          `json:"started_at"`
		CompletedAt *string         `json:"completed_at"`
		Actions     int             `json:"total_actions"`
		Agents      []string        `json:"agents_involved"`
		ReceiptID   *string         `json:"receipt_id"`
		FailModes   json.RawMessage `json:"fail_modes"`
		Error       *struct{ Type, Message string }
		Receipt     json.RawMessage `json:"receipt"`
		Metrics     struct {
			Exposure float64 `json:"financial_exposure_usd"`
		} `json:"cumulative_metrics"`
	}
	decision struct {
		Decision   string  `json:"policy_decision"`
		EventID    string  `json:"event_id"`
		ChainID    string  `json:"chain_id"`
		Sequence   int     `json:"sequence"`
		Status     string  `json:"status"`
		ApprovalID *string `json:"approval_id"`
	}
	event struct {
		ID          string          `json:"id"`
		Sequence    int             `json:"sequence"`
		ActionName  string          `json:"action_name"`
		Payload     json.RawMessage `json:"payload"`
		PayloadHash string          `json:"payload_sha256"`
		Metadata    json.RawMessage `json:"metadata"`
		ExecutedAt  *string         `json:"executed_at"`
		RecordedAt  string          `json:"recorded_at"`
		Outcome     *outcome        `json:"outcome"`
	}
	outcome struct {
		EventID    string  `json:"event_id"`
		Outcome    string  `json:"outcome"`
		Detail     *string `json:"detail"`
		RecordedAt string  `json:"recorded_at"`
		Position   int     `json:"position"`
		Sequence   int     `json:"sequence"`
	}
	receipt struct {
		ID           string          `json:"receipt_id"`
		Number       string          `json:"receipt_number"`
		ChainID      string          `json:"chain_id"`
		Organization string          `json:"organization"`
		Summary      string          `json:"summary"`
		StartedAt    string          `json:"started_at"`
		CompletedAt  string          `json:"completed_at"`
		GeneratedAt  string          `json:"generated_at"`
		Actions      int             `json:"total_actions"`
		Metadata     json.RawMessage `json:"metadata"`
		PreviousHash *string         `json:"previous_receipt_hash"`
		Digest       string          `json:"events_digest"`
		Signature    string          `json:"signature"`
		Events       []struct {
			AgentName  *string `json:"agent_name"`
			ActionType string  `json:"action_type"`
			ActionName string  `json:"action_name"`
			Decision   *string `json:"policy_decision"`
			Count      int     `json:"count"`
		} `json:"events_summary"`
	}
	apiKey struct {
		ID        string  `json:"key_id"`
		Name      string  `json:"name"`
		Role      string  `json:"role"`
		Hint      string  `json:"hint"`
		Status    string  `json:"status"`
		RevokedAt *string `json:"revoked_at"`
		Key       string  `json:"key"`

		Agents            []string `json:"agents"`
		Owner             *string  `json:"owner"`
		ExpiresAt         *string  `json:"expires_at"`
		LastUsedAt        *string  `json:"last_used_at"`
		PreviousExpiresAt *string  `json:"previous_expires_at"`
	}
	page[T any] struct {
		Data []T     `json:"data"`
		Next *string `json:"next_cursor"`
	}
)
