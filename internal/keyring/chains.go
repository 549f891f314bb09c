package keyring

import (
	"container/list"
	"maps"
	"os"
	"slices"
	"sync"

	"github.com/google/uuid"
)

// Chains remembers, outside the database, how far each open chain had come when this
// process last wrote it. An older state of a chain is authentic; only such a memory
// tells that it is old.
//
// Counters of budgets are remembered in the same way, by ids that are no chain's, until
// their windows are over.
//
// It is safe for concurrent use. What is noted reaches the file with the next Flush: a
// file that lags behind proves a little less and never accuses anyone wrongly.
type Chains struct {
	path string
	ring *Ring
	most int // chains that are remembered

	mu        sync.Mutex
	marks     map[uuid.UUID]*list.Element // of *chainEntry, by chain
	touched   *list.List                  // of *chainEntry, the longest ago first
	changed   map[uuid.UUID]struct{}      // what the file does not hold yet
	sealed    [2]map[uuid.UUID]ChainMark  // chains that were sealed lately: the newer half, and the older
	accepted  map[uuid.UUID]int64         // how often an operator has accepted each organization's chains
	round     []uuid.UUID                 // chains that this round of Due has not named yet
	dropped   int64                       // how many were dropped for want of room
	forgotten []uuid.UUID                 // chains that an acceptance has made this process forget
	requests  os.FileInfo                 // of the file of acceptances as it was last read; nil before

	writing sync.Mutex // held while the file is read or written; taken before mu
	journal journal    // guarded by writing
}

// ChainMark is how far a chain had come.
type ChainMark struct {
	Org, Chain uuid.UUID
	Revision   int64    // how often the state was stored
	Actions    int64    // events among the entries
	Entries    int64    // events and what was recorded about them
	Digest     [32]byte // running digest over the entries
	State      [16]byte // the beginning of the state's authenticator
}

// Same reports whether two marks are of one stored state.
func (m *ChainMark) Same(other *ChainMark) bool {
	return m.Chain == other.Chain && m.Revision == other.Revision && m.State == other.State
}

// Before reports whether a chain that had come as far as the mark can have come to the
// state that the other one is of. It can where the other is the same, or newer with no
// fewer entries. Whether the entries between them lead from one to the other is left to
// be shown.
func (m *ChainMark) Before(other *ChainMark) bool {
	switch {
	case m.Org != other.Org || m.Chain != other.Chain || m.Revision > other.Revision:
		return false
	case m.Revision == other.Revision:
		return m.State == other.State
	case m.Entries == other.Entries:
		return m.Digest == other.Digest && m.Actions == other.Actions
	}
	return m.Entries < other.Entries && m.Actions <= other.Actions
}

// ChainWatched is what is remembered of one chain.
type ChainWatched struct {
	ChainMark
	// Unproven are earlier marks, the oldest first, from which nobody has shown yet that
	// the entries lead to the newest: another process wrote the chain in between.
	Unproven []ChainMark
	// Forked says that two states of one revision were acknowledged.
	Forked bool
}

// chainEntry is ChainWatched as it is kept. The marks of an entry are replaced and never
// changed, so that they can be handed out.
type chainEntry struct {
	ChainWatched
	sealed bool // it goes when all is proven
	doubt  bool // the newest mark itself is unproven: it was read from the file
}

const (
	// mostChains bounds the memory: about 250 bytes each.
	mostChains = 250_000
	// mostUnproven bounds what is kept of one chain that two processes write in turn.
	mostUnproven = 64
	// mostSealed bounds each half of what is remembered of chains that were sealed lately.
	mostSealed = 20_000
)

func newChains(path string, ring *Ring) *Chains {
	return &Chains{
		path: path, ring: ring, most: mostChains,
		marks: make(map[uuid.UUID]*list.Element), touched: list.New(), changed: make(map[uuid.UUID]struct{}),
		sealed: [2]map[uuid.UUID]ChainMark{make(map[uuid.UUID]ChainMark)}, accepted: make(map[uuid.UUID]int64),
	}
}

// Seen returns what is remembered of a chain.
func (c *Chains) Seen(chain uuid.UUID) (ChainWatched, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if element := c.marks[chain]; element != nil {
		return element.Value.(*chainEntry).ChainWatched, true
	}
	mark, ok := c.sealedLately(chain)
	return ChainWatched{ChainMark: mark}, ok
}

func (c *Chains) sealedLately(chain uuid.UUID) (ChainMark, bool) {
	mark, ok := c.sealed[0][chain]
	if !ok {
		mark, ok = c.sealed[1][chain]
	}
	return mark, ok
}

// seal remembers for a while that a chain is sealed.
func (c *Chains) seal(mark ChainMark) {
	if len(c.sealed[0]) >= mostSealed {
		c.sealed = [2]map[uuid.UUID]ChainMark{make(map[uuid.UUID]ChainMark), c.sealed[0]}
	}
	c.sealed[0][mark.Chain] = mark
}

// Note remembers a state that this process has stored, and that it was made from the
// state of before, whose revision is 0 for a new chain. final says that nothing is
// recorded in the chain any more. It reports false where another state of the same
// revision was noted: the chain was put back between the two.
func (c *Chains) Note(before, now ChainMark, final bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	element := c.marks[now.Chain]
	if element == nil {
		if final {
			c.seal(now)
			return true
		}
		c.insert(&chainEntry{ChainWatched: ChainWatched{ChainMark: now}})
		return true
	}
	c.touched.MoveToBack(element)
	entry := element.Value.(*chainEntry)
	c.changed[now.Chain] = struct{}{}
	switch {
	case entry.Same(&now):
		entry.sealed = final
	case now.Revision == entry.Revision:
		entry.Forked = true
	case now.Revision < entry.Revision: // two commits, noted in the other order
		entry.doubted(now)
	default:
		if !entry.Same(&before) {
			entry.doubted(entry.ChainMark)
		}
		entry.ChainMark, entry.doubt, entry.sealed = now, false, final
	}
	forked := entry.Forked
	c.release(element)
	return !forked
}

