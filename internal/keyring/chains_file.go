package keyring

import (
	"bytes"
	"crypto/hmac"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/google/uuid"

	"countersign/internal/ledger"
)

// purposeChains is for the journal of chains, which belongs to no organization.
const purposeChains ledger.Purpose = "chains"

// ChainsFile returns the path of the journal that belongs to a heads file.
func ChainsFile(heads string) string {
	return strings.TrimSuffix(heads, filepath.Ext(heads)) + ".chains"
}

// The file is a journal: a line that identifies it, and frames. A frame is the length of its body
// (4 bytes, big-endian), the body, and an authenticator over the previous frame's authenticator and
// the body. So only its end can be cut off unnoticed. A body is the id of a master key, preceded by
// its length (1 byte), and records of a fixed size.
const (
	journalMagic = "countersign chains 1\n"
	recordSize   = 1 + 16 + 16 + 3*8 + 32 + 16
	frameRecords = 32 << 10 // maximum
	macSize      = 32
	// journalSlack is how much a small journal may grow before it is rewritten.
	journalSlack = 256 << 10 // bytes
)

// Kinds of records.
const (
	recordMark     = 1 // the newest mark of a chain; replaces everything earlier about the chain
	recordUnproven = 2 // an unproven mark of the same chain
	recordForked   = 3 // the chain of the previous mark is forked
	recordDropped  = 4 // the chain was dropped
	recordAccepted = 5 // an organization's chains were accepted; Revision counts how often
)

// journal is the file that this process writes.
type journal struct {
	lock *os.File // held while this process is the writer, or nil
	file *os.File // open for appending; nil before the first rewrite
	last [macSize]byte
	size int64 // of the file, in bytes
	held int64 // size of the file after the last rewrite
}

// ErrChainsLocked says that another process writes the journal of chains.
var ErrChainsLocked = errors.New("another server on this machine writes the file already")

// OpenChains reads the journal, which need not exist. If it was changed, the error is ErrInvalid.
// Nothing is written before the first Flush.
func OpenChains(path string, ring *Ring) (*Chains, error) {
	c := newChains(path, ring)
	c.writing.Lock()
	defer c.writing.Unlock()
	err := c.read()
	return c, err
}

// Reload picks up what an operator has accepted while a server is running.
func (c *Chains) Reload() error {
	c.writing.Lock()
	defer c.writing.Unlock()
	return c.readAccepted()
}

// Accept drops everything about an organization's chains, because an operator has restored an older
// copy on purpose. A running server notices with its next Reload.
func (c *Chains) Accept(org uuid.UUID) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := c.readAccepted(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.accepted[org]++
	c.forget(org)
	frames := appendFrames([]byte(journalMagic), c.ring, new([macSize]byte), c.acceptances())
	info, err := replaceFile(c.path+".accepted", frames)
	if err != nil {
		return fmt.Errorf("journal of chains: %w", err)
	}
	c.requests = info
	return nil
}

// Flush appends what was noted since the last one, and makes it durable. It rewrites the file if
// that is more than twice as large as its content. While it writes, it holds no lock that a request
// waits for.
func (c *Chains) Flush() error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.journal.lock == nil {
		if err := c.takeLock(); err != nil {
			return err
		}
	}
	c.mu.Lock()
	if len(c.changed) == 0 && c.journal.file != nil {
		c.mu.Unlock()
		return nil
	}
	rewriting := c.journal.file == nil || c.journal.size > 2*c.journal.held+journalSlack
	var records []byte
	if rewriting {
		records = c.everything()
	} else {
		records = c.changes()
	}
	changed := c.changed
	c.changed = make(map[uuid.UUID]struct{})
	c.mu.Unlock()
	err := c.journal.write(c.path, c.ring, records, rewriting)
	if err != nil {
		c.journal.abandon() // the content is unknown, so rewrite it next time
		c.mu.Lock()
		defer c.mu.Unlock()
		for chain := range changed {
			c.changed[chain] = struct{}{}
		}
	}
	return err
}

// Close lets another process write the journal.
func (c *Chains) Close() error {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.journal.abandon()
	if c.journal.lock == nil {
		return nil
	}
	err := c.journal.lock.Close() // this releases the lock
	c.journal.lock = nil
	return err
}

// takeLock makes this process the writer. It takes over what another process has written since the
// file was read.
func (c *Chains) takeLock() error {
	lock, err := OpenLock(c.path + ".lock")
	if err != nil {
		return fmt.Errorf("journal of chains: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = ErrChainsLocked
		}
		return errors.Join(fmt.Errorf("lock journal of chains %s: %w", c.path, err), lock.Close())
	}
	if err := c.read(); err != nil {
		return errors.Join(err, lock.Close())
	}
	c.journal.lock = lock
	return nil
}

