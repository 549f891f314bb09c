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

// ChainWatch remembers outside the database how far each open chain has come.
type ChainWatch interface {
	Seen(chain uuid.UUID) (keyring.ChainWatched, bool)
	Of(org uuid.UUID) []keyring.ChainWatched
	All() []keyring.ChainWatched
	Due(others int) []keyring.ChainWatched
	Note(before, now keyring.ChainMark, final bool) bool
	Proven(seen *keyring.ChainWatched, now keyring.ChainMark, final bool)
	Watched() (remembered int, dropped int64)
	Forgotten() []uuid.UUID
	Drop(id uuid.UUID)
}

// MarkOf is where a chain stands whose state is stored with an authenticator.
func MarkOf(chain *ledger.Chain, state *ledger.ChainState, mac []byte) keyring.ChainMark {
	mark := keyring.ChainMark{
		Org: chain.Org.UUID, Chain: chain.ID.UUID,
		Revision: state.Revision, Actions: state.Actions, Entries: state.Entries, Digest: state.Digest,
	}
	copy(mark.State[:], mac)
	return mark
}

// Final reports whether a state is a chain's last. That of an abandoned chain that goes on
// in another one is the only record of that, and is watched as if the chain were open.
func Final(state *ledger.ChainState) bool {
	return state.Status.Sealed() && state.ContinuedBy == nil
}

// ChainRollback says that a chain is not the one that was acknowledged.
type ChainRollback struct {
	Org     ledger.OrgID
	Chain   ledger.ChainID
	Receipt *ledger.ReceiptID // under which it was sealed, nil where it was not
	Gone    bool              // the database does not know the chain
	// Budget is the name of the budget whose counter Chain is the id of; "" for a chain, and
	// for a counter that is gone.
	Budget string
}

// Tampering is the rollback as a finding. What is said of it does not change with what
// is put there next.
func (r *ChainRollback) Tampering() *Tampering {
	return &Tampering{Check: ledger.CheckRollback, Place: r.String()}
}

func (r *ChainRollback) String() string {
	switch {
	case ledger.IsCounterID(r.Chain.UUID) && r.Gone:
		return fmt.Sprintf("the budget counter %s was acknowledged and is gone", r.Chain)
	case ledger.IsCounterID(r.Chain.UUID):
		return fmt.Sprintf("the counter %s of the budget %q is not the one that was acknowledged: it was put back to an earlier state", r.Chain, r.Budget)
	case r.Gone:
		return fmt.Sprintf("the chain %s was acknowledged and is gone", r.Chain)
	case r.Receipt != nil:
		return fmt.Sprintf("the chain %s is not the one that was acknowledged: it was put back to an earlier state, and was sealed as receipt %s", r.Chain, r.Receipt)
	}
	return fmt.Sprintf("the chain %s is not the one that was acknowledged: it was put back to an earlier state", r.Chain)
}

// ChainBehind holds a chain's state against what was remembered of the chain before it
// was read. It returns nil where the state can follow upon that.
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

// ProveChain shows that a chain's entries lead from all that is remembered of it to where
// it stands, or returns what is wrong. The watch is told what was shown.
func (j *Judge) ProveChain(ctx context.Context, seen *keyring.ChainWatched) (*ChainRollback, error) {
	if ledger.IsCounterID(seen.Chain) {
		return j.proveCounter(ctx, seen)
	}
	id := ledger.ChainID{UUID: seen.Chain}
	back := &ChainRollback{Org: ledger.OrgID{UUID: seen.Org}, Chain: id}
	record, err := j.store.Chain(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		back.Gone = true
		return back, nil
	}
	if err != nil {
		return nil, err
	}
	chain, state, detail := j.readChain(record)
	if detail != "" || chain.Org.UUID != seen.Org {
		return back, nil
	}
	if behind := ChainBehind(seen, chain, state, record.MAC); behind != nil {
		return behind, nil
	}
	now := MarkOf(chain, state, record.MAC)
	follows, err := j.follows(ctx, seen, &now)
	if err != nil {
		return nil, err
	}
	if !follows {
		if state.Status.Sealed() {
			back.Receipt = state.Receipt
		}
		return back, nil
	}
	j.chains.Proven(seen, now, Final(state))
	return nil, nil
}

// follows adds the entries after the oldest mark to its digest, and wants each later mark
// and the state that stands now on the way. Entries are never changed, so that it does
// not matter that the chain goes on meanwhile.
func (j *Judge) follows(ctx context.Context, seen *keyring.ChainWatched, now *keyring.ChainMark) (bool, error) {
	if len(seen.Unproven) == 0 && seen.Entries == now.Entries { // Before has compared the digests
		return true, nil
	}
	marks := append(append([]keyring.ChainMark{}, seen.Unproven...), seen.ChainMark, *now)
	for i := range marks[1:] {
		if !marks[i].Before(&marks[i+1]) {
			return false, nil
		}
	}
	way := &entryWalk{entries: marks[0].Entries, events: marks[0].Actions, digest: marks[0].Digest, marks: marks[1:]}
	id := ledger.ChainID{UUID: seen.Chain}
	addenda, err := j.store.Addenda(ctx, id, math.MinInt64, math.MaxInt64)
	if err != nil {
		return false, err
	}
	for _, addendum := range addenda {
		if addendum.Position > way.entries {
			way.addenda = append(way.addenda, addendum)
		}
	}
	err = j.store.EachPage(ctx, id, way.events, func(events []*ledger.StoredEvent) error {
		for _, event := range events {
			if !way.event(event) {
				return errBroken
			}
		}
		return nil
	})
	if errors.Is(err, errBroken) {
		return len(way.marks) == 0, nil
	}
	way.feed()
	return err == nil && len(way.marks) == 0, err
}

