package bundle

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"

	cosignature "github.com/transparency-dev/formats/note"
)

// Check names one thing that a verifier looks at.
type Check string

// The checks, in the order in which they are reported.
const (
	CheckReceiptHash         Check = "receipt_hash"
	CheckEventsDigest        Check = "events_digest"
	CheckPayloadHashes       Check = "payload_hashes"
	CheckApprovalRecords     Check = "approval_records"
	CheckApprovalSignatures  Check = "approval_signatures"
	CheckInclusion           Check = "inclusion"
	CheckCheckpointSignature Check = "checkpoint_signature"
	CheckWitnesses           Check = "witnesses"
	CheckAnchors             Check = "anchors"
	CheckReceiptSignature    Check = "receipt_signature"
)

// Status is what a check came to.
type Status string

// The results of a check.
const (
	Pass       Status = "pass"
	Fail       Status = "fail"
	NotChecked Status = "not_checked"
)

// Result is what one check came to, and why.
type Result struct {
	Name   Check  `json:"name"`
	Status Status `json:"status"`
	Detail string `json:"detail,omitempty"`
}

// The verdicts.
const (
	Verified      = "verified"
	Failed        = "failed"
	Indeterminate = "indeterminate"
)

// Verdict is what a verifier says of a bundle. What stands beside the checks is what
// the bundle claims: it is proven where the verdict is verified.
type Verdict struct {
	Status        string      `json:"verdict"`
	ReceiptNumber string      `json:"receipt_number"`
	ReceiptID     string      `json:"receipt_id"`
	ReceiptHash   string      `json:"receipt_hash"`
	Organization  string      `json:"organization"`
	Summary       string      `json:"summary"`
	GeneratedAt   string      `json:"generated_at"` // of the receipt
	Origin        string      `json:"log_origin"`
	TreeSize      int64       `json:"tree_size"`
	Witnessed     []Cosigning `json:"witnessed_by"`
	Witnesses     int         `json:"witnesses_given"`
	Checks        []Result    `json:"checks"`
}

// Cosigning is one witness's cosignature that holds.
type Cosigning struct {
	Name string    `json:"name"`
	At   time.Time `json:"at"`
}

// Trust is what a verifier believes before it looks at a bundle.
type Trust struct {
	logs      []note.Verifier
	witnesses []note.Verifier
	quorum    int
	revokedAt *time.Time // in whole seconds, as cosignatures have them
	anchors   AnchorJudge
}

// AnchorJudge judges one proof of time over a digest.
type AnchorJudge func(method string, digest [32]byte, proof []byte) Judgement

// Judgement is the result for one proof of time.
type Judgement struct {
	Status Status
	Detail string    // why, unless it is Pass
	By     time.Time // what is anchored existed by then; only for Pass
}

// Keys is what a person gives a verifier.
type Keys struct {
	Log       []string   // vkeys of the log, more than one during a rotation
	Witnesses []string   // vkeys of witnesses
	Quorum    int        // how many of them must have cosigned; 0 for no demand
	RevokedAt *time.Time // when the log keys were revoked; nil where they were not
	Anchors   AnchorJudge
}

// NewTrust reads the keys that a person gives.
func NewTrust(keys Keys) (*Trust, error) {
	t := &Trust{quorum: keys.Quorum, anchors: keys.Anchors}
	if keys.RevokedAt != nil {
		at := keys.RevokedAt.Truncate(time.Second)
		t.revokedAt = &at
	}
	for _, text := range keys.Log {
		key, err := logKey(text)
		if err != nil {
			return nil, fmt.Errorf("%q is no log key: it has the form name+hash+base64, as `countersign log vkey` prints it", text)
		}
		t.logs = append(t.logs, key)
	}
	given := make(map[string]bool) // by public key: one under two names is one witness
	for _, text := range keys.Witnesses {
		key, public, err := witnessKey(text)
		if err != nil {
			return nil, fmt.Errorf("%q is no key of a witness: it has the form name+hash+base64, as the witness publishes it", text)
		}
		if given[string(public)] {
			return nil, fmt.Errorf("the witness %q is given twice", key.Name())
		}
		given[string(public)] = true
		t.witnesses = append(t.witnesses, key)
	}
	if keys.Quorum < 0 || keys.Quorum > len(t.witnesses) {
		return nil, fmt.Errorf("a quorum of %d cannot be reached with %d witnesses", keys.Quorum, len(t.witnesses))
	}
	if keys.RevokedAt != nil && len(t.witnesses) == 0 && keys.Anchors == nil {
		return nil, errors.New("a revoked log key counts only where witnesses saw the checkpoint before, or the receipt was anchored before: give keys of witnesses, or roots of anchors")
	}
	return t, nil
}

