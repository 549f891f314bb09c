package ledger

import (
	"bytes"
	"fmt"
)

// Break is the first place where a ledger is broken.
type Break struct {
	Sequence int64 `json:"sequence"`
	// ReceiptNumber is empty if the break is in no receipt, or nothing says of which year it is.
	ReceiptNumber string `json:"receipt_number"`
	Check         Check  `json:"check"`
	Detail        string `json:"detail"`
	// Evidence is a digest of the affected row if it is not a receipt, or of the names of all records
	// that are missing. It is nil if the detail says everything.
	Evidence []byte `json:"-"`
}

func (b *Break) Error() string {
	if b.ReceiptNumber == "" {
		return fmt.Sprintf("%s: %s", b.Check, b.Detail)
	}
	return fmt.Sprintf("%s: %s: %s", b.ReceiptNumber, b.Check, b.Detail)
}

// Walk follows an organization's receipts from the first to the newest. It detects what no receipt
// shows on its own: a gap, a swap, a missing end.
//
// A long ledger is walked in parallel segments. Each starts at a receipt whose predecessor it does
// not know, and Join checks the links between segments.
type Walk struct {
	Checked int64 // the sequence of the last sound receipt
	last    *[32]byte
	year    int
	// For a segment: where it started and what its first receipt links to.
	from      int64
	firstLink []byte
	segment   bool
}

// NewWalk starts before an organization's first receipt.
func NewWalk() *Walk { return &Walk{from: 1} }

// NewWalkFrom starts a segment at a later receipt.
func NewWalkFrom(sequence int64) *Walk {
	return &Walk{Checked: sequence - 1, from: sequence, segment: true}
}

// Step checks the next receipt in order of sequence, which was already inspected.
func (w *Walk) Step(r *StoredReceipt, in *Inspection) *Break {
	expected := w.Checked + 1
	broken := func(check Check, detail string) *Break {
		label := w.label(r, expected)
		if label == "" {
			detail = fmt.Sprintf("receipt %d: %s", expected, detail)
		}
		return &Break{Sequence: expected, ReceiptNumber: label, Check: check, Detail: detail}
	}
	if r.Sequence != expected {
		return broken(CheckSequence, fmt.Sprintf("receipt %d is missing: the next one stored is %d", expected, r.Sequence))
	}
	if in.Fault != "" {
		return broken(in.Fault, faultDetails[in.Fault])
	}
	if w.segment && r.Sequence == w.from {
		w.firstLink = bytes.Clone(r.PreviousHash)
	} else if !sameLink(r.PreviousHash, w.last) {
		return broken(CheckPreviousLink, "does not carry the hash of the receipt before it")
	}
	hash := in.Hash
	w.last, w.year = &hash, in.year
	w.Checked = expected
	return nil
}

// Join appends the next segment, with the break that was found in it, and returns the first break
// of the two.
func (w *Walk) Join(next *Walk, found *Break) *Break {
	if missing := w.Checked + 1; missing != next.from {
		if w.year == 0 {
			w.year = next.year
		}
		return &Break{Sequence: missing, ReceiptNumber: w.Label(missing), Check: CheckSequence, Detail: fmt.Sprintf("receipt %d is missing", missing)}
	}
	if next.Checked >= next.from && !sameLink(next.firstLink, w.last) {
		return &Break{Sequence: next.from, ReceiptNumber: next.Label(next.from), Check: CheckPreviousLink, Detail: "does not carry the hash of the receipt before it"}
	}
	if found != nil {
		if found.ReceiptNumber == "" {
			found.ReceiptNumber = w.Label(found.Sequence)
		}
		return found
	}
	if next.Checked >= next.from {
		w.last, w.year = next.last, next.year
	}
	w.Checked = next.Checked
	return nil
}

// Label returns the receipt number of a sequence, with the year of the receipt before it. It is
// empty if the walk has met no receipt: a number with a made-up year would name none.
func (w *Walk) Label(sequence int64) string {
	if w.year == 0 {
		return ""
	}
	return fmt.Sprintf("%s-%04d-%05d", NumberPrefix, w.year, sequence)
}

var faultDetails = map[Check]string{
	CheckSignature: "the signature does not match the stored bytes, or its key is not on the ring",
	CheckColumns:   "the record's columns do not agree with the signed bytes",
}

func sameLink(previous []byte, last *[32]byte) bool {
	if last == nil {
		return len(previous) == 0
	}
	return bytes.Equal(previous, last[:])
}

// label names a receipt that may be unreadable or missing. The year is that of its claimed time if
// it can be parsed, otherwise that of an earlier receipt.
func (w *Walk) label(r *StoredReceipt, sequence int64) string {
	if generated, ok := stringMember(r.Body, `generated_at":"`); ok {
		if t, err := ParseTime(string(generated)); err == nil {
			w.year = t.Year()
		}
	}
	return w.Label(sequence)
}

// Finish checks the last receipt against the organization's head, which is nil if it is missing.
func (w *Walk) Finish(head *Head, keys Keys) *Break {
	broken := func(detail string) *Break {
		return &Break{Sequence: w.Checked + 1, ReceiptNumber: w.label(&StoredReceipt{}, w.Checked+1), Check: CheckHead, Detail: detail}
	}
	switch {
	case head == nil:
		return broken("the organization's head is missing")
	case !head.Authentic(keys):
		return broken("the organization's head fails its authenticator")
	case head.Count > 0 && w.Checked == 0:
		return broken(fmt.Sprintf("the head counts %d receipts, and none is stored: all are missing", head.Count))
	case head.Count > w.Checked:
		return broken(fmt.Sprintf("the head counts %d receipts, %d are stored: the last ones were cut off", head.Count, w.Checked))
	case head.Count < w.Checked:
		return broken(fmt.Sprintf("the head counts %d receipts, %d are stored", head.Count, w.Checked))
	case !sameHead(head.Last, w.last):
		return broken("the head's hash is not that of the last receipt")
	}
	return nil
}

func sameHead(a, b *[32]byte) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}
