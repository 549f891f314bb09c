package bundle

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	cosignature "github.com/transparency-dev/formats/note"

	"countersign/internal/canon"
)

// verification is one bundle being checked.
type verification struct {
	trust   *Trust
	bundle  *Bundle
	verdict Verdict

	receipt    canon.Value // null where it cannot be read
	proof      *Proof      // nil where it cannot be read
	checkpoint *checkpoint // nil where it cannot be read
	events     []event     // those among the entries
	broken     string      // what is wrong with the entries, "" for nothing
}

// event is an entry that records an action.
type event struct {
	Entry
	facts canon.Value
}

// read takes the bundle's parts apart and notes what it claims.
func (v *verification) read() {
	b := v.bundle
	if receipt, err := canon.Parse([]byte(b.Receipt)); err == nil && receipt.Kind() == canon.Object {
		v.receipt = receipt
	}
	if proof, err := ParseProof(b.LogProof); err == nil {
		v.proof = proof
		v.checkpoint, _ = parseCheckpoint(proof.Checkpoint)
	}
	v.verdict = Verdict{
		ReceiptNumber: text(v.receipt, "receipt_number"), ReceiptID: text(v.receipt, "receipt_id"),
		ReceiptHash: formatHash([]byte(b.Receipt)), Organization: text(v.receipt, "organization"),
		Summary: text(v.receipt, "summary"), GeneratedAt: text(v.receipt, "generated_at"),
		Witnesses: len(v.trust.witnesses), Witnessed: []Cosigning{},
	}
	if v.checkpoint != nil {
		v.verdict.Origin, v.verdict.TreeSize = v.checkpoint.origin, v.checkpoint.size
	}
	v.readEntries()
}

func (v *verification) readEntries() {
	for i, entry := range v.bundle.Entries {
		facts, err := canon.Parse([]byte(entry.Body))
		if err != nil || facts.Kind() != canon.Object {
			v.broken = fmt.Sprintf("entry %d cannot be read", i+1)
			return
		}
		if _, other := facts.Get("kind"); other {
			if entry.Payload != nil || entry.Redactions != nil {
				v.broken = fmt.Sprintf("entry %d is no event and has a payload", i+1)
				return
			}
			continue
		}
		v.events = append(v.events, event{entry, facts})
		if sequence, ok := number(facts, "sequence"); !ok || sequence != int64(len(v.events)) || !sameText(facts, v.receipt, "chain_id") {
			v.broken = fmt.Sprintf("entry %d is not event %d of the receipt's chain", i+1, len(v.events))
			return
		}
	}
}

// markers are the types of events that are not actions, since the second receipt format.
var markers = map[string]bool{"gap": true, "late_outcome": true}

const (
	receiptFormat1 = "countersign-receipt-v1"
	receiptFormat2 = "countersign-receipt-v2"
)

func (v *verification) receiptHash() (Status, string) {
	format := text(v.receipt, "format")
	switch {
	case v.receipt.IsNull():
		return Fail, "the receipt cannot be read"
	case format != receiptFormat1 && format != receiptFormat2:
		return Fail, fmt.Sprintf("the receipt's format %q is unknown: a newer verifier may know it", format)
	case v.bundle.ReceiptHash != v.verdict.ReceiptHash:
		return Fail, "the receipt does not have the hash that the bundle names"
	}
	number := v.verdict.ReceiptNumber
	if v.proof == nil || number[strings.LastIndexByte(number, '-')+1:] != fmt.Sprintf("%05d", v.proof.Index+1) {
		return Fail, "the receipt's number is not that of its place in the log"
	}
	return Pass, v.verdict.ReceiptHash
}

const (
	notIncluded = "not included"
	noLogKey    = "no log key was given"
)

