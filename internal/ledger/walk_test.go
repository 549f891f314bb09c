package ledger

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// audit walks stored receipts in one pass.
func (b *book) audit(stored []*StoredReceipt, head *Head) (*Walk, *Break) {
	walk := NewWalk()
	for _, r := range stored {
		in := Inspect(r, b.slug, b.keys)
		if found := walk.Step(r, &in); found != nil {
			return walk, found
		}
	}
	found := walk.Finish(head, b.keys)
	return walk, found
}

// auditInSegments walks the same receipts in segments that end at the cuts.
func (b *book) auditInSegments(stored []*StoredReceipt, head *Head, cuts []int64) *Break {
	walk := NewWalk()
	var newest int64
	if len(stored) > 0 {
		newest = stored[len(stored)-1].Sequence
	}
	from := int64(1)
	for _, to := range append(cuts, newest) {
		if to < from || to > newest { // no audit has a segment behind the newest receipt
			continue
		}
		segment := NewWalkFrom(from)
		var found *Break
		for _, r := range stored {
			if r.Sequence < from || r.Sequence > to {
				continue
			}
			in := Inspect(r, b.slug, b.keys)
			if found = segment.Step(r, &in); found != nil {
				break
			}
		}
		if found := walk.Join(segment, found); found != nil {
			return found
		}
		from = to + 1
	}
	return walk.Finish(head, b.keys)
}

// A walk of the ledger names the first receipt that was edited, removed or moved,
// and finds a head that does not fit.
func TestWalkNamesTheFirstBreak(t *testing.T) {
	t.Parallel()
	b := filled(t, 6)
	r := b.receipts
	forged := func(i int, change func(*StoredReceipt)) *StoredReceipt {
		copied := *r[i]
		copied.Body = []byte(string(r[i].Body))
		change(&copied)
		return &copied
	}
	edited := forged(3, func(s *StoredReceipt) {
		s.Body = []byte(strings.Replace(string(s.Body), `"total_actions":1`, `"total_actions":2`, 1))
	})
	early := filled(t, 2).head
	cases := []struct {
		name     string
		stored   []*StoredReceipt
		head     *Head
		sequence int64
		check    Check
	}{
		{"untouched", r, b.head, 0, ""},
		{"edited", []*StoredReceipt{r[0], r[1], r[2], edited, r[4], r[5]}, b.head, 4, CheckSignature},
		{"first missing", r[1:], b.head, 1, CheckSequence},
		{"one missing", []*StoredReceipt{r[0], r[1], r[3], r[4], r[5]}, b.head, 3, CheckSequence},
		{"last missing", r[:5], b.head, 6, CheckHead},
		{"all missing", nil, b.head, 1, CheckHead},
		{"swapped", []*StoredReceipt{r[0], forged(2, func(s *StoredReceipt) { s.Sequence = 2 }), forged(1, func(s *StoredReceipt) { s.Sequence = 3 }), r[3], r[4], r[5]}, b.head, 2, CheckColumns},
		{"an end of an older ledger", r[:2], early, 0, ""},
		{"no head", r, nil, 7, CheckHead},
		{"an older head", r, early, 7, CheckHead},
		{"a forged head", r, &Head{Org: b.org, Count: 6, Last: b.head.Last, KeyID: "key-1", MAC: make([]byte, 32)}, 7, CheckHead},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, found := b.audit(c.stored, c.head)
			if len(c.stored) == 0 {
				// No receipt says of which year the first one was.
				if want := (Break{Sequence: 1, Check: CheckHead, Detail: "the head counts 6 receipts, and none is stored: all are missing"}); found == nil || found.Error() != want.Error() || found.ReceiptNumber != "" {
					t.Errorf("found %+v, want %+v", found, want)
				}
				return
			}
			if c.check == "" {
				if found != nil {
					t.Errorf("found %v, want nothing", found)
				}
				return
			}
			if found == nil || found.Sequence != c.sequence || found.Check != c.check || !strings.HasSuffix(found.ReceiptNumber, "-0000"+string('0'+byte(c.sequence))) {
				t.Errorf("found %+v, want check %s at %d", found, c.check, c.sequence)
			}
			if found != nil && (found.Detail == "" || !strings.Contains(found.Error(), string(found.Check))) {
				t.Errorf("a break that does not explain itself: %v", found)
			}
		})
	}
}

// A relinked ledger needs the key: receipts of another key ring in place of the real ones are
// detected at the first of them.
func TestWalkFindsABrokenLink(t *testing.T) {
	t.Parallel()
	b, twin := filled(t, 4), newBook(t)
	for range 4 {
		twin.seal(twin.open(`{"twin":true}`), &Completion{})
	}
	mixed := []*StoredReceipt{b.receipts[0], b.receipts[1], twin.receipts[2], twin.receipts[3]}
	if _, found := b.audit(mixed, b.head); found == nil || found.Check != CheckPreviousLink || found.Sequence != 3 {
		t.Errorf("found %v, want a broken link at 3", found)
	}
	if _, found := b.audit(append(b.receipts[:3:3], twin.receipts[3]), twin.head); found == nil || found.Check != CheckPreviousLink || found.Sequence != 4 {
		t.Errorf("found %v, want a broken link at 4", found)
	}
	if _, found := b.audit(b.receipts, twin.head); found == nil || found.Check != CheckHead || found.Sequence != 5 {
		t.Errorf("found %v, want the other head", found)
	}
}

// Segments with any cuts give the verdict of one walk, whatever was done to the receipts.
func TestSegmentsGiveTheSameVerdict(t *testing.T) {
	t.Parallel()
	b := filled(t, 12)
	rapid.Check(t, func(t *rapid.T) {
		stored := make([]*StoredReceipt, 0, len(b.receipts))
		for i, r := range b.receipts {
			switch rapid.IntRange(0, 14).Draw(t, "fate") {
			case 0: // deleted
			case 1:
				edited := *r
				edited.Body = []byte(strings.Replace(string(r.Body), "step", "leap", 1))
				stored = append(stored, &edited)
			case 2:
				moved := *b.receipts[(i+1)%len(b.receipts)]
				moved.Sequence = r.Sequence
				stored = append(stored, &moved)
			default:
				stored = append(stored, r)
			}
		}
		cuts := rapid.SliceOfN(rapid.Int64Range(0, 13), 0, 6).Draw(t, "cuts")
		_, want := b.audit(stored, b.head)
		got := b.auditInSegments(stored, b.head, cuts)
		if (want == nil) != (got == nil) {
			t.Fatalf("one walk finds %v, segments find %v", want, got)
		}
		if want != nil {
			// The year of a missing receipt is a guess from its neighbours.
			if diff := cmp.Diff([]any{want.Sequence, want.Check}, []any{got.Sequence, got.Check}); diff != "" {
				t.Fatalf("verdict (-one walk +segments):\n%s", diff)
			}
		}
	})
}
