package keyring

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"countersign/internal/ledger"
)

var now = time.Date(2026, 3, 4, 5, 6, 7, 890_000_000, time.UTC)

func seeded(seed byte) io.Reader { return rand.NewChaCha8([32]byte{seed}) }

func createdRing(t *testing.T) (path string, ring *Ring) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "keys.json")
	ring, err := Create(path, seeded(1), now)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	return path, ring
}

func rotate(t *testing.T, path string, seed byte) *Ring {
	t.Helper()
	ring, err := Rotate(path, seeded(seed), now)
	if err != nil {
		t.Fatalf("Rotate: %v", err)
	}
	return ring
}

func mustMAC(t *testing.T, ring *Ring, keyID string, org uuid.UUID, purpose ledger.Purpose, parts ...string) [32]byte {
	t.Helper()
	var raw [][]byte
	for _, part := range parts {
		raw = append(raw, []byte(part))
	}
	mac, ok := ring.MAC(keyID, org, purpose, raw...)
	if !ok {
		t.Fatalf("key %s is not on the ring", keyID)
	}
	return mac
}

func readContent(t *testing.T, path string) (content document) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &content); err != nil {
		t.Fatal(err)
	}
	return content
}

func overwrite(t *testing.T, path string, content any) {
	t.Helper()
	data, err := json.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func writeContent(t *testing.T, content any) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "keys.json")
	overwrite(t, path, content)
	return path
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func chmod(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func unhex(t *testing.T, text string) []byte {
	t.Helper()
	data, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// A key file in the documented format is read.
func TestOpenReadsTheDocumentedFormat(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "keys.json")
	text := fmt.Sprintf(`{"version":1,"current":"mk_abcdefgh2345","keys":[{"id":"mk_abcdefgh2345","secret":"%sA=","created_at":"2026-03-04T05:06:07+01:00"}]}`,
		strings.Repeat("A", 42))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ring, err := Open(path)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	if diff := cmp.Diff([]string{"mk_abcdefgh2345"}, ring.IDs()); diff != "" {
		t.Errorf("IDs differ (-want +got):\n%s", diff)
	}
}

// A key file with any fault is refused, and the error names the file and the fault.
func TestOpenRefusesBadContent(t *testing.T) {
	t.Parallel()
	key := func(id string, size int) map[string]any {
		return map[string]any{"id": id, "secret": make([]byte, size), "created_at": now}
	}
	file := func(version any, current string, keys ...map[string]any) map[string]any {
		return map[string]any{"version": version, "current": current, "keys": keys}
	}
	with := func(base map[string]any, name string, value any) map[string]any {
		base[name] = value
		return base
	}
	const a, b = "mk_aaaaaaaaaaaa", "mk_bbbbbbbbbbbb"
	tests := []struct {
		name    string
		content any
		want    string
	}{
		{"not an object", []int{1}, "not a JSON object with a version"},
		{"no version", map[string]any{}, "its version is 0"},
		{"later version", with(file(2, a, key(a, 32)), "new", true), "its version is 2"},
		{"version as text", file("1", a, key(a, 32)), "not a JSON object with a version"},
		{"unknown field", with(file(1, a, key(a, 32)), "comment", "x"), "may hold only"},
		{"unknown field of a key", file(1, a, with(key(a, 32), "comment", "x")), "may hold only"},
		{"secret is not base64", file(1, a, with(key(a, 32), "secret", "?")), "may hold only"},
		{"time is not RFC 3339", file(1, a, with(key(a, 32), "created_at", "today")), "may hold only"},
		{"no keys", file(1, a), "current key is not among"},
		{"current is not a key", file(1, b, key(a, 32)), "current key is not among"},
		{"current is empty", file(1, "", key(a, 32)), "current key is not among"},
		{"duplicate id", file(1, a, key(a, 32), key(b, 32), key(a, 32)), "holds " + a + " twice"},
		{"short secret", file(1, a, key(a, 31)), "31 bytes long instead of 32"},
		{"long secret", file(1, a, key(a, 33)), "33 bytes long instead of 32"},
		{"empty secret", file(1, a, key(a, 0)), "0 bytes long instead of 32"},
		{"short id", file(1, "mk_a", key("mk_a", 32)), "the id of key 1"},
		{"id in capitals", file(1, a, key(a, 32), key("mk_AAAAAAAAAAAA", 32)), "the id of key 2"},
		{"id with a line break", file(1, a, key(a+"\n", 32)), "the id of key 1"},
		{"too many keys", file(1, a, slices.Repeat([]map[string]any{key(a, 32)}, maxKeys+1)...), "at most 1000"},
		{"too long", file(1, strings.Repeat("a", maxFileSize), key(a, 32)), "longer than"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			path := writeContent(t, test.content)
			_, err := Open(path)
			if !errors.Is(err, ErrInvalid) || !strings.Contains(fmt.Sprint(err), test.want) || !strings.Contains(fmt.Sprint(err), path) {
				t.Errorf("Open error = %v, want ErrInvalid naming the file and %q", err, test.want)
			}
		})
	}
}

