package service

import (
	"testing"

	"countersign/internal/ledger"
)

// Ids ascend strictly, even within one millisecond and when the clock jumps back.
func TestIDsStayInOrderWithinAMillisecond(t *testing.T) {
	t.Parallel()
	var series idSeries
	lastAt, lastCount := series.next(1000)
	for i := range 3 * 4096 {
		at, count := series.next(ledger.Time(1000 - i%3)) // a clock that also jumps back
		if at < lastAt || (at == lastAt && count <= lastCount) || count > 4095 {
			t.Fatalf("%d.%d follows %d.%d", at, count, lastAt, lastCount)
		}
		lastAt, lastCount = at, count
	}
	if at, count := series.next(lastAt + 1); at != lastAt+1 || count != 0 {
		t.Errorf("the next millisecond begins with %d.%d", at, count)
	}
}
