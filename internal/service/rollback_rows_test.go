package service_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"countersign/internal/fault"
	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/nightly"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/store"
	"countersign/internal/testdb"
	"countersign/internal/verify"
)

// administrative lists the tables whose rows the audit log covers. Those of open chains are not
// among them.
var administrative = []string{"organizations", "acts", "act_logs", "policies", "api_keys", "tokens", "signing_keys", "webhooks", "sign_ins"}

// rollbackWorld is an organization in which much is revoked or tightened, with a way to request
// each of these things again.
type rollbackWorld struct {
	t      testing.TB
	db     *testdb.Database
	handle store.Store
	ring   *keyring.Ring
	file   string         // of heads
	heads  *keyring.Heads // as the service that runs knows them
	clock  *servicetest.Clock
	s      *service.Service // that runs from beginning to end
	who    *tenant
	direct *sql.DB
	chance *rand.Rand

	snapshots int
	receipt   ledger.ReceiptID

	keys, tokens, links, sessions []string // that must not open anything any more
	people                        []string // whom an admin has removed from their key
	person                        ledger.KeyID
	standing                      struct { // that may still be taken back
		keys   []*service.NewKey
		tokens []liveToken
		links  []string
	}
	signers []ledger.SigningKeyID // revoked
	killed  bool
	denies  bool // the policy in force denies deployments
	strict  bool // the settings in force want a person for every payment
}

type liveToken struct {
	id   ledger.TokenID
	text string
}

func newRollbackWorld(t testing.TB, db *testdb.Database, seed uint64) *rollbackWorld {
	t.Helper()
	p := &rollbackWorld{t: t, db: db, handle: db.Open(t), file: filepath.Join(t.TempDir(), "heads.json"), clock: newClock(), chance: rand.New(rand.NewPCG(seed, 1))}
	p.ring, _ = servicetest.NewRing(t)
	p.s = p.serve(p.handle)
	p.who = newTenant(t, p.s, "acme")
	chain := must[*service.ChainView](t)(p.s.OpenChain(t.Context(), p.who.agent, chainNamed(t, "sealed"), ""))
	must[*service.Completed](t)(p.s.CompleteChain(t.Context(), p.who.agent, chain.ID, &ledger.Completion{}))
	p.receipt = must[*ledger.StoredReceipt](t)(p.s.ReceiptOfChain(t.Context(), p.who.member, chain.ID)).ID
	p.direct = db.Direct(t)
	if db.Kind == "postgres" {
		p.exec("SET session_replication_role = replica")
	} else {
		p.exec("PRAGMA foreign_keys = 0")
		p.exec("PRAGMA synchronous = 0")
		p.exec("PRAGMA busy_timeout = 20000")
	}
	p.keep() // it makes beforeAttack
	return p
}

// serve starts a service that has read the heads file.
//
//countersign:replica
func (p *rollbackWorld) serve(handle store.Store) *service.Service {
	p.t.Helper()
	heads, err := keyring.OpenHeads(p.file, p.ring)
	done(p.t, err)
	if p.heads == nil {
		p.heads = heads
	}
	s := service.New(service.Config{
		Store: handle, Keys: p.ring, Secrets: p.ring, Clock: p.clock.Now, Watch: heads, PrivateWebhooks: true,
		Delay: func(context.Context, time.Duration) error { return nil },
	})
	done(p.t, s.Operator().AdoptLedger(p.t.Context(), heads))
	return s
}

func (p *rollbackWorld) exec(query string) {
	p.t.Helper()
	if _, err := p.direct.ExecContext(p.t.Context(), query); err != nil {
		p.t.Fatalf("%s: %v", query, err)
	}
}

// keep copies the administrative tables, and returns the number of the copy.
func (p *rollbackWorld) keep() int {
	p.t.Helper()
	number := p.snapshots
	p.snapshots++
	var queries strings.Builder
	for _, table := range administrative {
		fmt.Fprintf(&queries, "CREATE TEMP TABLE kept_%d_%s AS SELECT * FROM %s; ", number, table, table)
	}
	p.exec(queries.String())
	return number
}

// beforeAttack is the copy from which an attack is undone. Its tables are created once and filled
// for each attack: creating them takes longer than the attack itself.
const beforeAttack = 0

