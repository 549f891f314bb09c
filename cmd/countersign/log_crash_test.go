package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"countersign/internal/cli"
	witnesscli "countersign/internal/cli/witness"
	"countersign/internal/fault"
	"countersign/internal/nightly"
	"countersign/internal/servicetest"
	"countersign/internal/testdb"
	"countersign/internal/tlog"
)

// signedAt names a checkpoint by its log and size.
type signedAt struct {
	log  string // the log's id
	size int64
}

// signedRoots holds every root that was seen signed, or marked as about to be signed.
type signedRoots struct {
	t *testing.T

	mu    sync.Mutex // guards roots
	roots map[signedAt]tlog.Hash
}

func newSignedRoots(t *testing.T) *signedRoots {
	return &signedRoots{t: t, roots: make(map[signedAt]tlog.Hash)}
}

// add fails the test if another root was seen at the same size.
func (r *signedRoots) add(from, log string, size int64, root tlog.Hash) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	at := signedAt{log, size}
	if known, ok := r.roots[at]; ok && known != root {
		r.t.Errorf("%s: there are two roots of size %d", from, size)
	}
	r.roots[at] = root
}

// addNote adds a signed checkpoint.
func (r *signedRoots) addNote(from string, signed []byte) tlog.Checkpoint {
	r.t.Helper()
	text, _, found := strings.Cut(string(signed), "\n\n")
	c, err := tlog.ParseCheckpoint(text + "\n")
	if err != nil || !found {
		r.t.Fatalf("%s: not a checkpoint: %v in %q", from, err, signed)
	}
	r.add(from, c.Origin[strings.LastIndex(c.Origin, "/")+1:], c.Size, c.Root)
	return c
}

// addMarks adds what the file of log marks holds, and returns the largest size in it.
func (r *signedRoots) addMarks(file string) (largest int64) {
	r.t.Helper()
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return 0 // nothing was signed yet
	}
	if err != nil {
		r.t.Fatal(err)
	}
	marks := decode[struct {
		Logs map[string]struct {
			Size int64
			Root string
		}
	}](r.t, string(content))
	for log, mark := range marks.Logs {
		root, err := hex.DecodeString(mark.Root)
		if err != nil || len(root) != sha256.Size {
			r.t.Fatalf("the root of a mark is %q", mark.Root)
		}
		r.add(filepath.Base(file), log, mark.Size, tlog.Hash(root))
		largest = max(largest, mark.Size)
	}
	return largest
}

// addPublished adds every checkpoint that was ever published in the database, which
// keepPublished has prepared.
func (r *signedRoots) addPublished(db *sql.DB) {
	r.t.Helper()
	for _, signed := range columnOf(r.t, db, "SELECT note FROM published_checkpoints") {
		r.addNote("the database", signed)
	}
}

// checkHistory wants every root of a log to be that of the receipts that are stored now.
func (r *signedRoots) checkHistory(db *sql.DB, log string) {
	r.t.Helper()
	var leaves [][sha256.Size]byte
	for _, body := range columnOf(r.t, db, "SELECT body FROM receipts ORDER BY sequence") {
		leaves = append(leaves, sha256.Sum256(append([]byte{0}, body...)))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for at, root := range r.roots {
		switch {
		case at.log != log:
		case at.size > int64(len(leaves)):
			r.t.Errorf("size %d was signed, and there are %d receipts", at.size, len(leaves))
		case rootOf(leaves[:at.size]) != root:
			r.t.Errorf("the root of size %d is not that of the receipts", at.size)
		}
	}
}

// rootOf is the tree hash of RFC 6962, written down from its definition.
func rootOf(leaves [][sha256.Size]byte) [sha256.Size]byte {
	switch len(leaves) {
	case 0:
		return sha256.Sum256(nil)
	case 1:
		return leaves[0]
	}
	split := 1
	for split*2 < len(leaves) {
		split *= 2
	}
	left, right := rootOf(leaves[:split]), rootOf(leaves[split:])
	return sha256.Sum256(append(append([]byte{1}, left[:]...), right[:]...))
}

// columnOf reads one column of bytes.
func columnOf(t *testing.T, db *sql.DB, query string) (values [][]byte) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), query)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var value []byte
		if err := rows.Scan(&value); err != nil {
			t.Fatal(err)
		}
		values = append(values, value)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return values
}

