package verify

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/google/uuid"

	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// Chains compares open chains and budget counters with what was acknowledged: a chain that was
// put back to an earlier state is found although that state is authentic.
type Chains struct {
	*reader
	watch ChainWatch // nil without one
}

// ChainWatch records the progress of each open chain outside the database.
type ChainWatch interface {
	Seen(chain uuid.UUID) (keyring.ChainWatched, bool)
	Of(org uuid.UUID) []keyring.ChainWatched
	All() []keyring.ChainWatched
	Due(others int) []keyring.ChainWatched
	Note(before, now keyring.ChainMark, final bool) bool
	Proven(seen *keyring.ChainWatched, now keyring.ChainMark, final bool)
	Watched() (remembered int, dropped int64)
	Forgotten() []uuid.UUID
	AdoptLater(chains []uuid.UUID)
	Drop(id uuid.UUID)
}

// MarkOf returns the mark of a chain whose state is stored with an authenticator.
func MarkOf(chain *ledger.Chain, state *ledger.ChainState, mac []byte) keyring.ChainMark {
	mark := keyring.ChainMark{
		Org: chain.Org.UUID, Chain: chain.ID.UUID,
		Revision: state.Revision, Actions: state.Actions, Entries: state.Entries, Digest: state.Digest,
	}
	copy(mark.State[:], mac)
	return mark
}

// Final reports whether a state is a chain's last. An abandoned chain with a successor is the only
// record of the succession, so it is watched like an open chain.
func Final(state *ledger.ChainState) bool {
	return state.Status.Sealed() && state.ContinuedBy == nil
}

// ChainRollback says that a chain or budget counter differs from what was acknowledged.
type ChainRollback struct {
	Org     ledger.OrgID
	Chain   ledger.ChainID
	Receipt *ledger.ReceiptID // the chain's receipt; nil if it is not sealed
	Missing bool              // the chain is not in the database
	// Budget is the budget whose counter has Chain as its id. It is "" for a chain and for a
	// missing counter.
	Budget string
}

// Tampering returns the rollback as a finding. Its text does not depend on what is stored there
// later.
func (r *ChainRollback) Tampering() *Tampering {
	return &Tampering{Check: ledger.CheckRollback, Place: r.String()}
}

func (r *ChainRollback) String() string {
	switch {
	case ledger.IsCounterID(r.Chain.UUID) && r.Missing:
		return fmt.Sprintf("the budget counter %s was acknowledged and is gone", r.Chain)
	case ledger.IsCounterID(r.Chain.UUID):
		return fmt.Sprintf("the counter %s of the budget %q is not the one that was acknowledged: it was put back to an earlier state", r.Chain, r.Budget)
	case r.Missing:
		return fmt.Sprintf("the chain %s was acknowledged and is gone", r.Chain)
	case r.Receipt != nil:
		return fmt.Sprintf("the chain %s is not the one that was acknowledged: it was put back to an earlier state, and was sealed as receipt %s", r.Chain, r.Receipt)
	}
	return fmt.Sprintf("the chain %s is not the one that was acknowledged: it was put back to an earlier state", r.Chain)
}

// ChainBehind compares a chain's state with what was recorded about the chain before the state was
// read. It returns nil if the state can follow.
func ChainBehind(seen *keyring.ChainWatched, chain *ledger.Chain, state *ledger.ChainState, mac []byte) *ChainRollback {
	now := MarkOf(chain, state, mac)
	if !seen.Forked && seen.Before(&now) {
		return nil
	}
	back := &ChainRollback{Org: chain.Org, Chain: chain.ID}
	if state.Status.Sealed() {
		back.Receipt = state.Receipt
	}
	return back
}

