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
	{name: "a log's end comes back as it was", run: keepsLogs, unaudited: true},
	{name: "an unknown log is not found", run: unknownLog},
	{name: "logs are loaded by organization", run: loadsLogs},
	{name: "acts are listed newest first", run: listsActs},
	{name: "acts are scanned by sequence", run: scansActs},
	{name: "a visitor's error ends a scan of acts", run: visitorEndsActScan},
	{name: "acts at once stand one after the other", run: actsAtOnce, concurrent: true},
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

// busy is an organization with twelve acts.
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
	if err != enough { //nolint:errorlint // the visitor's error comes back as it is
		t.Errorf("error %v, want the visitor's", err)
	}
	if visits != 1 {
		t.Errorf("%d visits, want 1", visits)
	}
}

// actsAtOnce holds the log and not the organization: the audit after the case
// finds an act that stands twice or not at all.
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
