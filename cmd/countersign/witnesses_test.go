package main

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"countersign/internal/cli"
	"countersign/internal/servicetest"
)

// A server submits its log to the witnesses that its configuration file names. The bundle of a
// receipt then passes the quorum, for a verifier that has nothing but the keys.
//
//countersign:race
func TestServeWitness(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	db := migratedSQLite(t)
	server := start(t, db.args()...)
	api := server.admin(t)
	api.call(t, http.MethodPatch, "/v1/organization", `{"evidence_export":"admins"}`, &struct{}{})
	receipt := api.seal(t).ReceiptID
	var vkey string
	servicetest.Eventually(t, "the log is signed", func() bool {
		r := execute(t, db.args("log", "vkey", "--org", "default")...)
		vkey = strings.TrimSpace(r.out)
		return r.code == 0
	})
	server.stop(t)

	config, verify := "witness:\n", []string{"verify", filepath.Join(folder, "receipt.bundle"), "--log-key", vkey, "--quorum", "2"}
	for _, name := range []string{"example.com/w1", "example.com/w2"} {
		state := filepath.Join(folder, filepath.Base(name))
		key := strings.TrimSpace(succeed(t, "witness", "init", "--state", state, "--name", name))
		succeed(t, "witness", "add", "--state", state, vkey)
		config += "  - \"" + key + "=" + startWitness(t, "--state", state).address + "\"\n"
		verify = append(verify, "--witness", key)
	}
	path := filepath.Join(folder, "config.yaml")
	writeFile(t, path, []byte(config))
	again := start(t, db.args("--config", path)...)
	api.base = again.address
	var bundle []byte
	servicetest.Eventually(t, "both witnesses have cosigned", func() bool {
		var status int
		var err error
		status, bundle, err = api.send(t.Context(), http.MethodGet, "/v1/receipts/"+receipt+"/bundle", "")
		return err == nil && status == http.StatusOK && strings.Count(string(bundle), "example.com/w") == 2
	})
	writeFile(t, verify[1], bundle)
	if out := succeed(t, verify...); !strings.Contains(out, "seen by 2 of 2") {
		t.Errorf("verify says\n%s", out)
	}
	if _, answer, err := api.send(t.Context(), http.MethodGet, "/readyz", ""); err != nil || !strings.Contains(string(answer), `{"name":"witnesses","status":"ok"}`) {
		t.Errorf("%s, %v", answer, err)
	}
}

// A witness that cannot be meant is refused at the start, with what is wrong.
func TestWitnessFlags(t *testing.T) {
	t.Parallel()
	key := strings.TrimSpace(succeed(t, "witness", "init", "--state", filepath.Join(t.TempDir(), "w"), "--name", "w"))
	serve := func(witnesses ...string) []string {
		args := []string{"serve"}
		for _, witness := range witnesses {
			args = append(args, "--witness", witness)
		}
		return newSQLite(t).args(args...)
	}
	refuse(t, cli.ExitInconclusive, "--witness: a witness has the form <vkey>=<url>", serve(key)...)
	refuse(t, cli.ExitInconclusive, "--witness: the address of witness w", serve(key+"=http://user:word@host")...)
	refuse(t, cli.ExitInconclusive, "the key of w is given twice", serve(key+"=http://a", key+"=http://b")...)
	refuse(t, cli.ExitInconclusive, "at most 16 witnesses", serve(make([]string, 17)...)...)
}
