package service_test

import (
	"bytes"
	"crypto/ed25519"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	sealing "countersign/internal/evidence"
	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/nightly"
	"countersign/internal/notify"
	"countersign/internal/notify/slacktest"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/store"
	"countersign/internal/testdb"
)

// Writing, deleting or copying any row of any table gains nothing: no request is authenticated, no
// action allowed, no approval given, no limit loosened, nothing signed and nothing sent that would
// not have been otherwise. The tables and columns are those that the database itself lists.
func TestNobodyGainsByAnyRow(t *testing.T) {
	t.Parallel()
	f := newFortress(t)
	before := f.attack(t, nil)
	if len(before.granted) > 0 {
		t.Fatalf("granted without any change: %v", before.granted)
	}
	tried, all := 0, 0
	for _, table := range f.tables() {
		if len(f.rows[table]) == 0 {
			t.Errorf("the table %s is empty, so no crime in it is tried", table)
			continue
		}
		// A test of its own, so that what it opened can be forgotten.
		t.Run(table, func(t *testing.T) {
			const commit = 11 // crimes in each table for a commit; the nightly run tries all of them
			thefts := f.thefts(table)
			all += len(thefts)
			step := max(len(thefts)/nightly.Count(commit, len(thefts)), 1)
			for i := int(time.Now().Unix()) % step; i < len(thefts); i += step {
				tried++
				f.try(t, &thefts[i], before)
			}
		})
	}
	t.Logf("%d of %d crimes were tried", tried, all)
	if tried < 300 {
		t.Errorf("only %d crimes were tried", tried)
	}
}

// fortress is a filled database in which much is refused, with a way to request each refused thing
// again. Each crime is committed on a copy of the file.
type fortress struct {
	path    string
	journal string // how far chains and budget counters had come
	ring    *keyring.Ring
	now     time.Time

	admin, member, agent, other    string // keys that work
	bound                          string // a key that may record for the clerk alone
	revoked, expired, replaced     string // keys that do not
	session, link                  string // signed out, used up
	revokedToken, expiredToken     string
	acme, killed                   ledger.OrgID
	working, paused, stopped       ledger.ChainID // stopped: of the killed organization
	spending                       ledger.ChainID // of an agent that has used up its budgets
	pending, voted, denied, lapsed ledger.ApprovalID
	receipt                        ledger.ReceiptID
	slack                          *slacktest.Slack
	press                          slacktest.Message // about pending
	liveToken                      string
	share                          string                  // revoked
	finding                        string                  // that nobody has acknowledged
	log, checkpoint                string                  // a log's id, and what is published of it
	keys                           map[ledger.KeyID]string // names
	signers                        map[ledger.SigningKeyID]ed25519.PublicKey
	rows                           map[string][]row
	primary                        map[string][]string
}

