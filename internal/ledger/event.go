package ledger

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"

	"countersign/internal/canon"
)

// EventStatus is the result of recording an action.
type EventStatus string

// The statuses of an event.
const (
	EventAllowed  EventStatus = "allowed"
	EventFlagged  EventStatus = "flagged"
	EventAwaiting EventStatus = "awaiting_approval"
	EventDenied   EventStatus = "denied"
)

// Event is an action with what the service found and decided, as first recorded. Whatever happens
// later is recorded as an Addendum.
type Event struct {
	ID         EventID
	Chain      ChainID
	Sequence   int64
	Action     Action
	Decision   Decision
	Status     EventStatus
	Approval   ApprovalID // zero if none was requested
	Act        int64      // the last act that changed the organization; 0 in older records
	Lease      string     // the lease that let a client decide it, or ""
	Uses       []BudgetUse
	RecordedAt Time
}

// PayloadHash returns the hex SHA-256 of a payload's canonical bytes.
func PayloadHash(payload []byte) string {
	sum := sha256.Sum256(payload)
	return hex.EncodeToString(sum[:])
}

// Encode returns the event's canonical facts, which the running digest covers. They contain only
// the hash of the payload, so that the payload can be erased later without breaking any proof.
func (e *Event) Encode() []byte {
	w := canon.BeginObject(make([]byte, 0, 1024))
	d := &e.Decision
	if e.Act > 0 {
		w.Int("act_number", e.Act)
	}
	w.String("action_name", e.Action.ActionName)
	w.String("action_type", e.Action.ActionType)
	w.String("agent_name", e.Action.AgentName)
	writeMoney(&w, "amount_usd", e.Action.Facts.Amount)
	writeIDOrNull(&w, "approval_id", e.Approval.UUID)
	w.Bool("auto_paused", d.AutoPaused)
	if len(e.Uses) > 0 {
		w.Value(appendUses(w.Name("budgets"), e.Uses))
	}
	w.Strings("categories", e.Action.Facts.Categories)
	writeID(&w, "chain_id", e.Chain.UUID)
	w.String("decision_reason", d.Reason)
	w.String("decision_source", string(d.Source))
	w.StringOrNull("docs_url", d.DocsURL)
	writeMoney(&w, "estimated_cost_usd", d.EstimatedCost)
	w.StringOrNull("evaluation_mode", string(d.Mode))
	writeTimeOrNull(&w, "executed_at", e.Action.ExecutedAt)
	w.Strings("external_domains", e.Action.Facts.ExternalDomains)
	if e.Action.FoundSHA256 != "" {
		w.String("found_sha256", e.Action.FoundSHA256)
	}
	writeID(&w, "id", e.ID.UUID)
	w.StringOrNull("idempotency_key", e.Action.IdempotencyKey)
	w.Bool("kill_switch_active", d.KillSwitchActive)
	if e.Lease != "" {
		w.String("lease_id", e.Lease)
	}
	if len(d.Matched) > 0 {
		w.Value(AppendMatched(w.Name("matched_rules"), d.Matched))
	}
	w.Raw("metadata", e.Action.Metadata)
	w.StringOrNull("parent_agent_name", e.Action.ParentAgentName)
	w.StringOrNull("pause_reason", d.PauseReason)
	payload := sha256.Sum256(e.Action.Payload)
	w.Hex("payload_sha256", payload[:])
	w.String("policy_decision", string(d.Outcome))
	w.StringOrNull("policy_name", d.PolicyName)
	w.String("policy_version", d.PolicyVersion)
	writeTime(&w, "recorded_at", e.RecordedAt)
	w.Int("records_modified", e.Action.Facts.RecordsModified)
	w.StringOrNull("redactions_sha256", RedactionsHash(e.Action.Redactions))
	w.StringOrNull("remediation", d.Remediation)
	if e.Action.SentHMAC != "" {
		w.String("sent_hmac", e.Action.SentHMAC)
	}
	w.Int("sequence", e.Sequence)
	w.StringOrNull("shadow_decision", string(d.Shadow))
	w.String("status", string(e.Status))
	return w.End()
}

// errUnreadableEvent says that stored facts cannot be decoded.
var errUnreadableEvent = errors.New("stored event cannot be read")

