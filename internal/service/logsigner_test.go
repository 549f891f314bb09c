package service_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/transparency-dev/merkle/proof"
	"github.com/transparency-dev/merkle/rfc6962"

	"countersign/internal/fault"
	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/store"
	"countersign/internal/testdb"
	"countersign/internal/tlog"
	"countersign/internal/verify"
)

// notary signs like a key ring and refuses nothing. It records everything that was ever signed,
// and fails the test if two checkpoints of one size differ.
type notary struct {
	*keyring.Ring
	t *testing.T

	mu     sync.Mutex
	signed map[string]tlog.Checkpoint // by origin and size
}

func (n *notary) SignLog(id string, message []byte) ([]byte, error) {
	c, err := tlog.ParseCheckpoint(string(message))
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	name := fmt.Sprint(c.Origin, " ", c.Size)
	if before, ok := n.signed[name]; ok && before != c {
		n.t.Errorf("two checkpoints of size %d were signed with different roots", c.Size)
	}
	n.signed[name] = c
	return n.Ring.SignLog(id, message)
}

// logged is a service that signs logs when the test says so.
type logged struct {
	*service.Service
	t      *testing.T
	db     *testdb.Database
	notary *notary
	marks  *keyring.LogMarks
	file   string // of the marks
	keys   string // the key file
}

// logging starts a service that signs. The database and the file of log marks may be shared with
// another one.
//
//countersign:replica
func logging(t *testing.T, db *testdb.Database, of *logged, alone bool) *logged {
	t.Helper()
	return loggingThrough(t, db.Open(t), db, of, alone)
}

// loggingThrough is logging with a store that the test has wrapped.
func loggingThrough(t *testing.T, port store.Store, db *testdb.Database, of *logged, alone bool) *logged {
	t.Helper()
	l := &logged{t: t, db: db}
	if of == nil {
		ring, keys := servicetest.NewRing(t)
		l.keys = keys
		l.notary = &notary{Ring: ring, t: t, signed: make(map[string]tlog.Checkpoint)}
		l.file = filepath.Join(t.TempDir(), "heads.logs")
	} else {
		l.notary, l.file, l.keys = of.notary, of.file, of.keys
	}
	l.marks = must[*keyring.LogMarks](t)(keyring.OpenLogMarks(l.file, l.notary.Ring))
	l.Service = serve(t, service.Config{
		Store: port, Keys: l.notary.Ring, LogKeys: l.notary, Alone: alone, Clock: time.Now,
		LogMarks: l.marks, Signing: &service.Signing{Keys: l.notary, Instance: "log.example.com"},
	})
	return l
}

// loggingSigned is logging with an organization whose log is signed with so many receipts.
func loggingSigned(t *testing.T, db *testdb.Database, receipts int) (*logged, *tenant) {
	t.Helper()
	l := logging(t, db, nil, true)
	acme := newTenant(t, l.Service, "acme")
	l.seal(acme, receipts)
	l.SignRound(t.Context())
	return l, acme
}

func (l *logged) seal(who *tenant, receipts int) {
	l.t.Helper()
	for range receipts {
		chain := must[*service.ChainView](l.t)(l.OpenChain(l.t.Context(), who.agent, chainNamed(l.t, "sealed-"+randomName()), ""))
		must[*service.Completed](l.t)(l.CompleteChain(l.t.Context(), who.agent, chain.ID, &ledger.Completion{}))
	}
}

// checkpoint returns the newest checkpoint of an organization's log, verified with the log's key.
func (l *logged) checkpoint(slug string) tlog.Checkpoint {
	l.t.Helper()
	origin, keys, err := l.Operator().LogVerifierKeys(l.t.Context(), slug)
	done(l.t, err)
	current := keys[len(keys)-1]
	verifier, err := tlog.Verifier(origin, current.Public)
	done(l.t, err)
	_, id, _ := strings.Cut(origin, "/")
	c, _, err := tlog.Open(must[[]byte](l.t)(l.LogCheckpoint(l.t.Context(), id)), origin, verifier)
	done(l.t, err)
	return c
}