// keepPublished has the database keep each checkpoint that is published in it: a server
// replaces the one before.
func (s *testStore) keepPublished(t *testing.T) {
	t.Helper()
	statements := []string{"CREATE TABLE published_checkpoints (note BLOB)"}
	for _, event := range []string{"INSERT", "UPDATE"} {
		statements = append(statements, "CREATE TRIGGER kept_"+event+" AFTER "+event+
			" ON log_checkpoints WHEN NEW.kind = 'newest' BEGIN INSERT INTO published_checkpoints VALUES (NEW.note); END")
	}
	if s.Kind == "postgres" {
		statements = []string{
			"CREATE TABLE published_checkpoints (note bytea)",
			"CREATE FUNCTION keep_checkpoint() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO published_checkpoints VALUES (NEW.note); RETURN NEW; END $$",
			"CREATE TRIGGER kept AFTER INSERT OR UPDATE ON log_checkpoints FOR EACH ROW WHEN (NEW.kind = 'newest') EXECUTE FUNCTION keep_checkpoint()",
		}
	}
	for _, statement := range statements {
		s.exec(t, statement)
	}
}

// holdPublication keeps everyone from publishing a checkpoint until release is called.
func (s *testStore) holdPublication(t *testing.T) (release func()) {
	t.Helper()
	db, err := sql.Open(s.Driver, s.Source)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	statements := []string{"BEGIN IMMEDIATE"}
	if s.Kind == "postgres" {
		statements = []string{"BEGIN", "LOCK TABLE log_checkpoints IN SHARE ROW EXCLUSIVE MODE"}
	}
	for _, statement := range statements {
		if _, err := conn.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	release = sync.OnceFunc(func() {
		_, err := conn.ExecContext(context.Background(), "ROLLBACK")
		if err := errors.Join(err, conn.Close(), db.Close()); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(release)
	return release
}

// freeLease lets any replica become the signer at once: a dead signer's lease would last for
// seconds more.
func (s *testStore) freeLease(t *testing.T) {
	t.Helper()
	if s.Kind == "postgres" {
		s.exec(t, "DELETE FROM log_signer")
	}
}

// signedLog is a real server whose checkpoints a test watches.
type signedLog struct {
	*faultyServer
	t        *testing.T
	store    *testStore
	db       *sql.DB // past the server
	seen     *signedRoots
	receipts int64 // that were sealed
}

// startSigned makes a store and serves it with a process of its own.
func startSigned(t *testing.T, s *testStore, args ...string) *signedLog {
	t.Helper()
	l := &signedLog{faultyServer: startFaulty(t, s.args(args...)...), t: t, store: s, db: s.Direct(t), seen: newSignedRoots(t)}
	s.keepPublished(t)
	return l
}

func (l *signedLog) seal(count int) {
	l.t.Helper()
	c := l.client()
	defer c.http.CloseIdleConnections()
	for range count {
		c.seal(l.t)
		l.receipts++
	}
}

// dies kills the server and looks at what it leaves behind.
func (l *signedLog) dies() {
	l.t.Helper()
	if err := l.kill(); err != nil {
		l.t.Fatal(err)
	}
	l.look()
}

// look adds what is marked and published now.
func (l *signedLog) look() (marked int64) {
	l.t.Helper()
	l.seen.addPublished(l.db)
	return l.seen.addMarks(filepath.Join(l.store.folder, "heads.logs"))
}

// serves starts the server again after it died.
func (l *signedLog) serves() {
	l.t.Helper()
	l.store.freeLease(l.t)
	l.start(l.t)
}

// size is the size of the published checkpoint, -1 without one.
func (l *signedLog) size() int64 {
	l.t.Helper()
	notes := columnOf(l.t, l.db, "SELECT note FROM log_checkpoints WHERE kind = 'newest'")
	if len(notes) == 0 {
		return -1
	}
	return l.seen.addNote("the database", notes[0]).Size
}

// vkey waits until a log has begun and returns its verifier key.
func (l *signedLog) vkey() (key string) {
	l.t.Helper()
	servicetest.Eventually(l.t, "the log has begun", func() bool {
		printed := execute(l.t, l.store.args("log", "vkey", "--org", "default")...)
		key = strings.TrimSpace(printed.out)
		return printed.code == 0
	})
	return key
}

// logID is the id of the log that a verifier key names.
func logID(vkey string) string {
	name, _, _ := strings.Cut(vkey, "+")
	return name[strings.LastIndex(name, "/")+1:]
}

// finish wants all receipts signed, everything that was seen to be of one history, and the
// audit to find nothing.
func (l *signedLog) finish() {
	l.t.Helper()
	servicetest.Eventually(l.t, "a checkpoint covers all receipts", func() bool { return l.size() == l.receipts })
	log := logID(l.vkey())
	if err := l.stop(); err != nil {
		l.t.Fatal(err)
	}
	l.look()
	l.seen.checkHistory(l.db, log)
	succeed(l.t, l.store.args("audit")...)
}

// A server that is killed between sealing and signing, between noting what it signs and
// publishing it, or while it publishes, continues the same history: no two checkpoints of one
// size differ in their root, and what was noted before the kill is what is published after.
//
//countersign:norace its servers are processes
func TestKilledSignerKeepsOneHistory(t *testing.T) {
	onEachEmptyStore(t, func(t *testing.T, s *testStore) {
		l := startSigned(t, s)
		unsigned, unpublished := 0, 0 // kills that fell where they were meant to
		for i := range nightly.Count(6, 150) {
			switch i % 3 {
			case 0: // sealed: the signer waits for more receipts before it signs
				l.seal(1 + i%2)
				l.dies()
				if l.size() < l.receipts {
					unsigned++
				}
			case 1: // marked and not published
				l.seal(1)
				release := s.holdPublication(t)
				servicetest.Eventually(t, "the signer has noted what it signs", func() bool { return l.look() == l.receipts })
				if l.size() < l.receipts {
					unpublished++
				}
				l.dies()
				release()
			case 2: // marked, and perhaps published
				l.seal(2)
				servicetest.Eventually(t, "the signer has noted what it signs", func() bool { return l.look() == l.receipts })
				l.dies()
			}
			l.serves()
		}
		l.finish()
		if unsigned == 0 || unpublished == 0 {
			t.Errorf("%d kills fell before a signature and %d before a publication: this run has shown nothing", unsigned, unpublished)
		}
	})
}

// gate stands between a server and its witness. It lets submissions pass, or stops them on
// their way there, or stops the answers on their way back.
type gate struct {
	t       *testing.T
	witness string // its address
	// stopped gets each request that was stopped, and its answer if the witness gave one.
	stopped chan stoppedSubmission

	mu   sync.Mutex // guards stop
	stop gateStop
}

type gateStop int

const (
	stopNothing gateStop = iota
	stopRequests
	stopAnswers
)

type stoppedSubmission struct {
	body   []byte
	status int // of the witness; 0 if it was not asked
}

// newGate serves until the test ends.
//
//countersign:host it only passes on what a server sends to a witness
func newGate(t *testing.T, witness string) (*gate, string) {
	t.Helper()
	g := &gate{t: t, witness: witness, stopped: make(chan stoppedSubmission, 16)}
	server := httptest.NewServer(g)
	t.Cleanup(server.Close)
	return g, server.URL
}

func (g *gate) set(stop gateStop) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stop = stop
}

// ServeHTTP implements http.Handler. Who is stopped waits until the server is gone.
func (g *gate) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	g.mu.Lock()
	stop := g.stop
	g.mu.Unlock()
	if stop == stopRequests {
		g.stopped <- stoppedSubmission{body: body}
		<-r.Context().Done()
		return
	}
	status, answer, contentType, err := g.pass(r.Context(), body)
	if err != nil {
		return
	}
	if stop == stopAnswers && status == http.StatusOK {
		g.stopped <- stoppedSubmission{body, status}
		<-r.Context().Done()
		return
	}
	rw.Header().Set("Content-Type", contentType)
	rw.WriteHeader(status)
	_, _ = rw.Write(answer)
}

// pass asks the witness.
func (g *gate) pass(ctx context.Context, body []byte) (status int, answer []byte, contentType string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, g.witness+"/add-checkpoint", bytes.NewReader(body))
	if err != nil {
		return 0, nil, "", err
	}
	response, err := servicetest.Client.Do(request)
	if err != nil {
		return 0, nil, "", err
	}
	defer response.Body.Close()
	answer, err = io.ReadAll(response.Body)
	return response.StatusCode, answer, response.Header.Get("Content-Type"), err
}

