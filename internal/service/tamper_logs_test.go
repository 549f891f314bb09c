package service_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"

	"countersign/internal/fault"
	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/testdb"
	"countersign/internal/tlog"
	"countersign/internal/verify"
)

// tamperedLog is an organization's transparency log as its readers know it.
type tamperedLog struct {
	org          ledger.OrgID
	origin, id   string
	log, witness note.Verifier
	published    publishedLog // before anybody tampered
}

// publishedLog is what a reader learns who has the keys of the log and of its witness.
type publishedLog struct {
	checkpoint   tlog.Checkpoint
	cosignatures int
	rest         string // the tile, and a proof for each receipt
}

func newLogMarks(t testing.TB, ring *keyring.Ring) *keyring.LogMarks {
	t.Helper()
	return must[*keyring.LogMarks](t)(keyring.OpenLogMarks(filepath.Join(t.TempDir(), "heads.logs"), ring))
}

// publish signs an organization's log, has it cosigned, and keeps what is published.
func (s *scene) publish(of *service.Service, who *tenant) {
	s.t.Helper()
	of.SignRound(s.t.Context())
	origin, keys, err := of.Operator().LogVerifierKeys(s.t.Context(), who.slug)
	done(s.t, err)
	skey, vkey, err := note.GenerateKey(rand.Reader, "witness.example.com")
	done(s.t, err)
	l := &tamperedLog{org: who.id, origin: origin, id: origin[strings.LastIndex(origin, "/")+1:]}
	l.log = must[note.Verifier](s.t)(note.NewVerifier(keys[len(keys)-1].VerifierKey))
	l.witness = must[note.Verifier](s.t)(note.NewVerifier(vkey))
	signer := must[note.Signer](s.t)(note.NewSigner(skey))

	log := must[*service.LogToWitness](s.t)(of.LogToWitness(s.t.Context(), who.id))
	text, _, _ := strings.Cut(string(log.Checkpoint), "\n\n")
	_, line, _ := strings.Cut(string(must[[]byte](s.t)(note.Sign(&note.Note{Text: text + "\n"}, signer))), "\n\n")
	done(s.t, of.AttachCosignatures(s.t.Context(), log, []byte(line)))
	l.published = must[publishedLog](s.t)(l.read(s.t.Context(), of))
	if l.published.checkpoint.Size != sealedChains || l.published.cosignatures != 1 {
		s.t.Fatalf("published is %+v", l.published)
	}
	s.logs[who.slug] = l
}

// read reads everything that is published of a log, like an outsider.
func (l *tamperedLog) read(ctx context.Context, of *service.Service) (found publishedLog, err error) {
	signed, err := of.LogCheckpoint(ctx, l.id)
	if err != nil {
		return found, err
	}
	var signatures []note.Signature
	if found.checkpoint, signatures, err = tlog.Open(signed, l.origin, l.log, l.witness); err != nil {
		return found, err
	}
	found.cosignatures = len(signatures) - 1
	tile, err := of.LogTile(ctx, l.id, fmt.Sprintf("tile/0/000.p/%d", sealedChains))
	if err != nil {
		return found, err
	}
	found.rest = fmt.Sprintf("%x", tile)
	for sequence := range sealedChains {
		proof, err := of.InclusionProof(ctx, l.org, int64(sequence)+1)
		if err != nil {
			return found, err
		}
		if _, _, err := tlog.Open(proof.Checkpoint, l.origin, l.log, l.witness); err != nil {
			return found, err
		}
		found.rest += fmt.Sprintf("\n%d %d %x", proof.Size, proof.Index, proof.Hashes)
	}
	return found, nil
}

// check expects that readers are refused, or see what was published before, with no more
// cosignatures than it had.
func (l *tamperedLog) check(ctx context.Context, of *service.Service) error {
	found, err := l.read(ctx, of)
	switch {
	case codeOf(err) == fault.CodeEvidenceTampered, errors.Is(err, tlog.ErrNotACheckpoint):
		return nil
	case err != nil:
		return err
	case found.checkpoint != l.published.checkpoint || found.rest != l.published.rest || found.cosignatures > l.published.cosignatures:
		return fmt.Errorf("they are shown %+v", found)
	}
	return nil
}

// unsaid reports whether the audit need not name what was done to a row, because nothing
// authenticates what was deleted or added: the lines of witnesses, whose keys only readers have,
// and what follows the hashes of a tile.
func unsaid(r *row, how string) bool {
	switch r.table {
	case "log_checkpoints":
		return text(r.value("kind")) == "witnessed"
	case "log_tiles":
		return how == "longer"
	}
	return false
}

