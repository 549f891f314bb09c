package service_test

import (
	"context"
	"crypto/rand"
	mathrand "math/rand/v2"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"countersign/internal/bundle"
	"countersign/internal/ledger"
	"countersign/internal/nightly"
	"countersign/internal/service"
	"countersign/internal/store"
	"countersign/internal/testdb"
)

// countingStore counts the tiles and receipts that are read.
type countingStore struct {
	testdb.Store
	tiles, receipts atomic.Int64
}

// LogTiles implements store.Transparency.
func (c *countingStore) LogTiles(ctx context.Context, log uuid.UUID, wanted []store.LogTileAt) ([]*store.LogTile, error) {
	c.tiles.Add(int64(len(wanted)))
	return c.Store.LogTiles(ctx, log, wanted)
}

// ScanReceipts implements store.Receipts.
func (c *countingStore) ScanReceipts(ctx context.Context, org ledger.OrgID, from, to int64, visit func(*ledger.StoredReceipt) error) error {
	return c.Store.ScanReceipts(ctx, org, from, to, func(r *ledger.StoredReceipt) error {
		c.receipts.Add(1)
		return visit(r)
	})
}

// reads returns what was read since the last call.
func (c *countingStore) reads() (tiles, receipts int64) { return c.tiles.Swap(0), c.receipts.Swap(0) }

// fillReceipts seals chains without events, many in one transaction.
func fillReceipts(t *testing.T, s store.Store, keys ledger.Keys, who *tenant, count int) {
	t.Helper()
	const batch = 2000
	org := must[*ledger.Organization](t)(s.Organization(t.Context(), who.id))
	opened := *chainNamed(t, "many")
	opened.Org, opened.OpenedBy = who.id, who.agentKey.Record.ID
	opened.FailModes, opened.FastPath = org.Settings.CanonicalFailModes(), true
	for left := count; left > 0; left -= batch {
		needs := &store.Needs{Orgs: []ledger.OrgID{who.id}, Heads: []ledger.OrgID{who.id}}
		done(t, s.Transact(t.Context(), needs, func(loaded *store.Loaded) (*store.Changes, error) {
			changes := &store.Changes{}
			head, err := loaded.Heads[who.id].Open(keys)
			if err != nil {
				return nil, err
			}
			for range min(batch, left) {
				if err := sealInto(changes, keys, org.Slug, opened, head); err != nil {
					return nil, err
				}
			}
			changes.Heads = append(changes.Heads, head.Sign(keys))
			return changes, nil
		}))
	}
}

// sealInto seals a new chain.
func sealInto(changes *store.Changes, keys ledger.Keys, slug string, chain ledger.Chain, head *ledger.OpenHead) error {
	now := ledger.TimeOf(time.Now())
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	chain.ID, chain.StartedAt = ledger.ChainID{UUID: ledger.NewTimedID(now, [10]byte(id[:]))}, now
	state := ledger.NewChainState(now, ledger.BuiltinPolicy.Version)
	_, stored, err := ledger.Seal(&ledger.Sealing{
		Keys: keys, Head: head, Slug: slug, Chain: &chain, State: state, Summary: &ledger.Summary{},
		Completion: &ledger.Completion{}, ID: ledger.ReceiptID{UUID: ledger.NewRandomID(id)}, Now: now,
	})
	if err != nil {
		return err
	}
	record := &store.ChainRecord{
		ID: chain.ID, Org: chain.Org, OpenedBy: chain.OpenedBy, ExternalID: chain.ExternalID,
		Environment: chain.Environment, Body: chain.Encode(), Status: state.Status,
	}
	record.State, record.MAC = state.Encode(keys, &chain)
	changes.NewReceipts, changes.NewChains = append(changes.NewReceipts, stored.StoredReceipt), append(changes.NewChains, record)
	return nil
}

