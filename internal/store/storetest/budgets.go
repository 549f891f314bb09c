package storetest

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

var budgetCases = []testCase{
	{name: "a counter is stored unchanged", run: keepsCounters},
	{name: "counters of a budget are listed by value in pages", run: listsCounters},
	{name: "a counter that is not there is not changed", run: changesNoMissingCounter},
	{name: "a counter is created once", run: makesCounterOnce},
	{name: "a counter is moved by one after the other", run: countsTogether, concurrent: true},
	{name: "overlapping sets of counters are created and changed without a deadlock", run: countsManyTogether, concurrent: true},
}

func (w *world) counter(org ledger.OrgID, budget, value string) *store.CounterRecord {
	key := ledger.CounterKey{
		Org: org, Budget: budget, Scope: ledger.ScopeAgent, Measure: ledger.MeasureUSD, Window: ledger.WindowDay, Start: 86_400_000, Value: value,
	}
	return &store.CounterRecord{ID: key.ID(), Org: org, Budget: budget, Start: key.Start, Value: value, Body: []byte("0"), MAC: everyByte()}
}

func keepsCounters(t *testing.T, w *world) {
	m, other := w.join(t), w.join(t)
	counter, theirs := w.counter(m.org.ID, "it's \"b\" ü", "研究者"), w.counter(other.org.ID, "b", "")
	w.write(t, &store.Changes{NewCounters: []*store.CounterRecord{counter, theirs}})
	counter.Body, counter.MAC = everyByte(), []byte{7}
	moved := *counter
	moved.Budget, moved.Start, moved.Value, moved.Org = "never written", 1, "never written", other.org.ID
	w.write(t, &store.Changes{Counters: []*store.CounterRecord{&moved}})
	want := map[ledger.CounterID]*store.CounterRecord{counter.ID: counter, theirs.ID: theirs}
	ids := []ledger.CounterID{theirs.ID, counter.ID, counter.ID, w.counter(m.org.ID, "b", "unknown").ID}
	assertEqual(t, "counters", must[map[ledger.CounterID]*store.CounterRecord](t)(w.open(t).BudgetCounters(t.Context(), ids)), want)
	assertEqual(t, "none", must[map[ledger.CounterID]*store.CounterRecord](t)(w.BudgetCounters(t.Context(), nil)), map[ledger.CounterID]*store.CounterRecord{})
	w.look(t, &store.Needs{Counters: ids}, func(loaded *store.Loaded) { assertEqual(t, "loaded", loaded.Counters, want) })
	assertEqual(t, "of the organization", must[[]*store.CounterRecord](t)(w.AllCounters(t.Context(), m.org.ID, ledger.CounterID{}, 10)), []*store.CounterRecord{counter})
	assertEqual(t, "after the last", must[[]*store.CounterRecord](t)(w.AllCounters(t.Context(), m.org.ID, counter.ID, 10)), nil)
	smallest := w.counter(m.org.ID, "smallest", "")
	smallest.ID = ledger.CounterID{}
	w.write(t, &store.Changes{NewCounters: []*store.CounterRecord{smallest}})
	assertEqual(t, "with the smallest id", must[[]*store.CounterRecord](t)(w.AllCounters(t.Context(), m.org.ID, ledger.CounterID{}, 10)), []*store.CounterRecord{smallest, counter})
}

func listsCounters(t *testing.T, w *world) {
	m, other := w.join(t), w.join(t)
	var want []*store.CounterRecord
	for _, value := range []string{"", "A", "a", "b", "ä"} { // in byte order
		want = append(want, w.counter(m.org.ID, "b", value))
	}
	later := w.counter(m.org.ID, "b", "later")
	later.Start++
	changes := &store.Changes{NewCounters: []*store.CounterRecord{want[3], want[0], want[4], want[2], want[1], later, w.counter(m.org.ID, "c", "a"), w.counter(other.org.ID, "b", "a")}}
	w.write(t, changes)
	query := store.CounterQuery{Org: m.org.ID, Budget: "b", Start: want[0].Start, Limit: 2}
	var got []*store.CounterRecord
	for {
		page := must[[]*store.CounterRecord](t)(w.CountersOf(t.Context(), query))
		if got = append(got, page...); len(page) < 2 {
			break
		}
		query.After = store.CounterAt{Value: page[1].Value, ID: page[1].ID}
	}
	assertEqual(t, "counters", got, want)
}

