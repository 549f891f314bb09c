// Package witness cosigns the checkpoints of transparency logs, serves the C2SP
// tlog-witness protocol, and speaks it as a client.
//
// The texts it follows are tlog-witness v1.0.0, tlog-cosignature v1.0.1 (Ed25519),
// tlog-checkpoint v1.0.0 and signed-note v1.0.0.
//
// A witness never cosigns two histories of one log: a cosignature leaves the
// process only after the checkpoint that it covers is on disk, and the next
// checkpoint must be consistent with the one on disk.
package witness

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	f_note "github.com/transparency-dev/formats/note"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// What a witness refuses. Each has its status in the protocol.
var (
	errMalformed     = errors.New("malformed request")                                        // 400
	errOldSize       = errors.New("the old size is larger than the checkpoint's")             // 400
	errSignature     = errors.New("no valid signature by a key that is trusted for this log") // 403
	errUnknownOrigin = errors.New("this log is not registered here")                          // 404
	errOtherRoot     = errors.New("another checkpoint of this size was cosigned before")      // 409
	errProof         = errors.New("the consistency proof does not verify")                    // 422
)

// errClock is a clock that is behind the last cosignature. A cosignature that is
// dated back could make one look older than the revocation of a log's key.
var errClock = errors.New("this machine's clock is behind the time of the last cosignature")

// ConflictError says that the witness has cosigned another size than the client
// thought: the client should send a proof from that size.
type ConflictError struct{ Size int64 }

func (e *ConflictError) Error() string {
	return fmt.Sprintf("the witness has cosigned size %d: prove consistency from that size", e.Size)
}

// Witness cosigns checkpoints of the logs that are registered in its folder. Its
// methods may be called from several goroutines.
type Witness struct {
	// Received is called with what became of each submission, one of Results. It is set
	// before the first one; nil where nobody counts them.
	Received func(result string)

	signer  note.Signer
	own     note.Verifier
	vkey    string
	files   fileSystem
	log     *slog.Logger
	origins map[string]*origin // fixed once it is open
	release func()             // gives the folder's lock back

	mu     sync.Mutex // guards alarms
	alarms map[Alarm]bool
}

// origin is one registered log.
type origin struct {
	Log
	verifiers note.Verifiers
	number    int // its place in the list, from 1

	// turn holds one token; whoever has taken it owns what follows. It is held
	// through the write of a head, so that the check of the old size and the write
	// are one step.
	turn  chan struct{}
	head  *head
	stale bool // a write has failed: only the disk knows the head
	// kept says that this process has put the head on disk, and not only found it
	// there: it could have been left by a process that died before it was durable.
	kept bool
}

// Open opens a witness's folder and locks it, so that no other process signs with
// it. A head that is missing or damaged is an error.
func Open(folder string, log *slog.Logger) (*Witness, error) {
	release, err := lockWitness(folder)
	if err != nil {
		return nil, err
	}
	w, err := open(folderFiles(folder), log)
	if err != nil {
		release()
		return nil, err
	}
	w.release = release
	return w, nil
}

func open(files fileSystem, log *slog.Logger) (*Witness, error) {
	key, err := readKey(files)
	if err != nil {
		return nil, err
	}
	logs, err := readRegistry(files)
	if err != nil {
		return nil, err
	}
	w := &Witness{
		signer: key.signer, own: key.verifier, vkey: key.vkey, files: files, log: log,
		origins: make(map[string]*origin), alarms: make(map[Alarm]bool), release: func() {},
	}
	for i, registered := range logs {
		o := &origin{Log: registered, number: i + 1, turn: make(chan struct{}, 1)}
		if o.verifiers, err = registered.verifiers(); err != nil {
			return nil, err
		}
		if o.head, err = readHead(files, registered.Origin, w.own); err != nil {
			return nil, err
		}
		o.turn <- struct{}{}
		w.origins[registered.Origin] = o
	}
	if err := w.recallForks(); err != nil {
		return nil, err
	}
	return w, nil
}

// Close gives the folder back.
func (w *Witness) Close() { w.release() }

