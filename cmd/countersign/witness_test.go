package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"countersign/internal/cli"
	witnesscli "countersign/internal/cli/witness"
	"countersign/internal/servicetest"
	"countersign/internal/witness"
)

// merkleLog is a log as someone else would have it. It serves its checkpoint and, for
// trees of less than 256 leaves, the one tile that it has.
type merkleLog struct {
	t      testing.TB
	origin string
	signer note.Signer
	vkey   string
	leaves []tlog.Hash
	stored []tlog.Hash

	mu   sync.Mutex // guards size
	size int64      // that is published
}

func newMerkleLog(t testing.TB, origin string) *merkleLog {
	t.Helper()
	skey, vkey, err := note.GenerateKey(rand.Reader, origin)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := note.NewSigner(skey)
	if err != nil {
		t.Fatal(err)
	}
	return &merkleLog{t: t, origin: origin, signer: signer, vkey: vkey}
}

// grow appends leaves. A log with another flavour from some leaf on is another
// history.
func (l *merkleLog) grow(size int, flavour string) *merkleLog {
	for n := len(l.leaves); n < size; n++ {
		leaf := tlog.RecordHash(fmt.Appendf(nil, "%s %d", flavour, n))
		added, err := tlog.StoredHashesForRecordHash(int64(n), leaf, l)
		if err != nil {
			l.t.Fatal(err)
		}
		l.leaves, l.stored = append(l.leaves, leaf), append(l.stored, added...)
	}
	return l
}

// fork is a second history under the same key.
func (l *merkleLog) fork() *merkleLog {
	return &merkleLog{
		t: l.t, origin: l.origin, signer: l.signer, vkey: l.vkey,
		leaves: append([]tlog.Hash(nil), l.leaves...), stored: append([]tlog.Hash(nil), l.stored...),
	}
}

// ReadHashes implements tlog.HashReader.
func (l *merkleLog) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	hashes := make([]tlog.Hash, len(indexes))
	for i, index := range indexes {
		hashes[i] = l.stored[index]
	}
	return hashes, nil
}

func (l *merkleLog) checkpoint(size int64) []byte {
	root, err := tlog.TreeHash(size, l)
	if err != nil {
		l.t.Fatal(err)
	}
	signed, err := note.Sign(&note.Note{Text: fmt.Sprintf("%s\n%d\n%s\n", l.origin, size, root)}, l.signer)
	if err != nil {
		l.t.Fatal(err)
	}
	return signed
}

func (l *merkleLog) proof(from, to int64) tlog.TreeProof {
	if from == 0 {
		return nil
	}
	proof, err := tlog.ProveTree(to, from, l)
	if err != nil {
		l.t.Fatal(err)
	}
	return proof
}

func (l *merkleLog) publish(size int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.size = size
}

func (l *merkleLog) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch r.URL.Path {
	case "/checkpoint":
		_, _ = rw.Write(l.checkpoint(l.size))
	case fmt.Sprintf("/tile/0/000.p/%d", l.size):
		for _, leaf := range l.leaves[:l.size] {
			_, _ = rw.Write(leaf[:])
		}
	default:
		http.NotFound(rw, r)
	}
}

// startWitness serves a witness until the test ends or stop is called.
//
//countersign:replica
func startWitness(t *testing.T, args ...string) *program {
	t.Helper()
	p := begin(t, append([]string{"witness", "serve", "--listen", "127.0.0.1:0"}, args...)...)
	servicetest.Eventually(t, "the witness serves", func() bool {
		if found := addressPattern.FindStringSubmatch(p.log.String()); found != nil {
			p.address = found[1]
		}
		return p.address != ""
	})
	return p
}

