package service

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"countersign/internal/canon"
	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/verify"
)

// Organization finds the caller's organization.
func (s *Service) Organization(ctx context.Context, caller *Caller) (*ledger.Organization, error) {
	if err := s.authorize(ctx, caller, ledger.RoleMember); err != nil {
		return nil, err
	}
	return s.organization(ctx, caller.Org)
}

// organization finds an organization that is as the last act has left it.
func (s *Service) organization(ctx context.Context, id ledger.OrgID) (*ledger.Organization, error) {
	org, err := s.store.CurrentOrganization(ctx, id)
	return org, visible(err)
}

// organizations are all of them. One that is not as the service sealed it is among them,
// so that it is looked over as the others are, and becomes a finding.
func (s *Service) organizations(ctx context.Context) ([]*ledger.Organization, error) {
	orgs, err := s.store.Organizations(ctx)
	if err != nil {
		return nil, visible(err)
	}
	for _, org := range orgs {
		if !org.Authentic(s.keys) {
			s.NoteTampering(org.ID, errOrganization)
		}
	}
	return orgs, nil
}

var errOrganization = fmt.Errorf("organization fails its authenticator: %w", ledger.ErrStateTampered)

// UpdateOrganization replaces the settings that the request names, and returns when
// nothing that was allowed under the old ones can begin any more.
func (s *Service) UpdateOrganization(ctx context.Context, caller *Caller, request canon.Value) (*ledger.Organization, error) {
	var patched ledger.Organization
	err := s.governStop(ctx, caller, func(b *batch, org *ledger.Organization) (*deed, error) {
		var err error
		if patched, err = org.Patch(request); err != nil {
			return nil, err
		}
		policy, err := b.policy(org)
		if err != nil {
			return nil, err
		}
		if err := readBudgets(&patched.Settings, policy.Budgets, "/budgets", "the policy set in force asks about it; put another set first"); err != nil {
			return nil, err
		}
		before, err := org.Hash()
		if err != nil {
			return nil, err
		}
		if after, err := patched.Hash(); err != nil || after == before {
			return nil, err // nothing is changed
		}
		if patched.Settings.AbandonHours() != org.Settings.AbandonHours() {
			// The rounds follow the setting from now on, not from the next round on.
			b.changes.NewJobs = append(b.changes.NewJobs, abandonJob(org.ID, "", b.now))
		}
		said, err := organizationDeed(org, &patched)
		*org = patched
		return said, err
	})
	if err != nil {
		return nil, err
	}
	return &patched, nil
}

// KeyRequest asks for an API key.
type KeyRequest struct {
	Name      string
	Role      ledger.Role
	Agents    []string // the names that it may record for; none: any
	Owner     string
	ExpiresAt *ledger.Time // nil: never
}

// Bounds of what an API key is given.
const (
	maxKeyName   = 200 // characters, of the name and of the owner
	maxKeyAgents = 100
)

// ParseKeyRequest reads the body of a request that creates an API key.
func ParseKeyRequest(v canon.Value) (*KeyRequest, error) {
	f := ledger.NewFields(v)
	request := &KeyRequest{
		Name: f.Name("name", maxKeyName), Role: ledger.Role(f.OneOf("role", string(ledger.RoleAgent), string(ledger.RoleMember), string(ledger.RoleAdmin))),
		Agents: f.AgentNames("agents", maxKeyAgents), Owner: f.Name("owner", maxKeyName), ExpiresAt: f.Time("expires_at"),
	}
	if !f.Has("role") {
		f.Fault("role", "is required: agent, member or admin")
	}
	if err := f.Err(); err != nil {
		return nil, err
	}
	return request, nil
}

// NewKey is a key's record with its text, which exists nowhere else.
type NewKey struct {
	Record *ledger.KeyRecord
	Text   ledger.Secret
}

// CreateAPIKey issues a key of the caller's organization.
func (s *Service) CreateAPIKey(ctx context.Context, caller *Caller, request *KeyRequest) (*NewKey, error) {
	if err := caller.require(ledger.RoleAdmin); err != nil {
		return nil, err
	}
	return s.issueKey(ctx, caller, caller.Org, request)
}

// issueKey issues a key as a caller, or as the operator where there is none. Two
// of one name that are issued at once may see each other only afterwards: then
// neither text is given out, and neither key stands.
func (s *Service) issueKey(ctx context.Context, caller *Caller, org ledger.OrgID, request *KeyRequest) (*NewKey, error) {
	if err := s.nameFree(ctx, org, request, ledger.KeyID{}); err != nil {
		return nil, err
	}
	key, err := s.storeKey(ctx, caller, org, request)
	if err != nil {
		return nil, err
	}
	if taken := s.nameFree(ctx, org, request, key.Record.ID); taken != nil {
		op, _ := s.revocation(caller, org, key.Record.ID)
		return nil, errors.Join(taken, s.committer.commit(ctx, op)) // nobody has used it
	}
	return key, nil
}

// nameFree refuses the name of another active key than the given one. Lists of
// approvers go by names, so only agents, who decide nothing, share one.
func (s *Service) nameFree(ctx context.Context, org ledger.OrgID, request *KeyRequest, own ledger.KeyID) error {
	if request.Name == "" {
		return nil
	}
	keys, err := s.store.AllKeys(ctx, org)
	if err != nil {
		return visible(err)
	}
	for _, key := range keys {
		decides := key.Role.Includes(ledger.RoleMember) || request.Role.Includes(ledger.RoleMember)
		if key.Name == request.Name && key.Active(s.now()) && key.ID != own && decides {
			return ledger.Errorf(ledger.CodeNameTaken,
				"an active key has the name %q already, and names say who may approve: choose another name, or revoke that key first", key.Name)
		}
	}
	return nil
}