// keepForUndo copies tables to beforeAttack.
func (p *rollbackWorld) keepForUndo(tables []string) {
	p.t.Helper()
	var queries strings.Builder
	for _, table := range tables {
		fmt.Fprintf(&queries, "DELETE FROM kept_%[1]d_%[2]s; INSERT INTO kept_%[1]d_%[2]s SELECT * FROM %[2]s; ", beforeAttack, table)
	}
	p.exec(queries.String())
}

// rollBack restores tables to a copy, and reports whether that changed anything that the audit
// checks.
func (p *rollbackWorld) rollBack(snapshot int, tables []string) (changed bool) {
	p.t.Helper()
	tx := p.begin()
	for _, table := range tables {
		changed = changed || table != "sign_ins" && p.differs(tx, table, fmt.Sprintf("kept_%d_%s", snapshot, table))
	}
	p.copyBack(tx, snapshot, tables)
	return changed
}

// copyBack restores tables in a transaction, and ends it.
func (p *rollbackWorld) copyBack(tx *sql.Tx, snapshot int, tables []string) {
	p.t.Helper()
	var queries strings.Builder
	for _, table := range tables {
		fmt.Fprintf(&queries, "DELETE FROM %[1]s; INSERT INTO %[1]s SELECT * FROM kept_%[2]d_%[1]s; ", table, snapshot)
	}
	if _, err := tx.ExecContext(p.t.Context(), queries.String()); err != nil {
		p.t.Fatalf("%s: %v", queries.String(), err)
	}
	done(p.t, tx.Commit())
}

// begin starts a transaction that writes: SQLite would refuse one that reads first and writes
// after others have.
func (p *rollbackWorld) begin() *sql.Tx {
	p.t.Helper()
	tx, err := p.direct.BeginTx(p.t.Context(), nil)
	done(p.t, err)
	_, err = tx.ExecContext(p.t.Context(), "DELETE FROM sign_ins WHERE 1 = 0")
	done(p.t, err)
	return tx
}

// differs reports whether two tables differ in what the authenticators cover.
func (p *rollbackWorld) differs(tx *sql.Tx, table, kept string) bool {
	p.t.Helper()
	columns := map[string]string{"organizations": "CAST(controls AS text)", "acts": "sequence"}[table]
	if columns == "" {
		columns = "mac"
	}
	var count int
	query := fmt.Sprintf("SELECT count(*) FROM (SELECT %[1]s FROM %[2]s EXCEPT SELECT %[1]s FROM %[3]s UNION ALL SELECT * FROM (SELECT %[1]s FROM %[3]s EXCEPT SELECT %[1]s FROM %[2]s) b) a", columns, table, kept)
	done(p.t, tx.QueryRowContext(p.t.Context(), query).Scan(&count))
	return count > 0
}

// rollBackRow restores a single row of a table that exists now and was different.
func (p *rollbackWorld) rollBackRow(snapshot int, table, key string) (changed bool) {
	p.t.Helper()
	tx := p.begin()
	kept := fmt.Sprintf("kept_%d_%s", snapshot, table)
	content := "%s.mac"
	if table == "organizations" {
		content = "CAST(%s.controls AS text)"
	}
	var id any
	query := fmt.Sprintf("SELECT k.%[1]s FROM %[2]s k JOIN %[3]s t ON t.%[1]s = k.%[1]s WHERE %[4]s <> %[5]s ORDER BY 1 LIMIT 1", key, kept, table,
		fmt.Sprintf(content, "k"), fmt.Sprintf(content, "t"))
	err := tx.QueryRowContext(p.t.Context(), query).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		done(p.t, tx.Rollback())
		return false
	}
	done(p.t, err)
	mark := "?"
	if p.db.Kind == "postgres" {
		mark = "$1"
	}
	for _, query := range []string{
		fmt.Sprintf("DELETE FROM %s WHERE %s = %s", table, key, mark),
		fmt.Sprintf("INSERT INTO %s SELECT * FROM %s WHERE %s = %s", table, kept, key, mark),
	} {
		if _, err := tx.ExecContext(p.t.Context(), query, id); err != nil {
			p.t.Fatalf("%s: %v", query, err)
		}
	}
	done(p.t, tx.Commit())
	return table != "sign_ins"
}