// prove verifies a proof of every receipt of a log with another implementation.
func (l *logged) prove(who *tenant, size int64) {
	l.t.Helper()
	c := l.checkpoint(who.slug)
	if c.Size != size {
		l.t.Fatalf("the log has %d leaves, want %d", c.Size, size)
	}
	for sequence := int64(1); sequence <= size; sequence++ {
		p := must[*service.LogProof](l.t)(l.InclusionProof(l.t.Context(), who.id, sequence))
		steps := make([][]byte, len(p.Hashes))
		for i := range steps {
			steps[i] = p.Hashes[i][:]
		}
		receipts := must[[]*ledger.StoredReceipt](l.t)(l.db.Open(l.t).Receipts(l.t.Context(), who.id, sequence+1, 1))
		leaf := rfc6962.DefaultHasher.HashLeaf(receipts[0].Body)
		if err := proof.VerifyInclusion(rfc6962.DefaultHasher, uint64(p.Index), uint64(p.Size), leaf, steps, c.Root[:]); err != nil {
			l.t.Errorf("receipt %d: %v", sequence, err)
		}
	}
}

// Receipts are in a signed log after a round, however the signer learns of them, and the tree is
// the same either way. There is no proof for a receipt that is not signed yet.
//
//countersign:race
func TestLogGrowsWithReceipts(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		l := logging(t, db, nil, true)
		acme := newTenant(t, l.Service, "acme")
		l.SignRound(t.Context())
		if c := l.checkpoint("acme"); c.Size != 0 || c.Root != tlog.EmptyRoot() {
			t.Errorf("without receipts: %+v", c)
		}
		l.seal(acme, 2)
		if _, err := l.InclusionProof(t.Context(), acme.id, 1); codeOf(err) != fault.CodeUnavailable {
			t.Errorf("before it is signed: %v", err)
		}
		l.SignSealed(t.Context()) // from memory
		l.prove(acme, 2)
		l.seal(acme, 1)
		again := logging(t, db, l, true) // from the store
		again.SignRound(t.Context())
		again.prove(acme, 3)
		if _, err := again.LogCheckpoint(t.Context(), strings.Repeat("0", 32)); codeOf(err) != fault.CodeNotFound {
			t.Errorf("an unknown log: %v", err)
		}
		checkIntact(t, again.Service, "acme", 3)
	})
}

var errKilled = errors.New("killed")

// A signer that crashes at any point later signs the same tree, extended by what was sealed
// meanwhile: never two checkpoints of one size with different roots.
//
//countersign:race
func TestSignerThatDies(t *testing.T) {
	t.Parallel()
	l := logging(t, testdb.SQLite(t), nil, true)
	acme := newTenant(t, l.Service, "acme")
	size := 0
	for _, point := range []string{"before the mark", "before the signature", "before publication", "after publication"} {
		l.seal(acme, 2)
		l.EndRoundsAt(errKilled, point)
		l.SignRound(t.Context())
		l = logging(t, l.db, l, true)
		l.SignRound(t.Context())
		size += 2
		l.prove(acme, int64(size))
		// The same once more, with receipts sealed between the crash and the next start.
		l.seal(acme, 1)
		l.EndRoundsAt(errKilled, point)
		l.SignRound(t.Context())
		l.EndRoundsAt(nil, "")
		l.seal(acme, 1)
		l = logging(t, l.db, l, true)
		l.SignRound(t.Context())
		size += 2
		l.prove(acme, int64(size))
	}
}

// rollBackReceipts rolls a database back to the first receipts of an organization, with the head of
// that time, as someone who kept that head can.
func rollBackReceipts(t *testing.T, db *testdb.Database, who *tenant, count int64, head *ledger.Head) {
	t.Helper()
	direct := db.Direct(t)
	execute(t, direct, db, "DELETE FROM receipts WHERE org_id = ? AND sequence > ?", idOf(db, who.id), count)
	execute(t, direct, db, "UPDATE heads SET count = ?, last_hash = ?, key_id = ?, mac = ? WHERE org_id = ?", head.Count, head.Last[:], head.KeyID, head.MAC, idOf(db, who.id))
}

func idOf(db *testdb.Database, org ledger.OrgID) any {
	if db.Kind == "postgres" {
		return org.String()
	}
	return org.UUID[:]
}

