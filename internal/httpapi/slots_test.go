package httpapi

import (
	"context"
	"testing"

	"github.com/google/uuid"

	"countersign/internal/ledger"
)

func numbered(n int) uuid.UUID { return uuid.UUID{14: byte(n >> 8), 15: byte(n)} }

// One organization does not keep the others from waiting for decisions, however many keys
// it has, and all together keep to their bound.
func TestPollSlotsAreShared(t *testing.T) {
	t.Parallel()
	const most = 1000
	p := newPollSlots(most)
	waiting := func(org, keys int) (n int) {
		for key := range keys {
			for p.enter(ledger.OrgID{UUID: numbered(org)}, ledger.KeyID{UUID: numbered(100*org + key)}) {
				n++
			}
		}
		return n
	}
	if one, greedy, other := waiting(1, 1), waiting(1, 50), waiting(2, 50); one != maxPollsPerKey || one+greedy != most*3/4 || other != most/4 {
		t.Errorf("%d of one key wait, %d of its organization and %d of another", one, one+greedy, other)
	}
	if waiting(3, 1) != 0 {
		t.Error("more wait than may")
	}
}

// However many large bodies an organization sends, the next of another waits for one of
// them at the most.
func TestLargeSlotsAreShared(t *testing.T) {
	t.Parallel()
	l := newSharedSlots(maxParses, 1)
	one, other, third := ledger.OrgID{UUID: numbered(1)}, ledger.OrgID{UUID: numbered(2)}, ledger.OrgID{UUID: numbered(3)}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	// With a context that has ended, whoever would have to wait is refused, and others
	// may be: so each is tried until it has had every chance.
	enters := func(org ledger.OrgID) bool {
		for range 100 {
			if l.enter(ctx, org) {
				return true
			}
		}
		return false
	}
	if !enters(one) || enters(one) || !enters(other) || enters(third) {
		t.Error("not one body of each of two organizations is parsed")
	}
	l.leave(one)
	if !enters(third) || enters(one) {
		t.Error("the room of one body is not the next organization's")
	}
	l.leave(other)
	l.leave(third)
	if len(l.each.of) != 0 || len(l.taken) != 0 {
		t.Errorf("%d organizations and %d bodies are left behind", len(l.each.of), len(l.taken))
	}
}
