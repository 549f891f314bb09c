package ledger

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"countersign/internal/canon"
)

// BudgetCounter is what actions have used of one budget in one window. It is stored with an
// authenticator, like a chain's state.
type BudgetCounter struct {
	CounterKey
	Label    string // the subject for people, in its first spelling
	Revision int64  // number of times the counter was stored
	Moves    int64  // number of changes: uses and the ends of approvals
	Uses     int64  // number of actions that used something
	Spent    Money  // used by allowed and approved actions
	Waiting  Money  // reserved by actions that wait for approval
}

// NewBudgetCounter returns an empty counter.
func NewBudgetCounter(key CounterKey, label string) *BudgetCounter {
	key.Value, label = strings.Clone(key.Value), strings.Clone(label) // a substring would keep the whole request in memory
	return &BudgetCounter{CounterKey: key, Label: label}
}

// BudgetUse is what one action used of one budget. It is part of the action's event, so that the
// counter can be recounted, and of its approval.
type BudgetUse struct {
	Budget  string // name of the budget
	Counter CounterID
	Amount  Money
}

// CounterKey identifies what a counter counts. A budget with a new scope, window or measure gets a
// new counter.
type CounterKey struct {
	Org     OrgID
	Budget  string
	Scope   BudgetScope
	Measure Measure
	Window  Window
	Start   Time // start of the window
	Value   string
}

// ID returns the counter's id.
func (k *CounterKey) ID() CounterID {
	h := sha256.New()
	var size [8]byte
	h.Write(k.Org.UUID[:])
	binary.BigEndian.PutUint64(size[:], uint64(k.Start)) //nolint:gosec // all 64 bits are kept
	h.Write(size[:])
	for _, text := range []string{k.Budget, string(k.Scope), string(k.Measure), string(k.Window), k.Value} {
		binary.BigEndian.PutUint64(size[:], uint64(len(text)))
		h.Write(size[:])
		h.Write([]byte(text))
	}
	var id CounterID
	copy(id.UUID[:], h.Sum(nil))
	id.UUID[6] = id.UUID[6]&0x0f | counterVersion<<4
	id.UUID[8] = id.UUID[8]&0x3f | 0x80
	return id
}

// End returns the end of the window.
func (k *CounterKey) End() Time {
	_, end := k.Window.Span(k.Start)
	return end
}

// Of reports whether the counter belongs to the budget as it is now.
func (k *CounterKey) Of(b *Budget) bool {
	return k.Budget == b.Name && k.Scope == b.Scope && k.Measure == b.Measure() && k.Window == b.Window
}

// CounterID identifies a counter. It is derived from the counter's key. Its UUID version differs
// from all other ids, so it is never the id of a chain.
type CounterID struct{ uuid.UUID }

// counterVersion is the UUID version for custom content (RFC 9562).
const counterVersion = 8

// IsCounterID reports whether an id is that of a counter.
func IsCounterID(id [16]byte) bool { return id[6]>>4 == counterVersion }

// Used returns what counts against the limit.
func (c *BudgetCounter) Used() Money { return c.Spent.Add(c.Waiting) }

func (c *BudgetCounter) take(amount Money, waiting bool) {
	c.Moves, c.Uses = c.Moves+1, c.Uses+1
	if waiting {
		c.Waiting = c.Waiting.Add(amount)
	} else {
		c.Spent = c.Spent.Add(amount)
	}
}

// Settle ends a reservation: an approved amount counts as spent, any other is released.
func (c *BudgetCounter) Settle(amount Money, approved bool) {
	c.Moves++
	c.Waiting = less(c.Waiting, amount)
	if approved {
		c.Spent = c.Spent.Add(amount)
	}
}

// less subtracts but stops at zero.
func less(from, amount Money) Money {
	if rest := from.Sub(amount); rest.Cmp(Money{}) > 0 {
		return rest
	}
	return Money{}
}

// Encode returns the counter's canonical bytes and their authenticator.
func (c *BudgetCounter) Encode(keys Keys) (body, mac []byte) {
	w := canon.BeginObject(make([]byte, 0, 320))
	w.String("budget", c.Budget)
	w.String("label", c.Label)
	w.String("measure", string(c.Measure))
	w.Int("moves", c.Moves)
	writeID(&w, "organization_id", c.Org.UUID)
	w.Int("revision", c.Revision)
	w.String("scope", string(c.Scope))
	w.String("spent", c.Spent.String())
	w.Int("uses", c.Uses)
	w.String("value", c.Value)
	w.String("waiting", c.Waiting.String())
	w.String("window", string(c.Window))
	w.Int("window_start", int64(c.Start))
	body = w.End()
	return body, Authenticate(keys, c.Org, PurposeBudgetCounter, body)
}

