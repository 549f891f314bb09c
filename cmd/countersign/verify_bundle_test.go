package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"countersign/internal/bundle"
	"countersign/internal/cli"
)

// A bundle is verified from its file alone: no store is opened or made, and what is wrong
// shows in the exit code.
func TestVerifyBundle(t *testing.T) {
	text, err := os.ReadFile("../../testdata/vectors/bundles.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors struct {
		Trust map[string]struct {
			LogKeys   []string `json:"log_keys"`
			Witnesses []string `json:"witnesses"`
		} `json:"trust"`
		Bases map[string]string `json:"bases"`
	}
	if err := json.Unmarshal(text, &vectors); err != nil {
		t.Fatal(err)
	}
	trust := vectors.Trust["all"]
	t.Chdir(t.TempDir())
	write := func(name, text string) string {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	good := write("good.bundle", vectors.Bases["bundle"]+"\n")
	altered := write("altered.bundle", strings.Replace(vectors.Bases["bundle"], "18450.75", "18450.76", 1))
	key := []string{"--log-key", trust.LogKeys[0]}
	witnesses := append([]string{"--witness", trust.Witnesses[0], "--witness", trust.Witnesses[2]}, key...)

	if out := succeed(t, append([]string{"verify", good}, key...)...); !strings.HasPrefix(out, "VERIFIED  receipt CSN-2026-00003") {
		t.Errorf("verify says %s", out)
	}
	verdict := decode[bundle.Verdict](t, succeed(t, append([]string{"verify", good, "--json", "--quorum", "1"}, witnesses...)...))
	if verdict.Status != bundle.Verified || len(verdict.Witnessed) != 1 || verdict.Witnesses != 2 {
		t.Errorf("the verdict is %+v", verdict)
	}
	refuse(t, cli.ExitInconclusive, "pass it with --log-key", "verify", good)
	refuse(t, cli.ExitFailed, "✗ payload_hashes", append([]string{"verify", altered}, key...)...)
	refuse(t, cli.ExitFailed, "seen by 1 of 2, 2 wanted", append([]string{"verify", good, "--quorum", "2"}, witnesses...)...)
	refuse(t, cli.ExitInconclusive, "no log key", "verify", good, "--log-key", "mine")
	refuse(t, cli.ExitInconclusive, "a bundle is verified offline", "verify", good, "--bitcoin-headers", "esplora+https://blocks.example/api")
	refuse(t, cli.ExitInconclusive, "the file is no bundle", append([]string{"verify", write("other", "{}")}, key...)...)
	refuse(t, cli.ExitInconclusive, "there is no file of that name", "verify", "missing.bundle")
	if made, _ := filepath.Glob("*"); len(made) != 3 {
		t.Errorf("verifying left %v", made)
	}
}