func newFortress(t *testing.T) *fortress {
	t.Helper()
	db := testdb.SQLite(t)
	opened := db.Open(t)
	ring, _ := servicetest.NewRing(t)
	g := &inSlack{governed: &governed{t: t, db: db, store: opened, ring: ring, clock: newClock()}, at: slacktest.Start(t)}
	folder := t.TempDir()
	f := &fortress{
		path: filepath.Join(folder, "filled.db"), journal: keyring.ChainsFile(filepath.Join(folder, "heads.json")),
		ring: ring, signers: map[ledger.SigningKeyID]ed25519.PublicKey{}, slack: g.at,
	}
	g.slack = f.slackApp()
	t.Cleanup(g.slack.Close)
	chains, err := keyring.OpenChains(f.journal, ring)
	done(t, err)
	heads, err := keyring.OpenHeads(filepath.Join(folder, "heads.json"), ring)
	done(t, err)
	g.Service = serve(t, service.Config{
		Store: opened, Keys: ring, Secrets: ring, Clock: g.clock.Now, PrivateWebhooks: true, Timestamps: believer{}, Chains: chains, Slack: g.slack,
		LogKeys: ring, LogMarks: newLogMarks(t, ring), Alone: true, Signing: &service.Signing{Keys: ring, Instance: "log.example.com"},
	})
	done(t, g.Operator().AdoptKeys(t.Context(), ring))
	done(t, g.Operator().AdoptLedger(t.Context(), heads))
	text := func(slug string, request *service.KeyRequest) (string, *service.NewKey) {
		key := must[*service.NewKey](t)(g.Operator().CreateKey(t.Context(), slug, request))
		return key.Text.Reveal(), key
	}
	// The other organization is killed, and its policy denies.
	g.who = newTenant(t, g.Service, "other")
	f.killed = g.who.id
	f.stopped = g.open("stopped")
	g.record(f.stopped, step(t, "look", ""))
	g.complete(g.open("sealed"))
	g.hook()
	f.other, _ = text("other", &service.KeyRequest{Name: "stranger", Role: ledger.RoleAdmin})
	g.put(flagDeploys)
	g.kill("an incident")

	g.who = newTenant(t, g.Service, "acme")
	f.acme = g.who.id
	f.admin, _ = text("acme", &service.KeyRequest{Name: "boss", Role: ledger.RoleAdmin})
	f.member, _ = text("acme", &service.KeyRequest{Name: "reviewer", Role: ledger.RoleMember})
	f.agent = g.who.agentKey.Text.Reveal()
	f.bound, _ = text("acme", &service.KeyRequest{Name: "bound", Role: ledger.RoleAgent, Agents: []string{"clerk"}})
	var key *service.NewKey
	f.revoked, key = text("acme", &service.KeyRequest{Name: "revoked", Role: ledger.RoleAdmin})
	must[*ledger.KeyRecord](t)(g.RevokeAPIKey(t.Context(), g.who.admin, key.Record.ID))
	soon := ledger.TimeOf(g.clock.Now()) + 1000
	f.expired, _ = text("acme", &service.KeyRequest{Name: "expired", Role: ledger.RoleAdmin, ExpiresAt: &soon})
	f.replaced, key = text("acme", &service.KeyRequest{Name: "replaced", Role: ledger.RoleAdmin})
	must[*service.NewKey](t)(g.RotateAPIKey(t.Context(), g.who.admin, &service.Rotation{Key: key.Record.ID, IdempotencyKey: "rotation"}))

	for _, name := range []string{"ann", "former"} {
		_, key = text("acme", &service.KeyRequest{Name: name, Role: ledger.RoleMember, SignInAs: name + "@example.com", SlackMember: memberOf(name)})
	}
	must[*ledger.KeyRecord](t)(g.UpdateAPIKey(t.Context(), g.who.admin, &service.KeyUpdate{Key: key.Record.ID, SignInAs: new(""), SlackMember: new("")}))
	g.settings(`{"slack_channel":"` + slacktest.Channel + `","evidence_export":"admins","auto_pause":{"max_events":30},"approval_timeout_hours":2,"two_person_approval":true,"fallback_approvers":["boss@example.com"],"budgets":[
		{"name":"months","scope":"agent","match":["spender","saver"],"window":"month","limit_usd":100,"decision":"deny"},
		{"name":"days","scope":"agent","match":["waiter","saver"],"window":"day","limit_usd":100,"decision":"require_approval"}]}`)
	g.put(denyDeploys)
	hook := g.hook()
	gone := g.hook()
	done(t, g.DeleteWebhook(t.Context(), g.who.admin, gone.ID))
	_ = hook

	f.working = g.open("working")
	g.record(f.working, step(t, "look", "a-key"))
	f.lapsed = g.ask(f.working)
	g.clock.Advance(3 * time.Hour)
	must[ledger.Time](t)(g.AdvanceApproval(t.Context(), f.lapsed))
	f.pending = g.ask(f.working)
	f.press = g.sync()
	f.voted, f.denied = g.ask(f.working), g.ask(f.working)
	done(t, g.decide(g.who.member, f.voted, true))
	done(t, g.decide(g.who.member, f.denied, false))
	f.spending = g.open("spending")
	for _, agent := range []string{"spender", "waiter"} {
		g.record(g.open("more"), pay(t, agent, 60, ""))
		g.record(f.spending, pay(t, agent, 40, ""))
	}
	g.record(f.spending, pay(t, "saver", 1, ""))
	f.paused = g.open("paused")
	g.settings(`{"auto_pause":{"max_events":1}}`)
	g.record(f.paused, step(t, "look", ""))
	g.record(f.paused, step(t, "look", ""))
	g.settings(`{"auto_pause":{"max_events":30}}`)
	sealed := g.open("sealed")
	g.record(sealed, step(t, "look", ""))
	g.complete(sealed)
	f.receipt = must[*ledger.StoredReceipt](t)(g.ReceiptOfChain(t.Context(), g.who.member, sealed)).ID

	token := func(expires *ledger.Time) (ledger.TokenID, string) {
		record, text, err := g.IssueToken(t.Context(), g.who.admin, &service.TokenRequest{Artifact: ledger.ArtifactReceipt, ArtifactID: f.receipt.UUID, ExpiresAt: expires}, uuid.NewString())
		done(t, err)
		return record.ID, text.Reveal()
	}
	id, revoked := token(nil)
	f.revokedToken = revoked
	must[*service.Token](t)(g.RevokeToken(t.Context(), g.who.admin, id, "over"))
	soon = ledger.TimeOf(g.clock.Now()) + 1000
	_, f.expiredToken = token(&soon)
	_, f.liveToken = token(nil)

	signIn := func() (link, session string) {
		made := must[ledger.Secret](t)(g.CreateSignIn(t.Context(), g.who.admin, g.who.admin.Key))
		opened, _, err := g.SignIn(t.Context(), made.Reveal())
		done(t, err)
		return made.Reveal(), opened.Reveal()
	}
	f.link, f.session = signIn()
	done(t, g.SignOut(t.Context(), f.session))
	signIn()
	must[ledger.Secret](t)(g.CreateSignIn(t.Context(), g.who.admin, g.who.agent.Key))
	for _, slug := range []string{"acme", "other"} {
		boss := f.admin
		if slug == "other" {
			boss = f.other
		}
		caller := must[*service.Caller](t)(g.Authenticate(t.Context(), boss))
		for _, key := range must[[]*service.SigningKey](t)(g.SigningKeys(t.Context(), caller)) {
			f.signers[key.ID] = key.Public
		}
	}
	f.fillTheRest(g)
	done(t, g.FlushKeyUse(t.Context()))
	g.clock.Advance(time.Minute)
	f.now, f.keys = g.clock.Now(), make(map[ledger.KeyID]string)
	for _, org := range []ledger.OrgID{f.acme, f.killed} {
		for _, key := range must[[]*ledger.KeyRecord](t)(opened.Keys(t.Context(), org, ledger.KeyID{}, 50)) {
			f.keys[key.ID] = key.Name
		}
	}
	done(t, opened.Backup(t.Context(), f.path))
	done(t, chains.Flush())
	done(t, chains.Close())
	f.read(t)
	return f
}

