package keyring

import (
	"crypto/hmac"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/google/uuid"

	"countersign/internal/ledger"
)

// purposeLogMarks is for the file of log marks, which belongs to no organization.
const purposeLogMarks ledger.Purpose = "log-marks"

// LogMarksFile returns the path of the marks that belong to a heads file.
func LogMarksFile(heads string) string {
	return strings.TrimSuffix(heads, filepath.Ext(heads)) + ".logs"
}

// LogMarks records, in a file outside the database, how far each transparency log was signed. A
// mark is durable before its checkpoint is published, and never moves back. So two checkpoints of
// one size that were signed with one file never have different roots.
//
// It is safe for concurrent use, also by several processes with one file.
type LogMarks struct {
	path string
	ring *Ring

	changing sync.Mutex // held while this process changes the file; taken before mu

	mu    sync.Mutex // held briefly, never while writing the file or waiting for its lock
	marks map[uuid.UUID]LogMark
	open  map[uuid.UUID]uuid.UUID // by organization: the log that was signed and has not ended
	known fs.FileInfo             // of the file when this process last read or wrote it, or nil
}

// LogMark is how far a log was signed.
type LogMark struct {
	Org  uuid.UUID
	Size int64
	Root [32]byte
	// Ended says that the log is never signed again.
	Ended bool
}

// Reasons not to sign.
var (
	// ErrLogForked says that a log was already signed with another root, or further.
	ErrLogForked = errors.New("the log was signed otherwise before")
	// ErrLogEnded says that a log was closed.
	ErrLogEnded = errors.New("the log was closed")
	// ErrInvalidLogMarks says that a file is not a valid file of log marks.
	ErrInvalidLogMarks = errors.New("not a valid file of log marks: it was changed or is not whole")
)

// OpenLogMarks reads the file, which need not exist. If it was changed, the error is
// ErrInvalidLogMarks.
func OpenLogMarks(path string, ring *Ring) (*LogMarks, error) {
	m := &LogMarks{path: path, ring: ring, marks: make(map[uuid.UUID]LogMark)}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.reload(); err != nil {
		return nil, err
	}
	return m, nil
}

// Mark returns how far a log was signed.
func (m *LogMarks) Mark(log uuid.UUID) (LogMark, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	mark, ok := m.marks[log]
	return mark, ok
}

// Of returns the log of an organization that was signed and has not ended.
func (m *LogMarks) Of(org uuid.UUID) (log uuid.UUID, mark LogMark, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	log, ok = m.open[org]
	return log, m.marks[log], ok
}

// Signed returns with how many receipts the logs that have not ended were signed, by organization.
func (m *LogMarks) Signed() map[uuid.UUID]int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	signed := make(map[uuid.UUID]int64, len(m.open))
	for org, log := range m.open {
		signed[org] = m.marks[log].Size
	}
	return signed
}

// set replaces all marks. The caller holds mu.
func (m *LogMarks) set(marks map[uuid.UUID]LogMark, known fs.FileInfo) {
	m.marks, m.known = marks, known
	m.open = make(map[uuid.UUID]uuid.UUID, len(marks))
	for log, mark := range marks {
		if !mark.Ended {
			m.open[mark.Org] = log
		}
	}
}

// Advance records how far logs are about to be signed. When it returns nil, the marks survive a
// power failure and the logs may be signed. If a log was signed differently before, the error is
// ErrLogForked, and if it has ended, ErrLogEnded; nothing is then written.
func (m *LogMarks) Advance(next map[uuid.UUID]LogMark) error {
	return m.change(func(marks map[uuid.UUID]LogMark) error {
		for log, mark := range next {
			before, known := marks[log]
			switch {
			case known && before.Ended:
				return fmt.Errorf("log %x: %w", log[:], ErrLogEnded)
			case known && (before.Org != mark.Org || mark.Size < before.Size || mark.Size == before.Size && mark.Root != before.Root):
				return fmt.Errorf("log %x: %w", log[:], ErrLogForked)
			}
			marks[log] = mark
		}
		return nil
	})
}

// End records that an organization's logs are never signed again, because an operator has restored
// an older database and a new log starts.
func (m *LogMarks) End(org uuid.UUID) error {
	return m.end(func(_ uuid.UUID, mark LogMark) bool { return mark.Org == org })
}

// EndLog is End for one log.
func (m *LogMarks) EndLog(log uuid.UUID) error {
	return m.end(func(one uuid.UUID, _ LogMark) bool { return one == log })
}

// EndAll is End for every organization.
func (m *LogMarks) EndAll() error { return m.end(func(uuid.UUID, LogMark) bool { return true }) }

func (m *LogMarks) end(concerned func(uuid.UUID, LogMark) bool) error {
	return m.change(func(marks map[uuid.UUID]LogMark) error {
		for log, mark := range marks {
			if concerned(log, mark) {
				mark.Ended = true
				marks[log] = mark
			}
		}
		return nil
	})
}

