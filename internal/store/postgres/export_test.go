package postgres

import (
	"context"
	"time"
)

// Setting reads a setting of one of the store's sessions.
func (s *Store) Setting(ctx context.Context, name string) (value string, err error) {
	err = s.queryRow(ctx, "setting", "select current_setting($1)", []any{name}, &value)
	return value, err
}

// SetSilence sets how long a watcher may receive nothing before it pings the server.
func (s *Store) SetSilence(silence time.Duration) { s.silence = silence }

// PendingCommits returns the number of unanswered commits.
func (s *Store) PendingCommits() int64 { return s.pending.Load() }

// AddPendingCommits pretends that there are more.
func (s *Store) AddPendingCommits(n int64) { s.pending.Add(n) }

// Resets returns the time of the last reset of the pool, or 0.
func (s *Store) Resets() int64 { return s.lastReset.Load() }
