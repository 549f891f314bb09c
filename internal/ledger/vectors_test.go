package ledger

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"
	"github.com/gowebpki/jcs"
)

var update = flag.Bool("update", false, "write the test vectors anew")

type receiptVectors struct {
	Description     string          `json:"description"`
	MasterSecretHex string          `json:"master_secret_hex"`
	KeyID           string          `json:"key_id"`
	OrganizationID  string          `json:"organization_id"`
	Organization    string          `json:"organization"`
	ReceiptKeyHex   string          `json:"receipt_key_hex"`
	HeadKeyHex      string          `json:"head_key_hex"`
	Receipts        []receiptVector `json:"receipts"`
	Head            headVector      `json:"head"`
}

type receiptVector struct {
	ReceiptNumber       string  `json:"receipt_number"`
	Unsigned            string  `json:"unsigned"`
	Signature           string  `json:"signature"`
	Signed              string  `json:"signed"`
	Hash                string  `json:"hash"`
	PreviousReceiptHash *string `json:"previous_receipt_hash"`
}

type headVector struct {
	Canonical string `json:"canonical"`
	MACHex    string `json:"mac_hex"`
}

type eventVectors struct {
	Description  string        `json:"description"`
	ChainID      string        `json:"chain_id"`
	EmptyDigest  string        `json:"empty_digest_hex"`
	EventsDigest string        `json:"events_digest"`
	Entries      []entryVector `json:"entries"`
}

type entryVector struct {
	Kind          string `json:"kind"`
	Payload       string `json:"payload,omitempty"`
	PayloadSHA256 string `json:"payload_sha256,omitempty"`
	Canonical     string `json:"canonical"`
	DigestHex     string `json:"digest_hex"`
}

// vectorBook is a small ledger with what tends to differ between languages: texts outside of ASCII,
// numbers with exponents, quotes, a later outcome, a failed chain.
func vectorBook(t testing.TB) *book {
	b := newBook(t)
	first := b.open(`{"ticket":"T-1","ratio":1e-7,"count":10.0,"grüße":"\u2028 \"x\" <&>","\ud83d\ude00":[true,null]}`)
	first.record("Übersetzer", "translate", `{"text":"日本語","n":1}`, "step-1")
	first.record("reviewer", "approve", `{}`, "")
	first.report(t, 1, Unknown, "")
	first.record("Übersetzer", "translate", `{"amount":0.1,"n":2}`, "step-2")
	first.report(t, 1, Succeeded, "späte Antwort")
	b.seal(first, &Completion{})
	b.seal(b.open(""), &Completion{})
	last := b.open(`{}`)
	last.record("payer", "pay", `{"amount_usd":1200.5}`, "")
	b.seal(last, &Completion{Failed: true, Failure: &Failure{Type: "TimeoutError", Message: "gone"}})
	return b
}

// vectorBook2 is a ledger with what the second format added: the environment and the caller's id,
// gaps, calls without a price, shadow mode, and denials by people.
func vectorBook2(t testing.TB) *book {
	b := newBook(t)
	first := b.open(`{"ticket":"T-1"}`)
	first.chain.Environment, first.chain.ExternalID = "staging", " run\t\"7\" \u2028,\"format\":\"x\""
	first.record("Übersetzer", "translate", `{"text":"日本語"}`, "")
	first.gap("gap-1")
	first.gap("gap-2")
	call := &Action{AgentName: "reviewer", ActionType: "llm_call", ActionName: "complete", Payload: []byte(`{}`)}
	call.Facts = Facts{Categories: []string{CategoryLLM}, Model: "unknown", InputTokens: 3}
	first.act(call, Enforce)
	b.seal(first, &Completion{})
	second := b.open("")
	amount := MoneyOf(9000)
	pay := &Action{AgentName: "payer", ActionType: "tool_call", ActionName: "pay", Payload: []byte(`{"amount_usd":9000}`)}
	pay.Facts = Facts{Categories: []string{CategoryFinancial}, Amount: &amount}
	second.act(pay, Shadow)
	second.record("payer", "look", `{}`, "")
	b.seal(second, &Completion{Failed: true, Failure: &Failure{Type: "TimeoutError"}})
	third := b.open("")
	third.gap("gap-1")
	b.seal(third, &Completion{})
	return b
}

