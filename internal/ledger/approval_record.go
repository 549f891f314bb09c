package ledger

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"errors"

	"countersign/internal/canon"
)

// Encode returns the approval's canonical bytes and their authenticator.
func (a *Approval) Encode(keys Keys) (body, mac []byte) {
	w := canon.BeginObject(make([]byte, 0, 1024))
	w.String("action_name", a.ActionName)
	w.String("action_type", a.ActionType)
	w.String("agent_name", a.AgentName)
	writeExactMoney(&w, "amount_usd", a.Reserved.Facts.Amount)
	w.Strings("approvers", a.Approvers)
	if len(a.Reserved.Uses) > 0 {
		w.Value(appendUses(w.Name("budgets"), a.Reserved.Uses))
	}
	w.Strings("categories", a.Reserved.Facts.Categories)
	writeID(&w, "chain_id", a.Chain.UUID)
	w.StringOrNull("comment", a.Comment)
	writeTimeOrNull(&w, "decided_at", a.DecidedAt)
	writeDenial(&w, a.DeniedBy)
	w.Strings("escalate", a.Escalate)
	writeTimeOrNull(&w, "escalated_at", a.EscalatedAt)
	writeTime(&w, "escalates_at", a.EscalatesAt)
	writeExactMoney(&w, "estimated_cost_usd", a.Reserved.Cost)
	writeID(&w, "event_id", a.Event.UUID)
	writeTime(&w, "expires_at", a.ExpiresAt)
	w.Strings("external_domains", a.Reserved.Facts.ExternalDomains)
	w.Strings("fallback", a.Fallback)
	writeID(&w, "id", a.ID.UUID)
	w.Value(AppendMatched(w.Name("matched_rules"), a.Matched))
	writeID(&w, "opened_by", a.OpenedBy.UUID)
	writeID(&w, "organization_id", a.Org.UUID)
	w.String("payload_sha256", a.PayloadSHA256)
	w.StringOrNull("policy_name", a.PolicyName)
	w.String("policy_version", a.PolicyVersion)
	w.String("reason", a.Reason)
	w.Int("records_modified", a.Reserved.Facts.RecordsModified)
	if a.RedactionsSHA256 != nil {
		w.StringOrNull("redactions_sha256", *a.RedactionsSHA256)
	}
	writeTime(&w, "requested_at", a.RequestedAt)
	writeID(&w, "requested_by", a.RequestedBy.UUID)
	writeReviewer(&w, a.Reviewer)
	w.Int("sequence", a.Sequence)
	w.StringOrNull("signature", hex.EncodeToString(a.Signature))
	writeIDOrNull(&w, "signing_key_id", a.SigningKey.UUID)
	w.String("status", string(a.Status))
	w.Int("tokens", a.Reserved.Tokens)
	w.Bool("two_person", a.TwoPerson)
	w.Value(appendVotes(w.Name("votes"), a.Votes))
	body = w.End()
	return body, Authenticate(keys, a.Org, PurposeApproval, body)
}

func writeReviewer(w *canon.ObjectWriter, r *Reviewer) {
	if r == nil {
		w.Null("reviewer")
		return
	}
	inner := canon.BeginObject(w.Name("reviewer"))
	writeID(&inner, "key_id", r.Key.UUID)
	inner.String("name", r.Name)
	w.Value(inner.End())
}

// writeDenial writes the members that only approvals denied by a rule have.
func writeDenial(w *canon.ObjectWriter, d *PolicyDenial) {
	if d == nil {
		return
	}
	inner := canon.BeginObject(w.Name("denied_by"))
	inner.StringOrNull("policy_name", d.PolicyName)
	inner.String("policy_version", d.PolicyVersion)
	inner.String("reason", d.Reason)
	inner.StringOrNull("remediation", d.Remediation)
	w.Value(inner.End())
}

func appendVotes(dst []byte, votes []Vote) []byte {
	return appendObjects(dst, votes, func(w *canon.ObjectWriter, v *Vote) {
		writeTime(w, "at", v.At)
		w.StringOrNull("comment", v.Comment)
		writeReviewer(w, &v.Reviewer)
	})
}

var errUnreadableApproval = errors.New("stored approval cannot be read")

