package servicetest

import (
	"crypto/ed25519"
	"encoding/base64"
	"testing"

	"github.com/google/uuid"

	"countersign/internal/ledger"
)

// Elsewhere is another installation whose decisions are imported.
type Elsewhere struct{ key ed25519.PrivateKey }

// NewElsewhere returns an installation with a new key.
func NewElsewhere(t testing.TB) *Elsewhere {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &Elsewhere{key}
}

// PublicKey returns the installation's public key in base64.
func (e *Elsewhere) PublicKey() string {
	return base64.StdEncoding.EncodeToString(e.key.Public().(ed25519.PublicKey))
}

// Decide returns a decision, and the line that imports it. It is an approval unless change
// modifies it.
func (e *Elsewhere) Decide(change func(*ledger.Approval)) (*ledger.Approval, string) {
	decided := ledger.Time(1_700_000_060_000)
	a := &ledger.Approval{
		ID: ledger.ApprovalID{UUID: uuid.New()}, Org: ledger.OrgID{UUID: uuid.New()}, Chain: ledger.ChainID{UUID: uuid.New()},
		Event: ledger.EventID{UUID: uuid.New()}, RequestedBy: ledger.KeyID{UUID: uuid.New()},
		AgentName: "payer", ActionType: "tool_call", ActionName: "send_payment", PayloadSHA256: ledger.PayloadHash([]byte(`{}`)),
		Reason: "the amount is large", PolicyVersion: "v0+0123456789ab", RequestedAt: decided - 60_000, DecidedAt: &decided,
		Status: ledger.ApprovalApproved, Reviewer: &ledger.Reviewer{Key: ledger.KeyID{UUID: uuid.New()}, Name: "planted-reviewer"}, Comment: "planted-comment",
	}
	if change != nil {
		change(a)
	}
	return a, e.Line(a)
}

// Line returns the line that imports a decision, signed with the installation's key.
func (e *Elsewhere) Line(a *ledger.Approval) string {
	return ImportLine(a.DecisionRecord(), ed25519.Sign(e.key, a.DecisionRecord()), e.key.Public().(ed25519.PublicKey))
}

// ImportLine returns a line of an import.
func ImportLine(record, signature []byte, public ed25519.PublicKey) string {
	encode := base64.StdEncoding.EncodeToString
	return `{"decision_record":` + string(record) + `,"signature":"` + encode(signature) + `","public_key":"` + encode(public) + `"}`
}
