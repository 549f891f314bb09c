package verify

import (
	"context"
	"crypto/sha256"
	"errors"
	"math"
	"slices"

	"countersign/internal/cache"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// Entries knows what was recorded about the events of a chain after them. Events are
// authenticated one by one; what was recorded about them later is held against the
// chain's running digest, all of it together. It is not changed once it is made.
type Entries struct {
	// Integrity says how far the chain's digest vouches for its entries.
	Integrity ledger.Integrity

	entries int64
	digest  [32]byte
	bodies  map[int64][][32]byte // by the event's sequence, the hashes in order of position
}

// entriesInUse is how many bytes of entries are remembered.
const entriesInUse = 8 << 20

func newEntriesCache() *cache.Cache[ledger.ChainID, *Entries] {
	return cache.New[ledger.ChainID, *Entries](entriesInUse)
}

// Are reports whether these are what was recorded about an event, all of it and nothing
// else.
func (e *Entries) Are(sequence int64, addenda []*ledger.Addendum) bool {
	return slices.EqualFunc(e.bodies[sequence], addenda, func(known [32]byte, a *ledger.Addendum) bool {
		return known == sha256.Sum256(a.Body)
	})
}

// EntriesOf holds what was recorded about a chain's events against the digest in its
// state, which must be read after whatever is to be compared with it. Of a chain that is
// too large for a bounded check it says that it did not look.
func (j *Judge) EntriesOf(ctx context.Context, record *store.ChainRecord) (*Entries, error) {
	state, fault := j.readState(record)
	if fault != "" {
		return &Entries{Integrity: ledger.IntegrityFailed}, nil
	}
	if known, ok := j.entries.Get(record.ID); ok && known.entries == state.Entries && known.digest == state.Digest {
		return known, nil
	}
	e := &Entries{entries: state.Entries, digest: state.Digest}
	if state.Entries == state.Actions { // nothing was recorded but events
		return e, nil
	}
	e.bodies = make(map[int64][][32]byte)
	digest, err := j.digestTo(ctx, record.ID, state.Entries, e)
	switch {
	case errors.Is(err, errLarge):
		return &Entries{Integrity: ledger.IntegrityNotChecked}, nil
	case err != nil:
		return nil, err
	case digest != state.Digest:
		return &Entries{Integrity: ledger.IntegrityFailed}, nil
	}
	j.entries.Put(record.ID, e, int(state.Entries-state.Actions)*100)
	return e, nil
}

// digestTo is the running digest over so many of a chain's entries, in the order of
// their positions. It notes those that are no events.
func (j *Judge) digestTo(ctx context.Context, chain ledger.ChainID, entries int64, noted *Entries) ([32]byte, error) {
	size := &extent{bounded: true}
	if err := size.claim(entries); err != nil {
		return [32]byte{}, err
	}
	addenda, err := j.store.Addenda(ctx, chain, math.MinInt64, math.MaxInt64)
	if err != nil {
		return [32]byte{}, err
	}
	digest, position := sha256.Sum256(nil), int64(0)
	feed := func() error {
		for len(addenda) > 0 && addenda[0].Position == position+1 && position < entries {
			a := addenda[0]
			noted.bodies[a.Sequence] = append(noted.bodies[a.Sequence], sha256.Sum256(a.Body))
			digest, position, addenda = ledger.NextDigest(digest, a.Body), position+1, addenda[1:]
			if err := size.add(len(a.Body)); err != nil {
				return err
			}
		}
		return nil
	}
	err = j.store.EachPage(ctx, chain, math.MinInt64, func(events []*ledger.StoredEvent) error {
		for _, event := range events {
			if err := feed(); err != nil {
				return err
			}
			if position == entries {
				return errBroken // the rest was recorded since
			}
			digest, position = ledger.NextDigest(digest, event.Body), position+1
			if err := size.add(len(event.Body) + len(event.Payload)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil && !errors.Is(err, errBroken) {
		return [32]byte{}, err
	}
	return digest, feed()
}
