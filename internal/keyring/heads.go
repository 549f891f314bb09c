package keyring

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"sync"

	"github.com/google/uuid"

	"countersign/internal/ledger"
)

// purposeHeads is of the file of heads, which belongs to no organization.
const purposeHeads ledger.Purpose = "heads"

// Heads remembers, in a file outside the database, how far each organization's receipts
// and audit log had come when this server last acknowledged any. A database that was put back to
// an earlier day is authentic in every record; only such a memory tells.
//
// It is safe for concurrent use, also by several processes on one file: each change
// reads the file, adds to it and replaces it under a lock. What is noted reaches the
// file with the next Flush: a file that lags behind a little proves a little less and
// never accuses anyone wrongly.
type Heads struct {
	path string
	ring *Ring

	changing sync.Mutex // held while this process changes the file; taken before mu

	mu     sync.Mutex // held for moments, never while the file is written or waited for
	ledger uuid.UUID  // the ledger that is watched; uuid.Nil before it was told
	seen   map[uuid.UUID]Seen
	noted  map[uuid.UUID]Seen // of seen, what the file does not hold yet
	known  fs.FileInfo        // of the file as this process last read or wrote it; nil before
}

// Seen is the newest receipt and the newest act that were acknowledged.
type Seen struct {
	Count int64 // of receipts
	Last  [32]byte
	Acts  ledger.LogEnd // the zero value was never told
	// Slug is what people call the organization, for the day when the database does
	// not know it any more; "" where it was never told.
	Slug string
}

// advance takes over what goes further, of the receipts and of the acts, and reports
// whether anything does.
func (s *Seen) advance(now Seen) bool {
	before := *s
	if now.Count > s.Count {
		s.Count, s.Last = now.Count, now.Last
	}
	if now.Acts.Count > s.Acts.Count {
		s.Acts = now.Acts
	}
	if s.Count == before.Count && s.Acts.Count == before.Acts.Count {
		return false
	}
	s.Slug = cmp.Or(now.Slug, s.Slug)
	return true
}

// OpenHeads reads the file, which need not be there. One that was changed is
// ErrInvalidHeads.
func OpenHeads(path string, ring *Ring) (*Heads, error) {
	h := &Heads{path: path, ring: ring, seen: make(map[uuid.UUID]Seen), noted: make(map[uuid.UUID]Seen)}
	err := h.Reload()
	return h, err
}

// Seen returns what was acknowledged of an organization.
func (h *Heads) Seen(org uuid.UUID) (Seen, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	seen, ok := h.seen[org]
	return seen, ok
}

// All returns what was acknowledged, of every organization.
func (h *Heads) All() map[uuid.UUID]Seen {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.seen)
}

// Note remembers a receipt or an act that was acknowledged, or both. One that is older
// than the newest changes nothing. A blank memory stays blank until it adopts a ledger,
// or an operator accepts or imports one: its ledger may hold receipts of which nothing
// is remembered, and to note a few of its ends would vouch for all.
func (h *Heads) Note(org uuid.UUID, now Seen) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.blank() {
		return
	}
	if seen := h.seen[org]; seen.advance(now) {
		h.note(org, seen)
	}
}

func (h *Heads) note(org uuid.UUID, now Seen) { h.seen[org], h.noted[org] = now, now }

// Accept takes what the database holds for the truth, whatever was seen before: an
// operator has put an older copy back on purpose. Where it holds nothing, nothing is
// left to watch.
func (h *Heads) Accept(org uuid.UUID, now Seen) error {
	// A running server may have written the file while the operator thought: change
	// reads it first.
	return h.change(func() error {
		if now.Count == 0 && now.Acts.Count == 0 {
			delete(h.seen, org)
			delete(h.noted, org)
			return nil
		}
		now.Slug = cmp.Or(now.Slug, h.seen[org].Slug)
		h.note(org, now)
		return nil
	})
}

// Flush writes the file anew where anything was noted since it was written, or where
// it was removed.
func (h *Heads) Flush() error {
	if !h.unwritten() {
		return nil
	}
	// What an operator has accepted in the meantime must not be written over: change
	// reads it first.
	return h.change(func() error { return nil })
}

// unwritten reports whether the file lacks something that this process knows.
func (h *Heads) unwritten() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.noted) > 0 {
		return true
	}
	if h.known == nil {
		return false
	}
	_, err := os.Lstat(h.path)
	return errors.Is(err, fs.ErrNotExist)
}

// Reload reads the file again where another process has written it, so that what
// an operator accepts holds for a running server. What was noted here since, and
// goes further, is kept.
func (h *Heads) Reload() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.reload()
}

func (h *Heads) reload() error {
	// Asked for before the file is read: what is written in between is read again.
	info, err := os.Stat(h.path)
	if errors.Is(err, fs.ErrNotExist) || (err == nil && h.knows(info)) {
		return nil
	}
	var body []byte
	if err == nil {
		body, err = readBounded(h.path)
	}
	if err != nil {
		return fmt.Errorf("file of heads: %w", err)
	}
	read, err := h.decode(body)
	if err != nil {
		return fmt.Errorf("file of heads %s: %w: put a copy back (countersign heads export makes one), or move it away and run countersign rollback accept", h.path, err)
	}
	if h.ledger != uuid.Nil && read.ledger != h.ledger {
		// An operator has gone on with another ledger. What was noted is of the one before.
		clear(h.noted)
	}
	for org, noted := range h.noted {
		if further := read.seen[org]; further.advance(noted) {
			read.seen[org] = further
		}
	}
	h.ledger, h.seen, h.known = read.ledger, read.seen, info
	return nil
}

// knows reports whether the file is still the one that was read or written. Its time
// alone would not tell: two files can be written within one tick of a clock.
func (h *Heads) knows(now fs.FileInfo) bool {
	return h.known != nil && os.SameFile(h.known, now) && h.known.ModTime().Equal(now.ModTime())
}
