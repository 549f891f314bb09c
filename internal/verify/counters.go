package verify

import (
	"context"
	"encoding/binary"
	"time"

	"countersign/internal/keyring"
	"countersign/internal/ledger"
)

// Counters of budgets are remembered as open chains are: an older counter is authentic as
// well. Their marks have no entries of their own. In their place stand the moves of the
// counter, and in the digest's the end of its window, after which the mark is dropped:
// then the counter limits nothing any more.

// CounterMark is where a counter stands that is stored with an authenticator.
func CounterMark(c *ledger.BudgetCounter, mac []byte) keyring.ChainMark {
	mark := keyring.ChainMark{Org: c.Org.UUID, Chain: c.ID().UUID, Revision: c.Revision, Actions: c.Uses, Entries: c.Moves}
	binary.BigEndian.PutUint64(mark.Digest[:], uint64(c.End())) //nolint:gosec // all 64 bits are kept
	copy(mark.State[:], mac)
	return mark
}

// counterEnds is when the window of a mark's counter is over.
func counterEnds(mark *keyring.ChainMark) ledger.Time {
	return ledger.Time(binary.BigEndian.Uint64(mark.Digest[:])) //nolint:gosec // as CounterMark wrote it
}

// CounterBehind holds a counter against what was remembered of it before it was read. It
// returns nil where the counter can follow upon that.
func CounterBehind(seen *keyring.ChainWatched, c *ledger.BudgetCounter, mac []byte) *ChainRollback {
	now := CounterMark(c, mac)
	if !seen.Forked && seen.Before(&now) {
		return nil
	}
	return &ChainRollback{Org: c.Org, Chain: ledger.ChainID{UUID: now.Chain}, Budget: c.Budget}
}

// counterGrace is for how long a mark is kept after the window is over, in milliseconds: the
// clocks of replicas differ.
const counterGrace = ledger.Time(time.Hour / time.Millisecond)

// proveCounter holds a counter against what is remembered of it. That nothing is missing
// from what it counts is shown by counting anew (countAnew), which takes the events.
func (j *Judge) proveCounter(ctx context.Context, seen *keyring.ChainWatched) (*ChainRollback, error) {
	if j.now() > counterEnds(&seen.ChainMark)+counterGrace {
		j.chains.Drop(seen.Chain)
		return nil, nil
	}
	id := ledger.CounterID{UUID: seen.Chain}
	back := &ChainRollback{Org: ledger.OrgID{UUID: seen.Org}, Chain: ledger.ChainID{UUID: seen.Chain}}
	found, err := j.store.BudgetCounters(ctx, []ledger.CounterID{id})
	if err != nil {
		return nil, err
	}
	record := found[id]
	if record == nil || record.Org != back.Org {
		back.Gone = true
		return back, nil
	}
	counter, err := j.store.ReadCounter(record)
	if err != nil {
		return nil, nil //nolint:nilerr // the row fails, and is named as one that does
	}
	if behind := CounterBehind(seen, counter, record.MAC); behind != nil {
		return behind, nil
	}
	j.chains.Proven(seen, CounterMark(counter, record.MAC), false)
	return nil, nil
}

// takeOverCounter remembers a counter as it stands, where it is authentic.
func (j *Judge) takeOverCounter(ctx context.Context, id ledger.CounterID) error {
	found, err := j.store.BudgetCounters(ctx, []ledger.CounterID{id})
	if err != nil || found[id] == nil {
		return err
	}
	if counter, err := j.store.ReadCounter(found[id]); err == nil {
		j.chains.Note(keyring.ChainMark{}, CounterMark(counter, found[id].MAC), false)
	}
	return nil
}