// execute runs a statement written with question marks on either kind of database.
func execute(t *testing.T, direct *sql.DB, db *testdb.Database, query string, args ...any) {
	t.Helper()
	for i := 1; db.Kind == "postgres" && strings.Contains(query, "?"); i++ {
		query = strings.Replace(query, "?", fmt.Sprintf("$%d", i), 1)
	}
	if _, err := direct.ExecContext(t.Context(), query, args...); err != nil {
		t.Fatal(err)
	}
}

// A database that was rolled back, and in which other receipts were sealed since, is not signed
// while the file of log marks is ahead of it, whether or not the log was rolled back, too. Once an
// operator has accepted it, a new log begins, and the audit log records the end of the old one.
//
//countersign:race
func TestRolledBackDatabaseIsNotSigned(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		l, acme := loggingSigned(t, db, 2)
		head := must[*ledger.Head](t)(db.Open(t).Head(t.Context(), acme.id))
		older := must[[]byte](t)(l.LogCheckpoint(t.Context(), logOf(l, "acme")))
		l.seal(acme, 2)
		l.SignRound(t.Context())
		l.prove(acme, 4)
		before := l.checkpoint("acme")

		rollBackReceipts(t, db, acme, 2, head)
		l = logging(t, db, l, true)
		l.SignRound(t.Context())
		l.seal(acme, 3) // others, under the numbers of those that were signed
		l.ForgetPauses()
		l.SignRound(t.Context())
		if c := l.checkpoint("acme"); c != before {
			t.Errorf("signed: %+v", c)
		}
		l.WaitForFindings() // so that the last act is that of the operator
		c, _ := tlog.ParseCheckpoint(strings.SplitN(string(older), "\n\n", 2)[0] + "\n")
		execute(t, db.Direct(t), db, "UPDATE log_checkpoints SET size = ?, root = ?, note = ? WHERE kind = 'newest'", c.Size, c.Root[:], older)
		l = logging(t, db, l, true)
		l.SignRound(t.Context())
		if c := l.checkpoint("acme"); c.Size != 2 {
			t.Errorf("signed after the log was rolled back as well: %+v", c)
		}
		l.WaitForFindings()

		done(t, l.Operator().CloseLogForTest(t.Context(), acme.id, "acme"))
		l.ForgetPauses()
		l.SignRound(t.Context())
		l.prove(acme, 5)
		if c := l.checkpoint("acme"); c.Origin == before.Origin {
			t.Error("the log goes on under the same origin")
		}
		acts := must[[]*ledger.StoredAct](t)(l.Acts(t.Context(), acme.admin, 0, 1))
		if !strings.Contains(string(acts[0].Body), `"log_closed":"`+before.Origin[len("log.example.com/"):]+`"`) || !strings.Contains(string(acts[0].Body), `"log_size":4`) {
			t.Errorf("the audit log says %s", acts[0].Body)
		}
	})
}

// headStore runs a function after a head was read.
type headStore struct {
	testdb.Store
	read func()
}

// Head implements store.Receipts.
func (s *headStore) Head(ctx context.Context, org ledger.OrgID) (*ledger.Head, error) {
	head, err := s.Store.Head(ctx, org)
	if read := s.read; read != nil {
		s.read = nil
		read()
	}
	return head, err
}

// A receipt that is sealed while the signer reads receipts of another replica makes the database
// look older than what was acknowledged. That is no rollback: it does not delay the log.
func TestSealingWhileALogIsRead(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		w := watching(t, db, nil)
		through := &headStore{Store: db.Open(t)}
		s := &watched{ring: w.ring, heads: w.heads, Service: serve(t, service.Config{
			Store: through, Keys: w.ring, LogKeys: w.ring, Watch: w.heads, Clock: time.Now,
			LogMarks: must[*keyring.LogMarks](t)(keyring.OpenLogMarks(filepath.Join(t.TempDir(), "heads.logs"), w.ring)),
			Signing:  &service.Signing{Keys: w.ring, Instance: "log.example.com"},
		})}
		acme := newTenant(t, s.Service, "acme")
		done(t, w.seal(t, acme))
		through.read = func() { done(t, s.seal(t, acme)) }
		s.SignRound(t.Context())
		must[*service.LogProof](t)(s.InclusionProof(t.Context(), acme.id, 1))
	})
}

