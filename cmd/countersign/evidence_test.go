package main

import (
	"net/http"
	"os"
	"strings"
	"testing"

	"countersign/internal/cli"
	"countersign/internal/cli/operate"
	"countersign/internal/ledger"
	"countersign/internal/verify"
)

// tampering is what an intruder does, in each store's own words, and how it is
// found out.
var tamperings = map[string]struct {
	sqlite, postgres string
	audit            ledger.Check // what the audit names first
	verify           ledger.Check // what fails for the second of three receipts
}{
	"edited": {
		sqlite:   `UPDATE receipts SET body = CAST(replace(CAST(body AS TEXT), 'clerk', 'clark') AS BLOB) WHERE sequence = 2`,
		postgres: `update receipts set body = convert_to(replace(convert_from(body, 'UTF8'), 'clerk', 'clark'), 'UTF8') where sequence = 2`,
		audit:    ledger.CheckSignature, verify: ledger.CheckSignature,
	},
	"end cut off": {
		sqlite: `DELETE FROM receipts WHERE sequence = 3`, postgres: `delete from receipts where sequence = 3`,
		audit: ledger.CheckHead, verify: ledger.CheckNextLink,
	},
	"beginning cut off": {
		sqlite: `DELETE FROM receipts WHERE sequence = 1`, postgres: `delete from receipts where sequence = 1`,
		audit: ledger.CheckSequence, verify: ledger.CheckPreviousLink,
	},
}

// Receipts and the ledger can be verified beside a running server and after it, and
// the audit says what it left out.
func TestEvidenceCommands(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *testStore) {
		server := start(t, s.flags...)
		admin := server.admin(t)
		receipts := []string{admin.seal(t).ReceiptID, admin.seal(t).ReceiptID, admin.seal(t).ReceiptID}
		if out := succeed(t, s.args("audit")...); !strings.Contains(out, "default: intact; checked 3 receipts, 3 chains, 3 events, 2 acts in the audit log") {
			t.Errorf("the audit beside the running server says %q", out)
		}
		for i, id := range receipts {
			verdict := decode[verify.Verdict](t, succeed(t, s.args("verify", id, "--json")...))
			if !verdict.Valid || verdict.Organization != "default" || len(verdict.Checks) < 6 {
				t.Errorf("receipt %d: %+v", i+1, verdict)
			}
		}
		if out := succeed(t, s.args("verify", receipts[0])...); !strings.HasPrefix(out, "VALID  receipt CSN-") {
			t.Errorf("verify says %q", out)
		}
		number := decode[verify.Verdict](t, succeed(t, s.args("verify", receipts[1], "--json")...)).ReceiptNumber
		for _, name := range []string{number, strings.ToLower(number)} {
			if out := succeed(t, s.args("verify", name)...); !strings.HasPrefix(out, "VALID  receipt "+number) {
				t.Errorf("verify %s says %q", name, out)
			}
		}
		succeed(t, s.args("orgs", "create", "other")...)
		refuse(t, cli.ExitInconclusive, "name one with --org", s.args("verify", number)...)
		refuse(t, cli.ExitInconclusive, "no receipt with that number", s.args("verify", number, "--org", "other")...)
		succeed(t, s.args("verify", number, "--org", "default")...)
		if out := succeed(t, s.args("audit", "--receipts-only", "--org", "default")...); !strings.Contains(out, "not checked: columns, events_digest, chain") {
			t.Errorf("the audit does not say what it left out: %q", out)
		}
		server.stop(t)
		refuse(t, cli.ExitInconclusive, "no receipt with that id", s.args("verify", "00000000-0000-4000-8000-000000000000")...)
		refuse(t, cli.ExitInconclusive, "36 characters", s.args("verify", "not-an-id")...)
		if r := refuse(t, cli.ExitInconclusive, `no organization "nobody"`, s.args("audit", "--org", "nobody")...); r.out != "" {
			t.Errorf("a name that leads nowhere gets a verdict: %s", r.out)
		}
	})
}

