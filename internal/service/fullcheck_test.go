package service_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/testdb"
	"countersign/internal/verify"
)

// linked is a sealed chain with a public link to its receipt.
type linked struct {
	governed
	chain   ledger.ChainID
	receipt ledger.ReceiptID
	link    string
}

// linkChain seals a chain with these payloads and creates the link.
func linkChain(t *testing.T, db *testdb.Database, payloads ...string) *linked {
	t.Helper()
	clock := newClock()
	s := serve(t, service.Config{Store: db.Open(t), Clock: clock.Now})
	l := &linked{governed: governed{Service: s, t: t, clock: clock, who: newTenant(t, s, "acme")}}
	l.chain = fillChain(t, s, l.who, "linked", 0)
	for _, payload := range payloads {
		l.record(l.chain, request(t, ledger.ParseAction, `{"agent_name":"agent","action_type":"tool_call","action_name":"note","payload":`+payload+`}`))
	}
	must[*service.Completed](t)(s.CompleteChain(t.Context(), l.who.agent, l.chain, &ledger.Completion{}))
	l.receipt = must[*ledger.StoredReceipt](t)(s.ReceiptOfChain(t.Context(), l.who.agent, l.chain)).ID
	_, text, err := s.IssueToken(t.Context(), l.who.admin, &service.TokenRequest{Artifact: ledger.ArtifactReceipt, ArtifactID: l.receipt.UUID}, "")
	done(t, err)
	l.link = text.Reveal()
	return l
}

// linkLargeChain is linkChain with one that is too large to be read for outsiders.
func linkLargeChain(t *testing.T, db *testdb.Database) *linked {
	t.Helper()
	payloads := make([]string, 10)
	for i := range payloads {
		payloads[i] = fmt.Sprintf(`{"text":%q}`, strings.Repeat("x ", 450_000))
	}
	return linkChain(t, db, payloads...)
}

func (l *linked) public() *ledger.PublicVerification {
	l.t.Helper()
	return must[*ledger.PublicVerification](l.t)(l.VerifyToken(l.t.Context(), l.link))
}

// An outsider gets the same verdict on a chain for two seconds, with the time of the check, and a
// new verdict after that.
func TestAVerdictIsReusedForTwoSeconds(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		l := linkChain(t, db, `{"amount_usd":92}`)
		first := l.public()
		if first.Overall != ledger.Verified {
			t.Fatalf("untouched, it is %+v", first)
		}
		tamper(t, db, `UPDATE events SET payload = NULL`)
		l.clock.Advance(1999 * time.Millisecond)
		if again := l.public(); *again != *first {
			t.Errorf("within two seconds it is %+v, want %+v", again, first)
		}
		l.clock.Advance(time.Millisecond)
		if later := l.public(); later.Overall != ledger.VerdictFailed || later.VerifiedAt <= first.VerifiedAt {
			t.Errorf("after two seconds it is %+v", later)
		}
		check := must[*ledger.ReceiptCheck](t)(l.CheckReceipt(t.Context(), l.receipt))
		if check.Valid || !check.Full {
			t.Errorf("the check by id says %+v", check)
		}
	})
}

// A chain that was found sound is read again: whatever was changed in its rows since fails the next
// check.
func TestASoundChainIsReadAgain(t *testing.T) {
	t.Parallel()
	for _, statement := range []string{
		`UPDATE chains SET environment = 'other'`,
		`UPDATE chains SET external_id = 'other'`,
		`UPDATE chain_states SET state = CAST(CAST(state AS TEXT) || ' ' AS BLOB)`,
		`UPDATE chain_states SET mac = zeroblob(length(mac))`,
		`UPDATE events SET idempotency_key = 'other' WHERE sequence = 2`,
		`UPDATE events SET body = CAST(CAST(body AS TEXT) || ' ' AS BLOB) WHERE sequence = 2`,
		`UPDATE events SET payload = CAST(CAST(payload AS TEXT) || ' ' AS BLOB) WHERE sequence = 2`,
		`UPDATE events SET redactions = x'7b7d' WHERE sequence = 2`,
		`UPDATE events SET mac = zeroblob(length(mac)) WHERE sequence = 2`,
		`UPDATE events SET sequence = 9 WHERE sequence = 3`,
		`DELETE FROM events WHERE sequence = 3`,
		`INSERT INTO addenda (chain_no, position, sequence, body) SELECT no, 9, 1, x'7b7d' FROM chains`,
	} {
		t.Run(statement, func(t *testing.T) {
			t.Parallel()
			db := testdb.SQLite(t)
			l := linkChain(t, db, `{"n":1}`, `{"n":2}`, `{"n":3}`)
			if first := l.public(); first.Overall != ledger.Verified {
				t.Fatalf("untouched, it is %+v", first)
			}
			tamper(t, db, statement)
			l.clock.Advance(2 * time.Second)
			if later := l.public(); later.Overall != ledger.VerdictFailed {
				t.Errorf("changed, it is %+v", later)
			}
		})
	}
}

