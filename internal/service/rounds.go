package service

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"

	"countersign/internal/ledger"
	"countersign/internal/verify"
)

// rounds remember, in this process alone, when it last saw a look at a ledger come to its
// end. Whoever deletes the queued looks cannot delete that.
type rounds struct {
	mu      sync.Mutex
	ledgers map[ledger.OrgID]*round
}

// round is what is remembered of one ledger.
type round struct {
	ended ledger.Time // before the first: when this process first asked
	tried ledger.Time // when this process last looked because none had ended; 0: never
	place verify.CheckPlace
}

// of is what is remembered of a ledger. The caller holds mu.
func (r *rounds) of(org ledger.OrgID, now ledger.Time) *round {
	if r.ledgers == nil {
		r.ledgers = make(map[ledger.OrgID]*round)
	}
	if r.ledgers[org] == nil {
		r.ledgers[org] = &round{ended: now, place: verify.CheckPlace{From: 1}}
	}
	return r.ledgers[org]
}

func (r *rounds) end(org ledger.OrgID, now ledger.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.of(org, now)
	known.ended, known.place = now, verify.CheckPlace{From: 1}
}

// overdue are the ledgers of which no round was seen to end for one and a half times as
// long as is between two, those first that were not tried for longest, and the largest
// age of a last round.
func (r *rounds) overdue(orgs []*ledger.Organization, every, now ledger.Time) (late []*ledger.Organization, oldest ledger.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, org := range orgs {
		age := now - r.of(org.ID, now).ended
		oldest = max(oldest, age)
		if age > every+every/2 {
			late = append(late, org)
		}
	}
	slices.SortStableFunc(late, func(a, b *ledger.Organization) int {
		return cmp.Compare(r.of(a.ID, now).tried, r.of(b.ID, now).tried)
	})
	return late, oldest
}

func (r *rounds) begin(org ledger.OrgID, now ledger.Time) verify.CheckPlace {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.of(org, now)
	known.tried = now
	return known.place
}

func (r *rounds) moveOn(org ledger.OrgID, place verify.CheckPlace, now ledger.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.of(org, now).place = place
}

// overdueTime is how long ledgers that were not looked over may keep others waiting, in
// milliseconds.
const overdueTime = ledger.Time(10_000)

// LookOverdue looks over the next part of each ledger whose queued looks do not come to
// their end: jobs are rows, and somebody may delete them as often as they are queued. It
// returns the largest age of a last round. Of a round that another replica has ended
// this process knows nothing: each looks at every ledger itself now and then.
func (s *Service) LookOverdue(ctx context.Context, every ledger.Time) (oldest ledger.Time, err error) {
	orgs, err := s.store.Organizations(ctx)
	if err != nil {
		return 0, visible(err)
	}
	began := s.now()
	late, oldest := s.rounds.overdue(orgs, every, began)
	var failed []error
	for i, org := range late {
		if i > 0 && s.now()-began > overdueTime {
			break
		}
		next, done, err := s.judge.LookOver(ctx, org, s.rounds.begin(org.ID, began), tamperReporter{s})
		switch {
		case err != nil:
			failed = append(failed, visible(err))
		case done:
			s.rounds.end(org.ID, s.now())
		default:
			s.rounds.moveOn(org.ID, next, began)
		}
	}
	return oldest, errors.Join(failed...)
}