// memberOf returns the Slack member of a person.
func memberOf(name string) string { return slacktest.Team + "/" + slackUser(name) }

func slackUser(name string) string { return "U0" + strings.ToUpper(name) }

// slackApp returns an app that sends to the fortress's Slack.
func (f *fortress) slackApp() *notify.Slack {
	return notify.NewSlack(notify.SlackConfig{Token: ledger.NewSecret(f.slack.Token), SigningSecret: ledger.NewSecret(f.slack.SigningSecret), URL: f.slack.URL})
}

// fillTheRest writes to the tables that the life of an organization has left empty.
func (f *fortress) fillTheRest(g *inSlack) {
	t, ctx := g.t, g.t.Context()
	t.Helper()
	share, link, err := g.Share(ctx, g.who.admin, &service.TokenRequest{Artifact: ledger.ArtifactShare, ArtifactID: f.receipt.UUID}, "")
	done(t, err)
	f.share = link.Reveal()
	must[*service.Token](t)(g.RevokeShare(ctx, g.who.admin, share.ID, "over"))

	from := servicetest.NewElsewhere(t)
	_, one := from.Decide(nil)
	_, two := from.Decide(nil)
	must[*service.Import](t)(g.bring(one, two))

	for _, row := range []string{"a row", "another row"} {
		g.NoteTampering(g.who.id, fmt.Errorf("%s fails its authenticator: %w", row, ledger.ErrStateTampered))
	}
	g.WaitForFindings()
	findings := must[[]*service.Finding](t)(g.Operator().Findings(ctx, "acme"))
	f.finding = findings[0].Name
	done(t, g.Operator().Acknowledge(ctx, findings[1], "looked at"))

	_, deliveries := g.fanOut()
	delivery := must[*service.Delivery](t)(g.Jobs().Delivery(ctx, deliveries[0]))
	done(t, g.Jobs().LogDelivery(ctx, deliveries[0], delivery, service.Attempt{Number: 1, At: g.clock.Now(), State: service.DeliveryRetrying}))

	receipt := must[*ledger.StoredReceipt](t)(g.store.Receipt(ctx, f.receipt))
	for kind, subject := range map[string]uuid.UUID{ledger.SubjectHead: f.receipt.UUID, ledger.SubjectApproval: f.denied.UUID} {
		anchor := &ledger.Anchor{Org: f.acme, Kind: kind, Subject: subject, Sequence: 1, Method: ledger.MethodTSA, Digest: receipt.Hash(), Proof: []byte("proof"), Standing: ledger.AnchorPending}
		if kind == ledger.SubjectApproval {
			anchor.Standing = ledger.AnchorVerified
		}
		done(t, g.Jobs().SaveAnchor(ctx, anchor))
	}
	sealed := sealing.New(g.store, f.ring)
	done(t, sealed.PutFullCheck(ctx, &store.FullCheckRecord{Org: f.acme, Receipt: f.receipt, Hash: receipt.Hash(), CheckedAt: ledger.TimeOf(g.clock.Now())}))

	g.SignRound(ctx)
	log := must[*service.LogToWitness](t)(g.LogToWitness(ctx, f.acme))
	done(t, g.AttachCosignatures(ctx, log, nil))
	_, f.log, _ = strings.Cut(log.Origin, "/")
	f.checkpoint = string(must[[]byte](t)(g.LogCheckpoint(ctx, f.log)))
	if held := must[bool](t)(g.store.LeaseSigner(ctx, uuid.New(), 1, 2)); !held {
		t.Fatal("nobody is the signer")
	}

	g.clock.Advance(10 * time.Minute)
	must[*service.ApprovalView](t)(g.Approval(ctx, g.who.agent, f.pending, 0))
	must[*service.ChainApprovals](t)(g.ChainApprovals(ctx, g.who.agent, f.working))
	done(t, g.FlushPolls(ctx))
	g.NoteLegacyUse("/v1/verify", f.acme)
	done(t, g.FlushLegacyUse(ctx))
}

