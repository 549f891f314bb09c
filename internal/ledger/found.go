package ledger

import (
	"regexp"
	"slices"
)

// What a client found in an action before it redacted or cut anything. The service
// cannot see that any more, so it takes the client's word, and only for more:
// nothing that a client says takes away what the service found itself.

const maxFoundDomains = 100

// hostPattern is whatever classification takes for a host, in any script, an address or
// misspelt: what it finds must not keep an action from the record.
var hostPattern = regexp.MustCompile("^[^\\x00-\\x20/?#\\\\\"<>`A-Z]+$")

// addFound joins a request's member "found" to the action's facts.
func (a *Action) addFound(request *Fields) {
	found := request.Nested("found")
	if found == nil {
		return
	}
	a.FoundSHA256 = PayloadHash(found.object.Append(nil))
	f := &a.Facts
	for i, category := range found.Texts("categories", maxListed, maxName) {
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
		f.ExternalDomains = insert(f.ExternalDomains, domain)
	}
	// A payment without an amount is one whose amount the client could not compare.
	// Such an amount is replaced by none that can be compared.
	if slices.Contains(found.Texts("categories", maxListed, maxName), CategoryFinancial) && !found.Has("amount_usd") {
		f.Amount, f.AmountUnusable = nil, true
	}
	if found.Has("amount_usd") && !f.AmountUnusable {
		amount := MoneyOf(found.Number("amount_usd", 0, maxAmount))
		if f.Amount == nil || amount.Cmp(*f.Amount) > 0 {
			f.Amount = &amount
		}
	}
	f.RecordsModified = max(f.RecordsModified, found.Int("records_modified", 0, maxCount))
	request.Join(found)
}

// insert adds an element to a sorted list that does not hold it.
func insert(list []string, element string) []string {
	at, held := slices.BinarySearch(list, element)
	if held {
		return list
	}
	return slices.Insert(slices.Clone(list), at, element)
}

// checkGap holds a gap marker to its form: it says how many events a client had to
// drop, and from when to when, and it is nothing else. An action in its place would
// be one that nobody judged.
func checkGap(f *Fields, action *Action) {
	if action.ActionType != ActionTypeGap {
		return
	}
	if action.Source == "" {
		f.Fault("action_type", "must not be gap: a client reports dropped events in a batch")
		return
	}
	const form = "of a gap must be {\"dropped\": how many, \"from\": time, \"to\": time}"
	gap := NewFields(action.payload)
	name := "dropped"
	if gap.Given("count") { // as other clients say it
		name = "count"
	}
	dropped, from, to := gap.Int(name, 1, maxCount), gap.Time("from"), gap.Time("to")
	if gap.Err() != nil || dropped == 0 || from == nil || to == nil {
		f.Fault("payload", form)
	}
	if len(action.Metadata) > 0 {
		f.Fault("metadata", "must not be given with a gap")
	}
}
