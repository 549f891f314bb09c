package ledger

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"countersign/internal/canon"
)

// Action is what an agent is about to do, as the client sent it.
type Action struct {
	AgentName       string
	ActionType      string
	ActionName      string
	ParentAgentName string
	Payload         []byte // canonical object, redacted
	Metadata        []byte // canonical object, redacted, nil for none
	IdempotencyKey  string
	ExecutedAt      *Time
	Facts           Facts
	Cost            *Money // of a model's call, nil where it is not known

	// Source says which client-side decision this reports; "" for an action that
	// the service decides.
	Source Source

	// LeaseID is the lease under which the client says that it decided, "" for none.
	LeaseID string

	// Redactions is the canonical map of the digests of what was taken out of the
	// payload, nil for none. SentHMAC binds payload and metadata as they came, where the
	// service itself took out anything. Bind makes both.
	Redactions []byte
	SentHMAC   string
	redactions *redactions

	// FoundSHA256 is the hash of what the client says it found, "" for nothing.
	FoundSHA256 string

	// What Payload and Metadata say, parsed, unless it was dropped. See Values.
	payload, metadata canon.Value
	dropped           bool

	// Examined is what an organization's rules keep of the action until it is decided;
	// nil before they have examined it. It is no part of the record.
	Examined any
}

// MaxIdempotencyKey bounds the keys that clients choose.
const MaxIdempotencyKey = 200

// ParseAction reads the body of a request that records an action.
func ParseAction(v canon.Value) (*Action, error) {
	f := NewFields(v)
	action := readAction(f)
	checkGap(f, action)
	checkLateOutcome(f, action)
	if err := f.Err(); err != nil {
		return nil, err
	}
	dropLarge(action)
	return action, nil
}

// maxReported bounds a batch of decisions that a client made.
const maxReported = 500

// ParseReported reads the body of a request that reports actions which a client
// decided by itself.
func ParseReported(v canon.Value) ([]*Action, error) {
	f := NewFields(v)
	events, _ := f.get("events")
	switch {
	case events.Kind() != canon.Array:
		f.Fault("events", "is required: an array of events")
	case len(events.Items()) == 0 || len(events.Items()) > maxReported:
		f.Fault("events", "must have 1 to %d elements", maxReported)
	}
	if err := f.Err(); err != nil {
		return nil, err
	}
	actions := make([]*Action, 0, len(events.Items()))
	for i, item := range events.Items() {
		inner := newFieldsAt(item, fmt.Sprintf("/events/%d", i))
		action := readAction(inner)
		action.Source = Source(inner.OneOf("decision_source", string(SourceFastPath), string(SourceOffline)))
		inner.OneOf("policy_decision", string(Allow), string(AllowWithFlag))
		if action.Source == "" && !inner.Has("decision_source") {
			inner.Fault("decision_source", "is required: local_fast_path or offline_stub; actions that the service decides go to the events route one by one")
		}
		if action.IdempotencyKey == "" && !inner.Has("idempotency_key") {
			inner.Fault("idempotency_key", "is required, so that a batch can be sent again")
		}
		action.LeaseID = readLeaseID(inner)
		checkGap(inner, action)
		checkLateOutcome(inner, action)
		f.Join(inner)
		actions = append(actions, action)
	}
	dropLarge(actions...)
	return actions, f.Err()
}

// readLeaseID takes any text: what cannot be a lease's id is none, and does not
// keep what has happened from the record.
func readLeaseID(f *Fields) string {
	v, ok := f.get("lease_id")
	if !ok || v.IsNull() {
		return ""
	}
	if v.Kind() != canon.String {
		f.Fault("lease_id", "must be a string")
		return ""
	}
	if len(v.Str()) > maxLeaseID {
		return ""
	}
	return v.Str()
}

// readAction classifies what arrived and keeps it redacted: what is hashed,
// decided on and stored is the same.
func readAction(f *Fields) *Action {
	action := &Action{
		AgentName:       f.RequiredName("agent_name", maxName),
		ActionType:      f.RequiredName("action_type", maxName),
		ActionName:      f.RequiredName("action_name", maxName),
		ParentAgentName: f.Name("parent_agent_name", maxName),
		IdempotencyKey:  f.Name("idempotency_key", MaxIdempotencyKey),
		ExecutedAt:      f.Time("executed_at"),
	}
	payload, metadata := parsePayload(f), f.objectValue("metadata")
	action.Facts = classifyAction(action, payload, metadata)
	action.addFound(f)
	action.redact(f, payload, metadata)
	action.Payload = action.payload.Append(nil)
	if !metadata.IsNull() {
		if action.Metadata = action.metadata.Append(nil); len(action.Metadata) > maxMetadata {
			f.Fault("metadata", "must be at most %d bytes of JSON", maxMetadata)
		}
	}
	return action
}