// read keeps all rows of all tables, as a source of values.
func (f *fortress) read(t *testing.T) {
	t.Helper()
	s := &scene{t: t, direct: testdb.SQLiteFile(f.path).Direct(t), dialect: sqliteDialect}
	var tables []string
	f.rows, f.primary = map[string][]row{}, map[string][]string{}
	s.each("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND name NOT LIKE 'goose_%'", nil, func(scan func(...any) error) error {
		var name string
		err := scan(&name)
		tables = append(tables, name)
		return err
	})
	for _, table := range tables {
		columns := s.columnsOf(table)
		f.rows[table] = nil
		s.each("SELECT name FROM pragma_table_info(?) WHERE pk > 0", []any{table}, func(scan func(...any) error) error {
			var name string
			err := scan(&name)
			f.primary[table] = append(f.primary[table], name)
			return err
		})
		s.each("SELECT "+strings.Join(columns, ", ")+" FROM "+table, nil, func(scan func(...any) error) error {
			r := row{table: table, columns: columns, values: make([]any, len(columns))}
			var targets []any
			for i := range r.values {
				targets = append(targets, &r.values[i])
			}
			err := scan(targets...)
			f.rows[table] = append(f.rows[table], r)
			return err
		})
	}
}

// tables returns the tables of the schema, sorted.
func (f *fortress) tables() []string { return slices.Sorted(maps.Keys(f.rows)) }

// theft is one change of a row.
type theft struct {
	name   string
	commit func(*scene) error
}

