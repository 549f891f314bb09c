package witness

import (
	"bytes"
	"encoding/base64"
	"errors"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/transparency-dev/merkle/proof"
	"github.com/transparency-dev/merkle/rfc6962"
	"golang.org/x/mod/sumdb/tlog"
)

// newFollower follows a log over a real connection.
func newFollower(t testing.TB, w *Witness, l *testLog) *Follower {
	t.Helper()
	server := httptest.NewServer(l)
	t.Cleanup(server.Close)
	return &Follower{Witness: w, URL: server.URL, MaxAge: time.Hour, Interval: time.Second, HTTP: server.Client()}
}

// alarms lists what is wrong, as one text.
func alarms(w *Witness) string {
	var kinds []string
	for _, alarm := range w.Alarms() {
		kinds = append(kinds, alarm.Kind)
	}
	return strings.Join(kinds, " ")
}

func (l *testLog) check(t testing.TB, f *Follower, size int64, want error) {
	t.Helper()
	l.publish(l.checkpoint(size))
	if err := f.Check(t.Context()); !errors.Is(err, want) {
		t.Fatalf("size %d: %v, want %v", size, err, want)
	}
}

// A log that is followed is cosigned as it grows, from its tiles, partial ones and
// full ones in their place, and nothing is written while it rests.
func TestFollowGrows(t *testing.T) {
	t.Parallel()
	l := newTestLog(t, testOrigin)
	w := openFolder(t, newFolder(t, l))
	f := newFollower(t, w, l)
	for _, size := range []int64{0, 1, 5, 255, 256, 257, 700, 66_000} {
		l.grow(size, "")
		l.check(t, f, size, nil)
		before, requests := *w.origins[testOrigin].head, l.requests
		if before.Size != size || before.Root != l.root(size) || before.Published != size {
			t.Errorf("size %d: the head is %+v", size, before)
		}
		l.check(t, f, size, nil)
		if *w.origins[testOrigin].head != before || l.requests != requests+1 {
			t.Errorf("size %d: a pass that found nothing new has done something", size)
		}
	}
	// Tiles of the largest tree serve an older checkpoint, whose partial ones are gone.
	l.grow(66_300, "")
	l.check(t, f, 66_290, nil)
	if got := alarms(w); got != "" {
		t.Errorf("alarms: %s", got)
	}
}

// A fork is found whether the other history is as large, larger or smaller; the proof
// is kept, and the alarm stands after a restart.
func TestFollowFindsForks(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]int64{"as large": 300, "larger": 320, "smaller": 290} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newTestLog(t, testOrigin).grow(280, "")
			other := l.fork().grow(size, "other")
			l.grow(300, "")
			folder := newFolder(t, l)
			w := openFolder(t, folder)
			f := newFollower(t, w, l)
			l.check(t, f, 300, nil)
			if size < 300 {
				l.publish(other.checkpoint(size)) // beside the tiles of the larger tree
				if err := f.Check(t.Context()); !errors.Is(err, errFork) || !Alarming(err) {
					t.Fatal(err)
				}
			} else {
				other.check(t, newFollower(t, w, other), size, errFork)
			}
			if got := alarms(w); got != AlarmFork {
				t.Errorf("alarms: %s", got)
			}
			l.check(t, f, 300, nil) // the first history goes on, and the alarm stands
			kept, err := forkFiles(w.files, testOrigin)
			if err != nil || len(kept) != 1 {
				t.Fatalf("kept %v, %v", kept, err)
			}
			text, err := os.ReadFile(filepath.Join(folder, forkFolder, kept[0]))
			if err != nil || !strings.Contains(string(text), l.text(300)) || !strings.Contains(string(text), other.checkpoint(size)) {
				t.Errorf("the proof is %s, %v", text, err)
			}
			w.Close()
			if got := alarms(openFolder(t, folder)); got != AlarmFork {
				t.Errorf("alarms after a restart: %s", got)
			}
		})
	}
}

