package main

import (
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"countersign/internal/cli"
)

// The environment is the process's, so this test runs alone.
func TestSettingsFromEnvironmentFileAndFlags(t *testing.T) {
	s := newSQLite(t)
	config := filepath.Join(t.TempDir(), "countersign.yaml")
	writeFile(t, config, fmt.Appendf(nil, "data: %s\npublic-rate: 0.01\nlog-level: debug\ntrusted-proxies: [10.0.0.0/8, 127.0.0.0/8]\nlisten: 256.0.0.1:0\n", s.folder))
	t.Setenv("COUNTERSIGN_CONFIG", config)
	t.Setenv("COUNTERSIGN_LOG_LEVEL", "warn") // over the file
	t.Setenv("COUNTERSIGN_PUBLIC_RATE", "0.02")
	t.Setenv("COUNTERSIGN_LOG_FORMAT", "text")

	// start's own --listen is over the file; the log has to be one it can read.
	server := start(t, "--log-format", "json", "--log-level", "info")
	c := server.client("")
	c.header = http.Header{"X-Forwarded-For": {"192.0.2.7"}}
	if answered := exhaust(t, c, 10); answered != 1 {
		t.Errorf("%d requests were answered: the rate was not set", answered)
	}
	c.header = http.Header{"X-Forwarded-For": {"192.0.2.8"}}
	if answered := exhaust(t, c, 10); answered != 1 {
		t.Errorf("%d requests were answered: the proxies were not set", answered)
	}
	if strings.Contains(server.log.String(), `"level":"DEBUG"`) {
		t.Error("the file's log level is over the flag's")
	}
	if out := succeed(t, "orgs", "list"); !strings.Contains(out, "default") { // --data from the file
		t.Errorf("the organizations are %q", out)
	}
	if status := server.admin(t).status(t, http.MethodGet, "/v1/organization", ""); status != http.StatusOK {
		t.Errorf("status %d", status)
	}
}

// A fault in the config file is named with its setting and what it must be.
func TestConfigFileFaults(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ content, says string }{
		"unknown key": {"lissten: 127.0.0.1:0", `no setting "lissten"`},
		"double key":  {"listen: a\nlisten: b", "already defined"},
		"no value":    {"listen:", "has no value"},
		"not a map":   {"- listen", "flag: value"},
		"itself":      {"config: other.yaml", `no setting "config"`},
		"bad number":  {"public-rate: fast", "line 1: public-rate must be a number"},
		"bad choice":  {`{"log-level": "loud"}`, "log-level must be one of debug, info, warn, error"},
		"bad text":    {"# where\nlisten: 5", "config.yaml, line 2: listen must be text, in quotes; see countersign serve --help"},
		"bad date":    {"listen: 2026-01-01", "listen must be text, in quotes"},
		"bad switch":  {"webhooks-allow-private: 1", "webhooks-allow-private must be true or false"},
		"bad list":    {"trusted-proxies: [10.0.0.0/8, 5]", "trusted-proxies must be a list of texts"},
		"bad path":    {"data: [a]", "data must be text"},
		"too long":    {strings.Repeat("#\n", maxConfigFile), "longer than"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "config.yaml")
			writeFile(t, path, []byte(test.content))
			r := refuse(t, cli.ExitInconclusive, test.says, newSQLite(t).args("serve", "--config", path)...)
			if strings.Contains(r.err, "--help:") {
				t.Errorf("the error names a flag that has nothing to do with it: %s", r.err)
			}
		})
	}
	refuse(t, cli.ExitInconclusive, "no such file", newSQLite(t).args("serve", "--config", filepath.Join(t.TempDir(), "none.yaml"))...)
}

// The completion scripts for bash, zsh and fish offer commands, flags and values.
func TestCompletion(t *testing.T) {
	t.Parallel()
	script := filepath.Join(t.TempDir(), "completion.bash")
	writeFile(t, script, []byte(succeed(t, "completion", "bash")))
	if out, err := exec.CommandContext(t.Context(), "bash", "-n", script).CombinedOutput(); err != nil {
		t.Fatalf("bash does not accept the script: %v\n%s", err, out)
	}
	for line, want := range map[string]string{
		"ser":                                    "serve",
		"keys r":                                 "rotate revoke rotate-signing",
		"keys create --org default --":           "--help --data --database --keys --heads --config --org --role --name --agent --owner --sign-in-as --slack-member --expires --json",
		"keys create --role a":                   "agent admin",
		"serve --log-format t":                   "text",
		"serve --data ''":                        "", // then bash offers files and folders
		"serve --listen ''":                      "",
		"serve --webhooks-allow-private --log-f": "--log-format",
		"completion z":                           "zsh",
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			// The words are the test's own, so no quoting is needed.
			program := fmt.Sprintf(`. "$1"; COMP_WORDS=(countersign %s); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _countersign; echo "${COMPREPLY[*]}"`, line)
			out, err := exec.CommandContext(t.Context(), "bash", "-c", program, "bash", script).CombinedOutput()
			if err != nil || strings.TrimSpace(string(out)) != want {
				t.Errorf("completed to %q, want %q (%v)", out, want, err)
			}
		})
	}
	for shell, sign := range map[string]string{"zsh": "#compdef countersign", "fish": "complete -c countersign"} {
		out := succeed(t, "completion", shell)
		if !strings.Contains(out, sign) || !strings.Contains(out, "rotate-signing") {
			t.Errorf("the script for %s lacks something:\n%s", shell, out)
		}
	}
	if out := succeed(t, "completion", "fish"); !strings.Contains(out, "'serve'\" -l data -r -F ") || !strings.Contains(out, "'serve'\" -l listen -x ") {
		t.Errorf("fish is not told which flags take files:\n%s", out)
	}
	refuse(t, cli.ExitInconclusive, "bash", "completion", "tcsh")
}
