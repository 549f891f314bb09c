// Package keyring manages the master keys that every signature of the service depends on. They are
// in a file outside the database, so that an attacker with access to the database cannot forge its
// records.
//
// Keys are only ever added. Records name their master key, and without it they could not be
// verified.
package keyring

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"

	"countersign/internal/ledger"
)

var _ ledger.Keys = (*Ring)(nil)

// ErrKeyLost says that a key of the ring is no longer in its file.
var ErrKeyLost = errors.New("key lost")

// fingerprintLabel is what fingerprints authenticate. Stores contain fingerprints, so another label
// would make all keys look foreign.
const fingerprintLabel = "countersign key check v1"

// Ring is a set of master keys, one of which is current. It is safe for concurrent use and never
// prints a key.
type Ring struct {
	path string

	reloading sync.Mutex // serializes Reload and Learn, so that older content never replaces newer
	keys      atomic.Pointer[keySet]
	learnt    os.FileInfo // the file that Learn last read; nil for none; guarded by reloading

	// The cache is kept across reloads, because a known id never gets another secret.
	states stateCache
}

// keySet is the parsed key file. It is immutable.
type keySet struct {
	current string
	ids     []string
	masters map[string]ledger.Secret
	logKeys []LogKey // without Status

	sealedRows   bool
	numberedRows bool
}

func newRing(path string, keys *keySet) *Ring {
	ring := &Ring{path: path}
	ring.keys.Store(keys)
	return ring
}

// Open reads the key file at path. The error is ErrNotFound if it is missing, ErrExposed if other
// users can read or write it, and ErrInvalid if its content is wrong.
func Open(path string) (*Ring, error) {
	keys, err := readKeySet(path)
	if err != nil {
		return nil, err
	}
	return newRing(path, keys), nil
}

// CurrentKey returns the id of the key for new records.
func (r *Ring) CurrentKey() string { return r.keys.Load().current }

// SealedRows reports whether the key file says that every row of the database has an authenticator.
func (r *Ring) SealedRows() bool { return r.keys.Load().sealedRows }

// NumberedRows reports whether the key file says that every administrative record names the act
// that last changed it.
func (r *Ring) NumberedRows() bool { return r.keys.Load().numberedRows }

// IDs returns the ids of all keys, oldest first.
func (r *Ring) IDs() []string { return slices.Clone(r.keys.Load().ids) }

// MAC returns the HMAC-SHA256 of the concatenated parts with the key derived for (keyID, org,
// purpose). ok is false if keyID is not on the ring.
func (r *Ring) MAC(keyID string, org uuid.UUID, purpose ledger.Purpose, parts ...[]byte) ([32]byte, bool) {
	wanted := derivation{keyID: keyID, org: org, purpose: purpose}
	states := r.states.find(wanted)
	if states == nil {
		master, known := r.master(keyID)
		if !known {
			return [32]byte{}, false
		}
		states = r.states.add(wanted, newStatePool(deriveKey(master, org, purpose)))
	}
	return states.mac(parts), true
}

// Fingerprint returns a value that identifies the key and reveals nothing about it. A store keeps
// it to recognize the key file that signed its records. ok is false if keyID is not on the ring.
func (r *Ring) Fingerprint(keyID string) ([32]byte, bool) {
	return r.MAC(keyID, uuid.Nil, ledger.PurposeKeyCheck, []byte(fingerprintLabel))
}

// Reload reads the file again, so that a running server picks up a rotation. If it fails, the ring
// does not change. If the file lacks a key of the ring, or has another secret for its id, the error
// is ErrKeyLost.
func (r *Ring) Reload() error {
	r.reloading.Lock()
	defer r.reloading.Unlock()
	fresh, err := r.readFile()
	if err != nil {
		return err
	}
	r.keys.Store(fresh)
	return nil
}

// readFile reads the file, which must have every key of the ring. The caller holds reloading.
func (r *Ring) readFile() (*keySet, error) {
	fresh, err := readKeySet(r.path)
	if err != nil {
		return nil, err
	}
	known := r.keys.Load()
	for _, id := range known.ids {
		if master, kept := fresh.masters[id]; !kept || !master.Equal(known.masters[id]) {
			return nil, fmt.Errorf("key file %s no longer holds %s: %w; restore that key, because its records cannot be verified without it", r.path, id, ErrKeyLost)
		}
	}
	return fresh, nil
}

// master returns a master key. A key that is not on the ring may be in the file: another replica
// has picked up a rotation first, and its records are not to be taken for forged ones.
func (r *Ring) master(id string) (ledger.Secret, bool) {
	master, known := r.keys.Load().masters[id]
	if !known && r.Learn() {
		master, known = r.keys.Load().masters[id]
	}
	return master, known
}

// Learn adds the new keys of the file to the ring for verification, and reports whether there were
// any. Nothing is signed with them before Reload, because the store must know of a key first. It
// reads each version of the file once, so an unknown key costs no more than a look at the file.
func (r *Ring) Learn() bool {
	r.reloading.Lock()
	defer r.reloading.Unlock()
	info, err := os.Stat(r.path)
	if err != nil || sameFile(r.learnt, info) {
		return false
	}
	fresh, err := r.readFile()
	if err != nil {
		return false
	}
	r.learnt = info
	known := r.keys.Load()
	if len(fresh.ids) == len(known.ids) {
		return false
	}
	extended := *known
	extended.ids, extended.masters, extended.logKeys = fresh.ids, fresh.masters, slices.Clone(known.logKeys)
	for _, key := range fresh.logKeys {
		if _, had := known.masters[key.ID]; !had {
			extended.logKeys = append(extended.logKeys, key)
		}
	}
	r.keys.Store(&extended)
	return true
}

const redactedRing = "<redacted key ring>"

// String implements fmt.Stringer.
func (r *Ring) String() string { return redactedRing }

// GoString implements fmt.GoStringer.
func (r *Ring) GoString() string { return redactedRing }

// Format implements fmt.Formatter, for verbs that bypass String.
func (r *Ring) Format(state fmt.State, _ rune) { _, _ = io.WriteString(state, redactedRing) }

// LogValue implements slog.LogValuer.
func (r *Ring) LogValue() slog.Value { return slog.StringValue(redactedRing) }
