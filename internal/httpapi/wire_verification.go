package httpapi

import (
	"countersign/internal/canon"
	"countersign/internal/ledger"
)

const (
	verificationVersion = "2"
	artifactVersion     = "1" // of the data that an artifact's proof covers
)

// appendVerification encodes whether an artifact verifies and what it is. Admins also see who decided
// and why. Hashes, signatures and proofs are never included.
func (x *exchange) appendVerification(dst []byte, v *ledger.Verification) []byte {
	admin := x.caller.Role.Includes(ledger.RoleAdmin)
	w := canon.BeginObject(dst)
	w.String("verification_version", verificationVersion)
	w.Value(appendArtifact(w.Name("artifact"), v))
	w.Value(appendVerdict(w.Name("verification"), v))
	w.Value(appendContext(w.Name("context"), v))
	capabilities := canon.BeginObject(w.Name("capabilities"))
	capabilities.Bool("can_view_identity_context", admin)
	capabilities.Bool("can_download_admin_evidence", v.Exportable)
	w.Value(capabilities.End())
	if admin {
		w.Value(appendAdminContext(w.Name("admin_context"), v.Approval))
	}
	return w.End()
}

func appendArtifact(dst []byte, v *ledger.Verification) []byte {
	w := canon.BeginObject(dst)
	w.String("type", v.Artifact)
	w.String("version", artifactVersion)
	w.String("id", v.ID.String())
	appendTime(&w, "created_at", v.CreatedAt)
	if v.Chain == nil {
		w.Null("chain")
	} else {
		chain := canon.BeginObject(w.Name("chain"))
		chain.String("id", v.Chain.ID.String())
		chain.StringOrNull("external_id", v.Chain.ExternalID)
		chain.String("name", v.Chain.Name)
		w.Value(chain.End())
	}
	if v.Artifact == ledger.ArtifactReceipt {
		w.StringOrNull("receipt_number", v.ReceiptNumber)
		w.StringOrNull("generated_at", v.GeneratedAt)
	}
	return w.End()
}

func appendVerdict(dst []byte, v *ledger.Verification) []byte {
	overall, reason := v.Conclude()
	w := canon.BeginObject(dst)
	w.String("overall_status", string(overall))
	w.String("reason_code", reason)
	w.Value(appendFinding(w.Name("integrity"), string(v.Integrity.Standing), v.Integrity.Reason))
	signature := canon.BeginObject(w.Name("asymmetric_signature"))
	signature.String("status", string(v.Signature.Standing))
	signature.String("key_status", string(v.Key))
	signature.StringOrNull("reason_code", v.Signature.Reason)
	w.Value(signature.End())
	anchors := canon.BeginObject(w.Name("timestamp_anchors"))
	anchors.Value(appendFinding(anchors.Name("tsa"), string(v.TSA.Standing), v.TSA.Reason))
	anchors.Value(appendFinding(anchors.Name("freetsa"), string(v.TSA.Standing), v.TSA.Reason)) // an alias that other clients read
	anchors.Value(appendFinding(anchors.Name("opentimestamps"), string(v.OpenTimestamp.Standing), v.OpenTimestamp.Reason))
	w.Value(anchors.End())
	w.Value(appendFinding(w.Name("evidence_chain"), string(v.Evidence.Standing), v.Evidence.Reason))
	checks := append(w.Name("checks"), '[')
	for i := range v.Checks {
		if i > 0 {
			checks = append(checks, ',')
		}
		check := canon.BeginObject(checks)
		check.String("name", string(v.Checks[i].Name))
		check.String("status", string(v.Checks[i].Status))
		checks = check.End()
	}
	w.Value(append(checks, ']'))
	w.String("verified_at", v.VerifiedAt.String())
	return w.End()
}

func appendFinding(dst []byte, status, reason string) []byte {
	w := canon.BeginObject(dst)
	w.String("status", status)
	w.StringOrNull("reason_code", reason)
	return w.End()
}

