package service_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/store"
	"countersign/internal/testdb"
	"countersign/internal/verify"
)

// known returns the findings that an organization's members see: check, subject, and whether it is
// open.
func (s *suspect) known(by *service.Service) (known []string) {
	s.t.Helper()
	by.WaitForFindings()
	by.ForgetFindings()
	for _, finding := range must[[]*service.Finding](s.t)(by.Findings(s.t.Context(), s.who.member)) {
		status := "open"
		if !finding.Open() {
			status = "acknowledged"
		}
		if finding.Tampered {
			status = "tampered"
		}
		known = append(known, fmt.Sprint(finding.Check, " ", finding.Subject, " ", status))
	}
	slices.Sort(known)
	return known
}

func (s *suspect) wantKnown(what string, by *service.Service, want ...string) {
	s.t.Helper()
	slices.Sort(want)
	if diff := gocmp.Diff(want, s.known(by)); diff != "" {
		s.t.Errorf("%s: known (-want +got):\n%s", what, diff)
	}
}

// actsOf counts the acts of a kind in the audit log.
func (s *suspect) actsOf(action string) (count int) {
	s.t.Helper()
	for _, stored := range must[[]*ledger.StoredAct](s.t)(s.Acts(s.t.Context(), s.who.admin, 0, 1000)) {
		if act := must[*ledger.Act](s.t)(ledger.DecodeAct(stored.Body)); act.Action == action {
			count++
		}
	}
	return count
}

// one returns the only known finding.
func (s *suspect) one() *service.Finding {
	s.t.Helper()
	findings := must[[]*service.Finding](s.t)(s.Operator().Findings(s.t.Context(), s.who.slug))
	if len(findings) != 1 {
		s.t.Fatalf("%d findings, want one", len(findings))
	}
	return findings[0]
}

// anyOf returns a row of a table that none of the callers needs.
func (s *suspect) anyOf(table string) int {
	s.t.Helper()
	if table != "api_keys" {
		return 0
	}
	rows := s.inOrder(table)
	return slices.IndexFunc(rows, func(r row) bool { return r.org == s.who.slug && r.value("role") == "agent" })
}

// report audits like the command line.
func (s *suspect) report(by *service.Service) *verify.AuditReport {
	s.t.Helper()
	report := must[*verify.AuditReport](s.t)(by.Operator().Audit(s.t.Context(), s.who.slug, verify.AuditOptions{}))
	done(s.t, by.Operator().ReportAudit(s.t.Context(), s.who.id, report))
	return report
}

// Tampering stays on record from when it is noticed, by whomever and however often: in the
// organization's list, on all replicas and after a restart, once in the audit log, and for no
// other organization.
//
//countersign:race
func TestTamperingStandsHoweverItIsFound(t *testing.T) {
	t.Parallel()
	signature := func(s *suspect) string { return fmt.Sprint("signature ", s.receipts[1]) }
	for name, test := range map[string]struct {
		table, column string
		find          func(s *suspect)
		want          func(s *suspect) string
	}{
		"a member's verification": {find: func(s *suspect) {
			must[*ledger.Verification](s.t)(s.VerifyReceipt(s.t.Context(), s.who.member, s.receipts[1]))
		}},
		"an admin's audit":        {find: func(s *suspect) { s.auditAll(s.Service) }},
		"the check of the ledger": {find: func(s *suspect) { s.checkRound(s.Service) }},
		"an operator's audit":     {find: func(s *suspect) { s.report(s.Service) }},
		"an operator's verification": {find: func(s *suspect) {
			verdict := must[*verify.Verdict](s.t)(s.Operator().VerifyReceipt(s.t.Context(), s.receipts[1]))
			done(s.t, s.Operator().ReportVerdict(s.t.Context(), s.receipts[1], verdict))
		}},
		"a stranger's check": {find: func(s *suspect) {
			must[*ledger.ReceiptCheck](s.t)(s.CheckReceipt(s.t.Context(), s.receipts[1]))
		}},
		"a stranger's check of an approval": {
			table: "approvals", column: "body",
			find: func(s *suspect) {
				must[*ledger.PublicVerification](s.t)(s.VerifyApprovalPublicly(s.t.Context(), legacyRoute, s.approvals[0]))
			},
			want: func(s *suspect) string { return fmt.Sprint("record ", s.approvals[0]) },
		},
		"a request that meets the row": {
			table: "heads", column: "mac",
			find: func(s *suspect) {
				_, err := s.CompleteChain(s.t.Context(), s.who.agent, s.open("another"), &ledger.Completion{})
				checkCode(s.t, "completing a chain", err, fault.CodeEvidenceTampered)
				s.NoteTampering(s.who.id, err)
			},
			want: func(*suspect) string { return "row " },
		},
		"a list of API keys": {
			table: "api_keys", column: "mac",
			find: func(s *suspect) {
				must[[]*ledger.KeyRecord](s.t)(s.APIKeys(s.t.Context(), s.who.admin, ledger.KeyID{}, 100))
			},
			want: func(*suspect) string { return "access the API key " },
		},
	} {
		t.Run(name, func(t *testing.T) {
			testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
				s := newSuspect(t, db, 3)
				stranger := newTenant(t, s.Service, "stranger")
				want := signature
				if test.want != nil {
					want = test.want
				}
				if test.table == "" {
					s.edit("receipts", "body", 1)
				} else {
					s.edit(test.table, test.column, s.anyOf(test.table))
				}
				for range 3 {
					test.find(s)
				}
				s.WaitForFindings()
				for what, by := range map[string]*service.Service{"here": s.Service, "another replica": s.replica()} {
					if known := s.known(by); len(known) != 1 || !strings.HasPrefix(known[0], want(s)) || !strings.HasSuffix(known[0], " open") {
						t.Errorf("%s: known %q, want %q alone, open", what, known, want(s))
					}
					if open := must[int](t)(by.OpenFindings(t.Context())); open != 1 {
						t.Errorf("%s: %d are open, want 1", what, open)
					}
					if theirs := must[[]*service.Finding](t)(by.Findings(t.Context(), stranger.member)); len(theirs) > 0 {
						t.Errorf("%s: a stranger's organization has %d", what, len(theirs))
					}
				}
				if acts := s.actsOf(ledger.ActTamperingFound); acts != 1 {
					t.Errorf("the audit log tells of it %d times, want once", acts)
				}
				if report := s.report(s.Service); report.Further != nil || report.Break != nil && report.Break.Check == ledger.CheckFindings {
					t.Errorf("the audit finds something wrong with the findings: %v %v", report.Break, report.Further)
				}
			})
		})
	}
}