// maxParsed is how many bytes the actions of a request keep parsed. Parsed, JSON can take
// a hundred times its size, and it waits with the action.
const maxParsed = 4 << 10

// dropLarge drops the parsed form of what a request has sent, where that is large.
func dropLarge(actions ...*Action) {
	size := 0
	for _, a := range actions {
		size += len(a.Payload) + len(a.Metadata)
	}
	if size <= maxParsed {
		return
	}
	for _, a := range actions {
		a.payload, a.metadata, a.dropped = canon.Value{}, canon.Value{}, true
	}
}

// Values are what Payload and Metadata say, for rules to look into. They are parsed for
// it where they are large.
func (a *Action) Values() (payload, metadata canon.Value) {
	if !a.dropped {
		return a.payload, a.metadata
	}
	payload, _ = canon.Parse(a.Payload) // it is canonical, as the metadata are
	if len(a.Metadata) > 0 {
		metadata, _ = canon.Parse(a.Metadata)
	}
	return payload, metadata
}

// Held is about how many bytes the action holds while it waits.
func (a *Action) Held() int {
	held := len(a.Payload) + len(a.Metadata)
	if r := a.redactions; r != nil {
		held += 2 * len(r.raw)
	}
	return held
}

// parsePayload takes payload or its alias action_payload. A missing payload is
// refused rather than taken for an empty one: two different actions must never
// share a hash because neither said what it does.
func parsePayload(f *Fields) canon.Value {
	name := "payload"
	if f.Given("action_payload") {
		if f.Given("payload") {
			f.Fault("action_payload", "must not be given together with payload, of which it is an alias")
			return canon.Value{}
		}
		name = "action_payload"
	}
	faults := len(f.faults)
	payload := f.objectValue(name)
	if payload.IsNull() && len(f.faults) == faults {
		f.Fault(name, "is required; send {} for an action without inputs")
	}
	return payload
}

