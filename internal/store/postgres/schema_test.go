package postgres_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/store/postgres"
)

// Replicas that migrate an empty database at the same time do not disturb each other.
//
//countersign:race
func TestMigrateAtOnce(t *testing.T) {
	t.Parallel()
	address := emptyDatabase(t)
	stores := []*postgres.Store{open(t, address), open(t, address), open(t, address)}
	var group errgroup.Group
	for _, s := range stores {
		group.Go(func() error { return s.Migrate(t.Context()) })
	}
	if err := group.Wait(); err != nil {
		t.Fatalf("migrate: %v", err)
	}
	if err := stores[0].CheckSchema(t.Context()); err != nil {
		t.Errorf("check schema: %v", err)
	}
	newTenant(t, stores[1])
}

// A schema that is older or newer than the program's is recognized, and the error about an older
// one names the command that migrates it.
func TestCheckSchema(t *testing.T) {
	t.Parallel()
	address := emptyDatabase(t)
	s := open(t, address)
	current, latest, err := s.SchemaVersion(t.Context())
	if err != nil || current != 0 || latest < 3 {
		t.Errorf("an empty database has version %d of %d, error %v", current, latest, err)
	}
	if err := s.CheckSchema(t.Context()); !errors.Is(err, postgres.ErrSchemaBehind) || !strings.Contains(err.Error(), "countersign migrate") {
		t.Errorf("empty: error %v, want %v", err, postgres.ErrSchemaBehind)
	}
	if err := s.MigrateTo(t.Context(), 1); err != nil {
		t.Fatalf("migrate: %v", err)
	}
	if err := s.CheckSchema(t.Context()); !errors.Is(err, postgres.ErrSchemaBehind) {
		t.Errorf("version 1: error %v, want %v", err, postgres.ErrSchemaBehind)
	}
	migrate(t, s)
	if err := s.CheckSchema(t.Context()); err != nil {
		t.Errorf("newest: error %v, want none", err)
	}
	administer(t, address, "insert into schema_versions (version_id, is_applied) values (99, true)")
	if err := s.CheckSchema(t.Context()); !errors.Is(err, postgres.ErrSchemaAhead) {
		t.Errorf("version 99: error %v, want %v", err, postgres.ErrSchemaAhead)
	}
}

// versionOne inserts one record into every table of the first version.
const versionOne = `
insert into organizations (id, created_at, slug, name, settings)
	values ('00000000-0000-0000-0000-000000000001', 1, 'acme', 'Acme', '{"approval_timeout_hours": 7}');
insert into api_keys (id, org_id, created_at, name, role, hint, hash)
	values ('00000000-0000-0000-0000-000000000002', '00000000-0000-0000-0000-000000000001', 1, 'ci', 'agent', 'hint', decode(repeat('02', 32), 'hex'));
insert into heads (org_id, count, last_hash, key_id, mac)
	values ('00000000-0000-0000-0000-000000000001', 1, decode(repeat('03', 32), 'hex'), 'k1', '\x04');
insert into chains (id, org_id, opened_by, environment, external_id, idempotency_key, body)
	values ('00000000-0000-0000-0000-000000000005', '00000000-0000-0000-0000-000000000001', '00000000-0000-0000-0000-000000000002',
		'production', 'order/17', 'open', '\x05');
insert into chain_states (chain_id, org_id, status, state, mac)
	values ('00000000-0000-0000-0000-000000000005', '00000000-0000-0000-0000-000000000001', 'completed', '\x06', '\x07');
insert into events (chain_id, sequence, idempotency_key, body, payload)
	values ('00000000-0000-0000-0000-000000000005', 1, 'event', '\x08', '\x09');
insert into addenda (chain_id, position, sequence, body) values ('00000000-0000-0000-0000-000000000005', 2, 1, '\x0a');
insert into receipts (id, org_id, sequence, chain_id, body)
	values ('00000000-0000-0000-0000-00000000000b', '00000000-0000-0000-0000-000000000001', 1, '00000000-0000-0000-0000-000000000005', '\x0b');
insert into master_keys (key_id, fingerprint) values ('k1', decode(repeat('0c', 32), 'hex'));
`

func numbered(last byte) uuid.UUID { return uuid.UUID{15: last} }

// Migrating a filled database from any older version preserves its content.
func TestMigrateFilledStore(t *testing.T) {
	t.Parallel()
	for _, version := range []int64{1, 2, 3, 4, 6} {
		t.Run(fmt.Sprint("from version ", version), func(t *testing.T) {
			t.Parallel()
			address := emptyDatabase(t)
			s := open(t, address)
			if err := s.MigrateTo(t.Context(), version); err != nil {
				t.Fatalf("migrate: %v", err)
			}
			administer(t, address, "begin;"+versionOne+"commit")
			migrate(t, s)
			checkFilledStore(t, s, version)
		})
	}
}

