package store

import (
	"context"

	"countersign/internal/ledger"
)

// LegacyUses keeps how often routes were used that are kept for compatibility alone, so
// that customers can be given notice before one goes. Nothing is decided by it.
type LegacyUses interface {
	// AddLegacyUses adds to the counters, and makes those that are not there yet. A counter
	// ends at 2^53. It may run beside Transact, and touches nothing that Transact reads or
	// writes.
	AddLegacyUses(ctx context.Context, uses map[LegacyUseRef]int64) error
	// LegacyUses lists counters by organization, day and route.
	LegacyUses(ctx context.Context, query LegacyUseQuery) ([]*LegacyUse, error)
}

// LegacyUseRef names a counter. It names nothing that was asked for.
type LegacyUseRef struct {
	Org   ledger.OrgID // whose artifact was asked for; zero where it is not known
	Day   ledger.Time  // its beginning, UTC
	Route string       // its pattern
}

// LegacyUse is how often a route was used on one day.
type LegacyUse struct {
	LegacyUseRef
	Requests int64
}

// LegacyUseQuery selects counters.
type LegacyUseQuery struct {
	Org   *ledger.OrgID // nil: of all, and of none
	Since ledger.Time   // days that begin then or later
	After *LegacyUseRef // nil: from the first
	Limit int
}
