package keyring

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"countersign/internal/ledger"
)

// assertOnly checks that the directory of path contains nothing else, in particular no half-written
// file, and that path has mode 0600.
func assertOnly(t *testing.T, path string) {
	t.Helper()
	found, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, one := range found {
		names = append(names, one.Name())
	}
	if diff := cmp.Diff([]string{filepath.Base(path)}, names); diff != "" {
		t.Errorf("directory differs (-want +got):\n%s", diff)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode() != 0o600 {
		t.Errorf("mode = %v, want 0600 of a regular file", info.Mode())
	}
}

// A new key file is read back as the same ring.
func TestCreateThenOpen(t *testing.T) {
	t.Parallel()
	path, created := createdRing(t)
	assertOnly(t, path)
	if !regexp.MustCompile(`^mk_[a-z2-7]{12}$`).MatchString(created.CurrentKey()) {
		t.Errorf("CurrentKey() = %q, want mk_ and 12 base32 characters", created.CurrentKey())
	}
	opened, err := Open(path)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	if diff := cmp.Diff(created.IDs(), opened.IDs()); diff != "" {
		t.Errorf("IDs differ (-created +opened):\n%s", diff)
	}
	if mustMAC(t, created, created.CurrentKey(), organization, ledger.PurposeReceipt, "message") !=
		mustMAC(t, opened, opened.CurrentKey(), organization, ledger.PurposeReceipt, "message") {
		t.Error("the opened ring signs differently from the created one")
	}
	if content := readContent(t, path); content.Version != 1 || !content.Keys[0].CreatedAt.Equal(now) {
		t.Errorf("version %d, created %v; want 1 and %v", content.Version, content.Keys[0].CreatedAt, now)
	}
}

// Creating a key file never replaces an existing file.
func TestCreateNeverReplaces(t *testing.T) {
	t.Parallel()
	path, _ := createdRing(t)
	before := readContent(t, path)
	if _, err := Create(path, seeded(2), now); !errors.Is(err, ErrExists) {
		t.Errorf("Create error = %v, want ErrExists", err)
	}
	if diff := cmp.Diff(before, readContent(t, path)); diff != "" {
		t.Error("Create changed the file that stood there")
	}
	assertOnly(t, path)

	link := filepath.Join(t.TempDir(), "keys.json")
	if err := os.Symlink(filepath.Join(t.TempDir(), "nothing"), link); err != nil {
		t.Fatal(err)
	}
	if _, err := Create(link, seeded(2), now); !errors.Is(err, ErrExists) {
		t.Errorf("Create onto a dangling link: error = %v, want ErrExists", err)
	}
}

// If several processes create a key file at once, one succeeds and the file is its own.
//
//countersign:race
func TestOneOfManyCreatesWins(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "keys.json")
	var winner atomic.Pointer[Ring]
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			ring, err := Create(path, seeded(byte(i)), now)
			if err == nil && !winner.CompareAndSwap(nil, ring) {
				t.Error("two creations succeeded")
			}
			if err != nil && !errors.Is(err, ErrExists) {
				t.Errorf("Create error = %v, want ErrExists", err)
			}
		})
	}
	group.Wait()
	opened, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if winner.Load() == nil || winner.Load().CurrentKey() != opened.CurrentKey() {
		t.Error("the file is not the winner's")
	}
	assertOnly(t, path)
}

// A key file that cannot be created leaves nothing behind.
func TestCreateLeavesNothingBehindOnFailure(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "keys.json")
	for _, random := range []io.Reader{strings.NewReader(""), io.LimitReader(seeded(1), 31), io.LimitReader(seeded(1), 39)} {
		if _, err := Create(path, random, now); err == nil {
			t.Error("Create succeeded without enough randomness")
		}
	}
	if _, err := Create(path, seeded(1), time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)); err == nil {
		t.Error("Create succeeded with a time that RFC 3339 cannot write")
	}
	if _, err := Create(filepath.Join(path, "below"), seeded(1), now); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Create without its directory: error = %v, want fs.ErrNotExist", err)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// A rotation adds a key, makes it the current one and keeps all others.
func TestRotateKeepsOldKeys(t *testing.T) {
	t.Parallel()
	path, ring := createdRing(t)
	ids := ring.IDs()
	before := mustMAC(t, ring, ids[0], organization, ledger.PurposeReceipt, "message")
	for turn := range byte(3) {
		ring = rotate(t, path, 2+turn)
		ids = append(ids, ring.CurrentKey())
		if diff := cmp.Diff(ids, ring.IDs()); diff != "" {
			t.Fatalf("IDs differ (-want +got):\n%s", diff)
		}
	}
	opened, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(ids, opened.IDs()); diff != "" || opened.CurrentKey() != ids[3] {
		t.Errorf("the file differs from the rotated ring (-want +got):\n%s", diff)
	}
	if mustMAC(t, opened, ids[0], organization, ledger.PurposeReceipt, "message") != before {
		t.Error("the first key signs differently after rotations")
	}
	assertOnly(t, path)
}

// Concurrent rotations lose no key.
//
//countersign:race
func TestConcurrentRotationsLoseNoKey(t *testing.T) {
	t.Parallel()
	path, created := createdRing(t)
	want := map[string]bool{created.CurrentKey(): true}
	var mu sync.Mutex
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			ring, err := Rotate(path, seeded(byte(100+i)), now)
			if err != nil {
				t.Errorf("Rotate: %v", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			want[ring.CurrentKey()] = true
		})
	}
	group.Wait()
	opened, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, id := range opened.IDs() {
		got[id] = true
	}
	if diff := cmp.Diff(want, got); diff != "" || len(got) != 9 {
		t.Errorf("keys differ (-want +got):\n%s", diff)
	}
	assertOnly(t, path)
}

