package keyring

import (
	"errors"
	"fmt"
	"maps"

	"github.com/google/uuid"
)

// ErrOtherLedger says that a heads file belongs to another ledger.
var ErrOtherLedger = errors.New("it watches another ledger")

// ErrDiverged says that two heads files of one ledger contradict each other: two copies of it were
// served separately.
var ErrDiverged = errors.New("it remembers another history of this ledger")

// Ledger returns the watched ledger, or uuid.Nil if none is set yet.
func (h *Heads) Ledger() uuid.UUID {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ledger
}

// Blank reports whether there are no records at all: the file is new or was lost.
func (h *Heads) Blank() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.blank()
}

func (h *Heads) blank() bool { return h.ledger == uuid.Nil && len(h.seen) == 0 }

// Adopt sets the file's ledger if it has none yet. If it belongs to another one, the error is
// ErrOtherLedger. If the file cannot be written, this process still watches the ledger.
func (h *Heads) Adopt(ledger uuid.UUID) error {
	if h.Ledger() == ledger {
		return nil
	}
	err := h.change(func() error {
		if h.ledger != uuid.Nil && h.ledger != ledger {
			return fmt.Errorf("file of heads %s: %w", h.path, ErrOtherLedger)
		}
		h.ledger = ledger
		return nil
	})
	if err != nil && !errors.Is(err, ErrOtherLedger) {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.ledger == uuid.Nil {
			h.ledger = ledger
		}
	}
	return err
}

// AcceptLedger sets the file's ledger, whatever it watched before, and does not change what it has
// about organizations.
func (h *Heads) AcceptLedger(ledger uuid.UUID) error {
	if h.Ledger() == ledger {
		return nil
	}
	return h.change(func() error {
		h.ledger = ledger
		return nil
	})
}

// Replace replaces everything, because an operator has restored a backup.
func (h *Heads) Replace(ledger uuid.UUID, seen map[uuid.UUID]Seen) error {
	return h.change(func() error {
		h.ledger, h.seen = ledger, make(map[uuid.UUID]Seen, len(seen))
		maps.Copy(h.seen, seen)
		clear(h.noted)
		return nil
	})
}

// Export returns the content in the format of the file.
func (h *Heads) Export() ([]byte, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.encode()
}

// Parse parses the result of Export that was made with the same master keys.
func (h *Heads) Parse(body []byte) (ledger uuid.UUID, seen map[uuid.UUID]Seen, err error) {
	read, err := h.decode(body)
	if err != nil {
		return uuid.Nil, nil, err
	}
	return read.ledger, read.seen, nil
}

// Import takes over, for each organization, what is further ahead than here. If the two contradict
// each other, nothing is changed.
func (h *Heads) Import(ledger uuid.UUID, seen map[uuid.UUID]Seen) (changed int, err error) {
	err = h.change(func() error {
		if h.ledger != uuid.Nil && ledger != uuid.Nil && h.ledger != ledger {
			return ErrOtherLedger
		}
		for org, theirs := range seen {
			if ours := h.seen[org]; ours.contradicts(theirs) {
				return ErrDiverged
			}
		}
		if h.ledger == uuid.Nil {
			h.ledger = ledger
		}
		for org, theirs := range seen {
			if ours := h.seen[org]; ours.advance(theirs) {
				h.note(org, ours)
				changed++
			}
		}
		return nil
	})
	return changed, err
}

// contradicts reports whether two records cannot be from one history: they have the same count but
// different ends.
func (s *Seen) contradicts(other Seen) bool {
	return (s.Count > 0 && s.Count == other.Count && s.Last != other.Last) ||
		(s.Acts.Count > 0 && s.Acts.Count == other.Acts.Count && s.Acts.Last != other.Acts.Last)
}