// An address that publishes another registered log than before is not believed, after a restart
// either: its own log is silent, and nothing is cosigned.
func TestFollowFindsAnotherLog(t *testing.T) {
	t.Parallel()
	l := newTestLog(t, testOrigin).grow(9, "")
	other := newTestLog(t, "example.com/other").grow(9, "")
	folder := newFolder(t, l, other)
	w := openFolder(t, folder)
	f := newFollower(t, w, l)
	l.check(t, f, 5, nil)
	for _, restarted := range []bool{false, true} {
		if restarted {
			w.Close()
			w = openFolder(t, folder)
			f = &Follower{Witness: w, URL: f.URL, HTTP: f.HTTP}
		}
		f.MaxAge = -time.Minute // as if that had been so for long
		l.publish(other.checkpoint(9))
		if err := f.Check(t.Context()); err == nil || Alarming(err) {
			t.Fatalf("restarted %v: %v", restarted, err)
		}
		f.pass(t.Context())
		if got := w.Alarms(); len(got) != 1 || got[0] != (Alarm{testOrigin, AlarmSilence}) {
			t.Errorf("restarted %v: alarms %v", restarted, got)
		}
		if size := w.origins[other.origin].head.Size; size != 0 {
			t.Errorf("restarted %v: cosigned size %d of the other log", restarted, size)
		}
	}
	f.MaxAge = time.Hour
	l.check(t, f, 9, nil)
}

// A checkpoint that is smaller than one that was published before is a rollback. One
// that was only submitted may be published later, but not much later.
func TestFollowFindsRollbacks(t *testing.T) {
	t.Parallel()
	l := newTestLog(t, testOrigin).grow(30, "")
	w := openFolder(t, newFolder(t, l))
	f := newFollower(t, w, l)
	l.check(t, f, 10, nil)
	l.check(t, f, 9, errRollback)
	l.check(t, f, 0, errRollback)
	if got := alarms(w); got != AlarmRollback {
		t.Errorf("alarms: %s", got)
	}
	l.check(t, f, 10, nil)
	if got := alarms(w); got != "" {
		t.Errorf("alarms after it came back: %s", got)
	}
	cosigned(t, w, l, 10, 20) // submitted, and not yet published
	l.check(t, f, 10, nil)
	l.check(t, f, 15, nil)
	f.MaxAge = -time.Minute // as if it had been cosigned long ago
	l.check(t, f, 15, errRollback)
	f.MaxAge = time.Hour
	l.check(t, f, 20, nil)
	l.check(t, f, 15, errRollback) // now that 20 was published
	l.check(t, f, 30, nil)
}

// What cannot be read or believed is an error and no verdict, and moves nothing.
func TestFollowDoubtsWhatItFetches(t *testing.T) {
	t.Parallel()
	l := newTestLog(t, testOrigin).grow(600, "")
	impostor := newTestLog(t, testOrigin).grow(600, "")
	stranger := newTestLog(t, "example.com/b").grow(600, "")
	for name, publish := range map[string]func(l *testLog){
		"nothing":           func(l *testLog) { l.publish("") },
		"no note":           func(l *testLog) { l.publish("hello\n") },
		"too long":          func(l *testLog) { l.publish(strings.Repeat("x", maxCheckpoint+1)) },
		"another key":       func(l *testLog) { l.publish(impostor.checkpoint(600)) },
		"another log":       func(l *testLog) { l.publish(stranger.checkpoint(600)) },
		"tiles are missing": func(l *testLog) { l.publish(l.checkpoint(600)); l.size = 400 },
		"tiles are others": func(l *testLog) {
			l.publish(l.checkpoint(600))
			l.hashes = impostor.fork().reset().grow(600, "x").hashes
		},
		"far too large": func(l *testLog) {
			l.publish(l.sign(testOrigin + "\n4611686018427387904\n" + strings.Repeat("A", 43) + "=\n"))
		},
		"an impossible root": func(l *testLog) { l.publish(l.sign(testOrigin + "\n600\n" + strings.Repeat("A", 43) + "=\n")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			served := l.fork()
			w := openFolder(t, newFolder(t, l))
			f := newFollower(t, w, served)
			served.check(t, f, 300, nil)
			publish(served)
			if err := f.Check(t.Context()); err == nil || Alarming(err) {
				t.Errorf("the verdict is %v", err)
			}
			if got := w.origins[testOrigin].head.Size; got != 300 || alarms(w) != "" {
				t.Errorf("size %d, alarms %s", got, alarms(w))
			}
		})
	}
}