// watchedWitness is a witness of one log, whose cosignatures a test watches.
type watchedWitness struct {
	t           *testing.T
	state, vkey string
	address     string
}

func newWatchedWitness(t *testing.T, logKey string) *watchedWitness {
	t.Helper()
	w := &watchedWitness{t: t, state: filepath.Join(t.TempDir(), "witness")}
	w.vkey = strings.TrimSpace(succeed(t, "witness", "init", "--state", w.state, "--name", "example.com/w"))
	succeed(t, "witness", "add", "--state", w.state, logKey)
	w.address = startWitness(t, "--state", w.state).address
	return w
}

// head adds what the witness has cosigned last, and returns its size.
func (w *watchedWitness) head(seen *signedRoots) int64 {
	w.t.Helper()
	log := decode[[]witnesscli.Log](w.t, succeed(w.t, "witness", "list", "--state", w.state, "--json"))[0]
	if log.CosignedAt == nil {
		return 0
	}
	root, err := base64.StdEncoding.DecodeString(log.Root)
	if err != nil || len(root) != sha256.Size {
		w.t.Fatalf("the witness's root is %q", log.Root)
	}
	seen.add("the witness", log.Origin[strings.LastIndex(log.Origin, "/")+1:], log.Size, tlog.Hash(root))
	return log.Size
}

