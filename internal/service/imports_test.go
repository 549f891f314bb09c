package service_test

import (
	"crypto/ed25519"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/store"
	"countersign/internal/testdb"
	"countersign/internal/verify"
)

// bring imports lines into the tenant's organization.
func (g *governed) bring(lines ...string) (*service.Import, error) {
	return g.Operator().ImportApprovals(g.t.Context(), g.who.slug, strings.NewReader(strings.Join(lines, "\n")))
}

// verdict returns the verification of an approval that a member sees.
func (g *governed) verdict(id ledger.ApprovalID) (ledger.Overall, *ledger.Verification) {
	g.t.Helper()
	v := must[*ledger.Verification](g.t)(g.VerifyApproval(g.t.Context(), g.who.member, id))
	overall, _ := v.Conclude()
	return overall, v
}

// checkAudited expects an intact ledger.
func (g *governed) checkAudited(when string) {
	g.t.Helper()
	report := must[*verify.AuditReport](g.t)(g.Operator().Audit(g.t.Context(), g.who.slug, verify.AuditOptions{}))
	if report.Status != verify.AuditIntact {
		g.t.Errorf("%s: the audit finds %+v", when, report.Break)
	}
}

// Imported approvals are verified for members, by id and through a token, with a key whose trust
// is not evaluated until an admin confirms it. The confirmation can be retracted, and a revoked
// key stays revoked. Importing again changes nothing.
func TestImportedApprovals(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		from, other := servicetest.NewElsewhere(t), servicetest.NewElsewhere(t)
		approval, first := from.Decide(nil)
		denied, second := other.Decide(func(a *ledger.Approval) { a.Status = ledger.ApprovalDenied })
		_, third := from.Decide(func(a *ledger.Approval) { a.Status, a.Reviewer, a.Comment = ledger.ApprovalTimedOut, nil, "" })
		imported := must[*service.Import](t)(g.bring(first, "", second, third, first, ""))
		if imported.Imported != 3 || imported.Known != 0 || len(imported.Keys) != 2 {
			t.Fatalf("imported %+v", imported)
		}
		acts := len(g.acts())
		again := must[*service.Import](t)(g.bring(third, second, first))
		if again.Imported != 0 || again.Known != 3 || len(again.Keys) != 0 || len(g.acts()) != acts {
			t.Errorf("imported again: %+v, %d more acts", again, len(g.acts())-acts)
		}
		_, more := from.Decide(nil)
		if part := must[*service.Import](t)(g.bring(first, more)); part.Imported != 1 || part.Known != 1 || len(part.Keys) != 0 {
			t.Errorf("imported in part: %+v", part)
		}
		g.checkAudited("imported")

		token, secret, err := g.IssueToken(t.Context(), g.who.admin, &service.TokenRequest{Artifact: ledger.ArtifactApproval, ArtifactID: approval.ID.UUID}, "")
		done(t, err)
		wantKey := func(when string, want ledger.KeyStanding) {
			t.Helper()
			overall, v := g.verdict(approval.ID)
			public := must[*ledger.PublicVerification](t)(g.VerifyApprovalPublicly(t.Context(), legacyRoute, approval.ID))
			shared := must[*ledger.PublicVerification](t)(g.VerifyToken(t.Context(), secret.Reveal()))
			if overall != ledger.Verified || v.Signature.Standing != ledger.StandingValid || v.Key != want || v.Integrity.Standing != ledger.StandingValid {
				t.Errorf("%s: %s, signature %s, key %s, integrity %s", when, overall, v.Signature.Standing, v.Key, v.Integrity.Standing)
			}
			if v.Evidence != (ledger.Finding{Standing: ledger.StandingNotApplicable, Reason: "imported"}) || v.Chain != nil || v.Approval.Reviewer.Name != "planted-reviewer" {
				t.Errorf("%s: evidence %+v, chain %v", when, v.Evidence, v.Chain)
			}
			for _, check := range v.Checks {
				if looked := check.Name == "record" || check.Name == ledger.CheckSignature; looked != (check.Status == ledger.CheckPass) || !looked && check.Status != ledger.CheckNotChecked {
					t.Errorf("%s: the check %s is %s", when, check.Name, check.Status)
				}
			}
			if *public != *shared || public.Key != want || public.Overall != ledger.Verified {
				t.Errorf("%s: strangers are shown %+v and %+v", when, public, shared)
			}
		}
		wantKey("imported", ledger.KeyNotEvaluated)
		if matches := must[bool](t)(g.CompareToken(t.Context(), secret.Reveal(), approval.Hash())); !matches {
			t.Error("the token is not about the record")
		}
		if matches := must[bool](t)(g.CompareToken(t.Context(), secret.Reveal(), denied.Hash())); matches {
			t.Error("the token is about another record")
		}
		var key ledger.SigningKeyID
		for _, k := range imported.Keys {
			if string(k.Public) == string(publicOf(t, from)) {
				key = k.ID
			}
		}
		_, err = g.ConfirmSigningKey(t.Context(), g.who.member, key)
		checkCode(t, "a member confirms", err, fault.CodeForbidden)
		for range 2 {
			must[*service.SigningKey](t)(g.ConfirmSigningKey(t.Context(), g.who.admin, key))
			wantKey("confirmed", ledger.KeyTrusted)
		}
		if _, v := g.verdict(denied.ID); v.Key != ledger.KeyNotEvaluated {
			t.Errorf("another key is %s", v.Key)
		}
		if _, err := g.RetireSigningKey(t.Context(), g.who.admin, key); codeOf(err) != fault.CodeKeyState {
			t.Errorf("a confirmed key is retired: %v", err)
		}
		must[*service.SigningKey](t)(g.Operator().RetractSigningKey(t.Context(), "acme", key))
		wantKey("taken back", ledger.KeyNotEvaluated)
		must[*service.SigningKey](t)(g.Operator().ConfirmSigningKey(t.Context(), "acme", key))
		must[*service.SigningKey](t)(g.RevokeSigningKey(t.Context(), g.who.admin, key))
		wantKey("revoked", ledger.KeyRevoked)
		for _, change := range []func() error{
			func() error { _, err := g.ConfirmSigningKey(t.Context(), g.who.admin, key); return err },
			func() error { _, err := g.RetractSigningKey(t.Context(), g.who.admin, key); return err },
		} {
			checkCode(t, "a revoked key", change(), fault.CodeKeyState)
		}
		must[*service.Token](t)(g.RevokeToken(t.Context(), g.who.admin, token.ID, ""))

		rival := newTenant(t, g.Service, "rival")
		_, err = g.VerifyApproval(t.Context(), rival.admin, approval.ID)
		checkCode(t, "another organization", err, fault.CodeNotFound)
		if listed := must[[]*service.ImportedApproval](t)(g.ImportedApprovals(t.Context(), g.who.member, ledger.ApprovalID{}, 10)); len(listed) != 4 {
			t.Errorf("%d are listed, want 4", len(listed))
		}
		if listed := must[[]*service.ImportedApproval](t)(g.ImportedApprovals(t.Context(), rival.member, ledger.ApprovalID{}, 10)); len(listed) != 0 {
			t.Errorf("another organization lists %d", len(listed))
		}
		_, err = g.ImportedApprovals(t.Context(), g.who.agent, ledger.ApprovalID{}, 10)
		checkCode(t, "an agent lists", err, fault.CodeForbidden)
		g.checkAudited("at the end")
	})
}

