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

// purposeLogKey is for the keys that sign checkpoints. They belong to no organization: each master
// key has one.
const purposeLogKey ledger.Purpose = "log-key"

// LogKeyOverlap is how long the previous key also signs checkpoints, so that those who have pinned
// it have time to pin the new one.
const LogKeyOverlap = 30 * 24 * time.Hour

// LogKeyStatus is the status of a key that signs checkpoints.
type LogKeyStatus string

// The statuses of a log key. Active and retiring keys sign.
const (
	LogKeyActive   LogKeyStatus = "active"
	LogKeyRetiring LogKeyStatus = "retiring"
	LogKeyRetired  LogKeyStatus = "retired"
	LogKeyRevoked  LogKeyStatus = "revoked"
)

// LogKey is the public half of a key that signs checkpoints.
type LogKey struct {
	ID        string // id of its master key
	Public    ed25519.PublicKey
	Status    LogKeyStatus
	CreatedAt time.Time
	RetiredAt time.Time // when it stops or stopped signing; zero if unknown
	RevokedAt time.Time // zero if it is not revoked
}

// Signs reports whether the key signs new checkpoints.
func (k *LogKey) Signs() bool { return k.Status == LogKeyActive || k.Status == LogKeyRetiring }

// logKeys returns the keys derived from the master keys of a file, in its order.
func (d document) logKeys() []LogKey {
	keys := make([]LogKey, len(d.Keys))
	for i, key := range d.Keys {
		keys[i] = LogKey{
			ID: key.ID, Public: logKey(ledger.NewSecret(string(key.Secret))).Public().(ed25519.PublicKey), CreatedAt: key.CreatedAt,
		}
		if key.LogKeyRevokedAt != nil {
			keys[i].RevokedAt = *key.LogKeyRevokedAt
		}
		if i+1 < len(d.Keys) { // the next key replaces it, and the one after that ends it
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

// LogKeys returns the current and former keys that sign checkpoints, oldest first.
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
	master, known := r.master(id)
	if !known {
		return nil, fmt.Errorf("%s is not in the key file", id)
	}
	return ed25519.Sign(logKey(master), message), nil
}

// ErrUnknownKey says that a key file has no key with the given id.
var ErrUnknownKey = errors.New("the key file has no key")

// RevokeLogKey marks a key in the file as revoked, because it may have leaked: it signs no more
// checkpoints, and its signatures alone prove nothing. It is idempotent.
func RevokeLogKey(path, id string, now time.Time) (*Ring, error) {
	return rewrite(path, func(d document) (document, error) {
		if id == d.Current {
			return d, errors.New("this is the active key: run countersign keys rotate-signing first, so that another one signs")
		}
		at := slices.IndexFunc(d.Keys, func(key entry) bool { return key.ID == id })
		if at < 0 {
			return d, fmt.Errorf("%w %q; countersign log keys lists the existing ones", ErrUnknownKey, id)
		}
		d.Keys = slices.Clone(d.Keys)
		if d.Keys[at].LogKeyRevokedAt == nil {
			revoked := now.UTC().Truncate(time.Millisecond)
			d.Keys[at].LogKeyRevokedAt = &revoked
		}
		return d, nil
	})
}
