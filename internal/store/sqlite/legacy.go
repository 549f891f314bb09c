package sqlite

import (
	"context"

	"countersign/internal/store"
)

// AddLegacyUses implements store.LegacyUses.
func (s *Store) AddLegacyUses(ctx context.Context, uses map[store.LegacyUseRef]int64) error {
	if len(uses) == 0 {
		return nil
	}
	return s.writing(ctx, func(tx *transaction) error {
		for use, requests := range uses {
			err := tx.exec(`INSERT INTO legacy_uses (org_id, day, route, requests) VALUES (?, ?, ?, ?)
				ON CONFLICT (org_id, day, route) DO UPDATE SET requests = requests + min(excluded.requests, 9007199254740992 - requests)`,
				use.Org.UUID[:], int64(use.Day), use.Route, requests)
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// LegacyUses implements store.LegacyUses.
func (s *Store) LegacyUses(ctx context.Context, query store.LegacyUseQuery) ([]*store.LegacyUse, error) {
	sql, args := "SELECT org_id, day, route, requests FROM legacy_uses WHERE day >= ?", []any{int64(query.Since)}
	if query.Org != nil {
		sql, args = sql+" AND org_id = ?", append(args, query.Org.UUID[:])
	}
	if after := query.After; after != nil {
		sql, args = sql+" AND (org_id, day, route) > (?, ?, ?)", append(args, after.Org.UUID[:], int64(after.Day), after.Route)
	}
	return readAll(ctx, s, sql+" ORDER BY org_id, day, route LIMIT ?", append(args, int64(query.Limit)), scanLegacyUse)
}

func scanLegacyUse(rows row) (*store.LegacyUse, error) {
	var org []byte
	use := new(store.LegacyUse)
	err := rows.Scan(&org, (*int64)(&use.Day), &use.Route, &use.Requests)
	copy(use.Org.UUID[:], org)
	return use, err
}
