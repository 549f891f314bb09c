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
