package tlog

import (
	"bytes"
	"errors"

	"golang.org/x/mod/sumdb/note"
)

// ErrNoCosignatures says that bytes are not signature lines that a checkpoint could end with.
var ErrNoCosignatures = errors.New("not the signature lines of a note")

// CountCosignatures counts signature lines.
func CountCosignatures(lines []byte) int { return bytes.Count(lines, []byte("\n")) }

// MergeCosignatures adds signature lines of a signed checkpoint to others of the same one.
// Of two lines by one key the newer stays.
func MergeCosignatures(checkpoint, older, newer []byte) ([]byte, error) {
	kept, err := signatures(checkpoint, older)
	if err != nil {
		return nil, err
	}
	added, err := signatures(checkpoint, newer)
	if err != nil {
		return nil, err
	}
	type key struct {
		name string
		hash uint32
	}
	replaced := make(map[key]bool, len(added))
	for _, s := range added {
		replaced[key{s.Name, s.Hash}] = true
	}
	var merged []byte
	for _, s := range kept {
		if !replaced[key{s.Name, s.Hash}] {
			merged = append(merged, "— "+s.Name+" "+s.Base64+"\n"...)
		}
	}
	return append(merged, newer...), nil
}

// signatures reads the signature lines after a signed note.
func signatures(checkpoint, lines []byte) ([]note.Signature, error) {
	all, err := unverified(append(bytes.Clone(checkpoint), lines...))
	if err != nil {
		return nil, err
	}
	own, err := unverified(checkpoint)
	if err != nil || all.Text != own.Text { // an empty line would begin another note
		return nil, ErrNoCosignatures
	}
	return all.UnverifiedSigs[len(own.UnverifiedSigs):], nil
}

// unverified reads a signed note and verifies none of its signatures.
func unverified(signed []byte) (*note.Note, error) {
	_, err := note.Open(signed, note.VerifierList())
	var open *note.UnverifiedNoteError
	if !errors.As(err, &open) {
		return nil, ErrNoCosignatures
	}
	return open.Note, nil
}
