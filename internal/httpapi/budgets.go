package httpapi

import (
	"countersign/internal/canon"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

func listBudgets(x *exchange) error {
	q := x.query()
	limit := q.limit()
	after, _ := q.idCursor(budgetCursor)
	if err := q.err(); err != nil {
		return err
	}
	uses, err := x.api.service.Budgets(x.r.Context(), x.caller, ledger.CounterID{UUID: after}, limit)
	if err != nil {
		return err
	}
	cursor := func(u *service.BudgetUse) string { return encodeIDCursor(budgetCursor, u.Counter.UUID) }
	return list(x, uses, limit, cursor, appendBudgetUse)
}

func appendBudgetUse(dst []byte, u *service.BudgetUse) []byte {
	w := canon.BeginObject(dst)
	w.String("name", u.Budget.Name)
	w.String("counter", u.Counter.String())
	if u.Tampered {
		w.String("status", "tampered")
		return w.End()
	}
	w.String("scope", string(u.Budget.Scope))
	w.StringOrNull("value", u.Value)
	if u.Key == nil {
		w.Null("key_id")
	} else {
		w.String("key_id", u.Key.String())
	}
	w.String("window", string(u.Budget.Window))
	w.String("window_start", u.Start.String())
	w.String("window_end", u.End.String())
	w.String("measure", string(u.Budget.Measure()))
	w.Number("limit", u.Budget.Limit().Float())
	w.Number("used", u.Spent.Add(u.Waiting).Float())
	w.Number("waiting", u.Waiting.Float())
	w.Number("left", u.Left.Float())
	w.String("decision", string(u.Budget.Decision))
	return w.End()
}
