package ledger

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// lookalikes returns metadata that imitate the members that a verification reads.
func lookalikes() []string {
	signature := `"signature":"hmac-sha256:` + strings.Repeat("ab", 32) + `"`
	id := `"00000000-0000-4000-8000-000000000000"`
	return []string{
		`{"a":1,` + signature + `,"organization":"x","key_id":"y","chain_id":"z","total_actions":1}`,
		`{"a":{"b":1,` + signature + `},"z":[{"a":1,` + signature + `}]}`,
		`{"a":1,"organization":"other","policy_version":"v9"}`,
		`{"a":1,"receipt_number":"CSN-1999-00009","generated_at":"1999-01-01T00:00:00.000Z","events_digest":"sha256:00"}`,
		`{"a":1,"previous_receipt_hash":null,"receipt_id":` + id + `,"receipt_number":"CSN-2026-00001"}`,
		`{"a":"\",\"signature\":\"hmac-sha256:` + strings.Repeat("0", 64) + `\"","total_actions":9}`,
		`{"text":",\"organization\":\"acme\",\"policy_version\":\""}`,
		`{}`,
	}
}

// suspicious returns a book whose names, agents and metadata imitate a receipt's own members.
func suspicious(t testing.TB) *book {
	b := newBook(t)
	for _, metadata := range lookalikes() {
		p := b.open(metadata)
		p.chain.Name = `","signature":"hmac-sha256:` + strings.Repeat("0", 64) + `","total_actions":7}`
		p.record(`"key_id":"key-9"`, "key_id", `{"a":1}`, "")
		p.record("chain_id", `,"organization":"x","policy_version":"`, `{"a":2}`, "k")
		b.seal(p, &Completion{Failed: true, Failure: &Failure{Type: `"events_digest":"sha256:`}})
	}
	return b
}

// Names and metadata that imitate a receipt's own fields do not change how the
// receipt is read.
func TestInspectIsNotFooled(t *testing.T) {
	t.Parallel()
	b := suspicious(t)
	for i, stored := range b.receipts {
		in := Inspect(stored, b.slug, b.keys)
		if in.Fault != "" {
			t.Fatalf("receipt %d fails %s, and nobody touched it:\n%s", i+1, in.Fault, stored.Body)
		}
		receipt := b.chains[i].receipt
		if in.Actions != 2 || in.EventsDigest != receipt.EventsDigest || in.Hash != stored.Hash() {
			t.Errorf("receipt %d: read %d actions and digest %x", i+1, in.Actions, in.EventsDigest)
		}
		check := CheckReceipt(stored, b.slug, b.keys)
		want := ReceiptCheck{Valid: true, Sound: true, Number: receipt.Number, Chain: receipt.Chain, GeneratedAt: receipt.GeneratedAt.String()}
		if check != want {
			t.Errorf("receipt %d: the public check says %+v, want %+v", i+1, check, want)
		}
	}
}

// bytesPass reports whether a scan of only the signed bytes finds nothing.
func (b *book) bytesPass(body []byte) bool {
	return InspectBytes(body, b.org, b.keys, &StoredReceipt{}).Fault == ""
}

// A receipt's bytes alone give its place in the ledger, and they verify for no other
// organization.
func TestInspectBytesReadsTheReceiptsOwnPlace(t *testing.T) {
	t.Parallel()
	for _, b := range []*book{suspicious(t), filled(t, 3)} {
		var read StoredReceipt // reused, as in a scan
		walk := NewWalk()
		for i, stored := range b.receipts {
			in := InspectBytes(stored.Body, b.org, b.keys, &read)
			if in.Fault != "" || in.Hash != stored.Hash() || read.Sequence != stored.Sequence || !bytes.Equal(read.PreviousHash, stored.PreviousHash) {
				t.Errorf("receipt %d is read as %d after %x, with fault %q", i+1, read.Sequence, read.PreviousHash, in.Fault)
			}
			if found := walk.Step(&read, &in); found != nil {
				t.Error(found)
			}
		}
		if found := walk.Finish(b.head, b.keys); found != nil {
			t.Error(found)
		}
		if in := InspectBytes(b.receipts[0].Body, OrgID{}, b.keys, &read); in.Fault != CheckSignature {
			t.Errorf("another organization's receipt: fault %q, want %q", in.Fault, CheckSignature)
		}
	}
}

