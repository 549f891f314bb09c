package ledger

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"strings"

	"countersign/internal/canon"
	"countersign/internal/fault"
)

// ChainState is the part of a chain that changes. It is stored with an authenticator, so that a
// chain cannot be altered between two events.
type ChainState struct {
	// Revision counts how often the state was stored, which orders the states of a chain. It is 0
	// in states that predate it.
	Revision      int64
	Status        ChainStatus
	Actions       int64    // number of events including markers; the sequence of the last one
	Markers       int64    // number of events that are markers
	Entries       int64    // events and later entries about them
	Digest        [32]byte // running digest over the entries
	Agents        []string // agents that took actions, in order of first appearance
	Metrics       Metrics
	Tokens        int64     // used by allowed actions
	Approvals     int64     // number requested
	Waiting       int64     // number of approvals still open
	Pending       Held      // reserved by waiting actions
	Granted       Allowance // where the auto-pause limits start counting
	PauseReason   string    // why the chain is paused, or ""
	PolicyVersion string    // of the newest decision
	LastAt        Time      // newest recorded time; it never moves back
	CompletedAt   *Time
	Receipt       *ReceiptID
	Leases        UsedLeases
	Failure       *Failure // why a failed chain failed, if the client said so
	Abandoned     bool     // sealed by the service because nobody used it any more
	ContinuedBy   *ChainID // the successor of an abandoned chain, once there is one
	Carried       Carried  // used by the chains that this one continues
}

// Held is what actions reserve of a chain's limits.
type Held struct {
	Exposure Money
	Tokens   int64
}

// Allowance is the state of a chain when its limits last started counting: when it was opened, or
// when an admin resumed it.
type Allowance struct {
	Actions int64
	Markers int64
	Tokens  int64
	At      Time
}

// NewChainState returns the state of a chain that was just opened.
func NewChainState(startedAt Time, policyVersion string) *ChainState {
	return &ChainState{Status: ChainActive, Digest: sha256.Sum256(nil), PolicyVersion: policyVersion, LastAt: startedAt}
}

// Open returns an error if the chain is sealed.
func (s *ChainState) Open() error {
	if s.Status.Sealed() {
		return errSealed()
	}
	return nil
}

func errSealed() *fault.Error {
	return fault.Errorf(fault.CodeChainSealed, "the chain is completed: nothing more can be recorded in it; open a new chain")
}

// Accepts returns an error if the chain cannot record the action.
func (s *ChainState) Accepts(action *Action) error {
	if err := s.Open(); err != nil {
		return err
	}
	if s.Actions >= MaxEventsCeiling {
		return fault.Errorf(fault.CodeChainSealed, "the chain holds %d events, the most it can: complete it and open a new one", s.Actions)
	}
	return s.admits(action)
}

// maxAgents bounds what a chain's state contains with every event.
const maxAgents = 1000

// admits refuses an action whose agent would be one too many.
func (s *ChainState) admits(action *Action) error {
	if !action.marker() && len(s.Agents) >= maxAgents && !slices.Contains(s.Agents, action.AgentName) {
		return fault.Errorf(fault.CodeInvalid, "the chain has %d agents, the most it can: open another chain for more", maxAgents)
	}
	return nil
}

// countAgent counts a marker, or the agent of an action. It copies the name, like everything that a chain
// keeps of an action: a state stays in memory, and a substring would keep the whole request there.
func (s *ChainState) countAgent(action *Action) {
	if action.marker() {
		s.Markers++
		return
	}
	if !slices.Contains(s.Agents, action.AgentName) {
		s.Agents = append(s.Agents, strings.Clone(action.AgentName))
	}
}

// ActionsTaken returns the number of actions in the chain: its events without the markers.
func (s *ChainState) ActionsTaken() int64 { return s.Actions - s.Markers }

// enter adds an entry's canonical bytes to the running digest.
func (s *ChainState) enter(body []byte) {
	s.Digest = NextDigest(s.Digest, body)
	s.Entries++
}

// NextDigest returns the running digest after one more entry.
func NextDigest(digest [32]byte, body []byte) [32]byte {
	h := sha256.New()
	h.Write(digest[:])
	h.Write(body)
	h.Sum(digest[:0])
	return digest
}

