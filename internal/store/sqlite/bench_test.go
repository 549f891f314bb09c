package sqlite_test

import (
	"bytes"
	"fmt"
	"path/filepath"
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/store/sqlite"
)

func openEmpty(b *testing.B) *sqlite.Store {
	b.Helper()
	s, err := sqlite.Open(b.Context(), filepath.Join(b.TempDir(), "test.db"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close() })
	if err := s.Migrate(b.Context()); err != nil {
		b.Fatal(err)
	}
	return s
}

func write(b *testing.B, s store.Store, changes *store.Changes) {
	b.Helper()
	err := s.Transact(b.Context(), new(store.Needs), func(*store.Loaded) (*store.Changes, error) { return changes, nil })
	if err != nil {
		b.Fatal(err)
	}
}

// BenchmarkTransact measures transactions that record one event in each of
// several chains.
func BenchmarkTransact(b *testing.B) {
	for _, width := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("chains=%d", width), func(b *testing.B) {
			s := openEmpty(b)
			org := &ledger.Organization{ID: ledger.OrgID{UUID: id(0)}, Slug: "acme", Settings: ledger.DefaultSettings()}
			if err := s.CreateOrganization(b.Context(), org, &ledger.Head{Org: org.ID, MAC: []byte{}}, nil); err != nil {
				b.Fatal(err)
			}
			needs := &store.Needs{Orgs: []ledger.OrgID{org.ID}}
			changes := new(store.Changes)
			for i := range width {
				chain := &store.ChainRecord{
					ID: ledger.ChainID{UUID: id(i)}, Org: org.ID, Environment: "production", Status: ledger.ChainActive,
					Body: bytes.Repeat([]byte("b"), 400), State: bytes.Repeat([]byte("s"), 500), MAC: bytes.Repeat([]byte("m"), 32),
				}
				changes.NewChains = append(changes.NewChains, chain)
				needs.Chains = append(needs.Chains, chain.ID)
			}
			write(b, s, changes)
			body, payload, mac := bytes.Repeat([]byte("e"), 1000), bytes.Repeat([]byte("p"), 200), bytes.Repeat([]byte("a"), 40)
			sequence := int64(0)
			for b.Loop() {
				sequence++
				err := s.Transact(b.Context(), needs, func(loaded *store.Loaded) (*store.Changes, error) {
					changes := new(store.Changes)
					for _, chain := range loaded.Chains {
						changes.States = append(changes.States, chain)
						changes.NewEvents = append(changes.NewEvents, &ledger.StoredEvent{
							Chain: chain.ID, Sequence: sequence, IdempotencyKey: fmt.Sprint("key-", sequence), Body: body, Payload: payload, MAC: mac,
						})
					}
					return changes, nil
				})
				if err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(sequence)/float64(width), "µs/event")
		})
	}
}

func id(n int) (id [16]byte) {
	id[14], id[15] = byte(n>>8), byte(n)
	return id
}

// BenchmarkClaimJobs claims and finishes one job while 100,000 others wait: each for a
// moment of its own, all behind a job that blocks their stream, or all due.
func BenchmarkClaimJobs(b *testing.B) {
	const waiting, now, later = 100_000, 1_000_000, 2_000_000
	for name, other := range map[string]func(i int) *store.Job{
		"later":      func(i int) *store.Job { return &store.Job{Stream: fmt.Sprint(i), RunAt: later} },
		"one stream": func(int) *store.Job { return &store.Job{Stream: "endpoint", RunAt: now - 1} },
		"due":        func(i int) *store.Job { return &store.Job{Stream: fmt.Sprint(i), RunAt: now - 1} },
	} {
		b.Run(name, func(b *testing.B) {
			s := openEmpty(b)
			changes := new(store.Changes)
			for i := range waiting {
				changes.NewJobs = append(changes.NewJobs, other(i))
			}
			write(b, s, changes)
			if name == "one stream" { // its first is claimed, and the others wait
				if _, err := s.ClaimJobs(b.Context(), now, later, map[string]int{"": 1}); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				write(b, s, &store.Changes{NewJobs: []*store.Job{{Kind: "wanted", RunAt: now}}})
				jobs, err := s.ClaimJobs(b.Context(), now, later, map[string]int{"wanted": 1})
				if err != nil || len(jobs) != 1 {
					b.Fatalf("%d jobs, %v", len(jobs), err)
				}
				if err := s.FinishJob(b.Context(), jobs[0], nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkEvents reads a page of a chain's events.
func BenchmarkEvents(b *testing.B) {
	for _, length := range []int{1, 100} {
		b.Run(fmt.Sprintf("events=%d", length), func(b *testing.B) {
			s := openEmpty(b)
			org := &ledger.Organization{ID: ledger.OrgID{UUID: id(0)}, Slug: "acme", Settings: ledger.DefaultSettings()}
			if err := s.CreateOrganization(b.Context(), org, &ledger.Head{Org: org.ID, MAC: []byte{}}, nil); err != nil {
				b.Fatal(err)
			}
			chain := &store.ChainRecord{ID: ledger.ChainID{UUID: id(1)}, Org: org.ID, Environment: "production", Status: ledger.ChainActive, Body: []byte("b"), State: []byte("s"), MAC: []byte("m")}
			changes := &store.Changes{NewChains: []*store.ChainRecord{chain}}
			for n := range length {
				changes.NewEvents = append(changes.NewEvents, &ledger.StoredEvent{Chain: chain.ID, Sequence: int64(n + 1), Body: bytes.Repeat([]byte("e"), 1000), Payload: []byte("p"), MAC: []byte("m")})
			}
			write(b, s, changes)
			for b.Loop() {
				events, err := s.Events(b.Context(), chain.ID, 0, 200)
				if err != nil || len(events) != length {
					b.Fatalf("%d events, %v", len(events), err)
				}
			}
		})
	}
}