// A process that crashes may leave a heads file that is older than what it has signed. The marks
// of its log still reveal that a database was rolled back: nothing is sealed in it until an
// operator accepts it, and then a new log begins.
//
//countersign:race
func TestMarksShowARolledBackDatabase(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		first := watching(t, db, nil)
		signing := func(heads *keyring.Heads, marks string) *watched {
			return &watched{ring: first.ring, heads: heads, Service: serve(t, service.Config{
				Store: db.Open(t), Keys: first.ring, LogKeys: first.ring, Watch: heads, Alone: true, Clock: time.Now,
				LogMarks: must[*keyring.LogMarks](t)(keyring.OpenLogMarks(marks, first.ring)), Signing: &service.Signing{Keys: first.ring, Instance: "log.example.com"},
			})}
		}
		file := filepath.Join(t.TempDir(), "heads.logs")
		s := signing(first.heads, file)
		acme := newTenant(t, s.Service, "acme")
		done(t, s.seal(t, acme))
		head := must[*ledger.Head](t)(db.Open(t).Head(t.Context(), acme.id))
		kept, _ := first.heads.Seen(acme.id.UUID)
		done(t, s.seal(t, acme))
		s.SignRound(t.Context())
		rollBackReceipts(t, db, acme, 1, head)
		done(t, first.heads.Accept(acme.id.UUID, kept)) // the file as it was a second before

		s = signing(first.heads, file)
		found := s.found(t, verify.Rollback{Organization: "acme", Acknowledged: 2, Stored: 1})
		checkCode(t, "sealing", s.seal(t, acme), fault.CodeRolledBack)
		report := must[*verify.LedgerAudit](t)(s.AuditLedger(t.Context(), acme.admin, verify.AuditOptions{}))
		if report.Break == nil {
			t.Error("the audit finds nothing")
		}
		done(t, s.Operator().AcceptRollbacks(t.Context(), found, first.heads.Accept))
		s.found(t)
		done(t, s.seal(t, acme))
		s.ForgetPauses()
		s.SignRound(t.Context())
		proof := must[*service.LogProof](t)(s.InclusionProof(t.Context(), acme.id, 2))
		if proof.Size != 2 {
			t.Errorf("the new log has %d leaves, want 2", proof.Size)
		}
	})
}

// A log that was ended outside the database, by a command that crashed before closing it, is
// closed by the signer, and a new one begins.
//
//countersign:race
func TestEndedLogIsClosed(t *testing.T) {
	t.Parallel()
	l, acme := loggingSigned(t, testdb.SQLite(t), 2)
	before := l.checkpoint("acme")
	done(t, l.marks.End(acme.id.UUID))
	l = logging(t, l.db, l, true)
	l.seal(acme, 1)
	l.SignRound(t.Context())
	l.wantNewLog(acme, before, ledger.ActTransparencyClose)
}

// wantNewLog wants another log with three receipts, and the audit log to end with the act that closed
// the log before.
func (l *logged) wantNewLog(who *tenant, before tlog.Checkpoint, closing string) {
	l.t.Helper()
	l.prove(who, 3)
	if l.checkpoint(who.slug).Origin == before.Origin {
		l.t.Error("an ended log was signed")
	}
	acts := must[[]*ledger.StoredAct](l.t)(l.Acts(l.t.Context(), who.admin, 0, 1))
	if !strings.Contains(string(acts[0].Body), closing) {
		l.t.Errorf("the audit log ends with %s, want %s", acts[0].Body, closing)
	}
}

// While a command that ends a log is about to close it, the signer of a running server finds it
// ended and still open. The log is closed once, by the command.
//
//countersign:race
func TestEndedLogIsClosedOnce(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		command := logging(t, db, nil, true)
		acme := newTenant(t, command.Service, "acme")
		command.seal(acme, 2)
		command.SignRound(t.Context())
		before := command.checkpoint("acme")
		command.seal(acme, 1)

		gate := newGate(db.Open(t))
		gate.unused.Store(true)
		server := loggingThrough(t, gate, db, command, true)
		gate.unused.Store(false)
		done(t, server.marks.End(acme.id.UUID)) // as the command does first
		signed := make(chan struct{})
		go func() {
			defer close(signed)
			server.SignRound(context.Background())
		}()
		gate.await(t)
		done(t, command.Operator().CloseLogForTest(t.Context(), acme.id, "acme"))
		gate.unused.Store(true)
		close(gate.open)
		<-signed

		command.wantNewLog(acme, before, ledger.ActRollbackAccept)
	})
}

