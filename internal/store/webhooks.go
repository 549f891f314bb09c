package store

import (
	"context"
	"time"

	"countersign/internal/ledger"
)

// WebhookRecord is an endpoint that receives notifications.
type WebhookRecord struct {
	ID          ledger.WebhookID
	Org         ledger.OrgID
	URL         string
	Events      []string // the kinds that it receives; none: all of them
	Description string
	Secret      []byte // encrypted: only the key ring opens it
	CreatedAt   ledger.Time
	DisabledAt  *ledger.Time // nil while it receives notifications
	DeletedAt   *ledger.Time // nil while it exists; lists leave deleted ones out
	Act         int64        // the number of the act that last changed it; 0 in a row from before this was kept
	MAC         []byte       // authenticates all of it
	// Tampered says that the stored row is not what the service wrote; then only ID and
	// Org are set. A store leaves it false, since it knows no authenticators.
	Tampered bool
}

// Deliveries is the log of attempts to deliver to webhooks.
type Deliveries interface {
	// AddDelivery stores an attempt. It deletes the attempts of the same webhook except
	// the newest keep (by id), and the attempts of every webhook that were made before
	// since. Attempts that another replica is deleting may be left for the next call.
	// It may run concurrently with Transact, which neither reads nor writes attempts.
	AddDelivery(ctx context.Context, delivery *DeliveryRecord, keep int, since ledger.Time) error
	Delivery(ctx context.Context, id ledger.DeliveryID) (*DeliveryRecord, error)
	// Deliveries lists newest first, by id.
	Deliveries(ctx context.Context, query DeliveryQuery) ([]*DeliveryRecord, error)
}

// DeliveryRecord is one attempt to deliver a message to a webhook. It never changes.
type DeliveryRecord struct {
	ID        ledger.DeliveryID // ids made later sort later
	Org       ledger.OrgID
	Webhook   ledger.WebhookID
	MessageID string // the same for every attempt to deliver a message
	Kind      string // of the notification
	Trigger   string // what caused the attempt: an event, a test or a redelivery
	Attempt   int64  // from 1
	State     string // of the message after this attempt
	Code      int64  // the HTTP status of the answer; 0 without one
	Class     string // of the error; "" without one
	Error     string // repeats nothing that the recipient sent
	At        ledger.Time
	Duration  time.Duration // whole milliseconds
	Notice    []byte        // the body, as it was sent
	MAC       []byte        // authenticates all of it
	// Tampered is as in WebhookRecord; then only ID, Org and Webhook are set.
	Tampered bool
}

// DeliveryQuery selects attempts of one organization.
type DeliveryQuery struct {
	Org     ledger.OrgID
	Webhook *ledger.WebhookID  // nil: of every webhook
	Since   ledger.Time        // made then or later
	Before  *ledger.DeliveryID // those with a smaller id
	Limit   int
}
