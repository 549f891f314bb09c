package ledger

import (
	"crypto/sha256"

	"github.com/google/uuid"

	"countersign/internal/canon"
)

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