// During a rotation both keys sign, and logs that do not grow are signed again. A revoked key
// signs nothing, and a checkpoint signed only by it is not shown.
func TestRotationOfLogKeys(t *testing.T) {
	t.Parallel()
	l, acme := loggingSigned(t, testdb.SQLite(t), 2)
	id := logOf(l, "acme")
	signatures := func() int { return strings.Count(string(must[[]byte](t)(l.LogCheckpoint(t.Context(), id))), "\n— ") }
	if signatures() != 1 {
		t.Error("more than one key has signed")
	}
	old := l.notary.CurrentKey()
	must[*keyring.Ring](t)(keyring.Rotate(l.keys, rand.Reader, time.Now()))
	done(t, l.notary.Reload())
	l.SignRound(t.Context())
	if signatures() != 2 {
		t.Error("not both keys have signed")
	}
	must[*keyring.Ring](t)(keyring.RevokeLogKey(l.keys, old, time.Now()))
	done(t, l.notary.Reload())
	l.seal(acme, 1)
	l.SignRound(t.Context())
	if signatures() != 1 {
		t.Error("a revoked key has signed")
	}
	l.prove(acme, 3)
}

// replaceLogKey rotates the key of the logs and revokes the previous one, as after a leak.
func (l *logged) replaceLogKey() {
	l.t.Helper()
	old := l.notary.CurrentKey()
	must[*keyring.Ring](l.t)(keyring.Rotate(l.keys, rand.Reader, time.Now()))
	must[*keyring.Ring](l.t)(keyring.RevokeLogKey(l.keys, old, time.Now()))
	done(l.t, l.notary.Reload())
}

// wantNoFindings fails the test if this service has found tampering.
func (l *logged) wantNoFindings() {
	l.t.Helper()
	l.WaitForFindings()
	l.ForgetFindings()
	if open := must[int](l.t)(l.OpenFindings(l.t.Context())); open != 0 {
		l.t.Errorf("%d findings of tampering", open)
	}
}

// A key that is rotated and revoked at once leaves logs that only the revoked key has signed. They
// are not shown, which is temporary and no tampering, and whoever asks makes the signer sign them
// again. A revoked key's signature also leaves a log that does not grow.
func TestRevokedLogKeyIsNoTampering(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		l, acme := loggingSigned(t, db, 2)
		id, before := logOf(l, "acme"), l.checkpoint("acme")

		l.replaceLogKey()
		if _, err := l.LogCheckpoint(t.Context(), id); codeOf(err) != fault.CodeUnavailable {
			t.Errorf("the checkpoint is refused with %v", err)
		}
		if _, err := l.LogTile(t.Context(), id, "tile/0/000.p/2"); codeOf(err) != fault.CodeUnavailable {
			t.Errorf("a tile is refused with %v", err)
		}
		if _, err := l.InclusionProof(t.Context(), acme.id, 1); codeOf(err) != fault.CodeUnavailable {
			t.Errorf("a proof is refused with %v", err)
		}
		l.wantNoFindings()
		l.SignSealed(t.Context())
		if c := l.checkpoint("acme"); c != before {
			t.Errorf("it is signed again as %+v", c)
		}

		old := l.notary.CurrentKey()
		must[*keyring.Ring](t)(keyring.Rotate(l.keys, rand.Reader, time.Now()))
		done(t, l.notary.Reload())
		l.SignRound(t.Context())
		must[*keyring.Ring](t)(keyring.RevokeLogKey(l.keys, old, time.Now()))
		done(t, l.notary.Reload())
		l.SignRound(t.Context())
		if signed := string(must[[]byte](t)(l.LogCheckpoint(t.Context(), id))); strings.Count(signed, "\n— ") != 1 {
			t.Errorf("a revoked key's signature stays:\n%s", signed)
		}
		l.wantNoFindings()
	})
}

