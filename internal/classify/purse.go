package classify

import "countersign/internal/canon"

// purse holds the money that stands in one object.
type purse struct {
	amounts  [amountRoles]money // by role, the one believed first in front
	filled   bool
	explicit bool // a key stands in it that can only be about money
	currency currency
}

func (p *purse) take(r role, v canon.Value) {
	switch {
	case r == roleCurrency:
		p.currency = max(p.currency, readCurrency(v))
	case r != roleNone && int(r) <= amountRoles:
		p.takeAmount(r, v)
	}
}

func (p *purse) takeAmount(r role, v canon.Value) {
	m := readMoney(v)
	if m.state == absent || m.state == unreadable && r.isPlain() {
		return
	}
	p.filled = true
	p.explicit = p.explicit || !r.isPlain()
	slot := &p.amounts[r-1]
	*slot = slot.larger(m)
}

// money returns the first amount in US dollars, unreadable money when there are
// only others.
func (p *purse) money() money {
	if !p.filled {
		return money{}
	}
	for i, m := range p.amounts {
		if m.state == readable && (p.currency != foreign || role(i+1).isDollars()) {
			return m
		}
	}
	return money{state: unreadable}
}