func publicOf(t testing.TB, e *servicetest.Elsewhere) ed25519.PublicKey {
	t.Helper()
	_, line := e.Decide(nil)
	return must[*ledger.ImportedApproval](t)(ledger.ParseImported([]byte(line))).Public
}

// An import with a faulty line changes nothing, and its error lists every faulty line by number.
func TestFaultyImportsChangeNothing(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		rival := newTenant(t, g.Service, "rival")
		from, other := servicetest.NewElsewhere(t), servicetest.NewElsewhere(t)
		known, line := from.Decide(nil)
		must[*service.Import](t)(g.bring(line))
		theirs, line := from.Decide(nil)
		must[*service.Import](t)(g.Operator().ImportApprovals(t.Context(), "rival", strings.NewReader(line)))
		asked := g.ask(g.open("own"))
		g.approve(asked)
		_, good := from.Decide(nil)
		with := func(e *servicetest.Elsewhere, change func(*ledger.Approval)) string {
			_, line := e.Decide(change)
			return line
		}
		twice := uuid.New()
		many := make([]string, 0, service.MaxImportedApprovals+1)
		for range cap(many) {
			many = append(many, good)
		}
		keys := make([]string, 101)
		for i := range keys {
			_, keys[i] = servicetest.NewElsewhere(t).Decide(nil)
		}
		faulty := make([]string, 150)
		for i := range faulty {
			faulty[i] = "{}"
		}
		cases := map[string]struct {
			lines []string
			says  []string
		}{
			"nothing":                      {[]string{"", " "}, []string{"no approval to import"}},
			"not JSON":                     {[]string{good, "{", "", "[]"}, []string{"2 lines are faulty", "line 2: it is not strict JSON", "line 4: must be an object"}},
			"a signature of another key":   {[]string{good, strings.Replace(good, from.PublicKey(), other.PublicKey(), 1)}, []string{"line 2: the signature is not that"}},
			"one id with two records":      {[]string{with(from, func(a *ledger.Approval) { a.ID.UUID = twice }), "", with(from, func(a *ledger.Approval) { a.ID.UUID, a.Comment = twice, "x" })}, []string{"line 3: the approval is on line 1 already"}},
			"another record of a known id": {[]string{good, with(from, func(a *ledger.Approval) { a.ID, a.Status = known.ID, ledger.ApprovalDenied })}, []string{"line 2: another approval was imported under this id"}},
			"a known id by another key":    {[]string{other.Line(known)}, []string{"line 1: another approval was imported under this id"}},
			"another organization's":       {[]string{from.Line(theirs)}, []string{"line 1: another approval was imported under this id"}},
			"an id that was asked for":     {[]string{with(from, func(a *ledger.Approval) { a.ID = asked })}, []string{"line 1: an approval with this id was asked for here"}},
			"of another organization":      {[]string{with(from, func(a *ledger.Approval) { a.Org = rival.id })}, []string{"line 1: the approval is one of another organization"}},
			"too many":                     {many, []string{"at most 5000 approvals"}},
			"a line too long":              {[]string{good, `{"decision_record":"` + strings.Repeat("x", 70_000) + `"}`, "{}"}, []string{"line 2: a line has at most 65536 bytes", "line 3:"}},
			"a file too large":             {[]string{strings.Repeat(" ", service.MaxImportBytes+1)}, []string{"at most 16777216 bytes"}},
			"too many keys":                {keys, []string{"brings 101 keys"}},
			"more faults than are named":   {faulty, []string{"150 lines are faulty", "line 100:", "and 50 more lines"}},
		}
		acts, registry := len(g.acts()), len(must[[]*service.SigningKey](t)(g.Operator().SigningKeys(t.Context(), "acme")))
		for name, c := range cases {
			imported, err := g.bring(c.lines...)
			if err == nil {
				t.Errorf("%s: imported %+v", name, imported)
				continue
			}
			for _, says := range c.says {
				if !strings.Contains(err.Error(), says) {
					t.Errorf("%s: the error is %.300q, want one with %q", name, err, says)
				}
			}
		}
		if len(g.acts()) != acts || len(must[[]*service.SigningKey](t)(g.Operator().SigningKeys(t.Context(), "acme"))) != registry {
			t.Error("something was changed")
		}
		if listed := must[[]*service.ImportedApproval](t)(g.ImportedApprovals(t.Context(), g.who.member, ledger.ApprovalID{}, 10)); len(listed) != 1 {
			t.Errorf("%d are listed, want 1", len(listed))
		}
		if _, err := g.Operator().ImportApprovals(t.Context(), "nobody", strings.NewReader(good)); codeOf(err) != fault.CodeNotFound {
			t.Errorf("into no organization: %v", err)
		}
		g.checkAudited("after all refusals")

		// The service's own decision is imported under no circumstances, not even where
		// somebody has removed it.
		own := g.exported(asked)
		if _, err := g.bring(own); err == nil || !strings.Contains(err.Error(), "was asked for here") {
			t.Errorf("an approval of the service's own: %v", err)
		}
		scene := g.scene()
		removed := scene.last("approvals")
		done(t, scene.remove(&removed))
		if _, err := g.bring(own); err == nil || !strings.Contains(err.Error(), "signed with a key of this service") {
			t.Errorf("an approval of the service's own that was removed: %v", err)
		}
	})
}