// errUnreadableState says that a stored state cannot be decoded, so it was changed.
var errUnreadableState = errors.New("stored chain state cannot be read")

// ErrStateTampered says that a stored record is not what the service wrote.
var ErrStateTampered = errors.New("stored record fails its authenticator")

// Encode returns the canonical bytes of the state and their authenticator.
func (s *ChainState) Encode(keys Keys, chain *Chain) (body, mac []byte) {
	keyID := keys.CurrentKey()                   // once: a rotation may change it at any time
	w := canon.BeginObject(make([]byte, 0, 640)) // a usual state has 550 bytes
	if s.Abandoned {
		w.Bool("abandoned", true)
	}
	w.Int("actions", s.Actions)
	w.Strings("agents", s.Agents)
	w.Int("approvals", s.Approvals)
	if !s.Carried.empty() {
		w.Value(s.Carried.appendTo(w.Name("carried")))
	}
	writeTimeOrNull(&w, "completed_at", s.CompletedAt)
	if s.ContinuedBy != nil {
		writeID(&w, "continued_by", s.ContinuedBy.UUID)
	}
	w.Hex("digest", s.Digest[:])
	w.Int("entries", s.Entries)
	if s.Failure == nil {
		w.Null("failure")
	} else {
		failure := canon.BeginObject(w.Name("failure"))
		failure.String("message", s.Failure.Message)
		failure.String("type", s.Failure.Type)
		w.Value(failure.End())
	}
	granted := canon.BeginObject(w.Name("granted"))
	granted.Int("actions", s.Granted.Actions)
	granted.Int("at", int64(s.Granted.At))
	if s.Granted.Markers > 0 {
		granted.Int("markers", s.Granted.Markers)
	}
	granted.Int("tokens", s.Granted.Tokens)
	w.Value(granted.End())
	w.String("key_id", keyID)
	w.Int("last_at", int64(s.LastAt))
	if !s.Leases.empty() {
		w.Value(s.Leases.appendTo(w.Name("leases")))
	}
	if s.Markers > 0 {
		w.Int("markers", s.Markers)
	}
	w.Value(s.Metrics.appendExact(w.Name("metrics")))
	w.StringOrNull("pause_reason", s.PauseReason)
	w.String("pending_exposure", s.Pending.Exposure.String())
	w.Int("pending_tokens", s.Pending.Tokens)
	w.String("policy_version", s.PolicyVersion)
	if s.Receipt == nil {
		w.Null("receipt_id")
	} else {
		writeID(&w, "receipt_id", s.Receipt.UUID)
	}
	if s.Revision > 0 {
		w.Int("revision", s.Revision)
	}
	w.String("status", string(s.Status))
	w.Int("tokens", s.Tokens)
	w.Int("waiting", s.Waiting)
	body = w.End()
	sum, _ := stateMAC(keys, keyID, chain, body)
	return body, sum[:]
}

// stateMAC covers the chain's fixed record together with its state. The id and the hash have fixed
// lengths, so no two states have the same bytes.
func stateMAC(keys Keys, keyID string, chain *Chain, body []byte) ([32]byte, bool) {
	hash := chain.Hash()
	return keys.MAC(keyID, chain.Org.UUID, PurposeChainState, chain.ID.UUID[:], hash[:], body)
}

