package keyring

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// ErrExists says that there is already a key file, which Create never replaces.
var ErrExists = errors.New("key file exists already")

// Create creates a key file with one key, atomically.
func Create(path string, random io.Reader, now time.Time) (*Ring, error) {
	made, err := document{SealedRows: true, NumberedRows: true}.withNewCurrent(random, now)
	if err != nil {
		return nil, err
	}
	keys, err := made.keySet()
	if err != nil {
		return nil, inFile(path, err)
	}
	temporary, err := writeBeside(path, made, ownerOf(path))
	if err != nil {
		return nil, inFile(path, err)
	}
	// A link, unlike a rename, fails if the name exists.
	err = os.Link(temporary, path)
	removed := os.Remove(temporary)
	if errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("%w: %s", ErrExists, path)
	}
	if err := errors.Join(err, removed, syncDirectory(path)); err != nil {
		return nil, inFile(path, err)
	}
	return newRing(path, keys), nil
}

// Rotate adds a key to the file, makes it current and keeps the others. Open rings see it after
// Reload. Rotations by several processes wait for each other, so that none overwrites another's
// key.
func Rotate(path string, random io.Reader, now time.Time) (*Ring, error) {
	return rewrite(path, func(d document) (document, error) { return d.withNewCurrent(random, now) })
}

// SealRows records in the file that every row of the database has an authenticator, and that every
// record names the act that last changed it.
func SealRows(path string) (*Ring, error) {
	return rewrite(path, func(d document) (document, error) {
		d.SealedRows, d.NumberedRows = true, true
		return d, nil
	})
}

// rewrite replaces the file with a changed document, under its lock.
func rewrite(path string, change func(document) (document, error)) (*Ring, error) {
	// Renaming onto a symbolic link would replace the link and leave its target unchanged.
	target, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s", ErrNotFound, path)
	}
	if err != nil {
		return nil, fmt.Errorf("find key file: %w", err)
	}
	file, err := openLocked(target)
	if err != nil {
		return nil, err
	}
	defer file.Close() // also releases the lock
	keys, err := rewriteLocked(file, change)
	if err != nil {
		return nil, err
	}
	return newRing(path, keys), nil
}

func rewriteLocked(file *os.File, change func(document) (document, error)) (*keySet, error) {
	path := file.Name()
	old, err := readDocument(file)
	if err != nil {
		return nil, err
	}
	if _, err := old.keySet(); err != nil {
		return nil, inFile(path, err)
	}
	changed, err := change(old)
	if err != nil {
		return nil, err
	}
	keys, err := changed.keySet()
	if err != nil {
		return nil, inFile(path, err)
	}
	owner, err := file.Stat()
	if err != nil {
		return nil, inFile(path, err)
	}
	temporary, err := writeBeside(path, changed, owner)
	if err != nil {
		return nil, inFile(path, err)
	}
	if err := os.Rename(temporary, path); err != nil {
		return nil, inFile(path, errors.Join(err, os.Remove(temporary)))
	}
	if err := syncDirectory(path); err != nil {
		return nil, inFile(path, err)
	}
	return keys, nil
}

// openLocked opens the file with an exclusive lock. The previous holder may have renamed another
// file into its place while we waited; ours is then outdated, and we start again.
func openLocked(path string) (*os.File, error) {
	for {
		file, err := openGuarded(path)
		if err != nil {
			return nil, err
		}
		newest, err := lock(file)
		if err == nil && newest {
			return file, nil
		}
		file.Close()
		if err != nil {
			return nil, inFile(path, fmt.Errorf("lock: %w", err))
		}
	}
}

func lock(file *os.File) (newest bool, err error) {
	err = syscall.EINTR
	for errors.Is(err, syscall.EINTR) {
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		return false, err
	}
	locked, err := file.Stat()
	if err != nil {
		return false, err
	}
	named, err := os.Stat(file.Name())
	if err != nil {
		return false, err
	}
	return os.SameFile(locked, named), nil
}

// writeBeside writes the document to a new file in the directory of path, and makes it durable
// before it gets its name. It belongs to the given owner, so that root does not lock the
// service out of its keys.
func writeBeside(path string, content document, owner fs.FileInfo) (name string, err error) {
	data, err := json.MarshalIndent(content, "", "  ")
	if err != nil {
		return "", err
	}
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return "", err
	}
	_, err = file.Write(append(data, '\n'))
	err = errors.Join(err, giveTo(file, owner), file.Sync(), file.Close())
	if err != nil {
		return "", errors.Join(err, os.Remove(file.Name()))
	}
	return file.Name(), nil
}

// GiveToOwner makes a file that root has created belong to the owner of path, or of its folder if
// path does not exist, so that a command that is run as root does not lock out the server.
func GiveToOwner(file *os.File, path string) error { return giveTo(file, ownerOf(path)) }

// CreateOwned creates a file if it does not exist. If root creates it, it belongs to the owner of its
// folder. Only a file that was just created is given away: the owner of the folder could have put a link
// to somebody else's file in its place.
func CreateOwned(path string) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600) //nolint:gosec // the operator names the file
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(GiveToOwner(file, filepath.Dir(path)), file.Close())
}

// OpenLock opens a lock file, which it creates like CreateOwned. It does not follow a link.
func OpenLock(path string) (*os.File, error) {
	if err := CreateOwned(path); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_RDWR|syscall.O_NOFOLLOW, 0) //nolint:gosec // the operator names the file
}

// giveTo makes a file that root has created belong to another user. Nobody else can give files away,
// or needs to: a server may write to a folder that it does not own, such as the root of a volume.
func giveTo(file *os.File, owner fs.FileInfo) error {
	if owner == nil || os.Geteuid() != 0 {
		return nil
	}
	status, ok := owner.Sys().(*syscall.Stat_t)
	if !ok || int(status.Uid) == os.Geteuid() {
		return nil
	}
	return file.Chown(int(status.Uid), int(status.Gid))
}

func syncDirectory(path string) error {
	directory, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(directory.Sync(), directory.Close())
}

// createBeside creates a temporary file in the folder of the file that it may become. It refuses a
// symbolic link: a rename would replace the link and leave its target as it is, unnoticed.
func createBeside(path string) (*os.File, error) {
	if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeSymlink != 0 {
		return nil, fmt.Errorf("%s is a symbolic link: put the file itself there", path)
	}
	return os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
}

// replaceFile replaces a file, which need not exist, and returns the new file's info. The new file
// belongs to the owner of the old one or of the folder.
func replaceFile(path string, body []byte) (fs.FileInfo, error) {
	temporary, err := createBeside(path)
	if err != nil {
		return nil, err
	}
	_, err = temporary.Write(body)
	// The file is made durable before it gets its name: half a file after a power failure would
	// look like one that was changed.
	err = errors.Join(err, GiveToOwner(temporary, path), temporary.Sync())
	// This asks the open file, because its name may already belong to another process's file.
	written, statErr := temporary.Stat()
	if err = errors.Join(err, statErr, temporary.Close()); err == nil {
		err = os.Rename(temporary.Name(), path)
	}
	if err != nil {
		return nil, errors.Join(err, os.Remove(temporary.Name()))
	}
	return written, syncDirectory(path)
}
