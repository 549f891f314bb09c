package ledger

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"

	"countersign/internal/canon"
)

// Action is what an agent is about to do, as the client sent it.
type Action struct {
	AgentName       string
	ActionType      string
	ActionName      string
	ParentAgentName string
	Payload         []byte // canonical object
	Metadata        []byte // canonical object, nil for none
	IdempotencyKey  string
	ExecutedAt      *Time
}

// MaxIdempotencyKey bounds the keys that clients choose.
const MaxIdempotencyKey = 200

// ParseAction reads the body of a request that records an action.
func ParseAction(v canon.Value) (*Action, error) {
	f := NewFields(v)
	action := &Action{
		AgentName:       f.RequiredName("agent_name", maxName),
		ActionType:      f.RequiredName("action_type", maxName),
		ActionName:      f.RequiredName("action_name", maxName),
		ParentAgentName: f.Name("parent_agent_name", maxName),
		Metadata:        f.Object("metadata", maxMetadata),
		IdempotencyKey:  f.Name("idempotency_key", MaxIdempotencyKey),
		ExecutedAt:      f.Time("executed_at"),
	}
	action.Payload = parsePayload(f)
	if err := f.Err(); err != nil {
		return nil, err
	}
	return action, nil
}

// parsePayload takes payload or its alias action_payload. A missing payload is
// refused rather than taken for an empty one: two different actions must never
// share a hash because neither said what it does.
func parsePayload(f *Fields) []byte {
	const unbounded = 1 << 30 // the request's own bound is smaller
	name := "payload"
	if f.Given("action_payload") {
		if f.Given("payload") {
			f.Fault("action_payload", "must not be given together with payload, of which it is an alias")
			return nil
		}
		name = "action_payload"
	}
	faults := len(f.faults)
	payload := f.Object(name, unbounded)
	if payload == nil && len(f.faults) == faults {
		f.Fault(name, "is required; send {} for an action without inputs")
	}
	return payload
}

// EventStatus is what became of an action when it was recorded.
type EventStatus string

// The statuses of an event.
const (
	EventAllowed  EventStatus = "allowed"
	EventFlagged  EventStatus = "flagged"
	EventAwaiting EventStatus = "awaiting_approval"
	EventDenied   EventStatus = "denied"
)

// Event is an action with what the service found and decided: the facts as
// first recorded. What happens later enters the chain as an Addendum.
type Event struct {
	ID         EventID
	Chain      ChainID
	Sequence   int64
	Action     Action
	Facts      Facts
	Decision   Decision
	Status     EventStatus
	RecordedAt Time
}

// PayloadHash is the hex SHA-256 of a payload's canonical bytes.
func PayloadHash(payload []byte) string {
	sum := sha256.Sum256(payload)
	return hex.EncodeToString(sum[:])
}

// Encode writes the event's canonical facts: what the running digest covers.
// The payload stands in them by its hash alone, so that it can be erased later
// without breaking any proof.
func (e *Event) Encode() []byte {
	w := canon.BeginObject(make([]byte, 0, 1024))
	d := &e.Decision
	w.String("action_name", e.Action.ActionName)
	w.String("action_type", e.Action.ActionType)
	w.String("agent_name", e.Action.AgentName)
	writeMoney(&w, "amount_usd", e.Facts.Amount)
	w.Null("approval_id")
	w.Bool("auto_paused", d.AutoPaused)
	w.Strings("categories", e.Facts.Categories)
	w.Value(appendQuotedID(w.Name("chain_id"), e.Chain.UUID))
	w.String("decision_reason", d.Reason)
	w.String("decision_source", string(d.Source))
	w.StringOrNull("docs_url", d.DocsURL)
	writeMoney(&w, "estimated_cost_usd", d.EstimatedCost)
	w.StringOrNull("evaluation_mode", string(d.Mode))
	writeTime(&w, "executed_at", e.Action.ExecutedAt)
	w.Strings("external_domains", e.Facts.ExternalDomains)
	w.Value(appendQuotedID(w.Name("id"), e.ID.UUID))
	w.StringOrNull("idempotency_key", e.Action.IdempotencyKey)
	w.Bool("kill_switch_active", d.KillSwitchActive)
	w.Raw("metadata", e.Action.Metadata)
	w.StringOrNull("parent_agent_name", e.Action.ParentAgentName)
	w.StringOrNull("pause_reason", d.PauseReason)
	w.String("payload_sha256", PayloadHash(e.Action.Payload))
	w.String("policy_decision", string(d.Outcome))
	w.StringOrNull("policy_name", d.PolicyName)
	w.String("policy_version", d.PolicyVersion)
	writeTime(&w, "recorded_at", &e.RecordedAt)
	w.Int("records_modified", e.Facts.RecordsModified)
	w.StringOrNull("remediation", d.Remediation)
	w.Int("sequence", e.Sequence)
	w.StringOrNull("shadow_decision", string(d.Shadow))
	w.String("status", string(e.Status))
	return w.End()
}