// DecodeApproval decodes the result of Encode and refuses anything else.
func DecodeApproval(body, mac []byte, keys Keys, org OrgID) (*Approval, error) {
	if !Authentic(keys, org, PurposeApproval, mac, body) {
		return nil, ErrStateTampered
	}
	r, err := openRecord(body)
	if err != nil {
		return nil, errUnreadableApproval
	}
	a := &Approval{
		ID: ApprovalID{r.id("id")}, Org: OrgID{r.id("organization_id")}, Chain: ChainID{r.id("chain_id")}, Event: EventID{r.id("event_id")},
		Sequence:      r.Int("sequence", 1, maxCount),
		RequestedBy:   KeyID{r.id("requested_by")},
		AgentName:     r.Text("agent_name", maxName),
		ActionType:    r.Text("action_type", maxName),
		ActionName:    r.Text("action_name", maxName),
		OpenedBy:      KeyID{r.id("opened_by")},
		PayloadSHA256: r.Text("payload_sha256", maxName), RedactionsSHA256: r.redactionsHash(),
		Reason:        r.Text("reason", maxStored),
		PolicyName:    r.Text("policy_name", maxName),
		PolicyVersion: r.Text("policy_version", maxName),
		Approvers:     r.Texts("approvers", maxListed, maxStored),
		TwoPerson:     r.Bool("two_person"),
		Escalate:      r.Texts("escalate", maxListed, maxStored),
		Fallback:      r.Texts("fallback", maxListed, maxStored),
		Matched:       r.matchedRules(),
		Reserved: Reservation{
			Facts: Facts{
				Categories:      r.Texts("categories", maxCount, maxName),
				Amount:          r.exactMoney("amount_usd"),
				ExternalDomains: r.Texts("external_domains", maxCount, maxDomain),
				RecordsModified: r.Int("records_modified", 0, maxCount),
			},
			Cost:   r.exactMoney("estimated_cost_usd"),
			Tokens: r.Int("tokens", 0, maxCount),
			Uses:   r.budgetUses(),
		},
		RequestedAt: r.time("requested_at"),
		EscalatesAt: r.time("escalates_at"),
		ExpiresAt:   r.time("expires_at"),
		Status:      ApprovalStatus(r.Text("status", maxName)),
		EscalatedAt: ReadTime(r.Fields, "escalated_at"),
		DecidedAt:   ReadTime(r.Fields, "decided_at"),
		Votes:       r.votes(maxStored),
		Comment:     r.Text("comment", maxStored),
		Reviewer:    r.reviewer(),
		DeniedBy:    r.denial(),
	}
	signer, _ := r.optionalID("signing_key_id")
	a.SigningKey = SigningKeyID{signer}
	if a.Signature, err = hex.DecodeString(r.Text("signature", maxName)); err != nil {
		return nil, errUnreadableApproval
	}
	if !r.readable() || a.Org != org {
		return nil, errUnreadableApproval
	}
	return a, nil
}

func (r *recordReader) reviewer() *Reviewer {
	nested := r.nested("reviewer")
	if nested == nil {
		return nil
	}
	reviewer := &Reviewer{Key: KeyID{nested.id("key_id")}, Name: nested.Text("name", maxName)}
	r.join(nested)
	return reviewer
}

// votes decodes the result of appendVotes, with comments of at most maxComment characters.
func (r *recordReader) votes(maxComment int) []Vote {
	var votes []Vote
	r.each("votes", func(inner *recordReader) {
		vote := Vote{Comment: inner.Text("comment", maxComment), At: inner.time("at")}
		if reviewer := inner.reviewer(); reviewer != nil {
			vote.Reviewer = *reviewer
		} else {
			inner.failed = true
		}
		votes = append(votes, vote)
	})
	return votes
}

func (r *recordReader) denial() *PolicyDenial {
	nested := r.nested("denied_by")
	if nested == nil {
		return nil
	}
	denial := &PolicyDenial{
		PolicyName: nested.Text("policy_name", maxName), PolicyVersion: nested.Text("policy_version", maxName),
		Reason: nested.Text("reason", maxStored), Remediation: nested.Text("remediation", maxStored),
	}
	r.join(nested)
	return denial
}

// DecisionRecord returns the canonical record of a decision: who, what, the hashes of the payload
// and of its redactions, when, and under which policy. The receipt contains its hash.
func (a *Approval) DecisionRecord() []byte {
	w := canon.BeginObject(make([]byte, 0, 512))
	w.String("action_name", a.ActionName)
	w.String("action_type", a.ActionType)
	w.String("agent_name", a.AgentName)
	writeID(&w, "approval_id", a.ID.UUID)
	writeID(&w, "chain_id", a.Chain.UUID)
	w.StringOrNull("comment", a.Comment)
	writeTimeOrNull(&w, "decided_at", a.DecidedAt)
	writeDenial(&w, a.DeniedBy)
	writeID(&w, "event_id", a.Event.UUID)
	writeID(&w, "organization_id", a.Org.UUID)
	w.String("payload_sha256", a.PayloadSHA256)
	w.StringOrNull("policy_name", a.PolicyName)
	w.String("policy_version", a.PolicyVersion)
	w.String("reason", a.Reason)
	if a.RedactionsSHA256 != nil {
		w.StringOrNull("redactions_sha256", *a.RedactionsSHA256)
	}
	writeTime(&w, "requested_at", a.RequestedAt)
	writeID(&w, "requested_by", a.RequestedBy.UUID)
	writeReviewer(&w, a.Reviewer)
	w.String("status", string(a.Status))
	w.Value(appendVotes(w.Name("votes"), a.Votes))
	return w.End()
}

// Hash returns the SHA-256 of the decision record.
func (a *Approval) Hash() [32]byte { return sha256.Sum256(a.DecisionRecord()) }

// IsAbout reports whether a stored event has the payload that the approval is about, with the same
// redactions.
func (a *Approval) IsAbout(event *StoredEvent) bool {
	return PayloadHash(event.Payload) == a.PayloadSHA256 && RedactionsHash(event.Redactions) == orNone(a.RedactionsSHA256)
}

// Sign signs the decision record of a finished approval.
func (a *Approval) Sign(key SigningKeyID, private ed25519.PrivateKey) {
	a.SigningKey, a.Signature = key, ed25519.Sign(private, a.DecisionRecord())
}

// SignedBy reports whether the signature over the decision record is valid under a public key. Like the
// verifiers of bundles it accepts neither a key of small order nor a signature that begins with such a
// point, on which implementations of Ed25519 disagree.
func (a *Approval) SignedBy(public ed25519.PublicKey) bool {
	return len(public) == ed25519.PublicKeySize && len(a.Signature) == ed25519.SignatureSize &&
		!smallOrder(public) && !smallOrder(a.Signature[:ed25519.PublicKeySize]) &&
		ed25519.Verify(public, a.DecisionRecord(), a.Signature)
}
