package classify

import (
	"slices"

	"github.com/shopspring/decimal"

	"countersign/internal/canon"
)

// search walks a payload once and collects what it finds.
type search struct {
	byName   bool // the action's name is financial, so value is an amount
	counting bool // counts of records are used
	listing  bool // lists of records are counted, because the action changes records

	amounts  int     // number of amounts found, usable or not
	explicit bool    // some key is always about money, or a plain one is at the top level
	unusable bool    // some amount cannot be read, or is in another currency
	unstated bool    // some amount has no currency next to or above it
	foreign  bool    // a currency other than the dollar is named somewhere
	records  []int64 // by depth; the payload itself is depth 0
	hosts    hosts
	code     bool // it contains a statement or a program
	sql      bool // it contains a statement that changes a database
	unseen   bool // something is nested too deeply to be read

	nesting int      // number of enclosing containers
	model   string   // of the payload itself
	models  []string // models next to tokens below it, each once, at most two
}

// object reads an object's own members before those below, which inherit the currency that it
// states. Tokens count in the payload itself, next to a model, and under a usage key.
func (s *search) object(v canon.Value, depth int, inherited currency, key role) sums {
	var largest sums
	var used tokens
	model := ""
	stated, records, deeper, bare := unstated, int64(0), false, false
	for _, m := range v.Members() {
		r := roleOf(m.Name)
		records = max(records, s.count(r, m.Value))
		s.hosts.scan(m.Name)
		switch kind := m.Value.Kind(); {
		case r == roleCurrency || r == roleUnit:
			stated = max(stated, s.currency(r, m.Value))
		case r == roleModel:
			model = max(model, readModel(m.Value.Str())) // if it occurs in two spellings
		case r == roleInput || r == roleOutput:
			used.take(r, m.Value)
		case r.isAmount() && kind != canon.Array && kind != canon.Object:
			amount := s.amount(r, m.Value, depth)
			bare = bare || amount.state != absent && r != roleDollars
			largest.amount = largest.amount.larger(amount)
		}
		switch m.Value.Kind() {
		case canon.String:
			s.text(r, m.Value.Str())
		case canon.Array, canon.Object:
			deeper = true
		}
	}
	if stated == unstated {
		stated = inherited
	}
	if bare {
		s.noteCurrency(stated)
	}
	s.record(records, depth)
	if depth == 0 || key == roleUsage || model != "" {
		largest.tokens = used
	}
	if deeper {
		for _, m := range v.Members() {
			if kind := m.Value.Kind(); kind == canon.Array || kind == canon.Object {
				largest = largest.larger(s.below(m, depth, stated))
			}
		}
	}
	if model != "" {
		s.name(model, depth, largest.tokens)
	}
	return largest
}

// name records a model. Below the payload's own members it counts only next to tokens, because cars
// have models too.
func (s *search) name(model string, depth int, used tokens) {
	switch {
	case depth == 0:
		s.model = model
	case used != (tokens{}) && len(s.models) < 2 && !slices.Contains(s.models, model):
		s.models = append(s.models, model)
	}
}

// called returns the model that the payload names. If there are two below it, choosing one would be
// a guess.
func (s *search) called() string {
	if s.model == "" && len(s.models) == 1 {
		return s.models[0]
	}
	return s.model
}

// below reads the container under a key. A container under an amount's key must contain an amount,
// otherwise there is one that cannot be read.
func (s *search) below(m canon.Member, depth int, c currency) sums {
	r, before := roleOf(m.Name), s.amounts
	found := s.container(m.Value, depth, r, c)
	if r.isExplicit() {
		s.explicit = true
		s.unusable = s.unusable || s.amounts == before
	}
	return found
}

