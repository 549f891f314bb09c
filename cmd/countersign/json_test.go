package main

import (
	"net/http"
	"path/filepath"
	"testing"

	"countersign/internal/cli"
)

// The commands that use the API take --json, also those that have little to say.
//
//countersign:race
func TestJSONOfReceiptsAndBundles(t *testing.T) {
	t.Parallel()
	s := migratedSQLite(t)
	server := start(t, s.flags...)
	admin := server.admin(t)
	admin.call(t, http.MethodPatch, "/v1/organization", `{"evidence_export":"admins"}`, &struct{}{})
	number := admin.seal(t).Receipt.Number
	s.awaitSignedLog(t)
	key, file := filepath.Join(t.TempDir(), "key"), filepath.Join(t.TempDir(), "a.bundle")
	writeFile(t, key, []byte(admin.key))
	remote := []string{number, "--json", "--url", server.address, "--key-file", key}
	shown := decode[struct {
		Number string `json:"receipt_number"`
	}](t, succeed(t, append([]string{"receipts", "show"}, remote...)...))
	written := decode[struct {
		File   string
		Number string `json:"receipt_number"`
	}](t, succeed(t, append([]string{"bundle", "--output", file}, remote...)...))
	if shown.Number != number || written.Number != number || written.File != file {
		t.Errorf("the receipt is shown as %+v, and its bundle as %+v", shown, written)
	}
	refuse(t, cli.ExitInconclusive, "--json needs a file", append([]string{"bundle", "--output", "-"}, remote...)...)
}
