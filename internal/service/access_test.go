package service_test

import (
	"context"
	"fmt"
	"testing"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/testdb"
)

// A request that was queued before its key was revoked is not recorded. From then on, every
// replica refuses the key.
//
//countersign:race
func TestRevokedKeyStopsInTheVeryTransaction(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		b := newBatching(t, db.Open(t))
		chain, _ := b.prepare(t)
		// A second replica revokes the key while requests of it wait in the queue.
		replica := serve(t, service.Config{Store: db.Open(t), Keys: b.ring})
		key := b.who.agentKey
		remembered := servicetest.Authenticate(t, b.Service, key)
		again := servicetest.Authenticate(t, b.Service, key) // from memory now
		actions := []*ledger.Action{step(t, "one", ""), step(t, "two", "")}
		release := b.hold(t)
		results := make(chan error, 2)
		for i, caller := range []*service.Caller{remembered, again} {
			go func() {
				_, err := b.RecordEvent(context.Background(), caller, chain, actions[i])
				results <- err
			}()
		}
		b.meter.await(2)
		if _, err := replica.RevokeAPIKey(t.Context(), b.who.admin, key.Record.ID); err != nil {
			t.Fatal(err)
		}
		release()
		for range 2 {
			checkCode(t, "queued before the key was revoked", <-results, fault.CodeUnauthenticated)
		}
		events := must[[]*service.EventView](t)(b.Events(t.Context(), b.who.member, chain, 0, 10))
		if len(events) != 0 {
			t.Errorf("%d events were recorded under a revoked key", len(events))
		}
		_, err := b.Chain(t.Context(), again, chain)
		checkCode(t, "reading", err, fault.CodeUnauthenticated)
		_, err = b.Authenticate(t.Context(), key.Text.Reveal())
		checkCode(t, "authenticating", err, fault.CodeUnauthenticated)
	})
}

// TestWhoSeesWhat calls every use case with every role, of the chain's own organization and of
// another.
func TestWhoSeesWhat(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		s := serve(t, service.Config{Store: db.Open(t)})
		own, foreign := newTenant(t, s, "own"), newTenant(t, s, "foreign")
		colleague := servicetest.Authenticate(t, s, newKey(t, s, "own", ledger.RoleAgent))
		ctx := t.Context()
		chain := must[*service.ChainView](t)(s.OpenChain(ctx, own.agent, chainNamed(t, "one"), ""))
		recorded := must[*service.Recorded](t)(s.RecordEvent(ctx, own.agent, chain.ID, step(t, "one", "")))
		sealed := must[*service.ChainView](t)(s.OpenChain(ctx, own.agent, chainNamed(t, "two"), ""))
		must[*service.Completed](t)(s.CompleteChain(ctx, own.agent, sealed.ID, &ledger.Completion{}))
		receipt := must[*ledger.StoredReceipt](t)(s.ReceiptOfChain(ctx, own.agent, sealed.ID))

		const none, notFound, forbidden = fault.Code(""), fault.CodeNotFound, fault.CodeForbidden
		callers := []*service.Caller{own.agent, colleague, own.member, own.admin, foreign.agent, foreign.admin}
		uses := []struct {
			name string
			use  func(*service.Caller) error
			want [6]fault.Code // in the order of callers
		}{
			{"chain", func(c *service.Caller) error { _, err := s.Chain(ctx, c, chain.ID); return err },
				[6]fault.Code{none, notFound, none, none, notFound, notFound}},
			{"events", func(c *service.Caller) error { _, err := s.Events(ctx, c, chain.ID, 0, 9); return err },
				[6]fault.Code{forbidden, forbidden, none, none, forbidden, notFound}},
			{"record", func(c *service.Caller) error {
				_, err := s.RecordEvent(ctx, c, chain.ID, step(t, "x", "x"))
				return err
			}, [6]fault.Code{none, notFound, none, none, notFound, notFound}},
			{"outcome", func(c *service.Caller) error {
				_, err := s.ReportOutcome(ctx, c, chain.ID, recorded.Event.ID, &ledger.Entry{Result: ledger.Succeeded})
				return err
			}, [6]fault.Code{none, notFound, none, none, notFound, notFound}},
			{"receipt of chain", func(c *service.Caller) error { _, err := s.ReceiptOfChain(ctx, c, sealed.ID); return err },
				[6]fault.Code{none, notFound, none, none, notFound, notFound}},
			{"receipt", func(c *service.Caller) error { _, err := s.Receipt(ctx, c, receipt.ID); return err },
				[6]fault.Code{forbidden, forbidden, none, none, forbidden, notFound}},
			{"receipts", func(c *service.Caller) error { _, err := s.Receipts(ctx, c, 0, 9); return err },
				[6]fault.Code{forbidden, forbidden, none, none, forbidden, none}},
			{"organization", func(c *service.Caller) error { _, err := s.Organization(ctx, c); return err },
				[6]fault.Code{forbidden, forbidden, none, none, forbidden, none}},
			{"keys", func(c *service.Caller) error { _, err := s.APIKeys(ctx, c, ledger.KeyID{}, 9); return err },
				[6]fault.Code{forbidden, forbidden, forbidden, none, forbidden, none}},
			{"create key", func(c *service.Caller) error {
				_, err := s.CreateAPIKey(ctx, c, &service.KeyRequest{Role: ledger.RoleAgent})
				return err
			}, [6]fault.Code{forbidden, forbidden, forbidden, none, forbidden, none}},
			{"revoke key", func(c *service.Caller) error { _, err := s.RevokeAPIKey(ctx, c, colleague.Key); return err },
				[6]fault.Code{forbidden, forbidden, forbidden, none, forbidden, notFound}},
		}
		for _, u := range uses {
			for i, caller := range callers {
				checkCode(t, fmt.Sprintf("%s by caller %d", u.name, i), u.use(caller), u.want[i])
			}
		}
		checkCode(t, "complete by a stranger", complete(ctx, s, foreign.admin, chain.ID), notFound)
		checkCode(t, "complete", complete(ctx, s, own.agent, chain.ID), none)
	})
}