// frozenVectors reads a vector file of a format that is no longer made.
func frozenVectors(t *testing.T, name string) receiptVectors {
	t.Helper()
	body, err := os.ReadFile("../../testdata/vectors/" + name)
	if err != nil {
		t.Fatal(err)
	}
	var v receiptVectors
	if err := json.Unmarshal(body, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func makeReceiptVectors(b *book) receiptVectors {
	v := receiptVectors{
		Description: "A ledger of three receipts of the format countersign-receipt-v2. signature = hmac-sha256: + hex(HMAC-SHA256(receipt_key, unsigned)), hash = sha256: + hex(SHA-256(signed)), " +
			"and each receipt carries the hash of the one before. The keys are derived as in keys.json, for the purposes receipt and head; mac_hex is the HMAC-SHA256 of the head's canonical bytes.",
		MasterSecretHex: hex.EncodeToString(masterSecret("key-1")), KeyID: "key-1", OrganizationID: b.org.String(), Organization: b.slug,
		ReceiptKeyHex: hex.EncodeToString(deriveTestKey(masterSecret("key-1"), b.org.UUID, PurposeReceipt)),
		HeadKeyHex:    hex.EncodeToString(deriveTestKey(masterSecret("key-1"), b.org.UUID, PurposeHead)),
		Head:          headVector{Canonical: string(b.head.encode()), MACHex: hex.EncodeToString(b.head.MAC)},
	}
	for i, p := range b.chains {
		vector := receiptVector{
			ReceiptNumber: p.receipt.Number, Signature: p.receipt.Signature,
			Signed: string(b.receipts[i].Body), Hash: FormatHash(b.receipts[i].Hash()),
		}
		if p.receipt.PreviousHash != nil {
			previous := FormatHash(*p.receipt.PreviousHash)
			vector.PreviousReceiptHash = &previous
		}
		unsigned := *p.receipt
		unsigned.Signature = ""
		vector.Unsigned = string(unsigned.encode())
		v.Receipts = append(v.Receipts, vector)
	}
	return v
}

func makeEventVectors(b *book) eventVectors {
	p := b.chains[0]
	digest := sha256.Sum256(nil)
	v := eventVectors{
		Description: "The entries of the first receipt's chain in receipts.json, in order. digest_hex is the running digest after each: " +
			"SHA-256 of the digest before it (32 bytes) and the entry's canonical bytes. An event holds its payload by hash alone; an outcome that was reported later is an entry of its own.",
		ChainID: p.chain.ID.String(), EmptyDigest: hex.EncodeToString(digest[:]), EventsDigest: FormatHash(p.state.Digest),
	}
	for _, entry := range p.entries {
		var vector entryVector
		switch e := entry.(type) {
		case *StoredEvent:
			vector = entryVector{Kind: "event", Payload: string(e.Payload), PayloadSHA256: PayloadHash(e.Payload), Canonical: string(e.Body)}
		case *Addendum:
			vector = entryVector{Kind: "outcome", Canonical: string(e.Body)}
		}
		digest = NextDigest(digest, []byte(vector.Canonical))
		vector.DigestHex = hex.EncodeToString(digest[:])
		v.Entries = append(v.Entries, vector)
	}
	return v
}

// holdVectors compares a vector file with what the code produces, or writes it.
func holdVectors[T any](t *testing.T, name string, made T) T {
	t.Helper()
	path := "../../testdata/vectors/" + name
	if *update {
		body, err := json.MarshalIndent(made, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, append(inASCII(body), '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	body, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var kept T
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&kept); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(kept, made); diff != "" {
		t.Fatalf("%s is not what the code makes (-file +code):\n%s", name, diff)
	}
	return kept
}

func inASCII(body []byte) []byte {
	var out strings.Builder
	for _, r := range string(body) {
		if r < 0x7f {
			out.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&out, `\u%04x`, unit)
		}
	}
	return []byte(out.String())
}

// The published receipts of both formats are correct. Nothing of this package judges them: RFC 8785
// is another implementation, and HKDF and the rest are spelled out.
func TestReceiptVectors(t *testing.T) {
	t.Parallel()
	t.Run("first format", func(t *testing.T) {
		t.Parallel()
		checkReceiptVectors(t, frozenVectors(t, "receipts.json"))
	})
	t.Run("second format", func(t *testing.T) {
		t.Parallel()
		checkReceiptVectors(t, holdVectors(t, "receipts-v2.json", makeReceiptVectors(vectorBook2(t))))
	})
}

func checkReceiptVectors(t *testing.T, v receiptVectors) {
	t.Helper()
	receiptKey := expandKey(t, v.MasterSecretHex, v.OrganizationID, "receipt")
	if got := hex.EncodeToString(receiptKey); got != v.ReceiptKeyHex {
		t.Fatalf("receipt key %s, want %s", got, v.ReceiptKeyHex)
	}
	var previous any
	for _, r := range v.Receipts {
		var fields map[string]any
		decoder := json.NewDecoder(strings.NewReader(r.Signed))
		decoder.UseNumber()
		if err := decoder.Decode(&fields); err != nil {
			t.Fatal(err)
		}
		checkEqual(t, r.ReceiptNumber+" signed", r.Signed, canonicalElsewhere(t, fields))
		checkEqual(t, r.ReceiptNumber+" link", fmt.Sprint(previous), fmt.Sprint(fields["previous_receipt_hash"]))
		checkEqual(t, r.ReceiptNumber+" number", r.ReceiptNumber, fmt.Sprint(fields["receipt_number"]))
		checkEqual(t, r.ReceiptNumber+" signature member", r.Signature, fmt.Sprint(fields["signature"]))
		delete(fields, "signature")
		checkEqual(t, r.ReceiptNumber+" unsigned", r.Unsigned, canonicalElsewhere(t, fields))
		checkEqual(t, r.ReceiptNumber+" signature", r.Signature, "hmac-sha256:"+macHex(receiptKey, r.Unsigned))
		sum := sha256.Sum256([]byte(r.Signed))
		checkEqual(t, r.ReceiptNumber+" hash", r.Hash, "sha256:"+hex.EncodeToString(sum[:]))
		previous = r.Hash
	}
	headKey := expandKey(t, v.MasterSecretHex, v.OrganizationID, "head")
	checkEqual(t, "head key", v.HeadKeyHex, hex.EncodeToString(headKey))
	checkEqual(t, "head", v.Head.MACHex, macHex(headKey, v.Head.Canonical))
	if !strings.Contains(v.Head.Canonical, v.Receipts[len(v.Receipts)-1].Hash) {
		t.Error("the head does not name the last receipt")
	}
}

// The published event vectors are correct: canonical entries, payload hashes and the digest that
// the receipt attests.
func TestEventVectors(t *testing.T) {
	t.Parallel()
	b := vectorBook(t)
	v := holdVectors(t, "events.json", makeEventVectors(b))
	digest := sha256.Sum256(nil)
	checkEqual(t, "empty digest", v.EmptyDigest, hex.EncodeToString(digest[:]))
	for i, entry := range v.Entries {
		canonical, err := jcs.Transform([]byte(entry.Canonical))
		if err != nil {
			t.Fatal(err)
		}
		checkEqual(t, "canonical entry", entry.Canonical, string(canonical))
		if entry.Kind == "event" {
			sum := sha256.Sum256([]byte(entry.Payload))
			checkEqual(t, "payload hash", entry.PayloadSHA256, hex.EncodeToString(sum[:]))
			if !strings.Contains(entry.Canonical, `"payload_sha256":"`+entry.PayloadSHA256+`"`) {
				t.Errorf("entry %d does not carry its payload's hash", i+1)
			}
		}
		digest = sha256.Sum256(append(digest[:], entry.Canonical...))
		checkEqual(t, fmt.Sprintf("digest %d", i+1), entry.DigestHex, hex.EncodeToString(digest[:]))
	}
	checkEqual(t, "events digest", v.EventsDigest, "sha256:"+hex.EncodeToString(digest[:]))
	for name, signed := range map[string]string{"first": frozenVectors(t, "receipts.json").Receipts[0].Signed, "second": string(b.receipts[0].Body)} {
		if !strings.Contains(signed, `"events_digest":"`+v.EventsDigest+`"`) {
			t.Errorf("the receipt of the %s format attests another digest", name)
		}
	}
}

func checkEqual(t *testing.T, what, want, got string) {
	t.Helper()
	if want != got {
		t.Errorf("%s is\n%s, want\n%s", what, got, want)
	}
}

func canonicalElsewhere(t *testing.T, fields map[string]any) string {
	t.Helper()
	body, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	out, err := jcs.Transform(body)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func macHex(key []byte, message string) string {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(message))
	return hex.EncodeToString(h.Sum(nil))
}

// expandKey is RFC 5869 in two lines: extract with the salt, expand once.
func expandKey(t *testing.T, masterHex, org, purpose string) []byte {
	t.Helper()
	master := must(hex.DecodeString(masterHex))
	id := must(hex.DecodeString(strings.ReplaceAll(org, "-", "")))
	extract := hmac.New(sha256.New, []byte("countersign/keyring/v1"))
	extract.Write(master)
	expand := hmac.New(sha256.New, extract.Sum(nil))
	expand.Write([]byte{0, 0, 0, byte(len(purpose))})
	expand.Write([]byte(purpose))
	expand.Write(id)
	expand.Write([]byte{1})
	return expand.Sum(nil)
}