var errUnreadableCounter = errors.New("stored budget counter cannot be read")

// DecodeBudgetCounter decodes the result of Encode and refuses anything else.
func DecodeBudgetCounter(body, mac []byte, keys Keys, org OrgID) (*BudgetCounter, error) {
	if !Authentic(keys, org, PurposeBudgetCounter, mac, body) {
		return nil, ErrStateTampered
	}
	r, err := openRecord(body)
	if err != nil {
		return nil, errUnreadableCounter
	}
	c := &BudgetCounter{
		CounterKey: CounterKey{
			Org: OrgID{r.id("organization_id")}, Budget: r.Text("budget", maxName), Scope: BudgetScope(r.Text("scope", maxName)),
			Measure: Measure(r.Text("measure", maxName)), Window: Window(r.Text("window", maxName)),
			Start: r.milliseconds("window_start"), Value: r.Text("value", maxStored),
		},
		Label: r.Text("label", maxStored), Revision: r.Int("revision", 0, maxCount), Moves: r.Int("moves", 0, maxCount), Uses: r.Int("uses", 0, maxCount),
		Spent: r.requiredMoney("spent"), Waiting: r.requiredMoney("waiting"),
	}
	if !r.readable() || c.Org != org {
		return nil, errUnreadableCounter
	}
	return c, nil
}

// appendUses encodes what an action used of budgets, for events and approvals.
func appendUses(dst []byte, uses []BudgetUse) []byte {
	return appendObjects(dst, uses, func(w *canon.ObjectWriter, u *BudgetUse) {
		w.String("amount", u.Amount.String())
		writeID(w, "counter", u.Counter.UUID)
		w.String("name", u.Budget)
	})
}

// budgetUses decodes the result of appendUses. Records that predate budgets have none.
func (r *recordReader) budgetUses() []BudgetUse {
	var uses []BudgetUse
	r.each("budgets", func(inner *recordReader) {
		uses = append(uses, BudgetUse{Budget: inner.Text("name", maxName), Counter: CounterID{inner.id("counter")}, Amount: inner.requiredMoney("amount")})
	})
	return uses
}

// Applied is a budget that applies to a subject's action, with its counter.
type Applied struct {
	Budget *Budget
	Key    CounterKey
	Label  string
	// Counted says that the action counts against the budget. Otherwise only a rule reads it.
	Counted bool
}

// Applying lists the budgets that apply to an action at a time, and those whose names rules read.
// Budgets that do not cover the subject are omitted.
func (s *Settings) Applying(org OrgID, subject *Subject, action *Action, at Time, read []string) []Applied {
	var applied []Applied
	for i := range s.Budgets {
		b := &s.Budgets[i]
		counted := b.concerns(action)
		if !counted && !slices.Contains(read, b.Name) {
			continue
		}
		value, label, covered := b.value(subject)
		if !covered {
			continue
		}
		start, _ := b.Window.Span(at)
		applied = append(applied, Applied{
			Budget: b, Label: label, Counted: counted,
			Key: CounterKey{Org: org, Budget: b.Name, Scope: b.Scope, Measure: b.Measure(), Window: b.Window, Start: start, Value: value},
		})
	}
	return applied
}

// BudgetStanding is the state of a budget for one action.
type BudgetStanding struct {
	Applied
	Counter *BudgetCounter // changed by Record
	Takes   Money          // what the action uses
}

// Standing returns the state of a budget before the action. counter is the budget's counter for the
// action's subject. It changes when the action is recorded.
func (a Applied) Standing(action *Action, counter *BudgetCounter) BudgetStanding {
	return BudgetStanding{Applied: a, Counter: counter, Takes: a.Budget.takes(action)}
}

