package ledger

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/hex"
	"slices"

	"countersign/internal/canon"
	"countersign/internal/fault"
)

// ImportedApproval is a decision that was made and signed elsewhere, with the public key that
// signed it.
type ImportedApproval struct {
	*Approval        // decoded from the record; Org is the organization in which it was decided
	Record    []byte // canonical
	Public    ed25519.PublicKey
}

// MaxImported bounds a line of an import, in bytes.
const MaxImported = 64 << 10

// ParseImported parses a line of an import and verifies the signature. The line is a JSON object
// with decision_record, signature and public_key. The signed bytes are the record's canonical JSON.
func ParseImported(line []byte) (*ImportedApproval, error) {
	v, err := canon.Parse(line)
	if err != nil {
		return nil, fault.Errorf(fault.CodeInvalid, "it is not strict JSON: %v", err)
	}
	f := canon.NewFields(v)
	imported := &ImportedApproval{Record: f.Object("decision_record", MaxImported)}
	if imported.Record == nil {
		f.Fault("decision_record", "is required: the object that was signed")
	}
	signature := readBase64(f, "signature", ed25519.SignatureSize)
	imported.Public = readBase64(f, "public_key", ed25519.PublicKeySize)
	if err := f.Err(); err != nil {
		return nil, err
	}
	if imported.Approval, err = DecodeDecision(imported.Record); err != nil {
		return nil, err
	}
	imported.Signature = signature
	if smallOrder(imported.Public) {
		return nil, fault.Errorf(fault.CodeInvalid, "public_key is a weak key: under it, a signature can be made for anything")
	}
	if !imported.SignedBy(imported.Public) {
		return nil, fault.Errorf(fault.CodeInvalid, "the signature is not that of decision_record under public_key")
	}
	return imported, nil
}

// readBase64 reads required bytes in base64.
func readBase64(f *canon.Fields, name string, size int) []byte {
	decoded, err := base64.StdEncoding.Strict().DecodeString(f.Text(name, maxName))
	if err != nil || len(decoded) != size {
		f.Fault(name, "is required: %d bytes in base64", size)
		return nil
	}
	return decoded
}

// errDecisionForm says that a record could not have been written by DecisionRecord.
var errDecisionForm = fault.Errorf(fault.CodeInvalid, "decision_record is not in the form of a decision record: docs/imports.md lists its members and how they are written")

// DecodeDecision decodes the result of DecisionRecord for an approval that a person, a rule or the
// timeout has decided, and refuses anything else. Members that the record does not contain are not
// set.
func DecodeDecision(record []byte) (*Approval, error) {
	v, err := canon.Parse(record)
	if err != nil {
		return nil, errDecisionForm
	}
	r := &recordReader{Fields: canon.NewFieldsAt(v, "/decision_record")}
	a := &Approval{
		ID: ApprovalID{r.id("approval_id")}, Org: OrgID{r.id("organization_id")}, Chain: ChainID{r.id("chain_id")}, Event: EventID{r.id("event_id")},
		RequestedBy: KeyID{r.id("requested_by")}, RequestedAt: r.time("requested_at"),
		AgentName: r.RequiredName("agent_name", maxName), ActionType: r.RequiredName("action_type", maxName), ActionName: r.RequiredName("action_name", maxName),
		PayloadSHA256: r.RequiredText("payload_sha256", maxName), RedactionsSHA256: r.redactionsHash(),
		Reason: r.Text("reason", maxText), PolicyName: r.Text("policy_name", maxName), PolicyVersion: r.Text("policy_version", maxName),
		DecidedAt: ReadTime(r.Fields, "decided_at"), Comment: r.Text("comment", maxText), Reviewer: r.reviewer(), DeniedBy: r.denial(), Votes: r.votes(maxText),
		Status: ApprovalStatus(r.OneOf("status", string(ApprovalApproved), string(ApprovalDenied), string(ApprovalTimedOut))),
	}
	if len(a.Votes) > maxVotes {
		r.Fault("votes", "must have at most %d elements", maxVotes)
	}
	if err := r.Err(); err != nil {
		return nil, err
	}
	if r.failed || a.DecidedAt == nil || a.ID == (ApprovalID{}) || !bytes.Equal(a.DecisionRecord(), record) {
		return nil, errDecisionForm
	}
	if err := a.wellDecided(); err != nil {
		return nil, err
	}
	return a, nil
}

// wellDecided refuses contradictions that no decision of the service has.
func (a *Approval) wellDecided() error {
	switch {
	case *a.DecidedAt < a.RequestedAt:
		return fault.Errorf(fault.CodeInvalid, "it was decided before it was requested")
	case a.Status == ApprovalApproved && a.Reviewer == nil:
		return fault.Errorf(fault.CodeInvalid, "it is approved, and names no reviewer")
	case a.Reviewer != nil && a.Reviewer.Name == "" || slices.ContainsFunc(a.Votes, func(v Vote) bool { return v.Reviewer.Name == "" }):
		return fault.Errorf(fault.CodeInvalid, "a reviewer has no name")
	case a.Status == ApprovalApproved && a.DeniedBy != nil:
		return fault.Errorf(fault.CodeInvalid, "it is approved, and names a rule that denied it")
	}
	return nil
}

// smallOrder reports whether 32 bytes encode a point of small order. If a key is one, a signature can be
// made that is valid for any message.
func smallOrder(point []byte) bool {
	y := bytes.Clone(point)
	y[31] &= 0x7f // the sign of x
	return slices.Contains(smallOrders, hex.EncodeToString(y))
}

// smallOrders lists the y coordinates of the points of small order in all their encodings, in
// hexadecimal.
var smallOrders = []string{
	"0000000000000000000000000000000000000000000000000000000000000000",
	"0100000000000000000000000000000000000000000000000000000000000000",
	"ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
	"edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
	"eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
	"26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
	"c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
}
