package service

import (
	"context"
	"errors"
	"fmt"

	"countersign/internal/canon"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// Organization finds the caller's organization.
func (s *Service) Organization(ctx context.Context, caller *Caller) (*ledger.Organization, error) {
	if err := s.authorize(ctx, caller, ledger.RoleMember); err != nil {
		return nil, err
	}
	return s.organization(ctx, caller.Org)
}

// organization finds an organization that is as the service sealed it.
func (s *Service) organization(ctx context.Context, id ledger.OrgID) (*ledger.Organization, error) {
	org, err := s.store.Organization(ctx, id)
	if err != nil {
		return nil, visible(err)
	}
	if !org.Authentic(s.keys) {
		return nil, visible(fmt.Errorf("organization fails its authenticator: %w", ledger.ErrStateTampered))
	}
	return org, nil
}

// UpdateOrganization replaces the settings that the request names.
func (s *Service) UpdateOrganization(ctx context.Context, caller *Caller, request canon.Value) (*ledger.Organization, error) {
	var patched ledger.Organization
	err := s.govern(ctx, caller, func(_ *batch, org *ledger.Organization) (*deed, error) {
		var err error
		if patched, err = org.Patch(request); err != nil {
			return nil, err
		}
		before, err := org.Hash()
		if err != nil {
			return nil, err
		}
		if after, err := patched.Hash(); err != nil || after == before {
			return nil, err // nothing is changed
		}
		*org = patched
		return &deed{action: "organization.update", target: org.Slug, detail: request.Append(nil)}, nil
	})
	if err != nil {
		return nil, err
	}
	return &patched, nil
}

// KeyRequest asks for an API key.
type KeyRequest struct {
	Name string
	Role ledger.Role
}

// ParseKeyRequest reads the body of a request that creates an API key.
func ParseKeyRequest(v canon.Value) (*KeyRequest, error) {
	f := ledger.NewFields(v)
	request := &KeyRequest{Name: f.Name("name", 200), Role: ledger.Role(f.OneOf("role", string(ledger.RoleAgent), string(ledger.RoleMember), string(ledger.RoleAdmin)))}
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

// issueKey issues a key as a caller, or as the operator where there is none.
func (s *Service) issueKey(ctx context.Context, caller *Caller, org ledger.OrgID, request *KeyRequest) (*NewKey, error) {
	key, err := s.newKey(org, request)
	if err != nil {
		return nil, err
	}
	err = s.committer.commit(ctx, &act{caller: caller, actor: ledger.ActorOperator, org: org, change: func(b *batch, _ *ledger.Organization) (*deed, error) {
		b.changes.NewKeys = append(b.changes.NewKeys, key.Record)
		return keyDeed("api_key.create", key.Record), nil
	}})
	if err != nil {
		return nil, err
	}
	return key, nil
}

func keyDeed(action string, key *ledger.KeyRecord) *deed {
	return &deed{action: action, target: key.ID.String(), detail: details(func(w *canon.ObjectWriter) {
		w.StringOrNull("name", key.Name)
		w.String("role", string(key.Role))
	})}
}

func (s *Service) newKey(org ledger.OrgID, request *KeyRequest) (*NewKey, error) {
	text := ledger.NewAPIKey(s.entropy())
	parsed, err := ledger.ParseAPIKey(text.Reveal())
	if err != nil {
		return nil, err
	}
	record := &ledger.KeyRecord{
		ID:  ledger.KeyID{UUID: s.timedID(s.now())},
		Org: org, Name: request.Name, Role: request.Role, Hash: parsed.Hash(), Hint: parsed.Hint(), CreatedAt: s.now(),
	}
	return &NewKey{Record: record, Text: text}, nil
}

// APIKeys lists the organization's keys, oldest first.
func (s *Service) APIKeys(ctx context.Context, caller *Caller, after ledger.KeyID, limit int) ([]*ledger.KeyRecord, error) {
	if err := s.authorize(ctx, caller, ledger.RoleAdmin); err != nil {
		return nil, err
	}
	keys, err := s.store.Keys(ctx, caller.Org, after, limit)
	return keys, visible(err)
}

// RevokeAPIKey ends a key. Repeating it changes nothing.
func (s *Service) RevokeAPIKey(ctx context.Context, caller *Caller, id ledger.KeyID) (*ledger.KeyRecord, error) {
	if err := caller.require(ledger.RoleAdmin); err != nil {
		return nil, err
	}
	return s.revokeKey(ctx, caller, caller.Org, id)
}

func (s *Service) revokeKey(ctx context.Context, caller *Caller, org ledger.OrgID, id ledger.KeyID) (*ledger.KeyRecord, error) {
	var revoked ledger.KeyRecord
	op := &act{caller: caller, actor: ledger.ActorOperator, org: org}
	op.needs = func(needs *store.Needs) { needs.Keys = append(needs.Keys, id) }
	op.change = func(b *batch, _ *ledger.Organization) (*deed, error) {
		key := b.loaded.Keys[id]
		if key == nil || key.Org != org {
			return nil, ledger.ErrNotFound
		}
		if revoked = *key; !key.Active() {
			return nil, nil // the first moment stands
		}
		now := b.now
		revoked.RevokedAt = &now
		b.loaded.Keys[id] = &revoked
		b.changes.RevokedKeys = append(b.changes.RevokedKeys, &revoked)
		return keyDeed("api_key.revoke", &revoked), nil
	}
	if err := s.committer.commit(ctx, op); err != nil {
		return nil, err
	}
	s.callers.forget(id)
	return &revoked, nil
}

// Sign-in links open the console in a browser; a session follows them.
const (
	signInLifetime  = ledger.Time(30 * 60 * 1000)
	sessionLifetime = ledger.Time(12 * 60 * 60 * 1000)
	signInPrefix    = "csl_"
	sessionPrefix   = "css_"
)

func (s *Service) createSignIn(ctx context.Context, key ledger.KeyID) (ledger.Secret, error) {
	text := ledger.NewOpaqueToken(signInPrefix, s.entropy())
	link := &store.SignIn{Hash: ledger.HashToken(text.Reveal()), Key: key.UUID, ExpiresAt: s.now() + signInLifetime}
	if err := s.store.CreateSignIn(ctx, link); err != nil {
		return ledger.Secret{}, visible(err)
	}
	return text, nil
}

var errBadLink = ledger.Errorf(ledger.CodeUnauthenticated, "this sign-in link was used, has expired or never existed; make a new one with countersign keys sign-in")

// SignIn uses up a sign-in link and opens a session.
func (s *Service) SignIn(ctx context.Context, link string) (session ledger.Secret, expires ledger.Time, err error) {
	session = ledger.NewOpaqueToken(sessionPrefix, s.entropy())
	expires = s.now() + sessionLifetime
	_, err = s.store.OpenSession(ctx, ledger.HashToken(link), ledger.HashToken(session.Reveal()), s.now(), expires)
	if errors.Is(err, store.ErrNotFound) {
		return ledger.Secret{}, 0, errBadLink
	}
	return session, expires, visible(err)
}

// SessionCaller finds who a browser session acts for.
func (s *Service) SessionCaller(ctx context.Context, session string) (*Caller, error) {
	in, err := s.store.Session(ctx, ledger.HashToken(session), s.now())
	if err != nil {
		return nil, visible(err)
	}
	key, err := s.store.Key(ctx, ledger.KeyID{UUID: in.Key})
	if err != nil {
		return nil, visible(err)
	}
	if !key.Active() {
		return nil, errUnknownKey
	}
	return callerOf(key), nil
}

// SignOut ends a session.
func (s *Service) SignOut(ctx context.Context, session string) error {
	return visible(s.store.CloseSession(ctx, ledger.HashToken(session)))
}
