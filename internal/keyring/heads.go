package keyring

import (
	"crypto/hmac"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/google/uuid"

	"countersign/internal/ledger"
)

// purposeHeads is of the file of heads, which belongs to no organization.
const purposeHeads ledger.Purpose = "heads"

// Heads remembers, in a file outside the database, the newest receipt of each
// organization that this server has acknowledged. A database that was put back to
// an earlier day is authentic in every record; only such a memory tells.
//
// It is safe for concurrent use. What is noted reaches the file with the next
// Flush: a file that lags behind a little proves a little less and never accuses
// anyone wrongly.
type Heads struct {
	path string
	ring *Ring

	mu       sync.Mutex
	seen     map[uuid.UUID]Seen
	noted    map[uuid.UUID]Seen // of seen, what the file does not hold yet
	modified int64              // of the file as this process last read or wrote it
}

// Seen is the newest receipt that was acknowledged.
type Seen struct {
	Count int64
	Last  [32]byte
}

// headsFile is the file's form. The authenticator covers the heads in order.
type headsFile struct {
	KeyID string          `json:"key_id"`
	Heads map[string]head `json:"heads"` // by organization
	MAC   string          `json:"mac"`
}

type head struct {
	Count int64  `json:"count"`
	Last  string `json:"last"`
}

// OpenHeads reads the file, which need not be there. One that was changed is
// ErrInvalid.
func OpenHeads(path string, ring *Ring) (*Heads, error) {
	h := &Heads{path: path, ring: ring, seen: make(map[uuid.UUID]Seen), noted: make(map[uuid.UUID]Seen)}
	err := h.Reload()
	return h, err
}

// Seen returns the newest receipt of an organization that was acknowledged.
func (h *Heads) Seen(org uuid.UUID) (Seen, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	seen, ok := h.seen[org]
	return seen, ok
}

// Note remembers a receipt that was acknowledged. An older one than the newest
// changes nothing.
func (h *Heads) Note(org uuid.UUID, count int64, last [32]byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if known, ok := h.seen[org]; !ok || count > known.Count {
		h.seen[org] = Seen{Count: count, Last: last}
		h.noted[org] = h.seen[org]
	}
}

// Accept takes what the database holds for the truth, whatever was seen before: an
// operator has put an older copy back on purpose.
func (h *Heads) Accept(org uuid.UUID, now Seen) error {
	h.mu.Lock()
	h.seen[org], h.noted[org] = now, now
	h.mu.Unlock()
	return h.Flush()
}

// Flush writes the file anew where anything was noted since it was written.
func (h *Heads) Flush() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.noted) == 0 {
		return nil
	}
	body, err := h.encode()
	if err != nil {
		return err
	}
	temporary, err := os.CreateTemp(filepath.Dir(h.path), ".heads-*")
	if err != nil {
		return fmt.Errorf("file of heads: %w", err)
	}
	_, err = temporary.Write(body)
	// Durable before it has its name: half a file after a power cut would look
	// like one that was changed.
	if err = errors.Join(err, temporary.Sync(), temporary.Close()); err == nil {
		err = os.Rename(temporary.Name(), h.path)
	}
	if err != nil {
		return fmt.Errorf("file of heads: %w", errors.Join(err, os.Remove(temporary.Name())))
	}
	clear(h.noted)
	h.modified = modifiedAt(h.path)
	return nil
}

func (h *Heads) encode() ([]byte, error) {
	file := headsFile{KeyID: h.ring.CurrentKey(), Heads: make(map[string]head, len(h.seen))}
	for org, seen := range h.seen {
		file.Heads[org.String()] = head{Count: seen.Count, Last: hex.EncodeToString(seen.Last[:])}
	}
	mac, ok := h.ring.MAC(file.KeyID, uuid.Nil, purposeHeads, file.covered())
	if !ok {
		return nil, errors.New("file of heads: the current key is not on the ring")
	}
	file.MAC = hex.EncodeToString(mac[:])
	body, err := json.MarshalIndent(file, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("file of heads: %w", err)
	}
	return append(body, '\n'), nil
}

// covered is what the authenticator is over.
func (f *headsFile) covered() []byte {
	var text []byte
	for _, org := range slices.Sorted(maps.Keys(f.Heads)) {
		text = fmt.Appendf(text, "%s %d %s\n", org, f.Heads[org].Count, f.Heads[org].Last)
	}
	return text
}

// Reload reads the file again where another process has written it, so that what
// an operator accepts holds for a running server. What was noted here since, and
// goes further, is kept.
func (h *Heads) Reload() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := modifiedAt(h.path)
	if at == h.modified && at != 0 {
		return nil
	}
	body, err := os.ReadFile(h.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("file of heads: %w", err)
	}
	seen, err := h.decode(body)
	if err != nil {
		return err
	}
	for org, noted := range h.noted {
		if noted.Count > seen[org].Count {
			seen[org] = noted
		}
	}
	h.seen, h.modified = seen, at
	return nil
}

func (h *Heads) decode(body []byte) (map[uuid.UUID]Seen, error) {
	var file headsFile
	invalid := fmt.Errorf("file of heads %s: %w: it was changed; if you know why, remove it and start again", h.path, ErrInvalid)
	if err := json.Unmarshal(body, &file); err != nil {
		return nil, invalid
	}
	mac, ok := h.ring.MAC(file.KeyID, uuid.Nil, purposeHeads, file.covered())
	stated, err := hex.DecodeString(file.MAC)
	if err != nil || !ok || !hmac.Equal(mac[:], stated) {
		return nil, invalid
	}
	seen := make(map[uuid.UUID]Seen, len(file.Heads))
	for text, head := range file.Heads {
		org, err := uuid.Parse(text)
		last, lastErr := hex.DecodeString(head.Last)
		if err != nil || lastErr != nil || len(last) != 32 {
			return nil, invalid
		}
		seen[org] = Seen{Count: head.Count, Last: [32]byte(last)}
	}
	return seen, nil
}

func modifiedAt(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.ModTime().UnixNano()
}