func complete(ctx context.Context, s *service.Service, caller *service.Caller, id ledger.ChainID) error {
	_, err := s.CompleteChain(ctx, caller, id, &ledger.Completion{})
	return err
}

// An agent lists only the chains that its own key opened; members and admins list all chains of
// their organization.
func TestAgentsListTheirOwnChains(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		s := serve(t, service.Config{Store: db.Open(t)})
		who, other := newTenant(t, s, "acme"), newTenant(t, s, "other")
		colleague := servicetest.Authenticate(t, s, newKey(t, s, "acme", ledger.RoleAgent))
		for i, caller := range []*service.Caller{who.agent, colleague, colleague, other.agent} {
			must[*service.ChainView](t)(s.OpenChain(t.Context(), caller, chainNamed(t, fmt.Sprint("chain-", i)), ""))
		}
		for caller, want := range map[*service.Caller]int{who.agent: 1, colleague: 2, who.member: 3, who.admin: 3, other.member: 1} {
			chains := must[[]*service.ChainView](t)(s.Chains(t.Context(), caller, service.ChainFilter{Limit: 100}))
			if len(chains) != want {
				t.Errorf("a caller of role %s sees %d chains, want %d", caller.Role, len(chains), want)
			}
		}
	})
}

// The idempotency keys of opened chains are separate for each API key: another agent with the same
// one opens its own chain, and learns nothing about the first.
func TestIdempotencyKeysAreNotShared(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		s := serve(t, service.Config{Store: db.Open(t)})
		who, other := newTenant(t, s, "acme"), newTenant(t, s, "other")
		colleague := servicetest.Authenticate(t, s, newKey(t, s, "acme", ledger.RoleAgent))
		open := func(caller *service.Caller, name string) (*service.ChainView, error) {
			return s.OpenChain(t.Context(), caller, chainNamed(t, name), "same")
		}
		first := must[*service.ChainView](t)(open(who.agent, "one"))
		if again := must[*service.ChainView](t)(open(who.agent, "one")); again.ID != first.ID {
			t.Error("the same request opened a second chain")
		}
		_, err := open(who.agent, "two")
		checkCode(t, "other content", err, fault.CodeIdempotencyConflict)
		for _, caller := range []*service.Caller{colleague, who.admin, other.agent} {
			if theirs := must[*service.ChainView](t)(open(caller, "one")); theirs.ID == first.ID {
				t.Errorf("the key %q of %s shares an idempotency key", caller.Name, caller.Org)
			}
		}
	})
}
