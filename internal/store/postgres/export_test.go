package postgres

import (
	"context"
	"time"
)

// Setting reads a setting of one of the store's own sessions.
func (s *Store) Setting(ctx context.Context, name string) (value string, err error) {
	err = s.queryRow(ctx, "setting", "select current_setting($1)", []any{name}, &value)
	return value, err
}

// SetSilence sets how long a watcher hears nothing before it makes sure that its
// connection lives.
func (s *Store) SetSilence(silence time.Duration) { s.silence = silence }

// PendingCommits is how many commits were not answered in time and are waited for.
func (s *Store) PendingCommits() int64 { return s.pending.Load() }

// AddPendingCommits pretends that there are more.
func (s *Store) AddPendingCommits(n int64) { s.pending.Add(n) }

// Resets tells whether, and when, all connections were made anew.
func (s *Store) Resets() int64 { return s.lastReset.Load() }
