package sqlite

import (
	"context"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

const (
	counterColumns = "id, org_id, budget, window_start, value, body, mac"
	selectCounters = "SELECT " + counterColumns + " FROM budget_counters "
)

func scanCounter(r row) (*store.CounterRecord, error) {
	c := new(store.CounterRecord)
	return c, r.Scan(&c.ID.UUID, &c.Org.UUID, &c.Budget, (*int64)(&c.Start), &c.Value, &c.Body, &c.MAC)
}

// BudgetCounters implements store.Budgets.
func (s *Store) BudgetCounters(ctx context.Context, ids []ledger.CounterID) (map[ledger.CounterID]*store.CounterRecord, error) {
	found := make(map[ledger.CounterID]*store.CounterRecord, len(ids))
	err := batches(ids, func(padded []ledger.CounterID) error {
		args := make([]any, 0, len(padded))
		for i := range padded {
			args = append(args, padded[i].UUID[:])
		}
		counters, err := readAll(ctx, s, selectCounters+"WHERE id IN ("+placeholders(len(padded), "?")+")", args, scanCounter)
		for _, c := range counters {
			found[c.ID] = c
		}
		return err
	})
	return found, err
}

// CountersOf implements store.Budgets.
func (s *Store) CountersOf(ctx context.Context, q store.CounterQuery) ([]*store.CounterRecord, error) {
	return readAll(ctx, s, selectCounters+"WHERE org_id = ? AND budget = ? AND window_start = ? AND (value, id) > (?, ?) ORDER BY value, id LIMIT ?",
		[]any{q.Org.UUID[:], q.Budget, int64(q.Start), q.After.Value, q.After.ID.UUID[:], int64(q.Limit)}, scanCounter)
}

// AllCounters implements store.Budgets.
func (s *Store) AllCounters(ctx context.Context, org ledger.OrgID, after ledger.CounterID, limit int) ([]*store.CounterRecord, error) {
	return readAll(ctx, s, selectCounters+"WHERE org_id = ? AND id "+above(after.UUID)+" ? ORDER BY id LIMIT ?", []any{org.UUID[:], after.UUID[:], int64(limit)}, scanCounter)
}

func (tx *transaction) loadCounters(needs *store.Needs, loaded *store.Loaded) error {
	return loadEach(tx, needs.Counters, loaded.Counters, selectCounters+"WHERE id = ?",
		func(id *ledger.CounterID) []any { return []any{id.UUID[:]} }, scanCounter)
}

func (tx *transaction) insertCounter(c *store.CounterRecord) error {
	return tx.exec("INSERT INTO budget_counters ("+counterColumns+") VALUES (?, ?, ?, ?, ?, ?, ?)",
		c.ID.UUID[:], c.Org.UUID[:], c.Budget, int64(c.Start), c.Value, orEmpty(c.Body), orEmpty(c.MAC))
}

func (tx *transaction) updateCounter(c *store.CounterRecord) error {
	return tx.change("UPDATE budget_counters SET body = ?, mac = ? WHERE id = ?", orEmpty(c.Body), orEmpty(c.MAC), c.ID.UUID[:])
}
