package service_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/store"
	"countersign/internal/testdb"
	"countersign/internal/verify"
)

// Many clients of three organizations work concurrently, on two replicas if the store allows
// several, in their own chains and in a shared one. A concurrent auditor never sees a break.
//
//countersign:race
func TestManyClientsAtOnce(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		ring, _ := servicetest.NewRing(t)
		first := db.Open(t)
		handles := []store.Store{first, first}
		committers := 1
		if db.Kind == "postgres" {
			handles[1], committers = db.Open(t), 3
		}
		clock := ticking()
		var replicas []*service.Service
		for _, handle := range handles {
			replicas = append(replicas, serve(t, service.Config{Store: handle, Keys: ring, Clock: clock, Committers: committers}))
		}
		const clients, chains, events = 4, 3, 3 // each client's, in each organization
		var crowd sync.WaitGroup
		var tenants []*tenant
		for _, slug := range []string{"one", "two", "three"} {
			who := newTenant(t, replicas[0], slug)
			tenants = append(tenants, who)
			shared := must[*service.ChainView](t)(replicas[0].OpenChain(t.Context(), who.admin, chainNamed(t, "shared"), ""))
			for client := range clients {
				s := replicas[client%len(replicas)]
				crowd.Go(func() {
					for i := range chains {
						name := fmt.Sprintf("chain-%d-%d", client, i)
						if err := workOnce(t, s, who, name, shared.ID, events); err != nil {
							t.Errorf("%s of %s: %v", name, who.slug, err)
						}
					}
				})
			}
			// The shared chain is completed by all of them at the same time.
			crowd.Go(func() {
				var finishers sync.WaitGroup
				for _, s := range replicas {
					finishers.Go(func() {
						if err := complete(context.Background(), s, who.admin, shared.ID); err != nil {
							t.Error(err)
						}
					})
				}
				finishers.Wait()
			})
		}
		done := make(chan struct{})
		var auditor sync.WaitGroup
		auditor.Go(func() { auditWhile(t, replicas[1], tenants, done) })
		crowd.Wait()
		close(done)
		auditor.Wait()
		for _, who := range tenants {
			const receipts = clients*chains + 1
			checkIntact(t, replicas[0], who.slug, receipts)
			listed := must[[]*ledger.StoredReceipt](t)(replicas[1].Receipts(t.Context(), who.member, 0, 200))
			for i, receipt := range listed {
				if receipt.Sequence != int64(len(listed)-i) {
					t.Fatalf("receipt %d stands where %d belongs", receipt.Sequence, len(listed)-i)
				}
			}
		}
	})
}

// workOnce opens a chain, records events in it and in the shared one, and completes it.
func workOnce(t *testing.T, s *service.Service, who *tenant, name string, shared ledger.ChainID, events int) error {
	ctx := context.Background()
	chain, err := s.OpenChain(ctx, who.agent, chainNamed(t, name), name)
	if err != nil {
		return err
	}
	for i := range events {
		recorded, err := s.RecordEvent(ctx, who.agent, chain.ID, step(t, fmt.Sprint("step-", i), fmt.Sprint("key-", i)))
		if err != nil {
			return err
		}
		if recorded.Event.Sequence != int64(i+1) {
			return fmt.Errorf("event %d got the number %d", i+1, recorded.Event.Sequence)
		}
		if i == 0 {
			report := &ledger.Entry{Result: ledger.Succeeded}
			if _, err := s.ReportOutcome(ctx, who.agent, chain.ID, recorded.Event.ID, report); err != nil {
				return err
			}
		}
		// Somebody may have completed the shared chain already.
		if _, err := s.RecordEvent(ctx, who.admin, shared, step(t, name, "")); err != nil && codeOf(err) != fault.CodeChainSealed {
			return err
		}
	}
	return complete(ctx, s, who.agent, chain.ID)
}

func auditWhile(t *testing.T, s *service.Service, tenants []*tenant, done <-chan struct{}) {
	for {
		for _, who := range tenants {
			report, err := s.Operator().Audit(context.Background(), who.slug, verify.AuditOptions{})
			if err != nil {
				t.Errorf("audit of %s: %v", who.slug, err)
				return
			}
			if report.Status != verify.AuditIntact {
				t.Errorf("audit of %s while it is in use: %v", who.slug, report.Break)
				return
			}
		}
		select {
		case <-done:
			return
		default:
		}
	}
}

// The same request from many concurrent clients has one effect.
//
//countersign:race
func TestTheSameRequestAtOnce(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		ring, _ := servicetest.NewRing(t)
		first := db.Open(t)
		handles := []store.Store{first, first}
		if db.Kind == "postgres" {
			handles[1] = db.Open(t)
		}
		var replicas []*service.Service
		for _, handle := range handles {
			replicas = append(replicas, serve(t, service.Config{Store: handle, Keys: ring, Committers: 2}))
		}
		who := newTenant(t, replicas[0], "acme")
		var mu sync.Mutex
		seen := map[string]map[string]bool{"chain": {}, "event": {}, "receipt": {}}
		note := func(what, id string) {
			mu.Lock()
			defer mu.Unlock()
			seen[what][id] = true
		}
		var crowd sync.WaitGroup
		for i := range 10 {
			s := replicas[i%2]
			crowd.Go(func() {
				ctx := context.Background()
				chain, err := s.OpenChain(ctx, who.agent, chainNamed(t, "same"), "same")
				if err != nil {
					t.Error(err)
					return
				}
				note("chain", chain.ID.String())
				recorded, err := s.RecordEvent(ctx, who.agent, chain.ID, step(t, "same", "same"))
				if err != nil {
					t.Error(err)
					return
				}
				note("event", recorded.Event.ID.String())
				completed, err := s.CompleteChain(ctx, who.agent, chain.ID, &ledger.Completion{})
				if err != nil {
					t.Error(err)
					return
				}
				note("receipt", string(completed.Receipt))
			})
		}
		crowd.Wait()
		for what, ids := range seen {
			if len(ids) != 1 {
				t.Errorf("the same request made %d different answers about its %s", len(ids), what)
			}
		}
		checkIntact(t, replicas[0], "acme", 1)
	})
}
