package ledger

import (
	"countersign/internal/canon"
	"countersign/internal/classify"
)

// The categories that an action can have.
const (
	CategoryFinancial             = "financial"
	CategoryExternalCommunication = "external_communication"
	CategoryDataModification      = "data_modification"
	CategoryLLM                   = "llm"
)

// Facts are what the service finds in an action, before it decides.
type Facts struct {
	Categories      []string
	Amount          *Money // in USD; nil where none can be held against a threshold
	AmountUnusable  bool   // Amount is nil because one cannot be read or is in another currency
	ExternalDomains []string
	RecordsModified int64
	Model           string
	InputTokens     int64
	OutputTokens    int64
}

// Tokens is what the action takes of its chain's budget of tokens.
func (f *Facts) Tokens() int64 { return f.InputTokens + f.OutputTokens }

func classifyAction(action *Action, payload, metadata canon.Value) Facts {
	found := classify.Classify(classify.Input{
		ActionType: action.ActionType, ActionName: action.ActionName, Payload: payload, Metadata: metadata,
	})
	facts := Facts{
		Categories: found.Categories, AmountUnusable: found.AmountUnusable,
		ExternalDomains: found.ExternalDomains, RecordsModified: found.RecordsModified,
		Model: found.Model, InputTokens: found.InputTokens, OutputTokens: found.OutputTokens,
	}
	// An amount beyond all reason is none that can be held against a threshold: a
	// person looks at it.
	if found.Amount != nil {
		if amount := MoneyFrom(*found.Amount); amount.Cmp(MoneyOf(maxAmount)) <= 0 {
			facts.Amount = &amount
		} else {
			facts.AmountUnusable = true
		}
	}
	return facts
}

// withoutSecrets is a text from outside as it may be kept. Redacting can make it longer.
func withoutSecrets(text string) string { return bounded(classify.RedactText(text)) }

// bounded cuts a text to what the service keeps of one.
func bounded(text string) string {
	if len(text) <= maxText {
		return text
	}
	runes := []rune(text)
	if len(runes) <= maxText {
		return text
	}
	return string(runes[:maxText-1]) + "…"
}
