package evidence

import (
	"context"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// A sign-in belongs to a key and not to an organization: it is sealed for none.
var noOrganization ledger.OrgID

func encodeSignIn(in *store.SignIn) []byte {
	r := make(record, 0, 128)
	r.bytes(in.Hash[:])
	r.bytes(in.Key[:])
	r.time(in.ExpiresAt)
	r.flag(in.Session)
	return r
}

func (s *Store) sealSignIn(in *store.SignIn) error {
	if s.keys == nil {
		return errNoKeys
	}
	in.MAC = s.seal(noOrganization, ledger.PurposeSignIn, encodeSignIn(in))
	return nil
}

func (s *Store) soundSignIn(in *store.SignIn, err error) (*store.SignIn, error) {
	if err == nil {
		err = s.check("a sign-in", noOrganization, ledger.PurposeSignIn, in.MAC, encodeSignIn(in))
	}
	if err != nil {
		return nil, err
	}
	return in, nil
}

// CreateSignIn implements store.SignIns.
func (s *Store) CreateSignIn(ctx context.Context, link *store.SignIn) error {
	if err := s.sealSignIn(link); err != nil {
		return err
	}
	return s.port.CreateSignIn(ctx, link)
}

// SignInLink implements store.SignIns.
func (s *Store) SignInLink(ctx context.Context, link [32]byte, now ledger.Time) (*store.SignIn, error) {
	return s.soundSignIn(s.port.SignInLink(ctx, link, now))
}

// OpenSession implements store.SignIns.
func (s *Store) OpenSession(ctx context.Context, link [32]byte, session *store.SignIn, now ledger.Time) error {
	if err := s.sealSignIn(session); err != nil {
		return err
	}
	return s.port.OpenSession(ctx, link, session, now)
}

// Session implements store.SignIns.
func (s *Store) Session(ctx context.Context, session [32]byte, now ledger.Time) (*store.SignIn, error) {
	return s.soundSignIn(s.port.Session(ctx, session, now))
}
