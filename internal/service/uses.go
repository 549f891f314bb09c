package service

import (
	"context"
	"sync"

	"countersign/internal/ledger"
)

// lastUses remembers when things were last used until someone writes it down: a
// read must not cost a write.
type lastUses[ID comparable] struct {
	mu   sync.Mutex
	last map[ID]ledger.Time
}

// maxLastUses bounds the memory; what is used beyond it is not remembered until
// the next flush.
const maxLastUses = 10_000

func (u *lastUses[ID]) note(id ID, at ledger.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.last == nil {
		u.last = make(map[ID]ledger.Time)
	}
	if earlier, known := u.last[id]; at > earlier && (known || len(u.last) < maxLastUses) {
		u.last[id] = at
	}
}

func (u *lastUses[ID]) take() map[ID]ledger.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	taken := u.last
	u.last = nil
	return taken
}

// flush writes down what was noted since the last flush. What could not be written
// is noted again, for the next one.
func (u *lastUses[ID]) flush(ctx context.Context, write func(context.Context, map[ID]ledger.Time) error) error {
	taken := u.take()
	if len(taken) == 0 {
		return nil
	}
	if err := write(ctx, taken); err != nil {
		for id, at := range taken {
			u.note(id, at)
		}
		return visible(err)
	}
	return nil
}

// FlushKeyUse writes down when API keys were last used. The worker calls it once a
// minute, and once at the end.
func (s *Service) FlushKeyUse(ctx context.Context) error {
	return s.keyUses.flush(ctx, s.store.TouchKeys)
}
