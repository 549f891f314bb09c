package bundle

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/tlog"

	"countersign/internal/canon"
)

// logFixture is a small log with its keys, all derived from a label: the vectors must
// not change from run to run.
type logFixture struct {
	t         testing.TB
	origin    string
	log       ed25519.PrivateKey
	witnesses []ed25519.PrivateKey
	approver  ed25519.PrivateKey
	receipts  []string
	bundles   []*Bundle
}

const (
	approverID = "8a1b7c1e-0000-4000-8000-000000000001"
	retiredID  = "8a1b7c1e-0000-4000-8000-000000000002"
	testTime   = "2026-11-16T09:30:00.000Z"
	cosignedAt = 1794821400 // 2026-11-16T09:30:00Z, in seconds
)

func derivedKey(label string) ed25519.PrivateKey {
	seed := sha256.Sum256([]byte("countersign test key " + label))
	return ed25519.NewKeyFromSeed(seed[:])
}

// newLogFixture makes a log of that name. Whoever has other keys is a forger of it.
func newLogFixture(t testing.TB, name, keys string, receipts int) *logFixture {
	f := &logFixture{t: t, origin: "countersign.example/" + name, log: derivedKey(keys), approver: derivedKey(keys + " approver")}
	for i := range 3 {
		f.witnesses = append(f.witnesses, derivedKey(fmt.Sprint(keys, " witness ", i+1)))
	}
	for i := range receipts {
		f.seal(i)
	}
	for i := range f.bundles {
		f.prove(i)
	}
	return f
}

const (
	algEd25519   = 1
	algCosignV1  = 4
	keyHashBytes = 4
)

func keyHash(name string, algorithm byte, public ed25519.PublicKey) []byte {
	sum := sha256.Sum256(append([]byte(name+"\n"+string(algorithm)), public...))
	return sum[:keyHashBytes]
}

func vkey(name string, algorithm byte, key ed25519.PrivateKey) string {
	return vkeyOf(name, algorithm, key.Public().(ed25519.PublicKey))
}

func vkeyOf(name string, algorithm byte, public ed25519.PublicKey) string {
	return fmt.Sprintf("%s+%x+%s", name, keyHash(name, algorithm, public), base64.StdEncoding.EncodeToString(append([]byte{algorithm}, public...)))
}

func (f *logFixture) logKey() string { return vkey(f.origin, algEd25519, f.log) }

func witnessName(i int) string { return fmt.Sprintf("witness%d.example", i+1) }

func (f *logFixture) witnessKeys() (keys []string) {
	for i, key := range f.witnesses {
		keys = append(keys, vkey(witnessName(i), algCosignV1, key))
	}
	return keys
}

func signatureLine(name string, id, signature []byte) string {
	return "— " + name + " " + encode(append(id, signature...)) + "\n"
}

func encode(data []byte) string { return base64.StdEncoding.EncodeToString(data) }

func hashOf(data []byte) []byte {
	sum := sha256.Sum256(data)
	return sum[:]
}

// sign makes a note of a text, signed by the log.
func (f *logFixture) sign(text string) string {
	id := keyHash(f.origin, algEd25519, f.log.Public().(ed25519.PublicKey))
	return text + "\n" + signatureLine(f.origin, id, ed25519.Sign(f.log, []byte(text)))
}

// cosign is a witness's line below a checkpoint.
func (f *logFixture) cosign(text string, witness int) string {
	return f.cosignAt(text, witness, cosignedAt)
}

// cosignAt is a witness's line with another time.
func (f *logFixture) cosignAt(text string, witness int, at uint64) string {
	key, name := f.witnesses[witness], witnessName(witness)
	signature := ed25519.Sign(key, fmt.Appendf(nil, "cosignature/v1\ntime %d\n%s", at, text))
	return signatureLine(name, keyHash(name, algCosignV1, key.Public().(ed25519.PublicKey)), append(binary.BigEndian.AppendUint64(nil, at), signature...))
}

func object(write func(w *canon.ObjectWriter)) string {
	w := canon.BeginObject(nil)
	write(&w)
	return string(w.End())
}

