package keyring

import (
	"crypto/hmac"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"

	"github.com/google/uuid"
)

// headsFile is the file's format. The authenticator covers the ledger and the heads in order.
type headsFile struct {
	KeyID  string          `json:"key_id"`
	Ledger string          `json:"ledger,omitempty"` // "" in files that predate ledger ids
	Heads  map[string]head `json:"heads"`            // by organization id
	MAC    string          `json:"mac"`
}

type head struct {
	Count int64  `json:"count"`
	Last  string `json:"last"`
	Slug  string `json:"slug,omitempty"`
	Acts  *end   `json:"acts,omitempty"` // nil if none was noted
}

type end struct {
	Count int64  `json:"count"`
	Last  string `json:"last"`
}

// Writable checks whether the file can be written, without leaving anything behind.
func (h *Heads) Writable() error {
	temporary, err := createBeside(h.path)
	if err == nil {
		err = errors.Join(temporary.Close(), os.Remove(temporary.Name()))
	}
	if err != nil {
		return fmt.Errorf("file of heads: %w", err)
	}
	return nil
}

// write replaces the file. The caller holds the file's lock, so it is still the one that was read.
// It returns the new file's info.
func (h *Heads) write(body []byte) (fs.FileInfo, error) {
	written, err := replaceFile(h.path, body)
	if err != nil {
		return nil, fmt.Errorf("file of heads: %w", err)
	}
	return written, nil
}

func (h *Heads) encode() ([]byte, error) {
	file := headsFile{KeyID: h.ring.CurrentKey(), Heads: make(map[string]head, len(h.seen))}
	if h.ledger != uuid.Nil {
		file.Ledger = h.ledger.String()
	}
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

// covered returns what the authenticator covers. A slug contains no space, "=" or line break, so no
// two contents give the same bytes.
func (f *headsFile) covered() []byte {
	var text []byte
	if f.Ledger != "" { // an organization's line starts with its id instead
		text = fmt.Appendf(text, "ledger %s\n", f.Ledger)
	}
	for _, org := range slices.Sorted(maps.Keys(f.Heads)) {
		head := f.Heads[org]
		text = fmt.Appendf(text, "%s %d %s", org, head.Count, head.Last)
		if head.Slug != "" { // absent in older files
			text = fmt.Appendf(text, " %s", head.Slug)
		}
		if acts := head.Acts; acts != nil { // absent in older files
			text = fmt.Appendf(text, " acts=%d:%s", acts.Count, acts.Last)
		}
		text = append(text, '\n')
	}
	return text
}

// remembered is the content of a heads file.
type remembered struct {
	ledger uuid.UUID
	seen   map[uuid.UUID]Seen
}

// ErrInvalidHeads says that a file is not a valid heads file.
var ErrInvalidHeads = errors.New("not a valid file of heads")

// ErrOtherKeys says that a heads file was made with keys that are not in the key file.
var ErrOtherKeys = errors.New("it was made with other master keys")

var errChanged = fmt.Errorf("%w: it was changed or is not whole", ErrInvalidHeads)

func (h *Heads) decode(body []byte) (*remembered, error) {
	var file headsFile
	if err := json.Unmarshal(body, &file); err != nil {
		return nil, errChanged
	}
	mac, ok := h.ring.MAC(file.KeyID, uuid.Nil, purposeHeads, file.covered())
	if !ok {
		return nil, fmt.Errorf("%w: %w", ErrInvalidHeads, ErrOtherKeys)
	}
	stated, err := hex.DecodeString(file.MAC)
	if err != nil || !hmac.Equal(mac[:], stated) {
		return nil, errChanged
	}
	read := &remembered{seen: make(map[uuid.UUID]Seen, len(file.Heads))}
	if file.Ledger != "" {
		if read.ledger, err = uuid.Parse(file.Ledger); err != nil {
			return nil, errChanged
		}
	}
	for text, head := range file.Heads {
		org, err := uuid.Parse(text)
		one, ok := head.decode()
		if err != nil || !ok {
			return nil, errChanged
		}
		read.seen[org] = one
	}
	return read, nil
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

// maxHeads bounds a heads file, in bytes. It is enough for about 200,000 organizations.
const maxHeads = 64 << 20

func readBounded(path string) ([]byte, error) {
	file, err := os.Open(path) //nolint:gosec // the operator names the file
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return ReadHeads(file)
}

var errHeadsTooLarge = fmt.Errorf("%w: it is larger than %d MiB", ErrInvalidHeads, maxHeads>>20)

// ReadHeads reads what may be a heads file, up to the maximum size. A file that is larger is not
// read at all.
func ReadHeads(r io.Reader) ([]byte, error) {
	if file, ok := r.(*os.File); ok {
		if info, err := file.Stat(); err == nil && info.Size() > maxHeads {
			return nil, errHeadsTooLarge
		}
	}
	body, err := io.ReadAll(io.LimitReader(r, maxHeads+1))
	if err == nil && len(body) > maxHeads {
		err = errHeadsTooLarge
	}
	return body, err
}
