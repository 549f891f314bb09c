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

// Entries holds what was recorded about the events of a chain after they were recorded. Events are
// authenticated individually. Later entries are checked together, against the chain's running
// digest. Entries is immutable.
type Entries struct {
	// Integrity says how far the chain's digest vouches for its entries.
	Integrity ledger.Integrity

	entries int64
	digest  [32]byte
	bodies  map[int64][][32]byte // hashes in order of position, by event sequence
}

const maxEntryCache = 8 << 20 // bytes

func newEntriesCache() *cache.Cache[ledger.ChainID, *Entries] {
	return cache.New[ledger.ChainID, *Entries](maxEntryCache)
}

// Match reports whether the addenda are exactly what was recorded about an event.
func (e *Entries) Match(sequence int64, addenda []*ledger.Addendum) bool {
	return slices.EqualFunc(e.bodies[sequence], addenda, func(known [32]byte, a *ledger.Addendum) bool {
		return known == sha256.Sum256(a.Body)
	})
}

// EntriesOf checks what was recorded about a chain's events against the digest in its state. record
// must be read after anything that is compared with the result. If the chain is too large for a
// bounded check, Integrity is IntegrityNotChecked.
func (j *Judge) EntriesOf(ctx context.Context, record *store.ChainRecord) (*Entries, error) {
	state, fault := j.readState(record)
	if fault != "" {
		return &Entries{Integrity: ledger.IntegrityFailed}, nil
	}
	if known, ok := j.entries.Get(record.ID); ok && known.entries == state.Entries && known.digest == state.Digest {
		return known, nil
	}
	e := &Entries{entries: state.Entries, digest: state.Digest}
	if state.Entries == state.Actions { // only events were recorded
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

// digestTo returns the running digest over the first entries of a chain, in order. It adds those
// that are not events to noted.
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
				return errBroken // the rest was recorded later
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