// errUnreadableEvent says that stored facts cannot be read.
var errUnreadableEvent = errors.New("stored event cannot be read")

// RecordedEvent is what can be read back from an event's stored facts.
type RecordedEvent struct {
	Event
	PayloadSHA256 string
}

// DecodeEvent reads what Encode wrote. The payload is kept apart from the facts
// and is not part of the result.
func DecodeEvent(body []byte) (*RecordedEvent, error) {
	v, err := canon.Parse(body)
	if err != nil {
		return nil, errUnreadableEvent
	}
	f := NewFields(v)
	id, idErr := ParseID(f.Text("id", maxName))
	chain, chainErr := ParseID(f.Text("chain_id", maxName))
	recorded := f.Time("recorded_at")
	event := &RecordedEvent{Event: Event{
		ID: EventID{id}, Chain: ChainID{chain},
		Sequence: f.Int("sequence", 1, maxCount),
		Action: Action{
			AgentName:       f.Text("agent_name", maxName),
			ActionType:      f.Text("action_type", maxName),
			ActionName:      f.Text("action_name", maxName),
			ParentAgentName: f.Text("parent_agent_name", maxName),
			Metadata:        f.Object("metadata", maxMetadata),
			IdempotencyKey:  f.Text("idempotency_key", MaxIdempotencyKey),
			ExecutedAt:      f.Time("executed_at"),
		},
		Facts: Facts{
			Categories:      f.Texts("categories", maxListed, maxName),
			Amount:          readMoney(f, "amount_usd"),
			ExternalDomains: f.Texts("external_domains", maxCount, maxDomain),
			RecordsModified: f.Int("records_modified", 0, maxCount),
		},
		Decision: readDecision(f),
		Status:   EventStatus(f.Text("status", maxName)),
	}, PayloadSHA256: f.Text("payload_sha256", maxName)}
	f.Ignore("approval_id")
	if idErr != nil || chainErr != nil || recorded == nil || f.Err() != nil {
		return nil, errUnreadableEvent
	}
	event.RecordedAt = *recorded
	return event, nil
}

// Repeats reports whether an action is the recorded one sent once more.
func (e *RecordedEvent) Repeats(action *Action) bool {
	a := &e.Action
	sameTime := (a.ExecutedAt == nil) == (action.ExecutedAt == nil) &&
		(a.ExecutedAt == nil || *a.ExecutedAt == *action.ExecutedAt)
	return a.AgentName == action.AgentName && a.ActionType == action.ActionType && a.ActionName == action.ActionName &&
		a.ParentAgentName == action.ParentAgentName && bytes.Equal(a.Metadata, action.Metadata) && sameTime &&
		e.PayloadSHA256 == PayloadHash(action.Payload)
}

// Record decides an action and enters it into the chain. It returns the event
// with the canonical facts to store; the state has moved on.
func (s *ChainState) Record(policy Policy, chain *Chain, action *Action, now Time, random [10]byte) (*Event, []byte) {
	now = Later(now, s.LastAt)
	facts := Classify(action)
	decision := Decide(policy, chain, s, action, facts)
	s.Actions++
	s.LastAt = now
	event := &Event{
		ID:         NewEventID(now, random, s.Actions),
		Chain:      chain.ID,
		Sequence:   s.Actions,
		Action:     *action,
		Facts:      facts,
		Decision:   decision,
		Status:     decision.Outcome.status(),
		RecordedAt: now,
	}
	if event.Status == EventAllowed || event.Status == EventFlagged {
		s.Metrics.Count(facts, decision.EstimatedCost)
	}
	s.PolicyVersion = decision.PolicyVersion
	s.meet(action.AgentName)
	body := event.Encode()
	s.enter(body)
	return event, body
}

func writeMoney(w *canon.ObjectWriter, name string, m *Money) {
	if m == nil {
		w.Null(name)
		return
	}
	w.Number(name, m.Float())
}

func readMoney(f *Fields, name string) *Money {
	v, ok := f.get(name)
	if !ok || v.IsNull() {
		return nil
	}
	m := MoneyOf(v.Float())
	return &m
}
