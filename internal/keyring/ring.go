// Package keyring holds the master keys that every signature of the service
// rests on. They live in a file outside the database, so that whoever can write
// to the database still cannot forge what it holds.
//
// Keys are only ever added. Records name the master key they were signed under,
// and a key that is gone would leave its records impossible to verify.
package keyring

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"

	"countersign/internal/ledger"
)

var _ ledger.Keys = (*Ring)(nil)

// ErrKeyLost says that a key which the ring holds is no longer in its file.
var ErrKeyLost = errors.New("key lost")

// fingerprintLabel is what fingerprints authenticate. Stores keep fingerprints:
// another label would make them all look foreign.
const fingerprintLabel = "countersign key check v1"

// Ring is a set of master keys, one of them current. It is safe for concurrent
// use and prints no key.
type Ring struct {
	path string

	reloading sync.Mutex // one at a time, so that an older reading never replaces a newer one
	keys      atomic.Pointer[keySet]

	// The cache outlives reloads: what was derived from a key stays right
	// because a known id never gets another secret.
	states stateCache
}

// keySet is one reading of the key file; it never changes.
type keySet struct {
	current string
	ids     []string
	masters map[string]ledger.Secret
	logKeys []LogKey // their Status is not set

	sealedRows   bool
	numberedRows bool
}

func newRing(path string, keys *keySet) *Ring {
	ring := &Ring{path: path}
	ring.keys.Store(keys)
	return ring
}

// Open reads the key file at path. A missing file is ErrNotFound, one that other
// users can read or write ErrExposed, one with wrong content ErrInvalid.
func Open(path string) (*Ring, error) {
	keys, err := readKeySet(path)
	if err != nil {
		return nil, err
	}
	return newRing(path, keys), nil
}

// CurrentKey names the key that new records are signed under.
func (r *Ring) CurrentKey() string { return r.keys.Load().current }

// SealedRows reports whether every row of the database is said to have an
// authenticator.
func (r *Ring) SealedRows() bool { return r.keys.Load().sealedRows }

// NumberedRows reports whether every administrative record is said to name the act that
// changed it last.
func (r *Ring) NumberedRows() bool { return r.keys.Load().numberedRows }

// IDs names all keys, the oldest first.
func (r *Ring) IDs() []string { return slices.Clone(r.keys.Load().ids) }

// MAC returns the HMAC-SHA256 of the parts' concatenation under the key derived
// for (keyID, org, purpose). It reports false when keyID is not on the ring.
func (r *Ring) MAC(keyID string, org uuid.UUID, purpose ledger.Purpose, parts ...[]byte) ([32]byte, bool) {
	wanted := derivation{keyID: keyID, org: org, purpose: purpose}
	states := r.states.find(wanted)
	if states == nil {
		master, known := r.keys.Load().masters[keyID]
		if !known {
			return [32]byte{}, false
		}
		states = r.states.add(wanted, newStatePool(deriveKey(master, org, purpose)))
	}
	return states.mac(parts), true
}

// Fingerprint returns a value that tells the key from any other and reveals
// nothing of it: a store keeps it to recognise the key file that signed its
// records. It reports false when keyID is not on the ring.
func (r *Ring) Fingerprint(keyID string) ([32]byte, bool) {
	return r.MAC(keyID, uuid.Nil, ledger.PurposeKeyCheck, []byte(fingerprintLabel))
}

// Reload reads the file again, so that a running server picks up a rotation. When
// it fails the ring stays as it was; a file that lacks a key of the ring, or has
// another secret under its id, is ErrKeyLost.
func (r *Ring) Reload() error {
	r.reloading.Lock()
	defer r.reloading.Unlock()
	fresh, err := readKeySet(r.path)
	if err != nil {
		return err
	}
	known := r.keys.Load()
	for _, id := range known.ids {
		if master, kept := fresh.masters[id]; !kept || !master.Equal(known.masters[id]) {
			return fmt.Errorf("key file %s no longer holds %s: %w; put that key back, its records cannot be verified without it", r.path, id, ErrKeyLost)
		}
	}
	r.keys.Store(fresh)
	return nil
}

const redactedRing = "<redacted key ring>"

// String implements fmt.Stringer.
func (r *Ring) String() string { return redactedRing }

// GoString implements fmt.GoStringer.
func (r *Ring) GoString() string { return redactedRing }

// Format implements fmt.Formatter for the verbs that do not ask String.
func (r *Ring) Format(state fmt.State, _ rune) { _, _ = io.WriteString(state, redactedRing) }

// LogValue implements slog.LogValuer.
func (r *Ring) LogValue() slog.Value { return slog.StringValue(redactedRing) }
