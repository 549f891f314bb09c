package service

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"math"
	"slices"

	"countersign/internal/ledger"
	"countersign/internal/recent"
	"countersign/internal/store"
)

// entryLog knows what was recorded about the events of a chain after them, as far as the
// running digest in the chain's state vouches for it. One addendum is not authenticated by
// itself: the digest says what there is, and that there is nothing else. A log is extended
// by what was recorded since, and so read once.
//
// It belongs to whoever has taken it out of the cache.
type entryLog struct {
	entries int64 // that are covered
	events  int64 // of those; the last one's sequence
	digest  [32]byte
	bodies  map[int64][][32]byte // by the event's sequence, the hashes in order of position
	late    map[string]bool      // the idempotency keys of late outcomes
}

func newEntryLog() *entryLog {
	return &entryLog{digest: sha256.Sum256(nil), bodies: make(map[int64][][32]byte), late: make(map[string]bool)}
}

// extend covers what follows, up to so many entries. It returns the addenda that are left.
func (l *entryLog) extend(to int64, events []*ledger.StoredEvent, addenda []*ledger.Addendum) []*ledger.Addendum {
	for l.entries < to {
		switch {
		case len(addenda) > 0 && addenda[0].Position == l.entries+1:
			a := addenda[0]
			l.bodies[a.Sequence] = append(l.bodies[a.Sequence], sha256.Sum256(a.Body))
			l.digest, addenda = ledger.NextDigest(l.digest, a.Body), addenda[1:]
		case len(events) > 0 && events[0].Sequence == l.events+1:
			l.addEvent(events[0])
			events = events[1:]
		default:
			return addenda
		}
		l.entries++
	}
	return addenda
}

func (l *entryLog) addEvent(event *ledger.StoredEvent) {
	l.events = event.Sequence
	l.digest = ledger.NextDigest(l.digest, event.Body)
	if bytes.Contains(event.Body, []byte(ledger.ActionTypeLateOutcome)) {
		if facts, err := ledger.DecodeEvent(event.Body); err == nil && facts.Action.ActionType == ledger.ActionTypeLateOutcome {
			l.late[facts.Action.IdempotencyKey] = true
		}
	}
}

// are reports whether these are what was recorded about an event, all of it and nothing
// else.
func (l *entryLog) are(sequence int64, addenda []*ledger.Addendum) bool {
	return slices.EqualFunc(l.bodies[sequence], addenda, func(known [32]byte, a *ledger.Addendum) bool {
		return known == sha256.Sum256(a.Body)
	})
}

// size is about what it takes in memory, in bytes.
func (l *entryLog) size() int { return 200 + 120*int(l.entries-l.events) + 120*len(l.late) }

// entryLogs keeps the logs of chains in use.
type entryLogs struct {
	logs *recent.Cache[ledger.ChainID, *entryLog]
}

// entriesInUse bounds what is kept of entries, in bytes.
const entriesInUse = 8 << 20

func newEntryLogs() entryLogs {
	return entryLogs{recent.New[ledger.ChainID, *entryLog](entriesInUse)}
}

// manyEntries is from how many entries on a chain is read before the transaction that
// needs them, so that it does not hold the chain's lock for long.
const manyEntries = 500

// readEntries reads a large chain's log where it is not in memory. What it cannot read,
// and whatever is not as recorded, is left to the transaction.
func (s *Service) readEntries(ctx context.Context, chain *ChainView) error {
	if _, known := s.entries.logs.Get(chain.Chain.ID); known || chain.State.Entries < manyEntries {
		return nil
	}
	addenda, err := s.store.Addenda(ctx, chain.Chain.ID, math.MinInt64, math.MaxInt64)
	if err != nil {
		return visible(err)
	}
	log := newEntryLog()
	err = s.store.EachPage(ctx, chain.Chain.ID, 0, func(events []*ledger.StoredEvent) error {
		addenda = log.extend(chain.State.Entries, events, addenda)
		return nil
	})
	if err == nil && log.entries == chain.State.Entries && log.digest == chain.State.Digest {
		s.entries.logs.Put(chain.Chain.ID, log, log.size())
	}
	return visible(err)
}

// entriesOf is the log of a chain as it was loaded, without what this batch adds.
func (b *batch) entriesOf(live *liveChain) (*entryLog, error) {
	id := live.chain.ID
	if log := b.entries[id]; log != nil {
		return log, nil
	}
	log, known := b.service.entries.logs.Take(id)
	if known && log.entries <= live.loaded.Entries {
		sound, err := b.catchUpEntries(live, log)
		if err != nil || sound {
			return log, err
		}
	}
	log = newEntryLog()
	sound, err := b.catchUpEntries(live, log)
	if err != nil {
		return nil, err
	}
	if !sound {
		return nil, fmt.Errorf("entries of a chain are not as recorded: %w", ledger.ErrStateTampered)
	}
	return log, nil
}

// catchUpEntries extends a log to what was loaded, and reports whether the chain's state
// vouches for it.
func (b *batch) catchUpEntries(live *liveChain, log *entryLog) (sound bool, err error) {
	if log.entries < live.loaded.Entries {
		events, err := b.loaded.EventsAfter(live.chain.ID, log.events)
		if err != nil {
			b.broken = err
			return false, err
		}
		addenda, err := b.loaded.AddendaAfter(live.chain.ID, log.entries)
		if err != nil {
			b.broken = err
			return false, err
		}
		log.extend(live.loaded.Entries, events, addenda)
	}
	if log.entries != live.loaded.Entries || log.digest != live.loaded.Digest {
		return false, nil
	}
	b.entries[live.chain.ID] = log
	return true, nil
}

// enter enters an addendum, for the operations that follow and for the store.
func (b *batch) enter(addendum *ledger.Addendum) {
	b.changes.NewAddenda = append(b.changes.NewAddenda, addendum)
	at := store.EventAt{Chain: addendum.Chain, Sequence: addendum.Sequence}
	b.loaded.Addenda[at] = append(b.loaded.Addenda[at], addendum)
	b.entered[at]++
}

// recordedAbout is what was recorded about an event of a chain, this batch included. The
// operation must have named the event's addenda among its needs.
func (b *batch) recordedAbout(live *liveChain, sequence int64) ([]*ledger.Entry, error) {
	log, err := b.entriesOf(live)
	if err != nil {
		return nil, err
	}
	at := store.EventAt{Chain: live.chain.ID, Sequence: sequence}
	addenda := b.loaded.Addenda[at]
	if !log.are(sequence, addenda[:len(addenda)-b.entered[at]]) {
		return nil, fmt.Errorf("what was recorded about an event is not what is stored: %w", ledger.ErrStateTampered)
	}
	entries, err := ledger.DecodeEntries(addenda)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ledger.ErrStateTampered, err)
	}
	return entries, nil
}
