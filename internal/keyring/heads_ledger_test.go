package keyring

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/google/uuid"

	"countersign/internal/ledger"
)

var (
	ledgerA = uuid.UUID{0xa}
	ledgerB = uuid.UUID{0xb}
)

// Several processes that write one file lose no note of each other. Each Heads represents a
// process: a lock belongs to an open file, and each opens its own.
//
//countersign:race
func TestHeadsOfSeveralProcesses(t *testing.T) {
	t.Parallel()
	first, again := blankHeads(t)
	if err := first.Adopt(ledgerA); err != nil {
		t.Fatal(err)
	}
	const processes, notes = 6, 20
	var running sync.WaitGroup
	for n := range processes {
		running.Go(func() {
			heads, org := again(), uuid.UUID{9, byte(n)}
			for i := range int64(notes) {
				heads.Note(org, Seen{Count: i + 1, Last: [32]byte{byte(i)}})
				heads.Note(acme, Seen{Count: i + 1, Last: [32]byte{byte(i)}, Slug: "acme"})
				if err := heads.Flush(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	running.Wait()
	want := map[uuid.UUID]Seen{acme: {Count: notes, Last: [32]byte{notes - 1}, Slug: "acme"}}
	for n := range processes {
		want[uuid.UUID{9, byte(n)}] = Seen{Count: notes, Last: [32]byte{notes - 1}}
	}
	checkHeads(t, again(), want)
	if got := again().Ledger(); got != ledgerA {
		t.Errorf("the file watches %s", got)
	}
}

// A file that another process has locked is waited for, but not forever, and nothing that was noted
// is lost.
func TestHeadsThatAreLocked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		heads, again := newHeads(t)
		heads.Note(acme, Seen{Count: 1, Last: [32]byte{1}})
		holder, err := os.OpenFile(heads.path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Flock(int(holder.Fd()), syscall.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		if err := heads.Flush(); err == nil || !strings.Contains(err.Error(), "another process has held") {
			t.Errorf("written under another's lock: %v", err)
		}
		checkHeads(t, again(), map[uuid.UUID]Seen{})
		if err := holder.Close(); err != nil {
			t.Fatal(err)
		}
		flush(t, heads)
		checkHeads(t, again(), map[uuid.UUID]Seen{acme: {Count: 1, Last: [32]byte{1}}})
	})
}

// A file that is removed while a server is running is written again with the same content.
func TestHeadsThatWereRemoved(t *testing.T) {
	t.Parallel()
	heads, again := blankHeads(t)
	if err := heads.Adopt(ledgerA); err != nil {
		t.Fatal(err)
	}
	heads.Note(acme, Seen{Count: 4, Last: [32]byte{4}})
	flush(t, heads)
	if err := os.Remove(heads.path); err != nil {
		t.Fatal(err)
	}
	flush(t, heads)
	checkHeads(t, again(), map[uuid.UUID]Seen{acme: {Count: 4, Last: [32]byte{4}}})
	if got := again().Ledger(); got != ledgerA {
		t.Errorf("the file watches %s", got)
	}
}

// A file belongs to one ledger: it adopts the first one, also if it predates ledger ids, and
// refuses another until an operator accepts that.
func TestHeadsWatchOneLedger(t *testing.T) {
	t.Parallel()
	heads, again := blankHeads(t)
	if !heads.Blank() {
		t.Error("a new memory is not blank")
	}
	if err := heads.Accept(acme, Seen{Count: 1, Last: [32]byte{1}}); err != nil {
		t.Fatal(err)
	}
	if heads.Blank() || again().Blank() {
		t.Error("a memory of receipts is blank")
	}
	for _, ledger := range []uuid.UUID{ledgerA, ledgerA} {
		if err := again().Adopt(ledger); err != nil {
			t.Fatal(err)
		}
	}
	if err := again().Adopt(ledgerB); !errors.Is(err, ErrOtherLedger) {
		t.Errorf("another ledger: %v", err)
	}
	if got := again().Ledger(); got != ledgerA {
		t.Errorf("the file watches %s", got)
	}
	if err := again().AcceptLedger(ledgerB); err != nil {
		t.Fatal(err)
	}
	// The running server picks it up, and drops its notes about the previous ledger.
	heads.Note(acme, Seen{Count: 2, Last: [32]byte{2}})
	if err := heads.Reload(); err != nil {
		t.Fatal(err)
	}
	flush(t, heads)
	if got := again().Ledger(); got != ledgerB {
		t.Errorf("the file watches %s", got)
	}
}

// Blank heads stay blank, however much is noted, until they adopt a ledger, or an operator accepts
// one or imports another file, here or in another process.
func TestHeadsThatAreBlank(t *testing.T) {
	t.Parallel()
	accepted := Seen{Count: 3, Last: [32]byte{3}, Slug: "acme"}
	for name, end := range map[string]func(here, there *Heads) error{
		"adopted": func(here, _ *Heads) error {
			err := here.Adopt(ledgerA)
			here.Note(acme, accepted)
			return err
		},
		"accepted": func(here, _ *Heads) error { return here.Accept(acme, accepted) },
		"imported": func(here, _ *Heads) error {
			_, err := here.Import(ledgerA, map[uuid.UUID]Seen{acme: accepted})
			return err
		},
		"imported by another": func(here, there *Heads) error {
			_, err := there.Import(ledgerA, map[uuid.UUID]Seen{acme: accepted})
			return errors.Join(err, here.Reload())
		},
		"replaced": func(here, _ *Heads) error { return here.Replace(ledgerA, map[uuid.UUID]Seen{acme: accepted}) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			heads, again := blankHeads(t)
			heads.Note(rival, Seen{Count: 9, Last: [32]byte{9}})
			flush(t, heads)
			if !heads.Blank() || !again().Blank() {
				t.Fatal("what was noted passes for a memory")
			}
			if err := end(heads, again()); err != nil {
				t.Fatal(err)
			}
			heads.Note(acme, Seen{Count: 4, Last: [32]byte{4}})
			flush(t, heads)
			checkHeads(t, again(), map[uuid.UUID]Seen{acme: {Count: 4, Last: [32]byte{4}, Slug: "acme"}})
		})
	}
}

// What one machine exports, another imports: for each organization, whatever is further ahead.
func TestHeadsThatAreImported(t *testing.T) {
	t.Parallel()
	_, ring := createdRing(t)
	otherRing, err := Create(filepath.Join(t.TempDir(), "keys.json"), seeded(2), now)
	if err != nil {
		t.Fatal(err)
	}
	open := func(ring *Ring) *Heads { return openHeads(t, filepath.Join(t.TempDir(), "heads.json"), ring) }
	here := func() *Heads {
		heads := open(ring)
		if err := heads.Adopt(ledgerA); err != nil {
			t.Fatal(err)
		}
		heads.Note(acme, Seen{Count: 5, Last: [32]byte{5}, Acts: ledger.LogEnd{Count: 2, Last: [32]byte{2}}})
		flush(t, heads)
		return heads
	}
	for name, test := range map[string]struct {
		ring   *Ring
		ledger uuid.UUID
		seen   map[uuid.UUID]Seen
		edit   func([]byte) []byte
		want   map[uuid.UUID]Seen
		err    error
	}{
		"further": {
			ring, ledgerA,
			map[uuid.UUID]Seen{acme: {Count: 4, Last: [32]byte{4}, Acts: ledger.LogEnd{Count: 3, Last: [32]byte{3}}}, rival: {Count: 1, Last: [32]byte{1}}}, nil,
			map[uuid.UUID]Seen{acme: {Count: 5, Last: [32]byte{5}, Acts: ledger.LogEnd{Count: 3, Last: [32]byte{3}}}, rival: {Count: 1, Last: [32]byte{1}}}, nil,
		},
		"from before ledgers had ids": {
			ring, uuid.Nil, map[uuid.UUID]Seen{rival: {Count: 1, Last: [32]byte{1}}}, nil,
			map[uuid.UUID]Seen{acme: {Count: 5, Last: [32]byte{5}, Acts: ledger.LogEnd{Count: 2, Last: [32]byte{2}}}, rival: {Count: 1, Last: [32]byte{1}}}, nil,
		},
		"other ledger":     {ring, ledgerB, map[uuid.UUID]Seen{rival: {Count: 1}}, nil, nil, ErrOtherLedger},
		"other keys":       {otherRing, ledgerA, map[uuid.UUID]Seen{rival: {Count: 1}}, nil, nil, ErrOtherKeys},
		"another history":  {ring, ledgerA, map[uuid.UUID]Seen{acme: {Count: 5, Last: [32]byte{6}}, rival: {Count: 1}}, nil, nil, ErrDiverged},
		"another log":      {ring, ledgerA, map[uuid.UUID]Seen{acme: {Acts: ledger.LogEnd{Count: 2, Last: [32]byte{6}}}, rival: {Count: 1}}, nil, nil, ErrDiverged},
		"torn":             {ring, ledgerA, map[uuid.UUID]Seen{rival: {Count: 1}}, func(b []byte) []byte { return b[:len(b)/2] }, nil, ErrInvalidHeads},
		"empty":            {ring, ledgerA, nil, func([]byte) []byte { return nil }, nil, ErrInvalidHeads},
		"ledger taken out": {ring, ledgerA, nil, func(b []byte) []byte { return bytes.Replace(b, []byte(`"ledger"`), []byte(`"other"`), 1) }, nil, ErrInvalidHeads},
		"ledger changed":   {ring, ledgerA, nil, func(b []byte) []byte { return bytes.Replace(b, []byte(ledgerA.String()), []byte(ledgerB.String()), 1) }, nil, ErrInvalidHeads},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			there, heads := open(test.ring), here()
			if err := there.Replace(test.ledger, test.seen); err != nil {
				t.Fatal(err)
			}
			body, err := there.Export()
			if err != nil {
				t.Fatal(err)
			}
			if test.edit != nil {
				body = test.edit(body)
			}
			before, want := heads.All(), test.want
			ledger, seen, err := heads.Parse(body)
			if err == nil {
				_, err = heads.Import(ledger, seen)
			}
			if !errors.Is(err, test.err) {
				t.Fatalf("imported with %v, want %v", err, test.err)
			}
			if test.err != nil {
				want = before
			}
			checkHeads(t, heads, want)
			checkHeads(t, openHeads(t, heads.path, ring), want)
		})
	}
}

// What is larger than any heads file is not read to its end, and if it is a file, not at all.
func TestHeadsThatAreTooLarge(t *testing.T) {
	t.Parallel()
	endless := readerFunc(func(p []byte) (int, error) { return len(p), nil })
	if _, err := ReadHeads(endless); !errors.Is(err, ErrInvalidHeads) || !strings.Contains(fmt.Sprint(err), "larger") {
		t.Errorf("read with %v", err)
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "heads.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(maxHeads + 1); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadHeads(file); !errors.Is(err, ErrInvalidHeads) || !strings.Contains(fmt.Sprint(err), "larger") {
		t.Errorf("read with %v", err)
	}
	if offset, err := file.Seek(0, io.SeekCurrent); err != nil || offset != 0 {
		t.Errorf("%d bytes were read (%v)", offset, err)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