// A log that cannot be fetched for longer than its time is silent, one that answers
// and does not grow is idle where that was asked for, and both end when they end.
func TestFollowFindsSilence(t *testing.T) {
	t.Parallel()
	l := newTestLog(t, testOrigin).grow(9, "")
	w := openFolder(t, newFolder(t, l))
	var log bytes.Buffer
	w.log = slog.New(slog.NewTextHandler(&log, nil))
	f := newFollower(t, w, l)
	f.heard = time.Now()
	f.pass(t.Context()) // nothing is published yet
	if got := alarms(w); got != "" {
		t.Errorf("alarms at once: %s", got)
	}
	f.heard = time.Now().Add(-2 * f.MaxAge)
	f.pass(t.Context())
	f.pass(t.Context())
	if got := alarms(w); got != AlarmSilence || strings.Count(log.String(), "level=ERROR") != 1 || strings.Count(log.String(), "level=WARN") != 1 {
		t.Errorf("alarms: %s, log: %s", got, log.String())
	}
	l.publish(l.checkpoint(3))
	f.pass(t.Context())
	if got := alarms(w); got != "" {
		t.Errorf("alarms after it spoke: %s", got)
	}
	l.publish("")
	f.heard = time.Now().Add(-2 * f.MaxAge)
	f.pass(t.Context())
	if got := w.Alarms(); len(got) != 1 || got[0] != (Alarm{testOrigin, AlarmSilence}) {
		t.Errorf("alarms: %v", got)
	}
	f.MaxIdle = time.Hour
	l.check(t, f, 3, nil)
	w.origins[testOrigin].head.Grown -= 7200
	l.check(t, f, 3, errIdle)
	f.pass(t.Context())
	if got := alarms(w); got != AlarmIdle {
		t.Errorf("alarms: %s", got)
	}
	l.check(t, f, 9, nil)
	if got := alarms(w); got != "" {
		t.Errorf("alarms after it grew: %s", got)
	}
}

// A log that is silent has one alarm, also if its name becomes known while it is.
func TestSilenceIsCountedOnce(t *testing.T) {
	t.Parallel()
	l := newTestLog(t, testOrigin).grow(600, "")
	w := openFolder(t, newFolder(t, l))
	before := newFollower(t, w, l)
	l.check(t, before, 300, nil)
	f := &Follower{Witness: w, URL: before.URL, HTTP: before.HTTP, heard: time.Now().Add(-time.Hour)}
	l.publish("")
	f.pass(t.Context())
	if got := w.Alarms(); len(got) != 1 || got[0] != (Alarm{f.URL, AlarmSilence}) {
		t.Fatalf("alarms without a checkpoint: %v", got)
	}
	l.publish(l.checkpoint(600))
	l.size = 400 // its tiles cannot be read
	f.pass(t.Context())
	if got := w.Alarms(); len(got) != 1 || got[0] != (Alarm{testOrigin, AlarmSilence}) {
		t.Errorf("alarms without tiles: %v", got)
	}
}

// Another implementation of Merkle trees agrees on every proof between small trees,
// on the right ones and on wrong ones, and on the root of the empty tree.
func TestSecondOpinion(t *testing.T) {
	t.Parallel()
	if got := rfc6962.DefaultHasher.EmptyRoot(); !bytes.Equal(got, emptyRoot[:]) {
		t.Errorf("the empty root is %s", base64.StdEncoding.EncodeToString(got))
	}
	const largest = 20
	l := newTestLog(t, testOrigin).grow(largest, "")
	w := &Witness{log: slog.New(slog.DiscardHandler)}
	for from := int64(1); from <= largest; from++ {
		for to := from; to <= largest; to++ {
			right := l.proof(from, to)
			variants := []tlog.TreeProof{right, append(right[:len(right):len(right)], tlog.Hash{})}
			for i := range right {
				variants = append(variants, append(right[:i:i], right[i+1:]...))
				changed := slices.Clone(right)
				changed[i][7] ^= 1
				variants = append(variants, changed)
			}
			for i, variant := range variants {
				hashes := make([][]byte, len(variant))
				for j := range variant {
					hashes[j] = variant[j][:]
				}
				old, grown := l.root(from), l.root(to)
				theirs := proof.VerifyConsistency(rfc6962.DefaultHasher, uint64(from), uint64(to), hashes, old[:], grown[:])
				ours := w.follows(&head{Size: from, Root: old}, &checkpoint{Size: to, Root: grown}, from, variant)
				if (ours == nil) != (theirs == nil) || (ours == nil) != (i == 0) {
					t.Errorf("from %d to %d, variant %d: %v, and the other says %v", from, to, i, ours, theirs)
				}
			}
		}
	}
}
