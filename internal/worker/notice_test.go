package worker_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// closedBook is a store whose webhooks cannot be read for a while.
type closedBook struct {
	store.Store
	closed atomic.Bool
}

func (c *closedBook) Webhooks(ctx context.Context, org ledger.OrgID) ([]*store.WebhookRecord, error) {
	if c.closed.Load() {
		return nil, store.ErrUnavailable
	}
	return c.Store.Webhooks(ctx, org)
}

// A notice whose receivers cannot be read is retried for as long as a delivery is: it arrives when
// the fault is mended an hour later.
func TestNoticeWaitsForItsReceivers(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Store) {
		book := &closedBook{Store: open()}
		w := newWorld(t, book)
		r := w.receiver()
		worker := w.worker(w.service, nil, nil)
		w.ask()
		book.closed.Store(true)
		for range 60 {
			w.run(worker)
			w.clock.Advance(time.Minute)
		}
		w.queue(2, 0) // the notice and the deadline
		book.closed.Store(false)
		w.clock.Advance(2 * time.Hour)
		w.run(worker)
		if got := kindsOf(r.arrived(t)); got != "approval.requested" {
			t.Errorf("the receiver was told %q", got)
		}
	})
}