// exported returns a decision of this service as a line of an import.
func (g *governed) exported(id ledger.ApprovalID) string {
	g.t.Helper()
	record := must[*store.ApprovalRecord](g.t)(g.store.Approval(g.t.Context(), id))
	approval := must[*ledger.Approval](g.t)(ledger.DecodeApproval(record.Body, record.MAC, g.ring, record.Org))
	keys := must[[]*service.SigningKey](g.t)(g.Operator().SigningKeys(g.t.Context(), g.who.slug))
	return servicetest.ImportLine(approval.DecisionRecord(), approval.Signature, keys[0].Public)
}

// No imported approval releases an action, whatever it claims to be about: neither under the id of
// the open approval, nor under another id for the same event.
func TestImportedApprovalsReleaseNothing(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		chain := g.open("pay")
		asked := g.ask(chain)
		waiting := g.view(asked).Approval
		from := servicetest.NewElsewhere(t)
		same := func(a *ledger.Approval) {
			a.Org, a.Chain, a.Event, a.PayloadSHA256, a.RequestedBy = waiting.Org, waiting.Chain, waiting.Event, waiting.PayloadSHA256, waiting.RequestedBy
		}
		_, line := from.Decide(func(a *ledger.Approval) { same(a); a.ID = asked })
		if _, err := g.bring(line); err == nil {
			t.Error("the approval that is waited for was imported")
		}
		claim, line := from.Decide(same)
		imported := must[*service.Import](t)(g.bring(line))
		must[*service.SigningKey](t)(g.ConfirmSigningKey(t.Context(), g.who.admin, imported.Keys[0].ID))
		if status := g.view(asked).Status; status != ledger.ApprovalPending {
			t.Errorf("the approval is %s", status)
		}
		for name, try := range map[string]func() error{
			"read":    func() error { _, err := g.Approval(t.Context(), g.who.agent, claim.ID, 0); return err },
			"approve": func() error { return g.decide(g.who.member, claim.ID, true) },
			"deny":    func() error { return g.decide(g.who.member, claim.ID, false) },
			"cancel":  func() error { _, err := g.CancelApproval(t.Context(), g.who.agent, claim.ID, ""); return err },
		} {
			checkCode(t, name, try(), fault.CodeNotFound)
		}
		done(t, g.decide(g.who.member, asked, false))
		if status := g.view(asked).Status; status != ledger.ApprovalDenied {
			t.Errorf("the approval is %s", status)
		}
		g.checkAudited("at the end")
	})
}