func (v *verification) eventsDigest() (Status, string) {
	if !v.bundle.Full {
		return NotChecked, notIncluded
	}
	digest := sha256.Sum256(nil)
	for _, entry := range v.bundle.Entries {
		digest = sha256.Sum256(append(digest[:], entry.Body...))
	}
	switch {
	case "sha256:"+hex.EncodeToString(digest[:]) != text(v.receipt, "events_digest"):
		return Fail, "the entries do not give the digest that the receipt attests"
	case v.broken != "":
		return Fail, v.broken
	}
	actions := int64(0)
	for _, event := range v.events {
		if text(v.receipt, "format") == receiptFormat1 || !markers[text(event.facts, "action_type")] {
			actions++
		}
	}
	if total, ok := number(v.receipt, "total_actions"); !ok || total != actions {
		return Fail, "the receipt counts another number of actions"
	}
	return Pass, fmt.Sprintf("%d entries, %d events", len(v.bundle.Entries), len(v.events))
}

func (v *verification) payloadHashes() (Status, string) {
	switch {
	case !v.bundle.Full:
		return NotChecked, notIncluded
	case v.broken != "":
		return NotChecked, "the entries cannot be read"
	}
	checked := 0
	for i, event := range v.events {
		if event.Payload != nil {
			if hexHash(*event.Payload) != text(event.facts, "payload_sha256") {
				return Fail, fmt.Sprintf("the payload of event %d does not have the hash that was recorded", i+1)
			}
			checked++
		}
		if event.Redactions != nil && hexHash(*event.Redactions) != text(event.facts, "redactions_sha256") {
			return Fail, fmt.Sprintf("the digests of what was redacted from event %d do not have the hash that was recorded", i+1)
		}
	}
	if checked == 0 && len(v.events) > 0 {
		return NotChecked, "no payload is included"
	}
	return Pass, fmt.Sprintf("%d of %d payloads", checked, len(v.events))
}

func (v *verification) approvalRecords() (Status, string) {
	if !v.bundle.Full {
		return NotChecked, notIncluded
	}
	listed, ok := v.attested()
	if !ok {
		return Fail, "the receipt's list of approvals cannot be read"
	}
	if len(listed) != len(v.bundle.Approvals) {
		return Fail, fmt.Sprintf("the receipt lists %d approvals, the bundle has %d", len(listed), len(v.bundle.Approvals))
	}
	for i, approval := range v.bundle.Approvals {
		record, err := canon.Parse([]byte(approval.Record))
		if err != nil || formatHash([]byte(approval.Record)) != text(listed[i], "approval_hash") {
			return Fail, fmt.Sprintf("the record of approval %d does not have the hash that the receipt names", i+1)
		}
		if !sameText(record, listed[i], "approval_id") || !sameText(record, listed[i], "status") {
			return Fail, fmt.Sprintf("the record of approval %d is not the one that the receipt lists", i+1)
		}
	}
	return Pass, fmt.Sprintf("%d approvals", len(v.bundle.Approvals))
}

// attested lists the approvals that the receipt names. It is not ok where they are not an array of
// objects.
func (v *verification) attested() (listed []canon.Value, ok bool) {
	member, _ := v.receipt.Get("approvals")
	for _, item := range member.Items() {
		if item.Kind() != canon.Object {
			return nil, false
		}
	}
	return member.Items(), member.Kind() == canon.Array
}

// cancelled is the status of an approval that ended without a decision.
const cancelled = "cancelled"

