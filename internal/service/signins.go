package service

import (
	"context"
	"errors"

	"countersign/internal/canon"
	"countersign/internal/evidence"
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
	link := &store.SignIn{Hash: ledger.HashToken(text.Reveal()), Key: id.UUID, Org: org, ExpiresAt: s.now() + signInLifetime}
	made := &act{
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
			return signInDeed(ledger.ActSignInCreate, key, link.ExpiresAt, link, nil), nil
		},
	}
	if err := s.committer.commit(ctx, made); err != nil {
		return ledger.Secret{}, err
	}
	link.Act = made.number
	if err := s.store.CreateSignIn(ctx, link); err != nil {
		return ledger.Secret{}, visible(err)
	}
	return text, nil
}

// signInDeed names the link and the session that an act is about; nil for none.
func signInDeed(action string, key *ledger.KeyRecord, expires ledger.Time, link, session *store.SignIn) *deed {
	return &deed{action: action, target: key.ID.String(), detail: details(func(w *canon.ObjectWriter) {
		w.String("expires_at", expires.String())
		if link != nil {
			w.String("link", evidence.SignInName(link.Hash))
		}
		w.StringOrNull("name", key.Name)
		w.String("role", string(key.Role))
		if session != nil {
			w.String("session", evidence.SignInName(session.Hash))
		}
	})}
}

var errBadLink = ledger.Errorf(ledger.CodeUnauthenticated, "this sign-in link was used, has expired or never existed; ask an admin for a new one, or make one with countersign keys sign-in KEY_ID")

// SignIn uses up a sign-in link and opens a session. The act is entered first, and by it
// the link is used up: a copy of it that somebody puts back opens nothing, and neither does
// the link where the session then cannot be stored.
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
	opened := &store.SignIn{Hash: ledger.HashToken(session.Reveal()), Key: used.Key, Org: used.Org, ExpiresAt: expires, Session: true}
	if opened.Act, err = s.enterSignIn(ctx, used, opened); err != nil {
		return ledger.Secret{}, 0, visible(err)
	}
	err = s.store.OpenSession(ctx, hash, opened, now)
	if errors.Is(err, store.ErrNotFound) {
		return ledger.Secret{}, 0, errBadLink
	}
	if err != nil {
		return ledger.Secret{}, 0, visible(err)
	}
	return session, expires, nil
}

// enterSignIn enters the use of a link, by the key that it was made for, and returns the
// number of the act.
func (s *Service) enterSignIn(ctx context.Context, link, session *store.SignIn) (int64, error) {
	key, err := s.store.Key(ctx, ledger.KeyID{UUID: link.Key})
	if err != nil {
		return 0, err
	}
	use := &act{caller: callerOf(key), org: key.Org, change: func(*batch, *ledger.Organization) (*deed, error) {
		if key.Org != link.Org || !s.store.SignInHeld(link) {
			return nil, errBadLink
		}
		return signInDeed(ledger.ActSignInUse, key, session.ExpiresAt, link, session), nil
	}}
	err = s.committer.commit(ctx, use)
	if errors.Is(err, errUnknownKey) { // it was revoked after the link was made
		return 0, errBadLink
	}
	return use.number, err
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
		return signInDeed(ledger.ActSignInEnd, key, in.ExpiresAt, nil, in), nil
	}})
	if errors.Is(err, errUnknownKey) {
		return nil
	}
	return err
}
