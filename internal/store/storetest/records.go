package storetest

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

var recordCases = []testCase{
	{name: "texts are stored unchanged", run: keepsTexts},
	{name: "texts that look alike are different keys", run: tellsTextsApart},
	{name: "bytes are stored unchanged", run: keepsBytes, unaudited: true},
	{name: "a payload of a megabyte is stored", run: keepsLargePayloads},
	{name: "an erased payload differs from an empty one", run: tellsErasedPayloads, unaudited: true},
	{name: "no metadata differs from empty metadata", run: tellsEmptyMetadata},
	{name: "a state that grows large is stored", run: keepsLargeStates, unaudited: true},
}

// trickyTexts are pairwise different, although some look alike.
var trickyTexts = []string{
	"plain", "Plain", "plain ", " plain", "käse", "ka\u0308se", "naïve", "日本語", "🧾👩‍👩‍👧", "\u200b", "\U0010ffff", "\ufeffbom",
	"it's", `"quoted"`, `back\slash`, "per%cent_", "a\tb\nc\rd", "\x01\x1f\x7f", "'; drop table chains; --", "{1,2}", "NULL", "null", "0", "00",
	strings.Repeat("長", 200),
}

func keepsTexts(t *testing.T, w *world) {
	m := w.join(t)
	var records []*store.ChainRecord
	for _, text := range trickyTexts {
		chain := w.draft(m)
		chain.ExternalID, chain.Environment, chain.Name = text, text, text
		records = append(records, w.record(chain, text))
	}
	w.write(t, &store.Changes{NewChains: records})
	for i, text := range trickyTexts {
		w.mustAct(t, records[i].ID, newAction(text))
		got := must[*store.ChainRecord](t)(w.Chain(t.Context(), records[i].ID))
		assertEqual(t, "texts", []string{got.ExternalID, got.Environment, got.IdempotencyKey}, []string{text, text, text})
		event := must[[]*ledger.StoredEvent](t)(w.Events(t.Context(), got.ID, 0, 1))[0]
		assertEqual(t, "event's key", event.IdempotencyKey, text)
	}
}

func tellsTextsApart(t *testing.T, w *world) {
	m := w.join(t)
	id := w.openChain(t, m)
	ids := make(map[string]ledger.ChainID)
	needs := &store.Needs{Chains: []ledger.ChainID{id}}
	for _, text := range trickyTexts {
		chain := w.draft(m)
		chain.ExternalID = text
		record := w.record(chain, text)
		ids[text] = record.ID
		w.write(t, &store.Changes{NewChains: []*store.ChainRecord{record}})
		w.mustAct(t, id, newAction(text))
		needs.Opens = append(needs.Opens, store.OpenRef{Org: m.org.ID, By: m.key.ID, Key: text})
		needs.Repeats = append(needs.Repeats, store.EventRef{Chain: id, Key: text})
	}
	w.look(t, needs, func(loaded *store.Loaded) {
		for i, text := range trickyTexts {
			if opening := loaded.Opens[needs.Opens[i]]; opening == nil || opening.ID != ids[text] {
				t.Errorf("opening %q is not found, or another one is", text)
			}
			if event := loaded.Repeats[needs.Repeats[i]]; event == nil || event.Sequence != int64(i+1) {
				t.Errorf("event %q is not found, or another one is", text)
			}
		}
	})
	for _, text := range trickyTexts {
		found := must[[]*store.ChainRecord](t)(w.Chains(t.Context(), store.ChainQuery{Org: m.org.ID, ExternalID: text, Limit: 10}))
		if len(found) != 1 || found[0].ID != ids[text] {
			t.Errorf("%d chains have the external id %q, want one", len(found), text)
		}
	}
}

// everyByte returns bytes that are not valid text in any encoding.
func everyByte() []byte {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	return all
}