// prove checks that a chain's entries lead from everything recorded about it to its current
// state, and otherwise returns what is wrong. It updates the watch if the check succeeds.
func (c *Chains) prove(ctx context.Context, seen *keyring.ChainWatched) (*ChainRollback, error) {
	if ledger.IsCounterID(seen.Chain) {
		return c.proveCounter(ctx, seen)
	}
	id := ledger.ChainID{UUID: seen.Chain}
	back := &ChainRollback{Org: ledger.OrgID{UUID: seen.Org}, Chain: id}
	record, err := c.store.Chain(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		back.Missing = true
		return back, nil
	}
	if err != nil {
		return nil, err
	}
	chain, state, detail := c.readChain(record)
	if detail != "" || chain.Org.UUID != seen.Org {
		return back, nil
	}
	if behind := ChainBehind(seen, chain, state, record.MAC); behind != nil {
		return behind, nil
	}
	now := MarkOf(chain, state, record.MAC)
	follows, err := c.follows(ctx, seen, &now)
	if err != nil {
		return nil, err
	}
	if !follows {
		if state.Status.Sealed() {
			back.Receipt = state.Receipt
		}
		return back, nil
	}
	c.watch.Proven(seen, now, Final(state))
	return nil, nil
}

// follows extends the oldest mark's digest by the later entries and requires every later mark and
// the current state on the way. Entries never change, so the chain may grow during the check.
func (c *Chains) follows(ctx context.Context, seen *keyring.ChainWatched, now *keyring.ChainMark) (bool, error) {
	if len(seen.Unproven) == 0 && seen.Entries == now.Entries { // Before has compared the digests
		return true, nil
	}
	marks := append(append([]keyring.ChainMark{}, seen.Unproven...), seen.ChainMark, *now)
	for i := range marks[1:] {
		if !marks[i].Before(&marks[i+1]) {
			return false, nil
		}
	}
	walk := &entryWalk{entries: marks[0].Entries, events: marks[0].Actions, digest: marks[0].Digest, marks: marks[1:]}
	id := ledger.ChainID{UUID: seen.Chain}
	addenda, err := c.store.Addenda(ctx, id, math.MinInt64, math.MaxInt64)
	if err != nil {
		return false, err
	}
	for _, addendum := range addenda {
		if addendum.Position > walk.entries {
			walk.addenda = append(walk.addenda, addendum)
		}
	}
	err = c.store.EachPage(ctx, id, walk.events, func(events []*ledger.StoredEvent) error {
		for _, event := range events {
			if !walk.event(event) {
				return errBroken
			}
		}
		return nil
	})
	if errors.Is(err, errBroken) {
		return len(walk.marks) == 0, nil
	}
	walk.feed()
	return err == nil && len(walk.marks) == 0, err
}

// entryWalk advances a running digest over the entries of a chain and compares it with marks.
type entryWalk struct {
	entries  int64 // entries covered by the digest
	events   int64 // events among them
	digest   [32]byte
	addenda  []*ledger.Addendum  // remaining, by position
	marks    []keyring.ChainMark // remaining, oldest first
	diverged bool                // a mark did not match
}

// event takes the next event, after the addenda that precede it. It reports whether to continue.
func (w *entryWalk) event(event *ledger.StoredEvent) bool {
	if w.feed(); w.diverged || len(w.marks) == 0 || event.Sequence != w.events+1 {
		return false
	}
	w.events++
	w.step(event.Body)
	return !w.diverged && len(w.marks) > 0
}

// feed takes the addenda that come next.
func (w *entryWalk) feed() {
	w.pass()
	for !w.diverged && len(w.marks) > 0 && len(w.addenda) > 0 && w.addenda[0].Position == w.entries+1 {
		w.step(w.addenda[0].Body)
		w.addenda = w.addenda[1:]
	}
}

func (w *entryWalk) step(body []byte) {
	w.digest = ledger.NextDigest(w.digest, body)
	w.entries++
	w.pass()
}

// pass compares the marks at the current position.
func (w *entryWalk) pass() {
	for !w.diverged && len(w.marks) > 0 && w.marks[0].Entries == w.entries {
		w.diverged = w.marks[0].Digest != w.digest || w.marks[0].Actions != w.events
		if !w.diverged {
			w.marks = w.marks[1:]
		}
	}
}

