package ledger

import (
	"encoding/binary"
	"slices"
)

// Term is what the search index is asked for: a hash of a list, an organization and a
// value. Two values with one hash cost a look at a record that does not match, and
// nothing else.
type Term int64

// SearchList names a list that can be searched.
type SearchList byte

// The lists that can be searched. Each has terms of its own.
const (
	ListChains    SearchList = 'c'
	ListReceipts  SearchList = 'r'
	ListApprovals SearchList = 'a'
)

// kinds of terms
const (
	termWord     = 'w'
	termPair     = 'm'
	termAgent    = 'a'
	termType     = 't'
	termName     = 'n'
	termDecision = 'd'
)

// term hashes with FNV-1a. A text is preceded by its length, so that no two values are one.
func (l SearchList) term(org OrgID, kind byte, texts ...string) Term {
	const offset, prime = 14695981039346656037, 1099511628211
	h := uint64(offset)
	add := func(b byte) { h = (h ^ uint64(b)) * prime }
	add(byte(l))
	add(kind)
	for _, b := range org.UUID {
		add(b)
	}
	var size [4]byte
	for _, text := range texts {
		binary.BigEndian.PutUint32(size[:], uint32(len(text))) //nolint:gosec // a text of a request is far shorter
		for _, b := range size {
			add(b)
		}
		for i := range len(text) {
			add(text[i])
		}
	}
	return Term(h) //nolint:gosec // the same 64 bits
}

// ChainTerms are those of a chain's name and metadata.
func (l SearchList) ChainTerms(c *Chain) []Term {
	var terms []Term
	for _, word := range words(c.Name) {
		terms = append(terms, l.term(c.Org, termWord, word))
	}
	for _, pair := range pairs(c.Metadata) {
		terms = append(terms, l.term(c.Org, termPair, pair.Key, pair.Value))
	}
	return terms
}

// ActionTerms are those of an action: its agent, type and name with the decision, and the
// decision alone. A marker has none.
func (l SearchList) ActionTerms(org OrgID, a Acted) []Term {
	if a.Marker() {
		return nil
	}
	d := string(a.Decision)
	return []Term{
		l.term(org, termDecision, d), l.term(org, termAgent, d, a.Agent), l.term(org, termType, d, a.Type), l.term(org, termName, d, a.Name),
	}
}

// Condition is one of the conditions of a search: a record that meets it stands under one
// of the terms.
type Condition struct {
	AnyOf   []Term
	Actions bool // it is about actions
}

// Conditions are those that a record must meet all of.
func (f *Find) Conditions(l SearchList, org OrgID) []Condition {
	var all []Condition
	for _, word := range words(f.Name) {
		all = append(all, Condition{AnyOf: []Term{l.term(org, termWord, word)}})
	}
	for _, pair := range f.Metadata {
		all = append(all, Condition{AnyOf: []Term{l.term(org, termPair, pair.Key, pair.Value)}})
	}
	for _, want := range f.aspects() {
		decisions := Outcomes
		switch {
		case l == ListApprovals:
			decisions = []Outcome{RequireApproval}
		case want.Decision != "":
			decisions = []Outcome{want.Decision}
		}
		c := Condition{Actions: true}
		for _, decision := range decisions {
			d := string(decision)
			switch {
			case want.Agent != "":
				c.AnyOf = append(c.AnyOf, l.term(org, termAgent, d, want.Agent))
			case want.Type != "":
				c.AnyOf = append(c.AnyOf, l.term(org, termType, d, want.Type))
			case want.Name != "":
				c.AnyOf = append(c.AnyOf, l.term(org, termName, d, want.Name))
			default:
				c.AnyOf = append(c.AnyOf, l.term(org, termDecision, d))
			}
		}
		all = append(all, c)
	}
	return all
}

// firstTerms are the terms of the last line that no line before it has.
func (s *Summary) firstTerms(l SearchList, org OrgID) []Term {
	last := &s.lines[len(s.lines)-1]
	terms := l.ActionTerms(org, last.acted())
	if len(terms) == 0 || len(s.lines) > fewLines {
		return terms // those that are there are not written twice
	}
	var decision, agent, kind, name bool
	for i := range s.lines[:len(s.lines)-1] {
		if line := &s.lines[i]; line.Outcome == last.Outcome && !markerType(line.ActionType) {
			decision = true
			agent = agent || line.AgentName == last.AgentName
			kind = kind || line.ActionType == last.ActionType
			name = name || line.ActionName == last.ActionName
		}
	}
	first := terms[:0]
	for i, known := range [...]bool{decision, agent, kind, name} {
		if !known {
			first = append(first, terms[i])
		}
	}
	return first
}

func (l *SummaryLine) acted() Acted {
	return Acted{l.AgentName, l.ActionType, l.ActionName, l.Outcome}
}

// CountTerms folds the next event, and returns the terms of its action in the list of
// chains that no event before it has.
func (s *Summary) CountTerms(org OrgID, e *Event) []Term {
	lines := len(s.lines)
	if s.Count(e); len(s.lines) == lines {
		return nil
	}
	return s.firstTerms(ListChains, org)
}

// Acted are the actions of the summary, each kind once.
func (s *Summary) Acted() []Acted {
	actions := make([]Acted, len(s.lines))
	for i := range s.lines {
		actions[i] = s.lines[i].acted()
	}
	return actions
}

// ReceiptTerms are those of a chain and its actions in the list of receipts, each once.
func ReceiptTerms(c *Chain, actions []Acted) []Term {
	terms := ListReceipts.ChainTerms(c)
	for _, acted := range actions {
		terms = append(terms, ListReceipts.ActionTerms(c.Org, acted)...)
	}
	slices.Sort(terms)
	return slices.Compact(terms)
}
