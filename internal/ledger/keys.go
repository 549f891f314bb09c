package ledger

import "github.com/google/uuid"

// Purpose separates the keys derived from one master key, so that an
// authenticator made for one kind of record never passes for another.
type Purpose string

// The purposes in use.
const (
	PurposeReceipt    Purpose = "receipt"
	PurposeHead       Purpose = "head"
	PurposeChainState Purpose = "chain-state"
	PurposeKeyCheck   Purpose = "check"
)

// Keys authenticates records. Implementations are safe for concurrent use.
type Keys interface {
	// CurrentKey names the master key that new records are signed under.
	CurrentKey() string
	// MAC returns the HMAC-SHA256 of the parts' concatenation under the key
	// derived for (keyID, org, purpose). It reports false when keyID is not on
	// the ring: the record cannot be judged with the keys at hand.
	MAC(keyID string, org uuid.UUID, purpose Purpose, parts ...[]byte) (mac [32]byte, ok bool)
}
