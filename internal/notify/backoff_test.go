package notify

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Retries wait from five seconds up to a day, for ten attempts in all.
func TestBackoffFollowsTheSchedule(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		attempt int
		random  float64
		want    time.Duration
	}{
		{1, 0, 5 * time.Second},
		{2, 0, 5 * time.Minute},
		{3, 0, 30 * time.Minute},
		{4, 0, 2 * time.Hour},
		{5, 0, 5 * time.Hour},
		{6, 0, 10 * time.Hour},
		{7, 0, 14 * time.Hour},
		{8, 0, 20 * time.Hour},
		{9, 0, 24 * time.Hour},
		{10, 0, 24 * time.Hour},
		{math.MaxInt, 0, 24 * time.Hour},
		{0, 0, 5 * time.Second},
		{math.MinInt, 0, 5 * time.Second},
		{1, 0.5, 5500 * time.Millisecond},
		{9, 1, 24*time.Hour + 288*time.Minute},
		{1, 7, 6 * time.Second},
		{1, -7, 5 * time.Second},
		{1, math.NaN(), 5 * time.Second},
	} {
		if got := Backoff(c.attempt, c.random); got != c.want {
			t.Errorf("Backoff(%d, %v) = %v, want %v", c.attempt, c.random, got, c.want)
		}
	}
	if MaxAttempts != 10 {
		t.Errorf("MaxAttempts = %d, want the first attempt and nine more", MaxAttempts)
	}
}

// The random part of a wait adds at most a fifth to it.
func TestBackoffStaysWithinItsJitter(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		attempt := rapid.IntRange(1, MaxAttempts-1).Draw(t, "attempt")
		random := rapid.Float64Range(0, 1).Draw(t, "random")
		plain, got := Backoff(attempt, 0), Backoff(attempt, random)
		if got < plain || got > plain+plain/5 {
			t.Fatalf("%v is not within a fifth above %v", got, plain)
		}
	})
}
