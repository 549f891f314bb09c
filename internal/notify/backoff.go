package notify

import "time"

// schedule is the one that Standard Webhooks recommends: three days and a
// bit, so that a receiver that breaks on a Friday evening can be mended on
// Monday.
var schedule = [...]time.Duration{
	5 * time.Second, 5 * time.Minute, 30 * time.Minute,
	2 * time.Hour, 5 * time.Hour, 10 * time.Hour, 14 * time.Hour, 20 * time.Hour, 24 * time.Hour,
}

// MaxAttempts is how often a notification is tried before it counts as failed.
const MaxAttempts = len(schedule) + 1

// jitter spreads attempts over this share of the wait, so that what failed
// together does not come back together.
const jitter = 0.2

// Backoff is how long to wait once attempt (the first is 1) has failed. random is
// in [0, 1) and makes the wait up to a fifth longer, never shorter.
func Backoff(attempt int, random float64) time.Duration {
	wait := schedule[min(max(attempt, 1), len(schedule))-1]
	if !(random > 0) { // also what is not a number
		return wait
	}
	return wait + time.Duration(float64(wait)*jitter*min(random, 1))
}
