package service_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/store"
	"countersign/internal/testdb"
)

const aDay = 24 * time.Hour

// checkRound lets a service check the whole ledger, and returns the number of jobs.
func (s *suspect) checkRound(by *service.Service) (jobs int) {
	s.t.Helper()
	done(s.t, by.QueueChecks(s.t.Context(), aDay))
	s.clock.Advance(24 * time.Hour)
	for range 100 {
		claimed := must[[]*service.Job](s.t)(by.Jobs().Claim(s.t.Context(), time.Second, map[string]int{service.JobCheck: 5}))
		if len(claimed) == 0 {
			return jobs
		}
		for _, job := range claimed {
			done(s.t, by.Jobs().CheckLedger(s.t.Context(), job, aDay))
			jobs++
		}
		s.clock.Advance(time.Minute)
	}
	s.t.Fatal("there is no end to it")
	return 0
}

// Each organization has one check of its ledger queued, however many replicas queue it.
//
//countersign:race
func TestChecksAreQueuedOnce(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		s := newSuspect(t, db, 2)
		newTenant(t, s.Service, "globex")
		waiting := s.waitingJobs()
		another := s.replica()
		for range 2 {
			done(t, s.QueueChecks(t.Context(), aDay))
			done(t, another.QueueChecks(t.Context(), aDay))
		}
		if got := s.waitingJobs(); got != waiting+2 {
			t.Errorf("%d jobs more, want one for each organization", got-waiting)
		}
		if n := s.checkRound(s.Service); n != 2 {
			t.Errorf("%d jobs on the first day", n)
		}
		if n := s.checkRound(another); n != 2 {
			t.Errorf("%d jobs on the second day", n)
		}
		s.wantTold("untouched")
	})
}

// Wherever a check is split into parts, no break is missed between them.
func TestChecksOfALongLedger(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		const chains = 210
		s := newSuspect(t, db, chains)
		receipts := s.inOrder("receipts")
		if n := s.checkRound(s.Service); n != 1 {
			t.Errorf("%d jobs", n)
		}
		s.wantTold("untouched")
		var looks atomic.Int64
		hasty := serve(t, service.Config{Store: s.store, Keys: s.ring, Clock: func() time.Time {
			return s.clock.Now().Add(time.Duration(looks.Add(1)) * 200 * time.Millisecond)
		}})
		if n := s.checkRound(hasty); n < 2 {
			t.Errorf("%d jobs, though time was short", n)
		}
		s.clock.Advance(time.Duration(looks.Load()) * 200 * time.Millisecond)
		s.wantTold("untouched, in parts")
		for _, sequence := range []int{1, 100, 101, 102, 201, chains} {
			r := receipts[sequence-1]
			done(t, s.remove(&r))
			s.checkRound(s.Service)
			check := ledger.CheckSequence
			if sequence == chains {
				check = ledger.CheckHead
			}
			s.wantTold(fmt.Sprint("without receipt ", sequence), string(check)+" ")
			done(t, s.insert(&r))
			s.checkRound(s.Service)
			s.wantTold(fmt.Sprint("with receipt ", sequence, " again"))
		}
	})
}

// One break does not hide the others, and many breaks do not cause a flood of notices.
//
//countersign:race
func TestChecksGoOnBehindABreak(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		s := newSuspect(t, db, 12)
		var want []string
		for _, i := range []int{1, 3, 5, 7, 9} {
			s.edit("receipts", "body", i)
			want = append(want, fmt.Sprint("signature ", s.receipts[i]))
		}
		s.checkRound(s.Service)
		s.wantTold("a round", want[:3]...)
		s.checkRound(s.Service)
		s.wantTold("the next one", want[3:]...)
		s.edit("receipts", "body", 11)
		s.checkRound(s.replica())
		s.wantTold("what is new behind them", fmt.Sprint("signature ", s.receipts[11]))
		for range 4 {
			s.checkRound(s.Service)
			s.wantTold("what was told lately")
		}
		s.edit("receipts", "body", 8)
		s.checkRound(s.replica())
		s.wantTold("a week later", want[0], want[1], want[2], fmt.Sprint("signature ", s.receipts[8]))
	})
}

// A check finds a broken link after a receipt even if the receipt's chain is broken, too.
func TestChecksSeeTheLinkBehindABrokenChain(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		s := newSuspect(t, db, 5)
		receipts := s.inOrder("receipts")
		s.edit("approvals", "body", 0)
		done(t, s.remove(&receipts[2]))
		done(t, s.remove(&receipts[3]))
		s.checkRound(s.Service)
		s.wantTold("a chain, and a gap behind it that is one finding", fmt.Sprint("approvals ", s.receipts[1]), "sequence ")
	})
}

// Tampering that was undone and is repeated is reported again.
//
//countersign:race
func TestTamperingMadeAgainIsToldAgain(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		s := newSuspect(t, db, 3)
		finding := fmt.Sprint("signature ", s.receipts[1])
		for _, at := range []string{"at first", "a week later"} {
			s.edit("receipts", "body", 1)
			s.auditAll(s.Service)
			s.auditAll(s.replica())
			s.wantTold(at, finding)
			s.edit("receipts", "body", 1) // the same bit, back
			s.auditAll(s.Service)
			s.clock.Advance(7 * 24 * time.Hour)
			s.wantTold(at + ", put right")
		}
	})
}

// hasty returns a service for which time passes whenever it reads the clock.
func (s *suspect) hasty(step time.Duration, log *bytes.Buffer) *service.Service {
	var looks atomic.Int64
	return serve(s.t, service.Config{
		Store: s.store, Keys: s.ring, Log: slog.New(slog.NewTextHandler(log, nil)),
		Clock: func() time.Time { return s.clock.Now().Add(time.Duration(looks.Add(1)) * step) },
	})
}