// RecordedEvent is what can be decoded from an event's stored facts.
type RecordedEvent struct {
	Event
	PayloadSHA256 string
	// RedactionsSHA256 is "" if nothing was removed, and nil in records that predate it.
	RedactionsSHA256 *string
}

// DecodeEvent decodes the result of Encode. The payload is stored separately and is not part of the
// result.
func DecodeEvent(body []byte) (*RecordedEvent, error) {
	r, err := openRecord(body)
	if err != nil {
		return nil, errUnreadableEvent
	}
	approval, _ := r.optionalID("approval_id")
	event := &RecordedEvent{Event: Event{
		ID: EventID{r.id("id")}, Chain: ChainID{r.id("chain_id")},
		Sequence: r.Int("sequence", 1, maxCount),
		Action: Action{
			AgentName:       r.Text("agent_name", maxName),
			ActionType:      r.Text("action_type", maxName),
			ActionName:      r.Text("action_name", maxName),
			ParentAgentName: r.Text("parent_agent_name", maxName),
			Metadata:        r.Object("metadata", maxMetadata),
			IdempotencyKey:  r.Text("idempotency_key", MaxIdempotencyKey),
			ExecutedAt:      ReadTime(r.Fields, "executed_at"),
			SentHMAC:        r.Text("sent_hmac", maxName),
			FoundSHA256:     r.Text("found_sha256", maxName),
			Facts: Facts{
				Categories:      r.Texts("categories", maxCount, maxName),
				Amount:          r.money("amount_usd"),
				ExternalDomains: r.Texts("external_domains", maxCount, maxDomain),
				RecordsModified: r.Int("records_modified", 0, maxCount),
			},
		},
		Decision:   r.decision(),
		Status:     EventStatus(r.Text("status", maxName)),
		Approval:   ApprovalID{approval},
		Act:        r.Int("act_number", 0, maxCount),
		Lease:      r.Text("lease_id", maxLeaseID),
		Uses:       r.budgetUses(),
		RecordedAt: r.time("recorded_at"),
	}, PayloadSHA256: r.Text("payload_sha256", maxName), RedactionsSHA256: r.redactionsHash()}
	if !r.readable() {
		return nil, errUnreadableEvent
	}
	return event, nil
}

// StoredEvent is an event as it is stored: the canonical facts, the payload, and the columns that
// identify it.
type StoredEvent struct {
	Chain          ChainID
	Sequence       int64
	IdempotencyKey string
	Body           []byte
	Payload        []byte // nil once erased
	Redactions     []byte // digests of what was removed from the payload; nil for none and once erased
	MAC            []byte // authenticates the body on its own, before the chain is sealed
}

// Authentic reports whether the event's facts are what the service recorded. Whether they are stored
// in the right place is for the caller to compare.
func (e *StoredEvent) Authentic(keys Keys, org OrgID) bool {
	return Authentic(keys, org, PurposeEvent, e.MAC, e.Body)
}

// Extend adds the event's authenticator and idempotency key to a running digest over a
// chain's events. A digest that was kept since they were recorded then tells whether events
// that are Authentic are the same ones, without decoding any of them.
func (e *StoredEvent) Extend(digest [32]byte) [32]byte {
	joined := make([]byte, 0, 128)
	joined = append(joined, digest[:]...)
	joined = append(joined, e.MAC...)
	joined = append(joined, e.IdempotencyKey...)
	return sha256.Sum256(joined)
}

// payloadFault says what is wrong with the payload stored with an event's facts, or returns "".
func (e *RecordedEvent) payloadFault(stored *StoredEvent) string {
	switch {
	case stored.Payload == nil:
		return "the payload is missing"
	case PayloadHash(stored.Payload) != e.PayloadSHA256:
		return "the payload does not match its hash"
	case RedactionsHash(stored.Redactions) != orNone(e.RedactionsSHA256):
		return "the digests of what was redacted do not match their hash"
	}
	return ""
}

// Carries reports whether the payload and redactions stored with an event's facts match the hashes
// in the facts.
func (e *RecordedEvent) Carries(stored *StoredEvent) bool { return e.payloadFault(stored) == "" }
