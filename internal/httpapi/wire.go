package httpapi

import (
	"encoding/base64"
	"net/http"

	"countersign/internal/canon"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

// The functions in the wire files encode answers member by member. What a caller sees is exactly
// what is listed there, never a record with some fields removed.

func appendChain(dst []byte, c *service.ChainView, receipt []byte) []byte {
	if c.Tampered {
		return appendTampered(dst, "id", c.ID.String())
	}
	w := canon.BeginObject(dst)
	w.String("id", c.ID.String())
	w.String("organization_id", c.Organization)
	w.String("name", c.Name)
	w.StringOrNull("external_chain_id", c.ExternalID)
	w.Raw("metadata", c.Metadata)
	w.String("environment", c.Environment)
	w.String("status", string(c.State.Status))
	w.StringOrNull("pause_reason", c.State.PauseReason)
	w.String("started_at", c.StartedAt.String())
	appendTime(&w, "completed_at", c.State.CompletedAt)
	w.String("created_at", c.StartedAt.String()) // an alias that other clients read
	w.String("updated_at", c.State.LastAt.String())
	w.Int("total_actions", c.State.ActionsTaken())
	w.Strings("agents_involved", c.State.Agents)
	w.Value(c.State.Metrics.AppendTo(w.Name("cumulative_metrics")))
	w.String("policy_version", c.State.PolicyVersion)
	if c.State.Receipt == nil {
		w.Null("receipt_id")
	} else {
		w.String("receipt_id", c.State.Receipt.String())
	}
	writeChainID(&w, "continues", c.Predecessor())
	writeChainID(&w, "continued_by", c.State.ContinuedBy)
	w.Raw("fail_modes", c.FailModes)
	w.Bool("fast_path", c.FastPath)
	if c.Limits == nil {
		w.Null("effective_limits")
	} else {
		w.Value(c.Limits.AppendTo(w.Name("effective_limits")))
	}
	if failure := c.State.Failure; failure == nil {
		w.Null("error")
	} else {
		e := canon.BeginObject(w.Name("error"))
		e.String("type", failure.Type)
		e.String("message", failure.Message)
		w.Value(e.End())
	}
	if c.BindingKey != nil {
		w.String("binding_key", base64.StdEncoding.EncodeToString(c.BindingKey))
	}
	if c.Terms != nil {
		writeTerms(&w, c.Terms)
	}
	if receipt != nil {
		w.Raw("receipt", receipt)
	}
	return w.End()
}

// appendTampered encodes the entry of a list that was changed outside the service: its id, and that
// it failed.
func appendTampered(dst []byte, name, id string) []byte {
	w := canon.BeginObject(dst)
	w.String(name, id)
	w.String("integrity", string(ledger.IntegrityFailed))
	return w.End()
}

func writeChainID(w *canon.ObjectWriter, name string, id *ledger.ChainID) {
	if id == nil {
		w.Null(name)
		return
	}
	w.String(name, id.String())
}

// writeTerms writes the number of the organization's last act and the client's lease, if it has one.
func writeTerms(w *canon.ObjectWriter, t *service.Terms) {
	w.Int("act_number", t.Act)
	if t.Lease == nil {
		w.Null("fast_path_lease")
		return
	}
	lease := canon.BeginObject(w.Name("fast_path_lease"))
	lease.String("id", t.Lease.ID)
	lease.Int("milliseconds", t.Lease.Milliseconds)
	lease.Int("max_actions", t.Lease.MaxActions)
	lease.Strings("actions", t.Lease.Actions)
	lease.Strings("except_agents", t.Lease.ExceptAgents)
	w.Value(lease.End())
}

func appendTime(w *canon.ObjectWriter, name string, t *ledger.Time) {
	if t == nil {
		w.Null(name)
		return
	}
	w.String(name, t.String())
}

func appendDecision(dst []byte, r *service.Recorded) []byte {
	w := canon.BeginObject(dst)
	writeDecision(&w, r)
	writeChainID(&w, "continued_by", r.ContinuedBy)
	writeTerms(&w, &r.Terms)
	return w.End()
}

func writeDecision(w *canon.ObjectWriter, r *service.Recorded) {
	e := r.Event
	writeVerdict(w, &e.Decision)
	w.String("event_id", e.ID.String())
	w.String("chain_id", e.Chain.String())
	w.Int("sequence", e.Sequence)
	if e.Approval == (ledger.ApprovalID{}) {
		w.Null("approval_id")
	} else {
		w.String("approval_id", e.Approval.String())
	}
	w.String("policy_version", e.Decision.PolicyVersion)
	w.String("status", string(e.Status))
	w.Value(r.Metrics.AppendTo(w.Name("cumulative_metrics")))
	w.Bool("fast_path", r.FastPath)
}

// writeVerdict writes the members that all decisions have.
func writeVerdict(w *canon.ObjectWriter, d *ledger.Decision) {
	w.String("policy_decision", string(d.Outcome))
	w.String("decision_reason", d.Reason)
	w.String("decision_source", string(d.Source))
	w.StringOrNull("policy_name", d.PolicyName)
	w.Bool("kill_switch_active", d.KillSwitchActive)
	w.StringOrNull("pause_reason", d.PauseReason)
	w.StringOrNull("remediation", d.Remediation)
	w.StringOrNull("docs_url", d.DocsURL)
	w.StringOrNull("evaluation_mode", string(d.Mode))
	w.StringOrNull("shadow_decision", string(d.Shadow))
	if d.EstimatedCost == nil {
		w.Null("estimated_cost_usd")
	} else {
		w.Number("estimated_cost_usd", d.EstimatedCost.Float())
	}
	w.Bool("auto_paused", d.AutoPaused)
	w.Value(ledger.AppendMatched(w.Name("matched_rules"), d.Matched))
}

// appendEvent encodes an event: the recorded facts byte for byte, the payload, a summary of the
// latest outcome and approval, and all later entries as the digest covers them. What did not verify
// is omitted, and integrity says so.
func appendEvent(dst []byte, e *service.EventView) []byte {
	if e.Facts == nil {
		w := canon.BeginObject(dst)
		w.String("chain_id", e.Chain.String())
		w.Int("sequence", e.Sequence)
		w.String("integrity", string(e.Integrity))
		return w.End()
	}
	dst = append(dst, e.Body[:len(e.Body)-1]...)
	if e.Integrity != "" {
		dst = append(append(append(dst, `,"integrity":"`...), e.Integrity...), '"')
	}
	dst = append(dst, `,"payload":`...)
	if e.Payload == nil {
		dst = append(dst, "null"...)
	} else {
		dst = append(dst, e.Payload...)
	}
	if e.Redactions != nil {
		dst = append(append(dst, `,"redactions":`...), e.Redactions...)
	}
	if o := e.Outcome; o != nil {
		w := canon.BeginObject(append(dst, `,"outcome":`...))
		writeOutcome(&w, o)
		dst = w.End()
	}
	if a := e.Approval; a != nil {
		w := canon.BeginObject(append(dst, `,"approval":`...))
		w.String("status", string(a.ApprovalStatus))
		w.String("approval_hash", ledger.FormatHash(a.ApprovalHash))
		w.String("recorded_at", a.RecordedAt.String())
		w.Int("position", a.Position)
		dst = w.End()
	}
	dst = append(dst, `,"entries":[`...)
	for i, entry := range e.Entries {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, entry.Body...)
	}
	return append(dst, "]}"...)
}