// However slow it is, a check reaches the end of the ledger.
func TestChecksWithoutTime(t *testing.T) {
	t.Parallel()
	const chains = 6
	for name, test := range map[string]struct {
		step         time.Duration
		least        int // jobs
		passed, told bool
	}{
		"a chain takes as long as a job may": {step: 11 * time.Second, least: chains, told: true},
		"no chain is done in time":           {step: 50 * time.Second, least: chains, passed: true},
	} {
		t.Run(name, func(t *testing.T) {
			testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
				s := newSuspect(t, db, chains)
				s.edit("approvals", "body", 0)
				var log bytes.Buffer
				if n := s.checkRound(s.hasty(test.step, &log)); n < test.least {
					t.Errorf("%d jobs", n)
				}
				if passed := strings.Count(log.String(), "passed by"); (passed == chains) != test.passed || (passed == 0) == test.passed {
					t.Errorf("%d chains were passed by: %s", passed, log.String())
				}
				s.clock.Advance(24 * time.Hour)
				var want []string
				if test.told {
					want = append(want, fmt.Sprint("approvals ", s.receipts[1]))
				}
				s.wantTold(name, want...)
			})
		})
	}
}

// pages records the largest number of events read at a time.
type pages struct {
	store.Store
	most atomic.Int64
}

func (p *pages) Events(ctx context.Context, chain ledger.ChainID, after int64, limit int) ([]*ledger.StoredEvent, error) {
	p.most.Store(max(p.most.Load(), int64(limit)))
	return p.Store.Events(ctx, chain, after, limit)
}

// Events may be large, so few are held in memory at a time.
func TestLongChainsAreReadInSmallPages(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		s := newSuspect(t, db, 0)
		chain := s.open("long")
		for i := range 70 {
			s.record(chain, step(t, fmt.Sprint("step-", i), ""))
		}
		watched := &pages{Store: s.store}
		by := s.over(watched)
		must[*service.Completed](t)(by.CompleteChain(t.Context(), s.who.agent, chain, &ledger.Completion{}))
		if most := watched.most.Load(); most == 0 || most > 32 {
			t.Errorf("%d events at a time for the receipt", most)
		}
		watched.most.Store(0)
		s.checkRound(by)
		if most := watched.most.Load(); most == 0 || most > 32 {
			t.Errorf("%d events at a time for the check", most)
		}
		s.wantTold("untouched")
		s.edit("events", "body", 69)
		s.checkRound(by)
		s.wantTold("the last page counts", fmt.Sprint("events_digest ", must[*ledger.StoredReceipt](t)(s.store.ReceiptOfChain(t.Context(), chain)).ID))
	})
}

// A receipt inserted at a sequence where none can be is found by the audit and by the self-check,
// wherever it is, and whatever was done to the head. The self-check still reaches the end, and
// finds everything else.
func TestReceiptsBehindTheLast(t *testing.T) {
	t.Parallel()
	for _, sequence := range []int64{3, 4, 150, 1 << 52, 1<<53 + 1, math.MaxInt64 - 1, math.MaxInt64} {
		for name, edit := range map[string]string{
			"":                             "",
			"and the head counts it":       fmt.Sprint("UPDATE heads SET count = ", sequence),
			"and the head counts all":      "UPDATE heads SET count = 9223372036854775807",
			"and the head is gone":         "DELETE FROM heads",
			"and the receipts before went": "DELETE FROM receipts WHERE sequence < 3",
		} {
			t.Run(fmt.Sprint(sequence, " ", name), func(t *testing.T) {
				testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
					s := newSuspect(t, db, 2)
					s.open("open")
					s.forgeReceipt(sequence)
					if edit != "" {
						done(t, s.exec(edit))
					}
					done(t, s.exec("DELETE FROM acts WHERE sequence = 2"))
					if found := s.audit(s.who.slug); found == nil {
						t.Error("the audit finds nothing")
					}
					s.checkRound(s.Service)
					if told := s.told(); len(told) < 2 || !slices.Contains(told, "audit_log ") {
						t.Errorf("told of %q, want the receipt and the audit log", told)
					}
				})
			})
		}
	}
}

// The length that the end of the audit log claims is not trusted: it does not keep the log, or the
// findings in it, from being checked.
//
//countersign:race
func TestAuditLogsThatSeemLong(t *testing.T) {
	t.Parallel()
	for _, count := range []int64{0, 500_001, 1<<53 + 1, math.MaxInt64} {
		t.Run(fmt.Sprint(count), func(t *testing.T) {
			testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
				s := newSuspect(t, db, 2)
				s.edit("receipts", "body", 1)
				s.checkRound(s.Service)
				s.wantTold("a receipt", fmt.Sprint("signature ", s.receipts[1]))
				s.edit("receipts", "body", 1) // the same bit, back
				done(t, s.exec("DELETE FROM acts WHERE sequence IN (2, 3)"))
				done(t, s.exec(fmt.Sprint("UPDATE act_logs SET count = ", count)))
				done(t, s.exec("DELETE FROM findings"))
				s.checkRound(s.replica())
				s.wantTold("the log and its findings", "findings ", "audit_log ")
			})
		})
	}
}

// The daily check finds that an API key was deleted.
func TestChecksFindDeletedKeys(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		s := newSuspect(t, db, 1)
		s.checkRound(s.Service)
		s.wantTold("untouched")
		was := s.rowsOf("api_keys")[0]
		done(t, s.remove(&was))
		s.checkRound(s.Service)
		s.wantTold("deleted", string(ledger.CheckRegistry)+" ")
	})
}
