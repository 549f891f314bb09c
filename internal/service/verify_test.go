package service_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/testdb"
	"countersign/internal/verify"
)

// sealedLedger returns the three receipts of a new organization, oldest first.
func sealedLedger(t *testing.T, s *service.Service) []ledger.ReceiptID {
	t.Helper()
	who := newTenant(t, s, "acme")
	for i := range 3 {
		sealOne(t, s, who, fmt.Sprint("chain-", i))
	}
	stored := must[[]*ledger.StoredReceipt](t)(s.Receipts(t.Context(), who.member, 0, 10))
	return []ledger.ReceiptID{stored[2].ID, stored[1].ID, stored[0].ID}
}

func statuses(verdict *verify.Verdict) map[ledger.Check]ledger.CheckStatus {
	found := make(map[ledger.Check]ledger.CheckStatus)
	for _, check := range verdict.Checks {
		found[check.Name] = check.Status
	}
	return found
}

// Every check of an untouched receipt passes; the last receipt has no next link to
// check.
func TestVerifyReceiptInItsPlace(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		s := serve(t, service.Config{Store: db.Open(t)})
		for i, id := range sealedLedger(t, s) {
			verdict := must[*verify.Verdict](t)(s.Operator().VerifyReceipt(t.Context(), id))
			want := map[ledger.Check]ledger.CheckStatus{
				ledger.CheckSignature: ledger.CheckPass, ledger.CheckColumns: ledger.CheckPass,
				ledger.CheckPreviousLink: ledger.CheckPass, ledger.CheckNextLink: ledger.CheckPass,
				ledger.CheckSequence: ledger.CheckPass, ledger.CheckApprovals: ledger.CheckPass,
				ledger.CheckHead: ledger.CheckPass, ledger.CheckChain: ledger.CheckPass, ledger.CheckEventsDigest: ledger.CheckPass,
			}
			if i == 2 {
				want[ledger.CheckNextLink] = ledger.CheckNotApplicable
			}
			if difference := cmp.Diff(want, statuses(verdict)); difference != "" || !verdict.Valid {
				t.Errorf("receipt %d: valid is %v, checks differ:\n%s", i+1, verdict.Valid, difference)
			}
			if verdict.Organization != "acme" || verdict.ReceiptNumber != fmt.Sprintf("CSN-2026-%05d", i+1) {
				t.Errorf("the verdict is on %s of %s", verdict.ReceiptNumber, verdict.Organization)
			}
		}
		_, err := s.Operator().VerifyReceipt(t.Context(), ledger.ReceiptID{})
		checkCode(t, "an unknown receipt", err, fault.CodeNotFound)
	})
}

// Each statement alters a ledger of three receipts, and the verification of the second one finds
// it.
//
//countersign:race
func TestVerifyReceiptFindsWhatWasAltered(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		statement string
		first     ledger.Check
	}{
		"its bytes":            {`UPDATE receipts SET body = CAST(replace(CAST(body AS TEXT), 'chain-1', 'chain-9') AS BLOB) WHERE sequence = 2`, ledger.CheckSignature},
		"its previous hash":    {`UPDATE receipts SET previous_hash = zeroblob(32) WHERE sequence = 2`, ledger.CheckColumns},
		"the one before":       {`UPDATE receipts SET body = CAST(replace(CAST(body AS TEXT), 'chain-0', 'chain-9') AS BLOB) WHERE sequence = 1`, ledger.CheckPreviousLink},
		"the one before, gone": {`DELETE FROM receipts WHERE sequence = 1`, ledger.CheckPreviousLink},
		"the one after":        {`UPDATE receipts SET body = CAST(replace(CAST(body AS TEXT), 'chain-2', 'chain-9') AS BLOB) WHERE sequence = 3`, ledger.CheckNextLink},
		"the one after, gone":  {`DELETE FROM receipts WHERE sequence = 3`, ledger.CheckNextLink},
		"the head's count":     {`UPDATE heads SET count = 1`, ledger.CheckHead},
		"the head's key":       {`UPDATE heads SET key_id = 'mk_unknown'`, ledger.CheckHead},
		"the head, gone":       {`DELETE FROM heads`, ledger.CheckHead},
		"its chain's state":    {`UPDATE chain_states SET mac = zeroblob(32) WHERE chain_no = 2`, ledger.CheckChain},
		"its chain's event":    {`UPDATE events SET body = CAST(replace(CAST(body AS TEXT), 'tool_call', 'tool_cull') AS BLOB) WHERE chain_no = 2`, ledger.CheckEventsDigest},
		"its event, gone":      {`DELETE FROM events WHERE chain_no = 2`, ledger.CheckEventsDigest},
		"its organization":     {`UPDATE organizations SET slug = 'other'`, ledger.CheckColumns},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.SQLite(t)
			s := serve(t, service.Config{Store: db.Open(t)})
			second := sealedLedger(t, s)[1]
			// What was found sound before must not be taken for sound afterwards.
			if before := must[*verify.Verdict](t)(s.Operator().VerifyReceipt(t.Context(), second)); !before.Valid {
				t.Fatalf("an untouched receipt does not verify: %+v", before.Checks)
			}
			result, err := db.Direct(t).ExecContext(t.Context(), test.statement)
			if err != nil {
				t.Fatal(err)
			}
			if changed, err := result.RowsAffected(); changed == 0 || err != nil {
				t.Fatalf("nothing was altered: %v", err)
			}
			verdict := must[*verify.Verdict](t)(s.Operator().VerifyReceipt(t.Context(), second))
			if failure := verdict.FirstFailure(); verdict.Valid || failure == nil || failure.Name != test.first || failure.Detail == "" {
				t.Errorf("valid is %v, the checks are %+v, want %s to fail first", verdict.Valid, verdict.Checks, test.first)
			}
		})
	}
}
