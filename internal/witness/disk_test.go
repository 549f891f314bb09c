package witness

import (
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"path"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/tlog"

	"countersign/internal/nightly"
)

var errInjected = errors.New("injected fault")

// memoryDisk is a disk in memory that can fail, and that can lose at a crash what
// was not synced. One test uses it at a time.
type memoryDisk struct {
	now     map[string][]byte            // what reads see
	durable map[string][]byte            // what a crash leaves
	pending map[string]map[string][]byte // renames by folder that a sync has to make durable
	random  *rand.Rand
	faults  float64 // how likely a step fails
}

func newMemoryDisk(random *rand.Rand) *memoryDisk {
	return &memoryDisk{
		now: make(map[string][]byte), durable: make(map[string][]byte),
		pending: make(map[string]map[string][]byte), random: random,
	}
}

// fault says whether a step fails, and whether it is done all the same.
func (d *memoryDisk) fault() (failed, done bool) {
	return d.random.Float64() < d.faults, d.random.IntN(2) == 0
}

// step does something that may fail: before it is done, or after.
func (d *memoryDisk) step(do func()) error {
	failed, done := d.fault()
	if !failed || done {
		do()
	}
	if failed {
		return errInjected
	}
	return nil
}

func (d *memoryDisk) read(name string) ([]byte, error) {
	if failed, _ := d.fault(); failed {
		return nil, errInjected
	}
	data, found := d.now[name]
	if !found {
		return nil, fs.ErrNotExist
	}
	return data, nil
}

func (d *memoryDisk) write(name string, data []byte) error {
	return d.step(func() { d.now[name] = data })
}

func (d *memoryDisk) rename(from, to string) error {
	return d.step(func() {
		d.now[to] = d.now[from]
		delete(d.now, from)
		folder := path.Dir(to)
		if d.pending[folder] == nil {
			d.pending[folder] = make(map[string][]byte)
		}
		d.pending[folder][to] = d.now[to]
	})
}

func (d *memoryDisk) sync(folder string) error {
	return d.step(func() {
		maps.Copy(d.durable, d.pending[folder])
		delete(d.pending, folder)
	})
}

func (d *memoryDisk) list(folder string) (names []string, err error) {
	for name := range d.now {
		if path.Dir(name) == folder {
			names = append(names, path.Base(name))
		}
	}
	return names, nil
}

// crash loses some of what was not synced.
func (d *memoryDisk) crash() {
	for _, folder := range []string{".", headFolder, forkFolder} {
		for name, data := range d.pending[folder] {
			if d.random.IntN(2) == 0 {
				d.durable[name] = data
			}
		}
	}
	d.pending = make(map[string]map[string][]byte)
	d.now = maps.Clone(d.durable)
}

// newDisk is a disk with a witness on it that knows a log.
func newDisk(t testing.TB, random *rand.Rand, l *testLog) *memoryDisk {
	t.Helper()
	disk := newMemoryDisk(random)
	skey, err := newSigningKey("example.com/witness")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(replace(disk, keyFile, []byte(skey)), writeRegistry(disk, nil), add(disk, l.vkey, l.origin)); err != nil {
		t.Fatal(err)
	}
	return disk
}

// However writes fail and whenever the machine crashes, everything that was ever
// cosigned is of one history. The log lies: it has two that part at size 8, and
// submits both.
func TestOneHistoryOnAFailingDisk(t *testing.T) {
	t.Parallel()
	first := newTestLog(t, testOrigin).grow(8, "")
	second := first.fork().grow(40, "second")
	first.grow(40, "first")
	for seed := range uint64(nightly.Count(12, 1_000)) {
		random := rand.New(rand.NewPCG(seed, 1))
		disk := newDisk(t, random, first)
		open := func() *Witness {
			disk.faults = 0
			w, err := open(disk, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatalf("seed %d: the witness does not open after a crash: %v", seed, err)
			}
			disk.faults = 0.2
			return w
		}
		w, seen := open(), make(map[int64]tlog.Hash)
		for range 40 {
			if random.IntN(8) == 0 {
				disk.crash()
				w = open()
			}
			l := []*testLog{first, second}[random.IntN(2)]
			submitLike(t, w, l, random, seen)
		}
		if len(seen) == 0 {
			t.Errorf("seed %d: nothing was cosigned: the test shows nothing", seed)
		}
		for _, l := range []*testLog{first, second} {
			if holds(l, seen) {
				seen = nil
				break
			}
		}
		if seen != nil {
			t.Fatalf("seed %d: two histories were cosigned", seed)
		}
	}
}

