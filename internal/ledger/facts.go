package ledger

import (
	"regexp"
	"slices"

	"countersign/internal/canon"
	"countersign/internal/classify"
)

// The categories of actions.
const (
	CategoryFinancial             = "financial"
	CategoryExternalCommunication = "external_communication"
	CategoryDataModification      = "data_modification"
	CategoryLLM                   = "llm"
)

// Facts are what the service finds in an action before it decides.
type Facts struct {
	Categories      []string
	Amount          *Money // in USD; nil if none can be compared with a threshold
	AmountUnusable  bool   // Amount is nil because it cannot be read or is in another currency
	ExternalDomains []string
	RecordsModified int64
	WritesSQL       bool // the payload contains an SQL statement that changes data
	Model           string
	InputTokens     int64
	OutputTokens    int64
}

// Tokens returns what the action uses of its chain's token limit.
func (f *Facts) Tokens() int64 { return f.InputTokens + f.OutputTokens }

// has reports whether the action has a category.
func (f *Facts) has(category string) bool { return slices.Contains(f.Categories, category) }

// DomainForms returns the external domains, and those with letters beyond ASCII in both forms: a
// rule of the organization may name either.
func (f *Facts) DomainForms() []string { return classify.BothForms(f.ExternalDomains) }

func classifyAction(action *Action, payload, metadata canon.Value) Facts {
	found := classify.Classify(classify.Input{
		ActionType: action.ActionType, ActionName: action.ActionName, Payload: payload, Metadata: metadata,
	})
	facts := Facts{
		Categories: found.Categories, AmountUnusable: found.AmountUnusable,
		ExternalDomains: classify.ASCIIDomains(found.ExternalDomains), RecordsModified: found.RecordsModified, WritesSQL: found.WritesSQL,
		Model: found.Model, InputTokens: found.InputTokens, OutputTokens: found.OutputTokens,
	}
	// An absurdly large amount cannot be compared with a threshold, so a person has to look at it.
	if found.Amount != nil {
		if amount := MoneyFrom(*found.Amount); amount.Cmp(MoneyOf(maxAmount)) <= 0 {
			facts.Amount = &amount
		} else {
			facts.AmountUnusable = true
		}
	}
	return facts
}

// What a client found in an action before it redacted or cut anything. The service cannot see that
// any more, so it believes the client, but only in the stricter direction: nothing that a client
// says removes what the service found itself.

const maxFoundDomains = 100

// hostPattern matches whatever classification accepts as a host: in any script, an address, or
// misspelt. What it finds must not prevent recording an action.
var hostPattern = regexp.MustCompile("^[^\\x00-\\x20/?#\\\\\"<>`A-Z]+$")

// addFound adds a request's member "found" to the action's facts.
func (a *Action) addFound(request *canon.Fields) {
	found := request.Nested("found")
	if found == nil {
		return
	}
	a.FoundSHA256 = PayloadHash(found.Canonical())
	f := &a.Facts
	categories := found.Texts("categories", maxListed, maxName)
	for i, category := range categories {
		if !categoryPattern.MatchString(category) {
			found.Fault("categories", "element %d must be 1 to 64 lower-case letters, digits and underscores", i)
			continue
		}
		f.Categories = insert(f.Categories, category)
	}
	for i, domain := range found.Texts("external_domains", maxFoundDomains, maxDomain) {
		if !hostPattern.MatchString(domain) {
			found.Fault("external_domains", "element %d must be a host in lower case and nothing else, such as example.com", i)
			continue
		}
		for _, name := range classify.ASCIIDomains([]string{domain}) {
			f.ExternalDomains = insert(f.ExternalDomains, name)
		}
	}
	// A financial action without an amount has an amount that the client could not compare. It is
	// replaced by one that cannot be compared.
	switch amount := parseAmount(found, "amount_usd"); {
	case amount == nil && slices.Contains(categories, CategoryFinancial):
		f.Amount, f.AmountUnusable = nil, true
	case amount != nil && !f.AmountUnusable && (f.Amount == nil || amount.Cmp(*f.Amount) > 0):
		f.Amount = amount
	}
	f.RecordsModified = max(f.RecordsModified, found.Int("records_modified", 0, maxCount))
	f.implyCategories()
	request.Join(found)
}

// implyCategories adds the categories that other facts entail, as classification does. A client that
// names an amount and forgets the category must not get past the thresholds.
func (f *Facts) implyCategories() {
	if f.Amount != nil || f.AmountUnusable {
		f.Categories = insert(f.Categories, CategoryFinancial)
	}
	if f.RecordsModified > 0 {
		f.Categories = insert(f.Categories, CategoryDataModification)
	}
	if len(f.ExternalDomains) > 0 {
		f.Categories = insert(f.Categories, CategoryExternalCommunication)
	}
}

// insert adds an element to a sorted list unless it is there already.
func insert(list []string, element string) []string {
	at, held := slices.BinarySearch(list, element)
	if held {
		return list
	}
	return slices.Insert(slices.Clone(list), at, element)
}

// withoutSecrets redacts a text from outside for storage. Redacting can make it longer.
func withoutSecrets(text string) string { return bounded(classify.RedactText(text)) }

// bounded cuts a text to the maximum that the service stores.
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
