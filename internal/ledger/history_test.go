package ledger

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"countersign/internal/canon"
)

// Every kind of act says which records it changes, or that it changes none.
func TestEveryActSaysWhatItChanges(t *testing.T) {
	t.Parallel()
	if diff := cmp.Diff(ActKinds(), slices.Sorted(maps.Keys(recordsChanged))); diff != "" {
		t.Errorf("kinds of acts, and those with a line in recordsChanged (-kinds +listed):\n%s", diff)
	}
}

// wildActs returns a log whose texts imitate the members of an act.
func wildActs(t testing.TB, n int, chance *rand.Rand) (*ActLog, []*StoredAct) {
	t.Helper()
	texts := []string{
		"plain", `"target":"x"}`, `,"sequence":7,"target":"y"}`, `","link":"z"`, `\`, `\"`, `","previous_hash":null,"sequence":1`, "a\u2028b", `{"action":"api_key.revoke"`, "",
	}
	text := func() string { return texts[chance.IntN(len(texts))] }
	kinds := ActKinds()
	org := &Organization{ID: OrgID{must(ParseID(sampleID))}, Slug: "acme", Name: "Acme", Settings: DefaultSettings()}
	log := NewActLog(org.ID)
	var acts []*StoredAct
	for range n {
		kind := kinds[chance.IntN(len(kinds))]
		target := fmt.Sprint("record-", chance.IntN(20))
		if len(recordsChanged[kind]) == 0 {
			target = text() // for example the name of a chain
		}
		detail := canon.BeginObject(nil)
		if chance.IntN(2) == 0 {
			detail.String("api_key_id", fmt.Sprint("record-", chance.IntN(20)))
		}
		detail.String("link", fmt.Sprint("record-", chance.IntN(20)))
		detail.String("name", text())
		detail.Strings("names", []string{text(), "link", "session"})
		detail.String("session", fmt.Sprint("record-", chance.IntN(20)))
		if chance.IntN(2) == 0 {
			detail.String("signing_key_id", fmt.Sprint("record-", chance.IntN(20)))
			detail.String("successor_id", fmt.Sprint("record-", chance.IntN(20)))
		}
		stored, err := log.Append(keyRing, org, Act{At: firstMoment, Actor: Actor{Name: text(), Role: "admin"}, Action: kind, Target: target, Detail: detail.End()})
		if err != nil {
			t.Fatal(err)
		}
		acts = append(acts, stored)
	}
	return log, acts
}

// A history agrees with a full parse of the log, whatever people have written into it.
func TestHistoriesSayWhatTheLogSays(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	chance := rand.New(rand.NewPCG(seed, 0))
	for range 50 {
		log, acts := wildActs(t, 60, chance)
		want := map[Record]int64{}
		for _, stored := range acts {
			act, err := DecodeAct(stored.Body)
			if err != nil {
				t.Fatal(err)
			}
			for _, record := range act.Records() {
				want[record] = act.Sequence
			}
		}
		h := NewHistory()
		for _, act := range acts {
			if err := h.Step(act); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
		if h.End() != log.End() || len(h.last) != len(want) {
			t.Fatalf("seed %d: the history ends at %v with %d records; the log at %v with %d", seed, h.End(), len(h.last), log.End(), len(want))
		}
		for record, number := range want {
			if got := h.LastAct(record.Kind, record.Name); got != number {
				t.Fatalf("seed %d: %v was changed by act %d, the history says %d", seed, record, number, got)
			}
		}
		if got := h.LastAct(RecordKey, "of nobody"); got != 1 {
			t.Errorf("a record that no act names was made by act %d", got)
		}
	}
}

// A history advances to an authenticated end or not at all: acts that were changed, omitted,
// duplicated or reordered, or that lead to another end, leave it unchanged.
func TestHistoriesTakeWholeLogs(t *testing.T) {
	t.Parallel()
	chance := rand.New(rand.NewPCG(1, 2))
	log, acts := wildActs(t, 12, chance)
	known := NewHistory()
	for _, act := range acts[:5] {
		if err := known.Step(act); err != nil {
			t.Fatal(err)
		}
	}
	changed := func(change func([]*StoredAct) []*StoredAct) []*StoredAct { return change(slices.Clone(acts[5:])) }
	other := *acts[8]
	other.Body = slices.Clone(other.Body)
	other.Body[len(other.Body)-3] ^= 1
	for name, acts := range map[string][]*StoredAct{
		"none":             {},
		"the first gone":   changed(func(a []*StoredAct) []*StoredAct { return a[1:] }),
		"one gone":         changed(func(a []*StoredAct) []*StoredAct { return slices.Delete(a, 3, 4) }),
		"the last gone":    changed(func(a []*StoredAct) []*StoredAct { return a[:len(a)-1] }),
		"doubled":          changed(func(a []*StoredAct) []*StoredAct { return append(a, a[len(a)-1]) }),
		"exchanged":        changed(func(a []*StoredAct) []*StoredAct { a[1], a[2] = a[2], a[1]; return a }),
		"one changed":      changed(func(a []*StoredAct) []*StoredAct { a[3] = &other; return a }),
		"one emptied":      changed(func(a []*StoredAct) []*StoredAct { a[3] = &StoredAct{Sequence: a[3].Sequence}; return a }),
		"from the begin":   acts,
		"too early an end": nil,
	} {
		before, records := known.End(), len(known.last)
		if err := known.Extend(acts, log.End()); !errors.Is(err, ErrStateTampered) {
			t.Errorf("%s: %v", name, err)
		}
		if known.End() != before || len(known.last) != records {
			t.Errorf("%s: the history went on", name)
		}
	}
	if err := known.Extend(acts[5:], log.End()); err != nil || known.End() != log.End() {
		t.Errorf("the rest of the log: %v", err)
	}
}

// A log that is shorter than the known one, or has the same length but differs, is behind it.
func TestLogEndsBehindOthers(t *testing.T) {
	t.Parallel()
	known := LogEnd{5, [32]byte{5}}
	for _, c := range []struct {
		end  LogEnd
		want bool
	}{
		{known, false}, {LogEnd{6, [32]byte{6}}, false}, {LogEnd{4, [32]byte{4}}, true}, {LogEnd{5, [32]byte{6}}, true}, {LogEnd{}, true},
	} {
		if got := c.end.Behind(known); got != c.want {
			t.Errorf("%d acts behind %d: %t", c.end.Count, known.Count, got)
		}
	}
	if (LogEnd{}).Behind(LogEnd{}) {
		t.Error("an empty log is behind nothing")
	}
}

// BenchmarkHistory replays 100,000 acts, each about another record, which is the worst case for
// memory.
func BenchmarkHistory(b *testing.B) {
	const n = 100_000
	org := &Organization{ID: OrgID{must(ParseID(sampleID))}, Slug: "acme", Name: "Acme", Settings: DefaultSettings()}
	log := NewActLog(org.ID)
	acts := make([]*StoredAct, n)
	for i := range acts {
		id := fmt.Sprintf("01990000-0000-7000-8000-%012d", i)
		acts[i], _ = log.Append(keyRing, org, Act{
			At: firstMoment, Actor: Actor{Key: asker, Name: "an admin", Role: "admin"}, Action: ActTokenCreate, Target: id,
			Detail: []byte(`{"artifact_id":"01990000-0000-7000-8000-000000000000","artifact_type":"receipt","expires_at":null}`),
		})
	}
	var before, after runtime.MemStats
	b.ResetTimer()
	for b.Loop() {
		runtime.GC()
		runtime.ReadMemStats(&before)
		h := NewHistory()
		for _, act := range acts {
			if err := h.Step(act); err != nil {
				b.Fatal(err)
			}
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		runtime.KeepAlive(h)
	}
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/1e6, "MB-kept")
}