func checkFilledStore(t *testing.T, s *postgres.Store, version int64) {
	t.Helper()
	org, err := s.OrganizationBySlug(t.Context(), "acme")
	if err != nil || org.Settings.ApprovalTimeoutHours != 7 || org.Settings.AutoPause != ledger.DefaultSettings().AutoPause {
		t.Errorf("organization %+v, error %v", org, err)
	}
	key, err := s.KeyByHash(t.Context(), [32]byte(bytes.Repeat([]byte{2}, 32)))
	if err != nil || key.ID.UUID != numbered(2) || key.Role != ledger.RoleAgent || !key.Active(1) ||
		key.Agents != nil || key.Owner != "" || key.ExpiresAt != nil || key.LastUsedAt != nil || key.Previous != nil || key.ExpiryLogged {
		t.Errorf("key %+v, error %v", key, err)
	}
	checks, err := s.KeyChecks(t.Context())
	if err != nil || checks["k1"] != [32]byte(bytes.Repeat([]byte{12}, 32)) {
		t.Errorf("key checks %v, error %v", checks, err)
	}
	checkVersionOneLedger(t, s)

	if version < 3 {
		checkUnbegunLog(t, s, org.ID)
	}
	checkNewKinds(t, s, org)
	checkVerification(t, s, org.ID)

	link := &store.SignIn{Hash: [32]byte{1}, Key: key.ID.UUID, ExpiresAt: 10}
	if err := s.CreateSignIn(t.Context(), link); err != nil {
		t.Errorf("sign in with a key from before: %v", err)
	}
}

func checkVersionOneLedger(t *testing.T, s *postgres.Store) {
	t.Helper()
	id := ledger.ChainID{UUID: numbered(5)}
	chain, err := s.Chain(t.Context(), id)
	if err != nil || chain.ExternalID != "order/17" || chain.Status != ledger.ChainCompleted || !bytes.Equal(chain.State, []byte{6}) {
		t.Errorf("chain %+v, error %v", chain, err)
	}
	events, err := s.Events(t.Context(), id, 0, 10)
	if err != nil || len(events) != 1 || events[0].IdempotencyKey != "event" || !bytes.Equal(events[0].Payload, []byte{9}) {
		t.Errorf("events %+v, error %v", events, err)
	}
	addenda, err := s.Addenda(t.Context(), id, 1, 1)
	if err != nil || len(addenda) != 1 || addenda[0].Position != 2 {
		t.Errorf("addenda %+v, error %v", addenda, err)
	}
	receipt, err := s.ReceiptOfChain(t.Context(), id)
	if err != nil || receipt.ID.UUID != numbered(11) || len(receipt.PreviousHash) != 0 || !bytes.Equal(receipt.Body, []byte{11}) {
		t.Errorf("receipt %+v, error %v", receipt, err)
	}
	head, err := s.Head(t.Context(), receipt.Org)
	if err != nil || head.Count != 1 || head.Last == nil || *head.Last != [32]byte(bytes.Repeat([]byte{3}, 32)) {
		t.Errorf("head %+v, error %v", head, err)
	}
}

// checkUnbegunLog: an organization that predates audit logs has an empty one.
func checkUnbegunLog(t *testing.T, s *postgres.Store, org ledger.OrgID) {
	t.Helper()
	log, err := s.ActLog(t.Context(), org)
	if err != nil || log.Count != 0 || log.Last != nil || len(log.MAC) != 0 {
		t.Errorf("audit log %+v, error %v", log, err)
	}
}

// checkNewKinds uses later features with records that predate them.
func checkNewKinds(t *testing.T, s *postgres.Store, org *ledger.Organization) {
	t.Helper()
	if diff := cmp.Diff(ledger.Controls{}, org.Controls); diff != "" {
		t.Errorf("controls from before there were any (-want +got):\n%s", diff)
	}
	id := ledger.ChainID{UUID: numbered(5)}
	event, err := s.Event(t.Context(), store.EventAt{Chain: id, Sequence: 1})
	if err != nil || event.MAC != nil {
		t.Errorf("event %+v, error %v", event, err)
	}
	approval := &store.ApprovalRecord{ID: ledger.ApprovalID{UUID: uuid.New()}, Org: org.ID, Chain: id, Sequence: 1, OpenedBy: ledger.KeyID{UUID: numbered(2)}}
	needs := &store.Needs{Govern: []ledger.OrgID{org.ID}, Logs: []ledger.OrgID{org.ID}, Chains: []ledger.ChainID{id}}
	err = s.Transact(t.Context(), needs, func(loaded *store.Loaded) (*store.Changes, error) {
		changed := *loaded.Orgs[org.ID]
		changed.Controls.KillSwitch.Active = true
		return &store.Changes{
			Orgs: []*ledger.Organization{&changed}, NewApprovals: []*store.ApprovalRecord{approval},
			Logs: []*ledger.ActLog{{Org: org.ID, Count: 1}}, NewJobs: []*store.Job{{Org: org.ID}},
		}, nil
	})
	if err != nil {
		t.Fatalf("transact: %v", err)
	}
	if found, err := s.Organization(t.Context(), org.ID); err != nil || !found.Controls.KillSwitch.Active {
		t.Errorf("organization %+v, error %v", found, err)
	}
}

// TestNothingCascades: deleting a referenced row is refused, so that no single statement erases an
// audit trail.
func TestNothingCascades(t *testing.T) {
	t.Parallel()
	address := newDatabase(t)
	administer(t, address, "begin;"+versionOne+"commit")
	for _, table := range []string{"organizations", "api_keys", "chains", "events"} {
		err := try(address, "delete from "+table)
		if err == nil || !strings.Contains(err.Error(), "foreign key") {
			t.Errorf("%s: error %v, want a foreign key's refusal", table, err)
		}
	}
}