func tamper(t *testing.T, db *testdb.Database, statement string) {
	t.Helper()
	result, err := db.Direct(t).ExecContext(t.Context(), statement)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := result.RowsAffected(); n == 0 || err != nil {
		t.Fatalf("%s changed %d rows: %v", statement, n, err)
	}
}

// A chain that is too large is not read for outsiders. Every process shows them the last full
// check with its time; nothing if there was none; and nothing from a forged record, which the
// audit names.
func TestALargeChainShowsItsLastFullCheck(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		l := linkLargeChain(t, db)
		want := func(when string, overall ledger.Overall, at ledger.Time) {
			t.Helper()
			l.clock.Advance(3 * time.Second)
			if got := l.public(); got.Overall != overall || at != 0 && got.VerifiedAt != at {
				t.Errorf("%s: it is %+v, want %s at %s", when, got, overall, at)
			}
		}
		want("before there was a check", ledger.Indeterminate, 0)
		if check := must[*ledger.ReceiptCheck](t)(l.CheckReceipt(t.Context(), l.receipt)); !check.Valid || check.Full {
			t.Errorf("the check by id says %+v", check)
		}
		checked := ledger.TimeOf(l.clock.Now())
		v := must[*ledger.Verification](t)(l.VerifyReceipt(t.Context(), l.who.member, l.receipt))
		if overall, _ := v.Conclude(); overall != ledger.Verified {
			t.Fatalf("a member is told %s", overall)
		}
		want("after a member's", ledger.Verified, checked)
		passed := (&scene{t: t, direct: db.Direct(t), dialect: dialectOf(db)}).copyOf("full_checks")
		var payload []byte
		done(t, db.Direct(t).QueryRowContext(t.Context(), "SELECT payload FROM events WHERE sequence = 10").Scan(&payload))

		tamper(t, db, `UPDATE events SET payload = NULL WHERE sequence = 10`)
		want("not looked at since", ledger.Verified, checked)
		audited := ledger.TimeOf(l.clock.Now())
		report := must[*verify.AuditReport](t)(l.Operator().Audit(t.Context(), "acme", verify.AuditOptions{}))
		if report.Break == nil || report.Break.Check != ledger.CheckEventsDigest {
			t.Errorf("the audit finds %+v", report.Break)
		}
		want("after an audit", ledger.VerdictFailed, audited)
		if check := must[*ledger.ReceiptCheck](t)(l.CheckReceipt(t.Context(), l.receipt)); check.Valid {
			t.Errorf("the check by id says %+v", check)
		}

		tamper(t, db, `UPDATE full_checks SET failed = ''`)
		want("with a forged record", ledger.Indeterminate, 0)

		// An earlier record is authentic, but the check that failed since has left a finding.
		done(t, l.Operator().ReportAudit(t.Context(), l.who.id, report))
		(&scene{t: t, direct: db.Direct(t), dialect: dialectOf(db)}).rollBack(passed)
		want("with an earlier record", ledger.VerdictFailed, 0)
		execute(t, db.Direct(t), db, "UPDATE events SET payload = ? WHERE sequence = 10", payload)
		l.clock.Advance(time.Minute)
		checked = ledger.TimeOf(l.clock.Now())
		must[*ledger.Verification](t)(l.VerifyReceipt(t.Context(), l.who.member, l.receipt))
		want("after the payload is as it was", ledger.Verified, checked)
	})
}

