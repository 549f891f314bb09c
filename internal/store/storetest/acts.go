package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

var actCases = []testCase{
	{name: "a log's end is stored unchanged", run: keepsLogs, unaudited: true},
	{name: "an unknown log is not found", run: unknownLog},
	{name: "logs are loaded by organization", run: loadsLogs},
	{name: "the ends of logs are loaded with their organizations", run: loadsEnds},
	{name: "the ends of some logs are read together", run: readsEnds},
	{name: "acts after a sequence are read inside a transaction", run: readsActsAfter},
	{name: "acts are listed newest first", run: listsActs},
	{name: "acts are scanned by sequence", run: scansActs},
	{name: "a visitor's error ends a scan of acts", run: visitorEndsActScan},
	{name: "concurrent acts are serialized", run: actsAtOnce, concurrent: true},
}

func keepsLogs(t *testing.T, w *world) {
	org := w.newOrganization()
	if err := w.CreateOrganization(t.Context(), org, ledger.NewHead(org.ID, w.keys), nil); err != nil {
		t.Fatalf("create organization: %v", err)
	}
	hash := [32]byte(everyByte()[128:])
	for _, log := range []*ledger.ActLog{
		{Org: org.ID, MAC: []byte{}},
		{Org: org.ID, Count: 1 << 40, Last: &hash, Controls: [32]byte(everyByte()), MAC: everyByte()},
		{Org: org.ID, Count: 7, MAC: []byte("other")},
	} {
		w.write(t, &store.Changes{Logs: []*ledger.ActLog{log}})
		assertEqual(t, "log", must[*ledger.ActLog](t)(w.open(t).ActLog(t.Context(), org.ID)), log)
	}
	act := &ledger.StoredAct{Org: org.ID, Sequence: 1, Body: everyByte()}
	w.write(t, &store.Changes{NewActs: []*ledger.StoredAct{act}})
	assertEqual(t, "act", must[[]*ledger.StoredAct](t)(w.Acts(t.Context(), org.ID, 0, 1)), []*ledger.StoredAct{act})
}

func unknownLog(t *testing.T, w *world) {
	w.join(t)
	stranger := w.newOrganization().ID
	_, err := w.ActLog(t.Context(), stranger)
	wantError(t, "log", err, store.ErrNotFound)
	if acts := must[[]*ledger.StoredAct](t)(w.Acts(t.Context(), stranger, 0, 10)); len(acts) != 0 {
		t.Errorf("%d acts of an unknown organization", len(acts))
	}
}

func loadsLogs(t *testing.T, w *world) {
	one, two := w.join(t), w.join(t)
	w.join(t)
	w.mustAddKey(t, w.newKey(two.org.ID))
	ids := []ledger.OrgID{two.org.ID, one.org.ID, two.org.ID, w.newOrganization().ID}
	w.look(t, &store.Needs{Logs: ids}, func(loaded *store.Loaded) {
		counts := make(map[ledger.OrgID]int64)
		for id, log := range loaded.Logs {
			counts[id] = log.Count
			if log.Org != id || !log.Authentic(w.keys) {
				t.Errorf("the log of %v is that of %v, or fails its authenticator", id, log.Org)
			}
		}
		assertEqual(t, "counts", counts, map[ledger.OrgID]int64{one.org.ID: 1, two.org.ID: 2})
	})
}