func changesNoMissingCounter(t *testing.T, w *world) {
	m := w.join(t)
	changes := &store.Changes{Counters: []*store.CounterRecord{w.counter(m.org.ID, "b", "")}}
	err := w.Transact(t.Context(), &store.Needs{}, func(*store.Loaded) (*store.Changes, error) { return changes, nil })
	if !errors.Is(err, store.ErrNotFound) {
		t.Errorf("a missing counter is changed: %v", err)
	}
}

func makesCounterOnce(t *testing.T, w *world) {
	m := w.join(t)
	counter := w.counter(m.org.ID, "b", "")
	w.write(t, &store.Changes{NewCounters: []*store.CounterRecord{counter}})
	err := w.Transact(t.Context(), &store.Needs{}, func(*store.Loaded) (*store.Changes, error) {
		return &store.Changes{NewCounters: []*store.CounterRecord{counter}}, nil
	})
	if !errors.Is(err, store.ErrExists) {
		t.Errorf("a counter was created twice: %v", err)
	}
}

// countUp adds one to each of the counters and creates those that are missing.
func (w *world) countUp(ctx context.Context, s store.Store, counters ...*store.CounterRecord) error {
	needs := &store.Needs{}
	for _, c := range counters {
		needs.Counters = append(needs.Counters, c.ID)
	}
	for {
		err := s.Transact(ctx, needs, func(loaded *store.Loaded) (*store.Changes, error) {
			changes := &store.Changes{}
			for _, c := range counters {
				if found := loaded.Counters[c.ID]; found != nil {
					n, err := strconv.Atoi(string(found.Body))
					if err != nil {
						return nil, err
					}
					found.Body = strconv.AppendInt(nil, int64(n)+1, 10)
					changes.Counters = append(changes.Counters, found)
				} else {
					made := *c
					made.Body = []byte("1")
					changes.NewCounters = append(changes.NewCounters, &made)
				}
			}
			return changes, nil
		})
		if !errors.Is(err, store.ErrExists) {
			return err
		}
	}
}

func countsTogether(t *testing.T, w *world) {
	m := w.join(t)
	counter := w.counter(m.org.ID, "b", "")
	const workers, each = 8, 10
	w.together(t, workers, func(ctx context.Context, s store.Store, _ int) error {
		for range each {
			if err := w.countUp(ctx, s, counter); err != nil {
				return err
			}
		}
		return nil
	})
	found := must[map[ledger.CounterID]*store.CounterRecord](t)(w.BudgetCounters(t.Context(), []ledger.CounterID{counter.ID}))
	assertEqual(t, "count", string(found[counter.ID].Body), strconv.Itoa(workers*each))
}

func countsManyTogether(t *testing.T, w *world) {
	m := w.join(t)
	const workers = 8
	var counters []*store.CounterRecord
	for i := range workers {
		counters = append(counters, w.counter(m.org.ID, "b", strconv.Itoa(i)))
	}
	w.together(t, workers, func(ctx context.Context, s store.Store, worker int) error {
		for i := range counters {
			some := slices.Concat(counters[i:], counters[:i])[:1+(worker+i)%workers]
			if worker%2 == 1 {
				slices.Reverse(some)
			}
			if err := w.countUp(ctx, s, some...); err != nil {
				return err
			}
		}
		return nil
	})
	want := 0
	for worker := range workers {
		for i := range counters {
			want += 1 + (worker+i)%workers
		}
	}
	got := 0
	for _, c := range must[[]*store.CounterRecord](t)(w.AllCounters(t.Context(), m.org.ID, ledger.CounterID{}, 100)) {
		n, err := strconv.Atoi(string(c.Body))
		if err != nil {
			t.Fatal(err)
		}
		got += n
	}
	if got != want {
		t.Errorf("%d were counted, want %d", got, want)
	}
}
