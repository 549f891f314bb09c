package service_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"countersign/internal/fault"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/testdb"
)

// A rebuild of a log whose tiles were changed is repeated until it succeeds, without another
// finding: after the store has failed, and an hour after receipts were found that do not lead to
// the signed root. Until then the log grows from its sound edge.
//
//countersign:race
func TestRebuildIsRepeated(t *testing.T) {
	t.Parallel()
	db, clock := testdb.SQLite(t), servicetest.NewClock(time.Now())
	l := logging(t, db, nil, true)
	l.Service = serve(t, service.Config{
		Store: db.Open(t), Keys: l.notary.Ring, LogKeys: l.notary, Alone: true, Clock: clock.Now,
		LogMarks: l.marks, Signing: &service.Signing{Keys: l.notary, Instance: "log.example.com"},
	})
	acme := newTenant(t, l.Service, "acme")
	const size = 4500 // more than a round reads
	fillReceipts(t, db.Open(t), l.notary.Ring, acme, size)
	l.SignRound(t.Context())
	id, direct := logOf(l, "acme"), db.Direct(t)
	good, err := l.LogTile(t.Context(), id, "tile/0/000")
	done(t, err)
	damage := func() {
		t.Helper()
		execute(t, direct, db, "UPDATE log_tiles SET hashes = ? WHERE level = 0 AND number = 0", make([]byte, len(good)))
		if _, err := l.LogTile(t.Context(), id, "tile/0/000"); codeOf(err) != fault.CodeEvidenceTampered {
			t.Fatalf("a changed tile: %v", err)
		}
	}
	sign := func() {
		t.Helper()
		l.ForgetPauses()
		l.SignRound(t.Context())
	}
	stored := func() (hashes []byte) {
		t.Helper()
		done(t, direct.QueryRowContext(t.Context(), "SELECT hashes FROM log_tiles WHERE level = 0 AND number = 0").Scan(&hashes))
		return hashes
	}

	damage()
	l.EndRoundsAt(errors.New("the store fails"), "before publication")
	sign()
	if slices.Equal(stored(), good) {
		t.Fatal("the tile was rebuilt although the store failed")
	}
	l.EndRoundsAt(nil, "")
	sign()
	if !slices.Equal(stored(), good) {
		t.Error("the tile was not rebuilt after the store had failed")
	}

	clock.Advance(2 * time.Hour)
	damage()
	execute(t, direct, db, "UPDATE receipts SET previous_hash = X'00' WHERE sequence = 1")
	sign()
	l.seal(acme, 1)
	sign()
	if c := l.checkpoint("acme"); c.Size != size+1 {
		t.Errorf("with a receipt that fails, the log has %d leaves, want %d", c.Size, size+1)
	}
	execute(t, direct, db, "UPDATE receipts SET previous_hash = X'' WHERE sequence = 1")
	clock.Advance(time.Hour)
	sign()
	if !slices.Equal(stored(), good) {
		t.Error("the tile was not rebuilt after the receipt was mended")
	}
}
