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

// nothingThere passes over what there is nothing of: that is said at the folder, or at
// the schema.
func (e *examination) nothingThere() finding {
	if e.noFolder() {
		return skipped("there is no data folder")
	}
	return skipped("there is no database")
}

func (e *examination) dataFolder(context.Context) finding {
	if e.noFolder() {
		return failed("there is no folder %s: name it with --data, or make one with countersign serve", e.storage.Data)
	}
	info, err := os.Stat(e.storage.Data)
	switch {
	case err != nil:
		return failed("%v: name the folder with --data, or make one with countersign serve", err)
	case !info.IsDir():
		return failed("%s is not a folder: name another with --data", e.storage.Data)
	case info.Mode().Perm()&0o007 != 0:
		return failed("%s is open to every user (mode %04o): run chmod 700 %s", e.storage.Data, info.Mode().Perm(), e.storage.Data)
	}
	return ok("%s, mode %04o", e.storage.Data, info.Mode().Perm())
}

func (e *examination) keyFile(context.Context) finding {
	if e.storage.Keys == "" && e.noFolder() {
		return e.nothingThere()
	}
	ring, err := keyring.Open(e.storage.KeyFile())
	if errors.Is(err, keyring.ErrNotFound) {
		return failed("%v: name it with --keys, or restore it", err)
	}
	if err != nil {
		return failed("%v", err)
	}
	return ok("%s, for its owner alone; keys in it: %d, current: %s", e.storage.KeyFile(), len(ring.IDs()), ring.CurrentKey())
}

const leastFreeSpace = 200 << 20

func (e *examination) diskSpace(context.Context) finding {
	if e.noFolder() {
		return e.nothingThere()
	}
	var space syscall.Statfs_t
	if err := syscall.Statfs(e.storage.Data, &space); err != nil {
		return skipped("%v", err)
	}
	const mega = 1 << 20
	free := space.Bavail * uint64(space.Bsize) //nolint:gosec // no block has a size below zero
	if free < leastFreeSpace {
		return failed("%d MB are free in %s: make room, at least %d MB", free/mega, e.storage.Data, leastFreeSpace/mega)
	}
	return ok("%d MB are free", free/mega)
}

// serverRuns asks for the lock that a server holds, and gives it back at once.
func (e *examination) serverRuns(context.Context) finding {
	if e.noFolder() {
		return e.nothingThere()
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
