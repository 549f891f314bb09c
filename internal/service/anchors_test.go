package service_test

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/testdb"
)

// The self-check reports an anchor that was made and then deleted.
func TestLooksMissAnchors(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		s := newSuspect(t, db, 1)
		done(t, s.Jobs().SaveAnchor(t.Context(), &ledger.Anchor{
			Org: s.who.admin.Org, Kind: ledger.SubjectHead, Subject: s.receipts[0].UUID, Sequence: 1,
			Method: ledger.MethodTSA, Standing: ledger.AnchorVerified, Proof: []byte("proof"),
		}))
		s.checkRound(s.Service)
		s.wantTold("with its anchor")
		done(t, s.exec("DELETE FROM anchors"))
		s.checkRound(s.Service)
		s.wantTold("without its anchor", "anchors ")
		s.checkRound(s.Service)
		s.wantTold("told before")
	})
}

// forgeReceipt gives the open chain a forged receipt, with the bytes of the first one and the
// given sequence.
func (s *suspect) forgeReceipt(sequence int64) {
	s.t.Helper()
	done(s.t, s.exec(fmt.Sprintf(`INSERT INTO receipts (id, org_id, sequence, chain_id, previous_hash, body)
		SELECT c.id, r.org_id, %d, c.id, r.previous_hash, r.body FROM chains c, receipts r
		WHERE r.sequence = 1 AND c.id NOT IN (SELECT chain_id FROM receipts)`, sequence)))
}

// anchored returns the receipts that are queued to be anchored, each with its sequence.
func (s *suspect) anchored(by *service.Service) (found []string) {
	s.t.Helper()
	for _, job := range must[[]*service.Job](s.t)(by.Jobs().Claim(s.t.Context(), time.Second, map[string]int{service.JobAnchor: 100})) {
		anchor := must[*ledger.Anchor](s.t)(by.Jobs().Anchor(s.t.Context(), job))
		found = append(found, fmt.Sprint(anchor.Subject, " ", anchor.Sequence))
	}
	return found
}

// Only the receipt of the authentic head is anchored. A forged row is not, whatever its sequence,
// and does not keep other organizations from being anchored. If the head or its receipt was
// changed, nothing is anchored, and that is reported.
//
//countersign:race
func TestForgedReceiptsAreNotAnchored(t *testing.T) {
	t.Parallel()
	type test struct {
		attack func(*suspect)
		want   fault.Code // of the answer; "": the newest receipt is anchored
	}
	tests := map[string]test{
		"nothing":           {attack: func(*suspect) {}},
		"no head":           {func(s *suspect) { done(s.t, s.exec("DELETE FROM heads")) }, fault.CodeEvidenceTampered},
		"another count":     {func(s *suspect) { done(s.t, s.exec("UPDATE heads SET count = 1")) }, fault.CodeEvidenceTampered},
		"the largest count": {func(s *suspect) { done(s.t, s.exec("UPDATE heads SET count = 9223372036854775807")) }, fault.CodeEvidenceTampered},
		"the last is gone":  {func(s *suspect) { done(s.t, s.exec("DELETE FROM receipts WHERE sequence = 2")) }, fault.CodeEvidenceTampered},
		"the last is another's": {func(s *suspect) {
			done(s.t, s.exec("UPDATE receipts SET sequence = 9 WHERE sequence = 2"))
			s.forgeReceipt(2)
		}, fault.CodeEvidenceTampered},
		"the last was edited": {func(s *suspect) { s.edit("receipts", "body", 1) }, fault.CodeEvidenceTampered},
	}
	for _, sequence := range []int64{3, 4, 1 << 53, 1<<53 + 1, 1 << 62, math.MaxInt64 - 1, math.MaxInt64} {
		tests[fmt.Sprint("forged in place ", sequence)] = test{attack: func(s *suspect) { s.forgeReceipt(sequence) }}
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
				s := newSuspect(t, db, 2)
				s.open("open")
				by := serve(t, service.Config{Store: s.store, Keys: s.ring, Clock: s.clock.Now, Anchoring: []string{ledger.MethodTSA}})
				newest := fmt.Sprint(s.receipts[1], " 2")
				test.attack(s)
				err := by.AnchorHead(t.Context(), s.who.admin)
				var want []string
				var shown *fault.Error
				switch {
				case test.want == "":
					done(t, err)
					want = []string{newest}
				case !errors.As(err, &shown) || shown.Code != test.want:
					t.Errorf("error %v, want %s", err, test.want)
				}
				if diff := gocmp.Diff(want, s.anchored(by)); diff != "" {
					t.Errorf("to be anchored (-want +got):\n%s", diff)
				}
				if err := by.AnchorHeads(t.Context()); (err != nil) != (test.want != "") {
					t.Errorf("of all organizations: error %v", err)
				}
			})
		})
	}
}
