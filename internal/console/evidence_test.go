package console_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/testdb"
)

// Anyone can check a receipt by its id without signing in, and learns nothing of its
// organization. A changed receipt is shown as not valid.
func TestAnyoneChecksAReceipt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	chain := w.open(t, w.acme, "audited")
	receipt := w.complete(t, w.acme, chain)
	auditor := w.browser(t)
	check := func(id string) *answer {
		t.Helper()
		return auditor.post(t, "/check", url.Values{"receipt_id": {id}})
	}
	check(receipt.String()).expect(t, http.StatusOK, "This receipt is valid", "CSN-", chain.String(), "its events\n    and its approvals").
		without(t, "audited", "acme", "not valid", "Not checked")
	check(" "+receipt.String()+"\n").expect(t, http.StatusOK, "This receipt is valid")
	check("00000000-0000-4000-8000-000000000000").expect(t, http.StatusNotFound, "no receipt with this id")
	check("CSN-2026-00001").expect(t, http.StatusUnprocessableEntity, "only a label")
	check("").expect(t, http.StatusUnprocessableEntity, "not a receipt id")
	auditor.get(t, "/check?receipt_id="+receipt.String()).expect(t, http.StatusOK).without(t, receipt.String(), "valid.")
	w.store.rewrite(receipt, "audited", "altered")
	check(receipt.String()).expect(t, http.StatusOK, "This receipt is not valid").without(t, "is valid")
}

// The page of a receipt says whether the receipt is valid and whether its links to
// its neighbours hold.
func TestReceiptPageJudgesTheRecordAndItsLinks(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	var receipts []ledger.ReceiptID
	for _, name := range []string{"first", "second", "third"} {
		receipts = append(receipts, w.complete(t, w.acme, w.open(t, w.acme, name, `{}`)))
	}
	member := w.signedIn(t, w.acme, ledger.RoleMember)
	look := func(i int) *answer {
		t.Helper()
		return member.get(t, "/receipts/"+receipts[i].String())
	}
	look(0).expect(t, http.StatusOK, "is valid", "none: this is the first", "✓ linked", receipts[1].String())
	look(1).expect(t, http.StatusOK, "is valid", receipts[0].String(), receipts[2].String(), "sha256:", "step-1", "clerk").without(t, "✗")
	look(2).expect(t, http.StatusOK, "is valid", "none: this is the newest").without(t, "✗")

	w.store.rewrite(receipts[1], "second", "s3cond")
	look(0).expect(t, http.StatusOK, "is not valid", "Its signature matches, but", "✗ broken", "clerk")
	look(1).expect(t, http.StatusOK, "is not valid", "Its signature does not match", "The stored record was changed, so it is not shown", "✗ broken").without(t, "s3cond", "clerk")
	look(2).expect(t, http.StatusOK, "is not valid", "Its signature matches, but", "✗ broken", "clerk")

	w.store.rewrite(receipts[1], `{"agents_involved"`, `{"agents_involved":[],"agents_involved"`)
	look(1).expect(t, http.StatusOK, "is not valid", "The stored record was changed, so it is not shown")
}

// The page of a chain shows its events and, once it is sealed, whether its receipt
// is valid.
func TestChainPageShowsItsReceipt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	chain := w.open(t, w.acme, "month-end", `{"total":12}`)
	member := w.signedIn(t, w.acme, ledger.RoleMember)
	here := "/chains/" + chain.String()
	member.get(t, here).expect(t, http.StatusOK, "month-end", "clerk", "step-1", "allow", "&#34;total&#34;: 12", "still open").
		without(t, "This receipt")
	receipt := w.complete(t, w.acme, chain)
	member.get(t, here).expect(t, http.StatusOK, "This receipt is valid", "/receipts/"+receipt.String(), "Policy version")
	w.store.rewrite(receipt, "month-end", "month-odd")
	member.get(t, here).expect(t, http.StatusOK, "This receipt is not valid")
}

// When stored chains were forged, the overview says so and still shows the receipts.
func TestForgedChainsHideNoReceipts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	w.complete(t, w.acme, w.open(t, w.acme, "forged"))
	w.waits(t, w.acme, payment)
	w.store.forged.Store(true)
	member := w.signedIn(t, w.acme, ledger.RoleMember)
	member.get(t, "/").
		expect(t, http.StatusOK, "✗ changed outside the service", "some waiting approvals are not shown", "countersign audit", "✓ verified").without(t, "/chains/", "send_payment")
	member.get(t, "/approvals").expect(t, http.StatusOK, "✗ changed outside the service", "some waiting approvals are not shown").without(t, "send_payment")
	if log := w.log.String(); !strings.Contains(log, `"code":"evidence_tampered"`) {
		t.Errorf("the log does not report it:\n%s", log)
	}
}