// A key file that is not JSON is refused, and the error quotes nothing from it.
func TestOpenRefusesWhatIsNotJSONAndQuotesNothing(t *testing.T) {
	t.Parallel()
	const planted = "plantedsecret"
	for _, text := range []string{"", planted, `{"version":1,"keys":[{"secret":"` + planted, `{"version":1}` + planted, `{"version":"` + planted + `"}`,
		`{"version":1,"` + planted + `":1}`, `{"version":1,"keys":[{"created_at":"` + planted + `"}]}`} {
		path := filepath.Join(t.TempDir(), "keys.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Open(path)
		if !errors.Is(err, ErrInvalid) || strings.Contains(fmt.Sprint(err), planted) {
			t.Errorf("Open of %q: error = %v, want ErrInvalid that quotes nothing", text, err)
		}
	}
}

// A key file that anyone except its owner can access is refused, and the error says what to do.
func TestOpenJudgesTheMode(t *testing.T) {
	t.Parallel()
	tests := []struct {
		mode os.FileMode
		want error
	}{
		{0o600, nil}, {0o400, nil}, {0o700, nil},
		{0o640, ErrExposed}, {0o620, ErrExposed}, {0o610, ErrExposed}, {0o660, ErrExposed},
		{0o604, ErrExposed}, {0o602, ErrExposed}, {0o644, ErrExposed}, {0o666, ErrExposed}, {0o777, ErrExposed},
	}
	for _, test := range tests {
		t.Run(fmt.Sprintf("%04o", test.mode), func(t *testing.T) {
			t.Parallel()
			path, _ := createdRing(t)
			chmod(t, path, test.mode)
			link := filepath.Join(t.TempDir(), "link")
			if err := os.Symlink(path, link); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{path, link} {
				_, err := Open(name)
				if !errors.Is(err, test.want) {
					t.Errorf("Open error = %v, want %v", err, test.want)
				}
				if test.want != nil && !strings.Contains(err.Error(), "chmod 600 "+name) {
					t.Errorf("error %q does not say what to do", err)
				}
			}
			if _, err := Rotate(path, seeded(2), now); !errors.Is(err, test.want) {
				t.Errorf("Rotate error = %v, want %v", err, test.want)
			}
		})
	}
}

// A key file must be a regular file that exists.
func TestOpenRefusesWhatIsNoFile(t *testing.T) {
	t.Parallel()
	directory := t.TempDir()
	pipe, dangling := filepath.Join(directory, "pipe"), filepath.Join(directory, "dangling")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(directory, "nothing"), dangling); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, path string
		want       error
		text       string
	}{
		{"missing", filepath.Join(directory, "missing"), ErrNotFound, "missing"},
		{"missing directory", filepath.Join(directory, "no", "keys.json"), ErrNotFound, "keys.json"},
		{"dangling link", dangling, ErrNotFound, "dangling"},
		{"directory", directory, ErrInvalid, "it is a directory"},
		{"named pipe", pipe, ErrInvalid, "not a regular file"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for verb, open := range map[string]func() (*Ring, error){
				"Open":   func() (*Ring, error) { return Open(test.path) },
				"Rotate": func() (*Ring, error) { return Rotate(test.path, seeded(1), now) },
			} {
				if _, err := open(); !errors.Is(err, test.want) || !strings.Contains(fmt.Sprint(err), test.text) {
					t.Errorf("%s error = %v, want %v with %q", verb, err, test.want, test.text)
				}
			}
		})
	}
}
