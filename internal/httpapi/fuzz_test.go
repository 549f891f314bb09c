package httpapi

import (
	"bytes"
	"encoding/binary"
	"net/url"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"

	"countersign/internal/canon"
	"countersign/internal/fault"
	"countersign/internal/ledger"
)

// A cursor that is taken is the one that a list wrote, and no other text stands
// for the same place.
func FuzzCursor(f *testing.F) {
	id := uuid.MustParse("01890a5d-ac96-774b-bcce-b302099a8057")
	for _, kind := range []cursorKind{chainCursor, eventCursor, receiptCursor, keyCursor, approvalCursor, policyCursor, webhookCursor, actCursor, tokenCursor, signingKeyCursor, budgetCursor, deliveryCursor} {
		f.Add(encodeIDCursor(kind, id))
		f.Add(encodeMomentCursor(kind, 1, id))
		f.Add(encodeNumberCursor(kind, 1))
		f.Add(encodeNumberCursor(kind, -1))
	}
	for _, text := range []string{"", "A", "YQ==", "Y-_/+", "\x00", "ZQAAAAAAAAAB\n", "ZQAA\r\nAAAAAAAB", "é"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		taken := 0
		for _, kind := range []cursorKind{chainCursor, keyCursor, webhookCursor, tokenCursor, signingKeyCursor, budgetCursor, deliveryCursor} {
			q := &listQuery{values: url.Values{"cursor": {text}}}
			if id, given := q.idCursor(kind); given {
				taken++
				if q.err() != nil || encodeIDCursor(kind, id) != text {
					t.Errorf("%q was taken for %s", text, id)
				}
			} else if text != "" && q.err() == nil {
				t.Errorf("%q was neither taken nor refused", text)
			}
		}
		q := &listQuery{values: url.Values{"cursor": {text}}}
		if at, id, given := q.momentCursor(approvalCursor); given {
			taken++
			if q.err() != nil || encodeMomentCursor(approvalCursor, at, id) != text {
				t.Errorf("%q was taken for %s at %d", text, id, at)
			}
		} else if text != "" && q.err() == nil {
			t.Errorf("%q was neither taken nor refused", text)
		}
		for _, kind := range []cursorKind{eventCursor, receiptCursor, policyCursor, actCursor} {
			q := &listQuery{values: url.Values{"cursor": {text}}}
			if n := q.numberCursor(kind); n != 0 {
				taken++
				if n < 0 || q.err() != nil || encodeNumberCursor(kind, n) != text {
					t.Errorf("%q was taken for %d", text, n)
				}
			} else if text != "" && q.err() == nil {
				t.Errorf("%q was neither taken nor refused", text)
			}
		}
		if taken > 1 {
			t.Errorf("%q is a cursor of %d lists", text, taken)
		}
	})
}

// Cursors of the ends of every range come back as they are.
func FuzzNumberCursor(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 1})
	f.Add([]byte{0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{0x80, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) != 8 {
			return
		}
		n := int64(binary.BigEndian.Uint64(data))
		q := &listQuery{values: url.Values{"cursor": {encodeNumberCursor(receiptCursor, n)}}}
		got := q.numberCursor(receiptCursor)
		if (n > 0) != (q.err() == nil) || n > 0 && got != n {
			t.Errorf("%d came back as %d, %v", n, got, q.err())
		}
	})
}

// An action that is taken means the same when it is written out and read again,
// and whatever is sent, reading it ends.
func FuzzRecordRequest(f *testing.F) {
	for _, seed := range []string{
		`{"agent_name":"a","action_type":"t","action_name":"n","payload":{}}`,
		`{"agent_name":"a","action_type":"t","action_name":"n","action_payload":{"b":1.0,"a":[1e-7,null,"\ud83d\ude00"]},"metadata":{"é":-0},"idempotency_key":"k","executed_at":"2026-03-04T05:06:07.8+02:00","parent_agent_name":"p"}`,
		`{"agent_name":"a","action_type":"t","action_name":"n","payload":{},"action_payload":{}}`,
		`{"agent_name":"","action_type":1,"action_name":null,"payload":[]}`,
		`{"agent_name":"a\u0000","executed_at":"1969-12-31T23:59:59Z","idempotency_key":"","unknown":{}}`,
		`[]`, `null`, `{`, ``, `{"a":9007199254740993}`, "\xff",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		value, err := canon.Parse(body)
		if err != nil {
			return
		}
		action, err := ledger.ParseAction(value)
		if err != nil {
			if _, ok := err.(*fault.Error); !ok {
				t.Errorf("refused with %T", err)
			}
			return
		}
		first := writeAction(action)
		value, err = canon.Parse(first)
		if err != nil {
			t.Fatalf("written out, it cannot be read: %v: %s", err, first)
		}
		again, err := ledger.ParseAction(value)
		if err != nil {
			t.Fatalf("written out, it is refused: %v: %s", err, first)
		}
		if diff := cmp.Diff(action, again, sameValue, notFacts); diff != "" {
			t.Errorf("written out, it means something else:\n%s", diff)
		}
		if second := writeAction(again); !bytes.Equal(first, second) {
			t.Errorf("written twice, it differs:\n%s\n%s", first, second)
		}
	})
}

// What is found in an action is found before its secrets are taken out.
var (
	sameValue = cmp.Comparer(func(a, b canon.Value) bool { return bytes.Equal(a.Append(nil), b.Append(nil)) })
	notFacts  = cmp.Options{cmpopts.IgnoreFields(ledger.Action{}, "Facts", "FoundSHA256"), cmpopts.IgnoreUnexported(ledger.Action{})}
)

func writeAction(a *ledger.Action) []byte {
	w := canon.BeginObject(nil)
	w.String("agent_name", a.AgentName)
	w.String("action_type", a.ActionType)
	w.String("action_name", a.ActionName)
	w.StringOrNull("parent_agent_name", a.ParentAgentName)
	w.Raw("payload", a.Payload)
	w.Raw("metadata", a.Metadata)
	w.StringOrNull("idempotency_key", a.IdempotencyKey)
	if a.ExecutedAt != nil {
		w.String("executed_at", a.ExecutedAt.String())
	}
	return w.End()
}
