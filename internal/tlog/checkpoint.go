package tlog

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
)

// Checkpoint is what a log says of itself: how many leaves it has, and their root.
type Checkpoint struct {
	Origin string
	Size   int64
	Root   Hash
}

// Text is the body of a signed checkpoint: C2SP tlog-checkpoint, without extension lines.
func (c Checkpoint) Text() string {
	return c.Origin + "\n" + strconv.FormatInt(c.Size, 10) + "\n" + base64.StdEncoding.EncodeToString(c.Root[:]) + "\n"
}

// ErrNotACheckpoint says that a text is not a checkpoint of the log that it should be of.
var ErrNotACheckpoint = errors.New("not a checkpoint of this log")

// ParseCheckpoint reads what Text writes, and nothing else: our logs use no extension
// lines.
func ParseCheckpoint(text string) (Checkpoint, error) {
	lines := strings.Split(text, "\n")
	if len(lines) != 4 || lines[3] != "" {
		return Checkpoint{}, ErrNotACheckpoint
	}
	size, err := strconv.ParseInt(lines[1], 10, 64)
	if err != nil || size < 0 {
		return Checkpoint{}, ErrNotACheckpoint
	}
	root, err := base64.StdEncoding.DecodeString(lines[2])
	if err != nil || len(root) != len(Hash{}) {
		return Checkpoint{}, ErrNotACheckpoint
	}
	c := Checkpoint{Origin: lines[0], Size: size, Root: Hash(root)}
	if c.Text() != text {
		return Checkpoint{}, ErrNotACheckpoint
	}
	return c, nil
}

// Sign makes the signed note of a checkpoint.
func Sign(c Checkpoint, signers ...note.Signer) ([]byte, error) {
	for _, signer := range signers {
		if signer.Name() != c.Origin {
			return nil, errors.New("a log's key is named as the log's origin")
		}
	}
	return note.Sign(&note.Note{Text: c.Text()}, signers...)
}

// Open reads a signed checkpoint of a log. One that none of the verifiers has signed is
// refused. Verified lists the signatures that hold.
func Open(msg []byte, origin string, verifiers ...note.Verifier) (c Checkpoint, verified []note.Signature, err error) {
	opened, err := note.Open(msg, note.VerifierList(verifiers...))
	if err == nil {
		err = checkSpelling(msg)
	}
	if err != nil {
		return Checkpoint{}, nil, fmt.Errorf("%w: %w", ErrNotACheckpoint, err)
	}
	c, err = ParseCheckpoint(opened.Text)
	if err == nil && c.Origin != origin {
		err = ErrNotACheckpoint
	}
	if err != nil {
		return Checkpoint{}, nil, err
	}
	return c, opened.Sigs, nil
}

// checkSpelling refuses a note with a signature that is not in its one spelling. The library accepts
// others, but verifiers of bundles refuse the whole note.
func checkSpelling(msg []byte) error {
	all, err := unverified(msg)
	if err != nil {
		return err
	}
	for _, s := range all.UnverifiedSigs {
		if data, err := base64.StdEncoding.DecodeString(s.Base64); err != nil || base64.StdEncoding.EncodeToString(data) != s.Base64 {
			return errors.New("a signature is not in its one spelling")
		}
	}
	return nil
}

// Verifier is a log's public key under the log's origin.
func Verifier(origin string, public ed25519.PublicKey) (note.Verifier, error) {
	vkey, err := VerifierKey(origin, public)
	if err != nil {
		return nil, err
	}
	return note.NewVerifier(vkey)
}

// VerifierKey is a log's public key in the form that verifiers and witnesses take.
func VerifierKey(origin string, public ed25519.PublicKey) (string, error) {
	return note.NewEd25519VerifierKey(origin, public)
}

// signer signs with a private key that stays where it is.
type signer struct {
	name string
	hash uint32
	sign func(message []byte) ([]byte, error)
}

// Signer signs checkpoints of a log with the private half of a key.
func Signer(origin string, public ed25519.PublicKey, sign func(message []byte) ([]byte, error)) note.Signer {
	return &signer{origin, keyHash(origin, public), sign}
}

func (s *signer) Name() string                        { return s.name }
func (s *signer) KeyHash() uint32                     { return s.hash }
func (s *signer) Sign(message []byte) ([]byte, error) { return s.sign(message) }

// algorithmEd25519 is the signature type of C2SP signed-note.
const algorithmEd25519 = 1

// keyHash tells the keys of one name apart: C2SP signed-note.
func keyHash(name string, public ed25519.PublicKey) uint32 {
	sum := sha256.Sum256(append([]byte(name+"\n"+string(rune(algorithmEd25519))), public...))
	return binary.BigEndian.Uint32(sum[:])
}
