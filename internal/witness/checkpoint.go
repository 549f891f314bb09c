package witness

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"

	f_log "github.com/transparency-dev/formats/log"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

const (
	// maxProof is the protocol's own bound.
	maxProof = 63
	// maxCheckpoint bounds a signed checkpoint, in bytes: room for 16 signatures of
	// 5 kB, which a verifier must accept, and more.
	maxCheckpoint = 128 << 10
	// maxOrigin bounds an origin line, in bytes.
	maxOrigin = 1 << 10
	// maxSize bounds the size of a tree: above it the arithmetic of tlog overflows.
	maxSize = 1 << 62
	// hashText is the length of a hash in base64.
	hashText = 44
)

// emptyRoot is the root of a tree without leaves: RFC 6962, section 2.1.
var emptyRoot = tlog.Hash(sha256.Sum256(nil))

// checkpoint is a signed tree head.
type checkpoint struct {
	Origin string
	Size   int64
	Root   tlog.Hash

	note *note.Note // with the signatures that were verified
}

// parseCheckpoint reads a signed note whose text is a checkpoint. It verifies no
// signature.
func parseCheckpoint(data []byte) (*checkpoint, error) {
	if len(data) > maxCheckpoint {
		return nil, fmt.Errorf("%w: the checkpoint is longer than %d bytes", errMalformed, maxCheckpoint)
	}
	var unverified *note.UnverifiedNoteError
	if _, err := note.Open(data, nil); !errors.As(err, &unverified) {
		return nil, fmt.Errorf("%w: the checkpoint is not a signed note", errMalformed)
	}
	parsed, err := parseText(unverified.Note.Text)
	if err != nil {
		return nil, err
	}
	parsed.note = unverified.Note
	return parsed, nil
}

// parseText reads the text of a checkpoint: origin, size, root and extension lines.
func parseText(text string) (*checkpoint, error) {
	var read f_log.Checkpoint
	extensions, err := read.Unmarshal([]byte(text))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: the note's text is not a checkpoint", errMalformed)
	case !strings.HasPrefix(text, string(read.Marshal())): // a size with leading zeros, base64 with stray bits
		return nil, fmt.Errorf("%w: the checkpoint's size or root is not in its canonical form", errMalformed)
	case len(read.Origin) > maxOrigin:
		return nil, fmt.Errorf("%w: the origin is longer than %d bytes", errMalformed, maxOrigin)
	case read.Size > maxSize:
		return nil, fmt.Errorf("%w: the tree is larger than 2^62", errMalformed)
	case len(read.Hash) != tlog.HashSize:
		return nil, fmt.Errorf("%w: the root is not %d bytes long", errMalformed, tlog.HashSize)
	case len(extensions) > 0 && (extensions[0] == '\n' || bytes.Contains(extensions, []byte("\n\n"))):
		return nil, fmt.Errorf("%w: an extension line is empty", errMalformed)
	}
	return &checkpoint{Origin: read.Origin, Size: int64(read.Size), Root: tlog.Hash(read.Hash)}, nil
}

// maxRequest bounds the body of add-checkpoint.
const maxRequest = len("old ") + 20 + maxProof*(hashText+1) + 2 + maxCheckpoint

// parseRequest reads the body of add-checkpoint.
func parseRequest(body []byte) (s submission, err error) {
	header, signed, found := bytes.Cut(body, []byte("\n\n"))
	if !found {
		return s, fmt.Errorf("%w: there is no empty line before the checkpoint", errMalformed)
	}
	if bytes.Count(header, []byte("\n")) > maxProof {
		return s, fmt.Errorf("%w: a consistency proof has at most %d lines", errMalformed, maxProof)
	}
	lines := strings.Split(string(header), "\n")
	size, found := strings.CutPrefix(lines[0], "old ")
	if !found {
		return s, fmt.Errorf("%w: the first line must be \"old\" and a size", errMalformed)
	}
	if s.old, err = parseSize(size); err != nil {
		return s, fmt.Errorf("%w: the old size is not a decimal number without leading zeros", errMalformed)
	}
	for _, line := range lines[1:] {
		hash, err := parseHash(line)
		if err != nil {
			return s, fmt.Errorf("%w: a line of the proof is not the base64 of a hash", errMalformed)
		}
		s.proof = append(s.proof, hash)
	}
	s.checkpoint = signed
	return s, nil
}

// appendRequest writes the body of add-checkpoint.
func appendRequest(body []byte, s submission) []byte {
	body = fmt.Appendf(body, "old %d\n", s.old)
	for _, hash := range s.proof {
		body = append(base64.StdEncoding.AppendEncode(body, hash[:]), '\n')
	}
	return append(append(body, '\n'), s.checkpoint...)
}

var errNotCanonical = errors.New("not in its canonical form")

// parseSize reads a decimal number in its one form.
func parseSize(text string) (int64, error) {
	size, err := strconv.ParseInt(text, 10, 64)
	if err == nil && (size < 0 || strconv.FormatInt(size, 10) != text) {
		err = errNotCanonical
	}
	return size, err
}

// parseHash reads a hash in its one form.
func parseHash(text string) (hash tlog.Hash, err error) {
	if len(text) != hashText { // the decoder overlooks carriage returns
		return hash, errNotCanonical
	}
	data, err := base64.StdEncoding.Strict().DecodeString(text)
	if err == nil && len(data) != len(hash) {
		err = errNotCanonical
	}
	copy(hash[:], data)
	return hash, err
}
