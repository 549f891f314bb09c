// Package tessera_test holds countersign's witness against a log of someone else's:
// Tessera, with its own witness client. It is a module of its own, so that Tessera
// is no dependency of countersign.
package tessera_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	f_note "github.com/transparency-dev/formats/note"
	"github.com/transparency-dev/tessera"
	"github.com/transparency-dev/tessera/storage/posix"
	"golang.org/x/mod/sumdb/note"
)

const (
	origin  = "example.com/tessera"
	timeout = 60 * time.Second
)

// countersign runs a command to its end.
func countersign(t *testing.T, args ...string) (string, int) {
	t.Helper()
	binary := os.Getenv("COUNTERSIGN_TEST_BINARY")
	if binary == "" {
		t.Fatal("COUNTERSIGN_TEST_BINARY names no binary: run scripts/test-tessera")
	}
	command := exec.CommandContext(t.Context(), binary, args...)
	var out, errOutput bytes.Buffer
	command.Stdout, command.Stderr = &out, &errOutput
	if err := command.Run(); command.ProcessState == nil {
		t.Fatal(err)
	}
	t.Logf("countersign %s: %s%s", strings.Join(args, " "), out.String(), errOutput.String())
	return strings.TrimSpace(out.String()), command.ProcessState.ExitCode()
}

var serving = regexp.MustCompile(`"msg":"serving","address":"http://([^"]+)"`)

// serve starts a witness and returns its address, and a function that kills it.
func serve(t *testing.T, state, listen string) (address string, kill func()) {
	t.Helper()
	command := exec.Command(os.Getenv("COUNTERSIGN_TEST_BINARY"), "witness", "serve", "--state", state, "--listen", listen, "--log-level", "debug")
	log, err := command.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	kill = func() {
		_ = command.Process.Signal(syscall.SIGKILL)
		_ = command.Wait()
	}
	lines := bufio.NewReader(log)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			kill()
			t.Fatalf("the witness does not serve: %v", err)
		}
		if found := serving.FindStringSubmatch(line); found != nil {
			go func() { _, _ = io.Copy(io.Discard, lines) }()
			return found[1], kill
		}
	}
}

// tesseraLog is a running log with its folder.
type tesseraLog struct {
	appender *tessera.Appender
	await    *tessera.PublicationAwaiter
	stop     func()
}

func start(t *testing.T, folder string, signer note.Signer, witnesses tessera.WitnessGroup) *tesseraLog {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	driver, err := posix.New(ctx, posix.Config{Path: folder})
	if err != nil {
		t.Fatal(err)
	}
	appender, shutdown, reader, err := tessera.NewAppender(ctx, driver, tessera.NewAppendOptions().
		WithCheckpointSigner(signer).
		WithBatching(8, 50*time.Millisecond).
		WithCheckpointInterval(time.Second).
		WithShutdownTimeout(5*time.Second). // the liar waits in vain
		WithWitnesses(witnesses, &tessera.WitnessOptions{Timeout: 5 * time.Second}))
	if err != nil {
		t.Fatal(err)
	}
	log := &tesseraLog{appender: appender, await: tessera.NewPublicationAwaiter(ctx, reader.ReadCheckpoint, 100*time.Millisecond)}
	log.stop = func() {
		_ = shutdown(ctx)
		cancel()
	}
	return log
}

// add appends entries and returns the checkpoint that publishes the last one.
func (l *tesseraLog) add(ctx context.Context, what string, n int) ([]byte, error) {
	var last tessera.IndexFuture
	for i := range n {
		last = l.appender.Add(ctx, tessera.NewEntry(fmt.Appendf(nil, "%s %d", what, i)))
	}
	_, checkpoint, err := l.await.Await(ctx, last)
	return checkpoint, err
}

// Tessera publishes under the cosignatures of a witness that is killed and started
// again between its checkpoints. A second history under the log's key gets none, and
// is found when the witness fetches the log by itself.
func TestTesseraPublishesWithCosignatures(t *testing.T) {
	folder := t.TempDir()
	state := filepath.Join(folder, "witness")
	skey, vkey, err := note.GenerateKey(rand.Reader, origin)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := note.NewSigner(skey)
	if err != nil {
		t.Fatal(err)
	}
	witnessKey, code := countersign(t, "witness", "init", "--state", state, "--name", "example.com/witness")
	if code != 0 {
		t.Fatal("init failed")
	}
	if _, code := countersign(t, "witness", "add", "--state", state, vkey); code != 0 {
		t.Fatal("add failed")
	}
	verifier, err := f_note.NewVerifierForCosignatureV1(witnessKey)
	if err != nil {
		t.Fatal(err)
	}
	address, kill := serve(t, state, "127.0.0.1:0")
	defer func() { kill() }()
	base, err := url.Parse("http://" + address)
	if err != nil {
		t.Fatal(err)
	}
	witness, err := tessera.NewWitness(witnessKey, base)
	if err != nil {
		t.Fatal(err)
	}
	group := tessera.NewWitnessGroup(1, witness)

	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	honest := start(t, filepath.Join(folder, "honest"), signer, group)
	for round, entries := range []int{1, 5, 300} {
		checkpoint, err := honest.add(ctx, fmt.Sprintf("round %d entry", round), entries)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if _, err := note.Open(checkpoint, note.VerifierList(verifier)); err != nil {
			t.Fatalf("round %d: the published checkpoint bears no cosignature: %v\n%s", round, err, checkpoint)
		}
		kill()
		_, kill = serve(t, state, address)
	}
	honest.stop()

	// The log starts again and does not know what the witness knows.
	honest = start(t, filepath.Join(folder, "honest"), signer, group)
	if _, err := honest.add(ctx, "after the restart", 3); err != nil {
		t.Fatal(err)
	}
	honest.stop()

	// A second history begins where no witness sees it, and then asks for cosignatures.
	forked := filepath.Join(folder, "forked")
	liar := start(t, forked, signer, tessera.WitnessGroup{})
	if _, err := liar.add(ctx, "lie", 400); err != nil {
		t.Fatal(err)
	}
	liar.stop()
	liar = start(t, forked, signer, group)
	short, cancelShort := context.WithTimeout(ctx, 5*time.Second)
	defer cancelShort()
	if checkpoint, err := liar.add(short, "another lie", 1); err == nil {
		t.Errorf("a second history was published:\n%s", checkpoint)
	}
	liar.stop()
	kill()

	follow(t, state, filepath.Join(folder, "honest"), 0, "ok ")
	follow(t, state, forked, 1, "two histories")
	if listed, _ := countersign(t, "witness", "list", "--state", state, "--json"); !strings.Contains(listed, `"size": 309`) || !strings.Contains(listed, `"forks": 1`) {
		t.Errorf("the witness lists %s", listed)
	}
}

// follow lets the witness fetch a log's folder once.
func follow(t *testing.T, state, folder string, want int, says string) {
	t.Helper()
	server := httptest.NewServer(http.FileServer(http.Dir(folder)))
	defer server.Close()
	out, code := countersign(t, "witness", "serve", "--state", state, "--once", "--follow", server.URL)
	if code != want || !strings.Contains(out, says) {
		t.Errorf("following %s: exit status %d, want %d and %q", filepath.Base(folder), code, want, says)
	}
}
