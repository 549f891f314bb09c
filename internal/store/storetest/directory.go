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
	{name: "an organization is created with head, key and log", run: createsOrganization},
	{name: "an organization is created with nothing else", run: createsNothingElse},
	{name: "an organization is created with all that belongs to it", run: createsWithChanges},
	{name: "an organization that collides leaves nothing", run: collidingOrganizationLeavesNothing},
	{name: "an unknown organization is not found", run: unknownOrganization},
	{name: "organizations are listed", run: listsOrganizations},
	{name: "settings are stored unchanged", run: keepsSettings},
	{name: "an update is stored and returned", run: updatesOrganization},
	{name: "an organization is the same record until it changes", run: sharesOrganization},
	{name: "an error of change is returned and nothing changes", run: changeErrorChangesNothing},
	{name: "concurrent updates lose nothing", run: updatesAtOnce, concurrent: true},
	{name: "an update does not hold up the organization's chains", run: updateBesideChains, concurrent: true},
	{name: "one slug, created concurrently", run: oneSlug, concurrent: true},
}

func createsOrganization(t *testing.T, w *world) {
	m := w.join(t)
	s := w.open(t)
	assertEqual(t, "by id", must[*ledger.Organization](t)(s.Organization(t.Context(), m.org.ID)), m.org)
	assertEqual(t, "by slug", must[*ledger.Organization](t)(s.OrganizationBySlug(t.Context(), m.org.Slug)), m.org)
	assertEqual(t, "head", must[*ledger.Head](t)(s.Head(t.Context(), m.org.ID)), ledger.NewHead(m.org.ID, w.keys))
	assertEqual(t, "key", must[*ledger.KeyRecord](t)(s.KeyByHash(t.Context(), m.key.Hash)), m.key)
	if log := must[*ledger.ActLog](t)(s.ActLog(t.Context(), m.org.ID)); log.Count != 1 {
		t.Errorf("the audit log counts %d acts, want 1", log.Count)
	}
}