// appendContext encodes what an artifact is about, as far as that is authenticated.
func appendContext(dst []byte, v *ledger.Verification) []byte {
	w := canon.BeginObject(dst)
	if v.Artifact == ledger.ArtifactReceipt {
		w.String("receipt_integrity_semantics", "server_attested")
	}
	if a := v.Approval; a != nil {
		decision := canon.BeginObject(w.Name("approval_decision"))
		decision.String("status", string(a.At(v.VerifiedAt)))
		if status := a.At(v.VerifiedAt); status.Open() {
			decision.Null("outcome")
		} else {
			decision.String("outcome", string(status))
		}
		decision.StringOrNull("policy_name", a.PolicyName)
		decision.String("policy_version", a.PolicyVersion)
		decision.String("requested_at", a.RequestedAt.String())
		appendTime(&decision, "decided_at", a.DecidedAt)
		w.Value(decision.End())
		action := canon.BeginObject(w.Name("action"))
		action.String("agent_name", a.AgentName)
		action.String("action_type", a.ActionType)
		action.String("action_name", a.ActionName)
		w.Value(action.End())
	}
	return w.End()
}

// appendAdminContext is the allowlist of what only admins see. Members without a value are null.
func appendAdminContext(dst []byte, a *ledger.Approval) []byte {
	w := canon.BeginObject(dst)
	if a == nil {
		for _, name := range []string{"approver", "decision_notes", "policy", "review_context", "signing_key_id"} {
			w.Null(name)
		}
		return w.End()
	}
	if a.Reviewer == nil {
		w.Null("approver")
	} else {
		w.Value(appendReviewer(w.Name("approver"), a.Reviewer))
	}
	w.StringOrNull("decision_notes", a.Comment)
	policy := canon.BeginObject(w.Name("policy"))
	policy.StringOrNull("name", a.PolicyName)
	policy.String("version", a.PolicyVersion)
	policy.String("reason", a.Reason)
	w.Value(policy.End())
	w.Value(appendReview(w.Name("review_context"), a))
	if a.SigningKey == (ledger.SigningKeyID{}) {
		w.Null("signing_key_id")
	} else {
		w.String("signing_key_id", a.SigningKey.String())
	}
	return w.End()
}

func appendReviewer(dst []byte, r *ledger.Reviewer) []byte {
	w := canon.BeginObject(dst)
	w.String("key_id", r.Key.String())
	w.String("name", r.Name)
	return w.End()
}

// appendReview summarizes how the decision was made, without the comments.
func appendReview(dst []byte, a *ledger.Approval) []byte {
	w := canon.BeginObject(dst)
	appendTime(&w, "escalated_at", a.EscalatedAt)
	if a.ExpiresAt == 0 { // imported approvals have none
		w.Null("expires_at")
	} else {
		w.String("expires_at", a.ExpiresAt.String())
	}
	w.StringOrNull("source", string(a.DecidedBy()))
	w.Bool("two_person", a.TwoPerson)
	w.Strings("approvers", a.Approvers)
	votes := append(w.Name("votes"), '[')
	for i := range a.Votes {
		if i > 0 {
			votes = append(votes, ',')
		}
		votes = appendReviewer(votes, &a.Votes[i].Reviewer)
	}
	w.Value(append(votes, ']'))
	return w.End()
}

// appendPublic is the allowlist of what anyone with a link sees.
func appendPublic(dst []byte, v *ledger.PublicVerification) []byte {
	w := canon.BeginObject(dst)
	w.String("verification_version", verificationVersion)
	w.String("artifact_type", v.Artifact)
	w.String("overall_status", string(v.Overall))
	integrity := canon.BeginObject(w.Name("integrity"))
	integrity.String("status", string(v.Integrity))
	w.Value(integrity.End())
	signature := canon.BeginObject(w.Name("asymmetric_signature"))
	signature.String("status", string(v.Signature))
	signature.String("key_status", string(v.Key))
	w.Value(signature.End())
	anchors := canon.BeginObject(w.Name("timestamp_anchors"))
	anchors.String("status", string(v.Anchors))
	w.Value(anchors.End())
	w.String("verified_at", v.VerifiedAt.String())
	return w.End()
}