// What outsiders are shown of an earlier check of a large chain proves nothing: no finding is renewed by
// it, so that the check that passes after a repair is shown, also if they asked while it ran.
func TestARepeatedFailureLeavesNoFinding(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		l := linkLargeChain(t, db)
		var payload []byte
		done(t, db.Direct(t).QueryRowContext(t.Context(), "SELECT payload FROM events WHERE sequence = 10").Scan(&payload))
		tamper(t, db, `UPDATE events SET payload = NULL WHERE sequence = 10`)
		must[*ledger.Verification](t)(l.VerifyReceipt(t.Context(), l.who.member, l.receipt))
		found := must[[]*service.Finding](t)(l.Operator().Findings(t.Context(), ""))
		if len(found) != 1 || !found[0].Open() {
			t.Fatalf("found %+v", found)
		}
		done(t, l.Operator().Acknowledge(t.Context(), found[0], "will be repaired"))

		execute(t, db.Direct(t), db, "UPDATE events SET payload = ? WHERE sequence = 10", payload)
		l.clock.Advance(25 * time.Hour)
		if got := l.public(); got.Overall != ledger.VerdictFailed {
			t.Errorf("until the next full check it is %+v", got)
		}
		if check := must[*ledger.ReceiptCheck](t)(l.CheckReceipt(t.Context(), l.receipt)); check.Valid {
			t.Errorf("until the next full check the check by id says %+v", check)
		}
		l.WaitForFindings()
		later := must[[]*service.Finding](t)(l.Operator().Findings(t.Context(), ""))
		if len(later) != 1 {
			t.Fatalf("the repeated failure left %+v", later)
		}
		if later[0].SeenAt != found[0].SeenAt || later[0].Open() {
			t.Errorf("the finding from %s was seen again at %s, and is open: %t", found[0].SeenAt, later[0].SeenAt, later[0].Open())
		}
	})
}

// However soon a large chain is changed again in the same way, its failed check is shown, not an earlier
// record of one that passed between them.
func TestAFailedCheckIsShownDespiteAnOlderRecord(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		l := linkLargeChain(t, db)
		scene := &scene{t: t, direct: db.Direct(t), dialect: dialectOf(db)}
		var payload []byte
		done(t, scene.direct.QueryRowContext(t.Context(), "SELECT payload FROM events WHERE sequence = 10").Scan(&payload))
		verified := func(want ledger.Overall) {
			t.Helper()
			l.clock.Advance(time.Hour)
			v := must[*ledger.Verification](t)(l.VerifyReceipt(t.Context(), l.who.member, l.receipt))
			if overall, _ := v.Conclude(); overall != want {
				t.Fatalf("a member is told %s, want %s", overall, want)
			}
			l.clock.Advance(time.Minute)
		}
		l.public() // from now on it is known to be too large
		tamper(t, db, `UPDATE events SET payload = NULL WHERE sequence = 10`)
		verified(ledger.VerdictFailed)
		execute(t, scene.direct, db, "UPDATE events SET payload = ? WHERE sequence = 10", payload)
		verified(ledger.Verified)
		passed := scene.copyOf("full_checks")
		tamper(t, db, `UPDATE events SET payload = NULL WHERE sequence = 10`)
		verified(ledger.VerdictFailed)
		scene.rollBack(passed)
		if got := l.public(); got.Overall != ledger.VerdictFailed {
			t.Errorf("with the earlier record it is %+v", got)
		}
	})
}

// The audit names a forged record of a full check.
func TestTheAuditNamesAForgedFullCheck(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		l := linkChain(t, db, `{}`)
		hash, id := "zeroblob(32)", "id"
		if db.Kind != "sqlite" {
			hash = `decode(repeat('00', 32), 'hex')`
		}
		tamper(t, db, `INSERT INTO full_checks (org_id, receipt_id, receipt_hash, failed, checked_at, mac)
			SELECT org_id, `+id+`, `+hash+`, '', 7, `+hash+` FROM receipts`)
		report := must[*verify.AuditReport](t)(l.Operator().Audit(t.Context(), "acme", verify.AuditOptions{}))
		if report.Break == nil || report.Break.Check != ledger.CheckRegistry || !strings.Contains(report.Break.Detail, "full check") {
			t.Errorf("the audit finds %+v", report.Break)
		}
	})
}

// However many outsiders send requests concurrently, each is answered: with the verdict, or that
// the server is busy.
//
//countersign:race
func TestManyStrangersAtOnce(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		l := linkChain(t, db, `{"amount_usd":92}`)
		var asking sync.WaitGroup
		for range 40 {
			asking.Go(func() {
				v, err := l.VerifyToken(t.Context(), l.link)
				if err != nil && !errors.Is(err, verify.ErrBusy) || err == nil && v.Overall != ledger.Verified {
					t.Errorf("answered %+v, %v", v, err)
				}
			})
		}
		asking.Wait()
	})
}