// change makes a change that could be undone by restoring rows.
func (p *rollbackWorld) change() {
	t, ctx := p.t, p.t.Context()
	p.clock.Advance(time.Second)
	switch p.chance.IntN(13) {
	case 0:
		p.standing.keys = append(p.standing.keys, must[*service.NewKey](t)(p.s.Operator().CreateKey(ctx, p.who.slug, &service.KeyRequest{Name: "spare " + uuid.NewString(), Role: ledger.RoleAdmin})))
	case 1, 2:
		if len(p.standing.keys) == 0 {
			return
		}
		key := p.standing.keys[0]
		p.keys = append(p.keys, key.Text.Reveal())
		p.standing.keys = p.standing.keys[1:]
		if p.chance.IntN(2) == 0 {
			must[*ledger.KeyRecord](t)(p.s.RevokeAPIKey(ctx, p.who.admin, key.Record.ID))
			return
		}
		rotated := must[*service.NewKey](t)(p.s.RotateAPIKey(ctx, p.who.admin, &service.Rotation{Key: key.Record.ID}))
		p.standing.keys = append(p.standing.keys, rotated)
	case 3:
		record, text, err := p.s.IssueToken(ctx, p.who.admin, &service.TokenRequest{Artifact: ledger.ArtifactReceipt, ArtifactID: p.receipt.UUID}, uuid.NewString())
		done(t, err)
		p.standing.tokens = append(p.standing.tokens, liveToken{record.ID, text.Reveal()})
	case 4:
		if len(p.standing.tokens) == 0 {
			return
		}
		token := p.standing.tokens[0]
		must[*service.Token](t)(p.s.RevokeToken(ctx, p.who.admin, token.id, "over"))
		p.standing.tokens, p.tokens = p.standing.tokens[1:], append(p.tokens, token.text)
	case 5:
		if p.killed = !p.killed; p.killed {
			must[*ledger.KillSwitch](t)(p.s.ActivateKillSwitch(ctx, p.who.admin, "an incident"))
		} else {
			must[*ledger.KillSwitch](t)(p.s.DeactivateKillSwitch(ctx, p.who.admin))
		}
	case 6:
		document := flagDeploys
		if p.denies = !p.denies; p.denies {
			document = denyDeploys
		}
		must[*service.PolicyView](t)(p.s.PutPolicy(ctx, p.who.admin, &service.PolicyDocument{Text: []byte(document), YAML: p.denies}))
	case 7:
		threshold := 1_000_000
		if p.strict = !p.strict; p.strict {
			threshold = 1
		}
		must[*ledger.Organization](t)(p.s.UpdateOrganization(ctx, p.who.admin, value(t, fmt.Sprintf(`{"financial_approval_threshold_usd":%d}`, threshold))))
	case 8:
		p.standing.links = append(p.standing.links, must[ledger.Secret](t)(p.s.CreateSignIn(ctx, p.who.admin, p.who.admin.Key)).Reveal())
	case 9:
		if len(p.standing.links) == 0 {
			return
		}
		session, _, err := p.s.SignIn(ctx, p.standing.links[0])
		done(t, err)
		p.links, p.standing.links = append(p.links, p.standing.links[0]), p.standing.links[1:]
		done(t, p.s.SignOut(ctx, session.Reveal()))
		p.sessions = append(p.sessions, session.Reveal())
	case 10:
		key := must[*service.SigningKey](t)(p.s.CreateSigningKey(ctx, p.who.admin, &service.SigningKeyRequest{}))
		must[*service.SigningKey](t)(p.s.RevokeSigningKey(ctx, p.who.admin, key.ID))
		p.signers = append(p.signers, key.ID)
	case 11:
		_, _, err := p.s.CreateWebhook(ctx, p.who.admin, &service.WebhookRequest{URL: "http://127.0.0.1:1/" + uuid.NewString()})
		if err != nil {
			checkCode(t, "too many webhooks", err, fault.CodeInvalid)
		}
	case 12:
		p.replacePerson()
	}
}