// A server that is killed between its submission to a witness and the cosignature has the
// next checkpoint cosigned all the same. A submission that arrives after its server has died
// makes the witness cosign nothing but that server's history.
//
//countersign:norace its servers are processes
func TestKilledBetweenSubmissionAndCosignature(t *testing.T) {
	onEachEmptyStore(t, func(t *testing.T, s *testStore) {
		l := startSigned(t, s)
		l.seal(1)
		key := l.vkey()
		w := newWatchedWitness(t, key)
		between, address := newGate(t, w.address)
		l.dies()
		l.args = append(l.args, "--witness", w.vkey+"="+address)
		var late []stoppedSubmission
		for i := range nightly.Count(3, 60) {
			between.set(stopRequests + gateStop(i%2))
			l.serves() // a server asks its witnesses when it starts
			stopped := <-between.stopped
			before := w.head(l.seen)
			l.seal(1) // signed by the next server, or by this one while it waits
			l.dies()
			if stopped.status == http.StatusOK {
				continue
			}
			if late = append(late, stopped); i%4 == 0 { // half of them arrive at once, and half at the end
				l.deliver(between, w, stopped, before)
				late = late[:len(late)-1]
			}
		}
		l.serves()
		servicetest.Eventually(t, "a checkpoint covers all receipts", func() bool { return l.size() == l.receipts })
		l.dies()
		between.set(stopNothing)
		l.serves()
		servicetest.Eventually(t, "the witness has cosigned all receipts", func() bool { return w.head(l.seen) == l.receipts })
		servicetest.Eventually(t, "the cosignature is published", func() bool {
			c := l.client()
			defer c.http.CloseIdleConnections()
			status, body, err := c.send(t.Context(), http.MethodGet, "/public/log/"+logID(key)+"/checkpoint", "")
			return err == nil && status == http.StatusOK && strings.Contains(string(body), "\n— example.com/w ")
		})
		for _, stopped := range late {
			l.deliver(between, w, stopped, l.receipts)
		}
		l.finish()
	})
}

// deliver brings a submission to the witness after its server has died. The witness must not
// go back behind a size.
func (l *signedLog) deliver(g *gate, w *watchedWitness, late stoppedSubmission, size int64) {
	l.t.Helper()
	status, answer, _, err := g.pass(l.t.Context(), late.body)
	if err != nil || status != http.StatusOK && status != http.StatusConflict {
		l.t.Errorf("a late submission is answered %d %s, %v", status, answer, err)
	}
	if now := w.head(l.seen); now < size {
		l.t.Errorf("after a late submission the witness knows size %d, and knew %d", now, size)
	}
}

