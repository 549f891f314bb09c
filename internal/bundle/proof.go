package bundle

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// proofHeader is the first line of a C2SP tlog-proof.
const proofHeader = "c2sp.org/tlog-proof@v1"

// maxProofHashes bounds a proof, as C2SP does.
const maxProofHashes = 63

// maxCount bounds an index and the size of a tree: above it the arithmetic of x/mod's tlog
// overflows and does not end.
const maxCount = 1 << 62

// Proof is a proof of inclusion with the checkpoint that it leads to.
type Proof struct {
	Index      int64
	Hashes     tlog.RecordProof
	Checkpoint string // a signed note, with the cosignatures
}

// String writes the proof as a C2SP tlog-proof.
func (p *Proof) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s\nindex %d\n", proofHeader, p.Index)
	for _, hash := range p.Hashes {
		fmt.Fprintf(&text, "%s\n", hash)
	}
	return text.String() + "\n" + p.Checkpoint
}

var errProof = errors.New("the log's proof cannot be read")

// ParseProof reads a C2SP tlog-proof. It ignores the extra line, which has no meaning here.
func ParseProof(text string) (*Proof, error) {
	rest, ok := strings.CutPrefix(text, proofHeader+"\n")
	head, checkpoint, cut := strings.Cut(rest, "\n\n")
	if !ok || !cut {
		return nil, errProof
	}
	lines := strings.Split(head, "\n")
	if extra, ok := strings.CutPrefix(lines[0], "extra "); ok {
		if _, err := decodeBase64(extra); err != nil {
			return nil, errProof
		}
		lines = lines[1:]
	}
	if len(lines) == 0 || len(lines)-1 > maxProofHashes {
		return nil, errProof
	}
	digits, ok := strings.CutPrefix(lines[0], "index ")
	index, err := parseDecimal(digits)
	if !ok || err != nil {
		return nil, errProof
	}
	proof := &Proof{Index: index, Checkpoint: checkpoint}
	for _, line := range lines[1:] {
		hash, err := parseHash(line)
		if err != nil {
			return nil, errProof
		}
		proof.Hashes = append(proof.Hashes, hash)
	}
	return proof, nil
}

// checkpoint is what the text of a checkpoint says.
type checkpoint struct {
	origin string
	size   int64
	root   tlog.Hash
}

var errCheckpoint = errors.New("the checkpoint cannot be read")

// parseCheckpoint reads the signed text of a C2SP tlog-checkpoint.
func parseCheckpoint(signed string) (*checkpoint, error) {
	lines := noteLines(signed)
	if len(lines) < 3 || slices.Contains(lines, "") {
		return nil, errCheckpoint
	}
	size, err := parseDecimal(lines[1])
	if err != nil {
		return nil, errCheckpoint
	}
	root, err := parseHash(lines[2])
	if err != nil {
		return nil, errCheckpoint
	}
	return &checkpoint{origin: lines[0], size: size, root: root}, nil
}

// noteLines are the lines of a signed note's text. It returns nothing for a note that is
// malformed: x/mod's reader accepts several spellings of a signature, and a bundle must
// have one.
func noteLines(signed string) []string {
	var opened *note.UnverifiedNoteError // what is well formed and signed by nobody who was named
	if _, err := note.Open([]byte(signed), nil); !errors.As(err, &opened) {
		return nil
	}
	for _, signature := range opened.Note.UnverifiedSigs {
		if _, err := decodeBase64(signature.Base64); err != nil {
			return nil
		}
	}
	return strings.Split(strings.TrimSuffix(opened.Note.Text, "\n"), "\n")
}

// parseHash reads the base64 of a SHA-256, in its one spelling.
func parseHash(text string) (hash tlog.Hash, err error) {
	decoded, err := decodeBase64(text)
	if err != nil || len(decoded) != len(hash) {
		return hash, errProof
	}
	return tlog.Hash(decoded), nil
}

var errBase64 = errors.New("not base64")

// decodeBase64 reads base64 in its one spelling: the library's decoder skips line breaks.
func decodeBase64(text string) ([]byte, error) {
	decoded, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || base64.StdEncoding.EncodedLen(len(decoded)) != len(text) {
		return nil, errBase64
	}
	return decoded, nil
}

// parseDecimal reads an index or a size, without sign and leading zeroes.
func parseDecimal(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > maxCount || strconv.FormatInt(n, 10) != text {
		return 0, errProof
	}
	return n, nil
}
