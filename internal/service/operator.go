package service

import (
	"context"
	"errors"

	"countersign/internal/canon"
	"countersign/internal/evidence"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// Operator is the person at the machine itself: the command line works on the
// store without an API key, for whoever may open the files may read them anyway.
type Operator struct{ service *Service }

// Operator returns the use cases of the command line.
func (s *Service) Operator() *Operator { return &Operator{s} }

// Unsealed counts the rows without an authenticator.
func (o *Operator) Unsealed(ctx context.Context) (int, error) {
	orgs, err := o.Organizations(ctx)
	if err != nil {
		return 0, err
	}
	total := 0
	for _, org := range orgs {
		unsealed, err := o.service.store.Unsealed(ctx, org.ID)
		if err != nil {
			return 0, visible(err)
		}
		log, err := o.service.store.ActLog(ctx, org.ID)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return 0, visible(err)
		}
		if err == nil && log.Begins() {
			unsealed++
		}
		total += unsealed
	}
	return total, nil
}

// TrustExisting takes over rows from before they had authenticators or named the act that
// changed them last, and begins the audit logs of organizations from before there were any.
// It believes what it finds, so it is done once, by the operator, and never by a server.
func (o *Operator) TrustExisting(ctx context.Context, trust evidence.Trust) (int, error) {
	orgs, err := o.Organizations(ctx)
	if err != nil {
		return 0, err
	}
	total := 0
	for _, org := range orgs {
		begin := &beginLog{org: org.ID}
		if err := o.service.committer.commit(ctx, begin); err != nil {
			return total, err
		}
		taken, err := o.service.store.TakeOver(ctx, org.ID, trust)
		if err != nil {
			return total, visible(err)
		}
		if begin.begun {
			total++
		}
		if total += taken; taken == 0 {
			continue
		}
		err = o.service.committer.commit(ctx, &act{actor: ledger.ActorOperator, org: org.ID, change: func(*batch, *ledger.Organization) (*deed, error) {
			return &deed{action: ledger.ActRowsTrust, target: org.Slug, detail: details(func(w *canon.ObjectWriter) { w.Int("rows", int64(taken)) })}, nil
		}})
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

// beginLog begins the audit log of an organization that has none yet.
type beginLog struct {
	org   ledger.OrgID
	begun bool
}

func (o *beginLog) tenant() ledger.OrgID { return o.org }

func (o *beginLog) size() int { return smallOperation }

func (o *beginLog) need(needs *store.Needs) {
	needs.Govern = append(needs.Govern, o.org)
	needs.Logs = append(needs.Logs, o.org)
	needs.SigningKeys = append(needs.SigningKeys, o.org)
}

func (o *beginLog) plan(b *batch) error {
	before, log := b.loaded.Orgs[o.org], b.loaded.Logs[o.org]
	if before == nil || log == nil || !log.Begins() {
		return nil
	}
	log.Begin()
	o.begun = true
	begun := &deed{action: ledger.ActLogBegin, target: before.Slug}
	if len(b.loaded.SigningKeys[o.org]) == 0 && b.service.secrets != nil {
		key, err := b.service.newSigningKey(o.org, "")
		if err != nil {
			return err
		}
		b.putSigningKey(key)
		begun.detail = details(func(w *canon.ObjectWriter) { w.String("signing_key_id", key.ID.String()) })
	}
	org := new(ledger.Organization)
	*org = *before
	return b.enact(ledger.ActorOperator, org, begun)
}

// CreateOrganization makes an organization with a first admin key.
func (o *Operator) CreateOrganization(ctx context.Context, slug, name string) (*ledger.Organization, *NewKey, error) {
	if err := ledger.CheckSlug(slug); err != nil {
		return nil, nil, err
	}
	s := o.service
	if name == "" {
		name = slug
	}
	org := &ledger.Organization{
		ID:   ledger.OrgID{UUID: s.timedID(s.now())},
		Slug: slug, Name: name, Settings: ledger.DefaultSettings(), CreatedAt: s.now(),
		Controls: ledger.Controls{Act: 1}, // the act that makes it
	}
	if err := org.Seal(s.keys); err != nil {
		return nil, nil, err
	}
	key, err := s.newKey(org.ID, &KeyRequest{Name: "first admin", Role: ledger.RoleAdmin})
	if err != nil {
		return nil, nil, err
	}
	with := &store.Changes{NewKeys: []*ledger.KeyRecord{key.Record}}
	if s.secrets != nil {
		signing, err := s.newSigningKey(org.ID, "")
		if err != nil {
			return nil, nil, err
		}
		with.SigningKeys = append(with.SigningKeys, signing)
	}
	log := ledger.NewActLog(org.ID)
	created, err := log.Append(s.keys, org, ledger.Act{At: s.now(), Actor: ledger.ActorOperator, Action: ledger.ActOrganizationCreate, Target: slug,
		Detail: details(func(w *canon.ObjectWriter) {
			w.String("api_key_id", key.Record.ID.String())
			w.String("name", name)
			for _, signing := range with.SigningKeys {
				w.String("signing_key_id", signing.ID.String())
			}
		})})
	if err != nil {
		return nil, nil, err
	}
	with.NewActs, with.Logs = []*ledger.StoredAct{created}, []*ledger.ActLog{log}
	err = s.store.CreateOrganization(ctx, org, ledger.NewHead(org.ID, s.keys), with)
	if errors.Is(err, store.ErrExists) {
		return nil, nil, ledger.Errorf(ledger.CodeOrganizationExists, "an organization with the slug %q exists already", slug)
	}
	if err != nil {
		return nil, nil, visible(err)
	}
	s.noteLogs(with.Logs) //nolint:contextcheck // what is committed is remembered, whether or not the caller still waits
	return org, key, nil
}

// FirstStart is what an empty store is given, shown once.
type FirstStart struct {
	Organization *ledger.Organization
	Key          *NewKey
	SignIn       ledger.Secret
}

// Bootstrap makes the organization "default" on an empty store; nil when there
// is one already, made by this process or by another replica at the same time.
func (o *Operator) Bootstrap(ctx context.Context) (*FirstStart, error) {
	orgs, err := o.service.store.Organizations(ctx)
	if err != nil {
		return nil, visible(err)
	}
	if len(orgs) > 0 {
		return nil, nil
	}
	org, key, err := o.CreateOrganization(ctx, "default", "Default")
	var own *ledger.Error
	if errors.As(err, &own) && own.Code == ledger.CodeOrganizationExists {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	link, err := o.service.createSignIn(ctx, nil, org.ID, key.Record.ID)
	if err != nil {
		return nil, err
	}
	return &FirstStart{Organization: org, Key: key, SignIn: link}, nil
}

// Organizations lists all of them.
func (o *Operator) Organizations(ctx context.Context) ([]*ledger.Organization, error) {
	orgs, err := o.service.store.Organizations(ctx)
	return orgs, visible(err)
}

// organization finds an organization; without a slug, the only one there is.
func (o *Operator) organization(ctx context.Context, slug string) (*ledger.Organization, error) {
	if slug == "" {
		return o.onlyOrganization(ctx)
	}
	org, err := o.service.store.OrganizationBySlug(ctx, slug)
	if errors.Is(err, store.ErrNotFound) {
		return nil, ledger.Errorf(ledger.CodeNotFound, "there is no organization %q; countersign orgs list shows those there are", slug)
	}
	return org, visible(err)
}

func (o *Operator) onlyOrganization(ctx context.Context) (*ledger.Organization, error) {
	orgs, err := o.Organizations(ctx)
	if err != nil {
		return nil, err
	}
	if len(orgs) != 1 {
		return nil, ledger.Errorf(ledger.CodeInvalid, "there are %d organizations: name one with --org; countersign orgs list shows them", len(orgs))
	}
	return orgs[0], nil
}

// CreateKey issues an API key.
func (o *Operator) CreateKey(ctx context.Context, slug string, request *KeyRequest) (*NewKey, error) {
	org, err := o.organization(ctx, slug)
	if err != nil {
		return nil, err
	}
	return o.service.issueKey(ctx, nil, org.ID, request)
}

// Keys lists an organization's keys.
func (o *Operator) Keys(ctx context.Context, slug string) ([]*ledger.KeyRecord, error) {
	org, err := o.organization(ctx, slug)
	if err != nil {
		return nil, err
	}
	keys, err := o.service.store.AllKeys(ctx, org.ID)
	return keys, visible(err)
}

// RotateKey replaces an API key's secret.
func (o *Operator) RotateKey(ctx context.Context, slug string, rotation *Rotation) (*NewKey, error) {
	org, err := o.organization(ctx, slug)
	if err != nil {
		return nil, err
	}
	return o.service.rotateKey(ctx, nil, org.ID, rotation)
}

// RevokeKey ends an API key.
func (o *Operator) RevokeKey(ctx context.Context, slug string, id ledger.KeyID) (*ledger.KeyRecord, error) {
	org, err := o.organization(ctx, slug)
	if err != nil {
		return nil, err
	}
	return o.service.revokeKey(ctx, nil, org.ID, id)
}

// SignInLink makes a one-time link for an API key; the zero id stands for the
// oldest active admin's.
func (o *Operator) SignInLink(ctx context.Context, slug string, id ledger.KeyID) (ledger.Secret, error) {
	keys, err := o.Keys(ctx, slug)
	if err != nil {
		return ledger.Secret{}, err
	}
	for _, key := range keys {
		wanted := key.ID == id || (id == ledger.KeyID{} && key.Role == ledger.RoleAdmin)
		if wanted && key.Active(o.service.now()) {
			return o.service.createSignIn(ctx, nil, key.Org, key.ID)
		}
	}
	return ledger.Secret{}, ledger.Errorf(ledger.CodeNotFound, "there is no active key with that id; countersign keys list shows those there are")
}
