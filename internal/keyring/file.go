package keyring

import (
	"bytes"
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"syscall"
	"time"

	"countersign/internal/ledger"
)

const (
	formatVersion = 1
	secretSize    = 32
	idPrefix      = "mk_"
	idWidth       = 12
	maxKeys       = 1000
	maxFileSize   = 1 << 20
)

var (
	// ErrNotFound says that there is no key file.
	ErrNotFound = errors.New("key file not found")
	// ErrExposed says that users other than its owner can read or write the file.
	ErrExposed = errors.New("open to other users")
	// ErrInvalid says that the file is not a valid key file.
	ErrInvalid = errors.New("not a valid key file")
)

// document is the key file's JSON.
type document struct {
	Version int     `json:"version"`
	Current string  `json:"current"`
	Keys    []entry `json:"keys"`
	// SealedRows says that every row of the database that belongs to these keys has an
	// authenticator, so a row without one was changed outside the service. It is here because an
	// attacker with access to the database must not be able to revert it.
	SealedRows bool `json:"sealed_rows,omitempty"`
	// NumberedRows says that every administrative record names the act that last changed it, so a
	// record that names none is older. It is here for the same reason.
	NumberedRows bool `json:"numbered_rows,omitempty"`
}

type entry struct {
	ID        string    `json:"id"`
	Secret    []byte    `json:"secret"` // base64 in JSON
	CreatedAt time.Time `json:"created_at"`
	// LogKeyRevokedAt is when the derived key that signs checkpoints was revoked, or nil.
	LogKeyRevokedAt *time.Time `json:"log_key_revoked_at,omitempty"`
}

var (
	idForm     = regexp.MustCompile(fmt.Sprintf(`^%s[a-z2-7]{%d}$`, idPrefix, idWidth))
	idEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)
)

func newEntry(random io.Reader, now time.Time) (entry, error) {
	var secret [secretSize]byte
	var name [8]byte
	for _, part := range [][]byte{secret[:], name[:]} {
		if _, err := io.ReadFull(random, part); err != nil {
			return entry{}, fmt.Errorf("read randomness for a new key: %w", err)
		}
	}
	return entry{
		ID:        idPrefix + idEncoding.EncodeToString(name[:])[:idWidth],
		Secret:    secret[:],
		CreatedAt: now.UTC().Truncate(time.Millisecond),
	}, nil
}

// withNewCurrent returns the document with another key, which is current.
func (d document) withNewCurrent(random io.Reader, now time.Time) (document, error) {
	added, err := newEntry(random, now)
	if err != nil {
		return document{}, err
	}
	d.Version = formatVersion
	d.Current = added.ID
	d.Keys = append(d.Keys[:len(d.Keys):len(d.Keys)], added)
	return d, nil
}

func (d document) keySet() (*keySet, error) {
	if len(d.Keys) > maxKeys {
		return nil, fmt.Errorf("%w: it holds %d keys, and at most %d are read", ErrInvalid, len(d.Keys), maxKeys)
	}
	set := &keySet{current: d.Current, sealedRows: d.SealedRows, numberedRows: d.NumberedRows, masters: make(map[string]ledger.Secret, len(d.Keys))}
	for i, key := range d.Keys {
		if !idForm.MatchString(key.ID) {
			return nil, fmt.Errorf("%w: the id of key %d is not %s and %d of the characters a-z and 2-7", ErrInvalid, i+1, idPrefix, idWidth)
		}
		if len(key.Secret) != secretSize {
			return nil, fmt.Errorf("%w: the secret of %s is %d bytes long instead of %d", ErrInvalid, key.ID, len(key.Secret), secretSize)
		}
		if _, twice := set.masters[key.ID]; twice {
			return nil, fmt.Errorf("%w: it holds %s twice", ErrInvalid, key.ID)
		}
		set.masters[key.ID] = ledger.NewSecret(string(key.Secret))
		set.ids = append(set.ids, key.ID)
	}
	if _, known := set.masters[d.Current]; !known {
		return nil, fmt.Errorf("%w: its current key is not among its keys", ErrInvalid)
	}
	set.logKeys = d.logKeys()
	return set, nil
}

// decode reads the version first, so that a file of a later version is reported as such. The
// decoder's own errors can quote the file, which consists of secrets, so they are not passed on.
func decode(data []byte) (document, error) {
	var header struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(data, &header); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			return document{}, fmt.Errorf("%w: it is not JSON (at byte %d)", ErrInvalid, syntax.Offset)
		}
		return document{}, fmt.Errorf("%w: it is not a JSON object with a version", ErrInvalid)
	}
	if header.Version != formatVersion {
		return document{}, fmt.Errorf("%w: its version is %d, and this program reads version %d", ErrInvalid, header.Version, formatVersion)
	}
	var read document
	strict := json.NewDecoder(bytes.NewReader(data))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&read); err != nil {
		return document{}, fmt.Errorf("%w: it may hold only version, current, sealed_rows, numbered_rows and keys, and each key only id, secret (base64), created_at and log_key_revoked_at (RFC 3339)", ErrInvalid)
	}
	return read, nil
}

func readKeySet(path string) (*keySet, error) {
	file, err := openGuarded(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	read, err := readDocument(file)
	if err != nil {
		return nil, err
	}
	set, err := read.keySet()
	if err != nil {
		return nil, inFile(path, err)
	}
	return set, nil
}

func readDocument(file *os.File) (document, error) {
	data, err := io.ReadAll(io.LimitReader(file, maxFileSize+1))
	if err != nil {
		return document{}, inFile(file.Name(), err)
	}
	if len(data) > maxFileSize {
		return document{}, inFile(file.Name(), fmt.Errorf("%w: it is longer than %d bytes", ErrInvalid, maxFileSize))
	}
	read, err := decode(data)
	if err != nil {
		return document{}, inFile(file.Name(), err)
	}
	return read, nil
}

// openGuarded opens a regular file that only its owner can read and write. It checks the open file,
// not the path, which could be swapped in between.
func openGuarded(path string) (*os.File, error) {
	// Without O_NONBLOCK, opening a named pipe would block until someone writes to it.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) //nolint:gosec // the operator names the file
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s", ErrNotFound, path)
	}
	if err != nil {
		return nil, fmt.Errorf("open key file: %w", err)
	}
	if err := checkGuarded(file); err != nil {
		file.Close()
		return nil, inFile(path, err)
	}
	return file, nil
}

func checkGuarded(file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if info.IsDir() {
		return fmt.Errorf("%w: it is a directory; name the file inside it", ErrInvalid)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%w: it is not a regular file", ErrInvalid)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return fmt.Errorf("%w (mode %04o): run chmod 600 %s", ErrExposed, mode, file.Name())
	}
	return nil
}

func inFile(path string, err error) error { return fmt.Errorf("key file %s: %w", path, err) }