// An imported approval whose row was changed in any column is shown as failed or not found, and
// the audit finds it. The audit also finds one that was deleted.
func TestForgedImportedApprovalsFail(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		scene := g.scene()
		from := servicetest.NewElsewhere(t)
		approval, line := from.Decide(nil)
		_, beside := from.Decide(func(a *ledger.Approval) { a.ID.UUID = uuid.Max; a.ID.UUID[0] = approval.ID.UUID[0] })
		must[*service.Import](t)(g.bring(line, beside))
		rows := scene.rowsOf("imported_approvals")
		at := slices.IndexFunc(rows, func(r row) bool { return strings.Contains(fmt.Sprintf("%s", r.value("record")), approval.ID.String()) })
		was := rows[at]
		fails := func(edit string) {
			t.Helper()
			v, err := g.VerifyApproval(t.Context(), g.who.member, approval.ID)
			if err != nil {
				checkCode(t, edit, err, fault.CodeNotFound)
				return
			}
			if overall, _ := v.Conclude(); overall != ledger.VerdictFailed || v.Approval != nil {
				t.Errorf("%s: it is %s", edit, overall)
			}
		}
		scene.editEachColumn(&was, []string{"id"}, nil, func(edit string) {
			fails(edit)
			g.auditFinds(edit, ledger.CheckRegistry)
		})
		if overall, _ := g.verdict(approval.ID); overall != ledger.Verified {
			t.Errorf("as it was it is %s", overall)
		}
		done(t, scene.remove(&was))
		fails("deleted")
		g.auditFinds("deleted", ledger.CheckRegistry)
		done(t, scene.insert(&was))
		g.checkAudited("put right")
	})
}

// The daily check finds an imported approval that was changed, and one that was deleted.
func TestChecksFindForgedImports(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		s := newSuspect(t, db, 1)
		from := servicetest.NewElsewhere(t)
		_, one := from.Decide(nil)
		_, two := from.Decide(nil)
		must[*service.Import](t)(s.bring(one, two))
		s.checkRound(s.Service)
		s.wantTold("untouched")
		was := s.rowsOf("imported_approvals")[0]
		done(t, s.remove(&was))
		s.checkRound(s.Service)
		s.wantTold("deleted", string(ledger.CheckRegistry)+" ")
		forged := was.with(map[string]any{"imported_at": int64(1)})
		done(t, s.insert(&forged))
		s.checkRound(s.Service)
		s.wantTold("restored with another date", string(ledger.CheckRegistry)+" ")
	})
}
