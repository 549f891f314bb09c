package ledger

import (
	"errors"
	"slices"
	"strconv"

	"countersign/internal/canon"
	"countersign/internal/fault"
)

// A chain ends when nobody asks for it any more: it is sealed as failed, with
// FailureAbandoned. What arrives for it later is recorded in a successor. The
// invariant: what a chain and its successors may do together is what one chain that
// was never sealed would be let do. So a successor carries over all that limits are
// held against, and only what bounds the size of a receipt begins anew.

// FailureAbandoned is the error type of a chain that was sealed as abandoned.
const FailureAbandoned = "abandoned"

// maxContinued bounds the chains that one chain continues, for it names them all. At
// the default of 72 hours that is eight years.
const maxContinued = 1000

// Carried is what the chains before a successor have used, all of them together.
type Carried struct {
	Actions  int64
	Markers  int64 // recorded beside the actions
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

// TotalExposure is that of the chain and of those that it continues.
func (s *ChainState) TotalExposure() Money {
	return s.Carried.Exposure.Add(s.Metrics.FinancialExposure)
}

// Begun is from when the chain's age counts: a successor is as old as the first chain
// that it continues.
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

// encodeContinues writes nothing for a chain that continues none: such a chain has
// the bytes that it always had.
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

// Predecessor is the chain that this one continues, nil for none.
func (c *Chain) Predecessor() *ChainID {
	if len(c.Continues) == 0 {
		return nil
	}
	return &c.Continues[len(c.Continues)-1]
}

// First is the chain with which this one and those that it continues began: itself
// where it continues none.
func (c *Chain) First() ChainID {
	if len(c.Continues) == 0 {
		return c.ID
	}
	return c.Continues[0]
}

// in reports whether an id is the chain's or that of one that it continues.
func (c *Chain) in(id ChainID) bool { return id == c.ID || slices.Contains(c.Continues, id) }

// Bounds of abandon_after_hours, and what an organization has that has set none.
const (
	minAbandonHours     = 1.0 / 3600
	maxAbandonHours     = 24 * 365
	defaultAbandonHours = 72
)

// AbandonHours is the setting as it is shown.
func (s *Settings) AbandonHours() float64 {
	if s.AbandonAfterHours == 0 {
		return defaultAbandonHours
	}
	return s.AbandonAfterHours
}

// AbandonAfter is for how long nobody may ask for a chain before it is abandoned.
func (s *Settings) AbandonAfter() Time { return Time(s.AbandonHours() * 3_600_000) }

// maxPollGrain is short enough that a chain which is polled all the time is not
// abandoned when the setting is lowered to anything longer than that.
const maxPollGrain = Time(10 * 60 * 1000)

// PollGrain is how far the moment of a chain's last poll may lie behind before it is
// written down anew.
func (s *Settings) PollGrain() Time { return min(maxPollGrain, s.AbandonAfter()/8) }

// AbandonedAt is when the chain may be sealed as abandoned. Polled is when it was last
// polled as far as that was written down, 0 for never; lag is how long a poll can take
// to be written down. It reports false for a chain that is never abandoned as it
// stands: one that is paused or sealed, or that waits for a person.
func (s *ChainState) AbandonedAt(settings *Settings, polled, lag Time) (Time, bool) {
	if s.Status != ChainActive || s.Waiting > 0 {
		return 0, false
	}
	return max(s.LastAt, polled) + settings.AbandonAfter() + settings.PollGrain() + lag, true
}

// Abandonment is the completion of a chain that nobody asked for any more.
func Abandonment(settings *Settings) *Completion {
	return &Completion{Failed: true, Abandoned: true, Failure: &Failure{
		Type:    FailureAbandoned,
		Message: "no request for longer than abandon_after_hours (" + strconv.FormatFloat(settings.AbandonHours(), 'f', -1, 64) + ")",
	}}
}

// errTooOften is for a chain that was abandoned and continued too often.
var errTooOften = fault.Errorf(fault.CodeChainSealed, "the chain was abandoned and continued %d times, the most it can be: open a new chain", maxContinued)

var errNotAbandoned = errors.New("only an abandoned chain has a successor")

// Succeed opens the successor of an abandoned chain, which from then on names it. The
// successor is the chain over again, but for its id and the moment of its opening: it
// belongs to the same key, and is under the same limits.
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
