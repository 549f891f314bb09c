package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
)

// readSecret reads a file that holds one secret. It refuses a file that every user can
// read; the file's group may, since secrets are often handed to services that way.
func readSecret(flag, path string) (string, error) {
	// Without O_NONBLOCK, opening a named pipe would block until someone writes to it.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) //nolint:gosec // the operator names the file
	if err != nil {
		return "", fmt.Errorf("%s: %w", flag, err)
	}
	defer file.Close()
	info, err := file.Stat()
	switch {
	case err != nil:
		return "", fmt.Errorf("%s: %w", flag, err)
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("%s: %s is not a file", flag, path)
	case info.Mode().Perm()&0o007 != 0:
		return "", fmt.Errorf("%s: every user can access %s (mode %04o): run chmod 600 %s", flag, path, info.Mode().Perm(), path)
	}
	data, err := ReadBounded(file, maxSecret)
	if err != nil {
		return "", fmt.Errorf("%s: %s: %w", flag, path, err)
	}
	text := strings.TrimSpace(string(data))
	if text == "" {
		return "", fmt.Errorf("%s: %s is empty", flag, path)
	}
	return text, nil
}

// ReadBounded reads all of r and fails if it is longer than limit bytes.
func ReadBounded(r io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("it is longer than %d bytes", limit)
	}
	return data, nil
}

// WriteNew writes a file that must not exist yet.
func WriteNew(path string, body []byte) error {
	err := CreateFile(path, body)
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%s already exists: name a new file", path)
	}
	return err
}

// CreateFile writes a new file with mode 0600. If the file exists, the error is
// os.ErrExist.
func CreateFile(path string, body []byte) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600) //nolint:gosec // the operator names the file
	if err != nil {
		return err
	}
	_, err = file.Write(body)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

const maxSecret = 16 << 10
