package ledger

import (
	"bytes"
	"crypto/hmac"
	"encoding/hex"
	"strconv"
)

// Check names one thing that a verification looks at.
type Check string

// The checks of a receipt and of a ledger.
const (
	CheckSignature    Check = "signature"
	CheckColumns      Check = "columns" // what the store says beside the signed bytes
	CheckPreviousLink Check = "previous_link"
	CheckNextLink     Check = "next_link"
	CheckSequence     Check = "sequence"
	CheckHead         Check = "head"
	CheckEventsDigest Check = "events_digest"
	CheckChain        Check = "chain"
)

// Inspection is what one receipt's stored bytes say on their own, before its
// neighbours are looked at. The links are judged by Walk.
type Inspection struct {
	Hash         [32]byte
	Fault        Check // "" when the receipt is sound by itself
	EventsDigest [32]byte
	Actions      int64
	year         int
}

// Inspect verifies a receipt's signature over its stored bytes and holds the
// store's columns against what was signed. It reads the bytes in place: an audit
// of a large ledger spends its time hashing, not parsing. The members it looks
// for stand where they do in every receipt of this format, and nothing read is
// trusted before the signature has vouched for it.
func Inspect(r *StoredReceipt, slug string, keys Keys) Inspection {
	in := Inspection{Hash: r.Hash()}
	at, end := signatureSpan(r.Body)
	if at < 0 || !signed(r, at, end, keys) {
		in.Fault = CheckSignature
		return in
	}
	if !in.columnsAgree(r, slug, r.Body[:at]) || !in.readEvidence(r.Body) {
		in.Fault = CheckColumns
	}
	return in
}

var signatureMember = []byte(`,"signature":"` + signaturePrefix)

// signatureSpan finds the top-level signature member with the comma before it:
// the last of that name, for only strings and a number follow it.
func signatureSpan(body []byte) (at, end int) {
	at = bytes.LastIndex(body, signatureMember)
	end = at + len(signatureMember) + 2*32 + 1
	if at < 0 || end > len(body) || body[end-1] != '"' {
		return -1, -1
	}
	return at, end
}

func signed(r *StoredReceipt, at, end int, keys Keys) bool {
	keyID, ok := stringMember(r.Body, `"key_id":"`)
	if !ok {
		return false
	}
	mac, ok := keys.MAC(string(keyID), r.Org.UUID, PurposeReceipt, r.Body[:at], r.Body[end:])
	// Compared as text: the same digits in capitals are other bytes.
	var want [2 * len(mac)]byte
	hex.Encode(want[:], mac[:])
	return ok && hmac.Equal(want[:], r.Body[at+len(signatureMember):end-1])
}

// stringMember finds the value of the first member of that name. The names it
// is used for stand before any object of the caller's own, and a quote inside a
// string is always escaped, so the first is the receipt's.
func stringMember(body []byte, name string) ([]byte, bool) {
	at := bytes.Index(body, []byte(name))
	if at < 0 {
		return nil, false
	}
	value := body[at+len(name):]
	end := bytes.IndexByte(value, '"')
	if end < 0 {
		return nil, false
	}
	return value[:end], true
}

// columnsAgree compares the columns with the members that stand directly before
// the signature, in canonical order.
func (in *Inspection) columnsAgree(r *StoredReceipt, slug string, before []byte) bool {
	want := make([]byte, 0, 256)
	want = append(want, `"previous_receipt_hash":`...)
	if len(r.PreviousHash) == 0 {
		want = append(want, "null"...)
	} else {
		want = append(want, `"sha256:`...)
		want = hex.AppendEncode(want, r.PreviousHash)
		want = append(want, '"')
	}
	want = append(want, `,"receipt_id":`...)
	want = appendQuotedID(want, r.ID.UUID)
	want = append(want, `,"receipt_number":"`+NumberPrefix+`-`...)
	at := bytes.LastIndex(before, want)
	if at < 0 {
		return false
	}
	number := before[at+len(want):] // YYYY-NNNNN"
	if len(number) < 7 || number[4] != '-' || number[len(number)-1] != '"' {
		return false
	}
	sequence, err := strconv.ParseInt(string(number[5:len(number)-1]), 10, 64)
	if err != nil || sequence != r.Sequence {
		return false
	}
	if in.year, err = strconv.Atoi(string(number[:4])); err != nil {
		return false
	}
	chain, ok := stringMember(before, `"chain_id":"`)
	if !ok || string(chain) != r.Chain.String() {
		return false
	}
	// Only two strings stand between, so the last of that name is the receipt's:
	// one in the caller's metadata stands before it.
	org := bytes.LastIndex(before[:at], organizationMember)
	return org >= 0 && bytes.HasPrefix(before[org+len(organizationMember):], []byte(slug+`","policy_version":"`))
}

var organizationMember = []byte(`,"organization":"`)

var actionsMember = []byte(`,"total_actions":`)

func (in *Inspection) readEvidence(body []byte) bool {
	digest, ok := stringMember(body, `"events_digest":"sha256:`)
	if !ok || len(digest) != 64 {
		return false
	}
	if _, err := hex.Decode(in.EventsDigest[:], digest); err != nil {
		return false
	}
	at := bytes.LastIndex(body, actionsMember)
	if at < 0 {
		return false
	}
	actions, err := strconv.ParseInt(string(body[at+len(actionsMember):len(body)-1]), 10, 64)
	in.Actions = actions
	return err == nil
}

var numberMember = []byte(`,"receipt_number":"`)

// ReceiptCheck is the public verdict on one receipt.
type ReceiptCheck struct {
	Valid       bool
	Number      string
	Chain       ChainID
	GeneratedAt string
}

// CheckReceipt verifies one receipt by itself, for anyone who holds its id.
// What it shows of a receipt that fails is what the record claims.
func CheckReceipt(r *StoredReceipt, slug string, keys Keys) ReceiptCheck {
	check := ReceiptCheck{Valid: Inspect(r, slug, keys).Fault == "", Chain: r.Chain}
	// The last of that name: the caller's metadata stands before it.
	if at := bytes.LastIndex(r.Body, numberMember); at >= 0 {
		number, _ := stringMember(r.Body[at:], string(numberMember))
		check.Number = claimed(number)
	}
	if generated, ok := stringMember(r.Body, `,"generated_at":"`); ok {
		check.GeneratedAt = claimed(generated)
	}
	return check
}

// claimed bounds what an altered record can put into a public answer.
func claimed(text []byte) string {
	const longest = 40
	if len(text) > longest {
		return ""
	}
	for _, b := range text {
		if b < ' ' || b > '~' {
			return ""
		}
	}
	return string(text)
}
