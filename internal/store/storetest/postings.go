package storetest

import (
	"slices"
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

var postingCases = []testCase{
	{name: "postings are listed by place, descending", run: listsPostings},
	{name: "a posting that is there stays as it is", run: keepsPostings},
	{name: "receipts are added to their postings", run: addsReceiptPostings},
}

func (w *world) postings(t *testing.T, query store.PostingQuery) []store.Posting {
	t.Helper()
	return must[[]store.Posting](t)(w.open(t).Postings(t.Context(), query))
}

func listsPostings(t *testing.T, w *world) {
	var all []store.Posting
	for _, place := range []string{"", "\x00", "\x00\xff", "a", "b", "b\x00", "\xff"} {
		all = append(all, store.Posting{Term: -7, Place: []byte(place), Sequence: int64(len(all))})
	}
	other := store.Posting{Term: 8, Place: []byte("a"), Sequence: 1 << 40}
	added := must[int64](t)(w.AddPostings(t.Context(), append([]store.Posting{other}, all...)))
	assertEqual(t, "added", added, int64(len(all)+1))
	slices.Reverse(all)
	for _, test := range []struct {
		query store.PostingQuery
		want  []store.Posting
	}{
		{store.PostingQuery{Term: -7, Limit: 100}, all},
		{store.PostingQuery{Term: -7, Limit: 2}, all[:2]},
		{store.PostingQuery{Term: -7, Before: []byte("b"), Limit: 100}, all[3:]},
		{store.PostingQuery{Term: -7, Before: []byte("b\x00"), Limit: 1}, all[2:3]},
		{store.PostingQuery{Term: -7, Before: []byte("b\x00"), From: []byte("\x00\xff"), Limit: 100}, all[2:5]},
		{store.PostingQuery{Term: -7, Before: []byte{}, Limit: 100}, nil},
		{store.PostingQuery{Term: 8, Limit: 100}, []store.Posting{other}},
		{store.PostingQuery{Term: 9, Limit: 100}, nil},
	} {
		assertEqual(t, "postings", w.postings(t, test.query), test.want)
	}
}

// keepsPostings writes the same posting inside and outside a transaction.
func keepsPostings(t *testing.T, w *world) {
	first := store.Posting{Term: 1, Place: []byte("p"), Sequence: 3}
	again, next := first, first
	again.Sequence, next.Place = 9, []byte("q")
	for _, write := range [][]store.Posting{{first}, {again, next}} {
		err := w.Transact(t.Context(), &store.Needs{}, func(*store.Loaded) (*store.Changes, error) {
			return &store.Changes{NewPostings: write}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	added := must[int64](t)(w.AddPostings(t.Context(), []store.Posting{again, next, {Term: ledger.Term(2), Place: []byte("p")}}))
	assertEqual(t, "added", added, int64(1))
	assertEqual(t, "postings", w.postings(t, store.PostingQuery{Term: 1, Limit: 9}), []store.Posting{next, first})
}

// addsReceiptPostings writes the same block inside and outside a transaction, and twice at once.
func addsReceiptPostings(t *testing.T, w *world) {
	posting := func(block int64, receipts uint64) store.ReceiptPosting {
		return store.ReceiptPosting{Term: -3, Block: block, Receipts: receipts}
	}
	for _, write := range [][]store.ReceiptPosting{{posting(7, 1), posting(2, 1<<63)}, {posting(7, 8), posting(9, 4), posting(7, 2)}} {
		err := w.Transact(t.Context(), &store.Needs{}, func(*store.Loaded) (*store.Changes, error) {
			return &store.Changes{ReceiptPostings: write}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	other := store.ReceiptPosting{Term: 4, Block: 7, Receipts: 1}
	changed := must[int64](t)(w.AddReceiptPostings(t.Context(), []store.ReceiptPosting{posting(7, 2), posting(2, 1), posting(2, 2), posting(9, 4), other}))
	assertEqual(t, "changed", changed, int64(2))
	all := []store.ReceiptPosting{posting(9, 4), posting(7, 11), posting(2, 1<<63|3)}
	for _, test := range []struct {
		query store.ReceiptPostingQuery
		want  []store.ReceiptPosting
	}{
		{store.ReceiptPostingQuery{Term: -3, To: 100, Limit: 100}, all},
		{store.ReceiptPostingQuery{Term: -3, To: 100, Limit: 2}, all[:2]},
		{store.ReceiptPostingQuery{Term: -3, From: 3, To: 8, Limit: 100}, all[1:2]},
		{store.ReceiptPostingQuery{Term: -3, From: 2, To: 7, Limit: 100}, all[1:]},
		{store.ReceiptPostingQuery{Term: 4, To: 7, Limit: 100}, []store.ReceiptPosting{other}},
		{store.ReceiptPostingQuery{Term: 5, To: 100, Limit: 100}, nil},
	} {
		assertEqual(t, "postings", must[[]store.ReceiptPosting](t)(w.open(t).ReceiptPostings(t.Context(), test.query)), test.want)
	}
}