// Reconstruct makes the action that an event recorded, to decide it once more.
func Reconstruct(event *RecordedEvent, payload []byte) (*Action, error) {
	action := event.Action
	var err error
	if len(payload) > 0 {
		if action.payload, err = canon.Parse(payload); err != nil {
			return nil, errUnreadableEvent
		}
	}
	if len(action.Metadata) > 0 {
		if action.metadata, err = canon.Parse(action.Metadata); err != nil {
			return nil, errUnreadableEvent
		}
	}
	action.Payload = payload
	found := classifyAction(&action, action.payload, action.metadata)
	dropLarge(&action)
	// What was found when the action arrived stands: it had not been redacted yet.
	action.Facts.Model, action.Facts.InputTokens, action.Facts.OutputTokens = found.Model, found.InputTokens, found.OutputTokens
	if source := event.Decision.Source; source == SourceFastPath || source == SourceOffline {
		action.Source = source
	}
	return &action, nil
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
	Decision   Decision
	Status     EventStatus
	Approval   ApprovalID // zero where none was asked for
	Act        int64      // the act that last changed the organization before; 0 where it was not kept
	Lease      string     // the lease that let a client decide it, "" for none
	Uses       []BudgetUse
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
	if e.Act > 0 {
		w.Int("act_number", e.Act)
	}
	w.String("action_name", e.Action.ActionName)
	w.String("action_type", e.Action.ActionType)
	w.String("agent_name", e.Action.AgentName)
	writeMoney(&w, "amount_usd", e.Action.Facts.Amount)
	if e.Approval == (ApprovalID{}) {
		w.Null("approval_id")
	} else {
		w.Value(appendQuotedID(w.Name("approval_id"), e.Approval.UUID))
	}
	w.Bool("auto_paused", d.AutoPaused)
	if len(e.Uses) > 0 {
		w.Value(appendUses(w.Name("budgets"), e.Uses))
	}
	w.Strings("categories", e.Action.Facts.Categories)
	w.Value(appendQuotedID(w.Name("chain_id"), e.Chain.UUID))
	w.String("decision_reason", d.Reason)
	w.String("decision_source", string(d.Source))
	w.StringOrNull("docs_url", d.DocsURL)
	writeMoney(&w, "estimated_cost_usd", d.EstimatedCost)
	w.StringOrNull("evaluation_mode", string(d.Mode))
	writeTime(&w, "executed_at", e.Action.ExecutedAt)
	w.Strings("external_domains", e.Action.Facts.ExternalDomains)
	if e.Action.FoundSHA256 != "" {
		w.String("found_sha256", e.Action.FoundSHA256)
	}
	w.Value(appendQuotedID(w.Name("id"), e.ID.UUID))
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
	w.String("payload_sha256", PayloadHash(e.Action.Payload))
	w.String("policy_decision", string(d.Outcome))
	w.StringOrNull("policy_name", d.PolicyName)
	w.String("policy_version", d.PolicyVersion)
	writeTime(&w, "recorded_at", &e.RecordedAt)
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

// errUnreadableEvent says that stored facts cannot be read.
var errUnreadableEvent = errors.New("stored event cannot be read")

// RecordedEvent is what can be read back from an event's stored facts.
type RecordedEvent struct {
	Event
	PayloadSHA256 string
	// RedactionsSHA256 is "" where nothing was taken out, and nil in a record from
	// before this was kept.
	RedactionsSHA256 *string
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
			SentHMAC:        f.Text("sent_hmac", maxName),
			FoundSHA256:     f.Text("found_sha256", maxName),
			Facts: Facts{
				Categories:      f.Texts("categories", maxListed, maxName),
				Amount:          readMoney(f, "amount_usd"),
				ExternalDomains: f.Texts("external_domains", maxCount, maxDomain),
				RecordsModified: f.Int("records_modified", 0, maxCount),
			},
		},
		Decision: readDecision(f),
		Status:   EventStatus(f.Text("status", maxName)),
		Act:      f.Int("act_number", 0, maxCount),
		Lease:    f.Text("lease_id", maxLeaseID),
	}, PayloadSHA256: f.Text("payload_sha256", maxName), RedactionsSHA256: readRedactionsHash(f)}
	if text := f.Text("approval_id", maxName); text != "" {
		approval, err := ParseID(text)
		if err != nil {
			return nil, errUnreadableEvent
		}
		event.Approval = ApprovalID{approval}
	}
	uses, usesOK := readUses(f)
	if event.Uses = uses; !usesOK {
		return nil, errUnreadableEvent
	}
	if idErr != nil || chainErr != nil || recorded == nil || f.Err() != nil {
		return nil, errUnreadableEvent
	}
	event.RecordedAt = *recorded
	return event, nil
}

// Repeats reports whether an action is the recorded one sent once more, in the same
// words: what was taken out of it is compared by its digests. The action is bound.
func (e *RecordedEvent) Repeats(action *Action) bool {
	a := &e.Action
	sameTime := (a.ExecutedAt == nil) == (action.ExecutedAt == nil) &&
		(a.ExecutedAt == nil || *a.ExecutedAt == *action.ExecutedAt)
	// What a client decided by itself is not what the service was asked about: one
	// must not stand in for the other.
	source := action.Source
	if source == "" {
		source = SourceBackend
	}
	return e.Decision.Source == source && a.AgentName == action.AgentName && a.ActionType == action.ActionType && a.ActionName == action.ActionName &&
		a.ParentAgentName == action.ParentAgentName && bytes.Equal(a.Metadata, action.Metadata) && sameTime &&
		e.PayloadSHA256 == PayloadHash(action.Payload) && e.binds(action)
}

// binds compares what the service cannot see any more. Records from before it was kept
// do not say.
func (e *RecordedEvent) binds(action *Action) bool {
	return e.RedactionsSHA256 == nil ||
		*e.RedactionsSHA256 == RedactionsHash(action.Redactions) && e.Action.SentHMAC == action.SentHMAC && e.Action.FoundSHA256 == action.FoundSHA256
}

func writeMoney(w *canon.ObjectWriter, name string, m *Money) {
	if m == nil {
		w.Null(name)
		return
	}
	w.Number(name, m.Float())
}

// writeExact keeps every digit of an amount, for records that are read back.
func writeExact(w *canon.ObjectWriter, name string, m *Money) {
	if m == nil {
		w.Null(name)
		return
	}
	w.String(name, m.String())
}

func readMoney(f *Fields, name string) *Money {
	v, ok := f.get(name)
	if !ok || v.IsNull() {
		return nil
	}
	m := MoneyOf(v.Float())
	return &m
}
