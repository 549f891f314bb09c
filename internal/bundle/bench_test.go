package bundle

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"countersign/internal/canon"
)

// manyEvents is a bundle whose chain has so many events, with payloads of some 350 bytes.
func (f *logFixture) manyEvents(events int64) *Bundle {
	const chain = "00000001-0000-4000-8000-000000000000"
	b := &Bundle{Full: true, GeneratedAt: testTime, SigningKeys: f.sign(RegistryText(f.origin, testTime, nil))}
	digest := sha256.Sum256(nil)
	for sequence := int64(1); sequence <= events; sequence++ {
		payload := fmt.Sprintf(`{"amount_usd":%d,"note":%q}`, sequence, strings.Repeat("größer ", 40))
		body := object(func(w *canon.ObjectWriter) {
			w.String("action_name", "pay")
			w.String("action_type", "tool_call")
			w.String("chain_id", chain)
			w.String("decision_reason", strings.Repeat("x", 200))
			w.String("payload_sha256", hexHash(payload))
			w.Null("redactions_sha256")
			w.Int("sequence", sequence)
		})
		b.Entries = append(b.Entries, Entry{Body: body, Payload: &payload})
		digest = sha256.Sum256(append(digest[:], body...))
	}
	b.Receipt = object(func(w *canon.ObjectWriter) {
		w.Raw("approvals", []byte(`[]`))
		w.String("chain_id", chain)
		w.String("events_digest", "sha256:"+hex.EncodeToString(digest[:]))
		w.String("format", receiptFormat2)
		w.String("receipt_number", "CSN-2026-00001")
		w.Int("total_actions", events)
	})
	b.ReceiptHash = formatHash([]byte(b.Receipt))
	f.receipts, f.bundles = append(f.receipts, b.Receipt), append(f.bundles, b)
	f.prove(len(f.bundles) - 1)
	return b
}

// BenchmarkVerify1000Events measures how long a bundle of 1,000 events takes to verify.
func BenchmarkVerify1000Events(b *testing.B) {
	const events = 1000
	f := newLogFixture(b, "log", "log", 0)
	data := f.manyEvents(events).Encode()
	trust := mustTrust(b, Keys{Log: []string{f.logKey()}, Witnesses: f.witnessKeys(), Quorum: 2})
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		verdict, err := trust.Verify(data)
		if err != nil || verdict.Status != Verified {
			b.Fatalf("%+v, %v", verdict, err)
		}
	}
}
