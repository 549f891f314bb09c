package service_test

import (
	"context"
	"slices"
	"testing"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/testdb"
)

// An operation that panics gets an internal error. The others of its batch are committed as if it
// had never been among them, and the service continues.
//
//countersign:race
func TestPanickingOperationFailsAlone(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		b := newBatching(t, db.Open(t))
		chain, _ := b.prepare(t)
		record := func(name string) func(context.Context) error {
			action := step(t, name, name)
			return func(ctx context.Context) error {
				_, err := b.RecordEvent(ctx, b.who.agent, chain, action)
				return err
			}
		}
		b.inOneBatch(t, []planned{
			{"before", record("before"), ""},
			{"panics", b.CommitPanicking, fault.CodeInternal},
			{"between", record("between"), ""},
			{"panics again", b.CommitPanicking, fault.CodeInternal},
			{"complete", func(ctx context.Context) error {
				_, err := b.CompleteChain(ctx, b.who.agent, chain, &ledger.Completion{})
				return err
			}, ""},
		})
		events := must[[]*service.EventView](t)(b.Events(t.Context(), b.who.member, chain, 0, 200))
		var names []string
		for _, event := range events {
			names = append(names, event.IdempotencyKey)
		}
		if want := []string{"before", "between"}; !slices.Equal(names, want) {
			t.Errorf("recorded %q, want %q", names, want)
		}
		checkIntact(t, b.Service, b.who.slug, 2)
	})
}

// A panic in an operation fails that operation alone and leaves the committers working.
func TestServiceOutlivesALonePanic(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		s := serve(t, service.Config{Store: db.Open(t)})
		who := newTenant(t, s, "acme")
		for range 3 { // more than there are committers
			checkCode(t, "panics", s.CommitPanicking(t.Context()), fault.CodeInternal)
		}
		must[*service.ChainView](t)(s.OpenChain(t.Context(), who.agent, chainNamed(t, "after"), ""))
	})
}