// loadsEnds requires the current ends, whether this handle, another one or a transaction that
// changed nothing else wrote them.
func loadsEnds(t *testing.T, w *world) {
	one, two, unlogged := w.join(t), w.join(t), w.newOrganization()
	if err := w.CreateOrganization(t.Context(), unlogged, ledger.NewHead(unlogged.ID, w.keys), nil); err != nil {
		t.Fatal(err)
	}
	needs := &store.Needs{Orgs: []ledger.OrgID{one.org.ID, one.org.ID, unlogged.ID}, Govern: []ledger.OrgID{two.org.ID, w.newOrganization().ID}}
	check := func(first, second int64) {
		t.Helper()
		for _, handle := range []store.Store{w, w.open(t)} {
			counts := make(map[ledger.OrgID]int64)
			err := handle.Transact(t.Context(), needs, func(loaded *store.Loaded) (*store.Changes, error) {
				for id, end := range loaded.Ends {
					counts[id] = end.Count
					if end.Org != id || !end.Authentic(w.keys) {
						t.Errorf("the end of %v is that of %v, or fails its authenticator", id, end.Org)
					}
				}
				return &store.Changes{}, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			delete(counts, unlogged.ID)
			assertEqual(t, "counts", counts, map[ledger.OrgID]int64{one.org.ID: first, two.org.ID: second})
		}
	}
	check(1, 1)
	check(1, 1)
	w.mustAddKey(t, w.newKey(one.org.ID))
	check(2, 1)
	if err := w.addKey(t.Context(), w.open(t), w.newKey(two.org.ID)); err != nil {
		t.Fatal(err)
	}
	check(2, 2)
}

func readsEnds(t *testing.T, w *world) {
	one, two := w.join(t), w.busy(t)
	w.join(t)
	found, err := w.ActLogs(t.Context(), []ledger.OrgID{two.org.ID, one.org.ID, w.newOrganization().ID})
	if err != nil {
		t.Fatal(err)
	}
	want := make(map[ledger.OrgID]*ledger.ActLog)
	for _, m := range []*member{one, two} {
		want[m.org.ID] = must[*ledger.ActLog](t)(w.ActLog(t.Context(), m.org.ID))
	}
	assertEqual(t, "ends", found, want)
	if found, err = w.ActLogs(t.Context(), nil); err != nil || len(found) != 0 {
		t.Errorf("of none there are %d ends, error %v", len(found), err)
	}
}

func readsActsAfter(t *testing.T, w *world) {
	m, other := w.busy(t), w.join(t)
	w.look(t, &store.Needs{Orgs: []ledger.OrgID{m.org.ID}}, func(loaded *store.Loaded) {
		for _, test := range []struct {
			after       int64
			limit       int
			first, last int64
		}{{0, 100, 1, 12}, {9, 100, 10, 12}, {3, 4, 4, 7}, {12, 5, 13, 12}} {
			var want, got []int64
			for sequence := test.first; sequence <= test.last; sequence++ {
				want = append(want, sequence)
			}
			acts, err := loaded.ActsAfter(m.org.ID, test.after, test.limit)
			if err != nil {
				t.Fatal(err)
			}
			for _, act := range acts {
				got = append(got, act.Sequence)
				if act.Org != m.org.ID || len(act.Body) == 0 {
					t.Error("an act of another organization, or none, is read")
				}
			}
			assertEqual(t, fmt.Sprintf("%d after %d", test.limit, test.after), got, want)
		}
		if acts, err := loaded.ActsAfter(other.org.ID, 0, 10); err != nil || len(acts) != 1 {
			t.Errorf("%d acts of another organization, error %v", len(acts), err)
		}
	})
}

// busy returns an organization with twelve acts.
func (w *world) busy(t *testing.T) *member {
	t.Helper()
	m := w.join(t)
	for range 11 {
		w.mustAddKey(t, w.newKey(m.org.ID))
	}
	return m
}

func listsActs(t *testing.T, w *world) {
	w.join(t)
	m := w.busy(t)
	for _, test := range []struct {
		before      int64
		limit       int
		first, last int64
	}{{0, 100, 12, 1}, {0, 3, 12, 10}, {10, 4, 9, 6}, {2, 5, 1, 1}, {1, 5, 0, 1}, {99, 1, 12, 12}} {
		var want, got []int64
		for sequence := test.first; sequence >= test.last; sequence-- {
			want = append(want, sequence)
		}
		for _, act := range must[[]*ledger.StoredAct](t)(w.Acts(t.Context(), m.org.ID, test.before, test.limit)) {
			got = append(got, act.Sequence)
			if act.Org != m.org.ID {
				t.Error("an act of another organization is listed")
			}
		}
		assertEqual(t, fmt.Sprintf("%d before %d", test.limit, test.before), got, want)
	}
}

func scansActs(t *testing.T, w *world) {
	w.busy(t)
	m := w.busy(t)
	want := must[[]*ledger.StoredAct](t)(w.Acts(t.Context(), m.org.ID, 0, 100))
	slices.Reverse(want)
	var got []*ledger.StoredAct
	err := w.ScanActs(t.Context(), m.org.ID, func(act *ledger.StoredAct) error {
		got = append(got, &ledger.StoredAct{Org: act.Org, Sequence: act.Sequence, Body: slices.Clone(act.Body)})
		return nil
	})
	if err != nil || len(want) != 12 {
		t.Fatalf("scan: %v; %d acts are listed, want 12", err, len(want))
	}
	assertEqual(t, "acts", got, want)
}

func visitorEndsActScan(t *testing.T, w *world) {
	m := w.busy(t)
	enough := errors.New("enough")
	visits := 0
	err := w.ScanActs(t.Context(), m.org.ID, func(*ledger.StoredAct) error {
		visits++
		return enough
	})
	if err != enough { //nolint:errorlint // the visitor's error is returned unchanged
		t.Errorf("error %v, want the visitor's", err)
	}
	if visits != 1 {
		t.Errorf("%d visits, want 1", visits)
	}
}

// actsAtOnce locks the log but not the organization. The audit after the case finds an act that is
// missing or stored twice.
func actsAtOnce(t *testing.T, w *world) {
	const workers, each = 9, 5
	m := w.join(t)
	w.together(t, workers, func(ctx context.Context, s store.Store, _ int) error {
		for range each {
			if err := w.addKey(ctx, s, w.newKey(m.org.ID)); err != nil {
				return err
			}
		}
		return nil
	})
	if log := must[*ledger.ActLog](t)(w.ActLog(t.Context(), m.org.ID)); log.Count != 1+workers*each {
		t.Errorf("the log counts %d acts, want %d", log.Count, 1+workers*each)
	}
}
