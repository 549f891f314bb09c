package service_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

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

// anchorAll stores an anchor of each receipt.
func (s *suspect) anchorAll() {
	s.t.Helper()
	for i, id := range s.receipts {
		receipt := must[*ledger.StoredReceipt](s.t)(s.store.Receipt(s.t.Context(), id))
		done(s.t, s.Jobs().SaveAnchor(s.t.Context(), &ledger.Anchor{
			Org: s.who.id, Kind: ledger.SubjectHead, Subject: id.UUID, Sequence: int64(i) + 1, Method: ledger.MethodTSA, Digest: receipt.Hash(),
			Standing: ledger.AnchorVerified, Proof: []byte("proof"),
		}))
	}
}

// foundAnew makes a self-check and acknowledges what it found. It returns the checks that failed.
func (s *suspect) foundAnew() (open []string) {
	s.t.Helper()
	s.checkRound(s.Service)
	for _, finding := range must[[]*service.Finding](s.t)(s.Operator().Findings(s.t.Context(), "")) {
		if finding.Open() {
			open = append(open, finding.Check)
			done(s.t, s.Operator().Acknowledge(s.t.Context(), finding, "looked at"))
		}
	}
	slices.Sort(open)
	return open
}

// An anchor that was deleted cannot be made again. Once that is acknowledged, another that is deleted
// is found nevertheless, and so is everything else that the audit log says must be there.
//
//countersign:race
func TestADeletedAnchorHidesNothing(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		s := newSuspect(t, db, 2)
		s.anchorAll()
		_, _, err := s.IssueToken(t.Context(), s.who.admin, &service.TokenRequest{Artifact: ledger.ArtifactReceipt, ArtifactID: s.receipts[0].UUID}, "")
		done(t, err)
		found := func(want ...string) {
			t.Helper()
			if open := s.foundAnew(); !slices.Equal(open, want) {
				t.Errorf("found %q, want %q", open, want)
			}
		}
		found()
		done(t, s.exec("DELETE FROM anchors WHERE sequence = 2"))
		found("anchors")
		found()
		done(t, s.exec("DELETE FROM anchors"))
		done(t, s.exec("DELETE FROM tokens"))
		found("anchors", "registry")
		found()
	})
}

// However many anchors were deleted, once that is acknowledged they hide no other, and they stay
// acknowledged.
//
//countersign:race
func TestDeletedAnchorsHideNoOthers(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		const deleted = 20 // as many as a check names
		s := newSuspect(t, db, deleted+2)
		s.anchorAll()
		done(t, s.exec("DELETE FROM anchors WHERE sequence > 2"))
		if found := s.foundAnew(); len(found) != deleted {
			t.Errorf("found %q", found)
		}
		if found := s.foundAnew(); len(found) > 0 {
			t.Errorf("acknowledged, found %q", found)
		}
		done(t, s.exec("DELETE FROM anchors WHERE sequence = 2"))
		if found := s.foundAnew(); !slices.Equal(found, []string{"anchors"}) {
			t.Errorf("one more was deleted: found %q", found)
		}
		if found := s.foundAnew(); len(found) > 0 {
			t.Errorf("acknowledged in the end, found %q", found)
		}
	})
}

// An acknowledgement of records that are missing covers no other record, however many are missing and
// although no more are than before.
//
//countersign:race
func TestMissingRecordsHideNoOthers(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		s := newSuspect(t, db, 1)
		for range 6 {
			_, _, err := s.IssueToken(t.Context(), s.who.admin, &service.TokenRequest{Artifact: ledger.ArtifactReceipt, ArtifactID: s.receipts[0].UUID}, "")
			done(t, err)
			s.clock.Advance(time.Second)
		}
		tokens := s.rowsOf("tokens") // by id
		for i := range 5 {
			done(t, s.remove(&tokens[i]))
		}
		for round := 1; round <= 2; round++ {
			s.checkRound(s.Service)
			findings := must[[]*service.Finding](t)(s.Operator().Findings(t.Context(), ""))
			if len(findings) != 1 || !findings[0].Open() {
				t.Fatalf("round %d: found %+v", round, findings)
			}
			done(t, s.Operator().Acknowledge(t.Context(), findings[0], "looked at"))
			if round == 1 {
				done(t, s.insert(&tokens[4]))
				done(t, s.remove(&tokens[5]))
			}
		}
	})
}

// However many rows somebody forges, once they are acknowledged they hide no others, and they stay
// acknowledged.
//
//countersign:race
func TestForgedRowsHideNoOthers(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		s := newSuspect(t, db, 1)
		const forged = 110 // more than a check names
		key := s.rowsOf("api_keys")[0]
		for i := range forged {
			id := [16]byte{14: 1, 15: byte(i)}
			hash := ledger.HashToken(fmt.Sprint("his ", i))
			r := key.with(map[string]any{"id": s.idOf(id, uuid.UUID(id).String()), "hash": hash[:], "previous_hash": nil})
			done(t, s.insert(&r))
		}
		for round := 1; round <= 2; round++ {
			s.checkRound(s.Service)
			for _, finding := range must[[]*service.Finding](t)(s.Operator().Findings(t.Context(), "")) {
				if finding.Open() {
					done(t, s.Operator().Acknowledge(t.Context(), finding, "left in place"))
				}
			}
		}
		done(t, s.scene.update("webhooks SET description = 'his'"))
		s.checkRound(s.Service)
		var open []string
		all := must[[]*service.Finding](t)(s.Operator().Findings(t.Context(), ""))
		for _, finding := range all {
			if finding.Open() {
				open = append(open, finding.Subject)
			}
		}
		if len(open) != 1 || !strings.Contains(open[0], "the webhook ") || len(all) != forged+1 {
			t.Errorf("of %d findings are open %q", len(all), open)
		}
	})
}
