package store

import (
	"context"

	"countersign/internal/ledger"
)

// Budgets finds the counters of budgets. They are changed by Transact alone and never
// deleted.
type Budgets interface {
	// BudgetCounters finds counters by their ids in one statement; one that does not
	// exist is absent.
	BudgetCounters(ctx context.Context, ids []ledger.CounterID) (map[ledger.CounterID]*CounterRecord, error)
	// CountersOf lists the counters of one budget in one window, by value and id.
	CountersOf(ctx context.Context, query CounterQuery) ([]*CounterRecord, error)
	// AllCounters lists an organization's counters by id, after the given one.
	AllCounters(ctx context.Context, org ledger.OrgID, after ledger.CounterID, limit int) ([]*CounterRecord, error)
}

// CounterRecord is a budget's counter as it is kept. Body and MAC are opaque to a store;
// the other members are copies of what they say, to find counters by.
type CounterRecord struct {
	ID     ledger.CounterID
	Org    ledger.OrgID
	Budget string
	Start  ledger.Time // of the window
	Value  string
	Body   []byte
	MAC    []byte
}

// CounterQuery selects counters of one budget in one window.
type CounterQuery struct {
	Org    ledger.OrgID
	Budget string
	Start  ledger.Time
	// After is the place after which to go on: those with a greater value, or the same
	// value and a greater id.
	After CounterAt
	Limit int
}

// CounterAt is a counter's place in a list.
type CounterAt struct {
	Value string
	ID    ledger.CounterID
}