// thefts returns the possible changes of a table's rows.
func (f *fortress) thefts(table string) []theft {
	var all []theft
	rows := f.rows[table]
	for i, r := range rows {
		name := fmt.Sprintf("%s %d", table, i)
		all = append(all, theft{name + " is removed", func(s *scene) error { return s.remove(&r) }})
		for j, column := range r.columns {
			for what, value := range f.others(rows, i, j) {
				all = append(all, theft{name + ": " + column + " " + what, func(s *scene) error { return s.set(&r, column, value) }})
			}
		}
		for j, other := range rows {
			if j == i {
				continue
			}
			// All of another row but its name: what it allows, for whom he likes.
			all = append(all, theft{fmt.Sprintf("%s is a copy of %d", name, j), func(s *scene) error {
				copied := other.with(f.names(&r))
				if err := s.remove(&r); err != nil {
					return err
				}
				return s.insert(&copied)
			}})
		}
		all = append(all, theft{name + " is copied", func(s *scene) error {
			copied := r.with(f.fresh(&r))
			return s.insert(&copied)
		}})
	}
	slices.SortFunc(all, func(a, b theft) int { return strings.Compare(a.name, b.name) })
	return all
}

// others returns values for a column: those of other rows, and extremes.
func (f *fortress) others(rows []row, i, j int) map[string]any {
	was := rows[i].values[j]
	others := map[string]any{"is emptied": nil}
	for n, r := range rows {
		others[fmt.Sprint("is that of row ", n)] = r.values[j]
	}
	switch v := was.(type) {
	case int64, nil:
		others["is 0"], others["is 1"], others["is far away"], others["is a little later"] = int64(0), int64(1), int64(1)<<50, f.now.UnixMilli()+60_000
	case string:
		for _, word := range []string{"", "admin", "active", "approved", "open", "completed", "allow", "first", "[]"} {
			others["is "+word] = word
		}
	case []byte:
		others["is of zeros"] = make([]byte, len(v))
		for from, to := range map[string]string{"pending": "approved", "deny": "allow", "true": "false", "auto_paused": "open", "denied": "approved", `"spent":"100"`: `"spent":"0"`, `"limit":"100"`: `"limit":"1000"`} {
			if bytes.Contains(v, []byte(from)) {
				others["says "+to+" instead of "+from] = bytes.ReplaceAll(v, []byte(from), []byte(to))
			}
		}
	}
	maps.DeleteFunc(others, func(_ string, other any) bool { return sameValue(other, was) })
	return others
}

func (f *fortress) names(r *row) map[string]any {
	names := map[string]any{}
	for _, column := range f.primary[r.table] {
		names[column] = r.value(column)
	}
	return names
}

// fresh returns names that no row has yet.
func (f *fortress) fresh(r *row) map[string]any {
	names := f.names(r)
	for column, value := range names {
		switch v := value.(type) {
		case int64:
			names[column] = v + 1000
		case string:
			names[column] = v + "x"
		case []byte:
			other := bytes.Clone(v)
			other[len(other)-1] ^= 0x55
			names[column] = other
		}
	}
	return names
}

// spoils is what an intruder has gained.
type spoils struct {
	granted []string
	sent    []string
}

// try commits a crime and compares what it gains with what is granted and sent without one.
func (f *fortress) try(t *testing.T, crime *theft, before *spoils) {
	t.Helper()
	after := f.attack(t, crime)
	if after == nil {
		return // a constraint refused it
	}
	for _, granted := range after.granted {
		t.Errorf("%s: %s", crime.name, granted)
	}
	for _, sent := range after.sent {
		if !slices.Contains(before.sent, sent) {
			t.Errorf("%s: %s is sent", crime.name, sent)
		}
	}
}