func writeOutcome(w *canon.ObjectWriter, o *ledger.Entry) {
	w.String("outcome", string(o.Result))
	w.StringOrNull("detail", o.Detail)
	w.String("recorded_at", o.RecordedAt.String())
	w.Int("position", o.Position)
}

func appendOutcome(dst []byte, chain ledger.ChainID, o *service.Outcome) []byte {
	w := canon.BeginObject(dst)
	w.String("event_id", o.Event.String())
	w.String("chain_id", chain.String())
	w.Int("sequence", o.Sequence)
	writeOutcome(&w, o.Entry)
	writeChainID(&w, "continued_by", o.ContinuedBy)
	return w.End()
}

func appendCheck(dst []byte, c *ledger.ReceiptCheck) []byte {
	w := canon.BeginObject(dst)
	w.Bool("valid", c.Valid)
	if c.Full {
		w.String("checked", "full")
	} else {
		w.String("checked", "signature")
	}
	w.String("receipt_number", c.Number)
	w.String("chain_id", c.Chain.String())
	w.String("generated_at", c.GeneratedAt)
	return w.End()
}

// appendKey encodes an API key. text is empty unless the key or its secret was just created.
func (x *exchange) appendKey(dst []byte, k *ledger.KeyRecord, text ledger.Secret) []byte {
	w := canon.BeginObject(dst)
	w.String("key_id", k.ID.String())
	if k.Tampered {
		w.String("status", string(ledger.APIKeyTampered))
		return w.End()
	}
	w.String("name", k.Name)
	w.String("role", string(k.Role))
	w.String("hint", k.Hint)
	w.String("status", string(k.Status(x.api.service.Now())))
	w.Strings("agents", k.Agents)
	w.StringOrNull("owner", k.Owner)
	w.StringOrNull("sign_in_as", k.SignInAs)
	w.StringOrNull("slack_member", k.SlackMember)
	w.String("created_at", k.CreatedAt.String())
	appendTime(&w, "expires_at", k.ExpiresAt)
	appendTime(&w, "last_used_at", k.LastUsedAt)
	var previous *ledger.Time
	if k.Previous != nil {
		previous = &k.Previous.ExpiresAt
	}
	appendTime(&w, "previous_expires_at", previous)
	appendTime(&w, "revoked_at", k.RevokedAt)
	if text.Reveal() != "" {
		w.String("key", text.Reveal())
	}
	return w.End()
}

