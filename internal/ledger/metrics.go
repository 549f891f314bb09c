package ledger

import (
	"slices"
	"strings"

	"countersign/internal/canon"
)

// Metrics accumulate over a chain's allowed actions.
type Metrics struct {
	FinancialExposure      Money
	ExternalCommunications int64
	RecordsModified        int64
	ExternalDomains        []string // in order of first contact, no doubles
	EstimatedCost          Money    // of the calls whose price is known
	UnpricedCalls          int64    // calls of models that EstimatedCost leaves out
}

// maxDomains bounds what every event of a chain carries along.
const maxDomains = 1000

// Count adds what one allowed action contributes. Counts stop at the largest
// that is exact, and the list of domains at its bound: neither can be made to
// break the chain that they belong to. The tokens are those that the action took.
func (m *Metrics) Count(f *Facts, cost *Money, tokens int64) {
	if f.Amount != nil && f.has(CategoryFinancial) {
		m.FinancialExposure = m.FinancialExposure.Add(*f.Amount)
	}
	if f.has(CategoryExternalCommunication) {
		m.ExternalCommunications++
	}
	m.RecordsModified = addCount(m.RecordsModified, f.RecordsModified)
	for _, domain := range f.ExternalDomains {
		if len(m.ExternalDomains) < maxDomains && !slices.Contains(m.ExternalDomains, domain) {
			m.ExternalDomains = append(m.ExternalDomains, strings.Clone(domain))
		}
	}
	switch {
	case cost != nil:
		m.EstimatedCost = m.EstimatedCost.Add(*cost)
	case f.has(CategoryLLM) || tokens > 0:
		m.UnpricedCalls = addCount(m.UnpricedCalls, 1)
	}
}

// AppendTo appends the metrics as they are signed and shown.
func (m *Metrics) AppendTo(dst []byte) []byte {
	w := canon.BeginObject(dst)
	w.Number("estimated_cost_usd", m.EstimatedCost.Float())
	w.Int("external_communications_count", m.ExternalCommunications)
	w.Strings("external_domains_contacted", m.ExternalDomains)
	w.Number("financial_exposure_usd", m.FinancialExposure.Float())
	w.Int("records_modified_count", m.RecordsModified)
	w.Int("unpriced_calls_count", m.UnpricedCalls)
	return w.End()
}

// appendExact is the form kept in a chain's state: amounts as exact decimals.
func (m *Metrics) appendExact(dst []byte) []byte {
	w := canon.BeginObject(dst)
	w.Int("communications", m.ExternalCommunications)
	w.String("cost", m.EstimatedCost.String())
	w.Strings("domains", m.ExternalDomains)
	w.String("exposure", m.FinancialExposure.String())
	w.Int("records", m.RecordsModified)
	if m.UnpricedCalls > 0 { // a state from before they were counted has none
		w.Int("unpriced", m.UnpricedCalls)
	}
	return w.End()
}

func parseExactMetrics(v canon.Value) (Metrics, error) {
	f := NewFields(v)
	m := Metrics{
		ExternalCommunications: f.Int("communications", 0, maxCount),
		ExternalDomains:        f.Texts("domains", maxCount, maxDomain),
		RecordsModified:        f.Int("records", 0, maxCount),
		UnpricedCalls:          f.Int("unpriced", 0, maxCount),
	}
	cost, costErr := parseExact(f.Text("cost", maxStored))
	exposure, exposureErr := parseExact(f.Text("exposure", maxStored))
	m.EstimatedCost, m.FinancialExposure = cost, exposure
	if costErr != nil || exposureErr != nil || f.Err() != nil {
		return Metrics{}, errUnreadableState
	}
	return m, nil
}
