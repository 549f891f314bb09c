package ledger

import (
	"bytes"
	"testing"
)

// replayed replays a page's entries and checks them against its state.
func replayed(p *page, entries []any) error {
	replay := NewReplay(p.chain.ID)
	for _, entry := range entries {
		var err error
		switch e := entry.(type) {
		case *StoredEvent:
			err = replay.Event(e)
		case *Addendum:
			err = replay.Addendum(e)
		}
		if err != nil {
			return err
		}
	}
	return replay.Matches(p.state.Digest, p.state.Actions)
}

func eventful(t *testing.T) (*book, *page) {
	b := newBook(t)
	p := b.open("")
	p.record("a", "one", `{"n":1}`, "k1")
	p.record("a", "two", `{"n":2}`, "")
	p.report(t, 1, Unknown, "")
	p.record("b", "one", `{"n":3}`, "k3")
	p.report(t, 1, Succeeded, "after all")
	p.report(t, 3, Failed, "")
	return b, p
}

// Replaying an untouched chain gives the digest and the number of actions in its
// state.
func TestReplayGivesTheDigest(t *testing.T) {
	t.Parallel()
	_, p := eventful(t)
	if err := replayed(p, p.entries); err != nil {
		t.Errorf("an untouched chain: %v", err)
	}
	if p.state.Entries != 6 || p.state.Actions != 3 {
		t.Errorf("%d entries and %d actions, want 6 and 3", p.state.Entries, p.state.Actions)
	}
	_, other := eventful(t)
	other.state.Actions++
	if err := replayed(other, other.entries); err == nil {
		t.Error("a missing last event is not seen")
	}
}

// Replaying a chain finds every entry that was removed, repeated, moved or edited.
func TestReplayFindsEveryChange(t *testing.T) {
	t.Parallel()
	event := func(change func(*StoredEvent)) func([]any) []any {
		return func(entries []any) []any {
			copied := *entries[1].(*StoredEvent)
			change(&copied)
			entries[1] = &copied
			return entries
		}
	}
	addendum := func(change func(*Addendum)) func([]any) []any {
		return func(entries []any) []any {
			copied := *entries[2].(*Addendum)
			change(&copied)
			entries[2] = &copied
			return entries
		}
	}
	cases := map[string]func([]any) []any{
		"event gone":        func(e []any) []any { return append(e[:1:1], e[2:]...) },
		"last gone":         func(e []any) []any { return e[:5] },
		"all gone":          func([]any) []any { return nil },
		"addendum gone":     func(e []any) []any { return append(e[:2:2], e[3:]...) },
		"events swapped":    func(e []any) []any { e[0], e[1] = e[1], e[0]; return e },
		"event repeated":    func(e []any) []any { return append(e, e[3]) },
		"addendum repeated": func(e []any) []any { return append(e, e[5]) },
		"event sequence":    event(func(e *StoredEvent) { e.Sequence++ }),
		"event key":         event(func(e *StoredEvent) { e.IdempotencyKey = "other" }),
		"event chain":       event(func(e *StoredEvent) { e.Chain = ChainID{} }),
		"payload":           event(func(e *StoredEvent) { e.Payload = []byte(`{"n":4}`) }),
		"payload gone":      event(func(e *StoredEvent) { e.Payload = nil }),
		"body":              event(func(e *StoredEvent) { e.Body = bytes.Replace(e.Body, []byte("two"), []byte("six"), 1) }),
		"body unreadable":   event(func(e *StoredEvent) { e.Body = e.Body[1:] }),
		"addendum position": addendum(func(a *Addendum) { a.Position++ }),
		"addendum sequence": addendum(func(a *Addendum) { a.Sequence++ }),
		"addendum chain":    addendum(func(a *Addendum) { a.Chain = ChainID{} }),
		"addendum body":     addendum(func(a *Addendum) { a.Body = bytes.Replace(a.Body, []byte("unknown"), []byte("failed"), 1) }),
		"addendum no JSON":  addendum(func(a *Addendum) { a.Body = nil }),
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, p := eventful(t)
			if err := replayed(p, change(append([]any(nil), p.entries...))); err == nil {
				t.Error("nothing is found")
			}
		})
	}
}
