package verify

import (
	"context"
	"encoding/binary"
	"time"

	"countersign/internal/keyring"
	"countersign/internal/ledger"
)

// Budget counters are watched like open chains, because an older counter is authentic too. Their
// marks have no entries. Instead, Entries counts the moves of the counter, and Digest holds the end
// of its window. The mark is dropped after the window, when the counter limits nothing.

// CounterMark returns the mark of a counter that is stored with an authenticator.
func CounterMark(c *ledger.BudgetCounter, mac []byte) keyring.ChainMark {
	mark := keyring.ChainMark{Org: c.Org.UUID, Chain: c.ID().UUID, Revision: c.Revision, Actions: c.Uses, Entries: c.Moves}
	binary.BigEndian.PutUint64(mark.Digest[:], uint64(c.End())) //nolint:gosec // all 64 bits are kept
	copy(mark.State[:], mac)
	return mark
}

// counterEnds returns the end of the window of a mark's counter.
func counterEnds(mark *keyring.ChainMark) ledger.Time {
	return ledger.Time(binary.BigEndian.Uint64(mark.Digest[:])) //nolint:gosec // as CounterMark wrote it
}

// CounterBehind compares a counter with what was recorded about it before it was read. It returns
// nil if the counter can follow.
func CounterBehind(seen *keyring.ChainWatched, c *ledger.BudgetCounter, mac []byte) *ChainRollback {
	now := CounterMark(c, mac)
	if !seen.Forked && seen.Before(&now) {
		return nil
	}
	return &ChainRollback{Org: c.Org, Chain: ledger.ChainID{UUID: now.Chain}, Budget: c.Budget}
}

// counterGrace is how long a mark is kept after the window has ended, because the clocks of
// replicas differ.
const counterGrace = time.Hour

// proveCounter compares a counter with its mark. recountBudgets checks the amounts, because that
// requires the events.
func (c *Chains) proveCounter(ctx context.Context, seen *keyring.ChainWatched) (*ChainRollback, error) {
	if c.now() > counterEnds(&seen.ChainMark).Add(counterGrace) {
		c.watch.Drop(seen.Chain)
		return nil, nil
	}
	id := ledger.CounterID{UUID: seen.Chain}
	back := &ChainRollback{Org: ledger.OrgID{UUID: seen.Org}, Chain: ledger.ChainID{UUID: seen.Chain}}
	found, err := c.store.BudgetCounters(ctx, []ledger.CounterID{id})
	if err != nil {
		return nil, err
	}
	record := found[id]
	if record == nil || record.Org != back.Org {
		back.Missing = true
		return back, nil
	}
	counter, err := c.store.ReadCounter(record)
	if err != nil {
		return nil, nil //nolint:nilerr // failingRow reports it
	}
	if behind := CounterBehind(seen, counter, record.MAC); behind != nil {
		return behind, nil
	}
	c.watch.Proven(seen, CounterMark(counter, record.MAC), false)
	return nil, nil
}

// adoptCounter records an authentic counter in its current state.
func (c *Chains) adoptCounter(ctx context.Context, id ledger.CounterID) error {
	found, err := c.store.BudgetCounters(ctx, []ledger.CounterID{id})
	if err != nil || found[id] == nil {
		return err
	}
	if counter, err := c.store.ReadCounter(found[id]); err == nil {
		c.watch.Note(keyring.ChainMark{}, CounterMark(counter, found[id].MAC), false)
	}
	return nil
}
