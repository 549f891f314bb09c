package keyring

import (
	"crypto/hmac"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/uuid"
)

// headsFile is the file's form. The authenticator covers the heads in order.
type headsFile struct {
	KeyID string          `json:"key_id"`
	Heads map[string]head `json:"heads"` // by organization
	MAC   string          `json:"mac"`
}

type head struct {
	Count int64  `json:"count"`
	Last  string `json:"last"`
	Slug  string `json:"slug,omitempty"`
	Acts  *end   `json:"acts,omitempty"` // nil where none was noted
}

type end struct {
	Count int64  `json:"count"`
	Last  string `json:"last"`
}

// Writable tries whether the file could be written, leaving nothing behind.
func (h *Heads) Writable() error {
	temporary, err := h.temporary()
	if err != nil {
		return err
	}
	if err := errors.Join(temporary.Close(), os.Remove(temporary.Name())); err != nil {
		return fmt.Errorf("file of heads: %w", err)
	}
	return nil
}

// temporary makes a file beside the one that it may become.
func (h *Heads) temporary() (*os.File, error) {
	file, err := os.CreateTemp(filepath.Dir(h.path), ".heads-*")
	if err != nil {
		return nil, fmt.Errorf("file of heads: %w", err)
	}
	return file, nil
}

func (h *Heads) write() error {
	body, err := h.encode()
	if err != nil {
		return err
	}
	temporary, err := h.temporary()
	if err != nil {
		return err
	}
	_, err = temporary.Write(body)
	// Durable before it has its name: half a file after a power cut would look
	// like one that was changed.
	err = errors.Join(err, temporary.Sync())
	// Asked of this very file: under its name another's may stand already.
	written, statErr := temporary.Stat()
	if err = errors.Join(err, statErr, temporary.Close()); err == nil {
		err = os.Rename(temporary.Name(), h.path)
	}
	if err != nil {
		return fmt.Errorf("file of heads: %w", errors.Join(err, os.Remove(temporary.Name())))
	}
	clear(h.noted)
	h.known = written
	return nil
}

func (h *Heads) encode() ([]byte, error) {
	file := headsFile{KeyID: h.ring.CurrentKey(), Heads: make(map[string]head, len(h.seen))}
	for org, seen := range h.seen {
		noted := head{Count: seen.Count, Last: hex.EncodeToString(seen.Last[:]), Slug: seen.Slug}
		if acts := seen.Acts; acts.Count > 0 {
			noted.Acts = &end{Count: acts.Count, Last: hex.EncodeToString(acts.Last[:])}
		}
		file.Heads[org.String()] = noted
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

// covered is what the authenticator is over. A slug has no space, no "=" and no line's
// end, so that no two contents are covered alike.
func (f *headsFile) covered() []byte {
	var text []byte
	for _, org := range slices.Sorted(maps.Keys(f.Heads)) {
		head := f.Heads[org]
		text = fmt.Appendf(text, "%s %d %s", org, head.Count, head.Last)
		if head.Slug != "" { // files from before slugs were kept have none
			text = fmt.Appendf(text, " %s", head.Slug)
		}
		if acts := head.Acts; acts != nil { // as above
			text = fmt.Appendf(text, " acts=%d:%s", acts.Count, acts.Last)
		}
		text = append(text, '\n')
	}
	return text
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
		one, ok := head.decode()
		if err != nil || !ok {
			return nil, invalid
		}
		seen[org] = one
	}
	return seen, nil
}

func (h *head) decode() (Seen, bool) {
	last, ok := decodeHash(h.Last)
	seen := Seen{Count: h.Count, Last: last, Slug: h.Slug}
	if h.Acts != nil && ok {
		seen.Acts.Count = h.Acts.Count
		seen.Acts.Last, ok = decodeHash(h.Acts.Last)
	}
	return seen, ok
}

func decodeHash(text string) (hash [32]byte, ok bool) {
	decoded, err := hex.DecodeString(text)
	if err != nil || len(decoded) != len(hash) {
		return hash, false
	}
	return [32]byte(decoded), true
}
