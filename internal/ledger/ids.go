package ledger

import (
	"encoding/binary"
	"errors"

	"github.com/google/uuid"
)

// Typed identifiers: a chain's id cannot be passed where a receipt's is meant.
// They are parsed at the edge and nowhere else.
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
	// WebhookID identifies an endpoint that is told what happens.
	WebhookID struct{ uuid.UUID }
	// DeliveryID identifies an attempt to deliver to a webhook.
	DeliveryID struct{ uuid.UUID }
	// TokenID identifies a public verification token's record, never its secret.
	TokenID struct{ uuid.UUID }
	// SigningKeyID identifies a key that signs approvals.
	SigningKeyID struct{ uuid.UUID }
)

// ErrMalformedID says that a text is no identifier of ours.
var ErrMalformedID = errors.New("malformed identifier")

// ParseID reads the one textual form that identifiers have: 36 characters,
// hyphenated. The other forms that UUID libraries take are refused, so that an
// object has one address.
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

// NewTimedID makes a version 7 id from a time and ten random bytes: ids made
// later sort later, which keeps the stores' indexes dense.
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

// NewRandomID makes a version 4 id from 16 random bytes.
func NewRandomID(random [16]byte) uuid.UUID {
	id := uuid.UUID(random)
	id[6] = id[6]&0x0f | 0x40
	id[8] = id[8]&0x3f | 0x80
	return id
}

// NewEventID makes a version 7 id whose last four bytes are the event's
// sequence in its chain: an event is found by its id without an index of ids,
// which would cost every recorded action a write.
func NewEventID(now Time, random [10]byte, sequence int64) EventID {
	id := NewTimedID(now, random)
	binary.BigEndian.PutUint32(id[12:], uint32(sequence)) //nolint:gosec // MaxEventsCeiling is far below
	return EventID{id}
}

// Sequence is the position in the chain that the id claims; the event stored
// there must still be compared with the id.
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
