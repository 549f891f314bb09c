package store

import (
	"context"

	"countersign/internal/ledger"
)

// Reader reads chains and receipts, as committed.
type Reader interface {
	Chain(ctx context.Context, id ledger.ChainID) (*ChainRecord, error)
	// Chains lists by id, newest first.
	Chains(ctx context.Context, query ChainQuery) ([]*ChainRecord, error)
	// Events lists a chain's events with a sequence greater than after, by sequence.
	Events(ctx context.Context, chain ledger.ChainID, after int64, limit int) ([]*ledger.StoredEvent, error)
	// Addenda lists what was recorded later about a chain's events with the sequences
	// from..to, by position. The whole range is returned: there is no limit.
	Addenda(ctx context.Context, chain ledger.ChainID, from, to int64) ([]*ledger.Addendum, error)
	// ChainRows is Chain with the first of its addenda, events and approvals, at most limit
	// of each. The approvals are those that name this organization, the newest first.
	ChainRows(ctx context.Context, org ledger.OrgID, chain ledger.ChainID, limit int) (*ChainRows, error)
	Receipt(ctx context.Context, id ledger.ReceiptID) (*ledger.StoredReceipt, error)
	// NamedReceipt is Receipt with the slug of its organization. The result may be
	// shared with other callers and must not be changed.
	NamedReceipt(ctx context.Context, id ledger.ReceiptID) (*NamedReceipt, error)
	// PlacedReceipt is NamedReceipt with the receipt's neighbours and the head, all
	// from one snapshot. The result may be shared and must not be changed.
	PlacedReceipt(ctx context.Context, id ledger.ReceiptID) (*PlacedReceipt, error)
	ReceiptOfChain(ctx context.Context, chain ledger.ChainID) (*ledger.StoredReceipt, error)
	// Receipts lists those with a sequence below before (0: all), newest first.
	Receipts(ctx context.Context, org ledger.OrgID, before int64, limit int) ([]*ledger.StoredReceipt, error)
	// ScanReceipts visits the receipts with the sequences from..to, by sequence. The
	// record and its bytes are valid only during the visit.
	ScanReceipts(ctx context.Context, org ledger.OrgID, from, to int64, visit func(*ledger.StoredReceipt) error) error
	// ScanBodies visits only the signed bytes of the same receipts: the fastest way
	// through a large ledger. They are valid only during the visit.
	ScanBodies(ctx context.Context, org ledger.OrgID, from, to int64, visit func(body []byte) error) error
	Head(ctx context.Context, org ledger.OrgID) (*ledger.Head, error)
	// Epoch is Loaded.Epoch at this moment. It is also 0 during a transaction of this
	// process, because it does not wait for its end.
	Epoch() int64
	// ScanChains visits an organization's chains by id, for an audit. A chain that
	// has lost its state is visited without one. A state that has lost its chain is
	// visited too, with a zero id, before or after all chains.
	ScanChains(ctx context.Context, org ledger.OrgID, visit func(*ChainRecord) error) error
}

// ChainRecord is a stored chain: what was fixed at opening, and the state that
// changes. Body, State and MAC are opaque to a store; the other fields are copies of
// what they say, to find chains by.
type ChainRecord struct {
	ID             ledger.ChainID
	Org            ledger.OrgID
	OpenedBy       ledger.KeyID
	ExternalID     string
	Environment    string
	IdempotencyKey string // of the opening request, "" for none
	Body           []byte

	Status ledger.ChainStatus
	State  []byte
	MAC    []byte
}

// ChainRows is a stored chain with rows that belong to it.
type ChainRows struct {
	Chain     *ChainRecord
	Addenda   []*ledger.Addendum
	Events    []*ledger.StoredEvent
	Approvals []*ApprovalRecord
}

// ChainQuery selects chains of one organization. An empty field selects all.
type ChainQuery struct {
	Org         ledger.OrgID
	OpenedBy    *ledger.KeyID
	Status      ledger.ChainStatus
	Environment string
	ExternalID  string
	Before      *ledger.ChainID // those with a smaller id
	Limit       int
}

// NamedReceipt is a receipt and the slug of its organization, "" where the
// organization does not exist.
type NamedReceipt struct {
	*ledger.StoredReceipt
	Slug string
}

// PlacedReceipt is a receipt with its neighbours in its organization's ledger.
type PlacedReceipt struct {
	NamedReceipt
	Previous, Next *ledger.StoredReceipt // nil where there is none
	Head           *ledger.Head          // nil where there is none
	Anchored       bool                  // this receipt or a later one is anchored
}
