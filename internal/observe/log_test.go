package observe

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

var (
	someHash = strings.Repeat("0f", 32)
	someID   = "00000000-0000-4000-8000-00000000000a"
	someText = strings.Repeat("aB3", 14)
	// someBase64 has no run of hexadecimal digits.
	someBase64 = strings.Repeat("Qx+/", 10) + "z7Q="
)

// Keys, tokens, ids and hashes are masked in a text, and harmless names are not.
func TestMask(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ text, want string }{
		"API key":         {"key csk_" + someText + ".", "key csk_<redacted>."},
		"public token":    {"/public/v2/verify/cvt_" + someText, "/public/v2/verify/cvt_<redacted>"},
		"share":           {"/public/shares/cvs_" + someText, "/public/shares/cvs_<redacted>"},
		"sign-in link":    {"#csl_" + someText, "#csl_<redacted>"},
		"session":         {"css_" + someText, "css_<redacted>"},
		"webhook secret":  {"whsec_" + someBase64 + ".", "whsec_<redacted>."},
		"id":              {"receipt " + someID + " is gone", "receipt <redacted> is gone"},
		"upper-case id":   {strings.ToUpper(someID), "<redacted>"},
		"id, no hyphens":  {strings.ReplaceAll(someID, "-", ""), "<redacted>"},
		"hash":            {"duplicate (" + someHash + ")", "duplicate (<redacted>)"},
		"signature":       {`"hmac-sha256:` + someHash + `"`, `"hmac-sha256:<redacted>"`},
		"prefixed hash":   {"sha256:" + someHash, "sha256:<redacted>"},
		"cut-off hash":    {"sha256:0f0f…", "sha256:<redacted>…"},
		"two":             {someID + " " + someID, "<redacted> <redacted>"},
		"hint":            {"csk_…a1b2", "csk_…a1b2"},
		"request id":      {"req_0123456789ab_zz", "req_0123456789ab_zz"},
		"route":           {"/v1/receipts/{receipt_id}/verify", "/v1/receipts/{receipt_id}/verify"},
		"receipt number":  {"CSN-2026-00001", "CSN-2026-00001"},
		"plain sentence":  {"the store cannot be reached", "the store cannot be reached"},
		"word with css_x": {"css_abc", "css_abc"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := Mask(test.text); got != test.want {
				t.Errorf("Mask(%q) = %q, want %q", test.text, got, test.want)
			}
		})
	}
}

type valuer struct{ text string }

func (v valuer) LogValue() slog.Value { return slog.StringValue(v.text) }

type record struct {
	ID   uuid.UUID
	Body []byte
}

// quiet has fields that fmt prints without calling their methods.
type quiet struct {
	id  uuid.UUID
	ids []uuid.UUID
}

