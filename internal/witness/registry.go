package witness

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/mod/sumdb/note"
)

// Log is a log that was registered by hand.
type Log struct {
	Origin string   `json:"origin"`
	Keys   []string `json:"keys"` // verifier keys; several while a log rotates its key
}

// registryFile lists the registered logs. It is a file of its own, so that a head
// that has disappeared can be told from a log that was never registered.
const registryFile = "witness.json"

type registry struct {
	Format string `json:"format"`
	Logs   []Log  `json:"logs"`
}

const (
	registryFormat = "countersign-witness-v1"
	maxLogs        = 1000
	maxKeys        = 8 // of one log
)

// The folders in a witness's folder.
const (
	headFolder = "logs"
	forkFolder = "forks"
)

// InputError is an error in what a command was given: a key, a name, or a folder that cannot be used as
// it is. Nothing was written.
type InputError struct{ error }

func (e *InputError) Unwrap() error { return e.error }

// Init makes a witness in a folder that does not exist or is empty, and returns its
// verifier key. What it refuses for its arguments alone is an InputError.
func Init(folder, name string) (vkey string, err error) {
	if err := checkName(name); err != nil {
		return "", &InputError{err}
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return "", err
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return "", err
	}
	if len(entries) > 0 {
		return "", fmt.Errorf("%s is not empty: a witness that is there keeps its key; for another one name another folder", folder)
	}
	release, err := lock(folder)
	if err != nil {
		return "", err
	}
	defer release()
	skey, err := newSigningKey(name)
	if err != nil {
		return "", err
	}
	files := folderFiles(folder)
	for _, inner := range []string{headFolder, forkFolder} {
		if err := files.makeFolder(inner); err != nil {
			return "", err
		}
	}
	if err := writeRegistry(files, nil); err != nil {
		return "", err
	}
	if err := replace(files, keyFile, []byte(skey+"\n")); err != nil {
		return "", err
	}
	return VKey(folder)
}

// Add registers a key of a log; without an origin the key's name is taken for it. A
// log that is registered already gets one more key. It returns the origin. An error in
// what it was given is an InputError; that a key is registered already is none.
func Add(folder, vkey, name string) (string, error) {
	verifier, err := newLogVerifier(vkey)
	if err != nil {
		return "", &InputError{fmt.Errorf("the log's key: %w", err)}
	}
	if name == "" {
		name = verifier.Name()
	}
	if err := checkOrigin(name); err != nil {
		return "", &InputError{err}
	}
	release, err := lockWitness(folder)
	if err != nil {
		return "", &InputError{err}
	}
	defer release()
	return name, add(folderFiles(folder), vkey, name)
}

func add(files fileSystem, vkey, name string) error {
	k, err := readKey(files)
	if err != nil {
		return &InputError{err}
	}
	logs, err := readRegistry(files)
	if err != nil {
		return &InputError{err}
	}
	at := slices.IndexFunc(logs, func(l Log) bool { return l.Origin == name })
	switch {
	case at < 0 && len(logs) >= maxLogs:
		return fmt.Errorf("a witness has at most %d logs", maxLogs)
	case at < 0:
		// The head comes first: a registered log always has one. One that is there
		// from before is kept, whatever its size.
		if err := beginHead(files, name, k.verifier); err != nil {
			return err
		}
		logs = append(logs, Log{Origin: name, Keys: []string{vkey}})
	case slices.Contains(logs[at].Keys, vkey):
		return errors.New("this key is registered for this log already")
	case len(logs[at].Keys) >= maxKeys:
		return fmt.Errorf("a log has at most %d keys", maxKeys)
	default:
		logs[at].Keys = append(logs[at].Keys, vkey)
	}
	return writeRegistry(files, logs)
}

// beginHead makes the head of a log of which nothing was cosigned.
func beginHead(files fileSystem, name string, own note.Verifier) error {
	_, err := readHead(files, name, own)
	if errors.Is(err, fs.ErrNotExist) {
		return writeHead(files, &head{Origin: name, Root: emptyRoot, Grown: time.Now().Unix()})
	}
	return err
}

func checkOrigin(name string) error {
	if name == "" || len(name) > maxOrigin || !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) {
		return fmt.Errorf("an origin is one line of 1 to %d bytes", maxOrigin)
	}
	return nil
}

func (l Log) verifiers() (note.Verifiers, error) {
	verifiers := make([]note.Verifier, len(l.Keys))
	for i, vkey := range l.Keys {
		var err error
		if verifiers[i], err = newLogVerifier(vkey); err != nil {
			return nil, fmt.Errorf("%s: a key of %s: %w", registryFile, l.Origin, err)
		}
	}
	return note.VerifierList(verifiers...), nil
}

func readRegistry(files fileSystem) ([]Log, error) {
	data, err := files.read(registryFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("there is no %s in this folder: is --state right? Put its backup in place", registryFile)
	case err != nil:
		return nil, err
	}
	var read registry
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&read); err != nil {
		return nil, fmt.Errorf("%s is damaged: %w", registryFile, err)
	}
	if read.Format != registryFormat {
		return nil, fmt.Errorf("%s has another format than %s", registryFile, registryFormat)
	}
	seen := make(map[string]bool)
	for _, l := range read.Logs {
		if seen[l.Origin] || checkOrigin(l.Origin) != nil || len(l.Keys) == 0 {
			return nil, fmt.Errorf("%s is damaged: a log is there twice, or has no name or no key", registryFile)
		}
		seen[l.Origin] = true
	}
	return read.Logs, nil
}

func writeRegistry(files fileSystem, logs []Log) error {
	if logs == nil {
		logs = []Log{}
	}
	data, err := json.MarshalIndent(registry{registryFormat, logs}, "", "  ")
	if err != nil {
		return err
	}
	return replace(files, registryFile, append(data, '\n'))
}
