package ledger

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
)

// LogEnd is the end of an audit log: the number of acts and the hash of the last one. The zero
// value is an empty log.
type LogEnd struct {
	Count int64
	Last  [32]byte
}

// End returns the end of the log.
func (l *ActLog) End() LogEnd {
	end := LogEnd{Count: l.Count}
	if l.Last != nil {
		end.Last = *l.Last
	}
	return end
}

// Behind reports whether a log that ends here is not the one that was known: it is shorter, or has
// the same length but a different last act. No log is behind an empty one.
func (e LogEnd) Behind(known LogEnd) bool {
	return e.Count < known.Count || e.Count == known.Count && e.Last != known.Last
}

// History knows which act last changed each administrative record, according to the audit log. A
// record contains the number of that act, covered by its authenticator, so that an older copy of it
// is recognized. A History is not safe for concurrent use.
type History struct {
	end  LogEnd
	last map[recordKey]int64
}

// recordKey is a digest of a record's kind and name. It is short because there may be many.
type recordKey [16]byte

// NewHistory returns the history of an empty log.
func NewHistory() *History { return &History{last: make(map[recordKey]int64)} }

// End returns the end that the history has reached.
func (h *History) End() LogEnd { return h.end }

// LastAct returns the number of the act that last changed a record. A record that no act names was
// created with the organization, by the first act.
func (h *History) LastAct(kind RecordKind, name string) int64 {
	return max(h.last[keyOfRecord(kind, name)], 1)
}

func keyOfRecord[N ~string | ~[]byte](kind RecordKind, name N) recordKey {
	buffer := make([]byte, 0, 96)
	buffer = append(append(append(buffer, kind...), 0), name...)
	sum := sha256.Sum256(buffer)
	return recordKey(sum[:len(recordKey{})])
}

// Step adds the next act. The history can be trusted only after its end was compared with an
// authenticated one.
func (h *History) Step(a *StoredAct) error {
	said, err := skim(a, h.end)
	if err != nil {
		return err
	}
	h.take(a, said)
	return nil
}

func (h *History) take(a *StoredAct, said skimmed) {
	for _, effect := range recordsChanged[string(said.action)] {
		if name := said.name(effect.member); len(name) > 0 {
			h.last[keyOfRecord(effect.kind, name)] = a.Sequence
		}
	}
	h.end = LogEnd{a.Sequence, a.Hash()}
}

// Extend adds all acts up to an authenticated end, or none of them.
func (h *History) Extend(acts []*StoredAct, end LogEnd) error {
	reached := h.end
	all := make([]skimmed, len(acts))
	for i, act := range acts {
		said, err := skim(act, reached)
		if err != nil {
			return err
		}
		all[i], reached = said, LogEnd{act.Sequence, act.Hash()}
	}
	if reached != end {
		return fmt.Errorf("the audit log counts %d acts and does not end with them: %w", end.Count, ErrStateTampered)
	}
	for i, act := range acts {
		h.take(act, all[i])
	}
	return nil
}

// Changed returns which records some acts changed, with the last act for each.
func Changed(acts []*StoredAct) (*History, error) {
	h := NewHistory()
	for _, act := range acts {
		said, err := read(act)
		if err != nil {
			return nil, err
		}
		h.take(act, said)
	}
	return h, nil
}

// ByAct returns the number of the act that changed a record, or 0.
func (h *History) ByAct(kind RecordKind, name string) int64 { return h.last[keyOfRecord(kind, name)] }

// skimmed is what a history needs of an act, as slices of its body.
type skimmed struct {
	action, previous, target []byte
	rest                     []byte // from the actor on, including the detail
}

// name returns the record that an act names in a member of its detail, or as its target.
func (s *skimmed) name(member string) []byte {
	if member == "" {
		return s.target
	}
	_, after, found := bytes.Cut(s.rest, []byte(`"`+member+`":"`))
	if !found {
		return nil
	}
	name, _, _ := bytes.Cut(after, []byte(`"`))
	return name
}

// skim reads an act, which must follow the given end.
func skim(a *StoredAct, after LogEnd) (skimmed, error) {
	said, err := read(a)
	if err != nil {
		return said, err
	}
	var buffer [2 + len(hashPrefix) + hashDigits]byte
	wanted := append(buffer[:0], "null"...)
	if after.Count > 0 {
		wanted = append(append(buffer[:0], '"'), hashPrefix...)
		wanted = append(hex.AppendEncode(wanted, after.Last[:]), '"')
	}
	if a.Sequence != after.Count+1 || !bytes.Equal(said.previous, wanted) {
		return said, fmt.Errorf("act %d is missing, out of order or changed: %w", after.Count+1, ErrStateTampered)
	}
	return said, nil
}

var errActForm = fmt.Errorf("an act has another form than the service writes: %w", ErrStateTampered)

// read finds the parts of an act's body without parsing it, because a log may be long. The result
// is exact: members are in canonical order, and a quotation mark inside a text is always escaped,
// so no text looks like the name of a member.
func read(a *StoredAct) (s skimmed, err error) {
	rest, ok := bytes.CutPrefix(a.Body, []byte(`{"action":"`))
	if !ok {
		return s, errActForm
	}
	if s.action, s.rest, ok = bytes.Cut(rest, []byte(`"`)); !ok {
		return s, errActForm
	}
	at := bytes.LastIndex(s.rest, []byte(`,"sequence":`))
	if at < 0 {
		return s, errActForm
	}
	tail := s.rest[at+len(`,"sequence":`):]
	s.rest = s.rest[:at]
	number, target, ok := bytes.Cut(tail, []byte(`,"target":`))
	if !ok || string(number) != strconv.FormatInt(a.Sequence, 10) {
		return s, errActForm
	}
	if at = bytes.LastIndex(s.rest, []byte(`,"previous_hash":`)); at < 0 {
		return s, errActForm
	}
	s.previous = s.rest[at+len(`,"previous_hash":`):]
	s.rest = s.rest[:at]
	target, ok = bytes.CutSuffix(target, []byte(`}`))
	if !ok {
		return s, errActForm
	}
	if quoted, ok := bytes.CutPrefix(target, []byte(`"`)); ok {
		s.target = bytes.TrimSuffix(quoted, []byte(`"`))
	}
	return s, nil
}