// Flipping any byte in several ways is detected, so that none passes by luck: 0x20 turns a
// hexadecimal letter into its capital.
func TestInspectFindsEveryFlippedByte(t *testing.T) {
	t.Parallel()
	b := suspicious(t)
	for i, stored := range b.receipts[:4] {
		copied := *stored
		copied.Body = bytes.Clone(stored.Body)
		for at := range copied.Body {
			for _, mask := range []byte{0x01, 0x20, 0xff} {
				copied.Body[at] ^= mask
				if in := Inspect(&copied, b.slug, b.keys); in.Fault == "" || b.bytesPass(copied.Body) {
					t.Fatalf("receipt %d: byte %d changed to %q, and nothing is found", i+1, at, copied.Body[at])
				}
				copied.Body[at] ^= mask
			}
		}
	}
}

// A receipt with any byte removed or added does not verify.
func TestInspectFindsCutAndGrownBytes(t *testing.T) {
	t.Parallel()
	b := suspicious(t)
	stored := b.receipts[0]
	for at := range stored.Body {
		for _, body := range [][]byte{
			stored.Body[:at],
			append(bytes.Clone(stored.Body[:at]), stored.Body[at+1:]...),
			append(append(bytes.Clone(stored.Body[:at]), ' '), stored.Body[at:]...),
		} {
			copied := *stored
			copied.Body = body
			if in := Inspect(&copied, b.slug, b.keys); in.Fault == "" || b.bytesPass(body) {
				t.Fatalf("bytes changed at %d, and nothing is found", at)
			}
		}
	}
}

// The signature covers the bytes before and after it, joined, so its place must be checked as well.
func TestInspectFindsAMovedSignature(t *testing.T) {
	t.Parallel()
	b := suspicious(t)
	for i, stored := range b.receipts[:3] {
		from, to := signatureSpan(stored.Body)
		member := stored.Body[from:to]
		rest := append(bytes.Clone(stored.Body[:from]), stored.Body[to:]...)
		for at := range len(rest) + 1 {
			if at == from {
				continue
			}
			copied := *stored
			copied.Body = append(append(bytes.Clone(rest[:at]), member...), rest[at:]...)
			if bytes.Equal(copied.Body, stored.Body) {
				continue
			}
			if in := Inspect(&copied, b.slug, b.keys); in.Fault == "" || b.bytesPass(copied.Body) {
				t.Fatalf("receipt %d: the signature moved from %d to %d, and nothing is found", i+1, from, at)
			}
		}
	}
}

// A receipt does not verify when a database column contradicts its signed bytes, or
// when its key is missing.
func TestInspectHoldsColumnsAgainstTheBytes(t *testing.T) {
	t.Parallel()
	b := filled(t, 3)
	other := OrgID{NewRandomID([16]byte{9})}
	cases := map[string]struct {
		change func(*StoredReceipt)
		slug   string
		keys   Keys
		want   Check
	}{
		"id":             {func(r *StoredReceipt) { r.ID = ReceiptID{NewRandomID([16]byte{8})} }, "acme", keyRing, CheckColumns},
		"chain":          {func(r *StoredReceipt) { r.Chain = ChainID{NewRandomID([16]byte{8})} }, "acme", keyRing, CheckColumns},
		"sequence":       {func(r *StoredReceipt) { r.Sequence++ }, "acme", keyRing, CheckColumns},
		"previous":       {func(r *StoredReceipt) { r.PreviousHash = make([]byte, 32) }, "acme", keyRing, CheckColumns},
		"no previous":    {func(r *StoredReceipt) { r.PreviousHash = nil }, "acme", keyRing, CheckColumns},
		"short previous": {func(r *StoredReceipt) { r.PreviousHash = r.PreviousHash[:31] }, "acme", keyRing, CheckColumns},
		"slug":           {func(*StoredReceipt) {}, "acm", keyRing, CheckColumns},
		"longer slug":    {func(*StoredReceipt) {}, "acmes", keyRing, CheckColumns},
		"organization":   {func(r *StoredReceipt) { r.Org = other }, "acme", keyRing, CheckSignature},
		"lost key":       {func(*StoredReceipt) {}, "acme", testKeys{ids: []string{"key-2"}}, CheckSignature},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			changed := *b.receipts[1]
			c.change(&changed)
			if in := Inspect(&changed, c.slug, c.keys); in.Fault != c.want {
				t.Errorf("fault %q, want %q", in.Fault, c.want)
			}
			if check := CheckReceipt(&changed, c.slug, c.keys); check.Valid {
				t.Error("the public check says valid")
			}
		})
	}
}