func (v *verification) approvalSignatures() (Status, string) {
	if !v.bundle.Full {
		return NotChecked, notIncluded
	}
	registry, err := v.readRegistry()
	if err != nil {
		return Fail, err.Error()
	}
	signed, revoked := 0, 0
	for i, approval := range v.bundle.Approvals {
		record, _ := canon.Parse([]byte(approval.Record)) // one that cannot be read fails as a record
		if approval.Signature == "" && approval.KeyID == "" && text(record, "status") == cancelled {
			continue
		}
		key, known := registry[approval.KeyID]
		signature, err := decodeBase64(approval.Signature)
		if !known || err != nil || !verifyEd25519(key.public, []byte(approval.Record), signature) {
			return Fail, fmt.Sprintf("approval %d is not signed with a key of the registry that it names", i+1)
		}
		signed++
		if key.revoked {
			revoked++
		}
	}
	switch {
	case len(v.trust.logs) == 0:
		return NotChecked, noLogKey + ": nothing vouches for the registry of signing keys"
	case signed == 0:
		return NotChecked, "no decision was made"
	case v.trust.revokedAt != nil: // no witness has seen the registry
		return NotChecked, "the log key was revoked: nothing shows that it signed the registry of signing keys before"
	case revoked > 0:
		return Pass, fmt.Sprintf("%d signed, %d of them with a key that was revoked since", signed, revoked)
	}
	return Pass, fmt.Sprintf("%d signed", signed)
}

func (v *verification) inclusion() (Status, string) {
	if v.proof == nil || v.checkpoint == nil {
		return Fail, "the proof or its checkpoint cannot be read"
	}
	leaf := tlog.RecordHash([]byte(v.bundle.Receipt))
	if v.proof.Index >= v.checkpoint.size || tlog.CheckRecord(v.proof.Hashes, v.checkpoint.size, v.checkpoint.root, v.proof.Index, leaf) != nil {
		return Fail, "the proof does not lead from the receipt to the checkpoint's root"
	}
	return Pass, fmt.Sprintf("entry %d of %d", v.proof.Index+1, v.checkpoint.size)
}

func (v *verification) checkpointSignature() (Status, string) {
	if len(v.trust.logs) == 0 {
		return NotChecked, noLogKey
	}
	if v.checkpoint == nil {
		return Fail, "the checkpoint cannot be read"
	}
	key := v.signer(v.proof.Checkpoint, v.checkpoint.origin)
	if key == nil {
		return Fail, "the checkpoint is not signed with a log key that was given"
	}
	if at := v.trust.revokedAt; at != nil {
		before := 0
		for _, seen := range v.cosigned() {
			if seen.At.Before(*at) {
				before++
			}
		}
		switch {
		case before >= max(v.trust.quorum, 1):
		case v.anchoredBefore(*at):
			return Pass, key.Name() + ", revoked after the receipt was anchored"
		default:
			return Fail, fmt.Sprintf("the log key was revoked, and %d witnesses saw the checkpoint before", before)
		}
	}
	return Pass, key.Name()
}

// anchoredBefore reports whether the receipt itself was anchored before a moment.
func (v *verification) anchoredBefore(moment time.Time) bool {
	for _, anchor := range v.bundle.Anchors {
		if anchor.Subject != SubjectReceipt {
			continue
		}
		if judged := v.judge(anchor, v.verdict.ReceiptHash); judged.Status == Pass && judged.By.Before(moment) {
			return true
		}
	}
	return false
}

// signer is the given log key that signed a note, of those whose name is the origin.
func (v *verification) signer(signed, origin string) note.Verifier {
	for _, key := range v.trust.logs {
		if key.Name() != origin {
			continue
		}
		if _, err := note.Open([]byte(signed), note.VerifierList(key)); err == nil {
			return key
		}
	}
	return nil
}

// maxTime is the end of the year 9999, in seconds. The time of a cosignature has 64 bits, and
// what is later overflows: it could pass for a time long ago.
const maxTime = 253402300799

// cosigned lists the given witnesses that cosigned the checkpoint.
func (v *verification) cosigned() []Cosigning {
	if v.checkpoint == nil {
		return nil
	}
	var found []Cosigning
	for _, witness := range v.trust.witnesses {
		opened, err := note.Open([]byte(v.proof.Checkpoint), note.VerifierList(witness))
		if err != nil {
			continue
		}
		if at, err := cosignature.CoSigV1Timestamp(opened.Sigs[0]); err == nil && 0 <= at.Unix() && at.Unix() <= maxTime {
			found = append(found, Cosigning{Name: witness.Name(), At: at.UTC()})
		}
	}
	return found
}

