package ledger

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"sync"

	"github.com/google/uuid"
)

// testKeys derives keys like the key ring, from master secrets that are not secret. The last one is
// current.
type testKeys struct{ ids []string }

var keyRing = testKeys{ids: []string{"key-1"}}

func (k testKeys) CurrentKey() string { return k.ids[len(k.ids)-1] }

func (k testKeys) MAC(keyID string, org uuid.UUID, purpose Purpose, parts ...[]byte) (mac [32]byte, ok bool) {
	if !slices.Contains(k.ids, keyID) {
		return mac, false
	}
	h := hmac.New(sha256.New, deriveTestKey(masterSecret(keyID), org, purpose))
	for _, part := range parts {
		h.Write(part)
	}
	h.Sum(mac[:0])
	return mac, true
}

// derived caches keys for tests that authenticate thousands of times.
var derived sync.Map

// masterSecret returns the bytes 00 to 1f, with another first byte for each later key.
func masterSecret(keyID string) []byte {
	secret := make([]byte, 32)
	for i := range secret {
		secret[i] = byte(i)
	}
	secret[0] = keyID[len(keyID)-1] - '1'
	return secret
}

func deriveTestKey(master []byte, org uuid.UUID, purpose Purpose) []byte {
	type derivation struct {
		master  string
		org     uuid.UUID
		purpose Purpose
	}
	wanted := derivation{string(master), org, purpose}
	if key, ok := derived.Load(wanted); ok {
		return key.([]byte)
	}
	info := binary.BigEndian.AppendUint32(nil, uint32(len(purpose)))
	info = append(append(info, purpose...), org[:]...)
	key := must(hkdf.Key(sha256.New, master, []byte("countersign/keyring/v1"), string(info), sha256.Size))
	derived.Store(wanted, key)
	return key
}
