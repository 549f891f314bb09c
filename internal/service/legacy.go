package service

import (
	"context"
	"sync"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// legacyUses counts requests on legacy routes until someone writes them down: a read must
// not cost a write.
type legacyUses struct {
	mu     sync.Mutex
	counts map[store.LegacyUseRef]int64
}

const (
	// maxLegacyUses bounds the memory. What is used beyond it is counted for nobody until
	// the next flush.
	maxLegacyUses = 10_000
	dayLong       = ledger.Time(24 * 60 * 60 * 1000)
)

// beginningOfDay is in UTC.
func beginningOfDay(at ledger.Time) ledger.Time { return at - at%dayLong }

func (u *legacyUses) add(use store.LegacyUseRef, requests int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.counts == nil {
		u.counts = make(map[store.LegacyUseRef]int64)
	}
	if _, known := u.counts[use]; !known && len(u.counts) >= maxLegacyUses {
		use.Org = ledger.OrgID{} // there are few routes and days
	}
	u.counts[use] += requests
}

func (u *legacyUses) take() map[store.LegacyUseRef]int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	taken := u.counts
	u.counts = nil
	return taken
}

// NoteLegacyUse counts a request on a legacy route for the organization whose artifact
// was asked for; the zero id where it is not known.
func (s *Service) NoteLegacyUse(route string, org ledger.OrgID) {
	s.legacyUses.add(store.LegacyUseRef{Org: org, Day: beginningOfDay(s.now()), Route: route}, 1)
}

// FlushLegacyUse writes down how often legacy routes were used. The worker calls it now
// and then, and once at the end. What could not be written is kept for the next time; if
// only the answer was lost, it is counted twice.
func (s *Service) FlushLegacyUse(ctx context.Context) error {
	taken := s.legacyUses.take()
	if len(taken) == 0 {
		return nil
	}
	if err := s.store.AddLegacyUses(ctx, taken); err != nil {
		for use, requests := range taken {
			s.legacyUses.add(use, requests)
		}
		return visible(err)
	}
	return nil
}

// LegacyUse lists how often the organization's artifacts were asked for on legacy routes
// in the last days, today included. What this process has not written down is missing.
func (s *Service) LegacyUse(ctx context.Context, caller *Caller, days int) ([]*store.LegacyUse, error) {
	if err := s.authorize(ctx, caller, ledger.RoleAdmin); err != nil {
		return nil, err
	}
	return s.readLegacyUse(ctx, &caller.Org, days)
}

// LegacyUse is the same for an organization, or for all and for what concerns none that is
// known.
func (o *Operator) LegacyUse(ctx context.Context, slug string, days int) ([]*store.LegacyUse, error) {
	if slug == "" {
		return o.service.readLegacyUse(ctx, nil, days)
	}
	org, err := o.organization(ctx, slug)
	if err != nil {
		return nil, err
	}
	return o.service.readLegacyUse(ctx, &org.ID, days)
}

func (s *Service) readLegacyUse(ctx context.Context, org *ledger.OrgID, days int) ([]*store.LegacyUse, error) {
	const page = 1000
	query := store.LegacyUseQuery{Org: org, Since: beginningOfDay(s.now()) - ledger.Time(days-1)*dayLong, Limit: page}
	var uses []*store.LegacyUse
	for {
		found, err := s.store.LegacyUses(ctx, query)
		if err != nil {
			return nil, visible(err)
		}
		uses = append(uses, found...)
		if len(found) < page {
			return uses, nil
		}
		query.After = &found[page-1].LegacyUseRef
	}
}
