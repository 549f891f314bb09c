package ledger

import (
	"bytes"
	"crypto/hmac"
	"encoding/hex"
	"strconv"
)

// Check names one thing that a verification checks.
type Check string

// The checks of a receipt and of a ledger.
const (
	CheckSignature    Check = "signature"
	CheckColumns      Check = "columns" // the columns next to the signed bytes
	CheckPreviousLink Check = "previous_link"
	CheckNextLink     Check = "next_link"
	CheckSequence     Check = "sequence"
	CheckHead         Check = "head"
	CheckEventsDigest Check = "events_digest"
	CheckChain        Check = "chain"
	CheckApprovals    Check = "approvals"
	CheckAuditLog     Check = "audit_log"
	CheckAnchors      Check = "anchors" // anchors that the audit log says were made
	CheckRollback     Check = "rollback"
	CheckRegistry     Check = "registry"
	CheckAccess       Check = "access"   // API keys
	CheckFindings     Check = "findings" // stored findings
	CheckQueue        Check = "queue"    // queued jobs
	CheckBudgets      Check = "budgets"  // budget counters
	CheckTransparency Check = "transparency_log"
	CheckRow          Check = "row" // a row that failed during a request
)

// Inspection is the result of checking one receipt's stored bytes on their own. Walk checks the
// links to its neighbours.
type Inspection struct {
	Attested
	Hash  [32]byte
	Fault Check // "" if the receipt is sound on its own
	year  int
}

// Attested is what a receipt attests about its chain's events.
type Attested struct {
	EventsDigest [32]byte
	Actions      int64
	Summary      []byte // bytes of the events_summary member, a slice of the body
	Format       string
}

// Clone returns a copy that does not share the receipt's bytes.
func (a Attested) Clone() Attested {
	a.Summary = bytes.Clone(a.Summary)
	return a
}

// Inspect verifies a receipt's signature over its stored bytes and compares the columns with what
// was signed. It reads the bytes in place, because an audit of a large ledger should spend its time
// hashing, not parsing. The members that it reads are in the same place in every receipt of this
// format, and nothing is trusted before the signature is verified.
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

var (
	signatureMember = []byte(`,"signature":"` + signaturePrefix)
	signatureValue  = []byte(signaturePrefix)
)

// signatureSpan finds the top-level signature member with the comma before it. It is the last
// member of that name, because only strings and a number follow. It searches forwards for the first
// letters of the value, which are rare: the library's backward search goes byte by byte.
func signatureSpan(body []byte) (at, end int) {
	at = -1
	for from := 0; ; {
		found := bytes.Index(body[from:], signatureValue)
		if found < 0 {
			break
		}
		from += found + len(signatureValue)
		if start := from - len(signatureMember); start >= 0 && bytes.HasPrefix(body[start:], signatureMember) {
			at = start
		}
	}
	end = at + len(signatureMember) + hashDigits + 1
	// The signature's place is part of what is verified. The member that follows it in canonical
	// order must come next, or it was moved into an object of the caller.
	if at < 0 || end > len(body) || body[end-1] != '"' || !bytes.HasPrefix(body[end:], startedMember) {
		return -1, -1
	}
	if bytes.Contains(body[end+len(startedMember):], startedMember) {
		return -1, -1
	}
	return at, end
}

func signed(r *StoredReceipt, at, end int, keys Keys) bool {
	keyID, ok := stringMember(r.Body, `key_id":"`)
	if !ok {
		return false
	}
	mac, ok := keys.MAC(string(keyID), r.Org.UUID, PurposeReceipt, r.Body[:at], r.Body[end:])
	// The comparison is textual, because the same digits in capitals are different bytes.
	var want [2 * len(mac)]byte
	hex.Encode(want[:], mac[:])
	return ok && hmac.Equal(want[:], r.Body[at+len(signatureMember):end-1])
}

// stringMember returns the value of the first member with the name. It is used for names that come
// before any object of the caller, and a quote inside a string is always escaped, so the first
// match is the receipt's own. name has no leading quote: quotes are frequent, and the search would
// stop at each.
func stringMember(body []byte, name string) ([]byte, bool) {
	for {
		at := bytes.Index(body, []byte(name))
		if at < 0 {
			return nil, false
		}
		value := body[at+len(name):]
		if at > 0 && body[at-1] == '"' {
			end := bytes.IndexByte(value, '"')
			if end < 0 {
				return nil, false
			}
			return value[:end], true
		}
		body = value
	}
}

// label is what directly precedes the signature in canonical order: the link to the previous
// receipt, the id and the number.
type label struct {
	at       int    // where it starts
	previous []byte // 64 hex digits; nil in the first receipt
	id       []byte
	sequence int64
	year     int
}

var (
	numberMember   = []byte(`,"receipt_number":"`)
	numberStart    = []byte(NumberPrefix + "-")
	idMember       = []byte(`,"receipt_id":"`)
	firstMember    = []byte(`,"previous_receipt_hash":null`)
	previousMember = []byte(`,"previous_receipt_hash":"sha256:`)
)

