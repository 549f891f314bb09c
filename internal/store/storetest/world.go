package storetest

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// world is one case's database, with what is needed to fill it like the service. Ids and times come
// from a counter: each is used once, and later ones sort later.
type world struct {
	store.Store
	open  Opener
	keys  Ring
	ticks atomic.Int64
}

func newWorld(t *testing.T, open Opener) *world {
	t.Helper()
	return &world{Store: open(t), open: open}
}

// now returns a time later than all earlier ones.
func (w *world) now() ledger.Time {
	const start = 1_700_000_000_000
	return ledger.Time(start + w.ticks.Add(1))
}

func (w *world) random() (bytes [10]byte) {
	binary.BigEndian.PutUint64(bytes[:], uint64(w.ticks.Add(1)))
	return bytes
}

func (w *world) receiptID() ledger.ReceiptID {
	var bytes [16]byte
	// The counter comes last, so that the order of ids differs from the order of creation.
	binary.LittleEndian.PutUint64(bytes[:], uint64(w.ticks.Add(1)))
	return ledger.ReceiptID{UUID: ledger.NewRandomID(bytes)}
}

func (w *world) chainID() ledger.ChainID {
	return ledger.ChainID{UUID: ledger.NewTimedID(w.now(), w.random())}
}

// member is an organization with its first key.
type member struct {
	org *ledger.Organization
	key *ledger.KeyRecord
}

func (w *world) newOrganization() *ledger.Organization {
	now := w.now()
	slug := fmt.Sprintf("org-%d", now)
	return &ledger.Organization{
		ID:   ledger.OrgID{UUID: ledger.NewTimedID(now, w.random())},
		Slug: slug, Name: "Name of " + slug, Settings: ledger.DefaultSettings(), CreatedAt: now,
	}
}

func (w *world) newKey(org ledger.OrgID) *ledger.KeyRecord {
	now := w.now()
	return &ledger.KeyRecord{
		ID: ledger.KeyID{UUID: ledger.NewTimedID(now, w.random())}, Org: org,
		Name: fmt.Sprintf("key %d", now), Role: ledger.RoleAgent,
		Hash: ledger.HashToken(fmt.Sprint("key ", now)), Hint: "csk_…0000", CreatedAt: now, MAC: everyByte(), Act: int64(now),
	}
}

// join creates an organization.
func (w *world) join(t *testing.T) *member {
	t.Helper()
	org := w.newOrganization()
	m := &member{org: org, key: w.newKey(org.ID)}
	if err := w.CreateOrganization(t.Context(), org, ledger.NewHead(org.ID, w.keys), w.beginning(t, org, m.key)); err != nil {
		t.Fatalf("create organization: %v", err)
	}
	return m
}

// draft returns a chain that is not opened yet.
func (w *world) draft(m *member) *ledger.Chain {
	return &ledger.Chain{
		ID: w.chainID(), Org: m.org.ID, OpenedBy: m.key.ID, Name: "nightly-report",
		Environment: ledger.DefaultEnvironment, FailModes: m.org.Settings.CanonicalFailModes(), StartedAt: w.now(),
	}
}

// record returns a new chain's stored record.
func (w *world) record(chain *ledger.Chain, idempotencyKey string) *store.ChainRecord {
	state := ledger.NewChainState(chain.StartedAt, ledger.BuiltinPolicy.Version)
	r := &store.ChainRecord{
		ID: chain.ID, Org: chain.Org, OpenedBy: chain.OpenedBy, ExternalID: chain.ExternalID,
		Environment: chain.Environment, IdempotencyKey: idempotencyKey, Body: chain.Encode(), Status: state.Status,
	}
	r.State, r.MAC = state.Encode(w.keys, chain)
	return r
}

// openChain opens a chain.
func (w *world) openChain(t *testing.T, m *member) ledger.ChainID {
	t.Helper()
	return w.openChains(t, m, 1)[0]
}

func (w *world) openChains(t *testing.T, m *member, count int) []ledger.ChainID {
	t.Helper()
	ids := make([]ledger.ChainID, count)
	records := make([]*store.ChainRecord, count)
	for i := range records {
		records[i] = w.record(w.draft(m), "")
		ids[i] = records[i].ID
	}
	w.write(t, &store.Changes{NewChains: records})
	return ids
}

// write stores changes that depend on nothing that is stored.
func (w *world) write(t *testing.T, changes *store.Changes) {
	t.Helper()
	if err := attempt(t.Context(), w, changes); err != nil {
		t.Fatalf("transact: %v", err)
	}
}

// attempt stores changes, with needs for the chains and heads that they change.
func attempt(ctx context.Context, s store.Store, changes *store.Changes) error {
	needs := new(store.Needs)
	for _, event := range changes.NewEvents {
		needs.Chains = append(needs.Chains, event.Chain)
	}
	for _, addendum := range changes.NewAddenda {
		needs.Chains = append(needs.Chains, addendum.Chain)
	}
	for _, receipt := range changes.NewReceipts {
		needs.Chains = append(needs.Chains, receipt.Chain)
		needs.Heads = append(needs.Heads, receipt.Org)
	}
	return s.Transact(ctx, needs, func(*store.Loaded) (*store.Changes, error) { return changes, nil })
}
