package witness

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"

	f_note "github.com/transparency-dev/formats/note"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// Client submits checkpoints to one witness. Its methods may be called from several
// goroutines.
type Client struct {
	URL      string        // the submission prefix
	Verifier note.Verifier // of the witness: see NewVerifier
	// HTTP makes the requests; nil stands for one of the package's own. Its redirects
	// are not followed.
	HTTP *http.Client
}

// NewClient is a client for a witness that a flag names.
func NewClient(target Target) *Client { return &Client{URL: target.URL, Verifier: target.Verifier} }

// Cosignature is what a witness has signed.
type Cosignature struct {
	Line string    // one line of a note, with its newline, to be appended to the checkpoint
	Time time.Time // when the witness saw the checkpoint, by its own clock
}

// ErrInconsistent is a witness that has cosigned something with which the checkpoint
// is not consistent, or the proof was wrong.
var ErrInconsistent = errors.New("the witness found the checkpoint inconsistent with what it has cosigned")

// StatusError is any other answer of a witness.
type StatusError struct {
	Status int
	Text   string // the first line of what it said, shortened
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("the witness answered %d (%s)", e.Status, e.Text)
}

const (
	// clientTime bounds a submission or a fetch.
	clientTime = 15 * time.Second
	// maxAnswer bounds a witness's answer, in bytes: it may have several keys.
	maxAnswer = 64 << 10
)

// newHTTPClient follows no redirect: what was configured is what is asked.
func newHTTPClient() *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxResponseHeaderBytes = 32 << 10
	transport.MaxIdleConnsPerHost = 8 // a log's operator submits that many side by side
	return &http.Client{Transport: transport, Timeout: clientTime, CheckRedirect: noRedirect}
}

func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

var sharedHTTP = newHTTPClient()

// Submit sends a checkpoint that the log has signed, with the proof that it is
// consistent with the tree of the old size, and returns the witness's cosignature,
// verified.
//
// A *ConflictError says which size the witness knows: submit again with a proof from
// there. The old size 0 needs no proof and finds out.
func (c *Client) Submit(ctx context.Context, checkpoint []byte, oldSize int64, proof tlog.TreeProof) (Cosignature, error) {
	if oldSize < 0 || len(proof) > maxProof {
		return Cosignature{}, fmt.Errorf("a submission has an old size of 0 or more and at most %d hashes", maxProof)
	}
	submitted, err := parseCheckpoint(checkpoint)
	if err != nil {
		return Cosignature{}, err
	}
	base, err := checkURL(c.URL)
	if err != nil {
		return Cosignature{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, clientTime)
	defer cancel()
	body := appendRequest(nil, submission{old: oldSize, proof: proof, checkpoint: checkpoint})
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/add-checkpoint", bytes.NewReader(body))
	if err != nil {
		return Cosignature{}, err
	}
	request.Header.Set("Content-Type", "text/plain; charset=utf-8")
	got, err := exchange(c.HTTP, request, maxAnswer)
	if err != nil {
		return Cosignature{}, err
	}
	if got.status == http.StatusOK {
		return c.verified(checkpoint, submitted.note.Text, got.body)
	}
	return Cosignature{}, got.refusal()
}

// maxTime is the end of the year 9999, in seconds. Verifiers count no cosignature from later, so one would
// be kept for nothing, in the place of a good one.
const maxTime = 253402300799

// verified finds the witness's cosignature of a text in its answer.
func (c *Client) verified(checkpoint []byte, text string, lines []byte) (Cosignature, error) {
	answered, err := note.Open(append(bytes.Clone(checkpoint), lines...), note.VerifierList(c.Verifier))
	if err != nil {
		return Cosignature{}, errors.New("the witness's answer bears no valid cosignature of its key")
	}
	if answered.Text != text { // an empty line in the answer would cut the note elsewhere
		return Cosignature{}, errors.New("the witness's answer is not a list of signature lines")
	}
	at, err := f_note.CoSigV1Timestamp(answered.Sigs[0])
	if err != nil || at.Unix() <= 0 || at.Unix() > maxTime {
		return Cosignature{}, errors.New("the witness's cosignature has no valid time")
	}
	if err := respell(answered.Sigs); err != nil {
		return Cosignature{}, err
	}
	return Cosignature{signatureLine(answered.Sigs[0]), at.UTC()}, nil
}

// respell puts signatures into their one spelling. note accepts others, and verifiers refuse a
// whole checkpoint for one line: a witness could spoil every bundle with it, and whoever submits a
// checkpoint could spoil the one that a witness serves.
func respell(signatures []note.Signature) error {
	for i := range signatures {
		data, err := base64.StdEncoding.DecodeString(signatures[i].Base64)
		if err != nil {
			return err
		}
		signatures[i].Base64 = base64.StdEncoding.EncodeToString(data)
	}
	return nil
}

// reply is what a server has answered.
type reply struct {
	status int
	kind   string // the media type
	body   []byte
}

// refusal is a witness's reply as an error.
func (r *reply) refusal() error {
	text, _, _ := strings.Cut(string(r.body), "\n")
	switch r.status {
	case http.StatusConflict:
		if r.kind != sizeType {
			return ErrInconsistent
		}
		size, err := parseSize(text)
		if err != nil || size > maxSize || string(r.body) != text+"\n" {
			return &StatusError{r.status, "its size cannot be read"}
		}
		return &ConflictError{size}
	case http.StatusUnprocessableEntity:
		return ErrInconsistent
	}
	const shown = 200
	return &StatusError{r.status, fmt.Sprintf("%.*q", shown, text)}
}

// exchange makes a request and reads a reply of bounded length.
func exchange(client *http.Client, request *http.Request, limit int64) (*reply, error) {
	if client == nil {
		client = sharedHTTP
	} else {
		copied := *client
		copied.CheckRedirect = noRedirect
		client = &copied
	}
	response, err := client.Do(request)
	if err != nil {
		var failed *url.Error
		if errors.As(err, &failed) { // without the address, which whoever asks knows
			err = failed.Err
		}
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusSwitchingProtocols {
		// No timeout would end the reading: net/http leaves such a connection to its caller.
		return nil, errors.New("the server switched protocols, which nobody asked for")
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(body)) > limit {
		return nil, fmt.Errorf("the answer is longer than %d bytes", limit)
	}
	kind, _, err := mime.ParseMediaType(response.Header.Get("Content-Type"))
	if err != nil {
		kind = ""
	}
	return &reply{response.StatusCode, kind, body}, nil
}

// checkURL reads the prefix of a witness or a log.
func checkURL(address string) (string, error) {
	parsed, err := url.Parse(address)
	if err != nil || (parsed.Scheme != "http" && parsed.Scheme != "https") || parsed.Host == "" ||
		parsed.User != nil || parsed.RawQuery != "" || parsed.ForceQuery || parsed.Fragment != "" {
		return "", errors.New("an address has the form https://host/path, without user, query and fragment")
	}
	return strings.TrimRight(parsed.String(), "/"), nil
}
