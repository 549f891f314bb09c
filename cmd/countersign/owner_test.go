package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"countersign/internal/cli"
)

// folderOfAnotherUser makes a store's empty folder belong to another user, if this one may do that. It
// returns whose it is.
func folderOfAnotherUser(t *testing.T, s *testStore) (owner int) {
	t.Helper()
	if err := os.MkdirAll(s.folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 {
		return os.Geteuid()
	}
	const other = 12345
	if err := os.Chown(s.folder, other, other); err != nil {
		t.Fatal(err)
	}
	return other
}

func checkOwner(t *testing.T, path string, owner int) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if status, ok := info.Sys().(*syscall.Stat_t); !ok || int(status.Uid) != owner {
		t.Errorf("%s does not belong to user %d", filepath.Base(path), owner)
	}
}

// Whatever a command that is run as root creates in a data folder belongs to the folder's owner, whose
// server must be able to use it.
//
//countersign:race
func TestStoreMadeForAnotherUser(t *testing.T) {
	t.Parallel()
	for name, use := range map[string]func(*testStore){
		"orgs create": func(s *testStore) { succeed(t, s.args("orgs", "create", "acme")...) },
		"migrate":     func(s *testStore) { succeed(t, s.args("migrate")...) },
		"serve":       func(s *testStore) { start(t, s.flags...).stop(t) },
	} {
		s := newSQLite(t)
		owner := folderOfAnotherUser(t, s)
		use(s)
		files, err := os.ReadDir(s.folder)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s made %v (%v)", name, files, err)
		}
		for _, file := range files {
			checkOwner(t, filepath.Join(s.folder, file.Name()), owner)
		}
	}
}

// The owner of a data folder who puts a link in the place of its lock is not given the file that it leads
// to when root uses the folder.
func TestLockThatIsALink(t *testing.T) {
	t.Parallel()
	s := newSQLite(t)
	folderOfAnotherUser(t, s)
	foreign := filepath.Join(t.TempDir(), "foreign")
	writeFile(t, foreign, []byte("not yours"))
	if err := os.Symlink(foreign, filepath.Join(s.folder, "serve.lock")); err != nil {
		t.Fatal(err)
	}
	refuse(t, cli.ExitFailed, "lock data folder", s.args("serve", "--listen", "127.0.0.1:0")...)
	checkOwner(t, foreign, os.Geteuid())
}
