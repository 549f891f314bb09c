package service_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/service"
)

const aDay = ledger.Time(24 * 60 * 60 * 1000)

// checkRound has a service look the whole ledger over, and returns in how many
// jobs it did.
func (s *suspect) checkRound(by *service.Service) (jobs int) {
	s.t.Helper()
	done(s.t, by.QueueChecks(s.t.Context(), aDay))
	s.clock.move(24 * time.Hour)
	for range 100 {
		claimed := must[[]*service.Job](s.t)(by.Jobs().Claim(s.t.Context(), 1000, map[string]int{service.JobCheck: 5}))
		if len(claimed) == 0 {
			return jobs
		}
		for _, job := range claimed {
			done(s.t, by.Jobs().CheckLedger(s.t.Context(), job, aDay))
			jobs++
		}
		s.clock.move(time.Minute)
	}
	s.t.Fatal("there is no end to it")
	return 0
}

func TestChecksAreQueuedOnce(t *testing.T) {
	onEachStore(t, func(t *testing.T, db *database) {
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

// Wherever receipts are read apart from their neighbours, nothing slips between.
func TestChecksOfALongLedger(t *testing.T) {
	onEachStore(t, func(t *testing.T, db *database) {
		const chains = 210
		s := newSuspect(t, db, chains)
		receipts := s.inOrder("receipts")
		if n := s.checkRound(s.Service); n != 1 {
			t.Errorf("%d jobs", n)
		}
		s.wantTold("untouched")
		var looks atomic.Int64
		hasty := serve(t, service.Config{Store: s.store, Keys: s.ring, Clock: func() time.Time {
			return s.clock.now().Add(time.Duration(looks.Add(1)) * 15 * time.Second)
		}})
		if n := s.checkRound(hasty); n < 2 {
			t.Errorf("%d jobs, though time was short", n)
		}
		s.clock.move(time.Duration(looks.Load()) * 15 * time.Second)
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

// One break does not hide the others, and many do not flood anyone.
func TestChecksGoOnBehindABreak(t *testing.T) {
	onEachStore(t, func(t *testing.T, db *database) {
		s := newSuspect(t, db, 8)
		var want []string
		for _, i := range []int{1, 3, 5, 7} {
			s.edit("receipts", "body", i)
			want = append(want, fmt.Sprint("signature ", s.receipts[i]))
		}
		s.checkRound(s.Service)
		s.wantTold("a round", want[:3]...)
		s.checkRound(s.Service)
		s.wantTold("the next one")
	})
}