// readLabel parses the bytes from their end, where every member except the last part of the number
// has a fixed length.
func readLabel(before []byte) (l label, ok bool) {
	valueAt := bytes.LastIndexByte(before[:max(len(before)-1, 0)], '"') + 1
	numberAt := valueAt - len(numberMember)
	if numberAt < 0 || !bytes.HasPrefix(before[numberAt:], numberMember) {
		return l, false
	}
	number, ok := bytes.CutPrefix(before[valueAt:], numberStart) // YYYY-NNNNN"
	if !ok || len(number) < 7 || number[4] != '-' || number[len(number)-1] != '"' {
		return l, false
	}
	var yearErr, sequenceErr error
	l.year, yearErr = strconv.Atoi(string(number[:4]))
	l.sequence, sequenceErr = strconv.ParseInt(string(number[5:len(number)-1]), 10, 64)
	idAt := numberAt - len(idMember) - idLength - 1
	if yearErr != nil || sequenceErr != nil || idAt < 0 || !bytes.HasPrefix(before[idAt:], idMember) || before[numberAt-1] != '"' {
		return l, false
	}
	l.id = before[idAt+len(idMember) : numberAt-1]
	if bytes.HasSuffix(before[:idAt], firstMember) {
		l.at = idAt - len(firstMember)
		return l, true
	}
	l.at = idAt - len(previousMember) - hashDigits - 1
	if l.at < 0 || !bytes.HasPrefix(before[l.at:], previousMember) || before[idAt-1] != '"' {
		return l, false
	}
	l.previous = before[l.at+len(previousMember) : idAt-1]
	return l, true
}

const (
	idLength   = 36
	hashDigits = 64
)

// columnsAgree compares the columns with what was signed.
func (in *Inspection) columnsAgree(r *StoredReceipt, slug string, before []byte) bool {
	l, ok := readLabel(before)
	if !ok || l.sequence != r.Sequence || string(l.id) != r.ID.String() || string(l.previous) != hex.EncodeToString(r.PreviousHash) {
		return false
	}
	in.year = l.year
	chain, ok := stringMember(before, `chain_id":"`)
	if !ok || string(chain) != r.Chain.String() {
		return false
	}
	// Only two strings are in between, so the last member of that name is the receipt's own: one in
	// the caller's metadata comes earlier.
	org := bytes.LastIndex(before[:l.at], organizationMember)
	return org >= 0 && bytes.HasPrefix(before[org+len(organizationMember):], []byte(slug+`","policy_version":"`))
}

// InspectBytes is Inspect for a scan that reads only the signed bytes. It sets the sequence that
// the receipt claims, for Walk to check. r keeps only a reference to the bytes.
func InspectBytes(body []byte, org OrgID, keys Keys, r *StoredReceipt) Inspection {
	*r = StoredReceipt{Org: org, Body: body, PreviousHash: r.PreviousHash[:0]}
	in := Inspection{Hash: r.Hash()}
	at, end := signatureSpan(body)
	if at < 0 || !signed(r, at, end, keys) {
		in.Fault = CheckSignature
		return in
	}
	l, ok := readLabel(body[:at])
	previous, err := hex.AppendDecode(r.PreviousHash, l.previous)
	if !ok || err != nil {
		in.Fault = CheckSignature
		return in
	}
	r.Sequence, r.PreviousHash, in.year = l.sequence, previous, l.year
	return in
}

var organizationMember = []byte(`,"organization":"`)

// Between the first two there are only objects of the service, and between the first and the last
// one more text since the second format.
var (
	summaryMember    = []byte(`,"events_summary":`)
	externalIDMember = []byte(`,"external_chain_id":`)
	formatMember     = []byte(`,"format":"`)
)

var actionsMember = []byte(`,"total_actions":`)

func (in *Inspection) readEvidence(body []byte) bool {
	digest, ok := stringMember(body, `events_digest":"sha256:`)
	if !ok || len(digest) != 64 {
		return false
	}
	if _, err := hex.Decode(in.EventsDigest[:], digest); err != nil {
		return false
	}
	_, rest, found := bytes.Cut(body, summaryMember)
	lines, rest, ended := bytes.Cut(rest, formatMember)
	format, _, closed := bytes.Cut(rest, []byte(`"`))
	if !found || !ended || !closed {
		return false
	}
	switch in.Format = string(format); in.Format {
	case receiptFormat1:
	case ReceiptFormat:
		if lines, _, found = bytes.Cut(lines, externalIDMember); !found {
			return false
		}
	default:
		return false
	}
	in.Summary = lines
	at := bytes.LastIndex(body, actionsMember)
	if at < 0 {
		return false
	}
	actions, err := strconv.ParseInt(string(body[at+len(actionsMember):len(body)-1]), 10, 64)
	in.Actions = actions
	return err == nil
}

// ReceiptCheck is the public verdict on one receipt.
type ReceiptCheck struct {
	Valid       bool
	Sound       bool  // its own bytes are what was sealed, whatever the state of the rest
	Full        bool  // its links, events and approvals were also checked
	Failed      Check // the first check that failed, or ""
	Repeated    bool  // Failed repeats what an earlier check found
	Number      string
	Chain       ChainID
	GeneratedAt string
}

// CheckReceipt verifies one receipt on its own, for anyone who has its id. For a receipt that
// fails, it shows what the record claims.
func CheckReceipt(r *StoredReceipt, slug string, keys Keys) ReceiptCheck {
	in := Inspect(r, slug, keys)
	return in.Check(r)
}

// Check returns the public verdict on the inspected receipt.
func (in *Inspection) Check(r *StoredReceipt) ReceiptCheck {
	check := ReceiptCheck{Valid: in.Fault == "", Sound: in.Fault == "", Chain: r.Chain}
	// This is the last member of that name: the caller's metadata comes earlier.
	if at := bytes.LastIndex(r.Body, numberMember); at >= 0 {
		number, _ := stringMember(r.Body[at:], `receipt_number":"`)
		check.Number = claimed(number)
	}
	if generated, ok := stringMember(r.Body, `generated_at":"`); ok {
		check.GeneratedAt = claimed(generated)
	}
	return check
}

// claimed bounds what an altered record can put into a public response.
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