func keepsBytes(t *testing.T, w *world) {
	m := w.join(t)
	chain := w.record(w.draft(m), "")
	chain.Body, chain.State, chain.MAC = everyByte(), append(everyByte(), 1), append(everyByte(), 2)
	hash := [32]byte(everyByte())
	event := &ledger.StoredEvent{Chain: chain.ID, Sequence: 1, Body: append(everyByte(), 3), Payload: append(everyByte(), 4), Redactions: append(everyByte(), 8)}
	addendum := &ledger.Addendum{Chain: chain.ID, Position: 2, Sequence: 1, Body: append(everyByte(), 5)}
	receipt := &ledger.StoredReceipt{ID: w.receiptID(), Org: m.org.ID, Sequence: 1, Chain: chain.ID, PreviousHash: hash[:], Body: append(everyByte(), 6)}
	head := &ledger.Head{Org: m.org.ID, Count: 1 << 40, Last: &hash, KeyID: "schlüssel", MAC: append(everyByte(), 7)}
	w.write(t, &store.Changes{NewChains: []*store.ChainRecord{chain}})
	w.write(t, &store.Changes{
		NewEvents: []*ledger.StoredEvent{event}, NewAddenda: []*ledger.Addendum{addendum},
		NewReceipts: []*ledger.StoredReceipt{receipt}, Heads: []*ledger.Head{head},
	})
	assertEqual(t, "chain", must[*store.ChainRecord](t)(w.Chain(t.Context(), chain.ID)), chain)
	assertEqual(t, "events", must[[]*ledger.StoredEvent](t)(w.Events(t.Context(), chain.ID, 0, 1)), []*ledger.StoredEvent{event})
	assertEqual(t, "addenda", must[[]*ledger.Addendum](t)(w.Addenda(t.Context(), chain.ID, 1, 1)), []*ledger.Addendum{addendum})
	assertEqual(t, "receipt", must[*ledger.StoredReceipt](t)(w.Receipt(t.Context(), receipt.ID)), receipt)
	assertEqual(t, "head", must[*ledger.Head](t)(w.Head(t.Context(), m.org.ID)), head)
}

func keepsLargePayloads(t *testing.T, w *world) {
	m := w.join(t)
	id := w.openChain(t, m)
	action := newAction("large")
	action.Payload = fmt.Appendf(nil, `{"text":%q}`, strings.Repeat("0123456789abcdef", 1<<16))
	w.mustAct(t, id, newAction(""), action)
	event := must[[]*ledger.StoredEvent](t)(w.Events(t.Context(), id, 1, 1))[0]
	if !bytes.Equal(event.Payload, action.Payload) {
		t.Errorf("a payload of %d bytes came back with %d", len(action.Payload), len(event.Payload))
	}
	ref := store.EventRef{Chain: id, Key: "large"}
	w.look(t, &store.Needs{Chains: []ledger.ChainID{id}, Repeats: []store.EventRef{ref}}, func(loaded *store.Loaded) {
		if loaded.Repeats[ref] == nil {
			t.Error("the large event is not found by its key")
		}
	})
}

func tellsErasedPayloads(t *testing.T, w *world) {
	m := w.join(t)
	id := w.openChain(t, m)
	w.write(t, &store.Changes{NewEvents: []*ledger.StoredEvent{
		{Chain: id, Sequence: 1, Body: []byte("{}"), Payload: []byte("{}")}, {Chain: id, Sequence: 2, Body: []byte("{}")},
	}})
	var got [][]byte
	for _, event := range must[[]*ledger.StoredEvent](t)(w.Events(t.Context(), id, 0, 10)) {
		got = append(got, event.Payload)
	}
	if diff := cmp.Diff([][]byte{[]byte("{}"), nil}, got); diff != "" {
		t.Errorf("payloads (-want +got):\n%s", diff)
	}
}

func tellsEmptyMetadata(t *testing.T, w *world) {
	m := w.join(t)
	none, empty := w.draft(m), w.draft(m)
	empty.Metadata = []byte("{}")
	w.write(t, &store.Changes{NewChains: []*store.ChainRecord{w.record(none, ""), w.record(empty, "")}})
	action := newAction("")
	action.Metadata = []byte("{}")
	w.mustAct(t, empty.ID, newAction(""), action)
	w.mustSeal(t, m, none.ID, empty.ID)
	for _, want := range []*ledger.Chain{none, empty} {
		record := must[*store.ChainRecord](t)(w.Chain(t.Context(), want.ID))
		chain := must[*ledger.Chain](t)(ledger.DecodeChain(record.Body))
		if diff := cmp.Diff(want.Metadata, chain.Metadata); diff != "" {
			t.Errorf("metadata (-want +got):\n%s", diff)
		}
	}
}

func keepsLargeStates(t *testing.T, w *world) {
	m := w.join(t)
	chain := w.record(w.draft(m), "")
	w.write(t, &store.Changes{NewChains: []*store.ChainRecord{chain}})
	for _, size := range []int{1000, 3000, 9000, 100_000, 500} {
		chain.State = bytes.Repeat(everyByte(), size/256+1)
		err := w.Transact(t.Context(), &store.Needs{Chains: []ledger.ChainID{chain.ID}}, func(*store.Loaded) (*store.Changes, error) {
			return &store.Changes{States: []*store.ChainRecord{chain}}, nil
		})
		if err != nil {
			t.Fatalf("state of %d bytes: %v", len(chain.State), err)
		}
		if got := must[*store.ChainRecord](t)(w.Chain(t.Context(), chain.ID)); !bytes.Equal(got.State, chain.State) {
			t.Errorf("a state of %d bytes came back with %d", len(chain.State), len(got.State))
		}
	}
}
