package postgres

import "context"

// Setting reads a setting of one of the store's own sessions.
func (s *Store) Setting(ctx context.Context, name string) (value string, err error) {
	err = s.queryRow(ctx, "setting", "select current_setting($1)", []any{name}, &value)
	return value, err
}
