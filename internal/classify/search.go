package classify

import (
	"github.com/shopspring/decimal"

	"countersign/internal/canon"
)

// search walks a payload once and collects what it finds.
type search struct {
	amounts  bool // no amount is known yet that would be believed first
	counting bool // counts of records are believed
	listing  bool // lists of records are counted: the action changes records

	levels   []level // by depth; the payload itself is level 0
	explicit bool    // some key can only be about money
	obscure  bool    // below level 0 stands money that cannot be read
	hosts    hosts
}

// level is what the objects of one depth hold together. Lists add no depth: the
// payments of a batch stand side by side.
type level struct {
	money   money
	records int64
}

// at returns the level of a depth, which exists only once something was found.
func (s *search) at(depth int) *level {
	for len(s.levels) <= depth {
		s.levels = append(s.levels, level{})
	}
	return &s.levels[depth]
}

// object looks at one object's own members before those below, which inherit
// the currency that it states.
func (s *search) object(v canon.Value, depth int, inherited currency) {
	var own purse
	records, deeper := int64(0), false
	for _, m := range v.Members() {
		r := roleOf(m.Name)
		if s.amounts {
			own.take(r, m.Value)
		}
		records = max(records, s.count(r, m.Value))
		s.hosts.scan(m.Name)
		switch m.Value.Kind() {
		case canon.String:
			s.text(r, m.Value.Str())
		case canon.Array, canon.Object:
			deeper = true
		}
	}
	if own.currency == unstated {
		own.currency = inherited
	}
	s.spend(&own, depth)
	if records > 0 {
		l := s.at(depth)
		l.records = min(l.records+records, MaxRecords)
	}
	if !deeper {
		return
	}
	for _, m := range v.Members() {
		switch m.Value.Kind() {
		case canon.Object:
			s.object(m.Value, depth+1, own.currency)
		case canon.Array:
			s.list(m.Value, depth, roleOf(m.Name), own.currency)
		}
	}
}

// list looks at items, which mean what the list's key says.
func (s *search) list(v canon.Value, depth int, r role, c currency) {
	for _, item := range v.Items() {
		switch item.Kind() {
		case canon.String:
			s.text(r, item.Str())
		case canon.Object:
			s.object(item, depth+1, c)
		case canon.Array:
			s.list(item, depth, r, c)
		}
	}
}

func (s *search) text(r role, text string) {
	s.hosts.scan(text)
	if r == roleHost {
		s.hosts.bare(text)
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

// spend adds an object's money to its level. Money that cannot be read spoils
// the whole level: a sum that leaves a payment out would be too small.
func (s *search) spend(own *purse, depth int) {
	m := own.money()
	if m.state == absent {
		return
	}
	s.explicit = s.explicit || own.explicit || depth == 0
	s.amounts = s.amounts && depth > 0
	s.obscure = s.obscure || depth > 0 && m.state == unreadable
	l := s.at(depth)
	if l.money.state == absent {
		l.money = m
		return
	}
	l.money.amount = l.money.amount.Add(m.amount)
}

// financial reports whether the payload alone makes the action financial. Plain
// keys do so only at the top: a price deep inside may be a catalogue's.
func (s *search) financial() bool { return s.explicit }

// amount is what counts for the thresholds: what the metadata say, else what the
// payload itself says, else the largest sum of any level below, so that a small
// amount hides no big one elsewhere.
func (s *search) amount(declared money) *decimal.Decimal {
	if declared.state == readable {
		return &declared.amount
	}
	if len(s.levels) == 0 {
		return nil
	}
	best := s.levels[0].money
	if best.state == absent && !s.obscure {
		for _, l := range s.levels[1:] {
			best = best.larger(l.money)
		}
	}
	if best.state != readable {
		return nil
	}
	return &best.amount
}

// records follows the same order as amount.
func (s *search) records() int64 {
	most := int64(0)
	for depth, l := range s.levels {
		most = max(most, l.records)
		if depth == 0 && most > 0 {
			break
		}
	}
	return most
}
