package httpapi_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"

	"countersign/internal/browsertest"
)

// planted begins every text that the tests send where a caller could put a
// secret: payloads, metadata, names, idempotency keys, error messages. None may
// reach the log.
const planted = "planted-"

// captured is all that the package's tests make the service log, at the most
// talkative level.
var captured = &logBuffer{}

var capturing = slog.NewJSONHandler(captured, &slog.HandlerOptions{Level: slog.LevelDebug})

type logBuffer struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.String()
}

// The log is judged when every test has written to it, which is after the last
// one.
func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(capturing))
	code := m.Run()
	browsertest.Stop()
	log := captured.String()
	for _, line := range leaks(log) {
		fmt.Fprintln(os.Stderr, "--- FAIL: a log line holds what must never be logged:", line)
		code = 1
	}
	if exchanges.Load() > 0 && !strings.Contains(log, `"request_id":"req_`) {
		fmt.Fprintln(os.Stderr, "--- FAIL: requests were made, and no log line tells of them")
		code = 1
	}
	os.Exit(code)
}

// forbidden is stricter than a list of the values that were seen: nothing of
// their form has any business in a log line.
var forbidden = []*regexp.Regexp{
	regexp.MustCompile(planted),
	regexp.MustCompile(`(?i)[0-9a-f]{64}`),                                                       // hashes, signatures, digests
	regexp.MustCompile(`(csk|csl|css|cvt|whsec)_[0-9A-Za-z]{8}`),                                 // keys and tokens
	regexp.MustCompile(`(?i)[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`),       // ids
	regexp.MustCompile(`(?i)(postgres(ql)?://[^ ]*@|bearer +[a-z0-9_]{8}|idempotency-key: *\w)`), // credentials
}

func leaks(log string) (found []string) {
	for line := range strings.Lines(log) {
		for _, pattern := range forbidden {
			if pattern.MatchString(line) {
				found = append(found, strings.TrimSpace(line))
				break
			}
		}
	}
	return found
}

// The check for secrets in the log recognises planted text, hashes, keys, secrets,
// receipt ids and passwords.
func TestLeaksAreFound(t *testing.T) {
	t.Parallel()
	hash := strings.Repeat("0f", 32)
	for name, line := range map[string]string{
		"planted text": `{"error":"cannot store planted-payload"}`,
		"hash":         `{"error":"duplicate ` + hash + `"}`,
		"signature":    `{"error":"hmac-sha256:` + strings.ToUpper(hash) + `"}`,
		"API key":      `{"key":"csk_` + strings.Repeat("a", 49) + `"}`,
		"secret":       `{"error":"cannot sign with whsec_` + strings.Repeat("a", 43) + `="}`,
		"receipt id":   `{"path":"/v1/receipts/00000000-0000-4000-8000-000000000000/verify"}`,
		"password":     `{"error":"cannot connect to postgres://user:word@host/db"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			harmless := `{"msg":"request","request_id":"req_0123456789ab_1","route":"/v1/receipts/{receipt_id}/verify"}` + "\n"
			if found := leaks(harmless + line + "\n" + harmless); len(found) != 1 || found[0] != line {
				t.Errorf("found %q, want the one bad line", found)
			}
		})
	}
}