// In a log of any size, a proof has at most 2,000 bytes and reads a handful of tiles. Growing
// reads no tile and only the new receipts; after a restart, also the edge and the last receipt.
// The nightly run has a million receipts. The test logs how long the steps took.
func TestLogOfManyReceipts(t *testing.T) {
	t.Parallel()
	size := nightly.Count(1500, 1_000_000)
	db := testdb.SQLite(t)
	counting := &countingStore{Store: db.Open(t)}
	l := logging(t, db, nil, true)
	l.Service = l.serveOn(counting)
	acme := newTenant(t, l.Service, "acme")
	began := time.Now()
	fillReceipts(t, counting, l.notary.Ring, acme, size)
	t.Logf("%d receipts sealed in %s", size, time.Since(began))
	began = time.Now()
	l.SignRound(t.Context())
	t.Logf("signed in %s", time.Since(began))
	if c := l.checkpoint("acme"); c.Size != int64(size) {
		t.Fatalf("the log has %d leaves, want %d", c.Size, size)
	}
	if tiles, receipts := counting.reads(); tiles != 0 || receipts != int64(size) {
		t.Errorf("adding %d receipts has read %d receipts and %d tiles", size, receipts, tiles)
	}

	grow := func(what string, from func(context.Context), maxTiles, maxReceipts int64) {
		t.Helper()
		l.seal(acme, 1)
		counting.reads()
		began := time.Now()
		from(t.Context())
		t.Logf("%s: one receipt more is signed in %s", what, time.Since(began))
		tiles, receipts := counting.reads()
		if tiles > maxTiles || receipts > maxReceipts {
			t.Errorf("%s: %d tiles and %d receipts were read for one receipt more", what, tiles, receipts)
		}
		size++
		if c := l.checkpoint("acme"); c.Size != int64(size) {
			t.Errorf("%s: the log has %d leaves, want %d", what, c.Size, size)
		}
	}
	grow("in memory", l.SignSealed, 0, 0)
	l.Service = l.serveOn(counting)
	// The edge once, and once for the proof that the last receipt is in the tree.
	grow("after a restart", l.SignRound, 12, 2)
	l.measureProofs(acme, counting, int64(size))
}

// serveOn starts a service that signs, on the given store.
func (l *logged) serveOn(s store.Store) *service.Service {
	l.t.Helper()
	return serve(l.t, service.Config{
		Store: s, Keys: l.notary.Ring, LogKeys: l.notary, Alone: true, Clock: time.Now,
		LogMarks: l.marks, Signing: &service.Signing{Keys: l.notary, Instance: "log.example.com"},
	})
}

// cpuTime returns the processor time of this process, including other tests.
func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var used syscall.Rusage
	done(t, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// measureProofs proves the first and the last receipt and many in between.
func (l *logged) measureProofs(who *tenant, counting *countingStore, size int64) {
	l.t.Helper()
	const proofs, maxBytes, maxTiles = 1000, 2000, 8
	random := mathrand.New(mathrand.NewPCG(uint64(size), 0))
	took, largest, most := make([]time.Duration, 0, proofs), 0, int64(0)
	used := cpuTime(l.t)
	for i := range proofs {
		sequence := 1 + random.Int64N(size)
		switch i {
		case 0:
			sequence = 1
		case 1:
			sequence = size
		}
		counting.reads()
		began := time.Now()
		p := must[*service.LogProof](l.t)(l.InclusionProof(l.t.Context(), who.id, sequence))
		took = append(took, time.Since(began))
		text := bundle.Proof{Index: p.Index, Hashes: p.Hashes, Checkpoint: string(p.Checkpoint)}
		tiles, _ := counting.reads()
		largest, most = max(largest, len(text.String())), max(most, tiles)
	}
	used = cpuTime(l.t) - used
	slices.Sort(took)
	l.t.Logf("%d proofs of %d receipts: median %s, 99%% %s, longest %s, %s of CPU each; at most %d bytes and %d tiles",
		proofs, size, took[proofs/2], took[proofs*99/100], took[proofs-1], used/proofs, largest, most)
	if largest > maxBytes || most > maxTiles {
		l.t.Errorf("a proof has %d bytes, and one reads %d tiles", largest, most)
	}
}
