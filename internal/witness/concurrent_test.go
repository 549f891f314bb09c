package witness

import (
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"golang.org/x/mod/sumdb/tlog"
)

// Submissions that arrive side by side are taken one after the other: sizes never go
// back, and what is cosigned is of one history, whichever came first.
//
//countersign:race
func TestSubmissionsSideBySide(t *testing.T) {
	t.Parallel()
	first := newTestLog(t, testOrigin).grow(3, "")
	second := first.fork().grow(40, "second")
	first.grow(40, "first")
	w := openFolder(t, newFolder(t, first))
	var (
		clients sync.WaitGroup
		mu      sync.Mutex // guards seen
		seen    = make(map[int64]tlog.Hash)
	)
	for i := range 6 {
		l := []*testLog{first, second}[i%2]
		clients.Go(func() {
			random, mine := rand.New(rand.NewPCG(uint64(i), 2)), make(map[int64]tlog.Hash)
			for range 25 {
				submitLike(t, w, l, random, mine)
				_ = get(w, "/readyz")
				_ = get(w, "/"+originHash(testOrigin)+"/checkpoint")
			}
			mu.Lock()
			defer mu.Unlock()
			for size, root := range mine {
				if known, again := seen[size]; again && known != root {
					t.Errorf("two roots of size %d were cosigned", size)
				}
				seen[size] = root
			}
		})
	}
	clients.Wait()
	if len(seen) == 0 || (!holds(first, seen) && !holds(second, seen)) {
		t.Errorf("%d sizes were cosigned, of two histories", len(seen))
	}
	if got := post(w, first.request(0, 1)); got.kind != sizeType || strings.TrimSpace(got.body) == "0" {
		t.Errorf("in the end: %+v", got)
	}
}