// A witness is made, told of a log, and served; a log submits to it; it stops in
// order and is found again as it was left.
func TestWitnessCommands(t *testing.T) {
	t.Parallel()
	state := filepath.Join(t.TempDir(), "witness")
	vkey := strings.TrimSpace(succeed(t, "witness", "init", "--state", state, "--name", "example.com/w"))
	if again := strings.TrimSpace(succeed(t, "witness", "vkey", "--state", state)); again != vkey || !strings.HasPrefix(vkey, "example.com/w+") {
		t.Errorf("the key is %q and then %q", vkey, again)
	}
	l := newMerkleLog(t, "example.com/log").grow(20, "leaf")
	other := newMerkleLog(t, "example.com/key")
	succeed(t, "witness", "add", "--state", state, l.vkey)
	succeed(t, "witness", "add", "--state", state, other.vkey, "--origin", "example.com/renamed log")
	refuse(t, cli.ExitFailed, "registered for this log already", "witness", "add", "--state", state, l.vkey)
	refuse(t, cli.ExitInconclusive, "not a verifier key", "witness", "add", "--state", state, "nonsense")
	refuse(t, cli.ExitInconclusive, "signature type 0x04", "witness", "add", "--state", state, vkey)
	refuse(t, cli.ExitFailed, "is not empty", "witness", "init", "--state", state, "--name", "example.com/w")
	refuse(t, cli.ExitInconclusive, "neither spaces nor a plus", "witness", "init", "--state", state+"2", "--name", "a b")
	refuse(t, cli.ExitInconclusive, "one line of 1 to", "witness", "add", "--state", state, l.vkey, "--origin", "two\nlines")
	refuse(t, cli.ExitInconclusive, "there is no witness.key", "witness", "vkey", "--state", t.TempDir())
	refuse(t, cli.ExitInconclusive, "there is no witness.key", "witness", "add", "--state", t.TempDir(), l.vkey)
	refuse(t, cli.ExitInconclusive, "there is no witness.key", "witness", "add", "--state", filepath.Join(state, "none"), l.vkey)
	refuse(t, cli.ExitInconclusive, "--once needs a --follow", "witness", "serve", "--state", state, "--once")
	refuse(t, cli.ExitInconclusive, "--interval is 1s or more", "witness", "serve", "--state", state, "--interval", "1ms")
	refuse(t, cli.ExitInconclusive, "--follow must have the form", "witness", "serve", "--state", state, "--follow", "nonsense")

	served := startWitness(t, "--state", state)
	refuse(t, cli.ExitInconclusive, "another process uses", "witness", "serve", "--state", state)
	refuse(t, cli.ExitInconclusive, "another process uses", "witness", "add", "--state", state, newMerkleLog(t, "example.com/third").vkey)
	target, err := witness.ParseTarget(vkey + "=" + served.address)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := witness.NewClient(target).Submit(t.Context(), l.checkpoint(12), 0, nil); err != nil {
		t.Fatal(err)
	}
	if out := succeed(t, "health", "--url", served.address); !strings.HasPrefix(out, "ready\n") {
		t.Errorf("health says %q", out)
	}
	listed := decode[[]witnesscli.Log](t, succeed(t, "witness", "list", "--state", state, "--json"))
	if len(listed) != 2 || listed[0].Size != 12 || listed[0].CosignedAt == nil || listed[1].Origin != "example.com/renamed log" || listed[1].CosignedAt != nil {
		t.Errorf("listed %+v", listed)
	}
	if code := served.stop(t); code != 0 {
		t.Errorf("stopping: exit status %d\n%s", code, served.log.String())
	}
	if out := succeed(t, "witness", "list", "--state", state); !strings.Contains(out, "1    example.com/log          12 ") {
		t.Errorf("listed\n%s", out)
	}
}

