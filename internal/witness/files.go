package witness

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// fileSystem is the witness's folder. Names have no separators in them but those
// of the folders that init makes. Tests put one in its place that fails and that
// forgets what was not synced.
type fileSystem interface {
	read(name string) ([]byte, error)
	// write makes a file in place of one that may be there, and returns when its content is on disk.
	// The file's name may still be lost.
	write(name string, data []byte) error
	rename(from, to string) error
	// sync returns when the names in a folder are on disk.
	sync(folder string) error
	list(folder string) ([]string, error)
}

// replace puts a file on disk in place of the one that is there, durably: a crash
// leaves the old content or the new one.
func replace(files fileSystem, name string, data []byte) error {
	temporary := name + ".new"
	if err := files.write(temporary, data); err != nil {
		return err
	}
	if err := files.rename(temporary, name); err != nil {
		return err
	}
	return files.sync(filepath.Dir(name))
}

// maxFile bounds every file that is read, in bytes.
const maxFile = 1 << 20

// folderFiles is a folder on disk.
type folderFiles string

func (f folderFiles) path(name string) string { return filepath.Join(string(f), name) }

func (f folderFiles) read(name string) ([]byte, error) {
	file, err := os.Open(f.path(name))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if name == keyFile && info.Mode().Perm()&0o007 != 0 {
		return nil, fmt.Errorf("%s is open to every user (mode %04o): run chmod 600 on it", f.path(name), info.Mode().Perm())
	}
	data, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("%s is longer than %d bytes", f.path(name), maxFile)
	}
	return data, err
}

func (f folderFiles) write(name string, data []byte) error {
	// A process that died may have left one. It is not written through: it could be a link.
	if err := os.Remove(f.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := os.OpenFile(f.path(name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	return errors.Join(err, f.giveToOwner(file), file.Sync(), file.Close())
}

// makeFolder makes a folder that is not there yet.
func (f folderFiles) makeFolder(name string) error {
	if err := os.Mkdir(f.path(name), 0o700); err != nil {
		return err
	}
	made, err := os.OpenFile(f.path(name), os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.giveToOwner(made), made.Close())
}

// giveToOwner makes a file that root has just made belong to the owner of the witness's folder, so that
// a command that is run as root does not lock the witness out. It is not for a file that was there before:
// the owner could have put a link to somebody else's in its place.
func (f folderFiles) giveToOwner(file *os.File) error {
	if os.Geteuid() != 0 {
		return nil
	}
	info, err := os.Stat(string(f))
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || owner.Uid == 0 {
		return nil
	}
	return file.Chown(int(owner.Uid), int(owner.Gid))
}

func (f folderFiles) rename(from, to string) error { return os.Rename(f.path(from), f.path(to)) }

func (f folderFiles) sync(folder string) error {
	opened, err := os.Open(f.path(folder))
	if err != nil {
		return err
	}
	return errors.Join(opened.Sync(), opened.Close())
}

func (f folderFiles) list(folder string) (names []string, err error) {
	entries, err := os.ReadDir(f.path(folder))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names, err
}

// lock keeps other processes from signing with a folder, until release is called
// or the process ends.
func lock(folder string) (release func(), err error) {
	file, err := folderFiles(folder).openLock()
	if err != nil {
		return nil, fmt.Errorf("lock the witness's folder: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another process uses the witness's folder %s: stop it first", folder), file.Close())
	}
	return func() { _ = file.Close() }, nil // closing gives the lock back
}

// lockWitness is lock for a folder that must have a witness. It leaves nothing in another one, which Init
// would then refuse.
func lockWitness(folder string) (release func(), err error) {
	if _, err := VKey(folder); err != nil {
		return nil, err
	}
	return lock(folder)
}

// openLock opens the lock file, and makes it if there is none. It does not follow a link.
func (f folderFiles) openLock() (*os.File, error) {
	name := f.path("lock")
	file, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600) //nolint:gosec // the operator names the folder
	if errors.Is(err, fs.ErrExist) {
		return os.OpenFile(name, os.O_RDWR|syscall.O_NOFOLLOW, 0) //nolint:gosec // the operator names the folder
	}
	if err != nil {
		return nil, err
	}
	if err := f.giveToOwner(file); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}
