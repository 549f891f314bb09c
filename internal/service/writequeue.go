package service

import (
	"cmp"
	"slices"
	"time"

	"countersign/internal/ledger"
)

// writeQueue holds the operations that wait for a batch, by organization. A batch takes
// a fair share of each organization that waits: one operation of each in turn, until it
// is full. So what one organization queues delays nobody else, however much it is. It
// is not safe for concurrent use.
type writeQueue struct {
	tenants map[ledger.OrgID]*tenantQueue // those that wait
	ring    []*tenantQueue                // the same, whose turn it is first
	length  int                           // operations
	bytes   int                           // that they hold
	arrived int64                         // operations so far, which numbers them

	// slow is how long planning an operation takes, lately and on average, of
	// organizations that are slower than slowOperation.
	slow map[ledger.OrgID]time.Duration
	// slowness is slowOperation. Tests replace it.
	slowness time.Duration
}

// pending is an operation that waits, or is being committed.
type pending struct {
	operation operation
	stop      bool       // it makes decisions stricter, and goes first
	result    chan error // buffered: a committer never waits for a caller
	number    int64      // by order of arrival
}

// tenantQueue is what waits of one organization, in order of arrival.
type tenantQueue struct {
	org    ledger.OrgID
	stops  []*pending
	others []*pending
	bytes  int
}

const (
	maxBatch = 256
	maxStops = 16 // of one organization in one batch
	// maxQueuedStops is how many stops of one organization wait. They have room whatever
	// else waits, so that nobody can keep another's from the queue.
	maxQueuedStops = 256
	maxBatchBytes  = 16 << 20
	maxQueued      = 20_000
	// maxQueuedBytes bounds memory while the store stalls: callers that give up
	// leave their operations behind.
	maxQueuedBytes = 64 << 20
	// tenantShare is the part of these bounds that one organization may fill.
	tenantShare = 2

	// maxPlanning is about how long a batch spends planning the operations of one
	// organization, beyond the first: everyone in the batch waits for them.
	maxPlanning = 4 * time.Millisecond
	// slowOperation is how long planning takes at least of an organization that is held
	// to maxPlanning. Others take a tenth of it, and must not have small batches because
	// the machine is busy.
	slowOperation = 100 * time.Microsecond
	// maxSlow bounds how many organizations are remembered as slow.
	maxSlow = 10_000
)

func newWriteQueue() writeQueue {
	return writeQueue{tenants: make(map[ledger.OrgID]*tenantQueue), slow: make(map[ledger.OrgID]time.Duration), slowness: slowOperation}
}

// add queues an operation and reports whether there was room for it. A stop has room
// where others have filled the queue, and stops have a share of their own.
func (q *writeQueue) add(p *pending) bool {
	org, size := p.operation.tenant(), p.operation.size()
	tenant := q.tenants[org]
	if !q.room(p, tenant) {
		return false
	}
	if tenant == nil {
		tenant = &tenantQueue{org: org}
		q.tenants[org] = tenant
		q.ring = append(q.ring, tenant)
	}
	q.arrived++
	p.number = q.arrived
	if p.stop {
		tenant.stops = append(tenant.stops, p)
	} else {
		tenant.others = append(tenant.others, p)
	}
	tenant.bytes += size
	q.bytes += size
	q.length++
	return true
}

// room reports whether an operation may be queued. The tenant is nil where nothing of it
// waits.
func (q *writeQueue) room(p *pending, tenant *tenantQueue) bool {
	if p.stop {
		return tenant == nil || len(tenant.stops) < maxQueuedStops
	}
	if q.length >= maxQueued || q.bytes >= maxQueuedBytes {
		return false
	}
	return tenant == nil || len(tenant.others) < maxQueued/tenantShare && tenant.bytes < maxQueuedBytes/tenantShare
}

// take removes what the next batch commits, in order of arrival: stops first, then one
// operation of each organization in turn.
func (q *writeQueue) take() []*pending {
	var taken []*pending
	size := 0
	full := func() bool { return len(taken) >= maxBatch || size >= maxBatchBytes }
	remove := func(tenant *tenantQueue, from *[]*pending) {
		p := (*from)[0]
		(*from)[0] = nil
		*from = (*from)[1:]
		held := p.operation.size()
		size += held
		tenant.bytes -= held
		taken = append(taken, p)
	}
	for _, tenant := range q.ring {
		for range min(len(tenant.stops), maxStops) {
			if !full() {
				remove(tenant, &tenant.stops)
			}
		}
	}
	last := 0 // whose turn it was last
	for round := 0; !full(); round++ {
		before := len(taken)
		for i, tenant := range q.ring {
			if full() {
				break
			}
			if len(tenant.others) > 0 && round < q.share(tenant.org) {
				remove(tenant, &tenant.others)
				last = i
			}
		}
		if len(taken) == before {
			break
		}
	}
	q.length -= len(taken)
	q.bytes -= size
	q.turn(last)
	slices.SortFunc(taken, func(a, b *pending) int { return cmp.Compare(a.number, b.number) })
	return taken
}

// share is how many operations of an organization a batch may hold.
func (q *writeQueue) share(org ledger.OrgID) int {
	if took := q.slow[org]; took > 0 {
		return max(int(maxPlanning/took), 1)
	}
	return maxBatch
}

// turn drops the organizations of which nothing waits, and has the next batch begin
// behind the one whose turn it was last.
func (q *writeQueue) turn(last int) {
	if len(q.ring) == 0 {
		return
	}
	next := (last + 1) % len(q.ring)
	ring := make([]*tenantQueue, 0, len(q.ring))
	for i := range q.ring {
		tenant := q.ring[(next+i)%len(q.ring)]
		if len(tenant.stops)+len(tenant.others) == 0 {
			delete(q.tenants, tenant.org)
			continue
		}
		ring = append(ring, tenant)
	}
	q.ring = ring
}

// planned learns how long planning took, of each organization on average: a pause of
// the whole process must not count as one operation's.
func (q *writeQueue) planned(batch []*pending, times []time.Duration) {
	type sum struct {
		operations int
		took       time.Duration
	}
	sums := make(map[ledger.OrgID]sum, 1)
	for i, p := range batch {
		org := p.operation.tenant()
		known := sums[org]
		sums[org] = sum{known.operations + 1, known.took + times[i]}
	}
	for org, s := range sums {
		known := q.slow[org]
		average := (3*known + s.took/time.Duration(s.operations)) / 4
		switch {
		case average < q.slowness:
			delete(q.slow, org)
		case known > 0 || len(q.slow) < maxSlow:
			q.slow[org] = average
		}
	}
}