// Receipts signed with an older key verify after a rotation.
func TestRotatedKeysStillVerify(t *testing.T) {
	t.Parallel()
	b := filled(t, 1)
	b.keys = testKeys{ids: []string{"key-1", "key-2"}}
	p := b.open("")
	b.seal(p, &Completion{})
	if p.receipt.KeyID != "key-2" || b.head.KeyID != "key-2" {
		t.Errorf("signed under %s and %s, want key-2", p.receipt.KeyID, b.head.KeyID)
	}
	for i, stored := range b.receipts {
		if in := Inspect(stored, b.slug, b.keys); in.Fault != "" {
			t.Errorf("receipt %d fails %s after a rotation", i+1, in.Fault)
		}
	}
}

// Whatever names and metadata the caller chose, its receipt verifies.
func TestInspectAcceptsWhatWasSealed(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		chain, state := anyChain().Draw(t, "chain"), NewChainState(firstMoment, "v1")
		action := anyEvent().Draw(t, "event").Action
		recorded := state.Record(plainly(chain, &action, anyTime().Draw(t, "now"), [10]byte{}))
		summary := &Summary{}
		summary.Count(recorded.Event)
		var approvals []*Approval
		if recorded.Approval != nil {
			recorded.Approval.Cancel(state.LastAt)
			state.Settle(recorded.Approval, state.LastAt)
			approvals = append(approvals, recorded.Approval)
		}
		head := NewHead(chain.Org, keyRing)
		head.Count = rapid.Int64Range(0, 1<<40).Draw(t, "count")
		head.authenticate(keyRing)
		_, stored, err := Seal(&Sealing{
			Keys: keyRing, Head: must(head.Open(keyRing)), Slug: "acme", Chain: chain, State: state, Summary: summary, Approvals: approvals,
			Completion: &Completion{}, ID: ReceiptID{anyUUID().Draw(t, "id")}, Now: firstMoment,
		})
		if err != nil {
			t.Fatal(err)
		}
		if in := Inspect(stored.StoredReceipt, "acme", keyRing); in.Fault != "" || in.EventsDigest != state.Digest || in.Actions != 1 {
			t.Fatalf("fails %q:\n%s", in.Fault, stored.Body)
		}
	})
}

// The public check of an altered receipt repeats nothing from it.
func TestCheckReceiptBoundsItsClaims(t *testing.T) {
	t.Parallel()
	stored := &StoredReceipt{Body: []byte(`{"a":1,"generated_at":"` + strings.Repeat("9", 41) + `","receipt_number":"<script>é"}`)}
	check := CheckReceipt(stored, "acme", keyRing)
	if check.Valid || check.Number != "" || check.GeneratedAt != "" {
		t.Errorf("an altered record gets through: %+v", check)
	}
}

// No bytes verify as a receipt except those that were signed.
func FuzzInspect(f *testing.F) {
	b := suspicious(f)
	for _, stored := range b.receipts {
		f.Add(stored.Body)
	}
	f.Add([]byte{})
	f.Add([]byte(`,"signature":"hmac-sha256:`))
	f.Add([]byte(`"key_id":"`))
	genuine := map[string]bool{}
	for _, stored := range b.receipts {
		genuine[string(stored.Body)] = true
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, stored := range b.receipts {
			copied := *stored
			copied.Body = body
			in := Inspect(&copied, b.slug, b.keys)
			if (in.Fault == "" || b.bytesPass(body)) && !genuine[string(body)] {
				t.Fatalf("a receipt that nobody signed passes: %s", body)
			}
			CheckReceipt(&copied, b.slug, b.keys)
			walk := NewWalk()
			walk.Step(&copied, &in)
		}
	})
}

// A receipt is valid JSON whatever names and metadata it holds.
func TestReceiptsAreJSON(t *testing.T) {
	t.Parallel()
	for i, stored := range suspicious(t).receipts {
		if !json.Valid(stored.Body) {
			t.Errorf("receipt %d is no JSON", i+1)
		}
	}
}