// attack commits a crime on a copy of the database, and then requests everything that was refused
// from a service on it. It returns nil if a constraint refuses the crime.
func (f *fortress) attack(t *testing.T, crime *theft) *spoils {
	t.Helper()
	folder := t.TempDir()
	defer func() { done(t, os.RemoveAll(folder)) }() // the long run makes thousands of copies
	work, journal := filepath.Join(folder, "countersign.db"), keyring.ChainsFile(filepath.Join(folder, "heads.json"))
	for from, to := range map[string]string{f.path: work, f.journal: journal} {
		content, err := os.ReadFile(from)
		done(t, err)
		done(t, os.WriteFile(to, content, 0o600))
	}
	db := testdb.SQLiteFile(work)
	if crime != nil {
		direct := testdb.OpenSQL(t, "sqlite", db.Source+"&_pragma=synchronous(off)&_pragma=foreign_keys(0)")
		err := crime.commit(&scene{t: t, direct: direct, dialect: sqliteDialect})
		done(t, direct.Close())
		if err != nil {
			return nil
		}
	}
	opened := db.Open(t)
	defer func() { done(t, opened.Close()) }()
	config := service.Config{
		Store: opened, Keys: f.ring, Secrets: f.ring, Clock: func() time.Time { return f.now }, PrivateWebhooks: true, Mail: true,
		Timestamps: believer{}, LogKeys: f.ring, Slack: f.slackApp(),
	}
	defer config.Slack.Close()
	a := &attacker{t: t, fortress: f, s: service.New(config), found: &spoils{}}
	a.askForEverything()
	a.s.Close()
	// A budget's counter may be missing because nothing was spent yet. Only a server that remembers
	// the counter knows better.
	chains, err := keyring.OpenChains(journal, f.ring)
	done(t, err)
	config.Chains = chains
	a.s = service.New(config)
	a.spend()
	a.s.Close()
	done(t, chains.Close())
	return a.found
}

// attacker requests what was refused.
type attacker struct {
	*fortress
	t     *testing.T
	s     *service.Service
	found *spoils
}

func (a *attacker) gain(format string, args ...any) {
	a.found.granted = append(a.found.granted, fmt.Sprintf(format, args...))
}

// caller returns the caller of a key, nil if it is refused.
func (a *attacker) caller(key string) *service.Caller {
	caller, err := a.s.Authenticate(a.t.Context(), key)
	if err != nil {
		return nil
	}
	return caller
}

func (a *attacker) askForEverything() {
	a.redeliver()
	a.collect() // before the other questions leave work of their own
	for name, key := range map[string]string{"revoked": a.revoked, "expired": a.expired, "replaced": a.replaced} {
		if a.caller(key) != nil {
			a.gain("a key that was %s is accepted", name)
		}
	}
	for name, token := range map[string]string{"revoked": a.revokedToken, "expired": a.expiredToken} {
		if _, err := a.s.VerifyToken(a.t.Context(), token); err == nil {
			a.gain("a token that was %s is accepted", name)
		}
	}
	if _, err := a.s.SessionCaller(a.t.Context(), a.session); err == nil {
		a.gain("a session that was ended is accepted")
	}
	if _, _, err := a.s.SignIn(a.t.Context(), a.link); err == nil {
		a.gain("a link that was used signs in again")
	}
	a.askWithoutAKey()
	a.askInSlack()
	a.askAsAgent()
	a.askAsStranger()
	a.askAsPeople()
}

// redeliver lets an admin send every logged message again.
func (a *attacker) redeliver() {
	admin := a.caller(a.admin)
	if admin == nil {
		return
	}
	hooks, err := a.s.Webhooks(a.t.Context(), admin)
	if err != nil {
		return
	}
	for _, hook := range hooks {
		logged, err := a.s.WebhookDeliveries(a.t.Context(), admin, hook.ID, nil, 10)
		if err != nil {
			continue
		}
		for _, delivery := range logged {
			_ = a.s.Redeliver(a.t.Context(), admin, hook.ID, delivery.ID) // what fails is not sent
		}
	}
}

// askWithoutAKey requests what people with no key or link that works could get.
func (a *attacker) askWithoutAKey() {
	ctx := a.t.Context()
	for _, who := range []string{"former@example.com", "mallory@example.com", "admin", "active", "ann@example.com"} {
		for id, name := range a.keys {
			if who == "ann@example.com" && name == "ann" {
				continue
			}
			if _, _, err := a.s.SignInByIdentity(ctx, identity(who), id); err == nil {
				a.gain("%s signs in as %q", who, name)
			}
		}
	}
	for what, link := range map[string]string{"a revoked share": a.share, "a token": a.liveToken} {
		if _, err := a.s.OpenShare(ctx, link); err == nil {
			a.gain("%s opens a bundle", what)
		}
	}
	if signed, err := a.s.LogCheckpoint(ctx, a.log); err == nil && string(signed) != a.checkpoint {
		a.gain("the log publishes %s", signed)
	}
	findings, err := a.s.Operator().Findings(ctx, "")
	for _, finding := range findings {
		if err == nil && finding.Name == a.finding && !finding.Open() {
			a.gain("a finding is acknowledged")
		}
	}
	if member := a.caller(a.member); member != nil {
		if v, err := a.s.VerifyReceipt(ctx, member, a.receipt); err == nil && v.TSA.Standing == ledger.AnchorVerified {
			a.gain("a receipt is anchored whose anchor is pending")
		}
	}
}

