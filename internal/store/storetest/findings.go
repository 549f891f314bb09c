package storetest

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sync/errgroup"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

var findingCases = []testCase{
	{name: "a finding is stored unchanged", run: keepsFindings},
	{name: "a finding that is known is replaced", run: replacesFinding},
	{name: "findings of all organizations are listed in pages", run: listsFindings},
	{name: "findings are loaded by organization and name", run: loadsFindings},
	{name: "one finding, put concurrently", run: oneFinding, concurrent: true},
}

func (w *world) finding(org ledger.OrgID, name string) *store.FindingRecord {
	now := w.now()
	return &store.FindingRecord{
		Org: org, Name: name, Check: "signature", Kind: "place", Subject: "it's \"quoted\" ü", Evidence: everyByte(),
		FoundAt: now, SeenAt: now + 1, MAC: everyByte(),
	}
}

func (w *world) putFindings(t *testing.T, records ...*store.FindingRecord) {
	t.Helper()
	w.write(t, &store.Changes{Findings: records})
}

func keepsFindings(t *testing.T, w *world) {
	m := w.join(t)
	// A finding can be stored for an organization that does not exist, and for none.
	for _, org := range []ledger.OrgID{m.org.ID, w.newOrganization().ID, {}} {
		open, acknowledged := w.finding(org, "open"), w.finding(org, "acknowledged")
		at := w.now()
		acknowledged.AcknowledgedAt, acknowledged.AcknowledgedBy, acknowledged.Reason = &at, "operator", "größer als gedacht"
		w.putFindings(t, open, acknowledged)
		for _, want := range []*store.FindingRecord{open, acknowledged} {
			assertEqual(t, want.Name, must[*store.FindingRecord](t)(w.open(t).Finding(t.Context(), want.Ref())), want)
		}
	}
	if _, err := w.Finding(t.Context(), store.FindingRef{Org: m.org.ID, Name: "unknown"}); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("an unknown finding: %v", err)
	}
}

func replacesFinding(t *testing.T, w *world) {
	m := w.join(t)
	record, other := w.finding(m.org.ID, "a"), w.finding(m.org.ID, "b")
	w.putFindings(t, record, other)
	at := w.now()
	record.Check, record.Kind, record.Subject, record.Evidence = "head", "receipt", "another", []byte{1}
	record.FoundAt, record.SeenAt, record.AcknowledgedAt, record.AcknowledgedBy, record.Reason = at, at, &at, "operator", "known"
	record.MAC = []byte{2}
	w.putFindings(t, record)
	assertEqual(t, "replaced", must[*store.FindingRecord](t)(w.Finding(t.Context(), record.Ref())), record)
	assertEqual(t, "the other", must[*store.FindingRecord](t)(w.Finding(t.Context(), other.Ref())), other)
	record.AcknowledgedAt, record.AcknowledgedBy, record.Reason = nil, "", ""
	w.putFindings(t, record)
	assertEqual(t, "open again", must[*store.FindingRecord](t)(w.Finding(t.Context(), record.Ref())), record)
}

func listsFindings(t *testing.T, w *world) {
	m, other := w.join(t), w.join(t)
	var want []*store.FindingRecord
	for _, org := range []ledger.OrgID{{}, m.org.ID, other.org.ID} { // ids sort by time
		for i := range 3 {
			want = append(want, w.finding(org, fmt.Sprint("finding ", i)))
		}
	}
	w.putFindings(t, want[4], want[0], want[8], want[2], want[1], want[7], want[3], want[6], want[5])
	var got []*store.FindingRecord
	for after := (store.FindingRef{}); ; after = got[len(got)-1].Ref() {
		page := must[[]*store.FindingRecord](t)(w.Findings(t.Context(), after, 2))
		if got = append(got, page...); len(page) < 2 {
			break
		}
	}
	assertEqual(t, "findings", got, want)
}

func loadsFindings(t *testing.T, w *world) {
	m, other := w.join(t), w.join(t)
	kept, elsewhere := w.finding(m.org.ID, "kept"), w.finding(other.org.ID, "elsewhere")
	w.putFindings(t, kept, elsewhere)
	needs := &store.Needs{Findings: []store.FindingRef{kept.Ref(), kept.Ref(), {Org: m.org.ID, Name: "elsewhere"}, {Org: m.org.ID}}}
	w.look(t, needs, func(loaded *store.Loaded) {
		assertEqual(t, "findings", loaded.Findings, map[store.FindingRef]*store.FindingRecord{kept.Ref(): kept})
	})
}

// oneFinding is put by several processes at once: it is stored once, and no call fails.
func oneFinding(t *testing.T, w *world) {
	m := w.join(t)
	one, two := w.finding(m.org.ID, "one"), w.finding(m.org.ID, "two")
	handles := []store.Store{w.open(t), w.open(t), w.open(t), w.open(t)}
	group, ctx := errgroup.WithContext(t.Context())
	for i, handle := range handles {
		findings := []*store.FindingRecord{one, two}
		if i%2 == 1 {
			findings = []*store.FindingRecord{two, one}
		}
		group.Go(func() error {
			for range 10 {
				err := handle.Transact(ctx, &store.Needs{}, func(*store.Loaded) (*store.Changes, error) { return &store.Changes{Findings: findings}, nil })
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	assertEqual(t, "findings", must[[]*store.FindingRecord](t)(w.Findings(t.Context(), store.FindingRef{}, 10)), []*store.FindingRecord{one, two})
}