// sharesOrganization requires each handle to read one record of an organization until it is changed, also by
// another handle. Whoever has verified it need not do so again.
func sharesOrganization(t *testing.T, w *world) {
	m, other := w.join(t), w.open(t)
	handles := []store.Store{w, other}
	read := func(handle store.Store) *ledger.Organization {
		return must[*ledger.Organization](t)(handle.Organization(t.Context(), m.org.ID))
	}
	for _, name := range []string{"One", "Two", "One"} {
		changed, err := w.govern(t.Context(), other, m.org.ID, func(org *ledger.Organization) error {
			org.Name = name
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for i, handle := range handles {
			first := read(handle)
			assertEqual(t, "organization", first, changed)
			if again := read(handle); again != first {
				t.Errorf("handle %d reads another record although nothing has changed", i)
			}
		}
	}
}

func createsNothingElse(t *testing.T, w *world) {
	org := w.newOrganization()
	if err := w.CreateOrganization(t.Context(), org, ledger.NewHead(org.ID, w.keys), nil); err != nil {
		t.Fatalf("create organization: %v", err)
	}
	if keys := must[[]*ledger.KeyRecord](t)(w.Keys(t.Context(), org.ID, ledger.KeyID{}, 10)); len(keys) != 0 {
		t.Errorf("the organization has %d keys, want none", len(keys))
	}
}

// createsWithChanges creates an organization with a record of every kind that it can start with.
func createsWithChanges(t *testing.T, w *world) {
	org := w.newOrganization()
	m := &member{org: org, key: w.newKey(org.ID)}
	with := w.beginning(t, org, m.key)
	with.NewPolicies = []*store.PolicyRecord{w.policy(org.ID, 1)}
	with.Webhooks = []*store.WebhookRecord{w.webhook(org.ID)}
	with.NewJobs = []*store.Job{{Org: org.ID, Kind: jobKind, RunAt: w.now(), Body: []byte("{}")}}
	with.NewChains = []*store.ChainRecord{w.record(w.draft(m), "")}
	if err := w.CreateOrganization(t.Context(), org, ledger.NewHead(org.ID, w.keys), with); err != nil {
		t.Fatalf("create organization: %v", err)
	}
	s := w.open(t)
	assertEqual(t, "policy", must[*store.PolicyRecord](t)(s.Policy(t.Context(), org.ID, 1)), with.NewPolicies[0])
	assertEqual(t, "webhooks", must[[]*store.WebhookRecord](t)(s.Webhooks(t.Context(), org.ID)), with.Webhooks)
	assertEqual(t, "acts", must[[]*ledger.StoredAct](t)(s.Acts(t.Context(), org.ID, 0, 10)), with.NewActs)
	assertEqual(t, "chain", must[*store.ChainRecord](t)(s.Chain(t.Context(), with.NewChains[0].ID)), with.NewChains[0])
	if jobs := w.claim(t, w.now(), lease, 10); len(jobs) != 1 || string(jobs[0].Body) != "{}" {
		t.Errorf("claimed %v, want the one job", labels(jobs))
	}
	w.mustAct(t, with.NewChains[0].ID, newAction(""))
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
		err := w.CreateOrganization(t.Context(), org, ledger.NewHead(org.ID, w.keys), w.beginning(t, org, key))
		wantError(t, name, err, store.ErrExists)
		_, err = w.Organization(t.Context(), org.ID)
		wantError(t, name+": organization", err, store.ErrNotFound)
		_, err = w.Head(t.Context(), org.ID)
		wantError(t, name+": head", err, store.ErrNotFound)
		_, err = w.ActLog(t.Context(), org.ID)
		wantError(t, name+": log", err, store.ErrNotFound)
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
	wantError(t, "update", attempt(t.Context(), w, &store.Changes{Orgs: []*ledger.Organization{stranger}}), store.ErrNotFound)
	_, err = w.Organization(t.Context(), stranger.ID)
	wantError(t, "after the update", err, store.ErrNotFound)
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
	org.Controls.Webhooks = 1
	if err := w.CreateOrganization(t.Context(), org, ledger.NewHead(org.ID, w.keys), nil); err != nil {
		t.Fatalf("create organization: %v", err)
	}
	got := must[*ledger.Organization](t)(w.Organization(t.Context(), org.ID))
	assertEqual(t, "organization", got, org)
	// An empty allowlist allows nothing. A nil allowlist is disabled.
	if got.Settings.ExternalDomainsAllowlist == nil {
		t.Error("an empty allowlist came back as none")
	}
	if plain := must[*ledger.Organization](t)(w.Organization(t.Context(), w.join(t).org.ID)); plain.Settings.ExternalDomainsAllowlist != nil {
		t.Error("no allowlist came back as an empty one")
	}
}

func updatesOrganization(t *testing.T, w *world) {
	m, other := w.join(t), w.join(t)
	at := w.now()
	controls := ledger.Controls{
		KillSwitch: ledger.KillSwitch{Active: true, Reason: "incident \"7\" <ü>", ChangedAt: &at, ChangedBy: "on-call"},
		Policy:     ledger.PolicyRef{Number: 3, Version: "v3+0123456789ab"}, Webhooks: 2,
	}
	updated, err := w.govern(t.Context(), w, m.org.ID, func(org *ledger.Organization) error {
		assertEqual(t, "before", org, m.org)
		org.Name, org.Settings.ApprovalTimeoutHours, org.Controls = "Renamed", 48, controls
		return nil
	})
	if err != nil {
		t.Fatalf("update: %v", err)
	}
	m.org.Name, m.org.Settings.ApprovalTimeoutHours, m.org.Controls = "Renamed", 48, controls
	assertEqual(t, "returned", updated, m.org)
	assertEqual(t, "stored", must[*ledger.Organization](t)(w.Organization(t.Context(), m.org.ID)), m.org)
	assertEqual(t, "other", must[*ledger.Organization](t)(w.Organization(t.Context(), other.org.ID)), other.org)
}

func changeErrorChangesNothing(t *testing.T, w *world) {
	m := w.join(t)
	refusal := errors.New("refused")
	_, err := w.govern(t.Context(), w, m.org.ID, func(org *ledger.Organization) error {
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
			_, err := w.govern(ctx, s, m.org.ID, func(org *ledger.Organization) error {
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

// updateBesideChains runs updates and openings together: neither may starve or deadlock the other.
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
			_, err := w.govern(ctx, s, m.org.ID, func(org *ledger.Organization) error {
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
		results[worker] = s.CreateOrganization(ctx, org, ledger.NewHead(org.ID, w.keys), w.beginning(t, org, w.newKey(org.ID)))
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