// doubted adds a mark from which continuity must be shown. Where there are too many, one
// in the middle goes: the oldest and the newest show the most.
func (e *chainEntry) doubted(mark ChainMark) {
	marks := slices.Clone(e.Unproven)
	at, known := slices.BinarySearchFunc(marks, mark.Revision, func(m ChainMark, revision int64) int { return int(m.Revision - revision) })
	if known {
		e.Forked = e.Forked || !marks[at].Same(&mark)
		return
	}
	marks = slices.Insert(marks, at, mark)
	if len(marks) > mostUnproven {
		marks = slices.Delete(marks, mostUnproven/2, mostUnproven/2+1)
	}
	e.Unproven = marks
}

// insert adds an entry, and drops the ones touched longest ago where there are too many.
func (c *Chains) insert(entry *chainEntry) {
	c.marks[entry.Chain] = c.touched.PushBack(entry)
	c.changed[entry.Chain] = struct{}{}
	for len(c.marks) > c.most {
		c.remove(c.touched.Front())
		c.dropped++
	}
}

func (c *Chains) remove(element *list.Element) {
	chain := element.Value.(*chainEntry).Chain
	c.touched.Remove(element)
	delete(c.marks, chain)
	c.changed[chain] = struct{}{}
}

// release drops a chain that is sealed and of which nothing is left to be shown.
func (c *Chains) release(element *list.Element) {
	entry := element.Value.(*chainEntry)
	if entry.sealed && !entry.doubt && !entry.Forked && len(entry.Unproven) == 0 {
		c.seal(entry.ChainMark)
		c.remove(element)
	}
}

// Proven says that the entries of a chain lead from everything that was seen of it to a
// state that stands now. final is as in Note.
func (c *Chains) Proven(seen *ChainWatched, now ChainMark, final bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	element := c.marks[seen.Chain]
	if element == nil {
		return
	}
	entry := element.Value.(*chainEntry)
	entry.Unproven = slices.DeleteFunc(slices.Clone(entry.Unproven), func(m ChainMark) bool {
		return m.Same(&seen.ChainMark) || slices.ContainsFunc(seen.Unproven, func(s ChainMark) bool { return s.Same(&m) })
	})
	if entry.Same(&seen.ChainMark) && now.Revision >= entry.Revision {
		entry.ChainMark, entry.doubt, entry.sealed = now, false, final
	}
	c.changed[seen.Chain] = struct{}{}
	c.release(element)
}

// Drop forgets what is remembered under an id: nothing depends on it any more.
func (c *Chains) Drop(id uuid.UUID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if element := c.marks[id]; element != nil {
		c.remove(element)
	}
}

// Of returns what is remembered of an organization's chains, those touched longest ago
// first.
func (c *Chains) Of(org uuid.UUID) []ChainWatched {
	return c.all(func(entry *chainEntry) bool { return entry.Org == org })
}

// All returns what is remembered of every chain.
func (c *Chains) All() []ChainWatched {
	return c.all(func(*chainEntry) bool { return true })
}

func (c *Chains) all(want func(*chainEntry) bool) (found []ChainWatched) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for element := c.touched.Front(); element != nil; element = element.Next() {
		if entry := element.Value.(*chainEntry); want(entry) {
			found = append(found, entry.ChainWatched)
		}
	}
	return found
}

// Due returns the chains that must be held against the database now: those with anything
// unproven, and so many of the others, in turn.
func (c *Chains) Due(others int) []ChainWatched {
	found := c.all(func(entry *chainEntry) bool { return entry.doubt || len(entry.Unproven) > 0 })
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.round) == 0 {
		for chain := range c.marks {
			c.round = append(c.round, chain)
		}
	}
	turn := c.round[max(0, len(c.round)-others):]
	c.round = c.round[:len(c.round)-len(turn)]
	for _, chain := range turn {
		if element := c.marks[chain]; element != nil {
			if entry := element.Value.(*chainEntry); !entry.doubt && len(entry.Unproven) == 0 {
				found = append(found, entry.ChainWatched)
			}
		}
	}
	return found
}

// Forgotten returns, once, the chains that were forgotten because an operator accepted
// their organization's ledger. Some may be open, and are to be remembered as they stand.
func (c *Chains) Forgotten() []uuid.UUID {
	c.mu.Lock()
	defer c.mu.Unlock()
	forgotten := c.forgotten
	c.forgotten = nil
	return forgotten
}

// Watched says how many chains are remembered, and how many were dropped since the start
// for want of room.
func (c *Chains) Watched() (remembered int, dropped int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.marks), c.dropped
}

// forget drops what is remembered of an organization. mu is held.
func (c *Chains) forget(org uuid.UUID) {
	for element := c.touched.Front(); element != nil; {
		next := element.Next()
		if entry := element.Value.(*chainEntry); entry.Org == org {
			c.forgotten = append(c.forgotten, entry.Chain)
			c.remove(element)
		}
		element = next
	}
	for _, half := range c.sealed {
		maps.DeleteFunc(half, func(_ uuid.UUID, mark ChainMark) bool { return mark.Org == org })
	}
}
