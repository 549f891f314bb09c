package service_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/store"
	"countersign/internal/testdb"
)

// checks counts the jobs that will check the ledger within about a day.
func (s *suspect) checks() int64 {
	s.t.Helper()
	now, due := ledger.Time(s.clock.Now().UnixMilli()), int64(0)
	done(s.t, s.store.ScanJobs(s.t.Context(), service.JobCheck, func(job *store.Job) error {
		if job.Org == s.who.admin.Org && max(job.RunAt, job.LeasedUntil) <= now.Add(aDay+aDay/12) {
			due++
		}
		return nil
	}))
	return due
}

// The regular check of a ledger is queued again after someone deletes, postpones, leases or buries
// its job.
//
//countersign:race
func TestChecksThatAreLostComeBack(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(s *suspect){
		"deleted": func(s *suspect) { done(s.t, s.exec("DELETE FROM jobs WHERE kind = 'ledger.check'")) },
		"put off": func(s *suspect) {
			done(s.t, s.exec("UPDATE jobs SET run_at = run_at + 400000000000 WHERE kind = 'ledger.check'"))
		},
		"begun and put off": func(s *suspect) {
			done(s.t, s.exec("UPDATE jobs SET attempts = 3, run_at = run_at + 400000000000 WHERE kind = 'ledger.check'"))
		},
		"leased for ever": func(s *suspect) {
			done(s.t, s.exec("UPDATE jobs SET leased_until = run_at + 400000000000 WHERE kind = 'ledger.check'"))
		},
		"buried": func(s *suspect) {
			s.clock.Advance(24 * time.Hour)
			claimed := must[[]*service.Job](s.t)(s.Jobs().Claim(s.t.Context(), time.Second, map[string]int{service.JobCheck: 5}))
			for _, job := range claimed {
				done(s.t, s.Jobs().Bury(s.t.Context(), job, "for the test"))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
				s := newSuspect(t, db, 2)
				done(t, s.QueueChecks(t.Context(), aDay))
				lose(s)
				if n := s.checks(); n != 0 {
					t.Fatalf("%d checks are left", n)
				}
				s.clock.Advance(time.Hour)
				another := s.replica()
				for range 2 {
					done(t, s.QueueChecks(t.Context(), aDay))
					done(t, another.QueueChecks(t.Context(), aDay))
				}
				if n := s.checks(); n != 1 {
					t.Errorf("%d checks are queued", n)
				}
				s.edit("receipts", "body", 1)
				if n := s.checkRound(s.Service); n != 1 {
					t.Errorf("%d jobs", n)
				}
				s.wantTold("after that", fmt.Sprint("signature ", s.receipts[1]))
			})
		})
	}
}

// If two checks of one ledger are queued, only one is queued again.
func TestOfTwoChecksOneRemains(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		s := newSuspect(t, db, 2)
		done(t, s.QueueChecks(t.Context(), aDay))
		done(t, s.exec("UPDATE jobs SET run_at = 2 * run_at WHERE kind = 'ledger.check'"))
		s.clock.Advance(time.Hour)
		done(t, s.QueueChecks(t.Context(), aDay))
		done(t, s.exec("UPDATE jobs SET run_at = run_at / 2 WHERE kind = 'ledger.check'"))
		if n := s.checks(); n != 2 {
			t.Fatalf("%d checks are queued", n)
		}
		s.checkRound(s.Service)
		if n := s.checks(); n != 1 {
			t.Errorf("%d checks remain", n)
		}
	})
}

// Deleting the queued checks as often as they are queued does not keep the server from checking:
// it records that none has finished, and checks the ledger itself, part by part if it is long.
func TestLooksThatAreAlwaysDeleted(t *testing.T) {
	t.Parallel()
	for name, step := range map[string]time.Duration{"at once": 0, "in parts": 11 * time.Second} {
		t.Run(name, func(t *testing.T) {
			testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
				s := newSuspect(t, db, 4)
				by, log := s.Service, bytes.Buffer{}
				if step > 0 {
					by = s.hasty(step, &log)
				}
				s.edit("receipts", "body", 2)
				var told []string
				const hours = 40
				for hour := range hours {
					done(t, by.QueueChecks(t.Context(), aDay))
					done(t, s.exec("DELETE FROM jobs WHERE kind = 'ledger.check'"))
					for range 4 {
						age := must[time.Duration](t)(by.CheckOverdue(t.Context(), aDay))
						if longest := time.Duration(hour+1) * aDay / 24; age > longest {
							t.Fatalf("after %d hours the last look is %d ms old", hour, age)
						}
						if told = append(told, s.told()...); len(told) > 0 && hour < 35 {
							t.Fatalf("told after %d hours", hour)
						}
					}
					s.clock.Advance(time.Hour)
				}
				if want := []string{fmt.Sprint("signature ", s.receipts[2])}; !slices.Equal(told, want) {
					t.Errorf("told of %q, want %q", told, want)
				}
				if age := must[time.Duration](t)(by.CheckOverdue(t.Context(), aDay)); age > 5*aDay/24 {
					t.Errorf("the last look is %d ms old", age)
				}
			})
		})
	}
}

// A part of a check that was finished, and is put back whenever a check is queued, does not pass for
// the whole of it: the server checks what comes before that part by itself.
func TestAPartOfACheckIsNotTheWhole(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		s := newSuspect(t, db, 4)
		by := s.hasty(11*time.Second, new(bytes.Buffer))
		done(t, by.QueueChecks(t.Context(), aDay))
		s.clock.Advance(aDay)
		work := func(visit func()) {
			t.Helper()
			for range 20 {
				for _, job := range must[[]*service.Job](t)(by.Jobs().Claim(t.Context(), time.Second, map[string]int{service.JobCheck: 5})) {
					visit()
					done(t, by.Jobs().CheckLedger(t.Context(), job, aDay))
				}
				s.clock.Advance(time.Minute)
			}
		}
		var parts []row
		work(func() { parts = append(parts, s.jobRows(service.JobCheck)...) })
		if len(parts) < 4 {
			t.Fatalf("the check has %d parts", len(parts))
		}
		if age := must[time.Duration](t)(by.CheckOverdue(t.Context(), aDay)); age > aDay/24 {
			t.Errorf("after all parts the last check is %v old", age)
		}
		s.edit("receipts", "body", 0)
		for hour := 0; len(s.told()) == 0; hour++ {
			if hour > 40 {
				t.Fatal("nobody is told of the first receipt")
			}
			done(t, by.QueueChecks(t.Context(), aDay))
			done(t, s.exec("DELETE FROM jobs WHERE kind = 'ledger.check'"))
			done(t, s.enqueue(parts[len(parts)-1]))
			work(func() {})
			must[time.Duration](t)(by.CheckOverdue(t.Context(), aDay))
			s.clock.Advance(40 * time.Minute)
		}
	})
}

// A server whose queued checks finish starts no checks of its own.
func TestLooksThatEndAreEnough(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		s := newSuspect(t, db, 2)
		for range 4 {
			s.checkRound(s.Service)
			if age := must[time.Duration](t)(s.CheckOverdue(t.Context(), aDay)); age > aDay/12 {
				t.Errorf("the last look is %d ms old", age)
			}
		}
	})
}