// read merges the files into what is known. The caller holds c.writing.
func (c *Chains) read() error {
	body, err := os.ReadFile(c.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("journal of chains: %w", err)
	}
	read := newChains(c.path, c.ring)
	if err := read.replay(body); err != nil {
		return err
	}
	c.mu.Lock()
	first := len(c.marks)+len(c.accepted)+len(c.sealed[0]) == 0
	if first {
		c.marks, c.touched = read.marks, read.touched
	}
	for element := read.touched.Front(); element != nil; element = element.Next() {
		entry := element.Value.(*chainEntry)
		if first {
			entry.doubt = true
			continue
		}
		if read.accepted[entry.Org] >= c.accepted[entry.Org] { // otherwise it was accepted since
			c.merge(entry)
		}
	}
	for org, times := range read.accepted {
		c.accepted[org] = max(c.accepted[org], times)
	}
	c.mu.Unlock()
	return c.readAccepted()
}

// merge merges an entry of the file. The caller holds c.mu.
func (c *Chains) merge(entry *chainEntry) {
	element := c.marks[entry.Chain]
	if element == nil {
		if final, ok := c.sealedLately(entry.Chain); ok && final.Revision >= entry.Revision {
			return // sealed by this process
		}
		entry.doubt = true
		c.insert(entry)
		return
	}
	known := element.Value.(*chainEntry)
	for _, mark := range append(entry.Unproven, entry.ChainMark) {
		switch {
		case known.Same(&mark):
		case mark.Revision == known.Revision:
			known.Forked = true
		case mark.Revision > known.Revision:
			known.doubted(known.ChainMark)
			known.ChainMark, known.doubt, known.sealed = mark, true, false
		default:
			known.doubted(mark)
		}
	}
	known.Forked = known.Forked || entry.Forked
	c.changed[entry.Chain] = struct{}{}
}

// readAccepted reads the acceptances file if it has changed. The caller holds c.writing.
func (c *Chains) readAccepted() error {
	path := c.path + ".accepted"
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && sameFile(c.requests, info) {
		return nil
	}
	var body []byte
	if err == nil {
		body, err = os.ReadFile(path) //nolint:gosec // the operator names it
	}
	if err != nil {
		return fmt.Errorf("journal of chains: %w", err)
	}
	read := newChains(path, c.ring)
	if err := read.replay(body); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests = info
	for org, times := range read.accepted {
		if times > c.accepted[org] {
			c.accepted[org] = times
			c.forget(org)
			c.changed[org] = struct{}{} // makes Flush write the acceptance
		}
	}
	return nil
}

// everything returns everything known, as records. The caller holds c.mu.
func (c *Chains) everything() []byte {
	records := make([]byte, 0, (len(c.marks)+len(c.accepted))*recordSize)
	records = append(records, c.acceptances()...)
	for element := c.touched.Front(); element != nil; element = element.Next() {
		records = element.Value.(*chainEntry).append(records)
	}
	return records
}

// changes returns what is not in the file yet, as records. The caller holds c.mu.
func (c *Chains) changes() []byte {
	records := make([]byte, 0, len(c.changed)*recordSize)
	for chain := range c.changed {
		switch element := c.marks[chain]; {
		case element != nil:
			records = element.Value.(*chainEntry).append(records)
		case c.accepted[chain] > 0: // the id of an organization
			records = appendRecord(records, recordAccepted, &ChainMark{Org: chain, Revision: c.accepted[chain]})
		default:
			records = appendRecord(records, recordDropped, &ChainMark{Chain: chain})
		}
	}
	return records
}

func (c *Chains) acceptances() (records []byte) {
	for org, times := range c.accepted {
		records = appendRecord(records, recordAccepted, &ChainMark{Org: org, Revision: times})
	}
	return records
}

func (e *chainEntry) append(records []byte) []byte {
	records = appendRecord(records, recordMark, &e.ChainMark)
	for i := range e.Unproven {
		records = appendRecord(records, recordUnproven, &e.Unproven[i])
	}
	if e.Forked {
		records = appendRecord(records, recordForked, &e.ChainMark)
	}
	return records
}

func appendRecord(to []byte, kind byte, m *ChainMark) []byte {
	to = append(to, kind)
	to = append(to, m.Org[:]...)
	to = append(to, m.Chain[:]...)
	for _, n := range []int64{m.Revision, m.Actions, m.Entries} {
		to = binary.BigEndian.AppendUint64(to, uint64(n)) //nolint:gosec // all 64 bits are kept
	}
	to = append(to, m.Digest[:]...)
	return append(to, m.State[:]...)
}