// askInSlack lets members decide who are not entered, and ann with a button for something else.
func (a *attacker) askInSlack() {
	button := a.press.Buttons()[notify.SlackApprove].Value
	_, mac, _ := strings.Cut(button, ".")
	for what, press := range map[string]slacktest.Press{
		"a member who was removed": {User: slackUser("former"), Value: button}, "a stranger": {User: "U0EVE", Value: button},
		"a button for another approval": {User: slackUser("ann"), Value: a.voted.String() + "." + mac},
		"the other button":              {User: slackUser("ann"), Value: a.press.Buttons()[notify.SlackDeny].Value},
	} {
		press.Action, press.At = notify.SlackApprove, a.now
		r := a.slack.Request(a.t, "http://127.0.0.1/", press)
		body, err := io.ReadAll(r.Body)
		done(a.t, err)
		_ = a.s.PressSlackButton(a.t.Context(), r.Header.Get("X-Slack-Request-Timestamp"), r.Header.Get("X-Slack-Signature"), body)
		agent := a.caller(a.agent)
		if agent == nil {
			return
		}
		for id, votes := range map[ledger.ApprovalID]int{a.pending: 0, a.voted: 1} {
			if view, err := a.s.Approval(a.t.Context(), agent, id, 0); err == nil && (len(view.Votes) > votes || !view.Status.Open()) {
				a.gain("%s decides in Slack", what)
			}
		}
	}
}

func (a *attacker) allowed(caller *service.Caller, chain ledger.ChainID, action *ledger.Action) bool {
	recorded, err := a.s.RecordEvent(a.t.Context(), caller, chain, action)
	return err == nil && !recorded.Event.Decision.Outcome.StricterThan(ledger.AllowWithFlag)
}

func (a *attacker) askAsAgent() {
	if bound := a.caller(a.bound); bound != nil {
		if view, err := a.s.OpenChain(a.t.Context(), bound, chainNamed(a.t, "bound"), ""); err == nil && a.allowed(bound, view.ID, step(a.t, "look", "")) {
			a.gain("a key records for an agent that is not its own")
		}
	}
	agent := a.caller(a.agent)
	if agent == nil {
		return
	}
	for what, asked := range map[string]struct {
		chain  ledger.ChainID
		action *ledger.Action
	}{
		"what a rule denies":        {a.working, step(a.t, "deploy", "")},
		"what a person must decide": {a.working, payment(a.t, gatedAmount, "")},
		"what a pause stops":        {a.paused, step(a.t, "look", "")},
	} {
		if a.allowed(agent, asked.chain, asked.action) {
			a.gain("an agent may do %s", what)
		}
	}
	for what, id := range map[string]ledger.ApprovalID{"waits": a.pending, "has one vote of two": a.voted, "was denied": a.denied, "has lapsed": a.lapsed} {
		if view, err := a.s.Approval(a.t.Context(), agent, id, 0); err == nil && view.Status == ledger.ApprovalApproved {
			a.gain("an approval that %s is approved", what)
		}
		if _, err := a.s.DecideApproval(a.t.Context(), agent, id, &ledger.Verdict{Approve: true}); err == nil {
			a.gain("an agent decides an approval that %s", what)
		}
	}
	if _, err := a.s.CreateAPIKey(a.t.Context(), agent, &service.KeyRequest{Name: "mine", Role: ledger.RoleAdmin}); err == nil {
		a.gain("an agent makes an admin's key")
	}
}

// spend pays for agents whose budgets are used up.
func (a *attacker) spend() {
	agent := a.caller(a.agent)
	if agent == nil {
		return
	}
	for _, name := range []string{"spender", "waiter"} {
		if a.allowed(agent, a.spending, pay(a.t, name, 5, "")) {
			a.gain("the %s exceeds a budget", name)
		}
	}
}