// DecodeChainState decodes the result of Encode and refuses anything else.
func DecodeChainState(body, mac []byte, keys Keys, chain *Chain) (*ChainState, error) {
	r, err := openRecord(body)
	if err != nil {
		return nil, errUnreadableState
	}
	sum, ok := stateMAC(keys, r.Text("key_id", maxName), chain, body)
	if !ok || !hmac.Equal(sum[:], mac) {
		return nil, ErrStateTampered
	}
	state := &ChainState{
		Revision:      r.Int("revision", 0, maxCount),
		Status:        ChainStatus(r.Text("status", maxName)),
		Actions:       r.Int("actions", 0, maxCount),
		Markers:       r.Int("markers", 0, maxCount),
		Entries:       r.Int("entries", 0, maxCount),
		Agents:        r.Texts("agents", maxCount, maxName),
		Metrics:       r.exactMetrics(),
		Tokens:        r.Int("tokens", 0, maxCount),
		Approvals:     r.Int("approvals", 0, maxCount),
		Waiting:       r.Int("waiting", 0, maxCount),
		Pending:       Held{Tokens: r.Int("pending_tokens", 0, maxCount)},
		Granted:       r.granted(),
		PauseReason:   r.Text("pause_reason", maxStored),
		PolicyVersion: r.Text("policy_version", maxName),
		LastAt:        r.milliseconds("last_at"),
		CompletedAt:   ReadTime(r.Fields, "completed_at"),
		Leases:        r.usedLeases(),
		Abandoned:     r.Bool("abandoned"),
		Carried:       r.carried(),
	}
	digest, err := hex.DecodeString(r.Text("digest", maxName))
	if err != nil || len(digest) != len(state.Digest) {
		return nil, errUnreadableState
	}
	copy(state.Digest[:], digest)
	if exposure := r.exactMoney("pending_exposure"); exposure != nil {
		state.Pending.Exposure = *exposure
	}
	if id, given := r.optionalID("receipt_id"); given {
		state.Receipt = &ReceiptID{id}
	}
	if id, given := r.optionalID("continued_by"); given {
		state.ContinuedBy = &ChainID{id}
	}
	if failure := r.nested("failure"); failure != nil {
		state.Failure = &Failure{Type: failure.Text("type", maxName), Message: failure.Text("message", maxStored)}
		r.join(failure)
	}
	if !r.readable() {
		return nil, errUnreadableState
	}
	return state, nil
}

func (r *recordReader) granted() Allowance {
	nested := r.nested("granted")
	if nested == nil {
		return Allowance{}
	}
	granted := Allowance{
		Actions: nested.Int("actions", 0, maxCount), Markers: nested.Int("markers", 0, maxCount),
		Tokens: nested.Int("tokens", 0, maxCount), At: nested.milliseconds("at"),
	}
	r.join(nested)
	return granted
}

// Metrics accumulate over a chain's allowed actions.
type Metrics struct {
	FinancialExposure      Money
	ExternalCommunications int64
	RecordsModified        int64
	ExternalDomains        []string // in order of first contact, without duplicates
	EstimatedCost          Money    // of calls with a known price
	UnpricedCalls          int64    // model calls that EstimatedCost does not include
}

// maxDomains bounds what a chain's state contains with every event.
const maxDomains = 1000

// Count adds one allowed action. Counts stop at the largest exact number, and the list of domains
// at its limit, so that neither can be used to break the chain. tokens is what the action used.
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

// addCount adds without leaving the range in which counts are exact.
func addCount(a, b int64) int64 {
	return min(a+b, maxCount)
}

// AppendTo encodes the metrics as they are signed and shown.
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

// appendExact encodes the metrics for a chain's state, with exact decimals.
func (m *Metrics) appendExact(dst []byte) []byte {
	w := canon.BeginObject(dst)
	w.Int("communications", m.ExternalCommunications)
	w.String("cost", m.EstimatedCost.String())
	w.Strings("domains", m.ExternalDomains)
	w.String("exposure", m.FinancialExposure.String())
	w.Int("records", m.RecordsModified)
	if m.UnpricedCalls > 0 { // absent in older states
		w.Int("unpriced", m.UnpricedCalls)
	}
	return w.End()
}

// exactMetrics decodes the result of appendExact.
func (r *recordReader) exactMetrics() Metrics {
	nested := r.nested("metrics")
	if nested == nil {
		r.failed = true
		return Metrics{}
	}
	m := Metrics{
		FinancialExposure:      nested.requiredMoney("exposure"),
		ExternalCommunications: nested.Int("communications", 0, maxCount),
		RecordsModified:        nested.Int("records", 0, maxCount),
		ExternalDomains:        nested.Texts("domains", maxCount, maxDomain),
		EstimatedCost:          nested.requiredMoney("cost"),
		UnpricedCalls:          nested.Int("unpriced", 0, maxCount),
	}
	r.join(nested)
	return m
}
