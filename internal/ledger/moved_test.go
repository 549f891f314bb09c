package ledger

import (
	"bytes"
	"testing"
)

// The authenticator covers the bytes around the signature. Moving the signature into the caller's
// metadata would leave these bytes unchanged and make a label appear signed that never was.
func TestInspectFindsASignatureMovedIntoTheMetadata(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	p := b.open(`{"a":1,"organization":"acme","policy_version":"x","previous_receipt_hash":null,` +
		`"receipt_id":"` + sampleID + `","receipt_number":"CSN-2031-00777","z":1}`)
	p.record("a", "one", `{}`, "")
	b.seal(p, &Completion{})
	stored := b.receipts[0]
	at, end := signatureSpan(stored.Body)
	member := bytes.Clone(stored.Body[at:end])
	without := append(bytes.Clone(stored.Body[:at]), stored.Body[end:]...)
	place := bytes.Index(without, []byte(`,"z":1}`))
	if at < 0 || place < 0 {
		t.Fatal("the receipt is not as the test expects it")
	}
	moved := append(append(bytes.Clone(without[:place]), member...), without[place:]...)
	forged := *stored
	forged.Body, forged.Sequence = moved, 777
	if in := Inspect(&forged, b.slug, b.keys); in.Fault != CheckSignature || b.bytesPass(moved) {
		t.Errorf("fault %q, want %q", in.Fault, CheckSignature)
	}
}