// container reads an object or a list unless it is nested too deeply. That does not happen in the
// service, because canon.Parse refuses it.
func (s *search) container(v canon.Value, depth int, key role, c currency) (found sums) {
	if s.nesting == canon.MaxDepth {
		s.unseen = true
		return sums{}
	}
	s.nesting++
	if v.Kind() == canon.Object {
		found = s.object(v, depth+1, c, key)
	} else {
		found = s.list(v, depth, key, c)
	}
	s.nesting--
	return found
}

// list reads items, which have the meaning of the list's key. They are summed, because the payments
// of a batch are made together.
func (s *search) list(v canon.Value, depth int, r role, c currency) sums {
	var sum sums
	for _, item := range v.Items() {
		switch item.Kind() {
		case canon.Object, canon.Array:
			sum = sum.plus(s.container(item, depth, r, c))
		default:
			if item.Kind() == canon.String {
				s.text(r, item.Str())
			}
			if !r.isAmount() {
				continue
			}
			amount := s.amount(r, item, depth)
			if amount.state != absent && r != roleDollars {
				s.noteCurrency(c)
			}
			sum.amount = sum.amount.plus(amount)
		}
	}
	return sum
}

// amount reads the value of an amount's key. It is absent if there is none that can be used.
func (s *search) amount(r role, v canon.Value, depth int) money {
	m := readMoney(v)
	switch {
	case m.state == absent || r == roleValue && !s.byName:
		return money{}
	case m.state == unreadable && !r.isExplicit():
		s.unusable = s.unusable || looksLikeMoney(v)
		return money{}
	}
	s.amounts++
	s.explicit = s.explicit || r.isExplicit() || r == rolePlain && depth == 0
	if m.state == unreadable {
		s.unusable = true
		return money{}
	}
	return m
}

func (s *search) currency(r role, v canon.Value) currency {
	c := readCurrency(r, v)
	s.foreign = s.foreign || c == foreign && r == roleCurrency
	return c
}

// noteCurrency records the currency of an amount whose key names none.
func (s *search) noteCurrency(c currency) {
	s.unusable = s.unusable || c == foreign
	s.unstated = s.unstated || c == unstated
}

func (s *search) text(r role, text string) {
	s.hosts.scan(text)
	switch r {
	case roleCode:
		s.code = true
		s.sql = s.sql || writesSQL(text)
	case roleQuery:
		s.code = s.code || beginsStatement(text)
		s.sql = s.sql || writesSQL(text)
	case roleHost:
		s.hosts.bare(text, asURL)
	case roleLink:
		s.hosts.bare(text, asLink)
	case roleTarget:
		s.hosts.bare(text, asTarget)
	}
}

// count returns the number of records that a member mentions.
func (s *search) count(r role, v canon.Value) int64 {
	switch {
	case r == roleCount && s.counting && v.Kind() == canon.Number:
		return readCount(v, MaxRecords)
	case (r == roleCount || r == roleIDs) && s.listing:
		return int64(len(v.Items()))
	default:
		return 0
	}
}

// record adds to the sum of records for one depth. Lists add no depth, because the operations of a
// batch are side by side.
func (s *search) record(records int64, depth int) {
	if records == 0 {
		return
	}
	for len(s.records) <= depth {
		s.records = append(s.records, 0)
	}
	s.records[depth] = min(s.records[depth]+records, MaxRecords)
}

// maxRecords returns the largest sum of any depth, so that a small count does not hide a large one
// elsewhere.
func (s *search) maxRecords() int64 {
	most := int64(0)
	for _, records := range s.records {
		most = max(most, records)
	}
	return most
}

// usable returns what counts for the thresholds: the largest amount in the metadata and the
// payload. There is none if any amount cannot be read, is in another currency, or has no currency
// in a payload that names a foreign one.
func (s *search) usable(declared, found money) (amount *decimal.Decimal, unusable bool) {
	if s.unusable || s.unstated && s.foreign || declared.state == unreadable {
		return nil, true
	}
	if largest := declared.larger(found); largest.state == readable {
		return &largest.amount, false
	}
	return nil, false
}
