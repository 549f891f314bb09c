package main

import (
	"net/http"
	"os"
	"strings"
	"testing"

	"countersign/internal/cli"
	"countersign/internal/cli/review"
	"countersign/internal/servicetest"
)

// Evidence is taken out, shared and checked at a terminal: a bundle is written to a new file
// and verifies with the log's key, and a share's link serves until it is revoked. The working
// folder is the process's, so this test runs alone.
//
//countersign:race
func TestBundlesAtTheTerminal(t *testing.T) {
	s := migratedSQLite(t)
	server := start(t, s.flags...)
	admin := server.admin(t)
	key := keyFile(t, admin.key)
	at := func(words ...string) []string { return append(words, "--url", server.address, "--key-file", key) }
	receipt := admin.seal(t)
	t.Chdir(t.TempDir())
	file := receipt.Receipt.Number + ".bundle"

	refuse(t, cli.ExitFailed, "evidence_export", at("bundle", receipt.ReceiptID)...)
	refuse(t, cli.ExitFailed, "evidence_export", at("shares", "create", receipt.ReceiptID)...)
	admin.call(t, http.MethodPatch, "/v1/organization", `{"evidence_export":"admins"}`, new(any))
	servicetest.Eventually(t, "the receipt is in a checkpoint", func() bool {
		return execute(t, at("bundle", receipt.ReceiptID)...).code == 0
	})
	vkey := strings.TrimSpace(succeed(t, s.args("log", "vkey", "--org", "default")...))
	if out := succeed(t, "verify", file, "--log-key", vkey); !strings.HasPrefix(out, "VERIFIED  receipt "+receipt.Receipt.Number) || !strings.Contains(out, "no payload") {
		t.Errorf("verify says\n%s", out)
	}
	refuse(t, cli.ExitFailed, "--force", at("bundle", receipt.ReceiptID)...)
	replaced := execute(t, at("bundle", strings.ToLower(receipt.Receipt.Number), "--payloads", "--force")...)
	if replaced.code != 0 || replaced.out != file+"\n" || !strings.Contains(replaced.err, "countersign verify "+file+" --log-key") {
		t.Errorf("bundle says %+v", replaced)
	}
	if out := succeed(t, "verify", file, "--log-key", vkey); !strings.Contains(out, "✓ payload_hashes") {
		t.Errorf("verify says\n%s", out)
	}
	if found, _ := os.ReadDir("."); len(found) != 1 {
		t.Errorf("the folder holds %v", found)
	}
	if out := succeed(t, at("bundle", receipt.ReceiptID, "--output", "-")...); !strings.HasPrefix(out, `{"anchors":`) {
		t.Errorf("standard output is %.80q", out)
	}
	refuse(t, cli.ExitInconclusive, "no receipt of that id or number", at("bundle", "CSN-1999-00001")...)
	refuse(t, cli.ExitInconclusive, "a receipt's id, or its number", at("bundle", "../1")...)

	link := strings.TrimSpace(succeed(t, at("shares", "create", receipt.Receipt.Number, "--expires", "90d")...))
	path, found := strings.CutPrefix(link, server.address)
	if !found {
		t.Fatal("the link is not to this server")
	}
	status, data, err := admin.send(t.Context(), http.MethodGet, path, "")
	if err != nil || status != http.StatusOK {
		t.Fatalf("the link answers %d: %v", status, err)
	}
	if err := os.WriteFile("shared.bundle", data, 0o600); err != nil {
		t.Fatal(err)
	}
	if out := succeed(t, "verify", "shared.bundle", "--log-key", vkey); !strings.Contains(out, "events_digest        not checked") {
		t.Errorf("verify says\n%s", out)
	}
	listed := decode[[]review.ShareEntry](t, succeed(t, at("shares", "list", "--json")...))
	if len(listed) != 1 || listed[0].Receipt != receipt.ReceiptID || listed[0].ExpiresAt == nil {
		t.Fatalf("the shares are %+v", listed)
	}
	refuse(t, cli.ExitInconclusive, "a share's id has the form", at("shares", "revoke", "nonsense")...)
	refuse(t, cli.ExitInconclusive, "neither a time", at("shares", "create", receipt.ReceiptID, "--expires", "soon")...)
	succeed(t, at("shares", "revoke", listed[0].ID, "--reason", "sent to the wrong person")...)
	if out := succeed(t, at("shares", "list")...); !strings.Contains(out, "revoked") {
		t.Errorf("the shares are\n%s", out)
	}
	if status, _, err := admin.send(t.Context(), http.MethodGet, path, ""); err != nil || status != http.StatusNotFound {
		t.Errorf("the revoked link answers %d: %v", status, err)
	}
}