// Deleting or changing a finding is detected: by a server that knew it, by the audit and by the
// self-check, although the tampering that the finding is about breaks first.
//
//countersign:race
func TestFindingsThatAreTamperedWith(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		crime string
		word  string
		find  func(s *suspect)
	}{
		"deleted, and audited": {"DELETE FROM findings", "deleted", func(s *suspect) {
			if report := s.report(s.replica()); report.Break == nil || report.Further == nil || report.Further.Check != ledger.CheckFindings {
				s.t.Errorf("the audit names %v and %v", report.Break, report.Further)
			}
		}},
		"deleted, and looked for": {"DELETE FROM findings", "deleted", func(s *suspect) { s.checkRound(s.replica()) }},
		"deleted, and missed":     {"DELETE FROM findings", "deleted", func(s *suspect) { s.known(s.Service) }},
		"acknowledged": {"UPDATE findings SET acknowledged_at = 1, acknowledged_by = 'operator'", "changed", func(s *suspect) {
			s.report(s.replica())
		}},
		"moved to another": {"UPDATE findings SET subject = 'nothing'", "changed", func(s *suspect) { s.checkRound(s.replica()) }},
	} {
		t.Run(name, func(t *testing.T) {
			testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
				s := newSuspect(t, db, 3)
				s.edit("receipts", "body", 1)
				must[*ledger.Verification](t)(s.VerifyReceipt(t.Context(), s.who.member, s.receipts[1]))
				id := verify.FindingID(s.one().Name)
				s.known(s.Service)
				done(t, s.exec(test.crime))
				if open := must[int](t)(s.replica().OpenFindings(t.Context())); test.word == "changed" && open != 1 {
					t.Errorf("%d are open, want the changed one", open)
				}
				test.find(s)
				if known := s.known(s.Service); !slices.ContainsFunc(known, func(line string) bool {
					return strings.HasPrefix(line, "findings ") && strings.Contains(line, id) && strings.Contains(line, test.word) && strings.HasSuffix(line, " open")
				}) {
					t.Errorf("known are %q, want one that %s was %s", known, id, test.word)
				}
			})
		})
	}
}

