package classify

import (
	"slices"

	"github.com/shopspring/decimal"

	"countersign/internal/canon"
)

// search walks a payload once and collects what it finds.
type search struct {
	byName   bool // the action is financial by its name: value is an amount
	counting bool // counts of records are believed
	listing  bool // lists of records are counted: the action changes records

	amounts  int     // how many amounts were found, whether they can be used or not
	explicit bool    // some key can only be about money, or a plain one stands at the top
	unusable bool    // some amount cannot be read, or is in another currency
	unstated bool    // some amount has no currency stated beside or above it
	foreign  bool    // a currency other than the dollar is named somewhere
	records  []int64 // by depth; the payload itself is depth 0
	hosts    hosts
	code     bool // a statement or a program stands in it
	sql      bool // a statement that changes a database stands in it
	unseen   bool // something lies deeper than it looks

	nesting int      // how many containers are around the present place
	model   string   // the payload's own
	models  []string // those that stand beside tokens below it, each once, at most two
}

// object looks at one object's own members before those below, which inherit
// the currency that it states. Tokens count in the payload itself, beside a model,
// and under a key of usage.
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
			model = max(model, readModel(m.Value.Str())) // one of two spellings
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
		s.holdAgainst(stated)
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

// name notes a model. Below the payload's own members it counts only beside tokens:
// cars have models too.
func (s *search) name(model string, depth int, used tokens) {
	switch {
	case depth == 0:
		s.model = model
	case used != (tokens{}) && len(s.models) < 2 && !slices.Contains(s.models, model):
		s.models = append(s.models, model)
	}
}

// called returns the model that the payload names. Between two that stand below, it
// would have to guess.
func (s *search) called() string {
	if s.model == "" && len(s.models) == 1 {
		return s.models[0]
	}
	return s.model
}

// below looks at the container under a key. One under an amount's key must have an
// amount in it, or there is one that cannot be read.
func (s *search) below(m canon.Member, depth int, c currency) sums {
	r, before := roleOf(m.Name), s.amounts
	found := s.container(m.Value, depth, r, c)
	if r.isExplicit() {
		s.explicit = true
		s.unusable = s.unusable || s.amounts == before
	}
	return found
}

// container looks at an object or a list, unless it lies too deep. What arrives at
// the service never does: canon.Parse refuses it.
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

// list looks at items, which mean what the list's key says. They are summed: the
// payments of a batch are made together.
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
				s.holdAgainst(c)
			}
			sum.amount = sum.amount.plus(amount)
		}
	}
	return sum
}

// amount reads what stands under an amount's key. It is absent where there is none
// that can be used.
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

// holdAgainst notes the currency that an amount is in whose key names none.
func (s *search) holdAgainst(c currency) {
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

// count returns how many records a member speaks of.
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

// record adds to what the objects of one depth speak of together. Lists add no
// depth: the operations of a batch stand side by side.
func (s *search) record(records int64, depth int) {
	if records == 0 {
		return
	}
	for len(s.records) <= depth {
		s.records = append(s.records, 0)
	}
	s.records[depth] = min(s.records[depth]+records, MaxRecords)
}

// mostRecords is the largest sum of any depth, so that a small count hides no big
// one elsewhere.
func (s *search) mostRecords() int64 {
	most := int64(0)
	for _, records := range s.records {
		most = max(most, records)
	}
	return most
}

// usable returns what counts for the thresholds: the largest of what the metadata
// and the payload say. There is none when any of it cannot be read, is in another
// currency, or states no currency in a payload that names a foreign one.
func (s *search) usable(declared, found money) (amount *decimal.Decimal, unusable bool) {
	if s.unusable || s.unstated && s.foreign || declared.state == unreadable {
		return nil, true
	}
	if largest := declared.larger(found); largest.state == readable {
		return &largest.amount, false
	}
	return nil, false
}
