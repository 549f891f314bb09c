package keyring

import (
	"container/list"
	"maps"
	"os"
	"slices"
	"sync"

	"github.com/google/uuid"
)

// Chains records, outside the database, the state of each open chain that this process last wrote.
// An older state of a chain is authentic, so only such a record reveals that it is old.
//
// Budget counters are recorded in the same way, under ids that no chain has, until their windows
// end.
//
// It is safe for concurrent use. What is noted reaches the file with the next Flush. A file that
// lags proves a little less but never causes a false alarm.
type Chains struct {
	path  string
	ring  *Ring
	limit int // maximum number of chains

	mu        sync.Mutex
	marks     map[uuid.UUID]*list.Element // elements of touched, by chain
	touched   *list.List                  // of *chainEntry, least recently touched first
	changed   map[uuid.UUID]struct{}      // what is not in the file yet
	sealed    [2]map[uuid.UUID]ChainMark  // recently sealed chains: the newer half and the older half
	accepted  map[uuid.UUID]int64         // number of times an operator has accepted each organization's chains
	round     []uuid.UUID                 // chains that this round of Due has not returned yet
	dropped   int64                       // number dropped because the limit was reached
	forgotten []uuid.UUID                 // chains that were dropped because of an acceptance
	requests  os.FileInfo                 // of the acceptances file when it was last read, or nil

	writing sync.Mutex // held while the file is read or written; taken before mu
	journal journal    // guarded by writing
}

// ChainMark identifies a stored state of a chain.
type ChainMark struct {
	Org, Chain uuid.UUID
	Revision   int64    // number of times the state was stored
	Actions    int64    // events among the entries
	Entries    int64    // events and later entries about them
	Digest     [32]byte // running digest over the entries
	State      [16]byte // start of the state's authenticator
}

// Same reports whether two marks are for the same stored state.
func (m *ChainMark) Same(other *ChainMark) bool {
	return m.Chain == other.Chain && m.Revision == other.Revision && m.State == other.State
}

// Before reports whether a chain in the state of this mark can have reached the state of the other:
// the other is the same, or newer with no fewer entries. Whether the entries in between lead from
// one to the other remains to be proven.
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

// ChainWatched is what is recorded about one chain.
type ChainWatched struct {
	ChainMark
	// Unproven are earlier marks, oldest first, from which nobody has shown yet that the entries
	// lead to the newest: another process wrote the chain in between.
	Unproven []ChainMark
	// Forked says that two states with one revision were acknowledged.
	Forked bool
}

// chainEntry is a ChainWatched in Chains. The slices of an entry are replaced and never modified,
// so that they can be returned to callers.
type chainEntry struct {
	ChainWatched
	sealed bool // dropped once everything is proven
	doubt  bool // the newest mark is itself unproven, because it was read from the file
}

const (
	// maxChains bounds the memory, at about 250 bytes each.
	maxChains = 250_000
	// maxUnproven bounds the marks of one chain that two processes write in turn.
	maxUnproven = 64
	// maxSealed bounds each half of the recently sealed chains.
	maxSealed = 20_000
)

func newChains(path string, ring *Ring) *Chains {
	return &Chains{
		path: path, ring: ring, limit: maxChains,
		marks: make(map[uuid.UUID]*list.Element), touched: list.New(), changed: make(map[uuid.UUID]struct{}),
		sealed: [2]map[uuid.UUID]ChainMark{make(map[uuid.UUID]ChainMark)}, accepted: make(map[uuid.UUID]int64),
	}
}

// Seen returns what is recorded about a chain.
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

// seal remembers for a while that a chain is sealed. The caller holds c.mu.
func (c *Chains) seal(mark ChainMark) {
	if len(c.sealed[0]) >= maxSealed {
		c.sealed = [2]map[uuid.UUID]ChainMark{make(map[uuid.UUID]ChainMark), c.sealed[0]}
	}
	c.sealed[0][mark.Chain] = mark
}

// Note records a state that this process has stored, and that it was made from the state before,
// whose revision is 0 for a new chain. final says that nothing more is recorded in the chain. It
// reports false if another state with the same revision was noted: the chain was rolled back
// between the two.
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
	case now.Revision < entry.Revision: // two commits, noted in reverse order
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

// doubted adds a mark from which continuity must be shown. If there are too many, one in the middle
// is dropped: the oldest and the newest prove the most.
func (e *chainEntry) doubted(mark ChainMark) {
	marks := slices.Clone(e.Unproven)
	at, known := slices.BinarySearchFunc(marks, mark.Revision, func(m ChainMark, revision int64) int { return int(m.Revision - revision) })
	if known {
		e.Forked = e.Forked || !marks[at].Same(&mark)
		return
	}
	marks = slices.Insert(marks, at, mark)
	if len(marks) > maxUnproven {
		marks = slices.Delete(marks, maxUnproven/2, maxUnproven/2+1)
	}
	e.Unproven = marks
}

// insert adds an entry, and drops the least recently touched ones if there are too many.
func (c *Chains) insert(entry *chainEntry) {
	c.marks[entry.Chain] = c.touched.PushBack(entry)
	c.changed[entry.Chain] = struct{}{}
	for len(c.marks) > c.limit {
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

// release drops a chain that is sealed if nothing remains to be proven.
func (c *Chains) release(element *list.Element) {
	entry := element.Value.(*chainEntry)
	if entry.sealed && !entry.doubt && !entry.Forked && len(entry.Unproven) == 0 {
		c.seal(entry.ChainMark)
		c.remove(element)
	}
}

// Proven records that the entries of a chain lead from everything that was seen of it to its
// current state. final is as in Note.
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

// Drop forgets an id that nothing depends on any more.
func (c *Chains) Drop(id uuid.UUID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if element := c.marks[id]; element != nil {
		c.remove(element)
	}
}

// Of returns what is recorded about an organization's chains, least recently touched first.
func (c *Chains) Of(org uuid.UUID) []ChainWatched {
	return c.all(func(entry *chainEntry) bool { return entry.Org == org })
}

// All returns what is recorded about every chain.
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

// Due returns the chains that must be checked against the database now: those with anything
// unproven, and the given number of others, in turn.
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

// Forgotten returns, once, the chains that were dropped because an operator accepted their
// organization's ledger. Those that are open must be recorded again in their current state.
func (c *Chains) Forgotten() []uuid.UUID {
	c.mu.Lock()
	defer c.mu.Unlock()
	forgotten := c.forgotten
	c.forgotten = nil
	return forgotten
}

// AdoptLater makes Forgotten return chains again that could not be recorded.
func (c *Chains) AdoptLater(chains []uuid.UUID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forgotten = append(c.forgotten, chains...)
}

// Watched returns how many chains are recorded, and how many were dropped since the start because
// the limit was reached.
func (c *Chains) Watched() (remembered int, dropped int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.marks), c.dropped
}

// forget drops everything about an organization. The caller holds c.mu.
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
