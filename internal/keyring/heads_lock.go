package keyring

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/google/uuid"
)

// change reads the file, edits what is known and writes it, all under the file's lock, so that no
// process overwrites what another has added. If edit fails, nothing is written. edit is called with
// mu held.
func (h *Heads) change(edit func() error) error {
	h.changing.Lock()
	defer h.changing.Unlock()
	unlock, err := h.lock()
	if err != nil {
		return err
	}
	defer unlock()
	body, noted, err := h.prepare(edit)
	if err != nil {
		return err
	}
	written, err := h.write(body)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.known = written
	for org, seen := range noted {
		if h.noted[org] == seen { // otherwise more was noted in the meantime
			delete(h.noted, org)
		}
	}
	return nil
}

// prepare is the part of a change that holds mu.
func (h *Heads) prepare(edit func() error) (body []byte, noted map[uuid.UUID]Seen, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.reload(); err != nil {
		return nil, nil, err
	}
	if err := edit(); err != nil {
		return nil, nil, err
	}
	body, err = h.encode()
	return body, maps.Clone(h.noted), err
}

// How long to wait for another process that changes the file, which takes only milliseconds.
const (
	lockWait  = 5 * time.Second
	lockRetry = 5 * time.Millisecond
)

func (h *Heads) lock() (unlock func(), err error) { return lockBeside("file of heads", h.path) }

// lockBeside locks a file next to the given one. The file itself cannot be locked, because each
// change replaces it.
func lockBeside(what, path string) (unlock func(), err error) {
	beside := path + ".lock"
	file, err := OpenLock(beside)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	for deadline := time.Now().Add(lockWait); ; time.Sleep(lockRetry) {
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = file.Close() }, nil // closing releases the lock
		}
		waits := errors.Is(err, syscall.EWOULDBLOCK) || errors.Is(err, syscall.EINTR)
		if !waits {
			return nil, fmt.Errorf("%s: lock %s: %w", what, beside, errors.Join(err, file.Close()))
		}
		if time.Now().After(deadline) {
			return nil, errors.Join(fmt.Errorf("%s: another process has held %s for %s: end that process, or try again", what, beside, lockWait), file.Close())
		}
	}
}

// sameFile reports whether a file is still the known one, which is nil if none is known. Its
// modification time alone is not enough: two files can be written within one tick of the clock.
func sameFile(known, now fs.FileInfo) bool {
	return known != nil && os.SameFile(known, now) && known.ModTime().Equal(now.ModTime()) && known.Size() == now.Size()
}

// ownerOf returns the info of the file, or of its folder, whose owner must be able to read the new
// file.
func ownerOf(path string) fs.FileInfo {
	for _, name := range []string{path, filepath.Dir(path)} {
		if info, err := os.Stat(name); err == nil {
			return info
		}
	}
	return nil
}