// copyLogs copies rows of logs: under another id, to another organization, over other rows, and to
// where there are none.
func (s *scene) copyLogs() {
	s.t.Helper()
	ours, theirs := s.ofOrg("transparency_logs", "acme")[0], s.ofOrg("transparency_logs", "other")[0]
	try := func(name, org, table string, unsaid bool, commit func() error) {
		s.t.Helper()
		s.try(crime{name: name, org: org, checks: checksFor(table), tables: []string{table}, unsaid: unsaid, commit: func(*scene) error { return commit() }})
	}
	second := ours.with(map[string]any{"id": otherID(ours.value("id")), "closed_at": ours.value("opened_at")})
	try("a log copied as a closed one", "acme", "transparency_logs", false, func() error { return s.insert(&second) })
	given := second.with(map[string]any{"org_id": theirs.value("org_id")})
	try("a log copied to another organization", "other", "transparency_logs", false, func() error { return s.insert(&given) })

	checkpoints := map[string]row{}
	for _, r := range s.rowsOf("log_checkpoints") {
		checkpoints[r.org+" "+text(r.value("kind"))] = r
	}
	newest, witnessed := checkpoints["acme newest"], checkpoints["acme witnessed"]
	try("the newest checkpoint copied over the cosigned one", "acme", "log_checkpoints", true, func() error {
		return s.replace(witnessed, newest.with(placesOf(&witnessed)))
	})
	try("the cosigned checkpoint copied over the newest", "acme", "log_checkpoints", false, func() error {
		return s.replace(newest, witnessed.with(placesOf(&newest)))
	})
	for _, kind := range []string{"newest", "witnessed"} {
		own, foreign := checkpoints["acme "+kind], checkpoints["other "+kind]
		try("another log's "+kind+" checkpoint copied", "acme", "log_checkpoints", false, func() error {
			return s.replace(own, foreign.with(placesOf(&own)))
		})
	}

	own, foreign := s.ofOrg("log_tiles", "acme")[0], s.ofOrg("log_tiles", "other")[0]
	try("another log's tile copied", "acme", "log_tiles", false, func() error { return s.replace(own, foreign.with(placesOf(&own))) })
	for column, name := range map[string]string{"number": "beside itself", "level": "above itself"} {
		copied := own.with(map[string]any{column: int64(1)})
		try("a tile copied "+name, "acme", "log_tiles", true, func() error { return s.insert(&copied) })
	}
	stray := newest.with(map[string]any{"log_id": otherID(ours.value("id"))})
	try("a checkpoint copied to a log that is not", "acme", "log_checkpoints", true, func() error { return s.insert(&stray) })
}

// An older checkpoint of a log is genuine too. If somebody puts it back, with its tiles or without,
// the signer publishes the log again, whether or not the log has grown, and reports it. The audit
// names it from what was published with the newer checkpoint: its tiles, and its cosigned copy.
//
//countersign:race
func TestCheckpointThatIsPutBack(t *testing.T) {
	for name, test := range map[string]struct {
		tables          []string
		cosigned, grows bool
		remove          bool // every checkpoint
		unsaid          bool // by the audit: it looks like a crash before publication

	}{
		"alone":                        {tables: []string{"log_checkpoints"}},
		"alone, and the log grows":     {tables: []string{"log_checkpoints"}, grows: true},
		"with its tiles":               {tables: []string{"log_checkpoints", "log_tiles"}, unsaid: true},
		"with its tiles, and it grows": {tables: []string{"log_checkpoints", "log_tiles"}, grows: true, unsaid: true},
		"but not the cosigned one":     {tables: []string{"log_checkpoints", "log_tiles"}, cosigned: true},
		"to nothing":                   {tables: []string{"log_checkpoints"}, remove: true},
	} {
		t.Run(name, func(t *testing.T) {
			testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
				l, acme := loggingSigned(t, db, 2)
				s := &scene{t: t, direct: db.Direct(t), dialect: dialectOf(db)}
				older := s.copyOf(test.tables...)
				l.seal(acme, 1)
				l.SignRound(t.Context())
				if test.cosigned {
					log := must[*service.LogToWitness](t)(l.LogToWitness(t.Context(), acme.id))
					done(t, l.AttachCosignatures(t.Context(), log, nil))
					for _, r := range s.copyOf("log_checkpoints")["log_checkpoints"] {
						if text(r.value("kind")) == "witnessed" {
							older["log_checkpoints"] = append(older["log_checkpoints"], r)
						}
					}
				}
				checkIntact(t, l.Service, "acme", 3)
				before := l.checkpoint("acme")
				if test.remove {
					older["log_checkpoints"] = nil
				}
				s.rollBack(older)

				report := must[*verify.AuditReport](t)(l.Operator().Audit(t.Context(), "acme", verify.AuditOptions{}))
				if (report.Break != nil && report.Break.Check == ledger.CheckTransparency) == test.unsaid {
					t.Errorf("the audit finds %+v", report.Break)
				}
				l.wantNoFindings()
				if test.grows {
					l.seal(acme, 1)
					l.SignSealed(t.Context())
				} else {
					l.SignRound(t.Context())
				}
				l.checkFound(acme)
				l.ForgetPauses()
				l.SignRound(t.Context())
				if test.grows {
					l.prove(acme, 4)
				} else if c := l.checkpoint("acme"); c != before {
					t.Errorf("published is %+v, want %+v", c, before)
				}
				if report := must[*verify.AuditReport](t)(l.Operator().Audit(t.Context(), "acme", verify.AuditOptions{})); report.Break != nil {
					t.Errorf("once it is published again, the audit finds %+v", report.Break)
				}
			})
		})
	}
}

