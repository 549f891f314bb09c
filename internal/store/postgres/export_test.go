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