// seal makes receipt n with two events, an entry about the first, and an approval.
func (f *logFixture) seal(n int) {
	id := func(kind int) string { return fmt.Sprintf("%08x-%04x-4000-8000-%012x", kind, n, len(f.origin)) }
	chain := id(1)
	digest := sha256.Sum256(nil)
	b := &Bundle{Full: true, GeneratedAt: testTime}
	enter := func(body string, payload, redactions *string) {
		b.Entries = append(b.Entries, Entry{Body: body, Payload: payload, Redactions: redactions})
		digest = sha256.Sum256(append(digest[:], body...))
	}
	event := func(sequence int64, kind, name, payload, redactions string) {
		body := object(func(w *canon.ObjectWriter) {
			w.String("action_name", name)
			w.String("action_type", kind)
			w.String("chain_id", chain)
			w.String("payload_sha256", hexHash(payload))
			if redactions != "" {
				w.String("redactions_sha256", hexHash(redactions))
			} else {
				w.Null("redactions_sha256")
			}
			w.Int("sequence", sequence)
		})
		var taken *string
		if redactions != "" {
			taken = &redactions
		}
		enter(body, &payload, taken)
	}
	event(1, "tool_call", "pay", fmt.Sprintf(`{"amount_usd":18450.75,"payee":"Größer & Söhne \"%d\""}`, n), `{"/card":"hmac-sha256:00"}`)
	record := object(func(w *canon.ObjectWriter) {
		w.String("approval_id", id(2))
		w.String("chain_id", chain)
		w.String("comment", "prüft: 日本語 \u2028 😀")
		w.String("status", "approved")
	})
	approvalHash := formatHash([]byte(record))
	enter(object(func(w *canon.ObjectWriter) {
		w.String("approval_hash", approvalHash)
		w.String("approval_id", id(2))
		w.String("kind", "approval")
		w.Int("position", 2)
		w.Int("sequence", 1)
	}), nil, nil)
	event(2, "gap", "dropped", `{"count":3}`, "")
	event(3, "tool_call", "notify", `{}`, "")

	previous := ""
	if n > 0 {
		previous = formatHash([]byte(f.receipts[n-1]))
	}
	b.Receipt = object(func(w *canon.ObjectWriter) {
		w.Raw("approvals", []byte(`[`+object(func(w *canon.ObjectWriter) {
			w.String("approval_hash", approvalHash)
			w.String("approval_id", id(2))
			w.String("status", "approved")
		})+`]`))
		w.String("chain_id", chain)
		w.String("events_digest", "sha256:"+hex.EncodeToString(digest[:]))
		w.String("format", receiptFormat2)
		w.String("generated_at", testTime)
		w.Raw("metadata", []byte(`{"customer":"Åse","ratio":1e-7}`))
		w.String("organization", "acme")
		w.StringOrNull("previous_receipt_hash", previous)
		w.String("receipt_id", id(3))
		w.String("receipt_number", fmt.Sprintf("CSN-2026-%05d", n+1))
		w.String("signature", "hmac-sha256:"+strings.Repeat("0", 64))
		w.String("summary", "1 agent took 2 actions.")
		w.Int("total_actions", 2)
	})
	b.ReceiptHash = formatHash([]byte(b.Receipt))
	b.Approvals = []Approval{{
		KeyID: approverID, Record: record, Signature: base64.StdEncoding.EncodeToString(ed25519.Sign(f.approver, []byte(record))),
	}}
	b.SigningKeys = f.sign(RegistryText(f.origin, testTime, []SigningKey{
		{CreatedAt: testTime, ID: approverID, Public: f.approver.Public().(ed25519.PublicKey), Status: "active"},
		{CreatedAt: testTime, EndedAt: testTime, ID: retiredID, Public: derivedKey("retired").Public().(ed25519.PublicKey), Status: "retired"},
	}))
	b.Anchors = []Anchor{
		{Digest: b.ReceiptHash, Method: "tsa", Proof: base64.StdEncoding.EncodeToString([]byte("a token")), Subject: SubjectReceipt},
		{Digest: approvalHash, Method: "opentimestamps", Proof: base64.StdEncoding.EncodeToString([]byte("a proof")), Subject: id(2)},
	}
	f.receipts, f.bundles = append(f.receipts, b.Receipt), append(f.bundles, b)
}

type hashes []tlog.Hash

func (h hashes) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	found := make([]tlog.Hash, 0, len(indexes))
	for _, index := range indexes {
		found = append(found, h[index])
	}
	return found, nil
}

// prove gives bundle n its proof in the whole log, cosigned by the first two witnesses.
func (f *logFixture) prove(n int) {
	var stored hashes
	for i, receipt := range f.receipts {
		grown, err := tlog.StoredHashes(int64(i), []byte(receipt), stored)
		if err != nil {
			f.t.Fatal(err)
		}
		stored = append(stored, grown...)
	}
	size := int64(len(f.receipts))
	root, err := tlog.TreeHash(size, stored)
	if err != nil {
		f.t.Fatal(err)
	}
	path, err := tlog.ProveRecord(size, int64(n), stored)
	if err != nil {
		f.t.Fatal(err)
	}
	text := fmt.Sprintf("%s\n%d\n%s\n", f.origin, size, root)
	proof := Proof{Index: int64(n), Hashes: path, Checkpoint: f.sign(text) + f.cosign(text, 0) + f.cosign(text, 1)}
	f.bundles[n].LogProof = proof.String()
}

// share is the bundle without what a share leaves out.
func share(b *Bundle) *Bundle {
	return &Bundle{
		GeneratedAt: b.GeneratedAt, Receipt: b.Receipt, ReceiptHash: b.ReceiptHash, LogProof: b.LogProof, Anchors: b.Anchors[:1],
	}
}

func mustTrust(t testing.TB, keys Keys) *Trust {
	t.Helper()
	trust, err := NewTrust(keys)
	if err != nil {
		t.Fatal(err)
	}
	return trust
}
