package classify

import (
	"strings"

	"countersign/internal/canon"
)

// declaration is what the caller says about the action beside its payload.
type declaration struct {
	categories   categorySet
	amount       money
	currency     currency
	model        string
	inputTokens  int64
	outputTokens int64
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
	if d.model != "" || d.inputTokens > 0 || d.outputTokens > 0 {
		d.categories |= llm
	}
	return d
}

func (d *declaration) member(m canon.Member) {
	if roleOf(m.Name) == roleCurrency {
		d.currency = max(d.currency, readCurrency(roleCurrency, m.Value))
	}
	switch normalName(m.Name) {
	case "category", "categories":
		d.categories |= declaredCategories(m.Value)
	case "amount_usd":
		d.amount = d.amount.stricter(readMoney(m.Value))
	case "model":
		d.model = readModel(m.Value.Str())
	case "input_tokens":
		d.inputTokens = readCount(m.Value, MaxTokens)
	case "output_tokens":
		d.outputTokens = readCount(m.Value, MaxTokens)
	}
}

// declaredCategories takes one name or a list of them, under either spelling of
// the key: which one a caller uses must not cost it the category.
func declaredCategories(v canon.Value) categorySet {
	set := categoryNamed(v.Str())
	for _, item := range v.Items() {
		set |= categoryNamed(item.Str())
	}
	return set
}

// readModel ignores what is too long to name a model.
func readModel(text string) string {
	if len(text) > maxModel {
		return ""
	}
	return strings.Trim(text, blanks)
}

// readCount reads a whole number, cut to a limit. What is none, negative or a
// fraction counts as 0.
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