// A replica reads what another one has signed with a new key, before it has picked up the rotation
// itself: it finds no tampering, and seals and signs on with the key that it has.
//
//countersign:race
func TestReplicasPickUpARotationOneByOne(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		one := logging(t, db, nil, true)
		acme := newTenant(t, one.Service, "acme")
		one.seal(acme, 1)
		one.SignRound(t.Context())
		late := &notary{Ring: must[*keyring.Ring](t)(keyring.Open(one.keys)), t: t, signed: one.notary.signed}
		two := logging(t, db, &logged{notary: late, keys: one.keys, file: filepath.Join(t.TempDir(), "heads.logs")}, true)

		one.replaceLogKey()
		done(t, one.Operator().AdoptKeys(t.Context(), one.notary.Ring))
		one.seal(acme, 1)
		one.SignRound(t.Context())
		if late.CurrentKey() == one.notary.CurrentKey() {
			t.Fatal("both have picked it up")
		}
		before := one.checkpoint("acme")
		two.seal(acme, 1)
		must[[]byte](t)(two.LogCheckpoint(t.Context(), logOf(one, "acme")))
		if c := two.checkpoint("acme"); c != before {
			t.Errorf("it reads the checkpoint %+v", c)
		}
		two.prove(acme, 2)
		one.SignRound(t.Context())
		one.prove(acme, 3)
		if report := must[*verify.AuditReport](t)(two.Operator().Audit(t.Context(), "acme", verify.AuditOptions{})); report.Break != nil {
			t.Errorf("an audit finds %+v", report.Break)
		}
		two.wantNoFindings()
	})
}

// A signer takes over a log that only a revoked key has signed, although its own marks do not
// cover it: another replica has signed it, or it died between its mark and the publication. The
// receipts decide: a checkpoint that they do not lead to was made with the stolen key.
//
//countersign:race
func TestTakingOverFromARevokedLogKey(t *testing.T) {
	for name, marked := range map[string]int{"no mark": 0, "an older mark": 2} {
		t.Run(name, func(t *testing.T) {
			testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
				one := logging(t, db, nil, true)
				two := logging(t, db, &logged{notary: one.notary, keys: one.keys, file: filepath.Join(t.TempDir(), "heads.logs")}, true)
				acme := newTenant(t, one.Service, "acme")
				if marked > 0 {
					one.seal(acme, marked)
					two.SignRound(t.Context())
				}
				one.seal(acme, 3)
				one.SignRound(t.Context())
				before := one.checkpoint("acme")
				one.replaceLogKey()
				two.SignRound(t.Context()) // may find another checkpoint than the one in its memory
				two.SignRound(t.Context())
				if c := two.checkpoint("acme"); c != before {
					t.Errorf("it is signed again as %+v, want %+v", c, before)
				}
				two.prove(acme, before.Size)
				two.wantNoFindings()
			})
		})
	}
}

// A signer that died between its mark and the publication, before the key was revoked, continues.
func TestMarkAheadOfARevokedLogKey(t *testing.T) {
	t.Parallel()
	l, acme := loggingSigned(t, testdb.SQLite(t), 2)
	l.seal(acme, 1)
	l.EndRoundsAt(errors.New("killed"), "before publication")
	l.SignRound(t.Context())
	l.EndRoundsAt(nil, "")
	l.ForgetPauses()
	l.replaceLogKey()
	l.SignRound(t.Context())
	l.prove(acme, 3)
	l.wantNoFindings()
}

// Whoever has a stolen key and can write the database publishes nothing with it: a checkpoint of
// other receipts, or of more than there are, is found and not signed again.
//
//countersign:race
func TestStolenLogKeyPublishesNothing(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]int64{"other receipts": 3, "more receipts": 5} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			one := logging(t, testdb.SQLite(t), nil, true)
			acme := newTenant(t, one.Service, "acme")
			one.seal(acme, 3)
			one.SignRound(t.Context())
			origin, keys, err := one.Operator().LogVerifierKeys(t.Context(), "acme")
			done(t, err)
			stolen := keys[0]
			one.replaceLogKey()

			forged := tlog.Checkpoint{Origin: origin, Size: size, Root: tlog.Hash{1}}
			signed := must[[]byte](t)(tlog.Sign(forged, tlog.Signer(origin, stolen.Public, func(m []byte) ([]byte, error) { return one.notary.Ring.SignLog(stolen.ID, m) })))
			execute(t, one.db.Direct(t), one.db, "UPDATE log_checkpoints SET size = ?, root = ?, note = ?", size, forged.Root[:], signed)
			two := logging(t, one.db, &logged{notary: one.notary, keys: one.keys, file: filepath.Join(t.TempDir(), "heads.logs")}, true)
			two.SignRound(t.Context())
			if shown, err := two.LogCheckpoint(t.Context(), logOf(two, "acme")); err == nil {
				t.Errorf("it is shown:\n%s", shown)
			}
			two.WaitForFindings()
			found := must[[]*service.Finding](t)(two.Operator().Findings(t.Context(), "acme"))
			if !slices.ContainsFunc(found, func(f *service.Finding) bool { return f.Check == string(ledger.CheckTransparency) }) {
				t.Errorf("the findings are %+v", found)
			}
		})
	}
}