// replacePerson gives a key to another person, who signs in as it and decides with it in Slack.
func (p *rollbackWorld) replacePerson() {
	p.t.Helper()
	if (p.person == ledger.KeyID{}) {
		p.person = must[*service.NewKey](p.t)(p.s.Operator().CreateKey(p.t.Context(), p.who.slug, &service.KeyRequest{Name: "person", Role: ledger.RoleAdmin})).Record.ID
	}
	before := must[*ledger.KeyRecord](p.t)(p.handle.Key(p.t.Context(), p.person))
	name := strings.ReplaceAll(uuid.NewString(), "-", "")
	signInAs, member := name+"@example.com", "T0/U"+strings.ToUpper(name[:20])
	must[*ledger.KeyRecord](p.t)(p.s.UpdateAPIKey(p.t.Context(), p.who.admin, &service.KeyUpdate{Key: p.person, SignInAs: &signInAs, SlackMember: &member}))
	if before.SignInAs != "" {
		p.people = append(p.people, before.SignInAs, before.SlackMember)
	}
}

// gains requests everything that was revoked from a service, and returns what it got.
func (p *rollbackWorld) gains(s *service.Service) (gained []string) {
	ctx := p.t.Context()
	for _, key := range p.keys {
		if _, err := s.Authenticate(ctx, key); err == nil {
			gained = append(gained, "a key that was revoked or replaced is accepted")
		}
	}
	for _, token := range p.tokens {
		if _, err := s.VerifyToken(ctx, token); err == nil {
			gained = append(gained, "a token that was revoked is accepted")
		}
	}
	for _, link := range p.links {
		if _, _, err := s.SignIn(ctx, link); err == nil {
			gained = append(gained, "a link that was used signs in")
		}
	}
	for _, session := range p.sessions {
		if _, err := s.SessionCaller(ctx, session); err == nil {
			gained = append(gained, "a session that was ended is accepted")
		}
	}
	if keys, err := s.SigningKeys(ctx, p.who.admin); err == nil {
		for _, key := range keys {
			if slices.Contains(p.signers, key.ID) && !key.Tampered && key.Status == ledger.SigningActive {
				gained = append(gained, "a signing key that was revoked is active")
			}
		}
	}
	for _, person := range p.people {
		if _, _, err := s.SignInByIdentity(ctx, identity(person), p.person); err == nil {
			gained = append(gained, "somebody who was removed from a key signs in as it")
		}
		if s.DecidesInSlack(ctx, p.who.id, person) {
			gained = append(gained, "somebody who was removed from a key decides in Slack")
		}
	}
	for what, asked := range map[string]struct {
		taken  bool
		action *ledger.Action
	}{
		"what the kill switch stops": {p.killed, step(p.t, "look", "")},
		"what a rule denies":         {p.denies, step(p.t, "deploy", "")},
		"what a person must decide":  {p.strict, payment(p.t, 500, "")},
	} {
		if !asked.taken {
			continue
		}
		agent, err := s.Authenticate(ctx, p.who.agentKey.Text.Reveal())
		if err != nil {
			continue
		}
		view, err := s.OpenChain(ctx, agent, chainNamed(p.t, "asked"), "")
		if err != nil {
			continue
		}
		recorded, err := s.RecordEvent(ctx, agent, view.ID, asked.action)
		if err == nil && !recorded.Event.Decision.Outcome.StricterThan(ledger.AllowWithFlag) {
			gained = append(gained, "an agent may do "+what)
		}
	}
	return gained
}

// audited returns what an audit finds.
func (p *rollbackWorld) audited(s *service.Service) *ledger.Break {
	p.t.Helper()
	report := must[*verify.AuditReport](p.t)(s.Operator().Audit(p.t.Context(), p.who.slug, verify.AuditOptions{}))
	return report.Break
}

// restart returns a service that was stopped and started again.
func (p *rollbackWorld) restart() *service.Service {
	p.t.Helper()
	return p.serve(p.handle)
}

