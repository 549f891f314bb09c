package evidence

import (
	"context"
	"errors"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// noOrganization seals rows that do not belong to an organization, such as sign-ins, which belong
// to a key.
var noOrganization ledger.OrgID

func encodeSignIn(in *store.SignIn) []byte {
	r := make(record, 0, 128)
	r.bytes(in.Hash[:])
	r.bytes(in.Key[:])
	r.time(in.ExpiresAt)
	r.flag(in.Session)
	r.bytes(in.Org.UUID[:])
	// The identity was added later, and a row without one keeps the encoding that it had. The act is
	// always written in front of an identity, so that no encoding with one equals one without.
	if in.SignInAs == "" {
		r.act(in.Act)
		return r
	}
	r.int(in.Act)
	r.text(in.SignInAs)
	return r
}

func (s *Store) sealSignIn(in *store.SignIn) error {
	if s.keys == nil {
		return errNoKeys
	}
	in.MAC = s.seal(noOrganization, ledger.PurposeSignIn, encodeSignIn(in))
	return nil
}

// soundSignIn returns a link or session that is authentic and current. One that is stale was used
// or has ended. Its act is recorded before its row is written, so a stale row is no sign of
// tampering.
func (s *Store) soundSignIn(ctx context.Context, read func() (*store.SignIn, error)) (*store.SignIn, error) {
	check := func(in *store.SignIn) error {
		return s.check("a sign-in", noOrganization, ledger.PurposeSignIn, in.MAC, encodeSignIn(in))
	}
	return readOneCurrent(ctx, s, read, check, signInRef, func(in *store.SignIn, err error) (*store.SignIn, error) {
		if check(in) == nil && !errors.Is(err, errLog) {
			err = store.ErrNotFound
		}
		return nil, err
	})
}

// IsCurrentSignIn reports whether a link or session is current, inside a transaction that has
// loaded its organization.
func (s *Store) IsCurrentSignIn(in *store.SignIn) bool { return s.checkCurrent(signInRef(in)) == nil }

// CreateSignIn implements store.SignIns.
func (s *Store) CreateSignIn(ctx context.Context, link *store.SignIn) error {
	if err := s.sealSignIn(link); err != nil {
		return err
	}
	return s.port.CreateSignIn(ctx, link)
}

// SignInLink implements store.SignIns.
func (s *Store) SignInLink(ctx context.Context, link [32]byte, now ledger.Time) (*store.SignIn, error) {
	return s.soundSignIn(ctx, func() (*store.SignIn, error) { return s.port.SignInLink(ctx, link, now) })
}

// OpenSession implements store.SignIns.
func (s *Store) OpenSession(ctx context.Context, link [32]byte, session *store.SignIn, now ledger.Time) error {
	if err := s.sealSignIn(session); err != nil {
		return err
	}
	return s.port.OpenSession(ctx, link, session, now)
}

// CreateSession implements store.SignIns.
func (s *Store) CreateSession(ctx context.Context, session *store.SignIn, now ledger.Time) error {
	if err := s.sealSignIn(session); err != nil {
		return err
	}
	return s.port.CreateSession(ctx, session, now)
}

// Session implements store.SignIns.
func (s *Store) Session(ctx context.Context, session [32]byte, now ledger.Time) (*store.SignIn, error) {
	return s.soundSignIn(ctx, func() (*store.SignIn, error) { return s.port.Session(ctx, session, now) })
}