func (s *Service) storeKey(ctx context.Context, caller *Caller, org ledger.OrgID, request *KeyRequest) (*NewKey, error) {
	key, err := s.newKey(org, request)
	if err != nil {
		return nil, err
	}
	err = s.committer.commit(ctx, &act{caller: caller, actor: ledger.ActorOperator, org: org, change: func(b *batch, _ *ledger.Organization) (*deed, error) {
		if expires := key.Record.ExpiresAt; expires != nil {
			if *expires <= b.now {
				return nil, ledger.Invalid(ledger.FieldError{Pointer: "/expires_at", Detail: "must be in the future"})
			}
			b.changes.NewJobs = append(b.changes.NewJobs, expiryJob(key.Record))
		}
		b.changes.NewKeys = append(b.changes.NewKeys, key.Record)
		return keyDeed(ledger.ActKeyCreate, key.Record, "", ""), nil
	}})
	if err != nil {
		return nil, err
	}
	return key, nil
}

// keyDeed names an API key and, where it has ended, from what to what.
func keyDeed(action string, key *ledger.KeyRecord, from, to string) *deed {
	return &deed{action: action, target: key.ID.String(), detail: details(func(w *canon.ObjectWriter) {
		if len(key.Agents) > 0 {
			w.Strings("agents", key.Agents)
		}
		if key.ExpiresAt != nil {
			w.String("expires_at", key.ExpiresAt.String())
		}
		w.StringOrNull("name", key.Name)
		if key.Owner != "" {
			w.String("owner", key.Owner)
		}
		if key.Previous != nil {
			w.String("previous_expires_at", key.Previous.ExpiresAt.String())
		}
		w.String("role", string(key.Role))
		if from != to {
			moved(w, "status", from, to)
		}
	})}
}

func (s *Service) newKey(org ledger.OrgID, request *KeyRequest) (*NewKey, error) {
	text, parsed, err := s.newSecret()
	if err != nil {
		return nil, err
	}
	record := &ledger.KeyRecord{
		ID:  ledger.KeyID{UUID: s.timedID(s.now())},
		Org: org, Name: request.Name, Role: request.Role, Hash: parsed.Hash(), Hint: parsed.Hint(), CreatedAt: s.now(),
		Agents: request.Agents, Owner: request.Owner, ExpiresAt: request.ExpiresAt,
	}
	return &NewKey{Record: record, Text: text}, nil
}

// newSecret makes the text of an API key.
func (s *Service) newSecret() (ledger.Secret, ledger.APIKey, error) {
	text := ledger.NewAPIKey(s.entropy())
	parsed, err := ledger.ParseAPIKey(text.Reveal())
	return text, parsed, err
}

// APIKeys lists the organization's keys, oldest first.
func (s *Service) APIKeys(ctx context.Context, caller *Caller, after ledger.KeyID, limit int) ([]*ledger.KeyRecord, error) {
	if err := s.authorize(ctx, caller, ledger.RoleAdmin); err != nil {
		return nil, err
	}
	keys, err := s.store.Keys(ctx, caller.Org, after, limit)
	if slices.ContainsFunc(keys, func(key *ledger.KeyRecord) bool { return key.Tampered }) {
		s.noticeFailing(ctx, caller.Org)
	}
	return keys, visible(err)
}

// noticeFailing keeps what fails of an organization's rows that belong to no chain.
func (s *Service) noticeFailing(ctx context.Context, org ledger.OrgID) {
	const most = 20 // the daily look finds the others
	failing, err := s.store.FailingRows(ctx, org, most)
	if err != nil {
		s.log.Error("rows that fail could not be listed: the daily look tries again", "error", err)
	}
	for i := range failing {
		s.notice(metTampering{org: org, tampering: verify.RowChanged(&failing[i]), tell: true})
	}
}

// RevokeAPIKey ends a key, and returns when nothing that it was allowed can begin any
// more. Repeating it changes nothing.
func (s *Service) RevokeAPIKey(ctx context.Context, caller *Caller, id ledger.KeyID) (*ledger.KeyRecord, error) {
	if err := caller.require(ledger.RoleAdmin); err != nil {
		return nil, err
	}
	return s.revokeKey(ctx, caller, caller.Org, id)
}

func (s *Service) revokeKey(ctx context.Context, caller *Caller, org ledger.OrgID, id ledger.KeyID) (*ledger.KeyRecord, error) {
	op, revoked := s.revocation(caller, org, id)
	err := s.commitStop(ctx, op)
	s.callers.forget(id)
	if err != nil {
		return nil, err
	}
	return revoked, nil
}

// revocation is the act that ends a key, and the key's record once it is committed.
func (s *Service) revocation(caller *Caller, org ledger.OrgID, id ledger.KeyID) (*act, *ledger.KeyRecord) {
	revoked := new(ledger.KeyRecord)
	op := &act{caller: caller, actor: ledger.ActorOperator, org: org}
	op.needs = func(needs *store.Needs) { needs.Keys = append(needs.Keys, id) }
	op.change = func(b *batch, _ *ledger.Organization) (*deed, error) {
		key, err := b.keyOf(org, id)
		if err != nil {
			return nil, err
		}
		if *revoked = *key; key.RevokedAt != nil {
			return nil, nil // the first moment stands
		}
		now := b.now
		revoked.RevokedAt = &now
		b.putKey(revoked)
		return keyDeed(ledger.ActKeyRevoke, revoked, string(key.Status(now)), string(revoked.Status(now))), nil
	}
	return op, revoked
}