func (v *verification) witnesses() (Status, string) {
	if len(v.trust.witnesses) == 0 {
		return NotChecked, "no witness was given"
	}
	found := v.cosigned()
	v.verdict.Witnessed = append(v.verdict.Witnessed, found...)
	detail := fmt.Sprintf("seen by %d of %d", len(found), len(v.trust.witnesses))
	if len(found) < max(v.trust.quorum, 1) {
		return Fail, fmt.Sprintf("%s, %d wanted", detail, max(v.trust.quorum, 1))
	}
	return Pass, detail
}

func (v *verification) anchors() (Status, string) {
	if len(v.bundle.Anchors) == 0 {
		return NotChecked, "there are none"
	}
	unjudged, subjects := "", v.subjects()
	for _, anchor := range v.bundle.Anchors {
		judged := v.judge(anchor, subjects[anchor.Subject])
		switch judged.Status {
		case Fail:
			return Fail, fmt.Sprintf("the %s anchor of %s: %s", anchor.Method, anchor.Subject, judged.Detail)
		case NotChecked:
			unjudged = judged.Detail
		}
	}
	if unjudged != "" {
		return NotChecked, unjudged
	}
	return Pass, fmt.Sprintf("%d anchors", len(v.bundle.Anchors))
}

// judge judges an anchor of what has a digest; "" if the bundle has no such thing.
func (v *verification) judge(anchor Anchor, subject string) Judgement {
	proof, err := decodeBase64(anchor.Proof)
	digest, ok := parseDigest(anchor.Digest)
	switch {
	case !ok || subject != anchor.Digest:
		return Judgement{Status: Fail, Detail: "it is about something else"}
	case err != nil:
		return Judgement{Status: Fail, Detail: "its proof is not base64"}
	case v.trust.anchors == nil:
		return Judgement{Status: NotChecked, Detail: "this verifier has no roots for " + anchor.Method}
	}
	return v.trust.anchors(anchor.Method, digest, proof)
}

// subjects are the digests of what an anchor can be about, by its name: the receipt, and the
// approvals that it names, included or not.
func (v *verification) subjects() map[string]string {
	digests := map[string]string{SubjectReceipt: v.verdict.ReceiptHash}
	listed, _ := v.attested()
	for _, item := range listed {
		id, ok := textMember(item, "approval_id")
		if _, known := digests[id]; ok && !known {
			digests[id] = text(item, "approval_hash")
		}
	}
	return digests
}

// parseDigest reads what formatHash writes, and nothing else.
func parseDigest(text string) (digest [32]byte, ok bool) {
	decoded, err := hex.DecodeString(strings.TrimPrefix(text, "sha256:"))
	if err != nil || len(decoded) != len(digest) || "sha256:"+hex.EncodeToString(decoded) != text {
		return digest, false
	}
	return [32]byte(decoded), true
}

func (v *verification) receiptSignature() (Status, string) {
	return NotChecked, "an HMAC: only the service that made it can check it"
}

func text(v canon.Value, name string) string {
	found, _ := textMember(v, name)
	return found
}

// textMember is a member that is a string. An empty one is not a missing one.
func textMember(v canon.Value, name string) (found string, ok bool) {
	member, _ := v.Get(name)
	return member.Str(), member.Kind() == canon.String
}

// sameText reports whether two objects have the same string as a member.
func sameText(a, b canon.Value, name string) bool {
	ours, isText := textMember(a, name)
	theirs, areText := textMember(b, name)
	return isText && areText && ours == theirs
}

func number(v canon.Value, name string) (int64, bool) {
	member, _ := v.Get(name)
	if member.Kind() != canon.Number {
		return 0, false
	}
	return member.Int()
}

func hexHash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func formatHash(data []byte) string { return "sha256:" + hexHash(string(data)) }