// momentForm is what ParseTime reads. The library also reads an hour of one digit, a comma, any
// number of digits behind it, and zones that do not exist.
var momentForm = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$`)

// ParseTime reads the time at which a log key was revoked, as every verifier does: RFC 3339, from
// the year 1 on.
func ParseTime(text string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil || !momentForm.MatchString(text) || text < "0001" {
		return time.Time{}, fmt.Errorf("%q is no time such as 2026-11-16T09:30:00Z (RFC 3339)", text)
	}
	return at, nil
}

// logKey reads the vkey of a log.
func logKey(text string) (note.Verifier, error) {
	if _, err := publicKey(text); err != nil {
		return nil, err
	}
	key, err := note.NewVerifier(text)
	return strictVerifier{key}, err
}

// witnessKey reads the vkey of a witness: an Ed25519 key, marked as one for cosignatures
// or, as some witnesses publish it, for notes.
func witnessKey(text string) (key note.Verifier, public []byte, err error) {
	if public, err = publicKey(text); err != nil {
		return nil, nil, err
	}
	key, err = cosignature.NewVerifierForCosignatureV1(text)
	return strictVerifier{key}, public, err
}

// publicKey is the public key in a vkey, whose base64 has one spelling, whose hash is its own, whose
// name has no control character, like that of a signature, and which is not of small order. The
// libraries do not check these for every kind of key.
func publicKey(text string) ([]byte, error) {
	name, rest, _ := strings.Cut(text, "+")
	id, encoded, _ := strings.Cut(rest, "+")
	key, err := decodeBase64(encoded)
	if err != nil || len(key) != 1+ed25519.PublicKeySize || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' }) {
		return nil, errKey
	}
	sum := sha256.Sum256(append([]byte(name+"\n"), key...))
	if !strings.EqualFold(hex.EncodeToString(sum[:4]), id) || isSmallOrder(key[1:]) {
		return nil, errKey
	}
	return key[1:], nil
}

var errKey = errors.New("malformed key")

// Verify checks a bundle. The error says why a file is not a bundle; what is wrong with one is
// in the verdict.
func (t *Trust) Verify(data []byte) (*Verdict, error) {
	b, err := Parse(data)
	if err != nil {
		return nil, err
	}
	v := &verification{trust: t, bundle: b}
	v.read()
	for _, check := range []struct {
		name Check
		run  func() (Status, string)
	}{
		{CheckReceiptHash, v.receiptHash},
		{CheckEventsDigest, v.eventsDigest},
		{CheckPayloadHashes, v.payloadHashes},
		{CheckApprovalRecords, v.approvalRecords},
		{CheckApprovalSignatures, v.approvalSignatures},
		{CheckInclusion, v.inclusion},
		{CheckCheckpointSignature, v.checkpointSignature},
		{CheckWitnesses, v.witnesses},
		{CheckAnchors, v.anchors},
		{CheckReceiptSignature, v.receiptSignature},
	} {
		status, detail := check.run()
		v.verdict.Checks = append(v.verdict.Checks, Result{check.name, status, detail})
	}
	v.verdict.Status = t.conclude(v.verdict.Checks)
	return &v.verdict, nil
}

func (t *Trust) conclude(checks []Result) string {
	passed := make(map[Check]bool)
	for _, check := range checks {
		if check.Status == Fail {
			return Failed
		}
		passed[check.Name] = check.Status == Pass
	}
	if passed[CheckReceiptHash] && passed[CheckInclusion] && passed[CheckCheckpointSignature] && (t.quorum == 0 || passed[CheckWitnesses]) {
		return Verified
	}
	return Indeterminate
}

// Check finds one result.
func (v *Verdict) Check(name Check) Result {
	for _, check := range v.Checks {
		if check.Name == name {
			return check
		}
	}
	return Result{Name: name, Status: NotChecked}
}
