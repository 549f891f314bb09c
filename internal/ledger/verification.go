package ledger

import (
	"crypto/sha256"

	"github.com/google/uuid"

	"countersign/internal/canon"
)

// The kinds of artifacts that can be verified.
const (
	ArtifactApproval = "approval"
	ArtifactReceipt  = "receipt"
)

// ArtifactShare is the kind of a token that serves a receipt with its proof.
const ArtifactShare = "share"

// Standing is what one aspect of a verification came to.
type Standing string

// The standings of integrity, signatures and the evidence chain.
const (
	StandingValid         Standing = "valid"
	StandingInvalid       Standing = "invalid"
	StandingMissing       Standing = "missing"
	StandingNotApplicable Standing = "not_applicable"
)

// KeyStanding is how far the key behind a signature is trusted.
type KeyStanding string

// The standings of a key.
const (
	KeyTrusted       KeyStanding = "trusted"
	KeyRetired       KeyStanding = "retired"
	KeyRevoked       KeyStanding = "revoked"
	KeyNotEvaluated  KeyStanding = "not_evaluated"
	KeyNotApplicable KeyStanding = "not_applicable"
)

// AnchorStanding is what an anchor in time came to.
type AnchorStanding string

// The standings of an anchor, the best first.
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

// Finding is one aspect with the reason for what it came to.
type Finding struct {
	Standing Standing
	Reason   string
}

// AnchorFinding is one anchor with the reason for what it came to.
type AnchorFinding struct {
	Standing AnchorStanding
	Reason   string
}

// Integrity marks stored evidence that is shown without a proof of it; "" where it was
// proven.
type Integrity string

// The marks.
const (
	// IntegrityFailed: it is not as the service recorded it. What fails is not shown.
	IntegrityFailed Integrity = "failed"
	// IntegrityNotChecked: it is shown as it is stored.
	IntegrityNotChecked Integrity = "not_checked"
)

// CheckStatus is the result of one check. A verdict says what it did not look at.
type CheckStatus string

// The results of a check.
const (
	CheckPass          CheckStatus = "pass"
	CheckFail          CheckStatus = "fail"
	CheckNotApplicable CheckStatus = "not_applicable"
	CheckNotChecked    CheckStatus = "not_checked"
)

// Verification is everything there is to say about an artifact, for those of its
// organization.
type Verification struct {
	Artifact      string
	ID            uuid.UUID
	CreatedAt     *Time // nil where nothing vouches for one
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
	Undecided     bool // of an approval
	Partial       bool // of a receipt: its events and approvals were not looked at
	VerifiedAt    Time

	Exportable bool // whether the caller may take the evidence out of the service

	Approval *Approval // nil for receipts, and where nothing vouches for it
}

// CheckResult is one thing that was looked at, or was not.
type CheckResult struct {
	Name   Check       `json:"name"`
	Status CheckStatus `json:"status"`
	Detail string      `json:"detail,omitempty"`
}

// Conclude is the verdict: what must hold holds. Anchors never change it, and
// neither does what has become of a signing key.
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

// PublicVerification is what strangers learn of an artifact, and all of it: an
// allowlist of its own, never a trimmed Verification.
type PublicVerification struct {
	Artifact   string
	Overall    Overall
	Integrity  Standing
	Signature  Standing
	Key        KeyStanding
	Anchors    AnchorStanding // the better of the two
	VerifiedAt Time
}

// Minimize picks what strangers may learn.
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

// ListsApproval reports whether a receipt's signed bytes list an approval as it
// stands.
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

// Anchor is a proof that a digest existed at some time, and what came of making
// it. It is stored with an authenticator. One that is verified is judged anew whenever
// it is asked about, by the roots of today; Block spares that the network, for which a
// request must not wait.
type Anchor struct {
	Org      OrgID
	Kind     string    // of the subject
	Subject  uuid.UUID // of the approval, or of the receipt
	Sequence int64     // of a head's receipt
	Method   string
	Digest   [32]byte
	Standing AnchorStanding
	Reason   string
	Proof    []byte
	Block    []byte // the block that attests the proof, as it was found among the block headers; nil for none
}

// The methods of anchoring in time.
const (
	MethodTSA            = "tsa"
	MethodOpenTimestamps = "opentimestamps"
)

// The kinds of things that are anchored.
const (
	SubjectApproval = "approval"
	SubjectHead     = "head"
)

// ActAnchorMade is what the audit log calls the making of an anchor.
const ActAnchorMade = "anchor.made"

// MadeDetail is what the audit log says of an anchor that was made: it binds the proof
// and what the proof is about. The act's target is the subject's id.
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
