package keyring

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"countersign/internal/ledger"
)

// purposeLogKey is of the keys that sign checkpoints. They belong to no organization: each
// master key has one.
const purposeLogKey ledger.Purpose = "log-key"

// LogKeyOverlap is how long the key before the current one signs checkpoints beside it, so
// that whoever has pinned it has time to pin the new one.
const LogKeyOverlap = 30 * 24 * time.Hour

// LogKeyStatus says what a key that signs checkpoints is good for.
type LogKeyStatus string

// The states of such a key. One that is active or retiring signs.
const (
	LogKeyActive   LogKeyStatus = "active"
	LogKeyRetiring LogKeyStatus = "retiring"
	LogKeyRetired  LogKeyStatus = "retired"
	LogKeyRevoked  LogKeyStatus = "revoked"
)

// LogKey is the public half of a key that signs checkpoints.
type LogKey struct {
	ID        string // of its master key
	Public    ed25519.PublicKey
	Status    LogKeyStatus
	CreatedAt time.Time
	RetiredAt time.Time // when it stops signing, or has; zero where that is not known
	RevokedAt time.Time // zero unless it is revoked
}

// Signs reports whether new checkpoints carry a signature of the key.
func (k *LogKey) Signs() bool { return k.Status == LogKeyActive || k.Status == LogKeyRetiring }

// logKeys are derived from the keys of a file, in its order.
func (d document) logKeys() []LogKey {
	keys := make([]LogKey, len(d.Keys))
	for i, key := range d.Keys {
		keys[i] = LogKey{
			ID: key.ID, Public: logKey(ledger.NewSecret(string(key.Secret))).Public().(ed25519.PublicKey), CreatedAt: key.CreatedAt,
		}
		if key.LogKeyRevokedAt != nil {
			keys[i].RevokedAt = *key.LogKeyRevokedAt
		}
		if i+1 < len(d.Keys) { // the next one took its place, and the one after that ended it
			keys[i].RetiredAt = d.Keys[i+1].CreatedAt.Add(LogKeyOverlap)
		}
		if i+2 < len(d.Keys) && d.Keys[i+2].CreatedAt.Before(keys[i].RetiredAt) {
			keys[i].RetiredAt = d.Keys[i+2].CreatedAt
		}
	}
	return keys
}

func logKey(master ledger.Secret) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(deriveKey(master, uuid.Nil, purposeLogKey))
}

// LogKeys lists the keys that sign checkpoints, or have signed them, the oldest first.
func (r *Ring) LogKeys(now time.Time) []LogKey {
	set := r.keys.Load()
	keys := slices.Clone(set.logKeys)
	for i := range keys {
		switch key := &keys[i]; {
		case !key.RevokedAt.IsZero():
			key.Status = LogKeyRevoked
		case key.ID == set.current:
			key.Status, key.RetiredAt = LogKeyActive, time.Time{}
		case now.Before(key.RetiredAt):
			key.Status = LogKeyRetiring
		default:
			key.Status = LogKeyRetired
		}
	}
	return keys
}

// SignLog signs a checkpoint with the private half of a key.
func (r *Ring) SignLog(id string, message []byte) ([]byte, error) {
	master, known := r.keys.Load().masters[id]
	if !known {
		return nil, fmt.Errorf("%s is not in the key file", id)
	}
	return ed25519.Sign(logKey(master), message), nil
}

// RevokeLogKey says in the file that a key signs no checkpoints any more, and that its
// signatures prove nothing by themselves: it may have leaked. Repeated, it changes nothing.
func RevokeLogKey(path, id string, now time.Time) (*Ring, error) {
	return rewrite(path, func(d document) (document, error) {
		if id == d.Current {
			return d, errors.New("this is the key that signs: run countersign keys rotate-signing first, so that another one does")
		}
		at := slices.IndexFunc(d.Keys, func(key entry) bool { return key.ID == id })
		if at < 0 {
			return d, fmt.Errorf("there is no key %q in the key file; countersign log keys lists those there are", id)
		}
		d.Keys = slices.Clone(d.Keys)
		if d.Keys[at].LogKeyRevokedAt == nil {
			revoked := now.UTC().Truncate(time.Millisecond)
			d.Keys[at].LogKeyRevokedAt = &revoked
		}
		return d, nil
	})
}