// A log that could not be signed during a rotation is signed later, and so is one that does not
// grow if the keys were rotated while no server was running. Otherwise revoking the old key would
// leave such a log without a valid signature.
//
//countersign:race
func TestRotationReachesEveryLog(t *testing.T) {
	t.Parallel()
	l, _ := loggingSigned(t, testdb.SQLite(t), 2)
	rotate := func() {
		t.Helper()
		must[*keyring.Ring](t)(keyring.Rotate(l.keys, rand.Reader, time.Now()))
		done(t, l.notary.Reload())
	}
	before := l.checkpoint("acme")

	rotate()
	l.EndRoundsAt(errors.New("the store fails"), "before publication")
	l.SignRound(t.Context())
	l.EndRoundsAt(nil, "")
	l.ForgetPauses()
	l.SignRound(t.Context())
	if c := l.checkpoint("acme"); c != before { // verifies it with the new key
		t.Errorf("after a round that failed: %+v", c)
	}

	rotate()
	next := logging(t, l.db, l, true)
	next.SignRound(t.Context())
	if c := next.checkpoint("acme"); c != before {
		t.Errorf("after a restart: %+v", c)
	}
}

// A log that cannot be signed for one reason is logged once, however often it is tried again, and
// once more if it fails after it was signed.
//
//countersign:race
func TestFailureToSignIsLoggedOnce(t *testing.T) {
	t.Parallel()
	db, clock, log := testdb.SQLite(t), servicetest.NewClock(time.Now()), &servicetest.Buffer{}
	l := logging(t, db, nil, true)
	l.Service = serve(t, service.Config{
		Store: db.Open(t), Keys: l.notary.Ring, LogKeys: l.notary, Alone: true, Clock: clock.Now, Log: slog.New(slog.NewTextHandler(log, nil)),
		LogMarks: l.marks, Signing: &service.Signing{Keys: l.notary, Instance: "log.example.com"},
	})
	acme := newTenant(t, l.Service, "acme")
	for failures := 1; failures <= 2; failures++ {
		l.seal(acme, 1)
		l.EndRoundsAt(errors.New("the store fails"), "before publication")
		for range 3 {
			l.SignRound(t.Context())
			clock.Advance(time.Minute) // the pause is over
		}
		if lines := strings.Count(log.String(), "cannot be signed"); lines != failures {
			t.Errorf("%d lines after failure %d:\n%s", lines, failures, log)
		}
		l.EndRoundsAt(nil, "")
		l.SignRound(t.Context())
		l.prove(acme, int64(failures))
		clock.Advance(time.Minute)
	}
}

func logOf(l *logged, slug string) string {
	l.t.Helper()
	origin, _, err := l.Operator().LogVerifierKeys(l.t.Context(), slug)
	done(l.t, err)
	_, id, _ := strings.Cut(origin, "/")
	return id
}

