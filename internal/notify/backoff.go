package notify

import "time"

// schedule is the one that Standard Webhooks recommends. It lasts a little more than three days, so
// that a receiver that breaks on a Friday evening can be fixed on Monday.
var schedule = [...]time.Duration{
	5 * time.Second, 5 * time.Minute, 30 * time.Minute,
	2 * time.Hour, 5 * time.Hour, 10 * time.Hour, 14 * time.Hour, 20 * time.Hour, 24 * time.Hour,
}

// MaxAttempts is how often a notification is attempted before it counts as failed.
const MaxAttempts = len(schedule) + 1

// jitter spreads attempts over this share of the wait, so that deliveries that failed together are
// not retried together.
const jitter = 0.2

// Backoff returns how long to wait after an attempt (the first is 1) has failed. random is in [0,
// 1) and makes the wait up to a fifth longer, never shorter.
func Backoff(attempt int, random float64) time.Duration {
	wait := schedule[min(max(attempt, 1), len(schedule))-1]
	if !(random > 0) { // also handles NaN
		return wait
	}
	return wait + time.Duration(float64(wait)*jitter*min(random, 1))
}