// Whoever edits a payload, an entry or an approval behind the service's back puts it on no
// page: the events are marked, and the receipt is not called valid anywhere.
func TestNoPageShowsWhatWasForged(t *testing.T) {
	for name, edit := range map[string]struct{ sqlite, postgres, page string }{
		"a payload": {
			`UPDATE events SET payload = CAST(replace(CAST(payload AS TEXT), '9200', '1200') AS BLOB) WHERE sequence = 1`,
			`update events set payload = convert_to(replace(convert_from(payload, 'utf8'), '9200', '1200'), 'utf8') where sequence = 1`,
			"✗ changed outside the service",
		},
		"an event's facts": {
			`UPDATE events SET body = CAST(replace(CAST(body AS TEXT), 'clerk', 'thief') AS BLOB) WHERE sequence = 1`,
			`update events set body = convert_to(replace(convert_from(body, 'utf8'), 'clerk', 'thief'), 'utf8') where sequence = 1`,
			"✗ changed outside the service",
		},
		"an event, gone": {`DELETE FROM events WHERE sequence = 1`, `delete from events where sequence = 1`, "✗ changed outside the service"},
	} {
		t.Run(name, func(t *testing.T) {
			testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
				w := newWorld(t, setup{db: db})
				chain := w.open(t, w.acme, "month-end", `{"count":9200}`, `{"count":7}`)
				receipt := w.complete(t, w.acme, chain)
				member := w.signedIn(t, w.acme, ledger.RoleMember)
				pages := []string{"/", "/chains/" + chain.String(), "/receipts/" + receipt.String()}
				for _, page := range pages {
					member.get(t, page).expect(t, http.StatusOK).without(t, "not valid", "✗")
				}
				statement := edit.sqlite
				if db.Kind != "sqlite" {
					statement = edit.postgres
				}
				if _, err := db.Direct(t).ExecContext(t.Context(), statement); err != nil {
					t.Fatal(err)
				}
				w.elapsed.Add(int64(3 * time.Second))
				for _, page := range pages {
					member.get(t, page).expect(t, http.StatusOK, "not valid").without(t, "is valid", "✓ verified", "&#34;count&#34;: 1200", "thief")
				}
				member.get(t, "/chains/"+chain.String()).expect(t, http.StatusOK, edit.page, "&#34;count&#34;: 7")
				w.browser(t).post(t, "/check", url.Values{"receipt_id": {receipt.String()}}).
					expect(t, http.StatusOK, "This receipt is not valid").without(t, "is valid")
			})
		})
	}
}

// The page of the audit log marks an entry that was edited behind the service's back, and
// shows nothing of it.
func TestAuditLogMarksForgedEntries(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		w := newWorld(t, setup{db: db})
		admin := w.signedIn(t, w.acme, ledger.RoleAdmin)
		admin.get(t, "/audit-log").expect(t, http.StatusOK, "organization.create").without(t, "✗")
		statement := `UPDATE acts SET body = CAST(replace(CAST(body AS TEXT), 'operator', 'nobody') AS BLOB) WHERE sequence = 1`
		if db.Kind != "sqlite" {
			statement = `update acts set body = convert_to(replace(convert_from(body, 'utf8'), 'operator', 'nobody'), 'utf8') where sequence = 1`
		}
		if _, err := db.Direct(t).ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
		admin.get(t, "/audit-log").expect(t, http.StatusOK, "✗ changed outside the service", "countersign audit").without(t, "nobody", "organization.create")
	})
}

// Texts that an agent chose cannot turn the direction of what a reader sees, on any page that
// shows a chain or its receipt.
func TestChainsAreShownWithoutTurnedText(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	w.settings(t, w.acme, `{"auto_pause":{"max_events":1},"budgets":[{"name":"each","scope":"agent","window":"day","limit_usd":250,"decision":"deny"}]}`)
	admin := w.signedIn(t, w.acme, ledger.RoleAdmin)
	const turned, shown = "\u202e~", `\u202e~`
	chain := w.open(t, w.acme, "chain "+turned)
	event := w.record(t, w.acme, chain, strings.ReplaceAll(
		`{"agent_name":"agent ~","parent_agent_name":"parent ~","action_type":"type ~","action_name":"pay ~","payload":{"amount_usd":1}}`, "~", turned))
	report := &ledger.Entry{Kind: ledger.EntryOutcome, Result: ledger.Failed, Detail: "detail " + turned}
	if _, err := w.service.ReportOutcome(t.Context(), w.caller(t, w.acme), chain, event.ID, report); err != nil {
		t.Fatal(err)
	}
	w.record(t, w.acme, chain, harmless)
	admin.get(t, "/").expect(t, http.StatusOK, "Paused chains", "chain "+shown).without(t, turned)
	admin.get(t, "/chains").expect(t, http.StatusOK, "chain "+shown).without(t, turned)
	admin.get(t, "/settings").expect(t, http.StatusOK, "agent "+shown).without(t, turned)
	admin.get(t, "/chains/"+chain.String()).
		expect(t, http.StatusOK, "chain "+shown, "agent "+shown, "parent "+shown, "type "+shown, "pay "+shown, "detail "+shown).without(t, turned)
	receipt := w.complete(t, w.acme, chain)
	admin.get(t, "/receipts/"+receipt.String()).expect(t, http.StatusOK, "agent "+shown, "type "+shown, "pay "+shown).without(t, turned)
}

// The names of an organization, a key and a budget cannot turn what stands beside them either, such as the
// role of the key.
func TestNamesAreShownWithoutTurnedText(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	const turned, shown = "\u202e~", `\u202e~`
	w.settings(t, w.acme, `{"name":"acme `+turned+`","budgets":[{"name":"budget `+turned+`","scope":"organization","window":"day","limit_usd":250,"decision":"deny"}]}`)
	w.spend(t, w.acme)
	w.signedIn(t, w.acme, ledger.RoleAdmin).get(t, "/settings").expect(t, http.StatusOK, "<strong>budget "+shown+"</strong>", `aria-label="budget `+shown)
	reader := w.signedInWith(t, w.acme, w.key(t, w.acme, "key "+turned, ledger.RoleMember))
	reader.get(t, "/").expect(t, http.StatusOK, "acme "+shown, "key "+shown).without(t, turned)
	for _, path := range []string{"/approvals", "/chains", "/receipts", "/policies", "/kill-switch"} {
		reader.get(t, path).expect(t, http.StatusOK, "key "+shown).without(t, turned)
	}
}
