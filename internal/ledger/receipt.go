package ledger

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"countersign/internal/canon"
)

// ReceiptFormat names the layout of the signed bytes, which docs/receipt-format.md describes field
// by field. Receipts of the previous format are no longer made but still verify.
const ReceiptFormat = "countersign-receipt-v2"

// receiptFormat1 had no environment, external_chain_id and evaluation_mode, and counted markers as
// actions.
const receiptFormat1 = "countersign-receipt-v1"

// NumberPrefix starts every receipt number.
const NumberPrefix = "CSN"

// Receipt is the sealed record of one chain.
type Receipt struct {
	ID            ReceiptID
	Number        string
	Sequence      int64 // within the organization, from 1; the last part of the number
	Chain         ChainID
	Organization  string
	Environment   string
	ExternalID    string // may be ""
	Mode          Mode   // Shadow if any action was decided in shadow; "" without actions
	Summary       string
	StartedAt     Time
	CompletedAt   Time
	GeneratedAt   Time
	Agents        []string
	Actions       int64
	Metrics       Metrics
	Approvals     []*Approval // ordered by the sequence of their events
	Events        []SummaryLine
	PolicyVersion string
	PreviousHash  *[32]byte // nil for the organization's first receipt
	Metadata      []byte    // canonical object or nil
	EventsDigest  [32]byte
	KeyID         string
	Signature     string
}

// ReceiptNumber returns the label for people. The sequence never resets. The year is when the
// receipt was made.
func ReceiptNumber(generatedAt Time, sequence int64) string {
	label := append(make([]byte, 0, 32), NumberPrefix+"-"...)
	label = append(appendPadded(label, int64(generatedAt.Year()), 4), '-')
	return string(appendPadded(label, sequence, 5))
}

// appendPadded appends a number, with zeros before it up to a width.
func appendPadded(dst []byte, n int64, width int) []byte {
	var buffer [20]byte
	number := strconv.AppendInt(buffer[:0], n, 10)
	for range width - len(number) {
		dst = append(dst, '0')
	}
	return append(dst, number...)
}

// ParseReceiptNumber returns the sequence in the result of ReceiptNumber.
func ParseReceiptNumber(number string) (sequence int64, ok bool) {
	rest, ok := strings.CutPrefix(number, NumberPrefix+"-")
	year, digits, cut := strings.Cut(rest, "-")
	if !ok || !cut || len(year) != 4 {
		return 0, false
	}
	sequence, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || sequence < 1 || fmt.Sprintf("%05d", sequence) != digits {
		return 0, false
	}
	return sequence, true
}

// FormatHash formats a SHA-256 as it appears in receipts.
func FormatHash(sum [32]byte) string { return hashPrefix + hex.EncodeToString(sum[:]) }

// ParseHash parses the result of FormatHash, and nothing else.
func ParseHash(text string) (sum [32]byte, ok bool) {
	digits, ok := strings.CutPrefix(text, hashPrefix)
	if !ok || len(digits) != hashDigits {
		return sum, false
	}
	_, err := hex.Decode(sum[:], []byte(digits))
	return sum, err == nil && FormatHash(sum) == text
}

const hashPrefix = "sha256:"

const signaturePrefix = "hmac-sha256:"

// encode returns the canonical bytes, without the signature while it is empty.
func (r *Receipt) encode() []byte {
	w := canon.BeginObject(make([]byte, 0, 2048))
	w.Strings("agents_involved", r.Agents)
	w.Value(appendApprovals(w.Name("approvals"), r.Approvals))
	writeID(&w, "chain_id", r.Chain.UUID)
	writeTime(&w, "completed_at", r.CompletedAt)
	w.Value(r.Metrics.AppendTo(w.Name("cumulative_metrics")))
	w.String("environment", r.Environment)
	w.StringOrNull("evaluation_mode", string(r.Mode))
	w.String("events_digest", FormatHash(r.EventsDigest))
	w.Value(appendSummary(w.Name("events_summary"), r.Events, ReceiptFormat))
	w.StringOrNull("external_chain_id", r.ExternalID)
	w.String("format", ReceiptFormat)
	writeTime(&w, "generated_at", r.GeneratedAt)
	w.String("key_id", r.KeyID)
	w.Raw("metadata", r.Metadata)
	w.String("organization", r.Organization)
	w.String("policy_version", r.PolicyVersion)
	writeHashOrNull(&w, "previous_receipt_hash", r.PreviousHash)
	writeID(&w, "receipt_id", r.ID.UUID)
	w.String("receipt_number", r.Number)
	if r.Signature != "" {
		w.String("signature", r.Signature)
	}
	writeTime(&w, "started_at", r.StartedAt)
	w.String("summary", r.Summary)
	w.Int("total_actions", r.Actions)
	return w.End()
}

