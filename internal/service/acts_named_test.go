package service_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/testdb"
)

// elsewhere lists the acts that other tests cover: what an operator does to a database of an
// earlier version, to a restored one, or to one that was tampered with.
var elsewhere = []string{
	ledger.ActLogBegin, ledger.ActRowsTrust, ledger.ActRollbackAccept, ledger.ActLedgerRestore, ledger.ActTransparencyClose, ledger.ActTamperingFound, ledger.ActTamperingAcknowledge,
}

// Every act names its target and the old and new values, and contains no secret.
func TestActsSayWhatHappened(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		g := govern(t, db)
		ctx, admin := t.Context(), g.who.admin
		seen := map[string]bool{ledger.ActOrganizationCreate: true}
		first := g.acts()[0]
		if first.Sentence() != "made the organization acme, named acme" {
			t.Errorf("the first act says %q", first.Sentence())
		}
		// newest wants one more act, with these words in its detail and its sentence.
		newest := func(kind, detail, sentence string) {
			t.Helper()
			acts := g.acts()
			act := acts[len(acts)-1]
			seen[act.Action] = true
			if act.Action != kind || !strings.Contains(string(act.Detail), detail) || !strings.Contains(act.Sentence(), sentence) {
				t.Errorf("%s: the log says %s %s, in words %q; want %s and %q", kind, act.Action, act.Detail, act.Sentence(), detail, sentence)
			}
		}

		key, _ := g.newKey(&service.KeyRequest{Name: "worker", Role: ledger.RoleAgent, Owner: "ops", ExpiresAt: g.in(time.Hour)})
		newest(ledger.ActKeyCreate, `"name":"worker","owner":"ops"`, "made the API key worker with the role agent of ops, until 2026-05-04T10:00:00.000Z")
		reader, _ := g.newKey(&service.KeyRequest{Name: "reader", Role: ledger.RoleMember, SignInAs: "r@example.com"})
		newest(ledger.ActKeyCreate, `"sign_in_as":"r@example.com"`, "made the API key reader with the role member, to sign in as r@example.com")
		must[*ledger.KeyRecord](t)(g.UpdateAPIKey(ctx, admin, &service.KeyUpdate{Key: reader.Record.ID, SignInAs: new("")}))
		newest(ledger.ActKeyUpdate, `"name":"reader","role":"member","sign_in_as":{"from":"r@example.com","to":null}`, "who the API key reader is for: sign-in from r@example.com to none")
		must[*ledger.KeyRecord](t)(g.UpdateAPIKey(ctx, admin, &service.KeyUpdate{Key: reader.Record.ID, SlackMember: new("T1/U1")}))
		newest(ledger.ActKeyUpdate, `"role":"member","slack_member":{"from":null,"to":"T1/U1"}`, "who the API key reader is for: Slack member from none to T1/U1")
		must[*service.NewKey](t)(g.RotateAPIKey(ctx, admin, &service.Rotation{Key: key.Record.ID, Overlap: time.Minute}))
		newest(ledger.ActKeyRotate, `"name":"worker"`, "the old one works until 2026-05-04T09:01:00.000Z")
		must[*ledger.KeyRecord](t)(g.RevokeAPIKey(ctx, admin, key.Record.ID))
		newest(ledger.ActKeyRevoke, `"status":{"from":"active","to":"revoked"}`, "revoked the API key worker")

		link := must[ledger.Secret](t)(g.CreateSignIn(ctx, admin, g.who.member.Key))
		newest(ledger.ActSignInCreate, `"name":"`+g.who.member.Name+`"`, "for the API key "+g.who.member.Name)
		session, _, err := g.SignIn(ctx, link.Reveal())
		done(t, err)
		newest(ledger.ActSignInUse, `"name":"`+g.who.member.Name+`"`, "signed in to the console as "+g.who.member.Name)
		done(t, g.SignOut(ctx, session.Reveal()))
		newest(ledger.ActSignInEnd, `"name":"`+g.who.member.Name+`"`, "signed out of the console as "+g.who.member.Name)
		entries := len(g.acts())
		done(t, g.SignOut(ctx, session.Reveal()))
		if again := len(g.acts()); again != entries {
			t.Errorf("a session that has ended is ended again in the log")
		}

		g.settings(`{"two_person_approval":true,"financial_approval_threshold_usd":70,"name":"Acme Ltd"}`)
		newest(ledger.ActOrganizationUpdate,
			`{"changed":{"financial_approval_threshold_usd":{"from":5000,"to":70},"name":{"from":"acme","to":"Acme Ltd"},"two_person_approval":{"from":false,"to":true}}}`,
			"two_person_approval from false to true")
		g.settings(`{"two_person_approval":false,"financial_approval_threshold_usd":5000,"fast_path_actions":["read"]}`)
		newest(ledger.ActOrganizationUpdate, `"fast_path_actions":{"from":null,"to":["read"]}`, "fast_path_actions from none to")

		document := &service.PolicyDocument{Text: []byte(flagDeploys)}
		must[*service.PolicyView](t)(g.PutPolicy(ctx, admin, document))
		version := must[*ledger.Policy](t)(service.CompilePolicy(document)).Version
		newest(ledger.ActPolicyPut, `"version":{"from":null,"to":"`+version+`"}`, "in force: from none to "+version)

		g.kill("an incident")
		newest(ledger.ActKillSwitchActivate, `"reason":"an incident","status":{"from":"inactive","to":"active"}`, "activated the kill switch: an incident")
		g.deactivateKillSwitch()
		newest(ledger.ActKillSwitchDeactivate, `"activated_by":"first admin","activated_for":"an incident"`, "which first admin had activated for: an incident")

		chain := g.open("wires")
		done(t, g.decide(g.who.member, g.ask(chain), true))
		newest(ledger.ActApprovalApprove, `"chain_id":"`+chain.String()+`","chain_name":"wires","status":{"from":"pending","to":"approved"}`,
			"approved send_payment of payer in the chain wires: from pending to approved")
		done(t, g.decide(g.who.member, g.ask(chain), false))
		newest(ledger.ActApprovalDeny, `"action_name":"send_payment"`, "denied send_payment of payer in the chain wires")
		must[*service.ApprovalView](t)(g.CancelApproval(ctx, g.who.agent, g.ask(chain), "late"))
		newest(ledger.ActApprovalCancel, `"action_name":"send_payment"`, "withdrew send_payment of payer in the chain wires")

		overruled := g.ask(chain)
		g.put(`rules: [{name: no-payments, when: "action.action_name == 'send_payment'", decision: deny, reason: not today}]`)
		checkCode(t, "approving what a rule denies by now", g.decide(g.who.member, overruled, true), fault.CodePolicyChanged)
		newest(ledger.ActApprovalOverrule, `"policy_name":"no-payments"`, "approved send_payment of payer in the chain wires, which the rules deny by now: from pending to denied")
		must[*service.PolicyView](t)(g.PutPolicy(ctx, admin, &service.PolicyDocument{Text: []byte(flagDeploys)}))

		hook, _, err := g.CreateWebhook(ctx, admin, &service.WebhookRequest{URL: "https://hook.example/in?token=planted-token&x=planted-x", Description: "pager"})
		done(t, err)
		newest(ledger.ActWebhookCreate, `"description":"pager"`, "to https://hook.example/in?token=redacted&x=redacted")
		sent := must[*service.WebhookDelivery](t)(g.TestWebhook(ctx, admin, hook.ID))
		newest(ledger.ActWebhookTest, `"url":"https://hook.example/in`, "sent a test to the webhook to https://hook.example/in")
		done(t, g.Redeliver(ctx, admin, hook.ID, sent.ID))
		newest(ledger.ActWebhookRedeliver, `"url":"https://hook.example/in`, "sent a message to the webhook to https://hook.example/in?token=redacted&x=redacted again")
		done(t, g.DeleteWebhook(ctx, admin, hook.ID))
		newest(ledger.ActWebhookDelete, `"status":{"from":"active","to":"deleted"}`, "deleted the webhook to https://hook.example/in")
		gone := g.hook()
		done(t, g.Jobs().DisableWebhook(ctx, gone.Org, gone.ID))
		newest(ledger.ActWebhookDisable, `"status":{"from":"active","to":"disabled"}`, "disabled the webhook to http://127.0.0.1:9/0")

		signing := must[*service.SigningKey](t)(g.CreateSigningKey(ctx, admin, &service.SigningKeyRequest{Name: "next"}))
		newest(ledger.ActSigningKeyCreate, `"name":"next","status":{"from":null,"to":"active"}`, "made a signing key named next")
		old := must[*service.SigningKey](t)(g.CreateSigningKey(ctx, admin, &service.SigningKeyRequest{Name: "old", Public: make([]byte, 32)}))
		newest(ledger.ActSigningKeyImport, `"to":"historical"`, "imported a signing key named old")
		must[*service.SigningKey](t)(g.ConfirmSigningKey(ctx, admin, old.ID))
		newest(ledger.ActSigningKeyConfirm, `"status":{"from":"historical","to":"confirmed"}`, "confirmed a signing key named old: from historical to confirmed")
		must[*service.SigningKey](t)(g.RetractSigningKey(ctx, admin, old.ID))
		newest(ledger.ActSigningKeyRetract, `"status":{"from":"confirmed","to":"historical"}`, "took back that a signing key named old was confirmed: from confirmed to historical")
		_, line := servicetest.NewElsewhere(t).Decide(nil)
		must[*service.Import](t)(g.bring(line))
		newest(ledger.ActApprovalsImport, `{"approvals":1,"sha256":"sha256:`, "imported approvals that were decided elsewhere: 1")
		must[*service.SigningKey](t)(g.RetireSigningKey(ctx, admin, signing.ID))
		newest(ledger.ActSigningKeyRetire, `"status":{"from":"active","to":"retired"}`, "retired a signing key named next: from active to retired")
		must[*service.SigningKey](t)(g.RevokeSigningKey(ctx, admin, signing.ID))
		newest(ledger.ActSigningKeyRevoke, `"status":{"from":"retired","to":"revoked"}`, "from retired to revoked")

		receipt := *g.complete(chain).State.Receipt
		token, _, err := g.IssueToken(ctx, admin, &service.TokenRequest{Artifact: ledger.ArtifactReceipt, ArtifactID: receipt.UUID, ExpiresAt: g.in(time.Hour)}, "")
		done(t, err)
		newest(ledger.ActTokenCreate, `"artifact_id":"`+receipt.String()+`","artifact_type":"receipt","expires_at":"2026-05-04T10:00:00.000Z"`, receipt.String())
		must[*service.Token](t)(g.RevokeToken(ctx, admin, token.ID, "leaked"))
		newest(ledger.ActTokenRevoke, `"reason":"leaked","status":{"from":"active","to":"revoked"}`, ": leaked")

		done(t, g.Operator().RecordRotation(ctx, "key-1", "key-2"))
		newest(ledger.ActMasterKeyRotate, `"key":{"from":"key-1","to":"key-2"}`, "from key-1 to key-2")
		subject := uuid.New()
		done(t, g.Jobs().SaveAnchor(ctx, &ledger.Anchor{
			Org: g.who.admin.Org, Kind: ledger.SubjectHead, Subject: subject, Sequence: 1, Method: ledger.MethodTSA, Standing: ledger.AnchorVerified,
		}))
		newest(ledger.ActAnchorMade, `"method":"tsa"`, "anchored the head "+subject.String()+" in time by tsa")

		g.settings(`{"auto_pause":{"max_events":1}}`)
		paused := g.open("loop")
		g.record(paused, step(t, "one", ""))
		g.record(paused, step(t, "two", ""))
		must[*service.ChainView](t)(g.ResumeChain(ctx, admin, paused))
		newest(ledger.ActChainResume, `"chain_name":"loop","status":{"from":"auto_paused","to":"active"}`, "resumed the chain loop: from auto_paused to active")

		short, _ := g.newKey(&service.KeyRequest{Name: "short", Role: ledger.RoleAgent, ExpiresAt: g.in(time.Minute)})
		g.clock.Advance(2 * time.Minute)
		_ = g.Jobs().KeyExpiry(ctx, &service.Job{No: -1, Org: short.Record.Org, Kind: service.JobKeyExpiry, Body: []byte(short.Record.ID.String())})
		newest(ledger.ActKeyExpire, `"status":{"from":"active","to":"expired"}`, "let the API key short expire")

		for _, kind := range ledger.ActKinds() {
			if seen[kind] == slices.Contains(elsewhere, kind) {
				t.Errorf("%s: seen here %t", kind, seen[kind])
			}
		}
		for _, act := range g.acts() {
			if strings.Contains(string(act.Detail), "planted") || strings.Contains(string(act.Detail), "csl_") || strings.Contains(string(act.Detail), "css_") {
				t.Errorf("act %d holds a secret: %s", act.Sequence, act.Detail)
			}
		}
	})
}

