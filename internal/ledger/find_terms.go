package ledger

import "encoding/binary"

// Term is a key of the search index: a hash of a list, an organization and a value. A collision of
// hashes only costs looking at a record that does not match.
type Term int64

// SearchList is a list that can be searched.
type SearchList byte

// The searchable lists. Each has its own terms.
const (
	ListChains    SearchList = 'c'
	ListReceipts  SearchList = 'r'
	ListApprovals SearchList = 'a'
)

// Kinds of terms.
const (
	termWord     = 'w'
	termPair     = 'm'
	termAgent    = 'a'
	termType     = 't'
	termName     = 'n'
	termDecision = 'd'
)

// termHash is the state of FNV-1a.
type termHash uint64

func (h termHash) add(b byte) termHash {
	const prime = 1099511628211
	return (h ^ termHash(b)) * prime
}

// text adds a text and its length, so that different values have different input.
func (h termHash) text(text string) termHash {
	var size [4]byte
	binary.BigEndian.PutUint32(size[:], uint32(len(text))) //nolint:gosec // texts of requests are much shorter
	for _, b := range size {
		h = h.add(b)
	}
	for i := range len(text) {
		h = h.add(text[i])
	}
	return h
}

func (l SearchList) term(org OrgID, kind byte, texts ...string) Term {
	const offset = 14695981039346656037
	h := termHash(offset).add(byte(l)).add(kind)
	for _, b := range org.UUID {
		h = h.add(b)
	}
	for _, text := range texts {
		h = h.text(text)
	}
	return Term(h) //nolint:gosec // the same 64 bits
}

// fewTerms is about how many terms most records have.
const fewTerms = 12

// ChainTerms returns the terms of a chain's name and metadata.
func (l SearchList) ChainTerms(c *Chain) []Term {
	terms := make([]Term, 0, fewTerms)
	for _, word := range words(c.Name) {
		terms = append(terms, l.term(c.Org, termWord, word))
	}
	for _, pair := range pairs(c.Metadata) {
		terms = append(terms, l.term(c.Org, termPair, pair.Key, pair.Value))
	}
	return terms
}

// ActionTerms returns the terms of an action: its agent, type and name, each with the decision, and
// the decision alone. A marker has none.
func (l SearchList) ActionTerms(org OrgID, a SearchedAction) []Term {
	if a.Marker() {
		return nil
	}
	d := string(a.Decision)
	return []Term{
		l.term(org, termDecision, d), l.term(org, termAgent, d, a.Agent), l.term(org, termType, d, a.Type), l.term(org, termName, d, a.Name),
	}
}

// Condition is one condition of a search: a record that meets it is indexed under one of the terms.
type Condition struct {
	AnyOf   []Term
	Actions bool // it is about actions
}

// Conditions returns the conditions that a record must all meet.
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

// firstTerms returns the terms of the last line that no earlier line has.
func (s *Summary) firstTerms(l SearchList, org OrgID) []Term {
	last := &s.lines[len(s.lines)-1]
	terms := l.ActionTerms(org, last.searchedAction())
	if len(terms) == 0 || len(s.lines) > fewLines {
		return terms // existing terms are not written twice
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

func (l *SummaryLine) searchedAction() SearchedAction {
	return SearchedAction{l.AgentName, l.ActionType, l.ActionName, l.Outcome}
}

// CountTerms folds the next event, and returns the terms of its action in the list of chains that
// no earlier event has.
func (s *Summary) CountTerms(org OrgID, e *Event) []Term {
	lines := len(s.lines)
	if s.Count(e); len(s.lines) == lines {
		return nil
	}
	return s.firstTerms(ListChains, org)
}

// SearchedActions returns the actions of the summary, each kind once.
func (s *Summary) SearchedActions() []SearchedAction {
	actions := make([]SearchedAction, len(s.lines))
	for i := range s.lines {
		actions[i] = s.lines[i].searchedAction()
	}
	return actions
}

// ReceiptTerms returns the terms of a chain and its actions in the list of receipts, some more than
// once.
func ReceiptTerms(c *Chain, actions []SearchedAction) []Term {
	terms := ListReceipts.ChainTerms(c)
	for _, acted := range actions {
		terms = append(terms, ListReceipts.ActionTerms(c.Org, acted)...)
	}
	return terms
}