// sign computes the signature and returns the stored bytes: canonical, including the signature. The
// signature is inserted at its known place, so that the signed bytes need not be encoded twice.
func (r *Receipt) sign(keys Keys, org OrgID) []byte {
	r.KeyID = keys.CurrentKey()
	r.Signature = ""
	unsigned := r.encode()
	mac, _ := keys.MAC(r.KeyID, org.UUID, PurposeReceipt, unsigned)
	r.Signature = signaturePrefix + hex.EncodeToString(mac[:])
	at := bytes.LastIndex(unsigned, startedMember)
	signed := make([]byte, 0, len(unsigned)+len(signatureMember)+hashDigits+1)
	signed = append(signed, unsigned[:at]...)
	signed = append(signed, `,"signature":"`...)
	signed = append(signed, r.Signature...)
	signed = append(signed, '"')
	return append(signed, unsigned[at:]...)
}

// startedMember follows the signature. Only a sentence and a number come after it, and a quote in
// the sentence is escaped, so the last match is the right one.
var startedMember = []byte(`,"started_at":"`)

// StoredReceipt is a receipt as it is stored: the signed bytes, and the columns that identify it. A
// column that disagrees with the bytes is tampering.
type StoredReceipt struct {
	ID           ReceiptID
	Org          OrgID
	Sequence     int64
	Chain        ChainID
	PreviousHash []byte // 32 bytes; empty for the first
	Body         []byte
	// Tampered says that the stored row is not what the service wrote. Only ID and Sequence are
	// then set. A store never sets it.
	Tampered bool
}

// Hash returns what the next receipt contains as previous_receipt_hash.
func (s *StoredReceipt) Hash() [32]byte { return sha256.Sum256(s.Body) }

// SealedReceipt is a receipt that this process has made. It keeps its hash, because the next receipt
// and the transparency log both need it.
type SealedReceipt struct {
	*StoredReceipt
	hash [32]byte
}

// Hash returns the same as StoredReceipt's, without computing it.
func (s *SealedReceipt) Hash() [32]byte { return s.hash }

// Head identifies an organization's newest receipt. It is authenticated, so that cutting off the
// last receipts is detected.
type Head struct {
	Org   OrgID
	Count int64
	Last  *[32]byte // hash of the newest receipt; nil before the first
	KeyID string
	MAC   []byte
}

// NewHead returns the head of an organization without receipts.
func NewHead(org OrgID, keys Keys) *Head {
	head := &Head{Org: org}
	head.authenticate(keys)
	return head
}

// Equal reports whether two heads have the same bytes.
func (h *Head) Equal(other *Head) bool {
	return h.Org == other.Org && h.Count == other.Count && h.KeyID == other.KeyID && bytes.Equal(h.MAC, other.MAC) &&
		(h.Last == nil) == (other.Last == nil) && (h.Last == nil || *h.Last == *other.Last)
}

func (h *Head) encode() []byte {
	w := canon.BeginObject(make([]byte, 0, 256))
	w.Int("count", h.Count)
	w.String("key_id", h.KeyID)
	writeHashOrNull(&w, "last_receipt_hash", h.Last)
	writeID(&w, "organization_id", h.Org.UUID)
	return w.End()
}

func (h *Head) authenticate(keys Keys) {
	h.KeyID = keys.CurrentKey()
	mac, _ := keys.MAC(h.KeyID, h.Org.UUID, PurposeHead, h.encode())
	h.MAC = mac[:]
}

// OpenHead is an authentic head to which receipts are being added. Sign authenticates it again, once
// for all of them.
type OpenHead struct {
	head  Head
	grown bool
}

// Open authenticates a head so that receipts can be added to it. The head itself does not change.
func (h *Head) Open(keys Keys) (*OpenHead, error) {
	if !h.Authentic(keys) {
		return nil, fmt.Errorf("organization head fails its authenticator: %w", ErrStateTampered)
	}
	return &OpenHead{head: *h}, nil
}

// add makes a receipt the newest one.
func (o *OpenHead) add(r *SealedReceipt) {
	hash := r.Hash()
	o.head.Count, o.head.Last, o.grown = r.Sequence, &hash, true
}

// Sign returns the head after the receipts that were added, and nil if there was none.
func (o *OpenHead) Sign(keys Keys) *Head {
	if !o.grown {
		return nil
	}
	signed := o.head
	signed.authenticate(keys)
	return &signed
}

// Authentic reports whether the service wrote the head.
func (h *Head) Authentic(keys Keys) bool {
	if h.Count < 0 || h.Count > maxCount {
		return false // not a count that the service writes; it has no canonical form
	}
	mac, ok := keys.MAC(h.KeyID, h.Org.UUID, PurposeHead, h.encode())
	return ok && hmac.Equal(mac[:], h.MAC)
}