// The service names acts only by the constants of the ledger, so that each has a sentence and is
// documented.
func TestActsHaveNames(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	literal := regexp.MustCompile(`(?i)(action:|action =|auditentry\() *"[a-z_]+\.[a-z_]+"`)
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if found := literal.Find(text); found != nil && !strings.HasSuffix(name, "_test.go") {
			t.Errorf("%s names an act by a text, %s: make it a constant of package ledger", name, found)
		}
	}
}

// The audit log keeps only the parts of an address that are not secret.
func TestShownURL(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"https://hook.example/in":                       "https://hook.example/in",
		"https://<USER>:<PASSWORD>@hook.example":        "unreadable",
		"https://user:word@hook.example/in#part":        "https://hook.example/in",
		"https://hook.example/in?b=2&a=1&a=3":           "https://hook.example/in?a=redacted&b=redacted",
		"https://hook.example/in?word":                  "https://hook.example/in?redacted=redacted",
		"https://hook.example/in?a=%zz;b":               "https://hook.example/in?redacted=redacted",
		"https://hook.example/in?":                      "https://hook.example/in",
		"https://hook.example/%zz":                      "unreadable",
		"https://hook.example:8443/in/?a=1#x?y=planted": "https://hook.example:8443/in/?a=redacted",
	} {
		if got := service.ShownURL(address); got != want {
			t.Errorf("%s is shown as %s, want %s", address, got, want)
		}
	}
}
