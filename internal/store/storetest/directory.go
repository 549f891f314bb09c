package storetest

import (
	"context"
	"errors"
	"slices"
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

var directoryCases = []testCase{
	{name: "an organization is created with head and key", run: createsOrganization},
	{name: "an organization is created without a key", run: createsWithoutKey},
	{name: "an organization that collides leaves nothing", run: collidingOrganizationLeavesNothing},
	{name: "an unknown organization is not found", run: unknownOrganization},
	{name: "organizations are listed", run: listsOrganizations},
	{name: "settings come back as they were", run: keepsSettings},
	{name: "an update is stored and returned", run: updatesOrganization},
	{name: "an error of change comes back and nothing changes", run: changeErrorChangesNothing},
	{name: "updates at once lose nothing", run: updatesAtOnce},
	{name: "an update does not hold up the organization's chains", run: updateBesideChains},
	{name: "one slug by many at once", run: oneSlug},
}

func createsOrganization(t *testing.T, w *world) {
	m := w.join(t)
	s := w.open(t)
	assertEqual(t, "by id", must[*ledger.Organization](t)(s.Organization(t.Context(), m.org.ID)), m.org)
	assertEqual(t, "by slug", must[*ledger.Organization](t)(s.OrganizationBySlug(t.Context(), m.org.Slug)), m.org)
	assertEqual(t, "head", must[*ledger.Head](t)(s.Head(t.Context(), m.org.ID)), ledger.NewHead(m.org.ID, w.keys))
	assertEqual(t, "key", must[*ledger.KeyRecord](t)(s.KeyByHash(t.Context(), m.key.Hash)), m.key)
}

func createsWithoutKey(t *testing.T, w *world) {
	org := w.newOrganization()
	if err := w.CreateOrganization(t.Context(), org, ledger.NewHead(org.ID, w.keys), nil); err != nil {
		t.Fatalf("create organization: %v", err)
	}
	if keys := must[[]*ledger.KeyRecord](t)(w.Keys(t.Context(), org.ID, ledger.KeyID{}, 10)); len(keys) != 0 {
		t.Errorf("the organization has %d keys, want none", len(keys))
	}
}

func collidingOrganizationLeavesNothing(t *testing.T, w *world) {
	m := w.join(t)
	for name, collide := range map[string]func(*ledger.Organization, *ledger.KeyRecord){
		"slug":     func(org *ledger.Organization, _ *ledger.KeyRecord) { org.Slug = m.org.Slug },
		"key's id": func(_ *ledger.Organization, key *ledger.KeyRecord) { key.ID = m.key.ID },
		"key":      func(_ *ledger.Organization, key *ledger.KeyRecord) { key.Hash = m.key.Hash },
	} {
		org := w.newOrganization()
		key := w.newKey(org.ID)
		collide(org, key)
		err := w.CreateOrganization(t.Context(), org, ledger.NewHead(org.ID, w.keys), key)
		wantError(t, name, err, store.ErrExists)
		_, err = w.Organization(t.Context(), org.ID)
		wantError(t, name+": organization", err, store.ErrNotFound)
		_, err = w.Head(t.Context(), org.ID)
		wantError(t, name+": head", err, store.ErrNotFound)
		if key.Hash != m.key.Hash {
			_, err = w.KeyByHash(t.Context(), key.Hash)
			wantError(t, name+": key", err, store.ErrNotFound)
		}
	}
	assertEqual(t, "the first", must[*ledger.Organization](t)(w.OrganizationBySlug(t.Context(), m.org.Slug)), m.org)
}

func unknownOrganization(t *testing.T, w *world) {
	w.join(t)
	stranger := w.newOrganization()
	_, err := w.Organization(t.Context(), stranger.ID)
	wantError(t, "by id", err, store.ErrNotFound)
	_, err = w.OrganizationBySlug(t.Context(), stranger.Slug)
	wantError(t, "by slug", err, store.ErrNotFound)
	_, err = w.UpdateOrganization(t.Context(), stranger.ID, func(*ledger.Organization) error {
		t.Error("change was called")
		return nil
	})
	wantError(t, "update", err, store.ErrNotFound)
}

func listsOrganizations(t *testing.T, w *world) {
	if found := must[[]*ledger.Organization](t)(w.Organizations(t.Context())); len(found) != 0 {
		t.Fatalf("an empty store lists %d organizations", len(found))
	}
	want := []*ledger.Organization{w.join(t).org, w.join(t).org, w.join(t).org}
	got := must[[]*ledger.Organization](t)(w.Organizations(t.Context()))
	slices.SortFunc(got, func(a, b *ledger.Organization) int { return slices.Compare(a.ID.UUID[:], b.ID.UUID[:]) })
	assertEqual(t, "organizations", got, want)
}

func keepsSettings(t *testing.T, w *world) {
	org := w.newOrganization()
	org.Name = "Ünïcode & <Söhne> 🧾"
	org.Settings.EvaluationMode = ledger.Shadow
	org.Settings.FinancialThreshold = must[ledger.Money](t)(ledger.ParseMoney("1234.5678"))
	org.Settings.ExternalDomainsAllowlist = []string{}
	org.Settings.HighRiskAgents = []string{"zürich", "a\"b"}
	org.Settings.FailModes = map[string]string{"default": "deny", "<>": "allow"}
	org.Settings.TwoPersonApproval = true
	if err := w.CreateOrganization(t.Context(), org, ledger.NewHead(org.ID, w.keys), nil); err != nil {
		t.Fatalf("create organization: %v", err)
	}
	got := must[*ledger.Organization](t)(w.Organization(t.Context(), org.ID))
	assertEqual(t, "organization", got, org)
	// An empty allowlist allows nothing; none at all is off.
	if got.Settings.ExternalDomainsAllowlist == nil {
		t.Error("an empty allowlist came back as none")
	}
	if plain := must[*ledger.Organization](t)(w.Organization(t.Context(), w.join(t).org.ID)); plain.Settings.ExternalDomainsAllowlist != nil {
		t.Error("no allowlist came back as an empty one")
	}
}

func updatesOrganization(t *testing.T, w *world) {
	m, other := w.join(t), w.join(t)
	updated, err := w.UpdateOrganization(t.Context(), m.org.ID, func(org *ledger.Organization) error {
		assertEqual(t, "before", org, m.org)
		org.Name, org.Settings.ApprovalTimeoutHours = "Renamed", 48
		return nil
	})
	if err != nil {
		t.Fatalf("update: %v", err)
	}
	m.org.Name, m.org.Settings.ApprovalTimeoutHours = "Renamed", 48
	assertEqual(t, "returned", updated, m.org)
	assertEqual(t, "stored", must[*ledger.Organization](t)(w.Organization(t.Context(), m.org.ID)), m.org)
	assertEqual(t, "other", must[*ledger.Organization](t)(w.Organization(t.Context(), other.org.ID)), other.org)
}

func changeErrorChangesNothing(t *testing.T, w *world) {
	m := w.join(t)
	refusal := errors.New("refused")
	_, err := w.UpdateOrganization(t.Context(), m.org.ID, func(org *ledger.Organization) error {
		org.Name = "Renamed"
		return refusal
	})
	if err != refusal { //nolint:errorlint // the promise is the error itself
		t.Errorf("error %v, want the one that change returned", err)
	}
	assertEqual(t, "organization", must[*ledger.Organization](t)(w.Organization(t.Context(), m.org.ID)), m.org)
}

func updatesAtOnce(t *testing.T, w *world) {
	const workers, each = 9, 5
	m := w.join(t)
	w.together(t, workers, func(ctx context.Context, s store.Store, _ int) error {
		for range each {
			_, err := s.UpdateOrganization(ctx, m.org.ID, func(org *ledger.Organization) error {
				org.Settings.AutoPause.MaxEvents++
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	got := must[*ledger.Organization](t)(w.Organization(t.Context(), m.org.ID)).Settings.AutoPause.MaxEvents
	if want := m.org.Settings.AutoPause.MaxEvents + workers*each; got != want {
		t.Errorf("max_events is %d after %d increments, want %d", got, workers*each, want)
	}
}

// updateBesideChains mixes both: neither may starve or deadlock the other.
func updateBesideChains(t *testing.T, w *world) {
	m := w.join(t)
	w.together(t, 6, func(ctx context.Context, s store.Store, worker int) error {
		for range 6 {
			if worker%2 == 0 {
				if err := attempt(ctx, s, &store.Changes{NewChains: []*store.ChainRecord{w.record(w.draft(m), "")}}); err != nil {
					return err
				}
				continue
			}
			_, err := s.UpdateOrganization(ctx, m.org.ID, func(org *ledger.Organization) error {
				org.Name += "."
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if got := must[*ledger.Organization](t)(w.Organization(t.Context(), m.org.ID)).Name; len(got) != len(m.org.Name)+18 {
		t.Errorf("the name is %q after 18 updates", got)
	}
}

func oneSlug(t *testing.T, w *world) {
	const workers = 8
	var results [workers]error
	slug := w.newOrganization().Slug
	w.together(t, workers, func(ctx context.Context, s store.Store, worker int) error {
		org := w.newOrganization()
		org.Slug = slug
		results[worker] = s.CreateOrganization(ctx, org, ledger.NewHead(org.ID, w.keys), w.newKey(org.ID))
		return nil
	})
	won := 0
	for _, err := range results {
		if err == nil {
			won++
			continue
		}
		wantError(t, "create organization", err, store.ErrExists)
	}
	if won != 1 {
		t.Errorf("%d organizations were created under one slug", won)
	}
}
