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
		Categories: found.Categories, ExternalDomains: found.ExternalDomains, RecordsModified: found.RecordsModified,
		Model: found.Model, InputTokens: found.InputTokens, OutputTokens: found.OutputTokens,
	}
	if found.Amount != nil {
		amount := MoneyFrom(*found.Amount)
		facts.Amount = &amount
	}
	return facts
}
