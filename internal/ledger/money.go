package ledger

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"github.com/shopspring/decimal"

	"countersign/internal/canon"
)

// Money is an exact amount of US dollars. It is converted to a double only in JSON that leaves the
// service.
type Money struct{ amount decimal.Decimal }

// MoneyOf converts a JSON number to the decimal of its shortest text, which is what the sender
// wrote.
func MoneyOf(number float64) Money { return Money{decimal.NewFromFloat(number)} }

// MoneyFrom converts an exact decimal.
func MoneyFrom(amount decimal.Decimal) Money { return Money{amount} }

// moneyOfCount converts a count to an amount, so that budgets of all measures use the same
// arithmetic.
func moneyOfCount(count int64) Money { return Money{decimal.NewFromInt(count)} }

// ParseMoney parses a plain decimal.
func ParseMoney(text string) (Money, error) {
	if len(text) > 64 {
		return Money{}, fmt.Errorf("amount of %d characters", len(text))
	}
	return parseExact(text)
}

// parseExact parses the result of String. A sum of doubles can have hundreds of digits.
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

// Cmp compares two amounts like cmp.Compare.
func (m Money) Cmp(other Money) int { return m.amount.Cmp(other.amount) }

// String returns the exact decimal.
func (m Money) String() string { return m.amount.String() }

// Float returns the nearest finite double, because JSON has no infinity.
func (m Money) Float() float64 {
	return min(max(m.amount.InexactFloat64(), -math.MaxFloat64), math.MaxFloat64)
}

// Fixed returns the amount rounded to cents, for people.
func (m Money) Fixed() string { return m.amount.StringFixed(2) }

// Display returns the amount for people without its unit: rounded to cents, with separated
// thousands. A positive amount below a cent is not shown as zero.
func (m Money) Display() string {
	cent := MoneyOf(0.01)
	if m.Cmp(Money{}) > 0 && m.Cmp(cent) < 0 {
		return "under " + cent.Fixed()
	}
	return GroupThousands(m.Fixed())
}

// GroupThousands separates the thousands of a plain decimal.
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
