package service

import (
	"context"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// BudgetUse is where a budget stands in the window of now, for one member of its scope.
type BudgetUse struct {
	Budget  *ledger.Budget
	Counter ledger.CounterID
	// Value is the environment, the agent's name as it was spelt first, or the key's name;
	// "" for the organization. Key is the id of the key, nil in any other scope.
	Value                string
	Key                  *ledger.KeyID
	Spent, Waiting, Left ledger.Money
	Start, End           ledger.Time
	// Tampered says that the stored counter fails. Then its id and its budget are all that
	// is told.
	Tampered bool
}

// Budgets lists what is used of each budget in the window of now: by budget in the order of
// the settings, then by the folded name of the member. A member of whom nothing was counted
// is left out; the organization never is. It goes on after the given counter.
func (s *Service) Budgets(ctx context.Context, caller *Caller, after ledger.CounterID, limit int) ([]*BudgetUse, error) {
	if err := s.authorize(ctx, caller, ledger.RoleMember); err != nil {
		return nil, err
	}
	org, err := s.organization(ctx, caller.Org)
	if err != nil {
		return nil, err
	}
	l := &budgetList{service: s, org: org, now: s.now(), limit: limit}
	if after != (ledger.CounterID{}) {
		if err := l.resume(ctx, after); err != nil {
			return nil, visible(err)
		}
	}
	for ; l.at < len(org.Settings.Budgets) && len(l.found) < limit; l.at++ {
		if err := l.list(ctx, &org.Settings.Budgets[l.at]); err != nil {
			return nil, visible(err)
		}
		l.after = store.CounterAt{}
	}
	return l.found, nil
}

type budgetList struct {
	service *Service
	org     *ledger.Organization
	now     ledger.Time
	limit   int
	at      int             // the budget to go on with
	after   store.CounterAt // the place in it
	found   []*BudgetUse
}

// wholeKey is the counter of a budget of the whole organization.
func (l *budgetList) wholeKey(b *ledger.Budget) ledger.CounterKey {
	start, _ := b.Window.Span(l.now)
	return ledger.CounterKey{Org: l.org.ID, Budget: b.Name, Scope: b.Scope, Measure: b.Measure(), Window: b.Window, Start: start}
}

// resume finds the place of a counter. One that there is not any more ends the list.
func (l *budgetList) resume(ctx context.Context, after ledger.CounterID) error {
	records, err := l.service.store.BudgetCounters(ctx, []ledger.CounterID{after})
	if err != nil {
		return err
	}
	record := records[after]
	for l.at = range l.org.Settings.Budgets {
		b := &l.org.Settings.Budgets[l.at]
		whole := l.wholeKey(b)
		if b.Scope == ledger.ScopeOrganization && whole.ID() == after {
			l.at++
			return nil
		}
		if record != nil && record.Org == l.org.ID && record.Budget == b.Name {
			l.after = store.CounterAt{Value: record.Value, ID: record.ID}
			return nil
		}
	}
	l.at = len(l.org.Settings.Budgets)
	return nil
}

func (l *budgetList) list(ctx context.Context, b *ledger.Budget) error {
	start, end := b.Window.Span(l.now)
	query := store.CounterQuery{Org: l.org.ID, Budget: b.Name, Start: start, After: l.after}
	before := len(l.found)
	for len(l.found) < l.limit {
		query.Limit = l.limit - len(l.found)
		records, err := l.service.store.CountersOf(ctx, query)
		if err != nil {
			return err
		}
		for _, record := range records {
			query.After = store.CounterAt{Value: record.Value, ID: record.ID}
			if use := l.use(b, record, start, end); use != nil {
				l.found = append(l.found, use)
			}
		}
		if len(records) < query.Limit {
			break
		}
	}
	if b.Scope == ledger.ScopeOrganization && len(l.found) == before && len(l.found) < l.limit && l.after == (store.CounterAt{}) {
		key := l.wholeKey(b)
		l.found = append(l.found, &BudgetUse{Budget: b, Counter: key.ID(), Left: b.Limit(), Start: start, End: end})
	}
	return nil
}

// use shows a counter; nil for one of a budget that has the same name and is another one.
func (l *budgetList) use(b *ledger.Budget, record *store.CounterRecord, start, end ledger.Time) *BudgetUse {
	counter, err := l.service.store.ReadCounter(record)
	if err != nil {
		l.service.log.Error(tamperedLog, "of", "a budget counter")
		return &BudgetUse{Budget: b, Counter: record.ID, Start: start, End: end, Tampered: true}
	}
	if !counter.Of(b) {
		return nil
	}
	use := &BudgetUse{
		Budget: b, Counter: record.ID, Value: counter.Label, Spent: counter.Spent, Waiting: counter.Waiting, Left: b.Left(counter), Start: start, End: end,
	}
	if b.Scope == ledger.ScopeKey {
		if id, err := ledger.ParseID(counter.Value); err == nil {
			use.Key = &ledger.KeyID{UUID: id}
		}
	}
	return use
}