// attack restores tables, or a row, to a copy, requests everything, audits, and undoes the attack.
func (p *rollbackWorld) attack(name string, snapshot int, tables []string, key string, running bool) {
	t := p.t
	t.Helper()
	// What a finding of the attack before enters in the audit log must not fall between the
	// copy for undoing and the attack.
	p.s.WaitForFindings()
	p.keepForUndo(tables)
	var changed bool
	if key == "" {
		changed = p.rollBack(snapshot, tables)
	} else {
		changed = p.rollBackRow(snapshot, tables[0], key)
	}
	s := p.s
	if !running {
		s = p.restart()
		defer s.Close()
	}
	for _, gained := range p.gains(s) {
		t.Errorf("%s: %s", name, gained)
	}
	if found := p.audited(s); changed && found == nil {
		t.Errorf("%s: the audit finds nothing", name)
	}
	s.WaitForFindings()
	if p.t.Failed() {
		t.Logf("taken back: killed %t, denies %t, strict %t", p.killed, p.denies, p.strict)
	}
	p.undoAttack(tables)
}

// undoAttack undoes an attack. Acts that the service has appended meanwhile are kept.
func (p *rollbackWorld) undoAttack(tables []string) {
	p.t.Helper()
	others := slices.DeleteFunc(slices.Clone(tables), func(table string) bool { return table == "acts" })
	p.copyBack(p.begin(), beforeAttack, others)
	if len(others) < len(tables) {
		p.exec(fmt.Sprintf("INSERT INTO acts SELECT * FROM kept_%d_acts k WHERE NOT EXISTS (SELECT 1 FROM acts a WHERE a.org_id = k.org_id AND a.sequence = k.sequence)", beforeAttack))
	}
}

// rollbackCase is one way to restore rows, and what it undid.
type rollbackCase struct {
	name   string
	tables []string
}

// Rows that the audit log covers are refused when they are restored to an earlier state: alone,
// together with the log, and as a whole database in which no receipt was sealed since; by a
// running server, by another replica, and by a restarted server.
//
//countersign:race
func TestRowsThatAreRolledBack(t *testing.T) {
	cases := []rollbackCase{
		{"settings, kill switch, policy and log", []string{"organizations", "acts", "act_logs", "policies"}},
		{"the organization alone", []string{"organizations"}}, {"the log alone", []string{"acts", "act_logs"}}, {"its end alone", []string{"act_logs"}},
		{"tokens", []string{"tokens"}}, {"signing keys", []string{"signing_keys"}}, {"API keys", []string{"api_keys"}}, {"webhooks", []string{"webhooks"}},
		{"sign-ins", []string{"sign_ins"}}, {"everything", administrative},
	}
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		p := newRollbackWorld(t, db, 1)
		defer p.s.Close()
		other := p.handle
		if db.Kind == "postgres" {
			other = db.Open(t)
		}
		replica := p.serve(other)
		defer replica.Close()
		before := p.grown()
		p.takeBack()
		for _, s := range []*service.Service{p.s, replica} {
			if gained := p.gains(s); len(gained) > 0 {
				t.Fatalf("granted without any attack: %v", gained)
			}
		}
		for _, one := range cases {
			p.keepForUndo(one.tables)
			p.rollBack(before, one.tables)
			for _, gained := range p.gains(p.s) {
				t.Errorf("%s, running: %s", one.name, gained)
			}
			for _, gained := range p.gains(replica) {
				t.Errorf("%s, at another replica: %s", one.name, gained)
			}
			fresh := p.restart()
			for _, gained := range p.gains(fresh) {
				t.Errorf("%s, started again: %s", one.name, gained)
			}
			if found := p.audited(fresh); found == nil && one.tables[0] != "sign_ins" {
				t.Errorf("%s: the audit finds nothing", one.name)
			}
			fresh.Close()
			p.undoAttack(one.tables)
		}
		p.checkAccepted(before)
	})
}

