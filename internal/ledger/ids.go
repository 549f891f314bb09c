package ledger

import (
	"encoding/binary"
	"errors"

	"github.com/google/uuid"
)

// Typed identifiers: the id of a chain cannot be passed as the id of a receipt. They are parsed
// only at the edge.
type (
	// OrgID identifies an organization.
	OrgID struct{ uuid.UUID }
	// KeyID identifies an API key's record, never its secret.
	KeyID struct{ uuid.UUID }
	// ChainID identifies a chain.
	ChainID struct{ uuid.UUID }
	// EventID identifies an event and carries its sequence; see NewEventID.
	EventID struct{ uuid.UUID }
	// ReceiptID identifies a receipt. It is random: knowing it opens a public route.
	ReceiptID struct{ uuid.UUID }
	// ApprovalID identifies an approval. It is random, like a receipt's.
	ApprovalID struct{ uuid.UUID }
	// WebhookID identifies an endpoint that receives notifications.
	WebhookID struct{ uuid.UUID }
	// DeliveryID identifies an attempted delivery to a webhook.
	DeliveryID struct{ uuid.UUID }
	// TokenID identifies a public verification token's record, never its secret.
	TokenID struct{ uuid.UUID }
	// SigningKeyID identifies a key that signs approvals.
	SigningKeyID struct{ uuid.UUID }
)

// ErrMalformedID says that a text is not a valid identifier.
var ErrMalformedID = errors.New("malformed identifier")

// ParseID parses an identifier of 36 characters with hyphens, in small letters or capitals. Other
// forms of UUIDs are refused.
func ParseID(text string) (uuid.UUID, error) {
	if len(text) != 36 {
		return uuid.Nil, ErrMalformedID
	}
	id, err := uuid.Parse(text)
	if err != nil {
		return uuid.Nil, ErrMalformedID
	}
	return id, nil
}

// NewTimedID returns a version 7 id for a time and ten random bytes. Later ids sort later, which
// keeps the stores' indexes dense.
func NewTimedID(now Time, random [10]byte) uuid.UUID {
	var id uuid.UUID
	var stamp [8]byte
	binary.BigEndian.PutUint64(stamp[:], uint64(now)) //nolint:gosec // no id is made for a time before 1970
	copy(id[:6], stamp[2:])
	copy(id[6:], random[:])
	id[6] = id[6]&0x0f | 0x70
	id[8] = id[8]&0x3f | 0x80
	return id
}

// NewRandomID returns a version 4 id for 16 random bytes.
func NewRandomID(random [16]byte) uuid.UUID {
	id := uuid.UUID(random)
	id[6] = id[6]&0x0f | 0x40
	id[8] = id[8]&0x3f | 0x80
	return id
}

// NewEventID returns a version 7 id whose last four bytes are the event's sequence in its chain. So
// an event is found by its id without an index of ids, which would cost a write for every recorded
// action.
func NewEventID(now Time, random [10]byte, sequence int64) EventID {
	id := NewTimedID(now, random)
	binary.BigEndian.PutUint32(id[12:], uint32(sequence)) //nolint:gosec // MaxEventsCeiling is far below
	return EventID{id}
}

// Sequence returns the position in the chain according to the id. The event stored there must still
// be compared with the id.
func (id EventID) Sequence() int64 {
	return int64(binary.BigEndian.Uint32(id.UUID[12:]))
}

func appendID(dst []byte, id uuid.UUID) []byte {
	const hexDigits = "0123456789abcdef"
	for i, b := range id {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			dst = append(dst, '-')
		}
		dst = append(dst, hexDigits[b>>4], hexDigits[b&0x0f])
	}
	return dst
}
