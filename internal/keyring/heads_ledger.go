package keyring

import (
	"errors"
	"fmt"
	"maps"

	"github.com/google/uuid"
)

// ErrOtherLedger says that a file of heads is about another ledger.
var ErrOtherLedger = errors.New("it watches another ledger")

// ErrDiverged says that two memories of one ledger contradict each other: two copies
// of it were served apart.
var ErrDiverged = errors.New("it remembers another history of this ledger")

// Ledger is the ledger that is watched, uuid.Nil before any was told.
func (h *Heads) Ledger() uuid.UUID {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ledger
}

// Blank reports whether nothing at all is remembered: the file is new, or was lost.
func (h *Heads) Blank() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.blank()
}

func (h *Heads) blank() bool { return h.ledger == uuid.Nil && len(h.seen) == 0 }

// Adopt makes the file one of this ledger, where it is of none yet. One of another is
// ErrOtherLedger. Where the file cannot be written, this process watches the ledger all
// the same.
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

// AcceptLedger makes the file one of this ledger, whatever it watched before, and
// leaves what it remembers of organizations as it is.
func (h *Heads) AcceptLedger(ledger uuid.UUID) error {
	if h.Ledger() == ledger {
		return nil
	}
	return h.change(func() error {
		h.ledger = ledger
		return nil
	})
}

// Replace forgets everything, and remembers this instead: an operator has restored a
// backup.
func (h *Heads) Replace(ledger uuid.UUID, seen map[uuid.UUID]Seen) error {
	return h.change(func() error {
		h.ledger, h.seen = ledger, make(map[uuid.UUID]Seen, len(seen))
		maps.Copy(h.seen, seen)
		clear(h.noted)
		return nil
	})
}

// Export is what is remembered, in the form of the file.
func (h *Heads) Export() ([]byte, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.encode()
}

// Parse reads what Export made under the same master keys.
func (h *Heads) Parse(body []byte) (ledger uuid.UUID, seen map[uuid.UUID]Seen, err error) {
	read, err := h.decode(body)
	if err != nil {
		return uuid.Nil, nil, err
	}
	return read.ledger, read.seen, nil
}

// Import takes over, for each organization, what goes further than what is remembered
// here. Where the two contradict each other nothing is changed.
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

// contradicts reports whether two memories cannot be of one history: as long, and with
// another end.
func (s *Seen) contradicts(other Seen) bool {
	return (s.Count > 0 && s.Count == other.Count && s.Last != other.Last) ||
		(s.Acts.Count > 0 && s.Acts.Count == other.Acts.Count && s.Acts.Last != other.Acts.Last)
}
