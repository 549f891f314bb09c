package ledger

import "github.com/google/uuid"

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
