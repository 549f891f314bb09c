package service

import (
	"context"
	"errors"

	"countersign/internal/canon"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// Sign-in links open the console in a browser; a session follows them.
const (
	signInLifetime  = ledger.Time(30 * 60 * 1000)
	sessionLifetime = ledger.Time(12 * 60 * 60 * 1000)
	signInPrefix    = "csl_"
	sessionPrefix   = "css_"
)

// CreateSignIn makes a one-time link that signs a browser in as a key of the
// caller's organization.
func (s *Service) CreateSignIn(ctx context.Context, caller *Caller, key ledger.KeyID) (ledger.Secret, error) {
	if err := caller.require(ledger.RoleAdmin); err != nil {
		return ledger.Secret{}, err
	}
	return s.createSignIn(ctx, caller, caller.Org, key)
}

// createSignIn makes a link as a caller, or as the operator where there is none.
// The act is entered first: should the link then not be stored, the log says too
// much, and never too little.
func (s *Service) createSignIn(ctx context.Context, caller *Caller, org ledger.OrgID, id ledger.KeyID) (ledger.Secret, error) {
	text := ledger.NewOpaqueToken(signInPrefix, s.entropy())
	link := &store.SignIn{Hash: ledger.HashToken(text.Reveal()), Key: id.UUID, ExpiresAt: s.now() + signInLifetime}
	err := s.committer.commit(ctx, &act{
		caller: caller, actor: ledger.ActorOperator, org: org,
		needs: func(needs *store.Needs) { needs.Keys = append(needs.Keys, id) },
		change: func(b *batch, _ *ledger.Organization) (*deed, error) {
			key, err := b.keyOf(org, id)
			if err != nil {
				return nil, err
			}
			if !key.Active(b.now) {
				return nil, ledger.ErrNotFound
			}
			return signInDeed(ledger.ActSignInCreate, key, link.ExpiresAt), nil
		},
	})
	if err != nil {
		return ledger.Secret{}, err
	}
	if err := s.store.CreateSignIn(ctx, link); err != nil {
		return ledger.Secret{}, visible(err)
	}
	return text, nil
}

func signInDeed(action string, key *ledger.KeyRecord, expires ledger.Time) *deed {
	return &deed{action: action, target: key.ID.String(), detail: details(func(w *canon.ObjectWriter) {
		w.String("expires_at", expires.String())
		w.StringOrNull("name", key.Name)
		w.String("role", string(key.Role))
	})}
}

var errBadLink = ledger.Errorf(ledger.CodeUnauthenticated, "this sign-in link was used, has expired or never existed; ask an admin for a new one, or make one with countersign keys sign-in KEY_ID")

// SignIn uses up a sign-in link and opens a session. Nobody holds the session
// before the audit log says that it was opened.
func (s *Service) SignIn(ctx context.Context, link string) (session ledger.Secret, expires ledger.Time, err error) {
	session = ledger.NewOpaqueToken(sessionPrefix, s.entropy())
	hash, now := ledger.HashToken(link), s.now()
	used, err := s.store.SignInLink(ctx, hash, now)
	if errors.Is(err, store.ErrNotFound) {
		return ledger.Secret{}, 0, errBadLink
	}
	if err != nil {
		return ledger.Secret{}, 0, visible(err)
	}
	expires = now + sessionLifetime
	opened := &store.SignIn{Hash: ledger.HashToken(session.Reveal()), Key: used.Key, ExpiresAt: expires, Session: true}
	err = s.store.OpenSession(ctx, hash, opened, now)
	if errors.Is(err, store.ErrNotFound) {
		return ledger.Secret{}, 0, errBadLink
	}
	if err == nil {
		err = s.enterSignIn(ctx, ledger.KeyID{UUID: used.Key}, expires)
	}
	if err != nil {
		return ledger.Secret{}, 0, errors.Join(visible(err), s.store.CloseSession(context.WithoutCancel(ctx), opened.Hash))
	}
	return session, expires, nil
}

// enterSignIn enters the use of a link, by the key that it was made for.
func (s *Service) enterSignIn(ctx context.Context, id ledger.KeyID, expires ledger.Time) error {
	key, err := s.store.Key(ctx, id)
	if err != nil {
		return err
	}
	err = s.committer.commit(ctx, &act{caller: callerOf(key), org: key.Org, change: func(*batch, *ledger.Organization) (*deed, error) {
		return signInDeed(ledger.ActSignInUse, key, expires), nil
	}})
	if errors.Is(err, errUnknownKey) { // it was revoked after the link was made
		return errBadLink
	}
	return err
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
	caller := callerOf(key)
	if err := s.admit(key, caller, s.now()); err != nil {
		return nil, err
	}
	return caller, nil
}

// SignOut ends a session and enters that into the audit log. Whatever becomes of the
// entry, the session ends.
func (s *Service) SignOut(ctx context.Context, session string) error {
	hash := ledger.HashToken(session)
	entered := s.enterSignOut(ctx, hash)
	return errors.Join(visible(s.store.CloseSession(ctx, hash)), entered)
}

// enterSignOut enters the end of a session, by the key that it acted for. One that has
// ended already, or whose key has, has nothing to enter.
func (s *Service) enterSignOut(ctx context.Context, hash [32]byte) error {
	in, err := s.store.Session(ctx, hash, s.now())
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return visible(err)
	}
	key, err := s.store.Key(ctx, ledger.KeyID{UUID: in.Key})
	if err != nil {
		return visible(err)
	}
	err = s.committer.commit(ctx, &act{caller: callerOf(key), org: key.Org, change: func(*batch, *ledger.Organization) (*deed, error) {
		return signInDeed(ledger.ActSignInEnd, key, in.ExpiresAt), nil
	}})
	if errors.Is(err, errUnknownKey) {
		return nil
	}
	return err
}
