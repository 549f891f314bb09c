package ledger

import (
	"countersign/internal/canon"
	"countersign/internal/classify"
)

// Action is what an agent is about to do, as the client sent it.
type Action struct {
	AgentName       string
	ActionType      string
	ActionName      string
	ParentAgentName string
	Payload         []byte // canonical object, redacted
	Metadata        []byte // canonical object, redacted, or nil
	IdempotencyKey  string
	ExecutedAt      *Time
	Facts           Facts
	Cost            *Money // cost of a model call; nil if unknown

	// Source is set for an action that a client has decided. It is "" for an action that the
	// service decides.
	Source Source

	// LeaseID is the lease under which the client says that it decided, or "".
	LeaseID string

	// Redactions is the canonical map of the digests of the values removed from the payload, or
	// nil. SentHMAC binds payload and metadata as they were sent, if the service itself removed
	// anything. Bind sets both.
	Redactions []byte
	SentHMAC   string
	redactions *redactions

	// FoundSHA256 is the hash of what the client says it found, or "".
	FoundSHA256 string

	// payload and metadata are the parsed forms of Payload and Metadata, unless they were dropped.
	// See Values.
	payload, metadata canon.Value
	dropped           bool

	// Examined is what an organization's rules keep about the action until it is decided. It is nil
	// before they have examined it, and is not part of the record.
	Examined any
}

// MaxIdempotencyKey bounds the idempotency keys of clients, in characters.
const MaxIdempotencyKey = 200

// ParseAction reads the body of a request that records an action.
func ParseAction(v canon.Value) (*Action, error) {
	f := canon.NewFields(v)
	action := readAction(f)
	checkGap(f, action)
	checkLateOutcome(f, action)
	checkCounts(f)
	if err := f.Err(); err != nil {
		return nil, err
	}
	dropLarge(action)
	return action, nil
}

// maxReported bounds a batch of actions that a client has decided.
const maxReported = 500

