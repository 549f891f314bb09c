package classify

import (
	"strings"

	"countersign/internal/canon"
)

// declaration is what the caller says about the action outside its payload.
type declaration struct {
	categories categorySet
	amount     money
	currency   currency
	model      string
	tokens     tokens
}

// typeLLMCall is the action type of calls to language models.
const typeLLMCall = "llm_call"

func declare(actionType string, metadata canon.Value) declaration {
	d := declaration{categories: categoryNamed(actionType)}
	if actionType == typeLLMCall {
		d.categories |= llm
	}
	for _, member := range metadata.Members() {
		d.member(member)
	}
	return d
}

func (d *declaration) member(m canon.Member) {
	name := normalName(m.Name)
	switch r := roleOfNormal(name); r {
	case roleCurrency:
		d.currency = max(d.currency, readCurrency(r, m.Value))
	case roleModel:
		d.model = max(d.model, readModel(m.Value.Str()))
	case roleInput, roleOutput:
		d.tokens.take(r, m.Value)
	case roleUsage:
		for _, counted := range m.Value.Members() {
			d.tokens.take(roleOf(counted.Name), counted.Value)
		}
	}
	switch name {
	case "category", "categories":
		d.categories |= declaredCategories(m.Value)
	case "amount_usd":
		d.amount = d.amount.stricter(readMoney(m.Value))
	}
}

// DeclaresTokens reports whether a member of an action's metadata is a count of tokens, or an
// object with such counts.
func DeclaresTokens(name string) (count, usage bool) {
	r := roleOf(name)
	return r == roleInput || r == roleOutput, r == roleUsage
}

// ReadableCount reports whether a count says how many: a whole number, or null for none. Anything
// else counts as 0.
func ReadableCount(v canon.Value) bool {
	if v.Kind() != canon.Number {
		return v.IsNull()
	}
	n, whole := v.Int()
	return whole && n >= 0 || v.Float() >= MaxTokens
}

// declaredCategories reads one name or a list. Both spellings of the key work, so that a caller
// does not lose a category by choosing one.
func declaredCategories(v canon.Value) categorySet {
	set := categoryNamed(v.Str())
	for _, item := range v.Items() {
		set |= categoryNamed(item.Str())
	}
	return set
}

// readModel ignores texts that are too long for a model's name.
func readModel(text string) string {
	if len(text) > maxModel {
		return ""
	}
	return strings.Trim(text, blanks)
}

// readCount reads a whole number, cut to a limit. Anything else, negative or fractional counts as
// 0.
func readCount(v canon.Value, limit int64) int64 {
	f := v.Float()
	if f >= float64(limit) {
		return limit
	}
	n, whole := v.Int()
	if !whole || n < 0 {
		return 0
	}
	return n
}
