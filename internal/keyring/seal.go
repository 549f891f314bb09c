package keyring

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"countersign/internal/ledger"
)

// purposeSeal separates the keys that encrypt from those that authenticate.
const purposeSeal ledger.Purpose = "seal"

// ErrSealed says that a sealed secret cannot be opened: it was changed, belongs to another
// organization, or its master key is not on the ring.
var ErrSealed = errors.New("sealed secret cannot be opened")

// Seal encrypts a secret for storage. Only this ring can open it. It is bound to its organization
// and label, so it cannot be opened elsewhere.
func (r *Ring) Seal(org uuid.UUID, label string, plaintext []byte) ([]byte, error) {
	keyID := r.CurrentKey()
	aead, err := r.aead(keyID, org)
	if err != nil {
		return nil, err
	}
	nonce := make([]byte, aead.NonceSize())
	if _, err := rand.Read(nonce); err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}
	sealed := append([]byte{byte(len(keyID))}, keyID...) //nolint:gosec // idForm fixes the length
	sealed = append(sealed, nonce...)
	return aead.Seal(sealed, nonce, plaintext, []byte(label)), nil
}

// Open decrypts the result of Seal for the same organization and label.
func (r *Ring) Open(org uuid.UUID, label string, sealed []byte) ([]byte, error) {
	if len(sealed) == 0 || len(sealed) < 1+int(sealed[0]) {
		return nil, ErrSealed
	}
	keyID, rest := string(sealed[1:1+int(sealed[0])]), sealed[1+int(sealed[0]):]
	aead, err := r.aead(keyID, org)
	if err != nil {
		return nil, err
	}
	if len(rest) < aead.NonceSize() {
		return nil, ErrSealed
	}
	plaintext, err := aead.Open(nil, rest[:aead.NonceSize()], rest[aead.NonceSize():], []byte(label))
	if err != nil {
		return nil, ErrSealed
	}
	return plaintext, nil
}

func (r *Ring) aead(keyID string, org uuid.UUID) (cipher.AEAD, error) {
	master, known := r.master(keyID)
	if !known {
		return nil, ErrSealed
	}
	block, err := aes.NewCipher(deriveKey(master, org, purposeSeal))
	if err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}
	return cipher.NewGCM(block)
}
