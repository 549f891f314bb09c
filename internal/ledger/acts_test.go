package ledger

import (
	"errors"
	"fmt"
	"testing"
)

// loggedActs returns an audit log of n acts with its end.
func loggedActs(t *testing.T, n int) (*Organization, *ActLog, []*StoredAct) {
	t.Helper()
	org := &Organization{ID: OrgID{must(ParseID(sampleID))}, Slug: "acme", Name: "Acme", Settings: DefaultSettings()}
	log := NewActLog(org.ID)
	var acts []*StoredAct
	for i := range n {
		org.Name = fmt.Sprint("name ", i)
		stored, err := log.Append(keyRing, org, Act{At: firstMoment + Time(i), Actor: ActorOperator, Action: "organization.update", Target: "acme", Detail: []byte(`{"a":1}`)})
		if err != nil {
			t.Fatal(err)
		}
		acts = append(acts, stored)
	}
	return org, log, acts
}

func walkedActs(org *Organization, end *ActLog, acts []*StoredAct) error {
	var walk ActWalk
	for _, act := range acts {
		if err := walk.Step(act); err != nil {
			return err
		}
	}
	return walk.Finish(end, org, keyRing)
}

// An act of the audit log is read back unchanged, and bytes that are not a complete act are
// refused.
func TestActsAreReadBack(t *testing.T) {
	t.Parallel()
	_, _, acts := loggedActs(t, 2)
	act, err := DecodeAct(acts[1].Body)
	if err != nil {
		t.Fatal(err)
	}
	if act.Sequence != 2 || act.At != firstMoment+1 || act.Actor != ActorOperator || act.Action != "organization.update" || act.Target != "acme" || string(act.Detail) != `{"a":1}` {
		t.Errorf("read back it is %+v", act)
	}
	keyed := Act{Actor: Actor{Key: asker, Name: "ann", Role: "admin"}, Action: "kill_switch.activate"}
	read, err := DecodeAct((&keyed).encode())
	if err == nil {
		t.Errorf("an act without its number is read: %+v", read)
	}
	keyed.Sequence = 7
	if read, err = DecodeAct((&keyed).encode()); err != nil || read.Actor != keyed.Actor || read.Detail != nil || read.Target != "" {
		t.Errorf("read back it is %+v: %v", read, err)
	}
	for _, body := range []string{"", "{}", `{"actor":null}`, string(acts[0].Body[1:])} {
		if _, err := DecodeAct([]byte(body)); err == nil {
			t.Errorf("%q is read as an act", body)
		}
	}
}

// A walk of the audit log finds every removed, moved or edited act, and every
// setting that was changed without one.
func TestActWalkFindsEveryChange(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(org *Organization, end *ActLog, acts []*StoredAct) []*StoredAct{
		"the first removed":  func(_ *Organization, _ *ActLog, a []*StoredAct) []*StoredAct { return a[1:] },
		"one removed":        func(_ *Organization, _ *ActLog, a []*StoredAct) []*StoredAct { return append(a[:2:2], a[3:]...) },
		"the last removed":   func(_ *Organization, _ *ActLog, a []*StoredAct) []*StoredAct { return a[:4] },
		"all removed":        func(*Organization, *ActLog, []*StoredAct) []*StoredAct { return nil },
		"two exchanged":      func(_ *Organization, _ *ActLog, a []*StoredAct) []*StoredAct { a[1], a[2] = a[2], a[1]; return a },
		"one twice":          func(_ *Organization, _ *ActLog, a []*StoredAct) []*StoredAct { return append(a, a[4]) },
		"the first edited":   func(_ *Organization, _ *ActLog, a []*StoredAct) []*StoredAct { return edited(a, 0) },
		"one edited":         func(_ *Organization, _ *ActLog, a []*StoredAct) []*StoredAct { return edited(a, 2) },
		"the last edited":    func(_ *Organization, _ *ActLog, a []*StoredAct) []*StoredAct { return edited(a, 4) },
		"one unreadable":     func(_ *Organization, _ *ActLog, a []*StoredAct) []*StoredAct { a[2].Body = []byte("x"); return a },
		"the count edited":   func(_ *Organization, e *ActLog, a []*StoredAct) []*StoredAct { e.Count = 4; return a[:4] },
		"the end's hash":     func(_ *Organization, e *ActLog, a []*StoredAct) []*StoredAct { e.Last[0] ^= 1; return a },
		"the end's controls": func(_ *Organization, e *ActLog, a []*StoredAct) []*StoredAct { e.Controls[0] ^= 1; return a },
		"the authenticator":  func(_ *Organization, e *ActLog, a []*StoredAct) []*StoredAct { e.MAC[0] ^= 1; return a },
		"another's log": func(_ *Organization, e *ActLog, a []*StoredAct) []*StoredAct {
			e.Org = OrgID{NewRandomID([16]byte{9})}
			return a
		},
		"the name":      func(o *Organization, _ *ActLog, a []*StoredAct) []*StoredAct { o.Name = "x"; return a },
		"the slug":      func(o *Organization, _ *ActLog, a []*StoredAct) []*StoredAct { o.Slug = "x"; return a },
		"the beginning": func(o *Organization, _ *ActLog, a []*StoredAct) []*StoredAct { o.CreatedAt++; return a },
		"a setting": func(o *Organization, _ *ActLog, a []*StoredAct) []*StoredAct {
			o.Settings.TwoPersonApproval = true
			return a
		},
		"the kill switch": func(o *Organization, _ *ActLog, a []*StoredAct) []*StoredAct {
			o.Controls.KillSwitch.Active = true
			return a
		},
		"the policy": func(o *Organization, _ *ActLog, a []*StoredAct) []*StoredAct {
			o.Controls.Policy.SHA256 = "x"
			return a
		},
	} {
		org, end, acts := loggedActs(t, 5)
		if err := walkedActs(org, end, acts); err != nil {
			t.Fatalf("untouched: %v", err)
		}
		acts = change(org, end, acts)
		if err := walkedActs(org, end, acts); err == nil {
			t.Errorf("%s: nothing is found", name)
		}
	}
	org, _, acts := loggedActs(t, 1)
	if walkedActs(org, nil, acts) == nil {
		t.Error("a log without an end: nothing is found")
	}
}

func edited(acts []*StoredAct, at int) []*StoredAct {
	act := *acts[at]
	act.Body = append([]byte{}, act.Body...)
	act.Body[len(act.Body)-3] ^= 1
	acts[at] = &act
	return acts
}

// No act is appended after a forged end.
func TestNoActAfterAForgedEnd(t *testing.T) {
	t.Parallel()
	for name, forge := range map[string]func(*ActLog){
		"count": func(l *ActLog) { l.Count-- }, "hash": func(l *ActLog) { l.Last[3] ^= 1 }, "authenticator": func(l *ActLog) { l.MAC = nil },
		"a count beyond counting": func(l *ActLog) { l.Count = 1 << 60 },
	} {
		org, log, _ := loggedActs(t, 3)
		forge(log)
		if _, err := log.Append(keyRing, org, Act{Actor: ActorService}); !errors.Is(err, ErrStateTampered) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