// The log shows no key, id or hash, in whatever kind of value it arrives.
func TestLogNeverShowsSecrets(t *testing.T) {
	t.Parallel()
	hash, err := hex.DecodeString(someHash)
	if err != nil {
		t.Fatal(err)
	}
	id := uuid.MustParse(someID)
	write := map[string]func(*slog.Logger){
		"message":                func(l *slog.Logger) { l.Info("lost " + someID) },
		"string":                 func(l *slog.Logger) { l.Info("x", "a", "csk_"+someText) },
		"error":                  func(l *slog.Logger) { l.Error("x", "error", fmt.Errorf("insert: %w", errors.New(someHash))) },
		"bytes":                  func(l *slog.Logger) { l.Info("x", "a", hash) },
		"array":                  func(l *slog.Logger) { l.Info("x", "a", [32]byte(hash)) },
		"raw JSON":               func(l *slog.Logger) { l.Info("x", "a", json.RawMessage(`"`+someHash+`"`)) },
		"stringer":               func(l *slog.Logger) { l.Info("x", "a", id) },
		"struct":                 func(l *slog.Logger) { l.Info("x", "a", record{id, hash}) },
		"pointer":                func(l *slog.Logger) { l.Info("x", "a", &record{id, hash}) },
		"slice":                  func(l *slog.Logger) { l.Info("x", "a", []string{someID}) },
		"map":                    func(l *slog.Logger) { l.Info("x", "a", map[string]any{"id": someID}) },
		"map of bytes":           func(l *slog.Logger) { l.Info("x", "a", map[string][]byte{"id": hash}) },
		"unexported":             func(l *slog.Logger) { l.Info("x", "a", quiet{id: uuid.UUID(hash[:16])}) },
		"unexported, in a slice": func(l *slog.Logger) { l.Info("x", "a", []quiet{{ids: []uuid.UUID{uuid.UUID(hash[:16])}}}) },
		"keys of a map":          func(l *slog.Logger) { l.Info("x", "a", map[[32]byte]bool{[32]byte(hash): true}) },
		"valuer":                 func(l *slog.Logger) { l.Info("x", "a", valuer{"sha256:" + someHash}) },
		"group":                  func(l *slog.Logger) { l.Info("x", slog.Group("g", "a", someID)) },
		"attached":               func(l *slog.Logger) { l.With("a", someID).WithGroup("g").With("b", someHash).Info("x") },
		"key":                    func(l *slog.Logger) { l.Info("x", someID, 1) },
		"standard log":           func(l *slog.Logger) { slog.NewLogLogger(l.Handler(), slog.LevelInfo).Print("tls: " + someHash) },
		"any in groups":          func(l *slog.Logger) { l.Info("x", slog.Group("g", slog.Any("a", []any{hash, someID}))) },
	}
	forbidden := []string{someHash, strings.ToUpper(someHash), someID, someText, "15 15 15", "Dw8PDw8P", `\u000f`, "0f0f0f"}
	for name, write := range write {
		for _, format := range []string{FormatJSON, FormatText} {
			t.Run(name+" as "+format, func(t *testing.T) {
				t.Parallel()
				var out bytes.Buffer
				write(NewLogger(&out, format, slog.LevelInfo))
				if !strings.Contains(out.String(), masked) {
					t.Errorf("nothing is masked in %s", out.String())
				}
				for _, secret := range forbidden {
					if strings.Contains(out.String(), secret) {
						t.Errorf("%q is shown in %s", secret, out.String())
					}
				}
			})
		}
	}
}

// The log keeps messages, numbers, durations and routes as they are.
func TestLogKeepsWhatIsHarmless(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := NewLogger(&out, FormatJSON, slog.LevelInfo)
	log.Debug("not shown")
	log.Info("request", "request_id", "req_0123456789ab_1", "status", 200, "took", time.Millisecond, "route", "/v1/chains/{chain_id}", "none", nil)
	var line struct {
		Msg, Route string
		RequestID  string `json:"request_id"`
		Status     int
		Took       time.Duration
	}
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatalf("%v in %s", err, out.String())
	}
	if line.Msg != "request" || line.RequestID != "req_0123456789ab_1" || line.Status != 200 || line.Took != time.Millisecond || line.Route != "/v1/chains/{chain_id}" {
		t.Errorf("the line is %s", out.String())
	}
}

// nilError is an error whose method needs a value.
type nilError struct{ text string }

func (e *nilError) Error() string { return e.text }

// An error that is a nil pointer, or that panics, costs its text and not the process that logs it.
func TestLogOutlivesAnErrorThatPanics(t *testing.T) {
	t.Parallel()
	for _, format := range []string{FormatJSON, FormatText} {
		var out bytes.Buffer
		log := NewLogger(&out, format, slog.LevelInfo)
		log.Info("first", "error", (*nilError)(nil))
		log.With("error", (*nilError)(nil)).Info("second", slog.Group("inner", "error", (*nilError)(nil)))
		log.Info("third", "error", struct{ error }{})
		if got := out.String(); strings.Count(got, "\n") != 3 || strings.Count(got, "<nil>") != 3 {
			t.Errorf("the log is %s", got)
		}
	}
}