func readRecord(r []byte) (kind byte, m ChainMark) {
	kind, r = r[0], r[1:]
	copy(m.Org[:], r)
	copy(m.Chain[:], r[16:])
	r = r[32:]
	for i, n := range []*int64{&m.Revision, &m.Actions, &m.Entries} {
		*n = int64(binary.BigEndian.Uint64(r[8*i:])) //nolint:gosec // all 64 bits were kept
	}
	copy(m.Digest[:], r[24:])
	copy(m.State[:], r[56:])
	return kind, m
}

// appendFrames puts records into frames. last is the authenticator of the previous frame, and is
// updated.
func appendFrames(to []byte, ring *Ring, last *[macSize]byte, records []byte) []byte {
	key := ring.CurrentKey()
	for len(records) > 0 {
		share := records[:min(len(records), frameRecords*recordSize)]
		records = records[len(share):]
		body := append(append([]byte{byte(len(key))}, key...), share...) //nolint:gosec // a key's name is short
		*last, _ = ring.MAC(key, uuid.Nil, purposeChains, last[:], body)
		to = binary.BigEndian.AppendUint32(to, uint32(len(body))) //nolint:gosec // at most frameRecords records
		to = append(append(to, body...), last[:]...)
	}
	return to
}

// replay reads a journal. An incomplete frame at its end is ignored: it was being written when the
// machine stopped.
func (c *Chains) replay(file []byte) error {
	invalid := fmt.Errorf("journal of chains %s: %w: it was changed; if you know why, remove it and start again", c.path, ErrInvalid)
	rest, ok := bytes.CutPrefix(file, []byte(journalMagic))
	if !ok {
		if len(file) < len(journalMagic) && strings.HasPrefix(journalMagic, string(file)) {
			return nil
		}
		return invalid
	}
	var last [macSize]byte
	for len(rest) >= 4 {
		size := int64(binary.BigEndian.Uint32(rest))
		end := 4 + size + macSize
		if end > int64(len(rest)) {
			return nil
		}
		body, mac := rest[4:4+size], rest[4+size:end]
		records, ok := c.openFrame(&last, body, mac)
		if !ok {
			// A machine that stops may leave zeros in place of the frame.
			if end == int64(len(rest)) || len(bytes.Trim(rest, "\x00")) == 0 {
				return nil
			}
			return invalid
		}
		if !c.replayRecords(records) {
			return invalid
		}
		rest = rest[end:]
	}
	return nil
}

func (c *Chains) openFrame(last *[macSize]byte, body, mac []byte) (records []byte, ok bool) {
	if len(body) == 0 || len(body) < 1+int(body[0]) {
		return nil, false
	}
	end := 1 + int(body[0])
	key, records := string(body[1:end]), body[end:]
	sum, known := c.ring.MAC(key, uuid.Nil, purposeChains, last[:], body)
	if !known || !hmac.Equal(sum[:], mac) || len(records)%recordSize != 0 {
		return nil, false
	}
	*last = sum
	return records, true
}

func (c *Chains) replayRecords(records []byte) bool {
	for ; len(records) > 0; records = records[recordSize:] {
		kind, mark := readRecord(records)
		element := c.marks[mark.Chain]
		switch kind {
		case recordMark:
			if element != nil {
				c.remove(element)
			}
			c.insert(&chainEntry{ChainWatched: ChainWatched{ChainMark: mark}})
		case recordUnproven:
			if element != nil {
				element.Value.(*chainEntry).doubted(mark)
			}
		case recordForked:
			if element != nil {
				element.Value.(*chainEntry).Forked = true
			}
		case recordDropped:
			if element != nil {
				c.remove(element)
			}
		case recordAccepted:
			c.accepted[mark.Org] = mark.Revision
		default:
			return false
		}
	}
	return true
}

// write appends records, or rewrites the file with them.
func (j *journal) write(path string, ring *Ring, records []byte, rewriting bool) error {
	if !rewriting {
		frames := appendFrames(nil, ring, &j.last, records)
		n, err := j.file.Write(frames)
		j.size += int64(n)
		if err = errors.Join(err, j.file.Sync()); err != nil {
			return fmt.Errorf("journal of chains: %w", err)
		}
		return nil
	}
	j.abandon()
	frames := appendFrames([]byte(journalMagic), ring, &j.last, records)
	if _, err := replaceFile(path, frames); err != nil {
		return fmt.Errorf("journal of chains: %w", err)
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0o600) //nolint:gosec // the operator names it
	if err != nil {
		return fmt.Errorf("journal of chains: %w", err)
	}
	j.file, j.size, j.held = file, int64(len(frames)), int64(len(frames))
	return nil
}

// abandon closes the file, which is then rewritten.
func (j *journal) abandon() {
	if j.file != nil {
		_ = j.file.Close() // everything written is durable or its error was reported
	}
	j.file, j.last, j.size, j.held = nil, [macSize]byte{}, 0, 0
}
