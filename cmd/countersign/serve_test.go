package main

import (
	"net/http"
	"os"
	"strings"
	"testing"

	"countersign/internal/cli"
	"countersign/internal/cli/operate"
	"countersign/internal/servicetest"
	"countersign/internal/testdb"
)

// The first start prints the admin key and a sign-in link once, outside the log.
// Later starts print nothing.
//
//countersign:race
func TestFirstStartAnnouncesOnce(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *testStore) {
		first := start(t, s.flags...)
		announced := first.out.String()
		if strings.Count(announced, "csk_") != 1 || strings.Count(announced, first.address+"/sign-in#csl_") != 1 {
			t.Errorf("announced was %q", announced)
		}
		if log := first.log.String(); strings.Contains(log, "csk_") || strings.Contains(log, "csl_") {
			t.Errorf("the log shows a secret: %s", log)
		}
		admin := first.admin(t)
		admin.seal(t)
		if code := first.stop(t); code != 0 {
			t.Errorf("exit status %d", code)
		}
		second := start(t, s.flags...)
		if text := second.out.String(); text != "" {
			t.Errorf("the second start announced %q", text)
		}
		if status := second.client(admin.key).status(t, http.MethodGet, "/v1/organization", ""); status != http.StatusOK {
			t.Errorf("the first start's key gets %d from the second", status)
		}
	})
}

// A second server on the same data folder is refused, and the first goes on.
func TestSecondServerOnTheSameFolderIsRefused(t *testing.T) {
	t.Parallel()
	s := newSQLite(t)
	first := start(t, s.flags...)
	refuse(t, cli.ExitFailed, "another countersign server is using the folder", s.args("serve", "--listen", "127.0.0.1:0")...)
	if status := first.admin(t).status(t, http.MethodGet, "/v1/organization", ""); status != http.StatusOK {
		t.Errorf("the first server answers %d", status)
	}
}

// Replicas on one PostgreSQL database verify each other's receipts.
//
//countersign:race
func TestReplicasShareAPostgres(t *testing.T) {
	t.Parallel()
	s := newPostgres(t, testdb.EmptyPostgres(t))
	first := start(t, s.flags...)
	second := start(t, s.flags...)
	admin := first.admin(t)
	sealed := admin.seal(t)
	if !second.client(admin.key).valid(t, sealed.ReceiptID) {
		t.Error("the other replica does not verify the receipt")
	}
}

// A key that the operator revokes is refused from its next request on.
func TestRevokedKeyStopsAtTheNextRequest(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *testStore) {
		server := start(t, s.flags...)
		created := decode[operate.KeyLine](t, succeed(t, s.args("keys", "create", "--org", "default", "--role", "agent", "--name", "worker", "--json")...))
		agent := server.client(created.Key)
		agent.seal(t)
		succeed(t, s.args("keys", "revoke", created.ID, "--org", "default")...)
		if status := agent.status(t, http.MethodPost, "/v1/chains", `{"name":"late"}`); status != http.StatusUnauthorized {
			t.Errorf("a write with the revoked key gets %d", status)
		}
		if status := agent.status(t, http.MethodGet, "/v1/chains", ""); status != http.StatusUnauthorized {
			t.Errorf("a read with the revoked key gets %d", status)
		}
	})
}

// An organization that the operator makes beside a running server can be used at
// once.
func TestOrganizationsMadeBesideARunningServer(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *testStore) {
		server := start(t, s.flags...)
		made := execute(t, s.args("orgs", "create", "acme", "--name", "Acme")...)
		if made.code != 0 || made.out != keyPattern.FindString(made.out)+"\n" || strings.Contains(made.err, "csk_") {
			t.Fatalf("standard output must be the key alone: %+v", made)
		}
		sealed := server.client(made.out).seal(t)
		if sealed.Receipt.Number[len(sealed.Receipt.Number)-5:] != "00001" {
			t.Errorf("the first receipt of an organization is %s", sealed.Receipt.Number)
		}
		refuse(t, cli.ExitFailed, "exists already", s.args("orgs", "create", "acme")...)
		refuse(t, cli.ExitInconclusive, "slug", s.args("orgs", "create", "Not A Slug")...)
	})
}

// A running server picks up a rotated signing key, and older receipts still verify.
//
//countersign:race
func TestRotationWhileServing(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *testStore) {
		server := start(t, s.flags...)
		admin := server.admin(t)
		before := admin.seal(t)
		rotated := decode[struct {
			Current string
			Keys    []string
		}](t, succeed(t, s.args("keys", "rotate-signing", "--json")...))
		if rotated.Current == before.Receipt.KeyID || len(rotated.Keys) != 2 {
			t.Fatalf("rotation gave %+v", rotated)
		}
		var after receiptAnswer
		servicetest.Eventually(t, "receipts carry the new key", func() bool {
			after = admin.seal(t)
			return after.Receipt.KeyID == rotated.Current
		})
		for _, receipt := range []string{before.ReceiptID, after.ReceiptID} {
			if !admin.valid(t, receipt) {
				t.Error("a receipt does not verify after the rotation")
			}
		}
		succeed(t, s.args("audit")...)
		if code := server.stop(t); code != 0 {
			t.Errorf("exit status %d", code)
		}
		if !start(t, s.flags...).client(admin.key).valid(t, before.ReceiptID) {
			t.Error("an old receipt does not verify after the restart")
		}
	})
}

// A key file that others can read is refused.
func TestExposedKeyFileIsRefused(t *testing.T) {
	t.Parallel()
	s := newSQLite(t)
	start(t, s.flags...).stop(t)
	if err := os.Chmod(s.keyFile(), 0o644); err != nil {
		t.Fatal(err)
	}
	refuse(t, cli.ExitFailed, "chmod 600", s.args("serve", "--listen", "127.0.0.1:0")...)
}

// A database with receipts is not served with new or foreign keys.
//
//countersign:race
func TestStoreIsNeverServedWithFreshKeys(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *testStore) {
		server := start(t, s.flags...)
		server.admin(t).seal(t)
		server.stop(t)
		if err := os.Rename(s.keyFile(), s.keyFile()+".away"); err != nil {
			t.Fatal(err)
		}
		refuse(t, cli.ExitFailed, "restore it", s.args("serve", "--listen", "127.0.0.1:0")...)
		if _, err := os.Stat(s.keyFile()); !os.IsNotExist(err) {
			t.Errorf("a key file was made: %v", err)
		}
		refuse(t, cli.ExitInconclusive, "--keys", s.args("audit")...)
		foreign := newSQLite(t)
		start(t, foreign.flags...).stop(t)
		refuse(t, cli.ExitFailed, "restore the key file", s.args("serve", "--listen", "127.0.0.1:0", "--keys", foreign.keyFile())...)
	})
}
