package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"countersign/internal/keyring"
)

// LockFolder locks a data folder, since the embedded store allows only one server. It
// fails if the folder is locked already.
func LockFolder(folder string) (release func(), err error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	file, err := keyring.OpenLock(LockFile(folder))
	if err != nil {
		return nil, fmt.Errorf("lock data folder: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = fmt.Errorf("another countersign server is using the folder %s: stop it, or use another --data", folder)
		} else {
			err = fmt.Errorf("lock data folder: %w", err)
		}
		return nil, errors.Join(err, file.Close())
	}
	return func() { _ = file.Close() }, nil // closing releases the lock
}

// LockFile returns the path of the lock of a data folder.
func LockFile(folder string) string { return filepath.Join(folder, "serve.lock") }

// NoteAddress stores the URL of the data folder's server for other commands. It is
// written into the lock file, which the server holds.
func (s *Storage) NoteAddress(base string) error {
	if !s.Embedded() {
		return nil // there may be several servers, on other machines
	}
	return os.WriteFile(LockFile(s.Data), []byte(base+"\n"), 0o600)
}

// NotedAddress returns the URL of the server that uses, or last used, the data folder;
// "" if it is not known.
func (s *Storage) NotedAddress() string {
	if !s.Embedded() {
		return ""
	}
	file, err := os.Open(LockFile(s.Data))
	if err != nil {
		return ""
	}
	defer file.Close()
	const most = 2048 // bytes; an address is far shorter
	text, err := io.ReadAll(io.LimitReader(file, most))
	if err != nil {
		return ""
	}
	base, err := ParseBaseURL("the noted address", strings.TrimSpace(string(text)))
	if err != nil {
		return ""
	}
	return base
}
