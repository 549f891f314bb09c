package storetest

import (
	"testing"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

var transparencyCases = []testCase{
	{name: "an organization has one open log", run: keepsTransparencyLogs},
	{name: "a checkpoint follows upon the one before, with its tiles", run: publishesLogs},
	{name: "the checkpoint that witnesses have cosigned is kept beside the newest", run: keepsWitnessed},
	{name: "organizations whose receipts are not signed yet are found", run: findsUnsignedLogs},
	{name: "one holder at a time is the signer", run: leasesSigner},
}

func (w *world) transparencyLog(org ledger.OrgID) *store.TransparencyLog {
	return &store.TransparencyLog{ID: w.receiptID().UUID, Org: org, Origin: "naïve/\"log\"", OpenedAt: w.now(), MAC: everyByte()}
}

func (w *world) openLog(t *testing.T, org ledger.OrgID) *store.TransparencyLog {
	t.Helper()
	log := w.transparencyLog(org)
	if err := w.OpenTransparencyLog(t.Context(), log); err != nil {
		t.Fatalf("open a log: %v", err)
	}
	return log
}

func keepsTransparencyLogs(t *testing.T, w *world) {
	m, other := w.join(t), w.join(t)
	log, theirs := w.openLog(t, m.org.ID), w.openLog(t, other.org.ID)
	wantError(t, "a second open log", w.OpenTransparencyLog(t.Context(), w.transparencyLog(m.org.ID)), store.ErrExists)
	for _, want := range []*store.TransparencyLog{log, theirs} {
		assertEqual(t, "log", must[*store.TransparencyLog](t)(w.open(t).TransparencyLog(t.Context(), want.ID)), want)
	}
	_, err := w.TransparencyLog(t.Context(), w.receiptID().UUID)
	wantError(t, "an unknown log", err, store.ErrNotFound)

	closed, next := w.now(), w.transparencyLog(m.org.ID)
	log.ClosedAt, log.MAC, next.OpenedAt = &closed, []byte("closed"), closed+1
	w.write(t, &store.Changes{Transparency: []*store.TransparencyLog{log, next}})
	assertEqual(t, "logs", must[[]*store.TransparencyLog](t)(w.TransparencyLogs(t.Context(), m.org.ID)), []*store.TransparencyLog{log, next})
}

func checkpointOf(log *store.TransparencyLog, size int64, text string) store.LogCheckpoint {
	return store.LogCheckpoint{Log: log.ID, Size: size, Root: ledger.HashToken(text), Note: []byte(text), Cosignatures: []byte{}}
}

// publishesLogs requires that nothing is written for a log that another process has advanced or
// closed, nor for another log in the same call.
func publishesLogs(t *testing.T, w *world) {
	m, other := w.join(t), w.join(t)
	log, theirs := w.openLog(t, m.org.ID), w.openLog(t, other.org.ID)
	_, err := w.LogCheckpoint(t.Context(), log.ID, false)
	wantError(t, "before the first", err, store.ErrNotFound)
	publish := func(before int64, c store.LogCheckpoint, tiles ...store.LogTile) error {
		return w.PublishLogs(t.Context(), []*store.LogPublication{{LogCheckpoint: c, Before: before, Tiles: tiles}})
	}
	tile := func(level int, number int64, hashes string) store.LogTile {
		return store.LogTile{LogTileAt: store.LogTileAt{Level: level, Number: number}, Hashes: []byte(hashes)}
	}
	first, second := checkpointOf(log, 0, "first"), checkpointOf(log, 300, "second")
	wantError(t, "the first", publish(-1, first), nil)
	wantError(t, "the first once more", publish(-1, first), store.ErrNotFound)
	wantError(t, "after another", publish(7, second), store.ErrNotFound)
	wantError(t, "with tiles", publish(0, second, tile(0, 0, "full"), tile(0, 1, "part"), tile(1, 0, "above")), nil)
	wantError(t, "signed again", publish(300, checkpointOf(log, 300, "again"), tile(0, 1, "longer")), nil)
	both := []*store.LogPublication{{LogCheckpoint: checkpointOf(theirs, 1, "theirs"), Before: -1}, {LogCheckpoint: second, Before: 1}}
	wantError(t, "one of two that is late", w.PublishLogs(t.Context(), both), store.ErrNotFound)
	_, err = w.LogCheckpoint(t.Context(), theirs.ID, false)
	wantError(t, "all or nothing", err, store.ErrNotFound)

	again := checkpointOf(log, 300, "again")
	assertEqual(t, "checkpoint", must[*store.LogCheckpoint](t)(w.open(t).LogCheckpoint(t.Context(), log.ID, false)), &again)
	wanted := []store.LogTileAt{{Level: 1, Number: 0}, {Level: 5, Number: 5}, {Level: 0, Number: 1}}
	above, longer, full := tile(1, 0, "above"), tile(0, 1, "longer"), tile(0, 0, "full")
	assertEqual(t, "tiles", must[[]*store.LogTile](t)(w.LogTiles(t.Context(), log.ID, wanted)), []*store.LogTile{&above, {LogTileAt: wanted[1]}, &longer})
	assertEqual(t, "no tiles", len(must[[]*store.LogTile](t)(w.LogTiles(t.Context(), log.ID, nil))), 0)
	assertEqual(t, "all tiles", must[[]*store.LogTile](t)(w.LogTilesFrom(t.Context(), log.ID, store.LogTileAt{}, 9)), []*store.LogTile{&full, &longer, &above})
	assertEqual(t, "from one on", must[[]*store.LogTile](t)(w.LogTilesFrom(t.Context(), log.ID, longer.LogTileAt, 1)), []*store.LogTile{&longer})

	closed := w.now()
	log.ClosedAt = &closed
	w.write(t, &store.Changes{Transparency: []*store.TransparencyLog{log}})
	wantError(t, "a closed log", publish(300, checkpointOf(log, 301, "late")), store.ErrNotFound)
}

func keepsWitnessed(t *testing.T, w *world) {
	log := w.openLog(t, w.join(t).org.ID)
	put := func(size int64, text string) store.LogCheckpoint {
		c := checkpointOf(log, size, text)
		c.Cosignatures = []byte("— " + text + "\n")
		wantError(t, "put", w.PutWitnessed(t.Context(), &c), nil)
		return c
	}
	put(5, "five")
	want := put(5, "five by two")
	put(4, "late")
	assertEqual(t, "witnessed", must[*store.LogCheckpoint](t)(w.open(t).LogCheckpoint(t.Context(), log.ID, true)), &want)
	_, err := w.LogCheckpoint(t.Context(), log.ID, false)
	wantError(t, "it is not the newest", err, store.ErrNotFound)

	newest := checkpointOf(log, 4, "newest")
	wantError(t, "publish", w.PublishLogs(t.Context(), []*store.LogPublication{{LogCheckpoint: newest, Before: -1}}), nil)
	want = put(3, "instead of one that is larger than the newest")
	assertEqual(t, "witnessed", must[*store.LogCheckpoint](t)(w.LogCheckpoint(t.Context(), log.ID, true)), &want)
	put(2, "late again")
	assertEqual(t, "witnessed", must[*store.LogCheckpoint](t)(w.LogCheckpoint(t.Context(), log.ID, true)), &want)
}

func findsUnsignedLogs(t *testing.T, w *world) {
	m := w.join(t)
	found := func() []ledger.OrgID { return must[[]ledger.OrgID](t)(w.UnsignedLogs(t.Context(), ledger.OrgID{}, 9)) }
	assertEqual(t, "without a log", found(), []ledger.OrgID{m.org.ID})
	log := w.openLog(t, m.org.ID)
	assertEqual(t, "without a checkpoint", found(), []ledger.OrgID{m.org.ID})
	assertEqual(t, "after it", len(must[[]ledger.OrgID](t)(w.UnsignedLogs(t.Context(), m.org.ID, 9))), 0)
	publication := []*store.LogPublication{{LogCheckpoint: checkpointOf(log, must[*ledger.Head](t)(w.Head(t.Context(), m.org.ID)).Count, "all"), Before: -1}}
	wantError(t, "publish", w.PublishLogs(t.Context(), publication), nil)
	assertEqual(t, "all signed", len(found()), 0)
}

func leasesSigner(t *testing.T, w *world) {
	one, two := uuid.UUID{1}, uuid.UUID{2}
	for i, step := range []struct {
		holder     uuid.UUID
		now, until ledger.Time
		held       bool
	}{{one, 10, 20, true}, {two, 19, 30, false}, {one, 15, 25, true}, {two, 24, 40, false}, {two, 25, 40, true}, {one, 30, 50, false}} {
		held, err := w.LeaseSigner(t.Context(), step.holder, step.now, step.until)
		if err != nil || held != step.held {
			t.Errorf("step %d: held %t, %v", i, held, err)
		}
	}
}
