package storetest

import (
	"crypto/hmac"
	"crypto/sha256"

	"github.com/google/uuid"

	"countersign/internal/ledger"
)

// Ring is a key ring with one key, which is not secret.
type Ring struct{}

const ringKey = "test-key"

// CurrentKey implements ledger.Keys.
func (Ring) CurrentKey() string { return ringKey }

// MAC implements ledger.Keys.
func (Ring) MAC(keyID string, org uuid.UUID, purpose ledger.Purpose, parts ...[]byte) (mac [32]byte, ok bool) {
	h := hmac.New(sha256.New, []byte(keyID+"/"+org.String()+"/"+string(purpose)))
	for _, part := range parts {
		h.Write(part)
	}
	h.Sum(mac[:0])
	return mac, keyID == ringKey
}