// Two replicas that both believe to hold the signer's lease, and of which one is killed again
// and again, sign one history, whether they share the file of log marks or not.
//
//countersign:norace its servers are processes
func TestReplicasFightForTheSignersLease(t *testing.T) {
	t.Parallel()
	for name, shared := range map[string]bool{"one file of marks": true, "a file of marks each": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newPostgres(t, testdb.EmptyPostgres(t))
			l := startSigned(t, s)
			other := &faultyServer{args: s.args(), key: l.key}
			marks := filepath.Join(s.folder, "heads.logs")
			if !shared {
				folder := t.TempDir()
				other.args = append(other.args, "--heads", filepath.Join(folder, "heads.json"))
				marks = filepath.Join(folder, "heads.logs")
			}
			other.start(t)
			for i := range nightly.Count(4, 80) {
				release := s.holdPublication(t)
				l.sealWith(other)
				servicetest.Eventually(t, "both replicas have noted what they sign", func() bool {
					s.freeLease(t) // whoever asks gets it
					published := l.size()
					return l.look() > published && l.seen.addMarks(marks) > published
				})
				victim := []*faultyServer{l.faultyServer, other}[i%2]
				if i%4 >= 2 { // both publish, and one of them is killed meanwhile
					release()
				}
				if err := victim.kill(); err != nil {
					t.Fatal(err)
				}
				release()
				l.look()
				l.seen.addMarks(marks)
				victim.start(t)
			}
			s.freeLease(t)
			servicetest.Eventually(t, "a checkpoint covers all receipts", func() bool { return l.size() == l.receipts })
			if err := other.stop(); err != nil {
				t.Fatal(err)
			}
			l.seen.addMarks(marks)
			l.finish()
		})
	}
}

// sealWith seals a receipt at each of two replicas, side by side.
func (l *signedLog) sealWith(other *faultyServer) {
	l.t.Helper()
	var sealing sync.WaitGroup
	for _, replica := range []*faultyServer{l.faultyServer, other} {
		c := replica.client()
		sealing.Go(func() {
			defer c.http.CloseIdleConnections()
			c.sealOrFail(l.t)
		})
		l.receipts++
	}
	sealing.Wait()
}

// sealOrFail is seal for a goroutine of the test's own, which must not call Fatal.
func (c *client) sealOrFail(t *testing.T) {
	t.Helper()
	_, body, err := c.send(t.Context(), http.MethodPost, "/v1/chains", `{"name":"test"}`)
	var chain struct{ ID string }
	if err = errors.Join(err, json.Unmarshal(body, &chain)); err != nil {
		t.Error(err)
		return
	}
	if status, body, err := c.send(t.Context(), http.MethodPost, "/v1/chains/"+chain.ID+"/complete", ""); err != nil || status != http.StatusOK {
		t.Errorf("completing is answered %d %s, %v", status, body, err)
	}
}

// copyStore makes a copy of the database, and restore puts it in the place of the database.
// No server may run.
func (s *testStore) copyStore(t *testing.T) (restore func() *testStore) {
	t.Helper()
	if s.Kind == "postgres" {
		copied := s.Copy(t)
		return func() *testStore {
			older := *s
			older.Database = copied
			older.flags = []string{"--data", s.folder, "--database", testdb.WithParameter(t, copied.URL, "pool_max_conns", "6")}
			return &older
		}
	}
	copied := filepath.Join(t.TempDir(), "copy.db")
	succeed(t, s.args("backup", copied)...)
	return func() *testStore {
		rollBack(t, s, copied)
		return s
	}
}

// keepFiles reads files, and restore writes them again as they were.
func keepFiles(t *testing.T, folder string, names ...string) (restore func()) {
	t.Helper()
	kept := make(map[string][]byte, len(names))
	for _, name := range names {
		content, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		kept[name] = content
	}
	return func() {
		for name, content := range kept {
			writeFile(t, filepath.Join(folder, name), content)
		}
	}
}

