package worker_test

import (
	"context"
	"testing"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/servicetest"
	"countersign/internal/store"
	"countersign/internal/verify"
)

// Running workers seal an abandoned chain once, whichever of them is first, and keep looking. A
// chain that its client polls stays open.
//
//countersign:race
func TestWorkersSealAbandonedChains(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() store.Store) {
		w := newWorld(t, open())
		if _, err := w.service.UpdateOrganization(t.Context(), w.admin, parse(t, `{"abandon_after_hours":2}`)); err != nil {
			t.Fatal(err)
		}
		begin := func(name string) ledger.ChainID {
			request, err := ledger.ParseChainRequest(parse(t, `{"name":"`+name+`"}`))
			if err != nil {
				t.Fatal(err)
			}
			chain, err := w.service.OpenChain(t.Context(), w.agent, request, "")
			if err != nil {
				t.Fatal(err)
			}
			return chain.ID
		}
		ticks := make(chan time.Time)
		for range 2 {
			running := w.worker(w.serve(w.store), nil, ticks)
			running.Start()
			t.Cleanup(func() { running.Stop(context.WithoutCancel(t.Context())) })
		}
		// The worker that answers polls also records them.
		polling := w.worker(w.service, nil, ticks)
		polling.Start()
		defer polling.Stop(t.Context())

		status := func(id ledger.ChainID) ledger.ChainStatus {
			record, err := w.store.Chain(t.Context(), id)
			if err != nil {
				t.Error(err)
				return ""
			}
			return record.Status
		}
		polled := begin("polled")
		for round := range 3 {
			quiet := begin("quiet")
			for range 10 {
				w.clock.Advance(15 * time.Minute)
				if _, err := w.service.Chain(t.Context(), w.agent, polled); err != nil {
					t.Fatal(err)
				}
				if err := w.service.FlushPolls(t.Context()); err != nil {
					t.Fatal(err)
				}
				for range 6 {
					ticks <- w.clock.Now()
				}
			}
			servicetest.Eventually(t, "the quiet chain is sealed", func() bool {
				w.clock.Advance(20 * time.Second) // makes the next job due, in minutes
				select {
				case ticks <- w.clock.Now():
				case <-t.Context().Done():
				}
				return status(quiet) == ledger.ChainFailed
			})
			if got := status(polled); got != ledger.ChainActive {
				t.Fatalf("round %d: the polled chain is %s", round, got)
			}
		}
		report, err := w.service.Operator().Audit(t.Context(), "acme", verify.AuditOptions{})
		if err != nil || report.Status != verify.AuditIntact || report.Receipts != 3 {
			t.Errorf("audit: %v, %v", report, err)
		}
	})
}