// An acknowledged finding is neither reported again nor counted, on any replica, as long as the
// evidence is unchanged. Other evidence opens it again, so restoring the acknowledged row does not
// help an intruder.
//
//countersign:race
func TestAcknowledgedTampering(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		s := newSuspect(t, db, 3)
		s.edit("receipts", "body", 1)
		look := func(by *service.Service) {
			t.Helper()
			must[*ledger.Verification](t)(by.VerifyReceipt(t.Context(), s.who.member, s.receipts[1]))
		}
		look(s.Service)
		s.told()
		line := fmt.Sprint("signature ", s.receipts[1])
		checkCode(t, "without a reason", s.Operator().Acknowledge(t.Context(), s.one(), " "), fault.CodeInvalid)
		checkCode(t, "with a long reason", s.Operator().Acknowledge(t.Context(), s.one(), strings.Repeat("x", 1001)), fault.CodeInvalid)
		done(t, s.Operator().Acknowledge(t.Context(), s.one(), "a test of ours"))
		s.wantKnown("acknowledged", s.Service, line+" acknowledged")
		if got := s.one(); got.Reason != "a test of ours" || got.AcknowledgedBy != "operator" || got.AcknowledgedAt == nil {
			t.Errorf("acknowledged as %+v", got)
		}
		done(t, s.Operator().Acknowledge(t.Context(), s.one(), "again"))
		if acts := s.actsOf(ledger.ActTamperingAcknowledge); acts != 1 {
			t.Errorf("the audit log tells of %d acknowledgements, want 1", acts)
		}
		another := s.replica()
		s.clock.Advance(8 * 24 * time.Hour)
		look(another)
		s.report(another)
		s.checkRound(another)
		s.wantTold("after more than a week")
		s.wantKnown("found again", another, line+" acknowledged")
		if report := s.report(another); report.Further != nil {
			t.Errorf("the audit finds %v in findings that are as they should be", report.Further)
		}
		acknowledged := s.rowsOf("findings")[0]
		if seen := s.one().SeenAt; s.Now()-seen > ledger.Time(24*time.Hour/time.Millisecond)+60_000 {
			t.Errorf("last seen %s, and it is %s", seen, s.Now())
		}

		s.edit("receipts", "body", 1) // puts it back
		s.edit("receipts", "previous_hash", 1)
		look(another)
		open := fmt.Sprint("columns ", s.receipts[1], " open")
		s.wantKnown("something else is wrong with it", another, line+" acknowledged", open)

		done(t, s.exec("UPDATE receipts SET body = "+s.dialect.mark(1)+" WHERE sequence = 2", []byte("nothing at all")))
		look(another)
		s.wantKnown("edited otherwise", another, line+" open", open)
		if acts := s.actsOf(ledger.ActTamperingFound); acts != 3 {
			t.Errorf("the audit log tells of %d findings, want 3", acts)
		}
		for _, r := range s.rowsOf("findings") {
			if r.value("name") == acknowledged.value("name") {
				done(t, s.remove(&r))
			}
		}
		done(t, s.insert(&acknowledged))
		s.wantKnown("rolled back", s.replica(), line+" acknowledged", open)
		if report := s.report(s.replica()); report.Further == nil || report.Further.Check != ledger.CheckFindings {
			t.Errorf("the acknowledged row was rolled back, and the audit finds %v", report.Further)
		}
		s.wantKnown("reported", s.replica(), line+" open", open, fmt.Sprintf("findings the finding %s was changed open", strings.TrimPrefix(fmt.Sprint(acknowledged.value("name")), "tampering/")))
	})
}

// Tampering with an organization or its audit log does not prevent findings, and findings do not
// hide it: nothing is appended to the log of an organization that is not as the last act left it.
//
//countersign:race
func TestFindingsOfATamperedOrganization(t *testing.T) {
	t.Parallel()
	for name, crime := range map[string]func(s *suspect){
		"changed":           func(s *suspect) { done(s.t, s.exec("UPDATE organizations SET name = 'intruder'")) },
		"rolled back":       func(s *suspect) { s.rollBackOrganization() },
		"unreadable":        func(s *suspect) { s.breakSettings() },
		"gone":              func(s *suspect) { done(s.t, s.withoutConstraints("DELETE FROM organizations")) },
		"with another log":  func(s *suspect) { s.edit("act_logs", "mac", 0) },
		"without its log":   func(s *suspect) { done(s.t, s.exec("DELETE FROM act_logs")) },
		"with an empty log": func(s *suspect) { done(s.t, s.exec("DELETE FROM acts")) },
	} {
		t.Run(name, func(t *testing.T) {
			testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
				s := newSuspect(t, db, 2)
				s.edit("receipts", "body", 1)
				crime(s)
				another := s.replica()
				if name == "gone" { // nothing is served of it any more
					another.NoteTampering(s.who.id, ledger.ErrStateTampered)
				} else {
					must[*ledger.ReceiptCheck](t)(another.CheckReceipt(t.Context(), s.receipts[1]))
				}
				another.WaitForFindings()
				if open := must[int](t)(another.OpenFindings(t.Context())); open != 1 {
					t.Errorf("%d findings are open, want 1", open)
				}
				if name != "rolled back" {
					return
				}
				s.edit("receipts", "body", 1)
				report := must[*verify.AuditReport](t)(another.Operator().Audit(t.Context(), s.who.slug, verify.AuditOptions{}))
				if report.Break == nil || report.Break.Check != ledger.CheckAuditLog {
					t.Errorf("the organization was rolled back, and the audit finds %v", report.Break)
				}
			})
		})
	}
}

