package witness

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// A witness that is opened again goes on where it was, and only one process has it.
func TestStateOutlivesTheProcess(t *testing.T) {
	t.Parallel()
	l := newTestLog(t, testOrigin).grow(9, "")
	folder := newFolder(t, l)
	w := openFolder(t, folder)
	cosigned(t, w, l, 0, 4)
	if _, err := Open(folder, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "another process uses") {
		t.Errorf("a second process may sign: %v", err)
	}
	if _, err := Add(folder, newTestLog(t, "example.com/b").vkey, ""); err == nil || !strings.Contains(err.Error(), "another process uses") {
		t.Errorf("a log was registered beside a server: %v", err)
	}
	listed, err := List(folder) // which needs no lock
	if err != nil || len(listed) != 1 || listed[0].Size != 4 || listed[0].Root != l.root(4) || time.Since(listed[0].Time) > time.Minute {
		t.Errorf("listed %+v, %v", listed, err)
	}
	vkey := w.VKey()
	w.Close()
	w = openFolder(t, folder)
	if got, err := VKey(folder); got != vkey || err != nil || w.VKey() != vkey {
		t.Errorf("the key has changed: %v", err)
	}
	cosigned(t, w, l, 4, 4)
	cosigned(t, w, l, 4, 9)
}

// Whatever root makes in a witness's folder belongs to the folder's owner, whose witness must be able to
// use it.
func TestFilesBelongToTheOwnerOfTheFolder(t *testing.T) {
	t.Parallel()
	folder, owner := t.TempDir(), os.Geteuid()
	if owner == 0 {
		owner = 12345
		if err := os.Chown(folder, owner, owner); err != nil {
			t.Fatal(err)
		}
	}
	l := newTestLog(t, testOrigin).grow(3, "")
	if _, err := Init(folder, "example.com/witness"); err != nil {
		t.Fatal(err)
	}
	if _, err := Add(folder, l.vkey, l.origin); err != nil {
		t.Fatal(err)
	}
	cosigned(t, openFolder(t, folder), l, 0, 3)
	made := 0
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		made++
		if status, ok := info.Sys().(*syscall.Stat_t); !ok || int(status.Uid) != owner {
			t.Errorf("%s does not belong to user %d", path, owner)
		}
		return nil
	})
	if want := 7; err != nil || made != want { // the folder, two in it, the lock, the key, the list of logs and a head
		t.Errorf("%d files and folders, want %d, %v", made, want, err)
	}
}

// The owner of a witness's folder who puts a link in the place of its lock, or of a file that is about to
// be written, does not have root write through it or give away the file that it leads to.
func TestLinksInTheFolder(t *testing.T) {
	t.Parallel()
	l := newTestLog(t, testOrigin)
	for _, name := range []string{"lock", registryFile + ".new"} {
		folder, foreign := newFolder(t), filepath.Join(t.TempDir(), "foreign")
		link := filepath.Join(folder, name)
		if err := os.Remove(link); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		if err := errors.Join(os.WriteFile(foreign, []byte("not yours"), 0o600), os.Symlink(foreign, link)); err != nil {
			t.Fatal(err)
		}
		_, err := Add(folder, l.vkey, l.origin)
		if refused := err != nil; refused != (name == "lock") {
			t.Errorf("with a link in the place of %s: %v", name, err)
		}
		if content, err := os.ReadFile(foreign); err != nil || string(content) != "not yours" {
			t.Errorf("the file behind the link %s holds %q, %v", name, content, err)
		}
	}
}

// A folder without a witness stays as it is when something else than a new witness is asked of it: a
// witness can still be made there.
func TestAFolderWithoutAWitnessStaysEmpty(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	l := newTestLog(t, testOrigin)
	if _, err := Add(folder, l.vkey, l.origin); err == nil {
		t.Error("a log is registered with no witness")
	}
	if _, err := Open(folder, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("no witness is opened as one")
	}
	if _, err := Init(folder, "example.com/witness"); err != nil {
		t.Error(err)
	}
}

