package service_test

import (
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/testdb"
)

// An acknowledgement covers the row that was examined, as it was then: neither another row, nor
// another edit of the same row, nor a row hidden behind it.
//
//countersign:race
func TestAnAcknowledgementCoversNoOtherRow(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		s := newSuspect(t, db, 1)
		token := func() ledger.TokenID {
			record, _, err := s.IssueToken(t.Context(), s.who.admin, &service.TokenRequest{Artifact: ledger.ArtifactReceipt, ArtifactID: s.receipts[0].UUID}, "")
			done(t, err)
			return record.ID
		}
		token()
		token()
		open := func(what string, want int) {
			t.Helper()
			s.checkRound(s.Service)
			s.ForgetFindings()
			if got := must[int](t)(s.OpenFindings(t.Context())); got != want {
				t.Errorf("%s: %d findings are open, want %d", what, got, want)
			}
		}
		acknowledge := func() {
			t.Helper()
			for _, finding := range must[[]*service.Finding](t)(s.Operator().Findings(t.Context(), "")) {
				if finding.Open() {
					done(t, s.Operator().Acknowledge(t.Context(), finding, "looked at"))
				}
			}
		}
		rows := s.rowsOf("tokens")
		open("nothing was done", 0)
		done(t, s.set(&rows[0], "revocation_reason", "his"))
		open("a token was edited", 1)
		acknowledge()
		open("it was acknowledged", 0)
		done(t, s.set(&rows[1], "revocation_reason", "his"))
		open("another token was edited beside it", 1)
		acknowledge()
		edited := rows[0].with(map[string]any{"revocation_reason": "his"})
		done(t, s.set(&edited, "revocation_reason", "his again"))
		open("the first one was edited anew", 1)
		acknowledge()
		keys := s.rowsOf("api_keys")
		for _, key := range keys {
			if key.org == s.who.slug && key.value("role") == "agent" {
				done(t, s.set(&key, "owner", "his"))
			}
		}
		open("a key was edited", 1)
	})
}
