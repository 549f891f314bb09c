package ledger

import (
	"errors"
	"slices"
	"strconv"
	"time"

	"countersign/internal/canon"
	"countersign/internal/fault"
)

// A chain that nobody uses any more is sealed as failed, with FailureAbandoned. Whatever arrives
// for it later is recorded in a successor. The invariant: a chain and its successors together may
// do what one chain that was never sealed could do. So a successor carries over everything that
// limits count, and only what bounds the size of a receipt starts again.

// FailureAbandoned is the error type of a chain that was sealed as abandoned.
const FailureAbandoned = "abandoned"

// maxContinued bounds the chains that one chain continues, because it names them all. With the
// default of 72 hours that is eight years.
const maxContinued = 1000

// Carried is what all chains before a successor have used together.
type Carried struct {
	Actions  int64
	Markers  int64 // recorded among the actions
	Tokens   int64
	Exposure Money
	Since    Time // when the first of them was opened
}

func (c *Carried) empty() bool { return c.Since == 0 }

func (c *Carried) appendTo(dst []byte) []byte {
	w := canon.BeginObject(dst)
	w.Int("actions", c.Actions)
	w.String("exposure", c.Exposure.String())
	if c.Markers > 0 {
		w.Int("markers", c.Markers)
	}
	w.Int("since", int64(c.Since))
	w.Int("tokens", c.Tokens)
	return w.End()
}

// TotalActions counts the actions of the chain and of those that it continues.
func (s *ChainState) TotalActions() int64 { return s.Carried.Actions + s.ActionsTaken() }

// totalMarkers counts the markers of the chain and of those that it continues.
func (s *ChainState) totalMarkers() int64 { return s.Carried.Markers + s.Markers }

// TotalTokens counts the tokens of the chain and of those that it continues.
func (s *ChainState) TotalTokens() int64 { return addCount(s.Carried.Tokens, s.Tokens) }

// TotalExposure returns the exposure of the chain and of those that it continues.
func (s *ChainState) TotalExposure() Money {
	return s.Carried.Exposure.Add(s.Metrics.FinancialExposure)
}

// Begun returns the time from which the chain's age counts: a successor is as old as the first
// chain that it continues.
func (s *ChainState) Begun(chain *Chain) Time {
	if s.Carried.empty() {
		return chain.StartedAt
	}
	return s.Carried.Since
}

func (r *recordReader) carried() Carried {
	nested := r.nested("carried")
	if nested == nil {
		return Carried{}
	}
	carried := Carried{
		Actions: nested.Int("actions", 0, maxCount), Markers: nested.Int("markers", 0, maxCount), Tokens: nested.Int("tokens", 0, maxCount),
		Exposure: nested.requiredMoney("exposure"), Since: nested.milliseconds("since"),
	}
	r.join(nested)
	return carried
}

// encodeContinues writes nothing for a chain that continues none, so that its bytes do not change.
func (c *Chain) encodeContinues(w *canon.ObjectWriter) {
	if len(c.Continues) == 0 {
		return
	}
	texts := make([]string, 0, len(c.Continues))
	for _, id := range c.Continues {
		texts = append(texts, id.String())
	}
	w.Strings("continues", texts)
}

func (r *recordReader) continues() []ChainID {
	var continues []ChainID
	for _, text := range r.Texts("continues", maxContinued, maxName) {
		id, err := ParseID(text)
		r.failed = r.failed || err != nil
		continues = append(continues, ChainID{id})
	}
	return continues
}

// Predecessor returns the chain that this one continues, or nil.
func (c *Chain) Predecessor() *ChainID {
	if len(c.Continues) == 0 {
		return nil
	}
	return &c.Continues[len(c.Continues)-1]
}

// First returns the first chain of the lineage, which is the chain itself if it continues none.
func (c *Chain) First() ChainID {
	if len(c.Continues) == 0 {
		return c.ID
	}
	return c.Continues[0]
}

// in reports whether an id is that of the chain or of one that it continues.
func (c *Chain) in(id ChainID) bool { return id == c.ID || slices.Contains(c.Continues, id) }

// Limits of abandon_after_hours, and its default.
const (
	minAbandonHours     = 1.0 / 3600
	maxAbandonHours     = 24 * 365
	defaultAbandonHours = 72
)

// AbandonHours returns the setting as it is shown.
func (s *Settings) AbandonHours() float64 {
	if s.AbandonAfterHours == 0 {
		return defaultAbandonHours
	}
	return s.AbandonAfterHours
}

// AbandonAfter returns how long a chain may be unused before it is abandoned.
func (s *Settings) AbandonAfter() time.Duration { return hours(s.AbandonHours()) }

// maxPollGrain is short, so that lowering the setting to any longer time does not abandon a chain
// that is polled continuously.
const maxPollGrain = 10 * time.Minute

// PollGrain returns how far the recorded time of a chain's last poll may lag before it is written
// again.
func (s *Settings) PollGrain() time.Duration { return min(maxPollGrain, s.AbandonAfter()/8) }

// AbandonedAt returns when the chain may be sealed as abandoned. polled is the recorded time of the
// last poll, or 0. lag is how long recording a poll can take. ok is false for a chain that is not
// abandoned in its current state: one that is paused, sealed or waiting for a person.
func (s *ChainState) AbandonedAt(settings *Settings, polled Time, lag time.Duration) (Time, bool) {
	if s.Status != ChainActive || s.Waiting > 0 {
		return 0, false
	}
	return max(s.LastAt, polled).Add(settings.AbandonAfter() + settings.PollGrain() + lag), true
}

// Abandonment returns the completion of an abandoned chain.
func Abandonment(settings *Settings) *Completion {
	return &Completion{Failed: true, Abandoned: true, Failure: &Failure{
		Type:    FailureAbandoned,
		Message: "no request for longer than abandon_after_hours (" + strconv.FormatFloat(settings.AbandonHours(), 'f', -1, 64) + ")",
	}}
}

// errTooOften is for a chain that was abandoned and continued too often.
var errTooOften = fault.Errorf(fault.CodeChainSealed, "the chain was abandoned and continued %d times, the most it can be: open a new chain", maxContinued)

var errNotAbandoned = errors.New("only an abandoned chain has a successor")

// Succeed opens the successor of an abandoned chain and records it there. The successor equals the
// chain except for its id and opening time: it belongs to the same key and has the same limits.
func (s *ChainState) Succeed(chain *Chain, id ChainID, policyVersion string, now Time) (*Chain, *ChainState, error) {
	if !s.Abandoned || s.ContinuedBy != nil {
		return nil, nil, errNotAbandoned
	}
	if len(chain.Continues) >= maxContinued {
		return nil, nil, errTooOften
	}
	now = Later(now, s.LastAt)
	next := *chain
	next.ID, next.StartedAt, next.IdempotencyKey, next.stored = id, now, "", nil
	next.Continues = append(slices.Clone(chain.Continues), chain.ID)
	state := NewChainState(now, policyVersion)
	state.Granted = s.Granted
	state.Leases = UsedLeases{Forgotten: s.Leases.Forgotten, Used: slices.Clone(s.Leases.Used)}
	state.Carried = Carried{
		Actions: s.TotalActions(), Markers: s.totalMarkers(), Tokens: s.TotalTokens(), Exposure: s.TotalExposure(), Since: s.Begun(chain),
	}
	s.ContinuedBy = &id
	return &next, state, nil
}
