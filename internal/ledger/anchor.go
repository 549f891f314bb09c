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

// Anchor is a proof that a digest existed at some time, and what came of checking
// it. It is stored with an authenticator: checking it anew may need the network,
// and a request must not wait for that.
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
}

func (a *Anchor) encode() []byte {
	w := canon.BeginObject(nil)
	w.String("digest", FormatHash(a.Digest))
	w.String("kind", a.Kind)
	w.String("method", a.Method)
	w.String("proof", FormatHash(sha256.Sum256(a.Proof)))
	w.String("reason", a.Reason)
	w.Int("sequence", a.Sequence)
	w.String("standing", string(a.Standing))
	w.String("subject", a.Subject.String())
	return w.End()
}

// Authenticate returns the authenticator that is stored with the anchor.
func (a *Anchor) Authenticate(keys Keys) []byte {
	return authenticate(keys, a.Org, PurposeAnchor, a.encode())
}

// Authentic reports whether the anchor is as this service stored it.
func (a *Anchor) Authentic(keys Keys, mac []byte) bool {
	return a.Sequence >= 0 && a.Sequence <= maxCount && authentic(keys, a.Org, PurposeAnchor, mac, a.encode())
}
