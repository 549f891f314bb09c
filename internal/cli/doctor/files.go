package doctor

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"countersign/internal/cli"
	"countersign/internal/keyring"
)

func (e *examination) noFolder() bool {
	if !e.storage.Embedded() {
		return false
	}
	_, err := os.Stat(e.storage.Data)
	return errors.Is(err, fs.ErrNotExist)
}

// skipMissing skips a check if there is no data folder or database, or this user cannot see it. The
// check of the folder or the schema reports that.
func (e *examination) skipMissing() finding {
	if e.noFolder() {
		return skipped("there is no data folder")
	}
	if _, err := os.Stat(e.storage.DatabaseFile()); !errors.Is(err, fs.ErrNotExist) {
		return skipped("the database cannot be read")
	}
	return skipped("there is no database")
}

func (e *examination) dataFolder(context.Context) finding {
	if e.noFolder() {
		return failed("there is no folder %s: name it with --data, or create one with countersign serve", e.storage.Data)
	}
	info, err := os.Stat(e.storage.Data)
	switch {
	case err != nil:
		return failed("%v: name the folder with --data, or create one with countersign serve", err)
	case !info.IsDir():
		return failed("%s is not a folder: name another with --data", e.storage.Data)
	case info.Mode().Perm()&0o007 != 0:
		owner := os.Geteuid()
		if status, known := info.Sys().(*syscall.Stat_t); known {
			owner = int(status.Uid)
		}
		return openFolder(e.storage.Data, info.Mode().Perm(), owner, os.Geteuid())
	}
	return ok("%s, mode %04o", e.storage.Data, info.Mode().Perm())
}

// openFolder judges a folder that every user can enter. A volume of Kubernetes belongs to root and is
// open like that, nobody in its container can close it, and closing it from outside would make the
// kubelet open the files in it to the group.
func openFolder(path string, mode fs.FileMode, owner, user int) finding {
	if othersWrite := mode&0o002 != 0; !othersWrite && user != 0 && user != owner {
		return warning("%s is open to every user (mode %04o), and only its owner, user %d, can close it", path, mode, owner)
	}
	return failed("%s is open to every user (mode %04o): run chmod 700 %s", path, mode, path)
}

func (e *examination) keyFile(context.Context) finding {
	if e.storage.Keys == "" && e.noFolder() {
		return e.skipMissing()
	}
	ring, err := keyring.Open(e.storage.KeyFile())
	if errors.Is(err, keyring.ErrNotFound) {
		return failed("%v: name it with --keys, or restore it", err)
	}
	if err != nil {
		return failed("%v", err)
	}
	return ok("%s, readable only by its owner; keys: %d, current: %s", e.storage.KeyFile(), len(ring.IDs()), ring.CurrentKey())
}

const minFreeSpace = 200 << 20

func (e *examination) diskSpace(context.Context) finding {
	if e.noFolder() {
		return e.skipMissing()
	}
	var space syscall.Statfs_t
	if err := syscall.Statfs(e.storage.Data, &space); err != nil {
		return skipped("%v", err)
	}
	const mega = 1 << 20
	free := space.Bavail * uint64(space.Bsize) //nolint:gosec // a block size is never negative
	if free < minFreeSpace {
		return failed("%d MB are free in %s: free some space, at least %d MB", free/mega, e.storage.Data, minFreeSpace/mega)
	}
	return ok("%d MB are free", free/mega)
}

// maxLog is what the write-ahead log of SQLite stays below, in bytes, while nothing reads the database
// for long.
const maxLog = 64 << 20

func (e *examination) writeAheadLog(context.Context) finding {
	if e.noFolder() {
		return e.skipMissing()
	}
	const mega = 1 << 20
	info, err := os.Stat(e.storage.DatabaseFile() + "-wal")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ok("there is none")
	case err != nil:
		return failed("%v", err)
	case info.Size() > maxLog:
		return warning("it has %d MB: it grows while a backup or another program reads the database, and a server truncates it "+
			"within seconds of its end; find out what reads the database, and keep room on the disk", info.Size()/mega)
	}
	return ok("it has %d MB", info.Size()/mega)
}

// serverRuns tries to take the lock that a server holds, and releases it.
func (e *examination) serverRuns(context.Context) finding {
	if e.noFolder() {
		return e.skipMissing()
	}
	file, err := os.Open(filepath.Clean(cli.LockFile(e.storage.Data)))
	if errors.Is(err, fs.ErrNotExist) {
		return ok("none has run here yet")
	}
	if err != nil {
		return failed("%v", err)
	}
	defer file.Close()
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return ok("one is running on this folder")
	}
	if err != nil {
		return skipped("%v", err)
	}
	return ok("none is running on this folder")
}