// A tile that was changed is refused, reported and rebuilt from the receipts. A log or a
// checkpoint that was changed is refused and reported, and nothing is signed on top of it.
//
//countersign:race
func TestChangedLogIsRefused(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		l, acme := loggingSigned(t, db, 3)
		id, before := logOf(l, "acme"), l.checkpoint("acme")
		good, err := l.LogTile(t.Context(), id, "tile/0/000.p/3")
		done(t, err)

		bad := slices.Clone(good)
		bad[40] ^= 1
		direct := db.Direct(t)
		execute(t, direct, db, "UPDATE log_tiles SET hashes = ?", bad)
		if _, err := l.LogTile(t.Context(), id, "tile/0/000.p/2"); codeOf(err) != fault.CodeEvidenceTampered {
			t.Errorf("a changed tile: %v", err)
		}
		if _, err := l.InclusionProof(t.Context(), acme.id, 1); codeOf(err) != fault.CodeEvidenceTampered {
			t.Errorf("a proof from a changed tile: %v", err)
		}
		l.checkFound(acme)
		l.SignRound(t.Context())
		if again, err := l.LogTile(t.Context(), id, "tile/0/000.p/3"); err != nil || !slices.Equal(again, good) {
			t.Errorf("after a round: %v", err)
		}
		l.prove(acme, 3)

		for what, change := range map[string]string{
			"an origin":       "UPDATE transparency_logs SET origin = 'elsewhere'",
			"a size":          "UPDATE log_checkpoints SET size = 2",
			"a note":          "UPDATE log_checkpoints SET note = root",
			"an opened log":   "UPDATE transparency_logs SET opened_at = 7",
			"cosignatures":    "UPDATE log_checkpoints SET cosignatures = root",
			"a log's closing": "UPDATE transparency_logs SET closed_at = 7",
		} {
			tables := keepLog(t, direct)
			execute(t, direct, db, change)
			if _, err := l.LogCheckpoint(t.Context(), id); codeOf(err) != fault.CodeEvidenceTampered {
				t.Errorf("%s: %v", what, err)
			}
			report := must[*verify.LedgerAudit](t)(l.AuditLedger(t.Context(), acme.admin, verify.AuditOptions{}))
			if report.Break == nil || report.Break.Check != ledger.CheckTransparency {
				t.Errorf("%s: the audit finds %+v", what, report.Break)
			}
			other := logging(t, db, l, true)
			other.SignRound(t.Context())
			tables(t, direct, db)
		}
		l.ForgetPauses()
		l.SignRound(t.Context())
		if c := l.checkpoint("acme"); c != before {
			t.Errorf("afterwards: %+v", c)
		}
	})
}

// keepLog returns a function that restores the rows of a log.
func keepLog(t *testing.T, direct *sql.DB) func(*testing.T, *sql.DB, *testdb.Database) {
	t.Helper()
	var origin string
	var opened, size int64
	var note []byte
	row := direct.QueryRowContext(t.Context(), "SELECT l.origin, l.opened_at, c.size, c.note FROM transparency_logs l JOIN log_checkpoints c ON c.log_id = l.id")
	if err := row.Scan(&origin, &opened, &size, &note); err != nil {
		t.Fatal(err)
	}
	return func(t *testing.T, direct *sql.DB, db *testdb.Database) {
		t.Helper()
		execute(t, direct, db, "DELETE FROM transparency_logs WHERE origin NOT IN (?, 'elsewhere')", origin)
		execute(t, direct, db, "UPDATE transparency_logs SET origin = ?, opened_at = ?, closed_at = NULL", origin, opened)
		execute(t, direct, db, "UPDATE log_checkpoints SET size = ?, note = ?, cosignatures = ?", size, note, []byte{})
	}
}

func (l *logged) checkFound(who *tenant) {
	l.t.Helper()
	l.WaitForFindings()
	findings := must[[]*service.Finding](l.t)(l.Operator().Findings(l.t.Context(), who.slug))
	if !slices.ContainsFunc(findings, func(f *service.Finding) bool { return f.Check == string(ledger.CheckTransparency) }) {
		l.t.Errorf("nobody was told: %+v", findings)
	}
}

// Two replicas that seal and sign concurrently produce one log without contradicting checkpoints,
// whichever of them is the signer.
//
//countersign:race
func TestReplicasShareALog(t *testing.T) {
	t.Parallel()
	db := testdb.Postgres(t)
	one := logging(t, db, nil, false)
	acme := newTenant(t, one.Service, "acme")
	two := logging(t, db, &logged{notary: one.notary, file: filepath.Join(t.TempDir(), "heads.logs")}, false)
	replicas := []*logged{one, two}
	const each = 10
	var working sync.WaitGroup
	for _, replica := range replicas {
		working.Go(func() {
			for range each {
				replica.seal(acme, 1)
				replica.SignRound(t.Context())
			}
		})
	}
	working.Wait()
	for _, replica := range replicas {
		replica.SignRound(t.Context())
	}
	one.prove(acme, 2*each)
}
