package storetest

import (
	"context"
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// note appends an act to an audit log, inside a plan.
func (w *world) note(log *ledger.ActLog, org *ledger.Organization, action string, changes *store.Changes) error {
	act, err := log.Append(w.keys, org, ledger.Act{At: w.now(), Actor: ledger.ActorOperator, Action: action, Target: org.Slug})
	if err != nil {
		return err
	}
	changes.NewActs = append(changes.NewActs, act)
	changes.Logs = append(changes.Logs, log)
	return nil
}

// beginning returns what an organization is created with: a key and the first act.
func (w *world) beginning(t *testing.T, org *ledger.Organization, key *ledger.KeyRecord) *store.Changes {
	t.Helper()
	with := &store.Changes{NewKeys: []*ledger.KeyRecord{key}}
	if err := w.note(ledger.NewActLog(org.ID), org, "organization.create", with); err != nil {
		t.Fatalf("note: %v", err)
	}
	return with
}

// govern changes an organization and records it in its audit log. The change works on a copy,
// because loaded records may be shared.
func (w *world) govern(ctx context.Context, s store.Store, id ledger.OrgID, change func(*ledger.Organization) error) (*ledger.Organization, error) {
	changed := new(ledger.Organization)
	needs := &store.Needs{Govern: []ledger.OrgID{id}, Logs: []ledger.OrgID{id}}
	err := s.Transact(ctx, needs, func(loaded *store.Loaded) (*store.Changes, error) {
		if loaded.Orgs[id] == nil {
			return nil, store.ErrNotFound
		}
		*changed = *loaded.Orgs[id]
		if err := change(changed); err != nil {
			return nil, err
		}
		changes := &store.Changes{Orgs: []*ledger.Organization{changed}}
		return changes, w.note(loaded.Logs[id], changed, "organization.update", changes)
	})
	return changed, err
}

// administer is for acts that do not change the organization itself.
func (w *world) administer(ctx context.Context, s store.Store, needs *store.Needs, org ledger.OrgID, action string,
	plan func(*store.Loaded) (*store.Changes, error),
) error {
	needs.Orgs, needs.Logs = []ledger.OrgID{org}, []ledger.OrgID{org}
	return s.Transact(ctx, needs, func(loaded *store.Loaded) (*store.Changes, error) {
		changes, err := plan(loaded)
		if err != nil {
			return nil, err
		}
		return changes, w.note(loaded.Logs[org], loaded.Orgs[org], action, changes)
	})
}

func (w *world) addKey(ctx context.Context, s store.Store, key *ledger.KeyRecord) error {
	return w.administer(ctx, s, new(store.Needs), key.Org, "api_key.create", func(*store.Loaded) (*store.Changes, error) {
		return &store.Changes{NewKeys: []*ledger.KeyRecord{key}}, nil
	})
}

func (w *world) mustAddKey(t *testing.T, key *ledger.KeyRecord) {
	t.Helper()
	if err := w.addKey(t.Context(), w, key); err != nil {
		t.Fatalf("create key: %v", err)
	}
}

// revoke revokes a key unless it is already revoked, and returns its stored record.
func (w *world) revoke(ctx context.Context, s store.Store, key *ledger.KeyRecord, at ledger.Time) (*ledger.KeyRecord, error) {
	revoked := new(ledger.KeyRecord)
	needs := &store.Needs{Keys: []ledger.KeyID{key.ID}}
	err := w.administer(ctx, s, needs, key.Org, "api_key.revoke", func(loaded *store.Loaded) (*store.Changes, error) {
		*revoked = *loaded.Keys[key.ID]
		changes := new(store.Changes)
		if revoked.RevokedAt == nil {
			revoked.RevokedAt = &at
			changes.Keys = []*ledger.KeyRecord{revoked}
		}
		return changes, nil
	})
	return revoked, err
}
