// Package pricing estimates what calls to language models cost, from a dated
// table of list prices that an operator can replace.
//
// A model that the table does not know has no cost: never zero, and never that
// of a model with a similar name.
package pricing

import (
	_ "embed" // the built-in table
	"strings"
	"sync"

	"github.com/shopspring/decimal"
)

//go:embed prices.json
var builtin []byte

// Table is a price list. It does not change, and can be shared.
type Table struct {
	effective string
	prices    map[string]price
}

// price is in US dollars a million tokens.
type price struct {
	input, output decimal.Decimal
	maxInput      int64 // the price holds up to this many input tokens; 0: always
}

// Default returns the built-in table.
func Default() *Table { return parseBuiltin() }

var parseBuiltin = sync.OnceValue(func() *Table {
	table, err := Parse(builtin)
	if err != nil {
		panic("the built-in price table: " + err.Error())
	}
	return table
})

// Effective is the date, YYYY-MM-DD, as of which the prices hold.
func (t *Table) Effective() string { return t.effective }

// Cost returns the exact price of a call in US dollars. There is none for an
// unknown model, beyond the input that the model's price holds for, and without
// tokens: a call whose usage is not known was not free.
func (t *Table) Cost(model string, input, output int64) (decimal.Decimal, bool) {
	if input < 0 || output < 0 || input == 0 && output == 0 {
		return decimal.Decimal{}, false
	}
	p, known := t.find(model)
	if !known || p.maxInput > 0 && input > p.maxInput {
		return decimal.Decimal{}, false
	}
	millionths := p.input.Mul(decimal.NewFromInt(input)).Add(p.output.Mul(decimal.NewFromInt(output)))
	return millionths.Shift(-6), true
}

// find looks for the name itself, then for the name without the date of a
// snapshot. A snapshot at another price is listed under its own name.
func (t *Table) find(model string) (price, bool) {
	name := strings.ToLower(strings.TrimSpace(model))
	if p, known := t.prices[name]; known {
		return p, true
	}
	p, known := t.prices[withoutDate(name)]
	return p, known
}

// withoutDate drops -YYYY-MM-DD or -YYYYMMDD from the end, and returns "" when
// neither stands there. Nothing shorter is taken for a date: gpt-4-0613 is not
// priced as gpt-4.
func withoutDate(name string) string {
	for _, layout := range [...]string{"-dddd-dd-dd", "-dddddddd"} {
		cut := len(name) - len(layout)
		if cut > 0 && matches(name[cut:], layout) && isDate(strings.ReplaceAll(name[cut:], "-", "")) {
			return name[:cut]
		}
	}
	return ""
}

// matches compares texts of equal length; d stands for any digit.
func matches(text, layout string) bool {
	for i := range len(layout) {
		isDigit := '0' <= text[i] && text[i] <= '9'
		if layout[i] == 'd' && !isDigit || layout[i] != 'd' && text[i] != layout[i] {
			return false
		}
	}
	return true
}

// isDate looks at eight digits. It need not know the calendar, only tell dates
// from other numbers.
func isDate(digits string) bool {
	year, month, day := digits[:4], digits[4:6], digits[6:]
	return year >= "2020" && year <= "2099" && month >= "01" && month <= "12" && day >= "01" && day <= "31"
}
