package postgres_test

import (
	"bytes"
	"fmt"
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// BenchmarkTransact measures transactions that record one event in each of several chains.
func BenchmarkTransact(b *testing.B) {
	for _, width := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("chains=%d", width), func(b *testing.B) {
			s := open(b, newDatabase(b))
			who := newTenant(b, s)
			needs := &store.Needs{Orgs: []ledger.OrgID{who.org}, Keys: []ledger.KeyID{who.key}}
			var chains []*store.ChainRecord
			for range width {
				chain := who.newChain()
				chain.Body, chain.State, chain.MAC = bytes.Repeat([]byte("b"), 400), bytes.Repeat([]byte("s"), 500), bytes.Repeat([]byte("m"), 32)
				chains = append(chains, chain)
				needs.Chains = append(needs.Chains, chain.ID)
			}
			if err := insert(b.Context(), s, chains...); err != nil {
				b.Fatalf("insert: %v", err)
			}
			body, payload := bytes.Repeat([]byte("e"), 1000), bytes.Repeat([]byte("p"), 200)
			sequence := int64(0)
			for b.Loop() {
				sequence++
				err := s.Transact(b.Context(), needs, func(loaded *store.Loaded) (*store.Changes, error) {
					changes := new(store.Changes)
					for _, chain := range loaded.Chains {
						changes.States = append(changes.States, chain)
						changes.NewEvents = append(changes.NewEvents, &ledger.StoredEvent{
							Chain: chain.ID, Sequence: sequence, IdempotencyKey: fmt.Sprint("key-", sequence), Body: body, Payload: payload,
						})
					}
					return changes, nil
				})
				if err != nil {
					b.Fatalf("transact: %v", err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(sequence)/float64(width), "µs/event")
		})
	}
}