// The audit and verify commands exit with a failure that names the check which an
// edit of the database broke.
//
//countersign:race
func TestTamperingIsFound(t *testing.T) {
	t.Parallel()
	for name, tampering := range tamperings {
		t.Run(name, func(t *testing.T) {
			onEachStore(t, func(t *testing.T, s *testStore) {
				server := start(t, s.flags...)
				admin := server.admin(t)
				admin.seal(t)
				second := admin.seal(t).ReceiptID
				admin.seal(t)
				server.stop(t)
				statement := tampering.sqlite
				if s.Kind != "sqlite" {
					statement = tampering.postgres
				}
				s.exec(t, statement)

				r := refuse(t, cli.ExitFailed, string(tampering.audit), s.args("audit", "--json")...)
				result := decode[operate.AuditResult](t, r.out)
				if result.Status != verify.AuditBroken || result.Organizations[0].Break == nil || result.Organizations[0].Break.Check != tampering.audit {
					t.Errorf("the audit found %s", r.out)
				}
				refuse(t, cli.ExitFailed, "default: BROKEN at CSN-", s.args("audit")...)
				verdict := decode[verify.Verdict](t, refuse(t, cli.ExitFailed, `"valid": false`, s.args("verify", second, "--json")...).out)
				if failure := verdict.FirstFailure(); failure == nil || failure.Name != tampering.verify {
					t.Errorf("verify found %+v", verdict.Checks)
				}
				refuse(t, cli.ExitFailed, "TAMPERED", s.args("verify", second)...)
			})
		})
	}
}

// If no receipt is left to tell the year, the audit makes up no number: before the first receipt, and
// if all are gone.
//
//countersign:race
func TestAuditNamesNoNumberThatNothingHas(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *testStore) {
		finds := func(says string) {
			t.Helper()
			if r := refuse(t, cli.ExitFailed, says, s.args("audit")...); strings.Contains(r.out, "CSN-") {
				t.Errorf("the audit makes up a number: %s", r.out)
			}
		}
		server := start(t, s.flags...)
		admin := server.admin(t)
		admin.call(t, http.MethodPost, "/v1/chains", `{"name":"open"}`, &struct{}{})
		server.stop(t)
		s.exec(t, "UPDATE chain_states SET status = 'completed'")
		finds("default: BROKEN at chain: chain ")
		s.exec(t, "UPDATE chain_states SET status = 'active'")

		server = start(t, s.flags...)
		admin = server.client(admin.key)
		admin.seal(t)
		admin.seal(t)
		server.stop(t)
		s.exec(t, "DELETE FROM receipts")
		finds("default: BROKEN at head: the head counts 2 receipts, and none is stored: all are missing")
	})
}

// Evidence that cannot be read is reported as unreadable and not as tampered with.
func TestUnreadableIsNotTampered(t *testing.T) {
	onEachStore(t, func(t *testing.T, s *testStore) {
		server := start(t, s.flags...)
		id := server.admin(t).seal(t).ReceiptID
		server.stop(t)
		s.exec(t, "ALTER TABLE receipts RENAME TO hidden")
		refuse(t, cli.ExitInconclusive, "could not read", s.args("audit")...)
		refuse(t, cli.ExitInconclusive, "could not read", s.args("verify", id)...)
	})
}

// A command that needs a database does not create one; it names the flag to use.
func TestReadingMakesNoDatabase(t *testing.T) {
	t.Parallel()
	for _, words := range [][]string{
		{"audit"}, {"verify", "00000000-0000-4000-8000-000000000000"}, {"orgs", "list"}, {"keys", "list", "--org", "default"},
		{"backup", "copy.db"}, {"keys", "create", "--org", "default", "--role", "agent"}, {"keys", "rotate-signing"}, {"doctor"},
	} {
		t.Run(strings.Join(words, " "), func(t *testing.T) {
			t.Parallel()
			s := newSQLite(t)
			if r := execute(t, s.args(words...)...); r.code == 0 || !strings.Contains(r.out+r.err, "--data") {
				t.Errorf("exit status %d: %s%s", r.code, r.out, r.err)
			}
			if _, err := os.Stat(s.folder); !os.IsNotExist(err) {
				t.Errorf("the folder was made: %v", err)
			}
		})
	}
}
