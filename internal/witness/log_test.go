package witness

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// testLog is a log with its key. Two of them with one key are the two histories of
// a log that lies.
type testLog struct {
	t      testing.TB
	origin string
	vkey   string
	signer note.Signer
	hashes []tlog.Hash // as tlog stores them
	size   int64

	mu        sync.Mutex // guards what follows
	published string     // what /checkpoint serves; "" for nothing
	requests  int
}

const testOrigin = "example.com/log"

func newTestLog(t testing.TB, origin string) *testLog {
	t.Helper()
	skey, vkey, err := note.GenerateKey(rand.Reader, origin)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := note.NewSigner(skey)
	if err != nil {
		t.Fatal(err)
	}
	return &testLog{t: t, origin: origin, vkey: vkey, signer: signer}
}

// ReadHashes implements tlog.HashReader.
func (l *testLog) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	found := make([]tlog.Hash, len(indexes))
	for i, index := range indexes {
		found[i] = l.hashes[index]
	}
	return found, nil
}

// grow appends leaves until the log has a size.
func (l *testLog) grow(size int64, flavour string) *testLog {
	for ; l.size < size; l.size++ {
		added, err := tlog.StoredHashes(l.size, fmt.Appendf(nil, "leaf %d%s", l.size, flavour), l)
		if err != nil {
			l.t.Fatal(err)
		}
		l.hashes = append(l.hashes, added...)
	}
	return l
}

// fork is a second history that parts from the first one at its present size.
func (l *testLog) fork() *testLog {
	return &testLog{t: l.t, origin: l.origin, vkey: l.vkey, signer: l.signer, hashes: append([]tlog.Hash(nil), l.hashes...), size: l.size}
}

func (l *testLog) root(size int64) tlog.Hash {
	if size == 0 {
		return emptyRoot
	}
	root, err := tlog.TreeHash(size, l)
	if err != nil {
		l.t.Fatal(err)
	}
	return root
}

func (l *testLog) text(size int64) string {
	root := l.root(size)
	return fmt.Sprintf("%s\n%d\n%s\n", l.origin, size, base64.StdEncoding.EncodeToString(root[:]))
}

func (l *testLog) sign(text string, signers ...note.Signer) string {
	signed, err := note.Sign(&note.Note{Text: text}, append([]note.Signer{l.signer}, signers...)...)
	if err != nil {
		l.t.Fatal(err)
	}
	return string(signed)
}

func (l *testLog) checkpoint(size int64) string { return l.sign(l.text(size)) }

func (l *testLog) proof(from, to int64) tlog.TreeProof {
	if from == 0 {
		return nil
	}
	proof, err := tlog.ProveTree(to, from, l)
	if err != nil {
		l.t.Fatal(err)
	}
	return proof
}

// request is the body of add-checkpoint, written without the code under test.
func (l *testLog) request(from, to int64) string {
	return requestBody(from, l.proof(from, to), l.checkpoint(to))
}

func requestBody(old int64, proof tlog.TreeProof, checkpoint string) string {
	body := "old " + strconv.FormatInt(old, 10) + "\n"
	for _, hash := range proof {
		body += base64.StdEncoding.EncodeToString(hash[:]) + "\n"
	}
	return body + "\n" + checkpoint
}

// publish sets what the log serves as its checkpoint.
func (l *testLog) publish(checkpoint string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.published = checkpoint
}

// ServeHTTP serves the log in the layout of C2SP tlog-tiles: full tiles, and partial
// ones for the present size alone.
func (l *testLog) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests++
	if r.URL.Path == "/checkpoint" && l.published != "" {
		_, _ = rw.Write([]byte(l.published))
		return
	}
	tile, err := tlog.ParseTilePath(strings.Replace(r.URL.Path[1:], "tile/", fmt.Sprintf("tile/%d/", tileHeight), 1))
	if err != nil || (l.size>>(tile.L*tileHeight))-tile.N<<tileHeight < int64(tile.W) {
		http.NotFound(rw, r)
		return
	}
	if partial := (l.size >> (tile.L * tileHeight)) - tile.N<<tileHeight; partial >= fullTile && tile.W < fullTile {
		http.NotFound(rw, r) // a log may drop it
		return
	}
	data, err := tlog.ReadTileData(tile, l)
	if err != nil {
		http.Error(rw, err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = rw.Write(data)
}

// newFolder makes a witness that knows some logs.
func newFolder(t testing.TB, logs ...*testLog) string {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "witness")
	if _, err := Init(folder, "example.com/witness"); err != nil {
		t.Fatal(err)
	}
	for _, l := range logs {
		if _, err := Add(folder, l.vkey, l.origin); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

func openFolder(t testing.TB, folder string) *Witness {
	t.Helper()
	w, err := Open(folder, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

// answered is what a handler answers.
type answered struct {
	status     int
	kind, body string
}

func post(w *Witness, body string) answered {
	recorder := httptest.NewRecorder()
	w.Handler().ServeHTTP(recorder, httptest.NewRequest(http.MethodPost, "/add-checkpoint", strings.NewReader(body)))
	return answered{recorder.Code, recorder.Header().Get("Content-Type"), recorder.Body.String()}
}

func get(w *Witness, path string) answered {
	recorder := httptest.NewRecorder()
	w.Handler().ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, path, http.NoBody))
	return answered{recorder.Code, recorder.Header().Get("Content-Type"), recorder.Body.String()}
}

// cosigned posts a submission that must be cosigned, and verifies the answer by hand.
func cosigned(t testing.TB, w *Witness, l *testLog, from, to int64) string {
	t.Helper()
	got := post(w, l.request(from, to))
	if got.status != http.StatusOK {
		t.Fatalf("from %d to %d: status %d: %s", from, to, got.status, got.body)
	}
	verifyLine(t, w.VKey(), l.text(to), got.body)
	return got.body
}