// A log that was changed and acknowledged hides no other from the self-check.
//
//countersign:race
func TestChangedLogHidesNoOther(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		l, acme := loggingSigned(t, db, 2)
		direct := db.Direct(t)
		check := func(want ...string) {
			t.Helper()
			// The job is not in the queue: what the check finds is stored before it is finished.
			_ = l.Jobs().CheckLedger(t.Context(), &service.Job{Org: acme.id, Kind: service.JobCheck, Body: []byte(`{"from":1}`)}, time.Hour)
			var open []string
			for _, finding := range must[[]*service.Finding](t)(l.Operator().Findings(t.Context(), "acme")) {
				if finding.Open() {
					open = append(open, finding.Subject)
					done(t, l.Operator().Acknowledge(t.Context(), finding, "looked at"))
				}
			}
			if len(open) != len(want) || len(want) > 0 && !strings.Contains(open[0], want[0]) {
				t.Errorf("found %q, want %q", open, want)
			}
		}
		first := logOf(l, "acme")
		done(t, l.Operator().CloseLogForTest(t.Context(), acme.id, "acme"))
		l.seal(acme, 1)
		l.SignRound(t.Context()) // it finds the log closed
		l.ForgetPauses()
		l.SignRound(t.Context())
		second := logOf(l, "acme")
		check()
		execute(t, direct, db, "UPDATE transparency_logs SET closed_at = closed_at + 1 WHERE closed_at IS NOT NULL")
		check(first)
		check()
		execute(t, direct, db, "UPDATE transparency_logs SET opened_at = opened_at + 1 WHERE closed_at IS NULL")
		check(second)
	})
}

// A cosigned checkpoint that was changed is reported. The log and its proofs are served without it, and
// the next cosignatures replace it, also if it claims to be larger than the log.
//
//countersign:race
func TestChangedCosignedCheckpointIsReplaced(t *testing.T) {
	for name, change := range map[string]string{
		"another root":          "UPDATE log_checkpoints SET root = ? WHERE kind = 'witnessed'",
		"larger than the log":   "UPDATE log_checkpoints SET size = size + 100 WHERE kind = 'witnessed'",
		"no signature lines":    "UPDATE log_checkpoints SET cosignatures = ? WHERE kind = 'witnessed'",
		"one that was inserted": "INSERT INTO log_checkpoints (log_id, kind, size, root, note, cosignatures) SELECT log_id, 'witnessed', size + 100, root, note, cosignatures FROM log_checkpoints",
	} {
		t.Run(name, func(t *testing.T) {
			testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
				l, acme := loggingSigned(t, db, 2)
				log := must[*service.LogToWitness](t)(l.LogToWitness(t.Context(), acme.id))
				if !strings.HasPrefix(change, "INSERT") {
					done(t, l.AttachCosignatures(t.Context(), log, nil))
				}
				var args []any
				if strings.Contains(change, "?") {
					args = append(args, make([]byte, 32))
				}
				execute(t, db.Direct(t), db, change, args...)
				l.prove(acme, 2)
				l.checkFound(acme)
				done(t, l.AttachCosignatures(t.Context(), log, nil))
				l.prove(acme, 2)
				checkIntact(t, l.Service, "acme", 2)
			})
		})
	}
}

func dialectOf(db *testdb.Database) dialect {
	if db.Kind == "postgres" {
		return postgresDialect
	}
	return sqliteDialect
}
