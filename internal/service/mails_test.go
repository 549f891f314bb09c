package service

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"countersign/internal/ledger"
)

// Five e-mails of a chain and twenty of a key go out within any sixty minutes, wherever the hour of the
// clock begins, and a job that is retried within them does not count again.
func TestUntrustedMailsOfAnyHour(t *testing.T) {
	t.Parallel()
	start := ledger.TimeOf(time.Date(2026, 5, 1, 10, 0, 0, 0, time.UTC))
	key := ledger.KeyID{UUID: uuid.UUID{1}}
	var mails untrustedMailCount
	for i, step := range []struct {
		minute int
		job    int64
		chain  byte
		most   int // addresses
		want   int
	}{
		{58, 1, 1, 3, 3},
		{59, 2, 1, 3, 2}, // the fifth
		{60, 3, 1, 3, 0}, // another hour of the clock
		{61, 2, 1, 3, 2}, // a retry
		{62, 4, 2, 5, 5},
		{63, 5, 3, 5, 5},
		{64, 6, 4, 9, 5},
		{65, 7, 5, 5, 0},  // the key has sent twenty
		{117, 8, 1, 5, 0}, // 59 minutes after the first
		{118, 9, 1, 5, 3},
		{119, 10, 1, 5, 2},
		{120, 11, 1, 5, 0},
	} {
		approval := &ledger.Approval{Chain: ledger.ChainID{UUID: uuid.UUID{step.chain}}, OpenedBy: key, Escalate: make([]string, step.most)}
		if got := mails.take(step.job, approval, start.Add(time.Duration(step.minute)*time.Minute)); got != step.want {
			t.Errorf("step %d, minute %d: %d e-mails, want %d", i, step.minute, got, step.want)
		}
	}
}
