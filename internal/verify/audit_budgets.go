package verify

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// A budget's counter can be recounted, because each event records what it took from which counter.
// Only current windows are recounted: the counters of past windows limit nothing.

// tally is the value of one counter according to the events of its window.
type tally struct {
	budget         string
	spent, waiting ledger.Money
}

// recount recomputes the counters of an organization.
type recount struct {
	*audit
	since   ledger.Time // start of the longest window
	most    int         // events to read; 0: all
	tallies map[ledger.CounterID]*tally
	waiting map[ledger.ChainID]map[int64][]ledger.BudgetUse // uses by event sequence
	partial bool                                            // not all events were read
}

var errEnough = errors.New("enough")

// recountBudgets compares the counters of the current windows with the events. If all events were
// read and a counter has not moved in the meantime, the values must be equal. Otherwise the counter
// must not be lower, because spending never decreases within a window.
func (a *audit) recountBudgets(ctx context.Context, wrong *collection) error {
	budgets := a.org.Settings.Budgets
	if len(budgets) == 0 {
		return nil
	}
	r := &recount{audit: a, since: math.MaxInt64, most: a.maxCounted, tallies: make(map[ledger.CounterID]*tally), waiting: make(map[ledger.ChainID]map[int64][]ledger.BudgetUse)}
	before := make(map[ledger.CounterID]*store.CounterRecord)
	for i := range budgets {
		start, _ := budgets[i].Window.Span(a.now())
		r.since = min(r.since, start)
		if err := r.loadCounters(ctx, &budgets[i], start, before); err != nil {
			return err
		}
	}
	if err := r.events(ctx); err != nil {
		return err
	}
	if err := r.approvals(ctx); err != nil {
		return err
	}
	return r.compare(ctx, before, wrong)
}

// loadCounters reads the counters of a budget. It is called before the events are read.
func (r *recount) loadCounters(ctx context.Context, b *ledger.Budget, start ledger.Time, into map[ledger.CounterID]*store.CounterRecord) error {
	const page = 200
	query := store.CounterQuery{Org: r.org.ID, Budget: b.Name, Start: start, Limit: page}
	for {
		records, err := r.store.CountersOf(ctx, query)
		if err != nil {
			return err
		}
		for _, record := range records {
			into[record.ID] = record
			query.After = store.CounterAt{Value: record.Value, ID: record.ID}
		}
		if len(records) < page || r.most > 0 && len(into) >= r.most {
			return nil
		}
	}
}

// usesMember occurs in the facts of every event that used a budget.
var usesMember = []byte(`"budgets":[{`)

func (r *recount) events(ctx context.Context) error {
	read := 0
	err := r.store.ScanEvents(ctx, r.org.ID, 0, func(record *store.ChainRecord, stored *ledger.StoredEvent) error {
		if read++; r.most > 0 && read > r.most {
			r.partial = true
			return errEnough
		}
		if record.Org != r.org.ID || !bytes.Contains(stored.Body, usesMember) {
			return nil
		}
		event, err := r.store.ReadEvent(r.org.ID, stored)
		if err != nil || event.RecordedAt < r.since {
			return nil //nolint:nilerr // the check of its chain reports an event that fails
		}
		if event.Status != ledger.EventAwaiting {
			r.add(event.Uses, true)
			return nil
		}
		if r.waiting[event.Chain] == nil {
			r.waiting[event.Chain] = make(map[int64][]ledger.BudgetUse)
		}
		r.waiting[event.Chain][event.Sequence] = event.Uses
		return nil
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

func (r *recount) add(uses []ledger.BudgetUse, spent bool) {
	for _, use := range uses {
		t := r.tallies[use.Counter]
		if t == nil {
			t = &tally{budget: use.Budget}
			r.tallies[use.Counter] = t
		}
		if spent {
			t.spent = t.spent.Add(use.Amount)
		} else {
			t.waiting = t.waiting.Add(use.Amount)
		}
	}
}

// approvals accounts for the actions that waited for approval. It runs after the scan, so that no
// connection waits for another.
func (r *recount) approvals(ctx context.Context) error {
	for chain, waiting := range r.waiting {
		records, err := r.approvalRecords(ctx, chain)
		if err != nil {
			return err
		}
		for _, record := range records {
			uses := waiting[record.Sequence]
			if uses == nil {
				continue
			}
			approval, err := r.store.ReadApproval(record)
			switch {
			case err != nil: // the check of its chain reports it
			case approval.Status == ledger.ApprovalApproved:
				r.add(uses, true)
			case approval.Status.Open():
				r.add(uses, false)
			}
		}
	}
	return nil
}

// compare reads the counters once more, after everything that they should reflect.
func (r *recount) compare(ctx context.Context, before map[ledger.CounterID]*store.CounterRecord, wrong *collection) error {
	ids := make([]ledger.CounterID, 0, len(r.tallies))
	for id := range r.tallies {
		ids = append(ids, id)
	}
	if !r.partial { // counters that no event mentions
		for id := range before {
			if r.tallies[id] == nil {
				r.tallies[id] = &tally{budget: before[id].Budget}
				ids = append(ids, id)
			}
		}
	}
	slices.SortFunc(ids, func(a, b ledger.CounterID) int {
		return cmp.Or(cmp.Compare(r.tallies[a].budget, r.tallies[b].budget), slices.Compare(a.UUID[:], b.UUID[:]))
	})
	for chunk := range slices.Chunk(ids, 200) {
		records, err := r.store.BudgetCounters(ctx, chunk)
		if err != nil {
			return err
		}
		for _, id := range chunk {
			detail := r.miscount(id, before[id], records[id])
			if detail == "" {
				continue
			}
			if err := wrong.add(&ledger.Break{Check: ledger.CheckBudgets, Detail: detail}); err != nil {
				return err
			}
		}
	}
	return nil
}

// miscount says what is wrong with a counter, or returns "".
func (r *recount) miscount(id ledger.CounterID, before, now *store.CounterRecord) string {
	t := r.tallies[id]
	if now == nil || now.Org != r.org.ID {
		return fmt.Sprintf("the counter %s of the budget %q is missing, and events were counted in it", id, t.budget)
	}
	counter, err := r.store.ReadCounter(now)
	if err != nil {
		return "" // failingRow reports it
	}
	// The text contains no amounts, because it must be the same in every check.
	if counter.Spent.Cmp(t.spent) < 0 {
		return fmt.Sprintf("the counter %s of the budget %q says that less is spent than the events do: it was put back", id, t.budget)
	}
	still := before != nil && bytes.Equal(before.MAC, now.MAC) && bytes.Equal(before.Body, now.Body)
	if still && !r.partial && (counter.Spent.Cmp(t.spent) != 0 || counter.Waiting.Cmp(t.waiting) != 0) {
		return fmt.Sprintf("the counter %s of the budget %q does not say what the events do", id, t.budget)
	}
	return ""
}
