package cli

import (
	"testing"

	"countersign/internal/verify"
)

// A database that has more receipts than were acknowledged, but others, is not said to have only so many.
func TestRollbackText(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		acknowledged, stored int64
		want                 string
	}{
		{5, 3, "of acme 5 receipts were acknowledged, but the database has only 3"},
		{5, 5, "the ledger of acme has 5 receipts, but not those that were acknowledged"},
		{5, 7, "the ledger of acme has 7 receipts, but not those that were acknowledged"},
	} {
		if got := RollbackText(verify.Rollback{Organization: "acme", Acknowledged: test.acknowledged, Stored: test.stored}); got != test.want {
			t.Errorf("%d acknowledged, %d stored: %q", test.acknowledged, test.stored, got)
		}
	}
}
