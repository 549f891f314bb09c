package witness

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"

	f_note "github.com/transparency-dev/formats/note"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// head is the last checkpoint of a log that was cosigned, as it is kept on disk.
type head struct {
	Origin    string    `json:"origin"`
	Size      int64     `json:"size"`
	Root      tlog.Hash `json:"root"`
	Time      int64     `json:"time"`      // of the cosignature, in seconds since 1970; 0 where nothing was cosigned
	Grown     int64     `json:"grown"`     // when Size last changed, in seconds since 1970
	Published int64     `json:"published"` // the largest size that was seen where the log publishes its checkpoints
	Source    string    `json:"source"`    // where that was, the last time; "" where it was not seen
	Note      string    `json:"note"`      // the checkpoint, with the log's signatures and ours; "" where nothing was cosigned
}

// headFormat begins the first line of the file; the SHA-256 of the other lines ends
// it.
const headFormat = "countersign-witness-head-v1 "

func headFile(name string) string { return path.Join(headFolder, originHash(name)) }

func writeHead(files fileSystem, h *head) error {
	body, err := json.MarshalIndent(h, "", "  ")
	if err != nil {
		return err
	}
	body = append(body, '\n')
	sum := sha256.Sum256(body)
	data := append([]byte(headFormat+hex.EncodeToString(sum[:])+"\n"), body...)
	return replace(files, headFile(h.Origin), data)
}

// readHead reads the head of a log. It is believed only where it is whole and, but
// for one of which nothing was cosigned, bears our own cosignature.
func readHead(files fileSystem, name string, own note.Verifier) (*head, error) {
	data, err := files.read(headFile(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s, the state of %s, is missing, so what was cosigned of it is not known: "+
			"put the newest copy in place if nothing was cosigned since it was made, else retire this witness's key: %w", headFile(name), name, fs.ErrNotExist)
	}
	if err != nil {
		return nil, err
	}
	h, err := decodeHead(data, name, own)
	if err != nil {
		return nil, fmt.Errorf("%s, the state of %s, is damaged (%w), so what was cosigned of it is not known: "+
			"put the newest copy in place if nothing was cosigned since it was made, else retire this witness's key", headFile(name), name, err)
	}
	return h, nil
}

func decodeHead(data []byte, name string, own note.Verifier) (*head, error) {
	first, body, _ := bytes.Cut(data, []byte("\n"))
	if sum := sha256.Sum256(body); string(first) != headFormat+hex.EncodeToString(sum[:]) {
		return nil, errors.New("its checksum is wrong")
	}
	h := new(head)
	if err := json.Unmarshal(body, h); err != nil {
		return nil, err
	}
	if h.Origin != name {
		return nil, errors.New("it is of another log")
	}
	if h.Note == "" {
		if h.Size != 0 || h.Root != emptyRoot || h.Time != 0 {
			return nil, errors.New("it has a size and no checkpoint")
		}
		return h, nil
	}
	if err := h.check(own); err != nil {
		return nil, err
	}
	return h, nil
}

// check holds what a head says against the checkpoint in it.
func (h *head) check(own note.Verifier) error {
	opened, err := note.Open([]byte(h.Note), note.VerifierList(own))
	if err != nil {
		return errors.New("its checkpoint does not bear this witness's cosignature")
	}
	signed, err := parseText(opened.Text)
	if err != nil {
		return err
	}
	at, err := f_note.CoSigV1Timestamp(opened.Sigs[0])
	if err != nil {
		return err
	}
	if signed.Origin != h.Origin || signed.Size != h.Size || signed.Root != h.Root || at.Unix() != h.Time {
		return errors.New("its checkpoint is another one")
	}
	return nil
}
