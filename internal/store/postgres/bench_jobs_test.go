package postgres_test

import (
	"slices"
	"testing"
	"time"

	"countersign/internal/store"
)

// BenchmarkClaimJobs measures claiming and finishing ten jobs among 100,000 others.
func BenchmarkClaimJobs(b *testing.B) {
	const now, later = 1000, 2000
	for name, others := range map[string]string{
		"that are due later":      `select gen_random_uuid(), 'later', '', 1500, '' from generate_series(1, 100000)`,
		"that are due":            `select gen_random_uuid(), 'due', '', 500, '' from generate_series(1, 100000)`,
		"of a stream held up":     `select gen_random_uuid(), 'held', 'stream', 500, '' from generate_series(1, 100000)`,
		"of streams of their own": `select gen_random_uuid(), 'own', 'stream ' || n, 500, '' from generate_series(1, 100000) n`,
	} {
		b.Run(name, func(b *testing.B) {
			address := newDatabase(b)
			s := open(b, address)
			administer(b, address, "insert into jobs (org_id, kind, stream, run_at, body) "+others)
			if _, err := s.ClaimJobs(b.Context(), now, later, map[string]int{"held": 1}); err != nil {
				b.Fatalf("claim: %v", err)
			}
			var claims []time.Duration
			for b.Loop() {
				changes := &store.Changes{NewJobs: make([]*store.Job, 10)}
				for i := range changes.NewJobs {
					changes.NewJobs[i] = &store.Job{Kind: "wanted", RunAt: now}
				}
				err := s.Transact(b.Context(), &store.Needs{}, func(*store.Loaded) (*store.Changes, error) { return changes, nil })
				if err != nil {
					b.Fatalf("transact: %v", err)
				}
				began := time.Now()
				claimed, err := s.ClaimJobs(b.Context(), now, later, map[string]int{"wanted": 10})
				claims = append(claims, time.Since(began))
				if err != nil || len(claimed) != 10 {
					b.Fatalf("%d jobs were claimed, error %v", len(claimed), err)
				}
				for _, job := range claimed {
					if err := s.FinishJob(b.Context(), job, nil); err != nil {
						b.Fatalf("finish: %v", err)
					}
				}
			}
			slices.Sort(claims)
			b.ReportMetric(float64(claims[len(claims)/2].Microseconds()), "µs/claim-p50")
			b.ReportMetric(float64(claims[len(claims)-1].Microseconds()), "µs/claim-max")
		})
	}
}