// rollBackOrganization restores the row that the organization had under other settings.
func (s *suspect) rollBackOrganization() {
	s.t.Helper()
	old := s.rowsOf("organizations")[0]
	s.settings(`{"fallback_approvers":["ada@example.com"]}`)
	done(s.t, s.exec("UPDATE organizations SET settings = "+s.dialect.mark(1)+", controls = "+s.dialect.mark(2), old.value("settings"), old.value("controls")))
}

func (s *suspect) breakSettings() {
	s.t.Helper()
	var nothing any = []byte("[]")
	if s.db.Kind == "postgres" {
		nothing = "[]"
	}
	done(s.t, s.exec("UPDATE organizations SET settings = "+s.dialect.mark(1), nothing))
}

// withoutConstraints runs a statement with foreign keys turned off.
func (s *suspect) withoutConstraints(statement string) error {
	off := "PRAGMA foreign_keys = off"
	if s.db.Kind == "postgres" {
		off = "SET session_replication_role = replica"
	}
	conn := s.direct
	conn.SetMaxOpenConns(1)
	if err := s.exec(off); err != nil {
		return err
	}
	return s.exec(statement)
}

// An outsider who repeats a request causes one write. Forged findings count as open, cannot break
// the audit log when they are acknowledged, and do not keep other findings out.
//
//countersign:race
func TestFindingsAreBounded(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		s := newSuspect(t, db, 3)
		s.edit("receipts", "body", 0)
		acts := len(s.rowsOf("acts"))
		for range 50 {
			must[*ledger.ReceiptCheck](t)(s.CheckReceipt(t.Context(), s.receipts[0]))
		}
		s.WaitForFindings()
		if more := len(s.rowsOf("acts")) - acts; more != 1 {
			t.Errorf("a stranger's requests have written %d acts, want 1", more)
		}
		forged := s.rowsOf("findings")[0]
		for i, odd := range []string{"", "x", strings.Repeat("long", 3000), "tampering/" + strings.Repeat("F", 64), "\x1b[2J\u202e"} {
			row := forged.with(map[string]any{"name": odd, "acknowledged_at": int64(i)})
			done(t, s.insert(&row))
		}
		if open := must[int](t)(s.replica().OpenFindings(t.Context())); open != 6 {
			t.Errorf("%d are open, want the genuine one and 5 forged", open)
		}
		for _, finding := range must[[]*service.Finding](t)(s.Operator().Findings(t.Context(), "")) {
			if finding.Open() {
				done(t, s.Operator().Acknowledge(t.Context(), finding, "looked at"))
			}
		}
		s.edit("receipts", "body", 0)
		s.ForgetFindings()
		if open := must[int](t)(s.OpenFindings(t.Context())); open != 0 {
			t.Errorf("%d are open when all are acknowledged", open)
		}
		checkIntact(t, s.replica(), s.who.slug, 3)

		for i := range 1000 {
			row := forged.with(map[string]any{"name": fmt.Sprint("forged ", i)})
			done(t, s.insert(&row))
		}
		acts = len(s.rowsOf("acts"))
		s.edit("receipts", "body", 1)
		another := s.replica()
		must[*ledger.Verification](t)(another.VerifyReceipt(t.Context(), s.who.member, s.receipts[1]))
		if more := len(s.rowsOf("acts")) - acts; more != 1 {
			t.Errorf("beside 1,000 forged findings, a genuine one has written %d acts", more)
		}
		listed := must[[]*service.Finding](t)(another.Findings(t.Context(), s.who.member))
		genuine := slices.ContainsFunc(listed, func(f *service.Finding) bool { return !f.Tampered && f.Subject == s.receipts[1].String() && f.Open() })
		if !genuine || len(listed) > 200 {
			t.Errorf("%d findings are listed, the genuine one among them: %t", len(listed), genuine)
		}
	})
}

// hanging answers no question about a finding until the caller gives up.
type hanging struct{ store.Store }

func (hanging) Finding(ctx context.Context, _ store.FindingRef) (*store.FindingRecord, error) {
	<-ctx.Done()
	return nil, fmt.Errorf("%w: %w", store.ErrUnavailable, ctx.Err())
}

// A finding that cannot be stored in time is logged.
func TestFindingsThatAreNotStoredAreLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := serve(t, service.Config{
			Store: hanging{testdb.SQLite(t).Open(t)}, Clock: time.Now, Log: slog.New(slog.NewTextHandler(&log, nil)),
		})
		s.NoteTampering(newTenant(t, s, "acme").id, ledger.ErrStateTampered)
		s.WaitForFindings()
		if want := "storing a finding of tampering failed"; !strings.Contains(log.String(), want) {
			t.Errorf("logged %q, want %q", log.String(), want)
		}
	})
}