// Rotating a key file behind a symbolic link changes the file and keeps the link.
func TestRotateFollowsALink(t *testing.T) {
	t.Parallel()
	path, _ := createdRing(t)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	rotated := rotate(t, link, 2)
	if target, err := os.Readlink(link); err != nil || target != path {
		t.Errorf("the link points to %q (%v), want %q", target, err, path)
	}
	opened, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if opened.CurrentKey() != rotated.CurrentKey() {
		t.Error("the file behind the link was not rotated")
	}
}

// A rotation keeps the owner of the key file.
func TestRotateKeepsTheOwner(t *testing.T) {
	t.Parallel()
	path, _ := createdRing(t)
	if os.Geteuid() == 0 { // others can only give files to themselves
		if err := os.Chown(path, 12345, 23456); err != nil {
			t.Fatal(err)
		}
	}
	ownerOf := func() [2]uint32 {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		status := info.Sys().(*syscall.Stat_t)
		return [2]uint32{status.Uid, status.Gid}
	}
	before := ownerOf()
	rotate(t, path, 2)
	if diff := cmp.Diff(before, ownerOf()); diff != "" {
		t.Errorf("owner differs (-before +after):\n%s", diff)
	}
}

// What an operator accepts belongs to the owner of the folder, whose server must read it.
func TestAcceptancesBelongToTheServer(t *testing.T) {
	t.Parallel()
	_, ring := createdRing(t)
	folder := t.TempDir()
	if os.Geteuid() == 0 { // others can only give files to themselves
		if err := os.Chown(folder, 12345, 23456); err != nil {
			t.Fatal(err)
		}
	}
	heads := filepath.Join(folder, "heads.json")
	if err := openChains(t, ChainsFile(heads), ring).Accept(acme); err != nil {
		t.Fatal(err)
	}
	if err := openHeads(t, heads, ring).Accept(acme, Seen{Count: 1}); err != nil {
		t.Fatal(err)
	}
	want := ownerOf(folder).Sys().(*syscall.Stat_t)
	for _, name := range []string{heads, ChainsFile(heads) + ".accepted"} {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Sys().(*syscall.Stat_t); got.Uid != want.Uid || got.Gid != want.Gid {
			t.Errorf("%s belongs to %d:%d, want %d:%d", name, got.Uid, got.Gid, want.Uid, want.Gid)
		}
	}
}

// A server that is not root writes its files in a folder of root's that its group may write to: the
// root of a volume in a cluster is such a folder.
//
//countersign:race
func TestFilesInAFolderOfRoots(t *testing.T) {
	t.Parallel()
	_, ring := createdRing(t)
	const server = 65532
	folder, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	if os.Geteuid() == 0 { // others have no folder of root's
		if err := errors.Join(folder.Chown(0, server), folder.Chmod(0o775)); err != nil {
			t.Fatal(err)
		}
	}
	// Through the open folder, because the folders above it may be closed to the server.
	heads := fmt.Sprintf("/proc/self/fd/%d/heads.json", folder.Fd())
	done := make(chan error, 1)
	go func() {
		if os.Geteuid() == 0 {
			runtime.LockOSThread() // and never unlocked: the thread ends with its user
			for _, change := range []uintptr{syscall.SYS_SETRESGID, syscall.SYS_SETRESUID} {
				if _, _, fault := syscall.RawSyscall(change, server, server, server); fault != 0 {
					done <- fault
					return
				}
			}
		}
		done <- writeAll(heads, ring)
	}()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// writeAll writes one of each file that a server keeps beside its heads.
func writeAll(path string, ring *Ring) error {
	heads, err := OpenHeads(path, ring)
	if err != nil {
		return err
	}
	marks, err := OpenLogMarks(LogMarksFile(path), ring)
	if err != nil {
		return err
	}
	chains, err := OpenChains(ChainsFile(path), ring)
	if err != nil {
		return err
	}
	chains.Note(ChainMark{}, markAt(uuid.UUID{7}, 1, 0), false)
	return errors.Join(
		heads.Accept(acme, Seen{Count: 1}), marks.Advance(map[uuid.UUID]LogMark{{1}: {Org: acme, Size: 1}}),
		chains.Flush(), chains.Accept(acme), chains.Close(),
	)
}

// A rotation that fails does not change the key file.
func TestFailedRotateChangesNothing(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		random io.Reader
		now    time.Time
	}{
		{"too little randomness", io.LimitReader(seeded(2), 20), now},
		{"randomness that repeats itself", seeded(1), now},
		{"a time that RFC 3339 cannot write", seeded(2), time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			path, _ := createdRing(t)
			before := readContent(t, path)
			if _, err := Rotate(path, test.random, test.now); err == nil {
				t.Error("Rotate succeeded")
			}
			if diff := cmp.Diff(before, readContent(t, path)); diff != "" {
				t.Error("a failed rotation changed the file")
			}
			assertOnly(t, path)
		})
	}
}

// A damaged key file is neither rotated nor changed.
func TestRotateRefusesADamagedFile(t *testing.T) {
	t.Parallel()
	path, _ := createdRing(t)
	content := readContent(t, path)
	content.Current = "mk_bbbbbbbbbbbb"
	overwrite(t, path, content)
	if _, err := Rotate(path, seeded(2), now); !errors.Is(err, ErrInvalid) {
		t.Errorf("Rotate error = %v, want ErrInvalid", err)
	}
	if diff := cmp.Diff(content, readContent(t, path)); diff != "" {
		t.Error("a refused rotation changed the file")
	}
}