// A head that is missing or damaged is refused, whatever the damage, and is never
// taken for one of which nothing was cosigned.
func TestDamagedState(t *testing.T) {
	t.Parallel()
	l := newTestLog(t, testOrigin).grow(9, "")
	other := newTestLog(t, "example.com/other").grow(9, "")
	resum := func(body string) []byte {
		sum := sha256.Sum256([]byte(body))
		return []byte(headFormat + hex.EncodeToString(sum[:]) + "\n" + body)
	}
	body := func(data []byte) string {
		_, rest, _ := strings.Cut(string(data), "\n")
		return rest
	}
	for name, test := range map[string]struct {
		damage func(folder, file string, data []byte) error
		says   string
	}{
		"missing": {func(_, file string, _ []byte) error { return os.Remove(file) }, "is missing"},
		"empty":   {func(_, file string, _ []byte) error { return os.WriteFile(file, nil, 0o600) }, "is damaged"},
		"cut off": {func(_, file string, data []byte) error { return os.WriteFile(file, data[:len(data)/2], 0o600) }, "is damaged"},
		"zeros":   {func(_, file string, data []byte) error { return os.WriteFile(file, make([]byte, len(data)), 0o600) }, "is damaged"},
		"one bit": {func(_, file string, data []byte) error {
			data[len(data)/2] ^= 1
			return os.WriteFile(file, data, 0o600)
		}, "is damaged"},
		"another size": {func(_, file string, data []byte) error {
			return os.WriteFile(file, resum(strings.Replace(body(data), `"size": 4`, `"size": 3`, 1)), 0o600)
		}, "is another one"},
		"size zero": {func(_, file string, data []byte) error {
			return os.WriteFile(file, resum(strings.Replace(body(data), `"size": 4`, `"size": 0`, 1)), 0o600)
		}, "is another one"},
		"no checkpoint": {func(_, file string, _ []byte) error {
			return os.WriteFile(file, resum(`{"origin":"`+testOrigin+`","size":4}`), 0o600)
		}, "no checkpoint"},
		"another log's": {func(folder, file string, _ []byte) error {
			data, err := os.ReadFile(filepath.Join(folder, headFile(other.origin)))
			if err != nil {
				return err
			}
			return os.WriteFile(file, data, 0o600)
		}, "of another log"},
		"registry missing": {func(folder, _ string, _ []byte) error { return os.Remove(filepath.Join(folder, registryFile)) }, "there is no witness.json"},
		"registry damaged": {func(folder, _ string, _ []byte) error {
			return os.WriteFile(filepath.Join(folder, registryFile), []byte("{"), 0o600)
		}, "witness.json is damaged"},
		"key missing":     {func(folder, _ string, _ []byte) error { return os.Remove(filepath.Join(folder, keyFile)) }, "there is no witness.key"},
		"key open to all": {func(folder, _ string, _ []byte) error { return os.Chmod(filepath.Join(folder, keyFile), 0o644) }, "chmod 600"},
		"another key": {func(folder, _ string, _ []byte) error {
			skey, err := newSigningKey("example.com/witness")
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(folder, keyFile), []byte(skey), 0o600)
		}, "does not bear this witness's cosignature"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			folder := newFolder(t, l, other)
			w := openFolder(t, folder)
			cosigned(t, w, l, 0, 4)
			w.Close()
			file := filepath.Join(folder, headFile(l.origin))
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := test.damage(folder, file, data); err != nil {
				t.Fatal(err)
			}
			if _, err := Open(folder, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("open: %v, want %q", err, test.says)
			}
			if _, err := List(folder); err == nil {
				t.Error("a damaged folder is listed")
			}
		})
	}
}

// A log that is registered again, after its line was taken out by hand, goes on from
// what was cosigned of it.
func TestRegisteringAgainKeepsTheHead(t *testing.T) {
	t.Parallel()
	l := newTestLog(t, testOrigin).grow(9, "")
	folder := newFolder(t, l)
	w := openFolder(t, folder)
	cosigned(t, w, l, 0, 4)
	w.Close()
	if err := writeRegistry(folderFiles(folder), nil); err != nil {
		t.Fatal(err)
	}
	w = openFolder(t, folder)
	if got := post(w, l.request(4, 9)); got.status != http.StatusNotFound {
		t.Errorf("a log that is not registered: status %d", got.status)
	}
	w.Close()
	if _, err := Add(folder, l.vkey, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := Add(folder, l.vkey, ""); err == nil {
		t.Error("one key was registered twice")
	}
	if _, err := Init(folder, "example.com/another"); err == nil {
		t.Error("a witness was made over another")
	}
	w = openFolder(t, folder)
	if got := post(w, l.request(0, 9)); got.body != "4\n" {
		t.Errorf("registered again: %d %s", got.status, got.body)
	}
}

// A clock that was set back makes the witness wait: its cosignatures are never dated
// before an earlier one.
func TestClockSetBack(t *testing.T) {
	t.Parallel()
	l := newTestLog(t, testOrigin).grow(9, "")
	w := openFolder(t, newFolder(t, l))
	cosigned(t, w, l, 0, 4)
	o := w.origins[testOrigin]
	o.head.Time += 3600 // as if the last one had been made later
	if got := post(w, l.request(4, 9)); got.status != http.StatusInternalServerError || strings.Contains(got.body, "— ") {
		t.Errorf("status %d: %s", got.status, got.body)
	}
	o.head.Time -= 3600
	cosigned(t, w, l, 4, 9)
}

// The same checkpoint, sent again and again by whoever has it, costs no write each.
func TestReplaysAreCheap(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newTestLog(t, testOrigin).grow(9, "")
		folder := newFolder(t, l)
		file := filepath.Join(folder, headFile(l.origin))
		w := openFolder(t, folder)
		line := cosigned(t, w, l, 0, 4)
		written := fileInfo(t, file)
		for range 20 {
			if again := cosigned(t, w, l, 4, 4); again != line {
				t.Fatalf("another cosignature: %q", again)
			}
		}
		if !os.SameFile(written, fileInfo(t, file)) {
			t.Error("the file was written again")
		}
		time.Sleep(freshFor + time.Second)
		if cosigned(t, w, l, 4, 4) == line {
			t.Error("an old cosignature was given out as a new one")
		}
		// What a process has only found on disk may not be durable yet.
		w.Close()
		written = fileInfo(t, file)
		cosigned(t, openFolder(t, folder), l, 4, 4)
		if os.SameFile(written, fileInfo(t, file)) {
			t.Error("a new process has not written")
		}
	})
}

func fileInfo(t testing.TB, file string) os.FileInfo {
	t.Helper()
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	return info
}