// A log that is followed is cosigned without submitting, by a server and by a single
// pass, whose exit status tells an alarm from a log that cannot be read.
func TestWitnessFollows(t *testing.T) {
	t.Parallel()
	state := filepath.Join(t.TempDir(), "witness")
	succeed(t, "witness", "init", "--state", state, "--name", "example.com/w")
	l := newMerkleLog(t, "example.com/log").grow(10, "leaf")
	lie := l.fork().grow(60, "lie")
	l.grow(60, "leaf")
	succeed(t, "witness", "add", "--state", state, l.vkey)
	site, forged := httptest.NewServer(l), httptest.NewServer(lie)
	defer site.Close()
	defer forged.Close()

	l.publish(20)
	once := []string{"witness", "serve", "--state", state, "--once", "--follow"}
	if out := succeed(t, append(once, site.URL)...); !strings.HasPrefix(out, "ok ") {
		t.Errorf("one pass says %q", out)
	}
	refuse(t, cli.ExitInconclusive, "unread", append(once, site.URL+"/nowhere")...)
	l.publish(15)
	refuse(t, cli.ExitFailed, "smaller tree than before", append(once, site.URL)...)
	lie.publish(30)
	refuse(t, cli.ExitFailed, "two histories", append(once, forged.URL)...)

	l.publish(40)
	served := startWitness(t, "--state", state, "--follow", site.URL, "--interval", "1s")
	servicetest.Eventually(t, "the log is cosigned", func() bool {
		return decode[[]witnesscli.Log](t, succeed(t, "witness", "list", "--state", state, "--json"))[0].Size == 40
	})
	if out := execute(t, "health", "--url", served.address); out.code != 0 || !strings.Contains(out.out, "degraded fork") {
		t.Errorf("health says %d %q", out.code, out.out)
	}
}

// A witness that is told to serves its figures on a listener of their own: what became of
// submissions, the logs that it follows with the age of their checkpoints, and alarms. They
// name logs by number alone.
func TestWitnessMetrics(t *testing.T) {
	t.Parallel()
	state := filepath.Join(t.TempDir(), "witness")
	vkey := strings.TrimSpace(succeed(t, "witness", "init", "--state", state, "--name", "example.com/w"))
	followed, submits := newMerkleLog(t, "example.com/followed").grow(10, "leaf"), newMerkleLog(t, "example.com/submits").grow(3, "leaf")
	lie, stranger := submits.fork().grow(10, "lie"), newMerkleLog(t, "example.com/stranger").grow(3, "leaf")
	submits.grow(10, "leaf")
	for _, l := range []*merkleLog{followed, submits} {
		succeed(t, "witness", "add", "--state", state, l.vkey)
	}
	followed.publish(7)
	site := httptest.NewServer(followed)
	defer site.Close()
	refuse(t, cli.ExitInconclusive, "--metrics-listen", "witness", "serve", "--state", state, "--metrics-listen", "nowhere")
	served := startWitness(t, "--state", state, "--follow", site.URL, "--interval", "1s", "--metrics-listen", "127.0.0.1:0")
	target, err := witness.ParseTarget(vkey + "=" + served.address)
	if err != nil {
		t.Fatal(err)
	}
	submit := func(l *merkleLog, from, to int64) error {
		_, err := witness.NewClient(target).Submit(t.Context(), l.checkpoint(to), from, l.proof(from, to))
		return err
	}
	if err := errors.Join(submit(submits, 0, 4), submit(submits, 4, 5)); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"an old size": submit(submits, 4, 6), "a log that is not registered": submit(stranger, 0, 1),
		"another history": submit(lie, 5, 8), "another root": submit(lie, 5, 5),
	} {
		if err == nil {
			t.Errorf("%s is cosigned", what)
		}
	}
	figures := &client{base: metricsPattern.FindStringSubmatch(served.log.String())[1], http: servicetest.Client}
	var body string
	servicetest.Eventually(t, "the followed log is cosigned", func() bool {
		status, found, err := figures.send(t.Context(), http.MethodGet, "", "")
		body = string(found)
		return err == nil && status == http.StatusOK && strings.Contains(body, `countersign_witness_checkpoint_age_seconds{log="1"}`)
	})
	for _, line := range []string{
		`countersign_witness_received_total{result="cosigned"} 2`,
		`countersign_witness_received_total{result="conflict"} 1`,
		`countersign_witness_received_total{result="refused"} 1`,
		`countersign_witness_received_total{result="inconsistent"} 2`,
		`countersign_witness_received_total{result="failed"} 0`,
		"countersign_witness_logs 2",
		"countersign_witness_followed_logs 1",
		`countersign_witness_alarms{alarm="fork"} 1`,
		`countersign_witness_alarms{alarm="silence"} 0`,
	} {
		if !strings.Contains(body, line+"\n") {
			t.Errorf("no %s", line)
		}
	}
	if strings.Contains(body, "example.com") {
		t.Error("the figures name a log")
	}
	if code := served.stop(t); code != 0 {
		t.Errorf("stopping: exit status %d", code)
	}
}