// Reload reads the file again if another process has written it.
func (m *LogMarks) Reload() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.reload()
}

// reload requires mu to be held. A file that was removed is written again with the next change, so
// nothing that was signed is forgotten.
func (m *LogMarks) reload() error {
	info, err := os.Stat(m.path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && sameFile(m.known, info) {
		return nil
	}
	var body []byte
	if err == nil {
		body, err = readBounded(m.path)
	}
	if err != nil {
		return fmt.Errorf("file of log marks: %w", err)
	}
	read, err := m.decode(body)
	if err != nil {
		return fmt.Errorf("file of log marks %s: %w: restore a copy of it", m.path, err)
	}
	for log, mark := range m.marks { // what was signed or ended here stays so, even if the file was replaced
		found := read[log]
		kept := found
		if found.Size <= mark.Size {
			kept = mark
		}
		kept.Ended = found.Ended || mark.Ended
		if kept != found {
			read[log], info = kept, nil // the file lacks it, so the next change must write the file
		}
	}
	m.set(read, info)
	return nil
}

// change reads the file, edits the marks and writes it under the file's lock. If nothing changes,
// nothing is written.
func (m *LogMarks) change(edit func(map[uuid.UUID]LogMark) error) error {
	m.changing.Lock()
	defer m.changing.Unlock()
	unlock, err := lockBeside("file of log marks", m.path)
	if err != nil {
		return err
	}
	defer unlock()
	m.mu.Lock()
	err = m.reload()
	before, gone := maps.Clone(m.marks), m.known == nil
	m.mu.Unlock()
	if err != nil {
		return err
	}
	next := maps.Clone(before)
	if err := edit(next); err != nil {
		return err
	}
	if _, err := os.Lstat(m.path); !gone && err == nil && maps.Equal(before, next) {
		return nil
	}
	body, err := m.encode(next)
	if err != nil {
		return err
	}
	written, err := replaceFile(m.path, body)
	if err != nil {
		return fmt.Errorf("file of log marks: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.set(next, written)
	return nil
}

// logMarksFile is the file's format. The authenticator covers the marks in order.
type logMarksFile struct {
	KeyID string             `json:"key_id"`
	Logs  map[string]logMark `json:"logs"` // by log id
	MAC   string             `json:"mac"`
}

type logMark struct {
	Org   string `json:"organization_id"`
	Size  int64  `json:"size"`
	Root  string `json:"root"`
	Ended bool   `json:"ended,omitempty"`
}

func (f *logMarksFile) covered() []byte {
	var text []byte
	for _, log := range slices.Sorted(maps.Keys(f.Logs)) {
		mark := f.Logs[log]
		text = fmt.Appendf(text, "%q %q %d %q %t\n", log, mark.Org, mark.Size, mark.Root, mark.Ended)
	}
	return text
}

func (m *LogMarks) encode(marks map[uuid.UUID]LogMark) ([]byte, error) {
	file := logMarksFile{KeyID: m.ring.CurrentKey(), Logs: make(map[string]logMark, len(marks))}
	for log, mark := range marks {
		file.Logs[hex.EncodeToString(log[:])] = logMark{mark.Org.String(), mark.Size, hex.EncodeToString(mark.Root[:]), mark.Ended}
	}
	mac, ok := m.ring.MAC(file.KeyID, uuid.Nil, purposeLogMarks, file.covered())
	if !ok {
		return nil, errors.New("file of log marks: the current key is not on the ring")
	}
	file.MAC = hex.EncodeToString(mac[:])
	body, err := json.Marshal(file)
	if err != nil {
		return nil, fmt.Errorf("file of log marks: %w", err)
	}
	return append(body, '\n'), nil
}

func (m *LogMarks) decode(body []byte) (map[uuid.UUID]LogMark, error) {
	var file logMarksFile
	if err := json.Unmarshal(body, &file); err != nil {
		return nil, ErrInvalidLogMarks
	}
	mac, ok := m.ring.MAC(file.KeyID, uuid.Nil, purposeLogMarks, file.covered())
	stated, err := hex.DecodeString(file.MAC)
	if !ok || err != nil || !hmac.Equal(mac[:], stated) {
		return nil, ErrInvalidLogMarks
	}
	marks := make(map[uuid.UUID]LogMark, len(file.Logs))
	for text, one := range file.Logs {
		log, logErr := hex.DecodeString(text)
		org, orgErr := uuid.Parse(one.Org)
		root, ok := decodeHash(one.Root)
		if logErr != nil || orgErr != nil || !ok || len(log) != len(uuid.UUID{}) || one.Size < 0 {
			return nil, ErrInvalidLogMarks
		}
		marks[uuid.UUID(log)] = LogMark{Org: org, Size: one.Size, Root: root, Ended: one.Ended}
	}
	return marks, nil
}
