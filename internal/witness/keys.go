package witness

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"unicode"
	"unicode/utf8"

	f_note "github.com/transparency-dev/formats/note"
	"golang.org/x/mod/sumdb/note"
)

// The signature types of signed notes that are used here.
const (
	typeEd25519     = 0x01 // a log's signature
	typeCosignature = 0x04 // a witness's cosignature/v1
)

const (
	maxName = 256     // of a key, in bytes
	maxVKey = 1 << 10 // in bytes
)

// checkName holds a key's name against the rules of signed notes.
func checkName(name string) error {
	bad := func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) || r == '+' }
	if name == "" || len(name) > maxName || !utf8.ValidString(name) || strings.ContainsFunc(name, bad) {
		return fmt.Errorf("a key's name has 1 to %d bytes and neither spaces nor a plus sign, such as example.com/witness", maxName)
	}
	return nil
}

var errVKey = errors.New("not a verifier key of the form <name>+<8 hex digits>+<base64>")

// checkVKey checks the form of a verifier key of a type: that its id is that of its
// key, and that it is written in its one form.
func checkVKey(vkey string, kind byte) error {
	name, rest, _ := strings.Cut(vkey, "+")
	id, key64, _ := strings.Cut(rest, "+")
	key, err := base64.StdEncoding.Strict().DecodeString(key64)
	if len(vkey) > maxVKey || err != nil || len(key) != 1+ed25519.PublicKeySize || checkName(name) != nil || strings.ContainsAny(key64, "\r\n") {
		return errVKey
	}
	if key[0] != kind {
		return fmt.Errorf("the key has signature type 0x%02x, and not 0x%02x (%s)", key[0], kind, kindNames[kind])
	}
	if id != fmt.Sprintf("%08x", keyID(name, key)) {
		return errors.New("the key's id does not belong to its name and key: copy it again")
	}
	return nil
}

var kindNames = map[byte]string{typeEd25519: "Ed25519, for a log", typeCosignature: "Ed25519 cosignature/v1, for a witness"}

// keyID is the first four bytes of a hash over name, type and key.
func keyID(name string, typeAndKey []byte) uint32 {
	sum := sha256.Sum256(append([]byte(name+"\n"), typeAndKey...))
	return binary.BigEndian.Uint32(sum[:])
}

// NewVerifier reads the verifier key of a witness: Ed25519, cosignature/v1.
func NewVerifier(vkey string) (note.Verifier, error) {
	if err := checkVKey(vkey, typeCosignature); err != nil {
		return nil, err
	}
	return f_note.NewVerifierForCosignatureV1(vkey)
}

// newLogVerifier reads the verifier key of a log: Ed25519.
func newLogVerifier(vkey string) (note.Verifier, error) {
	if err := checkVKey(vkey, typeEd25519); err != nil {
		return nil, err
	}
	return note.NewVerifier(vkey)
}

// keyFile holds the witness's private key, as a note's signer key.
const keyFile = "witness.key"

type key struct {
	signer   note.Signer
	verifier note.Verifier
	vkey     string
}

func readKey(files fileSystem) (*key, error) {
	data, err := files.read(keyFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("there is no %s in this folder: is --state right? A new witness begins with countersign witness init", keyFile)
	case err != nil:
		return nil, err
	}
	k, err := newKey(strings.TrimSpace(string(data)))
	if err != nil {
		return nil, fmt.Errorf("%s is damaged: put its backup in place", keyFile)
	}
	return k, nil
}

func newKey(skey string) (*key, error) {
	plain, err := note.NewSigner(skey) // checks the id, which the next one does not
	if err != nil {
		return nil, err
	}
	signer, err := f_note.NewSignerForCosignatureV1(skey)
	if err != nil {
		return nil, err
	}
	vkey, err := vkeyOf(skey, plain.Name())
	if err != nil {
		return nil, err
	}
	verifier, err := NewVerifier(vkey)
	if err != nil {
		return nil, err
	}
	return &key{signer, verifier, vkey}, nil
}

// VKey is the public key of the witness in a folder.
func VKey(folder string) (string, error) {
	k, err := readKey(folderFiles(folder))
	if err != nil {
		return "", err
	}
	return k.vkey, nil
}

// Target is a witness to submit to.
type Target struct {
	Name     string
	VKey     string
	Verifier note.Verifier
	URL      string // the submission prefix, without a slash at its end
}

// ParseTarget reads <vkey>=<url>.
func ParseTarget(text string) (Target, error) {
	vkey, address, err := splitTarget(text)
	if err != nil {
		return Target{}, err
	}
	verifier, err := NewVerifier(vkey)
	if err != nil {
		return Target{}, fmt.Errorf("the key of a witness: %w", err)
	}
	if address, err = checkURL(address); err != nil {
		return Target{}, fmt.Errorf("the address of witness %s: %w", verifier.Name(), err)
	}
	return Target{verifier.Name(), vkey, verifier, address}, nil
}

// splitTarget finds the equals sign that ends the key. A name may contain one, and
// base64 may end with some, but base64 holds no colon: behind the second plus the
// first "=http" is it.
func splitTarget(text string) (vkey, address string, err error) {
	_, afterName, _ := strings.Cut(text, "+")
	_, key, found := strings.Cut(afterName, "+")
	if at := strings.Index(key, "=http"); found && at >= 0 {
		end := len(text) - len(key) + at
		return text[:end], text[end+1:], nil
	}
	return "", "", errors.New("a witness has the form <vkey>=<url>, such as example.com/witness+<id>+<key>=https://witness.example.com")
}

// newSigningKey makes a private key.
func newSigningKey(name string) (skey string, err error) {
	skey, _, err = note.GenerateKey(rand.Reader, name)
	return skey, err
}

// vkeyOf is the public key of a private one, as a cosigner's.
func vkeyOf(skey, name string) (string, error) {
	const parts = 5 // PRIVATE, KEY, name, id, and base64, which may contain a plus
	fields := strings.SplitN(skey, "+", parts)
	if len(fields) != parts {
		return "", errVKey
	}
	typeAndSeed, err := base64.StdEncoding.DecodeString(fields[parts-1])
	if err != nil || len(typeAndSeed) != 1+ed25519.SeedSize {
		return "", errVKey
	}
	private := ed25519.NewKeyFromSeed(typeAndSeed[1:])
	public := append([]byte{typeCosignature}, private[ed25519.SeedSize:]...)
	return fmt.Sprintf("%s+%08x+%s", name, keyID(name, public), base64.StdEncoding.EncodeToString(public)), nil
}