// RepeatedStandings returns the state of budgets for an action that was recorded before: its
// counters, with the current limits. A budget that was redefined, deleted or added since does not
// apply.
func (s *Settings) RepeatedStandings(uses []BudgetUse, counter func(CounterID) *BudgetCounter) []BudgetStanding {
	var standings []BudgetStanding
	for _, use := range uses {
		c := counter(use.Counter)
		if c == nil {
			continue
		}
		if b := s.Budget(use.Budget); b != nil && c.Of(b) {
			standings = append(standings, BudgetStanding{
				Applied: Applied{Budget: b, Key: c.CounterKey, Label: c.Label, Counted: true}, Counter: c, Takes: use.Amount,
			})
		}
	}
	return standings
}

// budgetMatches checks an action against the budgets above its chain.
func budgetMatches(q *Question) []Match {
	var matches []Match
	for i := range q.Standings {
		s := &q.Standings[i]
		if !s.Counted {
			continue
		}
		m := Match{Name: s.Budget.Rule(), DocsURL: docsOfBudgets, budget: s.Budget}
		switch {
		case s.over():
			m.Outcome, m.Reason = s.Budget.Decision, s.reason()
			m.Remediation = "Wait until the " + string(s.Budget.Window) + " is over, or have an admin raise the limit under budgets in the organization's settings."
		case s.unpriced(q.Action):
			m.Outcome = RequireApproval
			m.Reason = fmt.Sprintf("the call's cost is not known, so it cannot be held against the budget %q of %s a %s", s.Budget.Name, s.Budget.Show(s.Budget.Limit()), s.Budget.Window)
			m.Remediation = "Name a model that the operator's price table knows, with its tokens, or have the operator add the model to the table."
		default:
			continue
		}
		matches = append(matches, m)
	}
	return matches
}

// over reports whether the action is over the budget: nothing is left, or less than the action
// uses. The cost of a model call is known only after the call, so a call is allowed as long as
// anything is left.
func (s *BudgetStanding) over() bool {
	used, limit := s.Counter.Used(), s.Budget.Limit()
	if used.Cmp(limit) >= 0 {
		return true
	}
	return s.Budget.Measure() != MeasureCost && used.Add(s.Takes).Cmp(limit) > 0
}

// unpriced reports whether an action cannot be checked against a cost budget: it calls a model
// whose price is unknown.
func (s *BudgetStanding) unpriced(a *Action) bool {
	return s.Budget.Measure() == MeasureCost && a.Cost == nil && s.Takes.Cmp(Money{}) == 0 && (a.Facts.Model != "" || a.Facts.Tokens() > 0)
}

func (s *BudgetStanding) reason() string {
	b, c := s.Budget, s.Counter
	_, end := b.Window.Span(c.Start)
	whose := ""
	if b.Scope != ScopeOrganization {
		whose = fmt.Sprintf(" for the %s %q", b.Scope, s.Label)
	}
	waiting := ""
	if c.Waiting.Cmp(Money{}) > 0 {
		waiting = fmt.Sprintf(", %s of it waiting for approval", b.Show(c.Waiting))
	}
	return fmt.Sprintf("the budget %q of %s a %s%s is used up to %s%s, and the action takes %s; the %s ends at %s",
		b.Name, b.Show(b.Limit()), b.Window, whose, b.Show(c.Used()), waiting, b.Show(s.Takes), b.Window, end)
}

// count adds the action to the counters of the budgets that it counts against, and returns what it
// used of each.
func (q *Question) count(status EventStatus) []BudgetUse {
	if status == EventDenied {
		return nil
	}
	var uses []BudgetUse
	for i := range q.Standings {
		s := &q.Standings[i]
		if !s.Counted || s.Takes.Cmp(Money{}) <= 0 {
			continue
		}
		s.Counter.take(s.Takes, status == EventAwaiting)
		uses = append(uses, BudgetUse{Budget: s.Budget.Name, Counter: s.Key.ID(), Amount: s.Takes})
	}
	return uses
}

// withoutUses returns the standings without what an event itself used.
func withoutUses(standings []BudgetStanding, uses []BudgetUse, counted, waiting bool) []BudgetStanding {
	if !counted && !waiting || len(uses) == 0 {
		return standings
	}
	without := slices.Clone(standings)
	for i := range without {
		s := &without[i]
		for _, use := range uses {
			if use.Counter != s.Key.ID() {
				continue
			}
			counter := *s.Counter
			if waiting {
				counter.Waiting = less(counter.Waiting, use.Amount)
			} else {
				counter.Spent = less(counter.Spent, use.Amount)
			}
			s.Counter = &counter
		}
	}
	return without
}
