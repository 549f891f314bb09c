package keyring

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"
)

// markAt returns a mark of a chain. Marks of one branch with the same revision are equal.
func markAt(chain uuid.UUID, revision int64, branch byte) ChainMark {
	m := ChainMark{Org: uuid.UUID{1}, Chain: chain, Revision: revision, Actions: revision - 1, Entries: revision - 1}
	binary.BigEndian.PutUint64(m.Digest[:], uint64(revision))
	m.Digest[31], m.State = branch, [16]byte{byte(revision), branch}
	return m
}

func openChains(t *testing.T, path string, ring *Ring) *Chains {
	t.Helper()
	c, err := OpenChains(path, ring)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func chainsRing(t *testing.T) (*Ring, string) {
	t.Helper()
	folder := t.TempDir()
	ring, err := Create(filepath.Join(folder, "keys.json"), rand.Reader, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return ring, ChainsFile(filepath.Join(folder, "heads.json"))
}

func flushed(t *testing.T, c *Chains) {
	t.Helper()
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
}

// checkSeen compares what is recorded, in any order.
func checkSeen(t *testing.T, c *Chains, want ...ChainWatched) {
	t.Helper()
	sorted := cmpopts.SortSlices(func(a, b ChainWatched) bool { return bytes.Compare(a.Chain[:], b.Chain[:]) < 0 })
	if diff := cmp.Diff(want, c.All(), cmpopts.EquateEmpty(), sorted); diff != "" {
		t.Errorf("remembered (-want +got):\n%s", diff)
	}
}

// A mark can be followed by the same state, or by a newer one with no fewer entries.
func TestWhatFollowsUponAMark(t *testing.T) {
	t.Parallel()
	base := markAt(uuid.UUID{9}, 5, 0)
	cases := map[string]struct {
		change func(*ChainMark)
		want   bool
	}{
		"the same":                       {func(*ChainMark) {}, true},
		"newer":                          {func(m *ChainMark) { m.Revision, m.Entries, m.Digest = 6, 5, [32]byte{6} }, true},
		"newer, no entry":                {func(m *ChainMark) { m.Revision, m.State = 6, [16]byte{6} }, true},
		"older":                          {func(m *ChainMark) { m.Revision = 4 }, false},
		"from before revisions":          {func(m *ChainMark) { m.Revision = 0 }, false},
		"another of the same revision":   {func(m *ChainMark) { m.State = [16]byte{7} }, false},
		"newer, fewer entries":           {func(m *ChainMark) { m.Revision, m.Entries = 6, 3 }, false},
		"newer, other entries":           {func(m *ChainMark) { m.Revision, m.Digest = 6, [32]byte{7} }, false},
		"newer, fewer events":            {func(m *ChainMark) { m.Revision, m.Entries, m.Actions = 6, 5, 3 }, false},
		"of another organization":        {func(m *ChainMark) { m.Org = uuid.UUID{2} }, false},
		"of another chain":               {func(m *ChainMark) { m.Chain = uuid.UUID{8} }, false},
		"newer, of another organization": {func(m *ChainMark) { m.Org, m.Revision, m.Entries = uuid.UUID{2}, 6, 5 }, false},
	}
	for name, c := range cases {
		now := base
		c.change(&now)
		if got := base.Before(&now); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}

// A chain that only this process writes needs no proof. One that another process wrote in between
// does, from each skipped mark. Two states with one revision are never forgotten.
func TestNotedChains(t *testing.T) {
	t.Parallel()
	ring, path := chainsRing(t)
	chain := uuid.UUID{7}
	at := func(revision int64) ChainMark { return markAt(chain, revision, 0) }
	c := openChains(t, path, ring)
	c.Note(ChainMark{}, at(1), false)
	c.Note(at(1), at(2), false)
	checkSeen(t, c, ChainWatched{ChainMark: at(2)})
	if due := c.Due(0); len(due) != 0 {
		t.Errorf("due: %v", due)
	}
	c.Note(at(3), at(4), false) // another process stored the third
	c.Note(at(5), at(6), false)
	want := ChainWatched{ChainMark: at(6), Unproven: []ChainMark{at(2), at(4)}}
	checkSeen(t, c, want)
	if due := c.Due(0); len(due) != 1 {
		t.Errorf("%d are due, want the one with something unproven", len(due))
	}
	c.Note(at(7), at(8), true)
	want = ChainWatched{ChainMark: at(8), Unproven: []ChainMark{at(2), at(4), at(6)}}
	checkSeen(t, c, want) // sealed, but still to be proven
	c.Proven(&want, at(8), true)
	checkSeen(t, c)
	if seen, ok := c.Seen(chain); !ok || seen.ChainMark != at(8) {
		t.Errorf("of a chain that was just sealed this is remembered: %v, %t", seen, ok)
	}
	other := uuid.UUID{8}
	c.Note(ChainMark{}, markAt(other, 1, 0), false)
	c.Note(markAt(other, 1, 0), markAt(other, 2, 0), false)
	if c.Note(markAt(other, 1, 0), markAt(other, 2, 1), false) {
		t.Error("two states of one revision are noted as if nothing were wrong")
	}
	seen, _ := c.Seen(other)
	c.Proven(&seen, markAt(other, 2, 0), true)
	if seen, _ := c.Seen(other); !seen.Forked {
		t.Error("a fork is forgotten")
	}
}

// Commits that are noted in reverse order are not a fork, but leave something to be proven.
func TestNotedInAnotherOrder(t *testing.T) {
	t.Parallel()
	ring, path := chainsRing(t)
	c := openChains(t, path, ring)
	at := func(revision int64) ChainMark { return markAt(uuid.UUID{7}, revision, 0) }
	for _, noted := range [][2]int64{{0, 1}, {2, 3}, {1, 2}, {3, 4}} {
		before := ChainMark{}
		if noted[0] > 0 {
			before = at(noted[0])
		}
		if !c.Note(before, at(noted[1]), false) {
			t.Errorf("revision %d is called a fork", noted[1])
		}
	}
	checkSeen(t, c, ChainWatched{ChainMark: at(4), Unproven: []ChainMark{at(1), at(2)}})
}

// What was flushed is read again, including what was still to be proven, and a server that
// continues from there rewrites the file when it has grown.
func TestChainsAreReadAgain(t *testing.T) {
	t.Parallel()
	ring, path := chainsRing(t)
	c := openChains(t, path, ring)
	var want []ChainWatched
	for n := range byte(20) {
		chain := uuid.UUID{7, n}
		c.Note(ChainMark{}, markAt(chain, 1, 0), false)
		c.Note(markAt(chain, 2, 0), markAt(chain, 3, 0), false)
		flushed(t, c)
		switch n % 3 {
		case 0:
			want = append(want, ChainWatched{ChainMark: markAt(chain, 3, 0), Unproven: []ChainMark{markAt(chain, 1, 0)}})
		case 1: // sealed
			seen, _ := c.Seen(chain)
			c.Proven(&seen, markAt(chain, 3, 0), true)
		case 2:
			c.Note(markAt(chain, 2, 0), markAt(chain, 3, 1), false)
			want = append(want, ChainWatched{ChainMark: markAt(chain, 3, 0), Unproven: []ChainMark{markAt(chain, 1, 0)}, Forked: true})
		}
	}
	flushed(t, c)
	checkSeen(t, openChains(t, path, ring), want...)
	const rounds = 60
	for revision := int64(1); revision <= rounds; revision++ {
		for n := range byte(100) {
			c.Note(markAt(uuid.UUID{9, n}, revision-1, 0), markAt(uuid.UUID{9, n}, revision, 0), false)
		}
		flushed(t, c)
	}
	for n := range byte(100) {
		want = append(want, ChainWatched{ChainMark: markAt(uuid.UUID{9, n}, rounds, 0)})
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if limit := int64(2 * journalSlack); info.Size() > limit {
		t.Errorf("the file has %d bytes, want at most %d", info.Size(), limit)
	}
	checkSeen(t, openChains(t, path, ring), want...)
}

// Whatever is cut off the end of the file, what was flushed before remains. Any earlier change is
// detected.
func TestChainsFileThatWasCutOrChanged(t *testing.T) {
	t.Parallel()
	ring, path := chainsRing(t)
	c := openChains(t, path, ring)
	var sizes []int64
	for n := range byte(4) {
		c.Note(ChainMark{}, markAt(uuid.UUID{7, n}, 1, 0), false)
		flushed(t, c)
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		sizes = append(sizes, info.Size())
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	reading := func(body []byte) (int, error) {
		read := newChains(path, ring)
		err := read.replay(body)
		return len(read.marks), err
	}
	for size := range len(whole) + 1 {
		want := 0
		for want < len(sizes) && sizes[want] <= int64(size) {
			want++
		}
		if got, err := reading(whole[:size]); err != nil || got != want {
			t.Fatalf("%d bytes: %d marks, %v; want %d", size, got, err, want)
		}
		if tail := append(slices.Clone(whole[:size]), make([]byte, 200)...); int64(size) == sizes[max(want-1, 0)] {
			if got, err := reading(tail); err != nil || got != want {
				t.Fatalf("%d bytes and zeros: %d marks, %v; want %d", size, got, err, want)
			}
		}
	}
	for at := range sizes[2] {
		changed := slices.Clone(whole)
		changed[at] ^= 1
		// A frame whose length exceeds the file counts as one that was being written.
		if got, err := reading(changed); !errors.Is(err, ErrInvalid) && got >= 3 {
			t.Fatalf("byte %d changed: %d marks, %v", at, got, err)
		}
	}
	if _, err := reading([]byte("something else")); !errors.Is(err, ErrInvalid) {
		t.Errorf("another file: %v", err)
	}
	other, _ := chainsRing(t)
	if err := newChains(path, other).replay(whole); !errors.Is(err, ErrInvalid) {
		t.Errorf("under other keys: %v", err)
	}
}

// A frame whose key has a longer name than any key is refused like every other change.
func TestChainsFileWithALongKeyName(t *testing.T) {
	t.Parallel()
	ring, path := chainsRing(t)
	for _, length := range []byte{254, 255} {
		body := append([]byte{length}, make([]byte, 300)...)
		file := binary.BigEndian.AppendUint32([]byte(journalMagic), uint32(len(body)))
		file = append(append(file, body...), make([]byte, macSize)...)
		file = append(file, "another frame"...)
		if err := newChains(path, ring).replay(file); !errors.Is(err, ErrInvalid) {
			t.Errorf("a name of %d bytes: %v, want %v", length, err, ErrInvalid)
		}
	}
}

// Only one of several servers writes. Another takes over when it has ended, with what both have
// noted.
func TestOneProcessWritesTheChains(t *testing.T) {
	t.Parallel()
	ring, path := chainsRing(t)
	first, second := openChains(t, path, ring), openChains(t, path, ring)
	a, b := markAt(uuid.UUID{7}, 1, 0), markAt(uuid.UUID{8}, 1, 0)
	first.Note(ChainMark{}, a, false)
	second.Note(ChainMark{}, b, false)
	flushed(t, first)
	if err := second.Flush(); !errors.Is(err, ErrChainsLocked) {
		t.Fatalf("two write: %v", err)
	}
	checkSeen(t, openChains(t, path, ring), ChainWatched{ChainMark: a})
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	flushed(t, second)
	checkSeen(t, openChains(t, path, ring), ChainWatched{ChainMark: a}, ChainWatched{ChainMark: b})
}

// A running server drops what an operator accepts, and does not record it again after it ends,
// however that happens.
func TestAcceptedChainsAreForgotten(t *testing.T) {
	t.Parallel()
	ring, path := chainsRing(t)
	running := openChains(t, path, ring)
	a, b := markAt(uuid.UUID{7}, 3, 0), markAt(uuid.UUID{8}, 3, 0)
	b.Org = uuid.UUID{2}
	running.Note(ChainMark{}, a, false)
	running.Note(ChainMark{}, b, false)
	flushed(t, running)
	operator := openChains(t, path, ring)
	if err := operator.Accept(a.Org); err != nil {
		t.Fatal(err)
	}
	rest := ChainWatched{ChainMark: b}
	checkSeen(t, operator, rest)
	checkSeen(t, openChains(t, path, ring), rest) // read by another command
	_ = running.Close()
	killed := openChains(t, path, ring) // after a crash before the server noticed
	checkSeen(t, killed, rest)
	flushed(t, killed)
	checkSeen(t, killed, rest)
	older := markAt(a.Chain, 2, 1)
	killed.Note(ChainMark{}, older, false)
	flushed(t, killed)
	if err := killed.Reload(); err != nil {
		t.Fatal(err)
	}
	checkSeen(t, killed, rest, ChainWatched{ChainMark: older}) // the acceptance applies only once
	checkSeen(t, openChains(t, path, ring), rest, ChainWatched{ChainMark: older})
	if err := operator.Accept(a.Org); err != nil {
		t.Fatal(err)
	}
	if err := killed.Reload(); err != nil {
		t.Fatal(err)
	}
	checkSeen(t, killed, rest)
}

// If there are too many chains, the least recently touched ones are dropped, and that is counted.
func TestChainsAreBounded(t *testing.T) {
	t.Parallel()
	ring, path := chainsRing(t)
	c := openChains(t, path, ring)
	c.limit = 10
	first := markAt(uuid.UUID{7}, 1, 0)
	c.Note(ChainMark{}, first, false)
	for n := range byte(30) {
		c.Note(ChainMark{}, markAt(uuid.UUID{8, n}, 1, 0), false)
		c.Note(ChainMark{}, first, false)
	}
	if remembered, dropped := c.Watched(); remembered != 10 || dropped != 21 {
		t.Errorf("%d are remembered and %d were dropped, want 10 and 21", remembered, dropped)
	}
	if _, ok := c.Seen(first.Chain); !ok {
		t.Error("a chain in use was dropped")
	}
	for revision := int64(1); revision < 1000; revision++ { // as if two processes wrote in turn
		c.Note(markAt(first.Chain, 2*revision, 0), markAt(first.Chain, 2*revision+1, 0), false)
	}
	if seen, _ := c.Seen(first.Chain); len(seen.Unproven) > maxUnproven || seen.Unproven[0] != first {
		t.Errorf("%d marks are unproven, the first %d", len(seen.Unproven), seen.Unproven[0].Revision)
	}
}

// BenchmarkNoteChains measures what an event costs.
func BenchmarkNoteChains(b *testing.B) {
	c := newChains("", nil)
	chains := make([]ChainMark, 1000)
	for i := range chains {
		chains[i] = markAt(uuid.New(), 1, 0)
		c.Note(ChainMark{}, chains[i], false)
	}
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		mark := &chains[n%len(chains)]
		if _, ok := c.Seen(mark.Chain); !ok {
			b.Fatal("forgotten")
		}
		before := *mark
		mark.Revision++
		c.Note(before, *mark, false)
	}
}
