// Package classify finds the facts of an action that decisions depend on: its categories, the
// amount of money in it, the domains that it contacts, the records that it changes, and the model
// and tokens that it uses. It also removes secrets from what is about to be stored.
//
// The rules are heuristics, so they are documented (docs/classification.md) and tested against one
// table of vectors that the Python client shares: a client that decides locally must see what the
// service will see.
//
// The package is pure, and its cost is linear in the size of its input.
package classify

import (
	"cmp"

	"github.com/shopspring/decimal"

	"countersign/internal/canon"
)

// The categories of actions.
const (
	DataModification      = "data_modification"
	ExternalCommunication = "external_communication"
	Financial             = "financial"
	LLM                   = "llm"
)

// Limits of Facts. Counts are cut to them, and domains beyond them are replaced by MoreDomains.
const (
	MaxDomains = 100
	MaxRecords = 1_000_000_000
	MaxTokens  = 1_000_000_000_000
)

// MoreDomains stands for the domains beyond MaxDomains. It is not a domain, so no allowlist matches
// it: nothing can hide behind a hundred harmless ones.
const MoreDomains = "*"

const (
	maxModel  = 200 // bytes
	maxDomain = 253 // bytes, the longest DNS name
)

// Input is a recorded action.
type Input struct {
	ActionType string
	ActionName string
	Payload    canon.Value
	Metadata   canon.Value // may be null
}

// Facts are the result of Classify.
type Facts struct {
	// Categories are sorted.
	Categories []string
	// Amount is an absolute amount in US dollars, or nil if there is none that can be compared with
	// a threshold.
	Amount *decimal.Decimal
	// AmountUnusable says that Amount is nil because an amount was found that cannot be read or is
	// in another currency. An amount found elsewhere does not replace it.
	AmountUnusable bool
	// ExternalDomains are sorted, unique and in lower case.
	ExternalDomains []string
	// RecordsModified is the number of records that the action says it changes.
	RecordsModified int64
	// Model and the token counts come from the metadata, or else from the payload.
	Model        string
	InputTokens  int64
	OutputTokens int64
	// Code says that the payload contains a program or a statement that changes data.
	Code bool
	// WritesSQL says that it contains a statement that changes a database. It implies Code.
	WritesSQL bool
	// Unseen says that something is nested deeper than canon.MaxDepth and was not read.
	Unseen bool
}

// Classify finds the facts of an action.
func Classify(in Input) Facts {
	declared := declare(in.ActionType, in.Metadata)
	name := readName(in.ActionName)
	found := name.categories | declared.categories
	s := search{
		byName:   name.categories&financial != 0,
		counting: !name.reading || declared.categories&dataModification != 0,
		listing:  found&dataModification != 0,
	}
	s.nesting = 1 // the payload itself
	largest := s.object(in.Payload, 0, declared.currency, roleNone)
	used := declared.tokens.or(largest.tokens)

	if declared.amount.state != absent || s.explicit {
		found |= financial
	}
	facts := Facts{
		ExternalDomains: s.hosts.sorted(),
		RecordsModified: s.maxRecords(),
		Model:           cmp.Or(declared.model, s.called()),
		InputTokens:     used.input,
		OutputTokens:    used.output,
		Code:            s.code,
		WritesSQL:       s.sql,
		Unseen:          s.unseen,
	}
	if facts.Model != "" || used != (tokens{}) {
		found |= llm
	}
	if found&financial != 0 {
		facts.Amount, facts.AmountUnusable = s.usable(declared.amount, largest.amount)
	}
	if facts.RecordsModified > 0 {
		found |= dataModification
	}
	if len(facts.ExternalDomains) > 0 {
		found |= externalCommunication
	}
	facts.Categories = found.names()
	return facts
}

// categorySet is a set of categories.
type categorySet uint8

const (
	dataModification categorySet = 1 << iota
	externalCommunication
	financial
	llm
)

// categoryNames are sorted, in the order of the bits.
var categoryNames = [...]string{DataModification, ExternalCommunication, Financial, LLM}

func (c categorySet) names() []string {
	if c == 0 {
		return nil
	}
	names := make([]string, 0, len(categoryNames))
	for bit, name := range categoryNames {
		if c&(1<<bit) != 0 {
			names = append(names, name)
		}
	}
	return names
}

// categoryNamed returns the empty set if the name is not a category.
func categoryNamed(name string) categorySet {
	var buffer [64]byte
	normal := string(appendNormal(buffer[:0], name))
	for bit, known := range categoryNames {
		if known == normal {
			return 1 << bit
		}
	}
	return 0
}