// A server that is killed and finds an older copy of its database seals and signs nothing more,
// however often it is started. If its files were rolled back with the database, it cannot know,
// and signs another history: that one the witness refuses, and so do readers who ask for it.
//
//countersign:norace its servers are processes
func TestKilledServerWithAnOlderDatabase(t *testing.T) {
	onEachEmptyStore(t, func(t *testing.T, s *testStore) {
		l := startSigned(t, s)
		l.client().call(t, http.MethodPatch, "/v1/organization", `{"evidence_export":"admins"}`, &struct{}{})
		l.seal(2)
		key := l.vkey()
		servicetest.Eventually(t, "a checkpoint covers the receipts", func() bool { return l.size() == l.receipts })
		w := newWatchedWitness(t, key)
		if err := errors.Join(l.stop(), l.db.Close()); err != nil {
			t.Fatal(err)
		}
		restore, memory := s.copyStore(t), keepFiles(t, s.folder, "heads.json", "heads.logs", "heads.chains")
		l.args = append(l.args, "--witness", w.vkey+"="+w.address)
		l.db = s.Direct(t)
		l.cosignMore(w, 3)
		if err := l.db.Close(); err != nil {
			t.Fatal(err)
		}

		older := restore()
		l.store, l.db = older, older.Direct(t)
		l.args = older.args("--witness", w.vkey+"="+w.address)
		for range nightly.Count(2, 20) {
			l.serves()
			chain := l.client().open(t)
			if status, body, err := l.client().send(t.Context(), http.MethodPost, "/v1/chains/"+chain+"/complete", ""); err != nil || status != http.StatusServiceUnavailable || problemCode(body) != string(fault.CodeRolledBack) {
				t.Errorf("completing is answered %d %s, %v", status, body, err)
			}
			l.awaitDisagreement()
			if size := l.size(); size != 2 {
				t.Errorf("an older database was signed up to %d", size)
			}
			l.dies()
		}

		memory()
		l.serves()
		second := newSignedRoots(t) // another heads file
		l.seen, l.receipts = second, 2
		l.seal(3)
		last := l.client().seal(t)
		servicetest.Eventually(t, "the second history is signed", func() bool { return l.size() == 6 })
		l.dies()
		l.serves() // and submits the second history
		l.awaitDisagreement()
		status, bundle, err := l.client().send(t.Context(), http.MethodGet, "/v1/receipts/"+last.ReceiptID+"/bundle", "")
		if err != nil || status != http.StatusOK {
			t.Fatalf("the bundle is answered %d %s, %v", status, bundle, err)
		}
		file := filepath.Join(t.TempDir(), "receipt.bundle")
		writeFile(t, file, bundle)
		succeed(t, "verify", file, "--log-key", key)
		refuse(t, cli.ExitFailed, "witnesses", "verify", file, "--log-key", key, "--witness", w.vkey, "--quorum", "1")
		if size := w.head(newSignedRoots(t)); size != 5 {
			t.Errorf("the witness has cosigned size %d, and the first history had 5", size)
		}
		if err := l.stop(); err != nil {
			t.Fatal(err)
		}
	})
}

// cosignMore serves, seals receipts, has the witness cosign them and kills the server.
func (l *signedLog) cosignMore(w *watchedWitness, receipts int) {
	l.t.Helper()
	l.serves()
	l.seal(receipts)
	servicetest.Eventually(l.t, "a checkpoint covers the receipts", func() bool { return l.size() == l.receipts })
	l.dies()
	l.serves() // and asks the witness again
	servicetest.Eventually(l.t, "the witness has cosigned the receipts", func() bool { return w.head(l.seen) == l.receipts })
	l.dies()
}

// awaitDisagreement waits until the server knows that its witness has cosigned another history.
func (l *signedLog) awaitDisagreement() {
	l.t.Helper()
	c := l.client()
	defer c.http.CloseIdleConnections()
	servicetest.Eventually(l.t, "the witness disagrees", func() bool {
		_, body, err := c.send(l.t.Context(), http.MethodGet, "/readyz", "")
		return err == nil && strings.Contains(string(body), "witness_disagrees")
	})
}