// grown creates one of everything that can be revoked, and returns a copy of that.
func (p *rollbackWorld) grown() int {
	t, ctx := p.t, p.t.Context()
	p.standing.keys = append(p.standing.keys, must[*service.NewKey](t)(p.s.Operator().CreateKey(ctx, p.who.slug, &service.KeyRequest{Name: "spare", Role: ledger.RoleAdmin})))
	record, text, err := p.s.IssueToken(ctx, p.who.admin, &service.TokenRequest{Artifact: ledger.ArtifactReceipt, ArtifactID: p.receipt.UUID}, "")
	done(t, err)
	p.standing.tokens = append(p.standing.tokens, liveToken{record.ID, text.Reveal()})
	_, _, err = p.s.CreateWebhook(ctx, p.who.admin, &service.WebhookRequest{URL: "http://127.0.0.1:1/"})
	done(t, err)
	p.replacePerson()
	p.standing.links = append(p.standing.links, must[ledger.Secret](t)(p.s.CreateSignIn(ctx, p.who.admin, p.who.admin.Key)).Reveal())
	must[*service.PolicyView](t)(p.s.PutPolicy(ctx, p.who.admin, &service.PolicyDocument{Text: []byte(flagDeploys)}))
	key := must[*service.SigningKey](t)(p.s.CreateSigningKey(ctx, p.who.admin, &service.SigningKeyRequest{}))
	p.signers = append(p.signers, key.ID)
	return p.keep()
}

// takeBack revokes everything that grown created.
func (p *rollbackWorld) takeBack() {
	t, ctx := p.t, p.t.Context()
	must[*ledger.KeyRecord](t)(p.s.RevokeAPIKey(ctx, p.who.admin, p.standing.keys[0].Record.ID))
	p.keys = append(p.keys, p.standing.keys[0].Text.Reveal())
	must[*service.Token](t)(p.s.RevokeToken(ctx, p.who.admin, p.standing.tokens[0].id, "over"))
	p.tokens = append(p.tokens, p.standing.tokens[0].text)
	p.replacePerson()
	session, _, err := p.s.SignIn(ctx, p.standing.links[0])
	done(t, err)
	done(t, p.s.SignOut(ctx, session.Reveal()))
	p.links, p.sessions = append(p.links, p.standing.links[0]), append(p.sessions, session.Reveal())
	must[*service.PolicyView](t)(p.s.PutPolicy(ctx, p.who.admin, &service.PolicyDocument{Text: []byte(denyDeploys), YAML: true}))
	must[*ledger.Organization](t)(p.s.UpdateOrganization(ctx, p.who.admin, value(t, `{"financial_approval_threshold_usd":1}`)))
	must[*service.SigningKey](t)(p.s.RevokeSigningKey(ctx, p.who.admin, p.signers[0]))
	_, _, err = p.s.CreateWebhook(ctx, p.who.admin, &service.WebhookRequest{URL: "http://127.0.0.1:1/other"})
	done(t, err)
	must[*ledger.KillSwitch](t)(p.s.ActivateKillSwitch(ctx, p.who.admin, "an incident"))
	p.killed, p.denies, p.strict = true, true, true
}

// checkAccepted rolls the database back, for one organization of two, and expects that it is
// reported, that the other continues, and that everything continues once an operator has accepted
// it.
func (p *rollbackWorld) checkAccepted(before int) {
	t, ctx := p.t, p.t.Context()
	t.Helper()
	rival := newTenant(t, p.s, "rival")
	for _, table := range administrative {
		if table == "organizations" || table == "sign_ins" {
			continue
		}
		p.exec(fmt.Sprintf("INSERT INTO kept_%d_%s SELECT * FROM %s WHERE org_id = (SELECT id FROM organizations WHERE slug = 'rival')", before, table, table))
	}
	p.exec(fmt.Sprintf("INSERT INTO kept_%d_organizations SELECT * FROM organizations WHERE slug = 'rival'", before))
	p.rollBack(before, administrative)
	_, err := p.s.OpenChain(ctx, p.who.agent, chainNamed(t, "refused"), "")
	checkCode(t, "opening a chain after a rollback", err, fault.CodeRolledBack)
	_, err = p.s.UpdateOrganization(ctx, p.who.admin, value(t, `{"name":"other"}`))
	checkCode(t, "changing settings after a rollback", err, fault.CodeRolledBack)
	must[*service.ChainView](t)(p.s.OpenChain(ctx, rival.agent, chainNamed(t, "of another"), ""))

	heads, err := keyring.OpenHeads(p.file, p.ring)
	done(t, err)
	operator := service.New(service.Config{Store: p.handle, Keys: p.ring, Secrets: p.ring, Clock: p.clock.Now, Watch: heads})
	defer operator.Close()
	found := must[[]verify.Rollback](t)(operator.Rollbacks(ctx))
	if len(found) != 1 || found[0].Organization != "acme" || found[0].ActsStored >= found[0].ActsAcknowledged || found[0].Stored != found[0].Acknowledged {
		t.Fatalf("rollbacks are %+v", found)
	}
	done(t, operator.Operator().AcceptRollbacks(ctx, found, heads.Accept))
	if found = must[[]verify.Rollback](t)(operator.Rollbacks(ctx)); len(found) > 0 {
		t.Errorf("once it is accepted rollbacks are %+v", found)
	}
	if found := p.audited(operator); found != nil {
		t.Errorf("once it is accepted the audit finds %+v", found)
	}
	fresh := p.restart()
	defer fresh.Close()
	must[*service.ChainView](t)(fresh.OpenChain(ctx, servicetest.Authenticate(t, fresh, p.who.agentKey), chainNamed(t, "after"), ""))
	// The server that ran all the time has its own view of the file; it takes it up when
	// the file is read again.
	done(t, p.heads.Reload())
	servicetest.Eventually(t, "the running server follows", func() bool {
		_, err := p.s.OpenChain(ctx, p.who.agent, chainNamed(t, "after"), "")
		return err == nil
	})
}

