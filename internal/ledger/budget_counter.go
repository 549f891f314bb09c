package ledger

import (
	"errors"
	"strings"

	"countersign/internal/canon"
)

// BudgetCounter is what actions have taken of one budget in one window. It is stored
// with an authenticator, as a chain's state is.
type BudgetCounter struct {
	CounterKey
	Label    string // the subject as people know it: as it was spelt first
	Revision int64  // counts how often the counter was stored
	Moves    int64  // counts what was entered: uses, and the ends of approvals
	Uses     int64  // actions that took something
	Spent    Money  // by what was allowed or approved
	Waiting  Money  // held by what waits for approval
}

// NewBudgetCounter is a counter in which nothing is counted.
func NewBudgetCounter(key CounterKey, label string) *BudgetCounter {
	key.Value, label = strings.Clone(key.Value), strings.Clone(label) // a part of a request's text would keep all of it
	return &BudgetCounter{CounterKey: key, Label: label}
}

// BudgetUse is what one action took of one budget. It stands in the action's event, so
// that the counter can be counted anew, and in its approval.
type BudgetUse struct {
	Budget  string // its name
	Counter CounterID
	Amount  Money
}

// Used is what counts against the limit.
func (c *BudgetCounter) Used() Money { return c.Spent.Add(c.Waiting) }

func (c *BudgetCounter) take(amount Money, waiting bool) {
	c.Moves, c.Uses = c.Moves+1, c.Uses+1
	if waiting {
		c.Waiting = c.Waiting.Add(amount)
	} else {
		c.Spent = c.Spent.Add(amount)
	}
}

// Settle ends what waited: it counts as spent where a person said yes, and is given back
// otherwise.
func (c *BudgetCounter) Settle(amount Money, approved bool) {
	c.Moves++
	c.Waiting = less(c.Waiting, amount)
	if approved {
		c.Spent = c.Spent.Add(amount)
	}
}

// less subtracts and stops at zero.
func less(from, amount Money) Money {
	if rest := from.Sub(amount); rest.Cmp(Money{}) > 0 {
		return rest
	}
	return Money{}
}

// Encode writes the canonical bytes of the counter and their authenticator.
func (c *BudgetCounter) Encode(keys Keys) (body, mac []byte) {
	w := canon.BeginObject(make([]byte, 0, 320))
	w.String("budget", c.Budget)
	w.String("label", c.Label)
	w.String("measure", string(c.Measure))
	w.Int("moves", c.Moves)
	w.String("organization_id", c.Org.String())
	w.Int("revision", c.Revision)
	w.String("scope", string(c.Scope))
	w.String("spent", c.Spent.String())
	w.Int("uses", c.Uses)
	w.String("value", c.Value)
	w.String("waiting", c.Waiting.String())
	w.String("window", string(c.Window))
	w.Int("window_start", int64(c.Start))
	body = w.End()
	return body, authenticate(keys, c.Org, PurposeBudgetCounter, body)
}

var errUnreadableCounter = errors.New("stored budget counter cannot be read")

// DecodeBudgetCounter reads what Encode wrote and refuses anything else.
func DecodeBudgetCounter(body, mac []byte, keys Keys, org OrgID) (*BudgetCounter, error) {
	if !authentic(keys, org, PurposeBudgetCounter, mac, body) {
		return nil, ErrStateTampered
	}
	v, err := canon.Parse(body)
	if err != nil {
		return nil, errUnreadableCounter
	}
	f := NewFields(v)
	r := idReader{fields: f}
	c := &BudgetCounter{
		CounterKey: CounterKey{
			Org: OrgID{r.id("organization_id")}, Budget: f.Text("budget", maxName), Scope: BudgetScope(f.Text("scope", maxName)),
			Measure: Measure(f.Text("measure", maxName)), Window: Window(f.Text("window", maxName)),
			Start: Time(f.Int("window_start", 0, maxCount)), Value: f.Text("value", maxStored),
		},
		Label: f.Text("label", maxStored), Revision: f.Int("revision", 0, maxCount), Moves: f.Int("moves", 0, maxCount), Uses: f.Int("uses", 0, maxCount),
	}
	spent, waiting := r.money("spent"), r.money("waiting")
	if spent == nil || waiting == nil || r.failed || f.Err() != nil || c.Org != org {
		return nil, errUnreadableCounter
	}
	c.Spent, c.Waiting = *spent, *waiting
	return c, nil
}

// appendUses writes what an action took of budgets, as events and approvals carry it.
func appendUses(dst []byte, uses []BudgetUse) []byte {
	dst = append(dst, '[')
	for i := range uses {
		if i > 0 {
			dst = append(dst, ',')
		}
		w := canon.BeginObject(dst)
		w.String("amount", uses[i].Amount.String())
		w.String("counter", uses[i].Counter.String())
		w.String("name", uses[i].Budget)
		dst = w.End()
	}
	return append(dst, ']')
}

// readUses reads what appendUses wrote; records from before there were any have none.
func readUses(f *Fields) (uses []BudgetUse, ok bool) {
	list, _ := f.get("budgets")
	ok = true
	for _, item := range list.Items() {
		inner := NewFields(item)
		r := idReader{fields: inner}
		use := BudgetUse{Budget: inner.Text("name", maxName), Counter: CounterID{r.id("counter")}}
		amount := r.money("amount")
		if r.failed || amount == nil || inner.Err() != nil {
			return nil, false
		}
		use.Amount = *amount
		uses = append(uses, use)
	}
	return uses, ok
}