// submitLike submits as a log does: it asks for the size, and proves from there to a
// size that is not smaller.
func submitLike(t testing.TB, w *Witness, l *testLog, random *rand.Rand, seen map[int64]tlog.Hash) {
	t.Helper()
	old := int64(0)
	asked := post(w, l.request(0, 1+random.Int64N(40)))
	if asked.status == http.StatusConflict && asked.kind == sizeType {
		var err error
		if old, err = parseSize(strings.TrimSpace(asked.body)); err != nil {
			t.Fatal(err)
		}
	}
	to := min(40, old+random.Int64N(4))
	if to == 0 {
		return
	}
	if got := post(w, l.request(old, to)); got.status == http.StatusOK {
		verifyLine(t, w.VKey(), l.text(to), got.body)
		if root, known := seen[to]; known && root != l.root(to) {
			t.Errorf("two roots of size %d were cosigned", to)
		}
		seen[to] = l.root(to)
	}
}

// holds says whether all that was cosigned is of one log's history.
func holds(l *testLog, seen map[int64]tlog.Hash) bool {
	for size, root := range seen {
		if l.root(size) != root {
			return false
		}
	}
	return true
}

// A step that fails leaves a checkpoint without its cosignature, whether the disk
// has it or not, and the witness goes on from what the disk has.
func TestFailedWrites(t *testing.T) {
	t.Parallel()
	l := newTestLog(t, testOrigin).grow(9, "")
	for name, test := range map[string]struct {
		fail func(*scriptedDisk)
		size string // that the witness knows afterwards
	}{
		"the file is lost":              {func(d *scriptedDisk) { d.failWrite = true }, "3\n"},
		"the rename is lost":            {func(d *scriptedDisk) { d.failRename = true }, "3\n"},
		"the rename is reported failed": {func(d *scriptedDisk) { d.failRename, d.done = true, true }, "5\n"},
		"the sync is reported failed":   {func(d *scriptedDisk) { d.failSync = true }, "5\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			disk := &scriptedDisk{memoryDisk: newDisk(t, rand.New(rand.NewPCG(1, 1)), l)}
			w, err := open(disk, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			cosigned(t, w, l, 0, 3)
			test.fail(disk)
			if got := post(w, l.request(3, 5)); got.status != http.StatusInternalServerError || strings.Contains(got.body, "— ") {
				t.Fatalf("status %d: %s", got.status, got.body)
			}
			disk.failRead = true
			if got := get(w, "/readyz"); got.status != http.StatusServiceUnavailable {
				t.Errorf("with a state that cannot be read: status %d", got.status)
			}
			if got := post(w, l.request(3, 5)); got.status != http.StatusInternalServerError {
				t.Errorf("with a state that cannot be read: status %d", got.status)
			}
			disk.failRead = false
			// The same checkpoint again is no excuse not to write.
			if got := post(w, l.request(3, 5)); got.status == http.StatusOK {
				t.Errorf("cosigned while the disk fails: %s", got.body)
			}
			disk.failWrite, disk.failRename, disk.failSync = false, false, false
			if got := post(w, l.request(1, 9)); got.body != test.size {
				t.Errorf("the witness knows size %s, want %s", got.body, test.size)
			}
			size, err := parseSize(strings.TrimSpace(test.size))
			if err != nil {
				t.Fatal(err)
			}
			cosigned(t, w, l, size, 5)
			disk.crash()
			if w, err = open(disk, slog.New(slog.DiscardHandler)); err != nil {
				t.Fatal(err)
			}
			cosigned(t, w, l, 5, 9)
		})
	}
}

// scriptedDisk fails at what it is told.
type scriptedDisk struct {
	*memoryDisk
	failRead, failWrite, failRename, failSync bool
	done                                      bool // what fails is done all the same
}

func (d *scriptedDisk) scripted(fail bool, do func() error) error {
	if !fail {
		return do()
	}
	if d.done {
		return errors.Join(errInjected, do())
	}
	return errInjected
}

func (d *scriptedDisk) read(name string) ([]byte, error) {
	if d.failRead {
		return nil, errInjected
	}
	return d.memoryDisk.read(name)
}

func (d *scriptedDisk) write(name string, data []byte) error {
	return d.scripted(d.failWrite, func() error { return d.memoryDisk.write(name, data) })
}

func (d *scriptedDisk) rename(from, to string) error {
	return d.scripted(d.failRename, func() error { return d.memoryDisk.rename(from, to) })
}

func (d *scriptedDisk) sync(folder string) error {
	return d.scripted(d.failSync, func() error { return d.memoryDisk.sync(folder) })
}
