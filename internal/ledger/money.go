package ledger

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"github.com/shopspring/decimal"

	"countersign/internal/canon"
)

// Money is an exact amount of US dollars. It becomes a double only where JSON
// leaves the service.
type Money struct{ amount decimal.Decimal }

// MoneyOf takes a JSON number for the decimal that its shortest text denotes,
// which is what the sender wrote.
func MoneyOf(number float64) Money { return Money{decimal.NewFromFloat(number)} }

// MoneyFrom takes an exact amount.
func MoneyFrom(amount decimal.Decimal) Money { return Money{amount} }

// moneyOfCount takes a count of anything for an amount, so that budgets of all measures
// are reckoned alike.
func moneyOfCount(count int64) Money { return Money{decimal.NewFromInt(count)} }

// ParseMoney reads a plain decimal.
func ParseMoney(text string) (Money, error) {
	if len(text) > 64 {
		return Money{}, fmt.Errorf("amount of %d characters", len(text))
	}
	return parseExact(text)
}

// parseExact reads what String wrote: a sum of doubles can have hundreds of
// digits.
func parseExact(text string) (Money, error) {
	amount, err := decimal.NewFromString(text)
	if err != nil {
		return Money{}, fmt.Errorf("not a decimal amount")
	}
	return Money{amount}, nil
}

// Add returns the sum.
func (m Money) Add(other Money) Money { return Money{m.amount.Add(other.amount)} }

// Sub returns the difference.
func (m Money) Sub(other Money) Money { return Money{m.amount.Sub(other.amount)} }

// Cmp compares two amounts as cmp.Compare does.
func (m Money) Cmp(other Money) int { return m.amount.Cmp(other.amount) }

// String is the exact decimal.
func (m Money) String() string { return m.amount.String() }

// Float is the nearest double, for JSON, which has no infinity.
func (m Money) Float() float64 {
	return min(max(m.amount.InexactFloat64(), -math.MaxFloat64), math.MaxFloat64)
}

// Fixed is the amount rounded to cents, for people.
func (m Money) Fixed() string { return m.amount.StringFixed(2) }

// Display is the amount for people, without its unit: rounded to cents, the thousands
// set apart. A positive amount below a cent is not shown as nothing.
func (m Money) Display() string {
	cent := MoneyOf(0.01)
	if m.Cmp(Money{}) > 0 && m.Cmp(cent) < 0 {
		return "under " + cent.Fixed()
	}
	return GroupThousands(m.Fixed())
}

// GroupThousands sets the thousands of a plain decimal apart.
func GroupThousands(text string) string {
	whole, cents, found := strings.Cut(text, ".")
	first := strings.IndexAny(whole, "0123456789")
	for i := len(whole) - 3; i > first; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if found {
		return whole + "." + cents
	}
	return whole
}

// MarshalJSON writes a number.
func (m Money) MarshalJSON() ([]byte, error) {
	return canon.AppendNumber(nil, m.Float()), nil
}

// UnmarshalJSON reads a number.
func (m *Money) UnmarshalJSON(data []byte) error {
	var number json.Number
	if err := json.Unmarshal(data, &number); err != nil {
		return fmt.Errorf("amount: %w", err)
	}
	parsed, err := ParseMoney(number.String())
	if err != nil {
		return err
	}
	*m = parsed
	return nil
}
