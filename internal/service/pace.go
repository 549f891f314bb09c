package service

import "time"

// pace makes whoever evaluates for long pause now and then, so that others are served
// meanwhile. On few cores the scheduler alone would not see to it: as long as something
// runs, it looks for new requests every ten milliseconds only, and yielding does not
// change that. It is used by one goroutine.
type pace struct {
	steps int
	last  time.Time // when it began, or last paused
}

const (
	stretch      = time.Millisecond       // that is evaluated at a time
	breather     = 100 * time.Microsecond // between two stretches
	stepsToClock = 16                     // a look at the clock costs as much as a small step
)

// step is called between two steps of something that may take long.
func (p *pace) step() {
	if p.steps++; p.steps%stepsToClock != 0 {
		return
	}
	now := time.Now()
	switch {
	case p.last.IsZero():
		p.last = now
	case now.Sub(p.last) >= stretch:
		time.Sleep(breather)
		p.last = time.Now()
	}
}