// list answers with a page of a list. The page ends when it has limit entries or reaches
// service.PageBytes, and then has the cursor of the next page.
func list[T any](x *exchange, items []T, limit int, cursor func(T) string, one func([]byte, T) []byte) error {
	return listWith(x, nil, items, limit, cursor, "", one)
}

// listPart is list for a page that can be short although the list continues. rest is then the cursor
// of the next page, and otherwise "".
func listPart[T any](x *exchange, items []T, limit int, cursor func(T) string, rest string, one func([]byte, T) []byte) error {
	return listWith(x, nil, items, limit, cursor, rest, one)
}

// listWith is listPart with extra members for the answer. extra is their JSON, with a comma before
// each.
func listWith[T any](x *exchange, extra []byte, items []T, limit int, cursor func(T) string, rest string, one func([]byte, T) []byte) error {
	dst, next := append(make([]byte, 0, 4<<10), `{"data":[`...), rest
	sent := 0
	for i, item := range items {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = one(dst, item)
		if i+1 == limit || sent+len(dst) >= service.PageBytes {
			next = cursor(item)
			break
		}
		if len(dst) >= pageChunk { // never hold a large page in memory as a whole
			x.begin(http.StatusOK, "application/json", -1)
			x.send(dst)
			sent, dst = sent+len(dst), dst[:0]
		}
	}
	dst = append(dst, `],"next_cursor":`...)
	if next == "" {
		dst = append(dst, "null"...)
	} else {
		dst = canon.AppendString(dst, next)
	}
	dst = append(append(dst, extra...), '}')
	if sent == 0 {
		return x.answer(http.StatusOK, dst)
	}
	x.send(dst)
	return nil
}

// pageChunk is the size of the parts in which a page is sent, in bytes.
const pageChunk = 64 << 10
