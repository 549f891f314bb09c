package ledger

import (
	"crypto/sha256"

	"github.com/google/uuid"

	"countersign/internal/canon"
)

// Kinds of artifacts that can be verified.
const (
	ArtifactApproval = "approval"
	ArtifactReceipt  = "receipt"
)

// ArtifactShare is the kind of a token that serves a receipt with its proof.
const ArtifactShare = "share"

// Standing is the result for one aspect of a verification.
type Standing string

// The standings of integrity, signatures and the evidence chain.
const (
	StandingValid         Standing = "valid"
	StandingInvalid       Standing = "invalid"
	StandingMissing       Standing = "missing"
	StandingNotApplicable Standing = "not_applicable"
)

// KeyStanding says how far the key of a signature is trusted.
type KeyStanding string

// The standings of a key.
const (
	KeyTrusted       KeyStanding = "trusted"
	KeyRetired       KeyStanding = "retired"
	KeyRevoked       KeyStanding = "revoked"
	KeyNotEvaluated  KeyStanding = "not_evaluated"
	KeyNotApplicable KeyStanding = "not_applicable"
)

// AnchorStanding is the result for an anchor.
type AnchorStanding string

// The standings of an anchor, best first.
const (
	AnchorVerified AnchorStanding = "verified"
	AnchorPending  AnchorStanding = "pending"
	AnchorFailed   AnchorStanding = "failed"
	NotAnchored    AnchorStanding = "not_anchored"
)

// Overall is the verdict on an artifact.
type Overall string

// The verdicts.
const (
	Verified      Overall = "verified"
	VerdictFailed Overall = "failed"
	Indeterminate Overall = "indeterminate"
)

// Finding is the result for one aspect, with its reason.
type Finding struct {
	Standing Standing
	Reason   string
}

// AnchorFinding is the result for one anchor, with its reason.
type AnchorFinding struct {
	Standing AnchorStanding
	Reason   string
}

// Integrity marks stored evidence that is shown without proof. It is "" if it was proven.
type Integrity string

// The marks of integrity.
const (
	// IntegrityFailed means that it is not what the service recorded. Failing content is not shown.
	IntegrityFailed Integrity = "failed"
	// IntegrityNotChecked means that it is shown as stored.
	IntegrityNotChecked Integrity = "not_checked"
)

// CheckStatus is the result of one check. A verdict also says what it did not check.
type CheckStatus string

// The results of a check.
const (
	CheckPass          CheckStatus = "pass"
	CheckFail          CheckStatus = "fail"
	CheckNotApplicable CheckStatus = "not_applicable"
	CheckNotChecked    CheckStatus = "not_checked"
)

// Verification is everything that is known about an artifact, for members of its organization.
type Verification struct {
	Artifact      string
	ID            uuid.UUID
	CreatedAt     *Time // nil if it cannot be trusted
	Chain         *Chain
	ReceiptNumber string
	GeneratedAt   string

	Integrity     Finding
	Signature     Finding
	Key           KeyStanding
	TSA           AnchorFinding
	OpenTimestamp AnchorFinding
	Evidence      Finding
	Checks        []CheckResult
	Undecided     bool // for an approval
	Partial       bool // for a receipt: its events and approvals were not checked
	Repeated      bool // likewise: its first failure repeats what an earlier check found, and proves nothing about now
	VerifiedAt    Time

	Exportable bool // the caller may export the evidence

	Approval *Approval // nil for receipts, and if it cannot be trusted
}

// CheckResult is the result of one check, which may not have been made.
type CheckResult struct {
	Name   Check       `json:"name"`
	Status CheckStatus `json:"status"`
	Detail string      `json:"detail,omitempty"`
}

// Conclude returns the verdict. Anchors do not affect it, nor does the current status of a signing
// key.
func (v *Verification) Conclude() (Overall, string) {
	for _, finding := range []struct {
		Finding
		name string
	}{{v.Integrity, "integrity"}, {v.Signature, "signature"}, {v.Evidence, "evidence_chain"}} {
		if finding.Standing == StandingInvalid {
			return VerdictFailed, finding.name + "_" + string(StandingInvalid)
		}
	}
	if v.Undecided {
		return Indeterminate, "not_decided"
	}
	if v.Partial {
		return Indeterminate, "not_checked"
	}
	if v.Signature.Standing == StandingMissing {
		return Indeterminate, "signature_missing"
	}
	return Verified, "ok"
}

// PublicVerification is everything that the public learns about an artifact. It is an explicit
// allowlist, never a trimmed Verification.
type PublicVerification struct {
	Artifact   string
	Overall    Overall
	Integrity  Standing
	Signature  Standing
	Key        KeyStanding
	Anchors    AnchorStanding // the better of the two anchors
	VerifiedAt Time
}

// Minimize returns what the public may learn.
func Minimize(v *Verification) PublicVerification {
	overall, _ := v.Conclude()
	return PublicVerification{
		Artifact: v.Artifact, Overall: overall, Integrity: v.Integrity.Standing,
		Signature: v.Signature.Standing, Key: v.Key,
		Anchors: better(v.TSA.Standing, v.OpenTimestamp.Standing), VerifiedAt: v.VerifiedAt,
	}
}

func better(a, b AnchorStanding) AnchorStanding {
	for _, standing := range []AnchorStanding{AnchorVerified, AnchorPending, AnchorFailed} {
		if a == standing || b == standing {
			return standing
		}
	}
	return NotAnchored
}

// ListsApproval reports whether a receipt's signed bytes list an approval in its current form.
func ListsApproval(receipt []byte, a *Approval) bool {
	v, err := canon.Parse(receipt)
	if err != nil {
		return false
	}
	listed, _ := v.Get("approvals")
	for _, item := range listed.Items() {
		id, _ := item.Get("approval_id")
		if id.Str() == a.ID.String() {
			hash, _ := item.Get("approval_hash")
			status, _ := item.Get("status")
			return hash.Str() == FormatHash(a.Hash()) && status.Str() == string(a.Status)
		}
	}
	return false
}

// Anchor is a proof that a digest existed at some time, and its status. It is stored with an
// authenticator. A verified anchor is judged again for each request, with the current roots. Block
// makes that possible without the network, which a request must not wait for.
type Anchor struct {
	Org      OrgID
	Kind     string    // kind of the subject
	Subject  uuid.UUID // id of the approval or receipt
	Sequence int64     // sequence of a head's receipt
	Method   string
	Digest   [32]byte
	Standing AnchorStanding
	Reason   string
	Proof    []byte
	Block    []byte // the block header that attests the proof, or nil
}

// Methods of anchoring.
const (
	MethodTSA            = "tsa"
	MethodOpenTimestamps = "opentimestamps"
)

// Kinds of anchored subjects.
const (
	SubjectApproval = "approval"
	SubjectHead     = "head"
)

// ActAnchorMade is the audit log's name for making an anchor.
const ActAnchorMade = "anchor.made"

// MadeDetail returns the audit log's detail about an anchor. It binds the proof and its subject.
// The act's target is the subject's id.
func (a *Anchor) MadeDetail() []byte {
	w := canon.BeginObject(nil)
	w.String("digest", FormatHash(a.Digest))
	w.String("kind", a.Kind)
	w.String("method", a.Method)
	w.String("proof_sha256", FormatHash(sha256.Sum256(a.Proof)))
	if a.Kind == SubjectHead {
		w.Int("sequence", a.Sequence)
	}
	return w.End()
}
