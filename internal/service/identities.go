package service

import (
	"context"
	"errors"

	"countersign/internal/canon"
	"countersign/internal/evidence"
	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// Identity is a person as an identity provider has proven them by single sign-on.
type Identity struct {
	Issuer   string
	Subject  string
	SignInAs string // what keys name, in its normal form
}

// maxIdentityKeys bounds the keys that one identity can choose among.
const maxIdentityKeys = 100

// readSignInAs reads who signs in as a key.
func readSignInAs(f *canon.Fields) string {
	const member = "sign_in_as"
	given := f.FilledText(member, ledger.MaxSignInAs)
	if given == "" {
		return ""
	}
	normal, ok := ledger.NormalSignInAs(given)
	if !ok {
		f.Fault(member, "must have 1 to %d visible ASCII characters and no space, such as an e-mail address; "+
			"if the identity provider's names have others, let the server use another claim, such as sub", ledger.MaxSignInAs)
	}
	return normal
}

// readSlackMember reads who decides with a key in Slack.
func readSlackMember(f *canon.Fields) string {
	const member = "slack_member"
	given := f.FilledText(member, maxSlackMember)
	if given != "" && !ledger.IsSlackMember(given) {
		f.Fault(member, ledger.SlackMemberForm)
	}
	return given
}

const (
	maxSlackMember = 63 // the longest that has the form

	agentsDoNotSignIn = "must be absent for the role agent: agents do not sign in"
	agentsDoNotDecide = "must be absent for the role agent: agents do not decide"
)

// KeyUpdate changes an API key. A member that is nil is left as it is.
type KeyUpdate struct {
	Key         ledger.KeyID
	SignInAs    *string // in its normal form; "" for nobody
	SlackMember *string // "" for nobody

	// undoes is the key after the change that this one takes back; nil for none. Whom somebody else
	// has changed since is left as they are.
	undoes *ledger.KeyRecord
}

// ParseKeyUpdate reads the body of a request that changes an API key.
func ParseKeyUpdate(v canon.Value) (*KeyUpdate, error) {
	f, update := canon.NewFields(v), &KeyUpdate{}
	if f.Given("sign_in_as") {
		update.SignInAs = new(readSignInAs(f))
	}
	if f.Given("slack_member") {
		update.SlackMember = new(readSlackMember(f))
	}
	if update.SignInAs == nil && update.SlackMember == nil {
		f.Fault("sign_in_as", "is required if slack_member is absent: an identity, or null for nobody")
	}
	if err := f.Err(); err != nil {
		return nil, err
	}
	return update, nil
}

// UpdateAPIKey changes who signs in as a key of the caller's organization, or who decides with it in
// Slack. Sessions that somebody else opened by single sign-on work no more; those that a link opened
// stay open. It is idempotent.
func (s *accountService) UpdateAPIKey(ctx context.Context, caller *Caller, update *KeyUpdate) (*ledger.KeyRecord, error) {
	if err := caller.require(ledger.RoleAdmin); err != nil {
		return nil, err
	}
	return s.updateKey(ctx, caller, caller.Org, update)
}

// updateKey changes a key on behalf of the caller, or of the operator if caller is nil. If a person
// is given to two keys concurrently, both may be stored before either request sees the other. Then
// each takes its change back.
func (s *accountService) updateKey(ctx context.Context, caller *Caller, org ledger.OrgID, update *KeyUpdate) (*ledger.KeyRecord, error) {
	wanted := &KeyRequest{}
	if update.SignInAs != nil {
		wanted.SignInAs = *update.SignInAs
	}
	if update.SlackMember != nil {
		wanted.SlackMember = *update.SlackMember
	}
	if err := s.namesFree(ctx, org, wanted, update.Key); err != nil {
		return nil, err
	}
	op, updated, before := s.keyUpdate(caller, org, update)
	if err := s.committer.commit(ctx, op); err != nil {
		return nil, err
	}
	if taken := s.namesFree(ctx, org, wanted, update.Key); taken != nil && before.people() != updated.people() {
		undo, _, _ := s.keyUpdate(caller, org, &KeyUpdate{Key: update.Key, SignInAs: &before.SignInAs, SlackMember: &before.SlackMember, undoes: updated.KeyRecord})
		return nil, errors.Join(taken, s.committer.commit(ctx, undo))
	}
	return updated.KeyRecord, nil
}

// keyOfPeople is a key with whom it names.
type keyOfPeople struct{ *ledger.KeyRecord }

func (k keyOfPeople) people() [2]string { return [2]string{k.SignInAs, k.SlackMember} }

// keyUpdate returns the act that changes a key. The records after and before it are set when it is
// committed.
func (s *accountService) keyUpdate(caller *Caller, org ledger.OrgID, update *KeyUpdate) (op *act, updated, before keyOfPeople) {
	updated, before = keyOfPeople{new(ledger.KeyRecord)}, keyOfPeople{new(ledger.KeyRecord)}
	op = &act{caller: caller, actor: ledger.ActorOperator, org: org}
	op.needs = func(needs *store.Needs) { needs.Keys = append(needs.Keys, update.Key) }
	op.change = func(b *batch, _ *ledger.Organization) (*auditEntry, error) {
		key, err := b.keyOf(org, update.Key)
		if err != nil {
			return nil, err
		}
		changed := *key
		if update.SignInAs != nil && (update.undoes == nil || key.SignInAs == update.undoes.SignInAs) {
			changed.SignInAs = *update.SignInAs
		}
		if update.SlackMember != nil && (update.undoes == nil || key.SlackMember == update.undoes.SlackMember) {
			changed.SlackMember = *update.SlackMember
		}
		*updated.KeyRecord, *before.KeyRecord = changed, *key
		switch status := key.Status(b.now); {
		case updated.people() == before.people():
			return nil, nil
		case status != ledger.APIKeyActive:
			return nil, fault.Errorf(fault.CodeAPIKeyEnded, "the key is %s, and nobody can sign in as it or decide with it: make a new key", status)
		case !key.Role.Includes(ledger.RoleMember) && changed.SignInAs != key.SignInAs:
			return nil, fault.Invalid(fault.FieldError{Pointer: "/sign_in_as", Detail: agentsDoNotSignIn})
		case !key.Role.Includes(ledger.RoleMember):
			return nil, fault.Invalid(fault.FieldError{Pointer: "/slack_member", Detail: agentsDoNotDecide})
		}
		b.putKey(&changed)
		return keyUpdateAuditEntry(key, &changed), nil
	}
	return op, updated, before
}

func keyUpdateAuditEntry(before, after *ledger.KeyRecord) *auditEntry {
	return &auditEntry{action: ledger.ActKeyUpdate, target: after.ID.String(), detail: details(func(w *canon.ObjectWriter) {
		w.StringOrNull("name", after.Name)
		w.String("role", string(after.Role))
		if before.SignInAs != after.SignInAs {
			writeChange(w, "sign_in_as", before.SignInAs, after.SignInAs)
		}
		if before.SlackMember != after.SlackMember {
			writeChange(w, "slack_member", before.SlackMember, after.SlackMember)
		}
	})}
}

// IdentityKey is a key as which an identity can sign in.
type IdentityKey struct {
	Key          ledger.KeyID
	Name         string
	Role         ledger.Role
	Organization string // its name, which its admins choose: others may have the same
	Slug         string // of the organization, which no other has
}

// IdentityKeys lists the keys as which an identity can sign in, of all organizations, by id. The
// identity must have been proven. A key that was tampered with is not among them, nor one of an
// organization that was.
func (s *accountService) IdentityKeys(ctx context.Context, who *Identity) ([]IdentityKey, error) {
	keys, err := s.store.KeysBySignInAs(ctx, who.SignInAs, s.now(), maxIdentityKeys)
	if err != nil {
		return nil, visible(err)
	}
	var found []IdentityKey
	for _, key := range keys {
		if key.Tampered {
			s.findings.noteFailingRows(ctx, key.Org)
			continue
		}
		if !signsInAs(key, who, s.now()) {
			continue
		}
		org, err := s.store.CurrentOrganization(ctx, key.Org)
		if errors.Is(err, ledger.ErrStateTampered) || errors.Is(err, evidence.ErrRolledBack) {
			s.findings.NoteTampering(key.Org, err)
			continue // it must not keep people out of other organizations
		}
		if err != nil {
			return nil, visible(err)
		}
		found = append(found, IdentityKey{Key: key.ID, Name: key.Name, Role: key.Role, Organization: org.Name, Slug: org.Slug})
	}
	return found, nil
}

// signsInAs reports whether an identity can sign in as a key.
func signsInAs(key *ledger.KeyRecord, who *Identity, now ledger.Time) bool {
	return who.SignInAs != "" && key.SignInAs == who.SignInAs && key.Active(now) && key.Role.Includes(ledger.RoleMember)
}

var errNotThisKey = fault.Errorf(fault.CodeUnauthenticated, "no active API key with that id is for this identity; sign in again, or ask an admin")

// SignInByIdentity opens a session of a key for a proven identity. As with a link, the act is
// committed first: if the session cannot be stored afterwards, the audit log has an entry too many.
func (s *accountService) SignInByIdentity(ctx context.Context, who *Identity, id ledger.KeyID) (session ledger.Secret, expires ledger.Time, err error) {
	key, err := s.store.Key(ctx, id)
	if errors.Is(err, store.ErrNotFound) || err == nil && !signsInAs(key, who, s.now()) {
		return ledger.Secret{}, 0, errNotThisKey
	}
	if err != nil {
		return ledger.Secret{}, 0, visible(err)
	}
	now := s.now()
	session, expires = ledger.NewOpaqueToken(sessionPrefix, s.entropy()), now.Add(sessionLifetime)
	opened := &store.SignIn{Hash: ledger.HashToken(session.Reveal()), Key: id.UUID, Org: key.Org, ExpiresAt: expires, Session: true, SignInAs: who.SignInAs}
	use := &act{caller: callerOf(key), org: key.Org, change: func(b *batch, _ *ledger.Organization) (*auditEntry, error) {
		current, err := b.keyOf(key.Org, id)
		if err != nil {
			return nil, err
		}
		if !signsInAs(current, who, b.now) {
			return nil, errNotThisKey
		}
		return signInAuditEntry(ledger.ActSignInUse, current, &signInDetail{expires: expires, session: opened, by: who}), nil
	}}
	err = s.committer.commit(ctx, use)
	if errors.Is(err, errUnknownKey) { // it was revoked meanwhile
		err = errNotThisKey
	}
	if err != nil {
		return ledger.Secret{}, 0, err
	}
	opened.Act = use.number
	if err := s.store.CreateSession(ctx, opened, now); err != nil {
		return ledger.Secret{}, 0, visible(err)
	}
	return session, expires, nil
}