// maxProofs bounds how many chains without unproven marks are checked at a time. If more chains are
// open, they take turns.
const maxProofs = 5000

// Tolerance lets a loop pass by records that cannot be read, unless there are so many in a row that
// the store must be to blame.
type Tolerance struct {
	First error // of all errors
	row   int   // errors since the last success
}

// Note takes the result of reading the next record.
func (t *Tolerance) Note(err error) {
	if err == nil {
		t.row = 0
		return
	}
	t.row++
	if t.First == nil {
		t.First = err
	}
}

// Exhausted reports whether the loop should end.
func (t *Tolerance) Exhausted() bool {
	const maxUnreadable = 10
	return t.row >= maxUnreadable
}

// ProveDue checks the chains that are due against the watch and passes what is wrong to found. It
// returns an error if any of them could not be read.
func (c *Chains) ProveDue(ctx context.Context, found func(*ChainRollback)) error {
	if c.watch == nil {
		return nil
	}
	var reading Tolerance
	var unread []uuid.UUID
	for _, chain := range c.watch.Forgotten() {
		if !reading.Exhausted() {
			err := c.adopt(ctx, ledger.ChainID{UUID: chain})
			reading.Note(err)
			if err == nil {
				continue
			}
		}
		unread = append(unread, chain)
	}
	c.watch.AdoptLater(unread)
	due := c.watch.Due(maxProofs)
	for i := 0; i < len(due) && !reading.Exhausted(); i++ {
		back, err := c.prove(ctx, &due[i])
		reading.Note(err)
		if back != nil {
			found(back)
		}
	}
	return reading.First
}

// adopt records an open, authentic chain in its current state, because an operator has accepted it.
func (c *Chains) adopt(ctx context.Context, id ledger.ChainID) error {
	if ledger.IsCounterID(id.UUID) {
		return c.adoptCounter(ctx, ledger.CounterID(id))
	}
	record, err := c.store.Chain(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if chain, state, detail := c.readChain(record); detail == "" && !Final(state) {
		c.watch.Note(keyring.ChainMark{}, MarkOf(chain, state, record.MAC), false)
	}
	return nil
}

// Rollbacks returns every chain that differs from what was acknowledged. With an error, some could
// not be read.
func (c *Chains) Rollbacks(ctx context.Context) (found []*ChainRollback, err error) {
	if c.watch == nil {
		return nil, nil
	}
	return c.proveAll(ctx, c.watch.All(), math.MaxInt)
}

func (c *Chains) proveAll(ctx context.Context, watched []keyring.ChainWatched, most int) (found []*ChainRollback, err error) {
	var reading Tolerance
	for i := 0; i < len(watched) && len(found) < most && !reading.Exhausted(); i++ {
		back, err := c.prove(ctx, &watched[i])
		reading.Note(err)
		if back != nil {
			found = append(found, back)
		}
	}
	return found, reading.First
}

// rolledBackChains returns the organization's chains that were rolled back or deleted. With an
// error, some could not be read.
func (a *audit) rolledBackChains(ctx context.Context) ([]*ledger.Break, error) {
	if a.judge.Chains.watch == nil {
		return nil, nil
	}
	watched := a.judge.Chains.watch.Of(a.org.ID.UUID)
	if a.maxChains > 0 && len(watched) > a.maxChains {
		watched = watched[:a.maxChains]
	}
	back, err := a.judge.Chains.proveAll(ctx, watched, maxRolledBack)
	breaks := make([]*ledger.Break, 0, len(back))
	for _, chain := range back {
		t := chain.Tampering()
		breaks = append(breaks, &ledger.Break{Check: t.Check, Detail: t.Place})
	}
	return breaks, err
}

// maxRolledBack bounds how many chains that were rolled back an audit names.
const maxRolledBack = 100
