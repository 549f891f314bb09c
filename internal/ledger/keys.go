package ledger

import (
	"crypto/hmac"
	"crypto/sha256"

	"github.com/google/uuid"
)

// Purpose separates the keys derived from one master key, so that an authenticator for one kind of
// record is never valid for another.
type Purpose string

// The purposes in use.
const (
	PurposeReceipt      Purpose = "receipt"
	PurposeHead         Purpose = "head"
	PurposeChainState   Purpose = "chain-state"
	PurposeEvent        Purpose = "event"
	PurposeApproval     Purpose = "approval"
	PurposeAuditHead    Purpose = "audit-head"
	PurposeAnchor       Purpose = "anchor"
	PurposeOrganization Purpose = "organization"
	PurposeSigningKey   Purpose = "signing-key"
	PurposeToken        Purpose = "public-token"
	PurposeKeyCheck     Purpose = "check"
	PurposeLease        Purpose = "lease"
	PurposeBinding      Purpose = "binding"
	PurposeAPIKey       Purpose = "api-key"
	PurposeRotation     Purpose = "key-rotation"
	PurposeSignIn       Purpose = "sign-in"
	PurposeWebhook      Purpose = "webhook"
	PurposePolicy       Purpose = "policy"
	PurposeJob          Purpose = "job"
	PurposeJobName      Purpose = "job-name"
	PurposeLedger       Purpose = "ledger"
	PurposeFinding      Purpose = "finding"
	PurposeFullCheck    Purpose = "full-check"

	PurposeBudgetCounter Purpose = "budget-counter"
	PurposeImported      Purpose = "imported-approval"
	PurposeTransparency  Purpose = "transparency-log"
	PurposeDelivery      Purpose = "webhook-delivery"
	PurposeSlackButton   Purpose = "slack-button"
)

// Keys authenticates records. Implementations are safe for concurrent use.
type Keys interface {
	// CurrentKey returns the id of the master key for new records.
	CurrentKey() string
	// MAC returns the HMAC-SHA256 of the concatenated parts with the key derived for (keyID, org,
	// purpose). ok is false if keyID is not on the ring, so that the record cannot be verified.
	MAC(keyID string, org uuid.UUID, purpose Purpose, parts ...[]byte) (mac [32]byte, ok bool)
}

// Authenticate returns an authenticator for a record. It names its key, for records that have no
// other place for the key's id.
func Authenticate(keys Keys, org OrgID, purpose Purpose, record []byte) []byte {
	keyID := keys.CurrentKey()
	mac, _ := keys.MAC(keyID, org.UUID, purpose, record)
	return append(append(make([]byte, 0, len(mac)+len(keyID)), mac[:]...), keyID...)
}

// Authentic reports whether an authenticator is valid for a record.
func Authentic(keys Keys, org OrgID, purpose Purpose, authenticator, record []byte) bool {
	if len(authenticator) < sha256.Size {
		return false
	}
	mac, ok := keys.MAC(string(authenticator[sha256.Size:]), org.UUID, purpose, record)
	return ok && hmac.Equal(mac[:], authenticator[:sha256.Size])
}

// The statuses of a signing key.
const (
	SigningActive     = "active"
	SigningRetired    = "retired"
	SigningRevoked    = "revoked"
	SigningHistorical = "historical" // imported: it signed elsewhere, or before the registry existed
	SigningConfirmed  = "confirmed"  // historical, and an admin has confirmed it
)