// rollbackSeed is the environment variable that replays a run of the generated test.
const rollbackSeed = "COUNTERSIGN_ROLLBACK_SEED"

// Whichever administrative tables are restored to whichever earlier state, whether the server runs
// or is restarted, nobody gains anything that was revoked, and the audit names what was done.
//
//countersign:race twice
func TestNothingGoesBackInTime(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		const each = 40
		restores := nightly.Count(2_000, 100_000)
		if db.Kind == "postgres" {
			restores = nightly.Count(200, 5_000)
		}
		restores = max(restores/(1+19*racing), each)
		seed := rand.Uint64()
		if text := os.Getenv(rollbackSeed); text != "" {
			seed, _ = strconv.ParseUint(text, 10, 64)
		}
		for history := range restores / each {
			t.Run(strconv.Itoa(history), func(t *testing.T) {
				one := db
				if history > 0 {
					one = db.Fresh(t)
				}
				seed := seed + uint64(history)
				p := newRollbackWorld(t, one, seed)
				defer p.s.Close()
				p.liveThrough(fmt.Sprintf("%s=%d", rollbackSeed, seed), each)
			})
		}
	})
}

// liveThrough makes changes, copying the tables between them, and then attacks.
func (p *rollbackWorld) liveThrough(seed string, attacks int) {
	copies := []int{p.keep()}
	for range 10 {
		for range 1 + p.chance.IntN(3) {
			p.change()
		}
		copies = append(copies, p.keep())
	}
	if found := p.audited(p.s); found != nil {
		p.t.Fatalf("%s: the audit finds %+v before anything was done", seed, found)
	}
	rows := []struct{ name, key string }{
		{"organizations", "id"}, {"api_keys", "id"}, {"tokens", "id"}, {"signing_keys", "id"}, {"webhooks", "id"}, {"act_logs", "org_id"},
	}
	for n := range attacks {
		snapshot := copies[p.chance.IntN(len(copies))]
		var tables []string
		key := ""
		switch p.chance.IntN(4) {
		case 0:
			tables = administrative
		case 1:
			tables = []string{"organizations", "acts", "act_logs", "policies"}
		case 2:
			table := rows[p.chance.IntN(len(rows))]
			tables, key = []string{table.name}, table.key
		default:
			for _, table := range administrative {
				if p.chance.IntN(3) == 0 {
					tables = append(tables, table)
				}
			}
		}
		running := p.chance.IntN(2) == 0
		p.attack(fmt.Sprintf("%s, attack %d: %s rolled back to copy %d, row by %q, running %t", seed, n, strings.Join(tables, " "), snapshot, key, running), snapshot, tables, key, running)
		if p.t.Failed() {
			return
		}
	}
	if found := p.audited(p.s); found != nil {
		p.t.Errorf("%s: the audit finds %+v after every attack was undone", seed, found)
	}
}