func (a *attacker) askAsStranger() {
	stranger := a.caller(a.other)
	if stranger == nil {
		return
	}
	if a.allowed(stranger, a.stopped, step(a.t, "look", "")) {
		a.gain("the kill switch does not hold")
	}
	if _, err := a.s.Receipt(a.t.Context(), stranger, a.receipt); err == nil {
		a.gain("another organization's admin reads a receipt")
	}
	if _, err := a.s.DecideApproval(a.t.Context(), stranger, a.pending, &ledger.Verdict{Approve: true}); err == nil {
		a.gain("another organization's admin decides")
	}
	if _, err := a.s.Events(a.t.Context(), stranger, a.working, 0, 10); err == nil {
		a.gain("another organization's admin reads events")
	}
}

// askAsPeople lets one reviewer approve: two are required, and signatures must be by a key of the
// original registry.
func (a *attacker) askAsPeople() {
	member := a.caller(a.member)
	if member == nil {
		return
	}
	for what, id := range map[string]ledger.ApprovalID{"was denied": a.denied, "has lapsed": a.lapsed} {
		if view, err := a.s.DecideApproval(a.t.Context(), member, id, &ledger.Verdict{Approve: true}); err == nil && view.Status == ledger.ApprovalApproved {
			a.gain("an approval that %s is approved after all", what)
		}
	}
	if view, err := a.s.DecideApproval(a.t.Context(), member, a.pending, &ledger.Verdict{Approve: true}); err == nil && view.Status == ledger.ApprovalApproved {
		a.gain("one person decides where two must")
	}
	if view, err := a.s.DecideApproval(a.t.Context(), member, a.voted, &ledger.Verdict{Approve: true}); err == nil && view.Status == ledger.ApprovalApproved {
		if public, known := a.signers[view.SigningKey]; !known || !view.SignedBy(public) {
			a.gain("a decision is signed by a key that the service did not make")
		}
		if len(view.Votes) != 2 || view.Votes[0].Reviewer.Name != "test" || view.Votes[1].Reviewer.Name != "reviewer" {
			a.gain("a decision is signed for people who did not vote: %+v", view.Votes)
		}
	}
	if _, err := a.s.UpdateOrganization(a.t.Context(), member, value(a.t, `{"two_person_approval":false}`)); err == nil {
		a.gain("a member changes the settings")
	}
}

// collect runs the queued jobs, up to what would be sent. The notice of tampering is no gain.
func (a *attacker) collect() {
	room := map[string]int{service.JobNotice: 50, service.JobWebhook: 50, service.JobEmail: 50, service.JobSlack: 50}
	for range 20 {
		jobs, err := a.s.Jobs().Claim(a.t.Context(), time.Minute, room)
		if err != nil || len(jobs) == 0 {
			return
		}
		for _, job := range jobs {
			if job.Kind == service.JobNotice {
				_ = a.s.Jobs().FanOut(a.t.Context(), job) // what cannot be read is not sent
				continue
			}
			if job.Kind == service.JobSlack {
				if m, err := a.s.Jobs().Slack(a.t.Context(), job); err == nil && m != nil {
					a.found.sent = append(a.found.sent, fmt.Sprint(m.Channel, " ", job.Org, " ", m.Approval.Notice.ApprovalID, " ", m.Approval.Notice.Status))
				}
			} else if delivery, err := a.s.Jobs().Delivery(a.t.Context(), job); err == nil {
				to := strings.Join(delivery.To, ",")
				if delivery.Webhook != nil {
					to = delivery.Webhook.URL
				}
				if kind := kindOf(a.t, delivery.Notice); !strings.HasPrefix(kind, string(notify.LedgerTamperFound)) {
					a.found.sent = append(a.found.sent, to+" "+job.Org.String()+" "+kind)
				}
			}
			_ = a.s.Jobs().Finish(a.t.Context(), job) // whose lease may be gone
		}
	}
}

// kindOf returns the kind and the subject of a notice.
func kindOf(t *testing.T, notice []byte) string {
	t.Helper()
	v := value(t, string(notice))
	kind, _ := v.Get("type")
	data, _ := v.Get("data")
	return kind.Str() + " " + string(data.Append(nil))
}
