package service

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// queued is an operation that only waits.
type queued struct {
	org   ledger.OrgID
	bytes int
}

func (o queued) tenant() ledger.OrgID { return o.org }
func (o queued) size() int            { return o.bytes }
func (queued) need(*store.Needs)      {}
func (queued) plan(*batch) error      { return nil }

func numberedOrg(n int) ledger.OrgID { return ledger.OrgID{UUID: uuid.UUID{15: byte(n)}} }

func fill(t *testing.T, q *writeQueue, org, operations int, stop bool) {
	t.Helper()
	for range operations {
		if !q.add(&pending{operation: queued{numberedOrg(org), smallOperation}, stop: stop}) {
			t.Fatalf("organization %d: no room", org)
		}
	}
}

// shares counts the operations of a batch by organization.
func shares(batch []*pending) map[int]int {
	counts := make(map[int]int)
	for _, p := range batch {
		counts[int(p.operation.tenant().UUID[15])]++
	}
	return counts
}

// A batch takes a fair share of every organization in the queue, however much one of them has
// queued before the others, and loses nothing.
func TestBatchesAreShared(t *testing.T) {
	t.Parallel()
	q := newWriteQueue()
	fill(t, &q, 1, 5000, false)
	fill(t, &q, 2, 3, false)
	fill(t, &q, 3, 200, false)
	first := q.take()
	if got := shares(first); len(first) != maxBatch || got[2] != 3 || got[1] != 127 || got[3] != 126 {
		t.Errorf("the first batch holds %v", got)
	}
	if !slices.IsSortedFunc(first, func(a, b *pending) int { return int(a.number - b.number) }) {
		t.Error("a batch is not in order of arrival")
	}
	all := len(first)
	for q.length > 0 {
		batch := q.take()
		if len(batch) == 0 {
			t.Fatal("something is left behind")
		}
		all += len(batch)
	}
	if all != 5203 || q.bytes != 0 || len(q.tenants) != 0 || len(q.ring) != 0 {
		t.Errorf("%d operations were taken; %d bytes and %d organizations are left", all, q.bytes, len(q.tenants))
	}
}

// If more organizations are queued than a batch can take, all get their turn.
func TestEveryOrganizationHasItsTurn(t *testing.T) {
	t.Parallel()
	q := newWriteQueue()
	for org := range 200 {
		fill(t, &q, org, 4, false)
	}
	seen := make(map[int]int)
	for range 4 {
		for org, n := range shares(q.take()) {
			seen[org] += n
		}
	}
	for org := range 200 {
		if seen[org] != 4 {
			t.Errorf("organization %d had %d turns, want 4", org, seen[org])
		}
	}
}

// A stop is in the next batch, however much its own organization and others have queued, and is
// accepted even if its organization has filled its share.
func TestStopsGoFirst(t *testing.T) {
	t.Parallel()
	q := newWriteQueue()
	for q.add(&pending{operation: queued{numberedOrg(1), smallOperation}}) {
		continue
	}
	if q.length != maxQueuedBytes/tenantShare/smallOperation {
		t.Errorf("one organization has filled the queue with %d operations", q.length)
	}
	for org := 2; org < 250; org++ {
		fill(t, &q, org, 2, false)
	}
	fill(t, &q, 1, 2, true)
	fill(t, &q, 249, 1, true)
	stops := 0
	for _, p := range q.take() {
		if p.stop {
			stops++
		}
	}
	if stops != 3 {
		t.Errorf("the next batch holds %d of 3 stops", stops)
	}
}

// Nobody can keep another organization's stop out of the queue, neither with operations nor with
// stops, and the stops of one organization use no capacity of the others.
func TestStopsHaveRoom(t *testing.T) {
	t.Parallel()
	q := newWriteQueue()
	for org := 1; org < 4; org++ {
		for q.add(&pending{operation: queued{numberedOrg(org), smallOperation}, stop: true}) {
			continue
		}
	}
	if q.length != 3*maxQueuedStops {
		t.Errorf("three organizations have queued %d stops", q.length)
	}
	fill(t, &q, 4, 1000, false)
	for org := 1; org < 4; org++ {
		for q.add(&pending{operation: queued{numberedOrg(org), smallOperation}}) {
			continue
		}
	}
	fill(t, &q, 5, 1, true)
	if got := shares(q.take()); got[5] != 1 {
		t.Errorf("the next batch holds %v", got)
	}
}

// An organization whose operations are slow to plan has few of them in a batch, and as many as any
// other once they are fast again.
func TestSlowOrganizationsHaveSmallShares(t *testing.T) {
	t.Parallel()
	q := newWriteQueue()
	run := func(took time.Duration) int {
		fill(t, &q, 1, 300, false)
		fill(t, &q, 2, 300, false)
		batch := q.take()
		times := make([]time.Duration, len(batch))
		for i, p := range batch {
			if p.operation.tenant() == numberedOrg(1) {
				times[i] = took
			}
		}
		q.planned(batch, times)
		slow := q.slow
		q = newWriteQueue()
		q.slow = slow
		return shares(batch)[1]
	}
	run(80 * time.Millisecond)
	if got := run(80 * time.Millisecond); got != 1 {
		t.Errorf("%d operations that take 80 ms each are in one batch", got)
	}
	for range 20 {
		run(time.Microsecond)
	}
	if got := run(time.Microsecond); got != maxBatch/2 {
		t.Errorf("an organization that is fast again has %d operations in a batch", got)
	}
	if got := fmt.Sprint(q.slow); got != "map[]" {
		t.Errorf("still remembered as slow: %s", got)
	}
	run(10 * time.Second) // the process was paused
	for range 4 {
		run(time.Microsecond)
	}
	if got := run(time.Microsecond); got < 2 {
		t.Errorf("five batches after a pause an organization has %d operation in a batch", got)
	}
}
