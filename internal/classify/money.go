package classify

import (
	"math"
	"strings"
	"unicode"

	"github.com/shopspring/decimal"

	"countersign/internal/canon"
)

// blanks are trimmed around texts: only ASCII, so that every language trims the same.
const blanks = " \t\r\n"

// maxMoneyText bounds the texts that are parsed as money.
const maxMoneyText = 40

type currency uint8

const (
	unstated currency = iota
	dollars
	foreign
)

// readCurrency treats whatever it does not know as a foreign currency. A number is not a currency
// if the key can be about something else.
func readCurrency(r role, v canon.Value) currency {
	switch {
	case v.IsNull() || r == roleUnit && (v.Kind() == canon.Number || v.Kind() == canon.Bool):
		return unstated
	case v.Kind() != canon.String:
		return foreign
	}
	text := strings.Trim(v.Str(), blanks)
	switch {
	case text == "":
		return unstated
	case text == "$" || equalFold(text, "usd") || equalFold(text, "us$"):
		return dollars
	default:
		return foreign
	}
}

// equalFold compares with a lower-case text and ignores the case of ASCII letters only.
func equalFold(s, lowerCase string) bool {
	if len(s) != len(lowerCase) {
		return false
	}
	for i := range len(s) {
		if lowerByte(s[i]) != lowerCase[i] {
			return false
		}
	}
	return true
}

type moneyState uint8

const (
	absent moneyState = iota
	unreadable
	readable
)

// money is the value of an amount's key.
type money struct {
	state  moneyState
	amount decimal.Decimal // absolute; set if the state is readable
}

// larger returns the larger of two that are readable or absent.
func (m money) larger(other money) money {
	if other.state > m.state || other.state == m.state && other.amount.Cmp(m.amount) > 0 {
		return other
	}
	return m
}

// stricter returns what counts if a key occurs twice in different spellings: unreadable, or else
// the larger.
func (m money) stricter(other money) money {
	if m.state == unreadable || other.state == unreadable {
		return money{state: unreadable}
	}
	return m.larger(other)
}

// plus adds one that is readable or absent.
func (m money) plus(other money) money {
	if m.state == absent || other.state == absent {
		return m.larger(other)
	}
	return money{readable, m.amount.Add(other.amount)}
}

func readMoney(v canon.Value) money {
	switch v.Kind() {
	case canon.Null:
		return money{}
	case canon.Number:
		// The decimal of the shortest text is what the sender wrote.
		return money{readable, decimal.NewFromFloat(math.Abs(v.Float()))}
	case canon.String:
		if amount, ok := parseDollars(v.Str()); ok {
			return money{readable, amount}
		}
	}
	return money{state: unreadable}
}

// parseDollars parses texts like 1200.50, $1,200.50, -$5 and 1200.50 USD. It accepts no exponent,
// because the text must be as long as the number.
func parseDollars(text string) (decimal.Decimal, bool) {
	if len(text) > maxMoneyText {
		return decimal.Decimal{}, false
	}
	text = strings.Trim(text, blanks)
	unsigned := trimSign(text)
	number := trimMarks(unsigned)
	if unsigned == text {
		number = trimSign(number)
	}
	plain, ok := plainNumber(number)
	if !ok {
		return decimal.Decimal{}, false
	}
	amount, err := decimal.NewFromString(plain)
	return amount, err == nil
}

// looksLikeMoney reports whether a text that cannot be parsed may be an amount for another program:
// 9.000,00, 9e6, 9_000, EUR 500, digits of another script. Words, dates and identifiers are not.
func looksLikeMoney(v canon.Value) bool {
	if v.Kind() != canon.String || len(v.Str()) > maxMoneyText {
		return false
	}
	letters, hyphens, digits := 0, 0, 0
	for _, r := range v.Str() {
		switch {
		case unicode.Is(unicode.Nd, r):
			digits++
		case 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z':
			letters++
		case r == '-':
			hyphens++
		case strings.ContainsRune("/:@#", r):
			return false
		}
	}
	return digits > 0 && letters <= 3 && hyphens <= 1
}

func trimSign(s string) string {
	if s != "" && (s[0] == '-' || s[0] == '+') {
		return s[1:]
	}
	return s
}

// trimMarks removes one dollar sign from either end.
func trimMarks(s string) string {
	for _, mark := range [...]string{"us$", "usd", "$"} {
		if len(s) >= len(mark) && equalFold(s[:len(mark)], mark) {
			s = s[len(mark):]
			break
		}
	}
	for _, mark := range [...]string{"us$", "usd", "$"} {
		if cut := len(s) - len(mark); cut >= 0 && equalFold(s[cut:], mark) {
			s = s[:cut]
			break
		}
	}
	return strings.Trim(s, blanks)
}

// plainNumber removes the commas that separate thousands. It refuses 1,2 and 1.200,50: guessing
// could be wrong by a factor.
func plainNumber(s string) (string, bool) {
	whole, fraction, hasPoint := strings.Cut(s, ".")
	if hasPoint && (fraction == "" || !allDigits(fraction)) {
		return "", false
	}
	if whole == "" {
		return s, hasPoint
	}
	groups := strings.Split(whole, ",")
	for i, group := range groups {
		if !allDigits(group) || len(groups) > 1 && (i == 0 && len(group) > 3 || i > 0 && len(group) != 3) {
			return "", false
		}
	}
	return strings.ReplaceAll(s, ",", ""), true
}

// allDigits returns false for the empty text.
func allDigits(s string) bool {
	for i := range len(s) {
		if classOf(s[i]) != digit {
			return false
		}
	}
	return s != ""
}