// ParseReported reads the body of a request that reports actions that a client has decided.
func ParseReported(v canon.Value) ([]*Action, error) {
	f := canon.NewFields(v)
	events, _ := f.Get("events")
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
		inner := f.Item("events", i, item)
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

// readAction classifies and redacts the action, so that the hashed, decided and stored action are
// the same.
func readAction(f *canon.Fields) *Action {
	action := &Action{
		AgentName:       f.RequiredName("agent_name", maxName),
		ActionType:      f.RequiredName("action_type", maxName),
		ActionName:      f.RequiredName("action_name", maxName),
		ParentAgentName: f.Name("parent_agent_name", maxName),
		IdempotencyKey:  f.Name("idempotency_key", MaxIdempotencyKey),
		ExecutedAt:      ReadTime(f, "executed_at"),
	}
	payload, metadata := parsePayload(f), f.ObjectValue("metadata")
	action.Facts = classifyAction(action, payload, metadata)
	action.addFound(f)
	action.redact(f, payload, metadata)
	action.Payload = action.payload.Bytes()
	if !metadata.IsNull() {
		if action.Metadata = action.metadata.Bytes(); len(action.Metadata) > maxMetadata {
			f.Fault("metadata", "must be at most %d bytes of JSON", maxMetadata)
		}
	}
	return action
}

// checkCounts refuses token counts in the metadata that would count as 0 although they say
// something else: a budget must not be spared by a text or a negative number. What a client has
// decided is recorded whatever it says, because it has happened. So is any payload, where such a
// member may be data.
func checkCounts(f *canon.Fields) {
	if metadata, _ := f.Get("metadata"); metadata.Kind() != canon.Object {
		return
	}
	declared := f.Nested("metadata")
	for _, member := range declared.Members() {
		count, usage := classify.DeclaresTokens(member.Name)
		switch {
		case count:
			checkCount(declared, member)
		case usage && member.Value.Kind() == canon.Object:
			inner := declared.Nested(member.Name)
			for _, counted := range inner.Members() {
				if count, _ := classify.DeclaresTokens(counted.Name); count {
					checkCount(inner, counted)
				}
			}
			declared.Join(inner)
		}
	}
	f.Join(declared)
}

func checkCount(f *canon.Fields, member canon.Member) {
	if !classify.ReadableCount(member.Value) {
		f.Fault(member.Name, "must be a number of tokens, 0 or more, without quotes or a fraction")
	}
}

// parsePayload reads payload or its alias action_payload. A missing payload is refused instead of
// treated as empty: two different actions must never have the same hash because neither has a
// payload.
func parsePayload(f *canon.Fields) canon.Value {
	name := "payload"
	if f.Given("action_payload") {
		if f.Given("payload") {
			f.Fault("action_payload", "must not be given together with payload, of which it is an alias")
			return canon.Value{}
		}
		name = "action_payload"
	}
	faults := f.Faults()
	payload := f.ObjectValue(name)
	if payload.IsNull() && f.Faults() == faults {
		f.Fault(name, "is required; send {} for an action without inputs")
	}
	return payload
}

// readLeaseID accepts any text. A text that cannot be a lease's id counts as none, because it must
// not prevent recording what has happened.
func readLeaseID(f *canon.Fields) string {
	v, ok := f.Get("lease_id")
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

// ActionTypeGap marks events that a client had to drop while it was offline.
const ActionTypeGap = "gap"

// checkGap checks the form of a gap marker: it contains only the number of events that a client
// dropped and their time span. Anything more would be an action that nobody has decided.
func checkGap(f *canon.Fields, action *Action) {
	if action.ActionType != ActionTypeGap {
		return
	}
	if action.Source == "" {
		f.Fault("action_type", "must not be gap: a client reports dropped events in a batch")
		return
	}
	const form = "of a gap must be {\"dropped\": how many, \"from\": time, \"to\": time}"
	gap := canon.NewFields(action.payload)
	name := "dropped"
	if gap.Given("count") { // alternative form used by other clients
		name = "count"
	}
	dropped, from, to := gap.Int(name, 1, maxCount), ReadTime(gap, "from"), ReadTime(gap, "to")
	if gap.Err() != nil || dropped == 0 || from == nil || to == nil {
		f.Fault("payload", form)
	}
	if len(action.Metadata) > 0 {
		f.Fault("metadata", "must not be given with a gap")
	}
}

// markerType reports whether events of a type are markers. Markers are recorded among a chain's
// actions but are not actions: no agent took them, and no limit counts them.
func markerType(actionType string) bool {
	return actionType == ActionTypeGap || actionType == ActionTypeLateOutcome
}

func (a *Action) marker() bool { return markerType(a.ActionType) }

// maxParsed bounds how many bytes of a request's actions are kept in parsed form. Parsed JSON can
// take a hundred times its size, and is held while the action waits.
const maxParsed = 4 << 10

// dropLarge drops the parsed form of a large request.
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

// Values returns the parsed payload and metadata for rules. It parses them again if they were
// dropped.
func (a *Action) Values() (payload, metadata canon.Value) {
	if !a.dropped {
		return a.payload, a.metadata
	}
	payload, _ = canon.Parse(a.Payload) // canonical, like the metadata, so parsing cannot fail
	if len(a.Metadata) > 0 {
		metadata, _ = canon.Parse(a.Metadata)
	}
	return payload, metadata
}

// MemoryBytes returns the approximate memory that the action takes while it waits, in bytes.
func (a *Action) MemoryBytes() int {
	held := len(a.Payload) + len(a.Metadata)
	if r := a.redactions; r != nil {
		held += 2 * len(r.raw)
	}
	return held
}

// Reconstruct returns the action of a recorded event, to decide it again.
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
	// What was found when the action arrived is kept, because that was before redaction.
	action.Facts.Model, action.Facts.InputTokens, action.Facts.OutputTokens = found.Model, found.InputTokens, found.OutputTokens
	action.Facts.WritesSQL = found.WritesSQL
	if source := event.Decision.Source; source == SourceFastPath || source == SourceOffline {
		action.Source = source
	}
	return &action, nil
}
