package service

import (
	"context"
	"fmt"
	"sync"
	"time"

	"countersign/internal/ledger"
)

// commitStop commits an act that can make decisions stricter, and returns when no
// allow from before it lets anything begin any more: every allow is a lease, and all
// of them have run out. The act holds from its commit on, whether the caller waits
// for the answer or not. An act that found nothing to change waits all the same: the
// one that did may have been answered to nobody.
func (s *Service) commitStop(ctx context.Context, op *act) error {
	if err := s.committer.commitFirst(ctx, op); err != nil {
		return err
	}
	return s.outlast(ctx, op.org)
}

// outlast waits until the allows and leases that an organization was given before
// this call have run out. The moment counts from here, after the commit: an approval
// is read without a lock, and may have been shown as it was until then.
func (s *Service) outlast(ctx context.Context, org ledger.OrgID) error {
	if s.alone && !s.grants.since(org, time.Now().Add(-ledger.LeaseRunOut)) {
		return nil
	}
	if err := s.delay(ctx, ledger.LeaseRunOut); err != nil {
		shown := ledger.Errorf(ledger.CodeOutcomeUnknown,
			"the change is in force, but what was allowed before it may still begin within a second: send the same request again to be told when it cannot")
		return &cause{shown, fmt.Errorf("wait for leases: %w", err)}
	}
	return nil
}

// delay waits for a span of time, or until the caller gives up.
func delay(ctx context.Context, span time.Duration) error {
	timer := time.NewTimer(span)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// granted notes that an organization is being given an allow or a lease, or may be. It
// is called inside the transaction that decides, and by a reader that holds no lock
// before it reads anything: so a stop that has committed finds every grant from before
// it. A client counts a lease from the moment it sent its request, which is earlier.
func (s *Service) granted(org ledger.OrgID) {
	if s.alone {
		s.grants.note(org, time.Now())
	}
}

// recentGrants remembers when each organization was last given an allow or a lease,
// by the monotonic clock. It is used by a process that serves its store alone.
type recentGrants struct {
	mu   sync.Mutex
	last map[ledger.OrgID]time.Time
	// forgotten is the newest moment that is not in last: those of a process that
	// served the store before this one are not later than its start.
	forgotten time.Time
}

// maxRecentGrants bounds the organizations that are remembered one by one.
const maxRecentGrants = 10_000

func (g *recentGrants) note(org ledger.OrgID, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.last == nil {
		g.last = make(map[ledger.OrgID]time.Time)
	}
	if _, known := g.last[org]; !known && len(g.last) >= maxRecentGrants {
		g.forget(now)
	}
	g.last[org] = now
}

// forget makes room. Callers hold the mutex. Where all entries are recent they count
// for every organization from then on: that only makes a stop wait.
func (g *recentGrants) forget(now time.Time) {
	for org, at := range g.last {
		if now.Sub(at) >= ledger.LeaseRunOut {
			delete(g.last, org)
		}
	}
	if len(g.last) >= maxRecentGrants {
		clear(g.last)
		g.forgotten = now
	}
}

// since reports whether the organization may have been given anything after a moment.
func (g *recentGrants) since(org ledger.OrgID, moment time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.forgotten.After(moment) || g.last[org].After(moment)
}
