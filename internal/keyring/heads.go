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

// purposeHeads is for the heads file, which belongs to no organization.
const purposeHeads ledger.Purpose = "heads"

// Heads records, in a file outside the database, the newest receipt and act of each organization
// that this server has acknowledged. In a database that was rolled back, every record is authentic,
// so only such a record reveals it.
//
// It is safe for concurrent use, also by several processes with one file: each change reads the
// file, adds to it and replaces it under a lock. What is noted reaches the file with the next
// Flush. A file that lags a little proves a little less but never causes a false alarm.
type Heads struct {
	path string
	ring *Ring

	changing sync.Mutex // held while this process changes the file; taken before mu

	mu     sync.Mutex // held briefly, never while writing the file or waiting for its lock
	ledger uuid.UUID  // the watched ledger; uuid.Nil if not set yet
	seen   map[uuid.UUID]Seen
	noted  map[uuid.UUID]Seen // the part of seen that is not in the file yet
	known  fs.FileInfo        // of the file when this process last read or wrote it, or nil
}

// Seen is the newest receipt and the newest act that were acknowledged.
type Seen struct {
	Count int64 // number of receipts
	Last  [32]byte
	Acts  ledger.LogEnd // the zero value if unknown
	// Slug is the organization's name for people, in case the database no longer has it. It is ""
	// if unknown.
	Slug string
}

// advance takes over what is further ahead, separately for receipts and acts, and reports whether
// anything is.
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

// OpenHeads reads the file, which need not exist. If it was changed, the error is ErrInvalidHeads.
func OpenHeads(path string, ring *Ring) (*Heads, error) {
	h := &Heads{path: path, ring: ring, seen: make(map[uuid.UUID]Seen), noted: make(map[uuid.UUID]Seen)}
	err := h.Reload()
	return h, err
}

// Seen returns what was acknowledged for an organization.
func (h *Heads) Seen(org uuid.UUID) (Seen, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	seen, ok := h.seen[org]
	return seen, ok
}

// All returns what was acknowledged for every organization.
func (h *Heads) All() map[uuid.UUID]Seen {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.seen)
}

// Note records an acknowledged receipt or act, or both. An older one changes nothing. Blank heads
// stay blank until they adopt a ledger, or an operator accepts or imports one: the ledger may have
// receipts that were never recorded, and recording a few ends would vouch for all of them.
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

// Accept accepts what the database has, whatever was seen before, because an operator has restored
// an older copy on purpose. If the database has nothing, nothing is watched any more.
func (h *Heads) Accept(org uuid.UUID, now Seen) error {
	// A running server may have written the file while the operator was deciding, so change reads
	// it first.
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

// Flush writes the file if anything was noted since it was written, or if it was removed.
func (h *Heads) Flush() error {
	if !h.unwritten() {
		return nil
	}
	// What an operator has accepted in the meantime must not be overwritten, so change reads it
	// first.
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

// Reload reads the file again if another process has written it, so that a running server notices
// what an operator accepts. What was noted here since, and is further ahead, is kept.
func (h *Heads) Reload() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.reload()
}

func (h *Heads) reload() error {
	// This comes before reading the file, so that whatever is written in between is read again.
	info, err := os.Stat(h.path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && sameFile(h.known, info) {
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
		return fmt.Errorf("file of heads %s: %w: restore a copy (countersign heads export makes one), or move it away and run countersign rollback accept", h.path, err)
	}
	if h.ledger != uuid.Nil && read.ledger != h.ledger {
		// An operator has accepted another ledger. What was noted belongs to the previous one.
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
