package ledger

import (
	"crypto/ed25519"
	"testing"

	"github.com/gowebpki/jcs"
)

// An approval's signature is Ed25519 over the canonical JSON of its decision record: it is valid
// for that record and that key only.
func TestApprovalsAreSignedWithEd25519(t *testing.T) {
	t.Parallel()
	private := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	public := private.Public().(ed25519.PublicKey)
	key := SigningKeyID{NewRandomID([16]byte{5})}
	a := waiting()
	a.settle(ApprovalApproved, &ann, "seen", firstMoment)
	a.Sign(key, private)
	record := a.DecisionRecord()
	if canonical, err := jcs.Transform(record); err != nil || string(canonical) != string(record) {
		t.Errorf("the decision record is not in canonical form (%v): %s", err, record)
	}
	if a.SigningKey != key || !ed25519.Verify(public, record, a.Signature) || !a.SignedBy(public) {
		t.Error("the signature does not hold for the record")
	}
	other := ed25519.NewKeyFromSeed([]byte("another seed of thirty-two bytes")).Public().(ed25519.PublicKey)
	if a.SignedBy(other) || a.SignedBy(nil) {
		t.Error("the signature holds for another key")
	}
	for name, change := range map[string]func(*Approval){
		"the decision": func(a *Approval) { a.Status = ApprovalDenied },
		"the reviewer": func(a *Approval) { a.Reviewer = &bob },
		"the payload":  func(a *Approval) { a.PayloadSHA256 = "other" },
		"the moment":   func(a *Approval) { at := *a.DecidedAt + 1; a.DecidedAt = &at },
		"the policy":   func(a *Approval) { a.PolicyName = "other" },
	} {
		changed := *a
		if change(&changed); changed.SignedBy(public) {
			t.Errorf("the signature holds although %s was changed", name)
		}
	}
}
