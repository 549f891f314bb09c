package keyring

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"
)

// The previous key also signs checkpoints for thirty days or until the next rotation. A revoked key
// says since when, and the current key cannot be revoked.
func TestLogKeysRotate(t *testing.T) {
	t.Parallel()
	path, day := filepath.Join(t.TempDir(), "keys.json"), 24*time.Hour
	began := time.Date(2026, time.November, 16, 0, 0, 0, 0, time.UTC)
	ring, err := Create(path, rand.Reader, began)
	for _, after := range []time.Duration{10 * day, 20 * day} {
		if err == nil {
			ring, err = Rotate(path, rand.Reader, began.Add(after))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	statuses := func(at time.Duration) (all []LogKeyStatus) {
		for _, key := range ring.LogKeys(began.Add(at)) {
			all = append(all, key.Status)
		}
		return all
	}
	for at, want := range map[time.Duration][3]LogKeyStatus{
		21 * day: {LogKeyRetired, LogKeyRetiring, LogKeyActive}, 50 * day: {LogKeyRetired, LogKeyRetired, LogKeyActive},
	} {
		if got := statuses(at); [3]LogKeyStatus(got) != want {
			t.Errorf("after %s: %v", at, got)
		}
	}
	keys := ring.LogKeys(began)
	signature, err := ring.SignLog(keys[2].ID, []byte("checkpoint"))
	if err != nil || !ed25519.Verify(keys[2].Public, []byte("checkpoint"), signature) || ed25519.Verify(keys[1].Public, []byte("checkpoint"), signature) {
		t.Errorf("signature: %v", err)
	}
	if _, err := RevokeLogKey(path, ring.CurrentKey(), began); err == nil {
		t.Error("the current key was revoked")
	}
	if _, err := RevokeLogKey(path, "mk_unknown", began); err == nil {
		t.Error("an unknown key was revoked")
	}
	for _, at := range []time.Duration{22 * day, 23 * day} { // the first time is kept
		if _, err := RevokeLogKey(path, keys[1].ID, began.Add(at)); err != nil {
			t.Fatal(err)
		}
	}
	if err := ring.Reload(); err != nil {
		t.Fatal(err)
	}
	revoked := ring.LogKeys(began.Add(24 * day))[1]
	if revoked.Status != LogKeyRevoked || !revoked.RevokedAt.Equal(began.Add(22*day)) || revoked.Signs() {
		t.Errorf("revoked: %+v", revoked)
	}
}

// A mark advances and never moves back, and is on disk when Advance returns. A file that was
// changed is refused.
func TestLogMarksNeverGoBack(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	ring, err := Create(filepath.Join(folder, "keys.json"), rand.Reader, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	path := LogMarksFile(filepath.Join(folder, "heads.json"))
	open := func() *LogMarks {
		marks, err := OpenLogMarks(path, ring)
		if err != nil {
			t.Fatal(err)
		}
		return marks
	}
	marks, beside := open(), open()
	log, org := uuid.UUID{1}, uuid.UUID{2}
	five := LogMark{Org: org, Size: 5, Root: [32]byte{5}}
	for _, step := range []struct {
		marks *LogMarks
		mark  LogMark
		want  error
	}{
		{marks, five, nil},
		{marks, five, nil},
		{beside, LogMark{Org: org, Size: 5, Root: [32]byte{6}}, ErrLogForked},
		{beside, LogMark{Org: org, Size: 4, Root: [32]byte{4}}, ErrLogForked},
		{beside, LogMark{Org: uuid.UUID{3}, Size: 6}, ErrLogForked},
		{beside, LogMark{Org: org, Size: 6, Root: [32]byte{6}}, nil},
		{marks, LogMark{Org: org, Size: 6, Root: [32]byte{7}}, ErrLogForked},
	} {
		if err := step.marks.Advance(map[uuid.UUID]LogMark{log: step.mark}); !errors.Is(err, step.want) {
			t.Errorf("%d: error %v, want %v", step.mark.Size, err, step.want)
		}
	}
	if mark, ok := open().Mark(log); !ok || mark.Size != 6 {
		t.Errorf("on disk: %+v", mark)
	}
	if err := os.Remove(path); err != nil { // a running server keeps its marks
		t.Fatal(err)
	}
	if err := marks.Advance(map[uuid.UUID]LogMark{log: five}); !errors.Is(err, ErrLogForked) {
		t.Errorf("without a file: %v", err)
	}
	if err := marks.End(org); err != nil {
		t.Fatal(err)
	}
	if err := open().Advance(map[uuid.UUID]LogMark{log: {Org: org, Size: 9}}); !errors.Is(err, ErrLogEnded) {
		t.Errorf("after its end: %v", err)
	}
	if _, _, ok := open().Of(org); ok {
		t.Error("an ended log is the organization's")
	}
	body, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, bytes.Replace(body, []byte(`"size":6`), []byte(`"size":7`), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenLogMarks(path, ring); !errors.Is(err, ErrInvalidLogMarks) {
		t.Errorf("a changed file: %v", err)
	}
}

// A running server keeps what it knows if an older file is put in place: a log that has ended stays
// ended, and what Advance has accepted is on disk again when it returns.
func TestLogMarksOfAnOlderFile(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	ring, err := Create(filepath.Join(folder, "keys.json"), rand.Reader, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	path := LogMarksFile(filepath.Join(folder, "heads.json"))
	marks, err := OpenLogMarks(path, ring)
	if err != nil {
		t.Fatal(err)
	}
	ended, open := uuid.UUID{1}, uuid.UUID{2}
	advance := func(size int64) {
		t.Helper()
		next := map[uuid.UUID]LogMark{open: {Org: uuid.UUID{4}, Size: size, Root: [32]byte{byte(size)}}}
		if err := marks.Advance(next); err != nil {
			t.Fatal(err)
		}
	}
	if err := marks.Advance(map[uuid.UUID]LogMark{ended: {Org: uuid.UUID{3}, Size: 5}}); err != nil {
		t.Fatal(err)
	}
	advance(5)
	older, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	advance(6)
	if err := marks.EndLog(ended); err != nil {
		t.Fatal(err)
	}
	if _, err := replaceFile(path, older); err != nil {
		t.Fatal(err)
	}

	if err := marks.Advance(map[uuid.UUID]LogMark{ended: {Org: uuid.UUID{3}, Size: 5}}); !errors.Is(err, ErrLogEnded) {
		t.Errorf("the log that has ended: %v, want %v", err, ErrLogEnded)
	}
	advance(6) // the same tree is signed again, with another key
	stored, err := OpenLogMarks(path, ring)
	if err != nil {
		t.Fatal(err)
	}
	if mark, _ := stored.Mark(open); mark.Size != 6 {
		t.Errorf("size %d is on disk, want 6", mark.Size)
	}
	if mark, _ := stored.Mark(ended); !mark.Ended {
		t.Error("the log that has ended is open on disk")
	}
}