// VKey is the witness's public key.
func (w *Witness) VKey() string { return w.vkey }

// Logs is how many logs are registered.
func (w *Witness) Logs() int { return len(w.origins) }

// take waits for the turn of a log. Whoever gets it calls o.give.
func (o *origin) take(ctx context.Context) error {
	select {
	case <-o.turn:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (o *origin) give() { o.turn <- struct{}{} }

// current is the head that counts. The caller has the turn.
func (w *Witness) current(o *origin) (*head, error) {
	if o.stale {
		found, err := readHead(w.files, o.Origin, w.own)
		if err != nil {
			return nil, err
		}
		o.head, o.stale, o.kept = found, false, false
	}
	return o.head, nil
}

// keep puts a head on disk. Where that fails, the disk may hold the old head or the
// new one, and either is consistent with all that was answered: neither is believed
// to be durable before another write has succeeded. The caller has the turn.
func (w *Witness) keep(o *origin, next *head) error {
	if err := writeHead(w.files, next); err != nil {
		o.stale, o.kept = true, false
		return fmt.Errorf("the state of a log could not be written, so nothing was cosigned: %w", err)
	}
	o.head, o.kept = next, true
	return nil
}

// freshFor is how long a cosignature is given out again for the same checkpoint.
// Anyone can send a checkpoint that is public, and each new cosignature costs a write.
const freshFor = 10 * time.Second

// again is the cosignature of a checkpoint that was cosigned just now; "" where it
// was not. The caller has the turn.
func (w *Witness) again(o *origin, s submission, signed *checkpoint) string {
	age := time.Since(time.Unix(o.head.Time, 0))
	if !o.kept || age < 0 || age > freshFor || (s.source != "" && (o.head.Published != signed.Size || o.head.Source != s.source)) {
		return ""
	}
	opened, err := note.Open([]byte(o.head.Note), note.VerifierList(w.own))
	if err != nil || opened.Text != signed.note.Text {
		return ""
	}
	return signatureLine(opened.Sigs[0])
}

// submission is a checkpoint with the proof that it extends an older one.
type submission struct {
	old        int64
	proof      tlog.TreeProof
	checkpoint []byte // a signed note
	source     string // where the log serves it to everyone; "" where it was submitted
}

// cosign checks a submission against what was cosigned before, keeps it, and only
// then returns the cosignature: one line of a note.
func (w *Witness) cosign(ctx context.Context, s submission) (string, error) {
	o, signed, err := w.verified(s.checkpoint)
	if err != nil {
		return "", err
	}
	if s.old > signed.Size {
		return "", errOldSize
	}
	if err := o.take(ctx); err != nil {
		return "", err
	}
	defer o.give()
	last, err := w.current(o)
	if err != nil {
		return "", err
	}
	if err := w.follows(last, signed, s.old, s.proof); err != nil {
		return "", err
	}
	if line := w.again(o, s, signed); line != "" {
		return line, nil
	}
	next, line, err := w.sign(last, signed)
	if err != nil {
		return "", err
	}
	if s.source != "" {
		next.Published, next.Source = signed.Size, s.source
	}
	if err := w.keep(o, next); err != nil {
		return "", err
	}
	return line, nil
}

// verified opens a signed checkpoint of a registered log.
func (w *Witness) verified(data []byte) (*origin, *checkpoint, error) {
	parsed, err := parseCheckpoint(data)
	if err != nil {
		return nil, nil, err
	}
	o := w.origins[parsed.Origin]
	if o == nil {
		return nil, nil, errUnknownOrigin
	}
	if parsed.note, err = note.Open(data, o.verifiers); err != nil {
		return nil, nil, errSignature
	}
	if err := respell(parsed.note.Sigs); err != nil {
		return nil, nil, err
	}
	return o, parsed, nil
}

// follows checks that a checkpoint may be cosigned after the last one. The old size
// is what the client believes that the last one had.
func (w *Witness) follows(last *head, signed *checkpoint, old int64, proof tlog.TreeProof) error {
	if signed.Size > 0 && signed.Size == last.Size && signed.Root != last.Root {
		w.reportFork(last, signed, nil) // whatever the old size is
	}
	switch {
	case old != last.Size:
		return &ConflictError{last.Size}
	case signed.Size == 0 && signed.Root != emptyRoot:
		return fmt.Errorf("%w: an empty tree has the hash of no bytes", errProof)
	case signed.Size == last.Size && signed.Root != last.Root:
		return errOtherRoot
	case old == 0 && len(proof) > 0:
		return fmt.Errorf("%w: from size 0 it must be empty", errProof)
	case old == 0:
		return nil
	}
	if err := tlog.CheckTree(proof, signed.Size, signed.Root, last.Size, last.Root); err != nil {
		return errProof
	}
	return nil
}

// sign cosigns a checkpoint and returns the head that has to be kept before the
// line may leave.
func (w *Witness) sign(last *head, signed *checkpoint) (*head, string, error) {
	full, err := note.Sign(&note.Note{Text: signed.note.Text, Sigs: signed.note.Sigs}, w.signer)
	if err != nil {
		return nil, "", fmt.Errorf("cosign: %w", err)
	}
	cosigned, err := note.Open(full, note.VerifierList(w.own))
	if err != nil {
		return nil, "", fmt.Errorf("cosign: %w", err)
	}
	at, err := f_note.CoSigV1Timestamp(cosigned.Sigs[0])
	if err != nil {
		return nil, "", fmt.Errorf("cosign: %w", err)
	}
	if at.Unix() <= 0 || at.Unix() < last.Time {
		return nil, "", errClock
	}
	next := &head{
		Origin: signed.Origin, Size: signed.Size, Root: signed.Root,
		Time: at.Unix(), Grown: last.Grown, Published: last.Published, Source: last.Source, Note: string(full),
	}
	if next.Size > last.Size {
		next.Grown = next.Time
	}
	return next, signatureLine(cosigned.Sigs[0]), nil
}

func signatureLine(s note.Signature) string { return "— " + s.Name + " " + s.Base64 + "\n" }

// latest is the last checkpoint that was cosigned of the log whose origin has this
// SHA-256; "" where there is none.
func (w *Witness) latest(ctx context.Context, hash string) (string, error) {
	for name, o := range w.origins {
		if originHash(name) == hash {
			found, err := w.snapshot(ctx, o)
			if err != nil {
				return "", err
			}
			return found.Note, nil
		}
	}
	return "", nil
}

// snapshot is the head as it is known to be on disk.
func (w *Witness) snapshot(ctx context.Context, o *origin) (head, error) {
	if err := o.take(ctx); err != nil {
		return head{}, err
	}
	defer o.give()
	found, err := w.current(o)
	if err != nil {
		return head{}, err
	}
	return *found, nil
}

func originHash(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:])
}

// Head is how far a log has come, for people.
type Head struct {
	Number int // its place in the list, from 1
	Origin string
	Size   int64
	Root   tlog.Hash
	Time   time.Time // of the last cosignature; zero without one
	Keys   []string
	Forks  int // how many proofs of a fork are kept
}

// List reads a folder that another process may be serving from.
func List(folder string) ([]Head, error) {
	files := folderFiles(folder)
	key, err := readKey(files)
	if err != nil {
		return nil, err
	}
	logs, err := readRegistry(files)
	if err != nil {
		return nil, err
	}
	heads := make([]Head, 0, len(logs))
	for i, registered := range logs {
		found, err := readHead(files, registered.Origin, key.verifier)
		if err != nil {
			return nil, err
		}
		kept, err := forkFiles(files, registered.Origin)
		if err != nil {
			return nil, err
		}
		listed := Head{Number: i + 1, Origin: registered.Origin, Size: found.Size, Root: found.Root, Keys: slices.Clone(registered.Keys), Forks: len(kept)}
		if found.Time > 0 {
			listed.Time = time.Unix(found.Time, 0).UTC()
		}
		heads = append(heads, listed)
	}
	return heads, nil
}