// entryWalk moves a running digest on over the entries of a chain, past marks.
type entryWalk struct {
	entries int64 // that the digest covers
	events  int64 // of those
	digest  [32]byte
	addenda []*ledger.Addendum  // that are left, by position
	marks   []keyring.ChainMark // that are left, the oldest first
	off     bool                // a mark was passed and is not on the way
}

// event takes the next event, after the addenda that stand before it. It reports whether
// there is any use in going on.
func (w *entryWalk) event(event *ledger.StoredEvent) bool {
	if w.feed(); w.off || len(w.marks) == 0 || event.Sequence != w.events+1 {
		return false
	}
	w.events++
	w.step(event.Body)
	return !w.off && len(w.marks) > 0
}

// feed takes the addenda that come next.
func (w *entryWalk) feed() {
	w.pass()
	for !w.off && len(w.marks) > 0 && len(w.addenda) > 0 && w.addenda[0].Position == w.entries+1 {
		w.step(w.addenda[0].Body)
		w.addenda = w.addenda[1:]
	}
}

func (w *entryWalk) step(body []byte) {
	w.digest = ledger.NextDigest(w.digest, body)
	w.entries++
	w.pass()
}

// pass takes the marks that stand here.
func (w *entryWalk) pass() {
	for !w.off && len(w.marks) > 0 && w.marks[0].Entries == w.entries {
		w.off = w.marks[0].Digest != w.digest || w.marks[0].Actions != w.events
		if !w.off {
			w.marks = w.marks[1:]
		}
	}
}

// proofsAtOnce is how many chains with nothing unproven are held against the database
// each time. With more open chains than that they take turns.
const proofsAtOnce = 5000

// ProveChains holds the chains whose turn it is against what is remembered of them, and
// hands over what is wrong.
func (j *Judge) ProveChains(ctx context.Context, found func(*ChainRollback)) error {
	if j.chains == nil {
		return nil
	}
	for _, chain := range j.chains.Forgotten() {
		if err := j.takeOver(ctx, ledger.ChainID{UUID: chain}); err != nil {
			return err
		}
	}
	for _, seen := range j.chains.Due(proofsAtOnce) {
		back, err := j.ProveChain(ctx, &seen)
		if err != nil {
			return err
		}
		if back != nil {
			found(back)
		}
	}
	return nil
}

// takeOver remembers a chain as it stands, where it is open and authentic: an operator has
// accepted it.
func (j *Judge) takeOver(ctx context.Context, id ledger.ChainID) error {
	if ledger.IsCounterID(id.UUID) {
		return j.takeOverCounter(ctx, ledger.CounterID(id))
	}
	record, err := j.store.Chain(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if chain, state, detail := j.readChain(record); detail == "" && !Final(state) {
		j.chains.Note(keyring.ChainMark{}, MarkOf(chain, state, record.MAC), false)
	}
	return nil
}

// ChainRollbacks finds every chain that is not the one that was acknowledged.
func (j *Judge) ChainRollbacks(ctx context.Context) (found []*ChainRollback, err error) {
	if j.chains == nil {
		return nil, nil
	}
	return j.proveAll(ctx, j.chains.All(), math.MaxInt)
}

func (j *Judge) proveAll(ctx context.Context, watched []keyring.ChainWatched, most int) (found []*ChainRollback, err error) {
	for i := range watched {
		back, err := j.ProveChain(ctx, &watched[i])
		if err != nil {
			return nil, err
		}
		if back != nil {
			if found = append(found, back); len(found) >= most {
				break
			}
		}
	}
	return found, nil
}

// putBackChains are the chains of the organization's that were put back or are gone.
func (a *audit) putBackChains(ctx context.Context) ([]*ledger.Break, error) {
	if a.judge.chains == nil {
		return nil, nil
	}
	watched := a.judge.chains.Of(a.org.ID.UUID)
	if a.mostChains > 0 && len(watched) > a.mostChains {
		watched = watched[:a.mostChains]
	}
	back, err := a.judge.proveAll(ctx, watched, mostPutBack)
	breaks := make([]*ledger.Break, 0, len(back))
	for _, chain := range back {
		t := chain.Tampering()
		breaks = append(breaks, &ledger.Break{Check: t.Check, Detail: t.Place})
	}
	return breaks, err
}

// mostPutBack is how many chains that were put back a look names one by one.
const mostPutBack = 100
