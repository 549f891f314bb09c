package service_test

import (
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"

	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/testdb"
)

// cosign adds the line of a witness to a checkpoint. Any signature line will do here.
func cosign(t *testing.T, l *logged, log *service.LogToWitness, name string) {
	t.Helper()
	skey, _, err := note.GenerateKey(rand.Reader, name)
	done(t, err)
	signer := must[note.Signer](t)(note.NewSigner(skey))
	text, _, _ := strings.Cut(string(log.Checkpoint), "\n\n")
	signed := must[[]byte](t)(note.Sign(&note.Note{Text: text + "\n"}, signer))
	_, line, _ := strings.Cut(string(signed), "\n\n")
	done(t, l.AttachCosignatures(t.Context(), log, []byte(line)))
}

// The published checkpoint and proofs have the lines of every witness that has cosigned exactly
// this checkpoint, including late ones. Lines for an older checkpoint change nothing. They are
// kept when the log's key is rotated and the old one revoked.
//
//countersign:race
func TestCosignaturesAreShown(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		l := logging(t, db, nil, true)
		acme := newTenant(t, l.Service, "acme")
		open := func() *service.LogToWitness {
			t.Helper()
			return must[*service.LogToWitness](t)(l.LogToWitness(t.Context(), acme.id))
		}
		l.SignRound(t.Context())
		if log := open(); log != nil {
			t.Errorf("an empty log is to be witnessed: %+v", log)
		}
		id := logOf(l, "acme")
		check := func(what string, published, proof int) {
			t.Helper()
			shown := string(must[[]byte](t)(l.LogCheckpoint(t.Context(), id)))
			proved := string(must[*service.LogProof](t)(l.InclusionProof(t.Context(), acme.id, 1)).Checkpoint)
			if strings.Count(shown, "\n— w") != published || strings.Count(proved, "\n— w") != proof {
				t.Errorf("%s: %d and %d lines are wanted in\n%s\n%s", what, published, proof, shown, proved)
			}
		}
		l.seal(acme, 1)
		l.SignRound(t.Context())
		first := open()
		cosign(t, l, first, "w1")
		check("one", 1, 1)
		cosign(t, l, first, "w2")
		check("another", 2, 2)
		l.seal(acme, 1)
		l.SignRound(t.Context())
		check("a newer checkpoint", 0, 2)
		second := open()
		cosign(t, l, second, "w1")
		cosign(t, l, first, "w3")
		check("a late line", 1, 1)

		old := l.notary.CurrentKey()
		must[*keyring.Ring](t)(keyring.Rotate(l.keys, rand.Reader, time.Now()))
		must[*keyring.Ring](t)(keyring.RevokeLogKey(l.keys, old, time.Now()))
		done(t, l.notary.Reload())
		if log := open(); log != nil {
			t.Error("what only a revoked key has signed is to be witnessed")
		}
		l.SignRound(t.Context())
		check("a revoked key", 1, 1)
		l.seal(acme, 1)
		l.SignRound(t.Context())
		check("growth under the new key", 0, 0)
		cosign(t, l, open(), "w1")
		check("cosigned again", 1, 1)

		execute(t, db.Direct(t), db, "UPDATE log_checkpoints SET cosignatures = root WHERE kind = 'witnessed'")
		check("with cosignatures that are none", 0, 0)
		l.checkFound(acme)
		cosign(t, l, open(), "w2")
		check("in the place of what was changed", 1, 1)
	})
}

// Only the signer has logs to submit: at first all of them, and then those that it has published.
//
//countersign:race
func TestGrownLogs(t *testing.T) {
	t.Parallel()
	db := testdb.Postgres(t)
	l := logging(t, db, nil, false)
	acme := newTenant(t, l.Service, "acme")
	newTenant(t, l.Service, "other")
	other := logging(t, db, l, false)
	check := func(what string, of *logged, signs bool, want ...ledger.OrgID) {
		t.Helper()
		got, signing, err := of.GrownLogs(t.Context())
		done(t, err)
		if signing != signs || len(got) != len(want) || len(got) == 1 && got[0] != want[0] {
			t.Errorf("%s: %v, %t, want %v, %t", what, got, signing, want, signs)
		}
	}
	check("before the first round", l, false)
	l.SignRound(t.Context())
	other.SignRound(t.Context())
	check("not the signer", other, false)
	check("the first time", l, true, acme.id, ledger.OrgID{})
	check("nothing new", l, true)
	l.seal(acme, 1)
	l.SignRound(t.Context())
	check("grown", l, true, acme.id)
	l.Resign()
	other.SignRound(t.Context())
	check("the next signer", other, true, acme.id, ledger.OrgID{})
	check("no longer the signer", l, false)
}
