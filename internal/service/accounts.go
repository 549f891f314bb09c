package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"countersign/internal/canon"
	"countersign/internal/evidence"
	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/notify"
	"countersign/internal/store"
	"countersign/internal/verify"
)

// accountService manages organizations, API keys, sign-ins and the kill switch.
type accountService struct {
	*shared
	findings *findingService
}

// Organization returns the caller's organization.
func (s *accountService) Organization(ctx context.Context, caller *Caller) (*ledger.Organization, error) {
	if err := s.authorize(ctx, caller, ledger.RoleMember); err != nil {
		return nil, err
	}
	return s.organization(ctx, caller.Org)
}

// organization returns an organization, which must be as the last act left it.
func (s *shared) organization(ctx context.Context, id ledger.OrgID) (*ledger.Organization, error) {
	org, err := s.store.CurrentOrganization(ctx, id)
	return org, visible(err)
}

// organizations lists all organizations. One that fails authentication becomes a finding and
// is still listed, so that its ledger is checked.
func (s *findingService) organizations(ctx context.Context) ([]*ledger.Organization, error) {
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

// UpdateOrganization replaces the settings named in the request. It returns once no action
// that the old settings allowed can begin.
func (s *accountService) UpdateOrganization(ctx context.Context, caller *Caller, request canon.Value) (*ledger.Organization, error) {
	var patched ledger.Organization
	err := s.governStop(ctx, caller, func(b *batch, org *ledger.Organization) (*auditEntry, error) {
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
			return nil, err // nothing changed
		}
		if patched.Settings.AbandonHours() != org.Settings.AbandonHours() {
			// Apply the new setting now, not when the next scheduled job runs.
			b.changes.NewJobs = append(b.changes.NewJobs, abandonJob(org.ID, "", b.now))
		}
		entry, err := organizationAuditEntry(org, &patched)
		*org = patched
		return entry, err
	})
	if err != nil {
		return nil, err
	}
	return &patched, nil
}

// KeyRequest asks for an API key.
type KeyRequest struct {
	Name     string
	Role     ledger.Role
	Agents   []string // agents that the key may record for; empty for any
	Owner    string
	SignInAs string // in its normal form; "" for nobody
	// SlackMember is who decides with the key in Slack; "" for nobody.
	SlackMember string
	ExpiresAt   *ledger.Time // nil for never
}

// Bounds of an API key's attributes.
const (
	maxKeyName   = 200 // characters, of the name and of the owner
	maxKeyAgents = 100
)

// ParseKeyRequest reads the body of a request that creates an API key.
func ParseKeyRequest(v canon.Value) (*KeyRequest, error) {
	f := canon.NewFields(v)
	request := &KeyRequest{
		Name: f.Name("name", maxKeyName), Role: ledger.Role(f.OneOf("role", string(ledger.RoleAgent), string(ledger.RoleMember), string(ledger.RoleAdmin))),
		Agents: ledger.ReadAgentNames(f, "agents", maxKeyAgents), Owner: f.Name("owner", maxKeyName), ExpiresAt: ledger.ReadTime(f, "expires_at"),
		SignInAs: readSignInAs(f), SlackMember: readSlackMember(f),
	}
	if request.SignInAs != "" && request.Role == ledger.RoleAgent {
		f.Fault("sign_in_as", agentsDoNotSignIn)
	}
	if request.SlackMember != "" && request.Role == ledger.RoleAgent {
		f.Fault("slack_member", agentsDoNotDecide)
	}
	if !f.Has("role") {
		f.Fault("role", "is required: agent, member or admin")
	}
	if err := f.Err(); err != nil {
		return nil, err
	}
	return request, nil
}

// NewKey is a key's record with its text, which is not stored anywhere.
type NewKey struct {
	Record *ledger.KeyRecord
	Text   ledger.Secret
}

// CreateAPIKey issues a key for the caller's organization.
func (s *accountService) CreateAPIKey(ctx context.Context, caller *Caller, request *KeyRequest) (*NewKey, error) {
	if err := caller.require(ledger.RoleAdmin); err != nil {
		return nil, err
	}
	return s.issueKey(ctx, caller, caller.Org, request)
}

// issueKey issues a key on behalf of the caller, or of the operator if caller is nil. If two
// keys with the same name or identity are issued concurrently, both may be stored before either request
// sees the other. Then both are revoked, and neither text is returned.
func (s *accountService) issueKey(ctx context.Context, caller *Caller, org ledger.OrgID, request *KeyRequest) (*NewKey, error) {
	if err := s.namesFree(ctx, org, request, ledger.KeyID{}); err != nil {
		return nil, err
	}
	key, err := s.storeKey(ctx, caller, org, request)
	if err != nil {
		return nil, err
	}
	if taken := s.namesFree(ctx, org, request, key.Record.ID); taken != nil {
		op, _ := s.revocation(caller, org, key.Record.ID)
		// No stop is needed: nobody knows the key's text.
		return nil, errors.Join(taken, s.committer.commit(ctx, op))
	}
	return key, nil
}

// namesFree fails if another active key has the requested name, or if the same identity signs in
// as it, or the same Slack member decides with it. Lists of approvers contain names, so only agents,
// which decide nothing, may share one.
func (s *accountService) namesFree(ctx context.Context, org ledger.OrgID, request *KeyRequest, own ledger.KeyID) error {
	if request.Name == "" && request.SignInAs == "" && request.SlackMember == "" {
		return nil
	}
	keys, err := s.store.AllKeys(ctx, org)
	if err != nil {
		return visible(err)
	}
	for _, key := range keys {
		decides := key.Role.Includes(ledger.RoleMember) || request.Role.Includes(ledger.RoleMember)
		if key.ID == own || !key.Active(s.now()) {
			continue
		}
		if request.SignInAs != "" && key.SignInAs == request.SignInAs {
			return fault.Errorf(fault.CodeIdentityTaken,
				"%s is for %s already: choose another identity, or change or revoke that key first", named(key), key.SignInAs)
		}
		if request.SlackMember != "" && key.SlackMember == request.SlackMember {
			return fault.Errorf(fault.CodeIdentityTaken,
				"%s is for the Slack member %s already: enter another member, or change or revoke that key first", named(key), key.SlackMember)
		}
		if request.Name != "" && key.Name == request.Name && decides {
			return fault.Errorf(fault.CodeNameTaken,
				"an active key has the name %q already, and names say who may approve: choose another name, or revoke that key first", key.Name)
		}
	}
	return nil
}

// named names a key that is active by its name, because commands mask ids.
func named(key *ledger.KeyRecord) string {
	if key.Name == "" {
		return "the active key " + key.ID.String()
	}
	return fmt.Sprintf("the active key %q", key.Name)
}

func (s *accountService) storeKey(ctx context.Context, caller *Caller, org ledger.OrgID, request *KeyRequest) (*NewKey, error) {
	key, err := s.newKey(org, request)
	if err != nil {
		return nil, err
	}
	err = s.committer.commit(ctx, &act{caller: caller, actor: ledger.ActorOperator, org: org, change: func(b *batch, _ *ledger.Organization) (*auditEntry, error) {
		if expires := key.Record.ExpiresAt; expires != nil {
			if *expires <= b.now {
				return nil, fault.Invalid(fault.FieldError{Pointer: "/expires_at", Detail: "must be in the future"})
			}
			b.changes.NewJobs = append(b.changes.NewJobs, expiryJob(key.Record))
		}
		b.changes.NewKeys = append(b.changes.NewKeys, key.Record)
		return keyAuditEntry(ledger.ActKeyCreate, key.Record, "", ""), nil
	}})
	if err != nil {
		return nil, err
	}
	return key, nil
}

// keyAuditEntry describes an API key and, if it has ended, the change of its status.
func keyAuditEntry(action string, key *ledger.KeyRecord, from, to string) *auditEntry {
	return &auditEntry{action: action, target: key.ID.String(), detail: details(func(w *canon.ObjectWriter) {
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
		if key.SignInAs != "" {
			w.String("sign_in_as", key.SignInAs)
		}
		if key.SlackMember != "" {
			w.String("slack_member", key.SlackMember)
		}
		if from != to {
			writeChange(w, "status", from, to)
		}
	})}
}

func (s *accountService) newKey(org ledger.OrgID, request *KeyRequest) (*NewKey, error) {
	text, parsed, err := s.newSecret()
	if err != nil {
		return nil, err
	}
	record := &ledger.KeyRecord{
		ID:  ledger.KeyID{UUID: s.timedID(s.now())},
		Org: org, Name: request.Name, Role: request.Role, Hash: parsed.Hash(), Hint: parsed.Hint(), CreatedAt: s.now(),
		Agents: request.Agents, Owner: request.Owner, SignInAs: request.SignInAs, SlackMember: request.SlackMember,
		ExpiresAt: request.ExpiresAt,
	}
	return &NewKey{Record: record, Text: text}, nil
}

// newSecret generates the text of an API key.
func (s *accountService) newSecret() (ledger.Secret, ledger.APIKey, error) {
	text := ledger.NewAPIKey(s.entropy())
	parsed, err := ledger.ParseAPIKey(text.Reveal())
	return text, parsed, err
}

// APIKeys lists the organization's keys, oldest first.
func (s *accountService) APIKeys(ctx context.Context, caller *Caller, after ledger.KeyID, limit int) ([]*ledger.KeyRecord, error) {
	if err := s.authorize(ctx, caller, ledger.RoleAdmin); err != nil {
		return nil, err
	}
	keys, err := s.store.Keys(ctx, caller.Org, after, limit)
	if slices.ContainsFunc(keys, func(key *ledger.KeyRecord) bool { return key.Tampered }) {
		s.findings.noteFailingRows(ctx, caller.Org)
	}
	return keys, visible(err)
}

// noteFailingRows records findings for an organization's rows outside of chains that fail
// authentication.
func (s *findingService) noteFailingRows(ctx context.Context, org ledger.OrgID) {
	const limit = 20 // the daily self-check finds the rest
	failing, err := s.store.FailingRows(ctx, org, limit, nil)
	if err != nil {
		s.log.Error("listing the rows that fail authentication failed: the daily self-check tries again", "error", err)
	}
	for i := range failing {
		s.noteFinding(pendingFinding{org: org, tampering: verify.RowChanged(&failing[i]), notify: true})
	}
}

// RevokeAPIKey revokes a key. It returns once no action that the key was allowed can begin.
// It is idempotent.
func (s *accountService) RevokeAPIKey(ctx context.Context, caller *Caller, id ledger.KeyID) (*ledger.KeyRecord, error) {
	if err := caller.require(ledger.RoleAdmin); err != nil {
		return nil, err
	}
	return s.revokeKey(ctx, caller, caller.Org, id)
}

func (s *accountService) revokeKey(ctx context.Context, caller *Caller, org ledger.OrgID, id ledger.KeyID) (*ledger.KeyRecord, error) {
	op, revoked := s.revocation(caller, org, id)
	err := s.commitStop(ctx, op)
	s.callers.forget(id)
	if err != nil {
		return nil, err
	}
	return revoked, nil
}

// revocation returns the act that revokes a key, and the key's record, which is set when the
// act is committed.
func (s *accountService) revocation(caller *Caller, org ledger.OrgID, id ledger.KeyID) (*act, *ledger.KeyRecord) {
	revoked := new(ledger.KeyRecord)
	op := &act{caller: caller, actor: ledger.ActorOperator, org: org}
	op.needs = func(needs *store.Needs) { needs.Keys = append(needs.Keys, id) }
	op.change = func(b *batch, _ *ledger.Organization) (*auditEntry, error) {
		key, err := b.keyOf(org, id)
		if err != nil {
			return nil, err
		}
		if *revoked = *key; key.RevokedAt != nil {
			return nil, nil // the time of the first revocation is kept
		}
		now := b.now
		revoked.RevokedAt = &now
		b.putKey(revoked)
		return keyAuditEntry(ledger.ActKeyRevoke, revoked, string(key.Status(now)), string(revoked.Status(now))), nil
	}
	return op, revoked
}

// KillSwitch returns the state of the kill switch of the caller's organization.
func (s *accountService) KillSwitch(ctx context.Context, caller *Caller) (*ledger.KillSwitch, error) {
	org, err := s.Organization(ctx, caller)
	if err != nil {
		return nil, err
	}
	return &org.Controls.KillSwitch, nil
}

// ParseKillSwitchReason reads the body of a request that activates the switch.
func ParseKillSwitchReason(v canon.Value) (string, error) {
	f := canon.NewFields(v)
	reason := f.RequiredName("reason", 500)
	return reason, f.Err()
}

// ActivateKillSwitch stops all agents. When it returns, no replica allows an action, because
// it has waited for those being recorded, and no client begins one that was allowed before,
// because all leases have expired. It is idempotent: the first reason is kept.
func (s *accountService) ActivateKillSwitch(ctx context.Context, caller *Caller, reason string) (*ledger.KillSwitch, error) {
	return s.switchTo(ctx, caller, true, reason, nil)
}

// DeactivateKillSwitch lets agents act again. It is idempotent.
func (s *accountService) DeactivateKillSwitch(ctx context.Context, caller *Caller) (*ledger.KillSwitch, error) {
	return s.switchTo(ctx, caller, false, "", nil)
}

// EndActivation is DeactivateKillSwitch for the activation that was made at the given time. It fails
// if another one is in force by now.
func (s *accountService) EndActivation(ctx context.Context, caller *Caller, made ledger.Time) (*ledger.KillSwitch, error) {
	return s.switchTo(ctx, caller, false, "", &made)
}

var errOtherActivation = fault.Errorf(fault.CodeKillSwitchActive, "the kill switch was activated again meanwhile, and it was not deactivated")

// switchTo turns the kill switch on or off. If made is not nil, it ends no activation but that of this
// time.
func (s *accountService) switchTo(ctx context.Context, caller *Caller, active bool, reason string, made *ledger.Time) (*ledger.KillSwitch, error) {
	action, kind, govern := ledger.ActKillSwitchDeactivate, notify.KillSwitchDeactivated, s.govern
	if active {
		action, kind, govern = ledger.ActKillSwitchActivate, notify.KillSwitchActivated, s.governStop
	}
	var result ledger.KillSwitch
	err := govern(ctx, caller, func(b *batch, org *ledger.Organization) (*auditEntry, error) {
		k := &org.Controls.KillSwitch
		if k.Active && made != nil && !sameTime(made, k.ChangedAt) {
			return nil, errOtherActivation
		}
		if k.Active != active {
			now, before := b.now, *k
			*k = ledger.KillSwitch{Active: active, Reason: reason, ChangedAt: &now, ChangedBy: caller.Name}
			b.queueNotice(org, notify.Notice{Kind: kind, Reviewer: caller.Name, Reason: reason}, "")
			result = *k
			return killSwitchAuditEntry(action, &before, k), nil
		}
		result = *k
		return nil, nil
	})
	if err != nil {
		return nil, err
	}
	return &result, nil
}

// killSwitchAuditEntry describes an activation with its reason, or a deactivation with the
// activation that it ends.
func killSwitchAuditEntry(action string, before, after *ledger.KillSwitch) *auditEntry {
	word := func(k *ledger.KillSwitch) string {
		if k.Active {
			return "active"
		}
		return "inactive"
	}
	return &auditEntry{action: action, detail: details(func(w *canon.ObjectWriter) {
		if before.Active {
			w.StringOrNull("activated_at", formatTime(before.ChangedAt))
			w.StringOrNull("activated_by", before.ChangedBy)
			w.StringOrNull("activated_for", before.Reason)
		} else {
			w.StringOrNull("reason", after.Reason)
		}
		writeChange(w, "status", word(before), word(after))
	})}
}

// A sign-in link opens a session of the console in a browser.
const (
	signInLifetime  = 30 * time.Minute
	sessionLifetime = 12 * time.Hour
	signInPrefix    = "csl_"
	sessionPrefix   = "css_"
)

// CreateSignIn creates a one-time link that signs a browser in with a key of the caller's
// organization.
func (s *accountService) CreateSignIn(ctx context.Context, caller *Caller, key ledger.KeyID) (ledger.Secret, error) {
	if err := caller.require(ledger.RoleAdmin); err != nil {
		return ledger.Secret{}, err
	}
	return s.createSignIn(ctx, caller, caller.Org, key)
}

// createSignIn creates a link on behalf of the caller, or of the operator if caller is nil.
// The act is committed first: if the link cannot be stored afterwards, the audit log has an
// entry too many, but never one too few.
func (s *accountService) createSignIn(ctx context.Context, caller *Caller, org ledger.OrgID, id ledger.KeyID) (ledger.Secret, error) {
	text := ledger.NewOpaqueToken(signInPrefix, s.entropy())
	link := &store.SignIn{Hash: ledger.HashToken(text.Reveal()), Key: id.UUID, Org: org, ExpiresAt: s.now().Add(signInLifetime)}
	creation := &act{
		caller: caller, actor: ledger.ActorOperator, org: org,
		needs: func(needs *store.Needs) { needs.Keys = append(needs.Keys, id) },
		change: func(b *batch, _ *ledger.Organization) (*auditEntry, error) {
			key, err := b.keyOf(org, id)
			if err != nil {
				return nil, err
			}
			if !key.Active(b.now) {
				return nil, fault.ErrNotFound
			}
			return signInAuditEntry(ledger.ActSignInCreate, key, &signInDetail{expires: link.ExpiresAt, link: link}), nil
		},
	}
	if err := s.committer.commit(ctx, creation); err != nil {
		return ledger.Secret{}, err
	}
	link.Act = creation.number
	if err := s.store.CreateSignIn(ctx, link); err != nil {
		return ledger.Secret{}, visible(err)
	}
	return text, nil
}

// signInDetail is what an act about a sign-in says besides its key.
type signInDetail struct {
	expires ledger.Time
	link    *store.SignIn // nil: none
	session *store.SignIn // nil: none
	by      *Identity     // nil unless it came by single sign-on
}

func signInAuditEntry(action string, key *ledger.KeyRecord, in *signInDetail) *auditEntry {
	return &auditEntry{action: action, target: key.ID.String(), detail: details(func(w *canon.ObjectWriter) {
		w.String("expires_at", in.expires.String())
		if in.by != nil {
			w.String("issuer", in.by.Issuer)
		}
		if in.link != nil {
			w.String("link", evidence.SignInName(in.link.Hash))
		}
		w.StringOrNull("name", key.Name)
		w.String("role", string(key.Role))
		if in.session != nil {
			w.String("session", evidence.SignInName(in.session.Hash))
		}
		if in.by != nil {
			w.String("sign_in_as", in.by.SignInAs)
			w.String("subject", in.by.Subject)
		}
	})}
}

var errBadLink = fault.Errorf(fault.CodeUnauthenticated, "this sign-in link was used, has expired or never existed; ask an admin for a new one, or make one with countersign keys sign-in KEY_ID")

// SignIn uses a sign-in link to open a session. The act is committed first and marks the link
// as used, so a copy of the link's row that an attacker restores opens nothing. If the session
// cannot be stored afterwards, the link is used up.
func (s *accountService) SignIn(ctx context.Context, link string) (session ledger.Secret, expires ledger.Time, err error) {
	session = ledger.NewOpaqueToken(sessionPrefix, s.entropy())
	hash, now := ledger.HashToken(link), s.now()
	used, err := s.store.SignInLink(ctx, hash, now)
	if errors.Is(err, store.ErrNotFound) {
		return ledger.Secret{}, 0, errBadLink
	}
	if err != nil {
		return ledger.Secret{}, 0, visible(err)
	}
	expires = now.Add(sessionLifetime)
	opened := &store.SignIn{Hash: ledger.HashToken(session.Reveal()), Key: used.Key, Org: used.Org, ExpiresAt: expires, Session: true}
	if opened.Act, err = s.logSignIn(ctx, used, opened); err != nil {
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

// logSignIn records in the audit log that a link was used, with the link's key as the actor.
// It returns the number of the act.
func (s *accountService) logSignIn(ctx context.Context, link, session *store.SignIn) (int64, error) {
	key, err := s.store.Key(ctx, ledger.KeyID{UUID: link.Key})
	if err != nil {
		return 0, err
	}
	use := &act{caller: callerOf(key), org: key.Org, change: func(*batch, *ledger.Organization) (*auditEntry, error) {
		if key.Org != link.Org || !s.store.IsCurrentSignIn(link) {
			return nil, errBadLink
		}
		return signInAuditEntry(ledger.ActSignInUse, key, &signInDetail{expires: session.ExpiresAt, link: link, session: session}), nil
	}}
	err = s.committer.commit(ctx, use)
	if errors.Is(err, errUnknownKey) { // it was revoked after the link was created
		return 0, errBadLink
	}
	return use.number, err
}

// SessionCaller returns the caller of a browser session.
func (s *accountService) SessionCaller(ctx context.Context, session string) (*Caller, error) {
	in, err := s.store.Session(ctx, ledger.HashToken(session), s.now())
	if err != nil {
		return nil, visible(err)
	}
	key, err := s.store.Key(ctx, ledger.KeyID{UUID: in.Key})
	if err != nil {
		return nil, visible(err)
	}
	caller := callerOf(key)
	caller.signInAs = in.SignInAs
	if err := s.admit(key, caller, s.now()); err != nil {
		return nil, err
	}
	return caller, nil
}

// SignOut ends a session and records that in the audit log. The session ends even if the
// entry cannot be written.
func (s *accountService) SignOut(ctx context.Context, session string) error {
	hash := ledger.HashToken(session)
	logged := s.logSignOut(ctx, hash)
	return errors.Join(visible(s.store.CloseSession(ctx, hash)), logged)
}

// logSignOut records in the audit log that a session ended, with the session's key as the
// actor. It records nothing if the session or its key has already ended.
func (s *accountService) logSignOut(ctx context.Context, hash [32]byte) error {
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
	err = s.committer.commit(ctx, &act{caller: callerOf(key), org: key.Org, change: func(*batch, *ledger.Organization) (*auditEntry, error) {
		return signInAuditEntry(ledger.ActSignInEnd, key, &signInDetail{expires: in.ExpiresAt, session: in}), nil
	}})
	if errors.Is(err, errUnknownKey) {
		return nil
	}
	return err
}

// commitStop commits an act that can make decisions stricter. It returns once no action that
// was allowed before can begin: every allow is a lease, and all leases have expired. The act
// is in force from its commit on, whether or not the caller waits. An act that changed
// nothing also waits, because the request that did make the change may still be waiting.
func (s *shared) commitStop(ctx context.Context, op *act) error {
	if err := s.committer.commitFirst(ctx, op); err != nil {
		return err
	}
	return s.waitForLeases(ctx, op.org)
}

// waitForLeases waits until all leases that an organization was granted before this call have
// expired. It counts from now, not from the commit: approvals are read without a lock, so a
// reader may have returned the old state until now.
func (s *shared) waitForLeases(ctx context.Context, org ledger.OrgID) error {
	if s.alone && !s.grants.since(org, time.Now().Add(-ledger.LeaseRunOut)) {
		return nil
	}
	if err := s.delay(ctx, ledger.LeaseRunOut); err != nil {
		shown := fault.Errorf(fault.CodeOutcomeUnknown,
			"the change is in force, but actions that were allowed before it may still begin within a second: send the same request again to wait until they cannot")
		return &cause{shown, fmt.Errorf("wait for leases: %w", err)}
	}
	return nil
}

// delay waits for d, or until ctx ends.
func delay(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// noteGrant records that an organization is granted an allow or a lease, or may be. It is
// called inside the transaction that decides, and by readers without a lock before they
// read, so a committed stop sees every earlier grant. A client counts its lease from when it
// sent the request, which is earlier.
func (s *shared) noteGrant(org ledger.OrgID) {
	if s.alone {
		s.grants.note(org, time.Now())
	}
}

// recentGrants records when each organization was last granted an allow or a lease, by the
// monotonic clock. Only a process that serves its store alone uses it.
type recentGrants struct {
	mu   sync.Mutex // guards the fields below
	last map[ledger.OrgID]time.Time
	// forgotten is an upper bound for grants that are not in last. It starts as the start of
	// this process, which is after all grants of the process that served the store before.
	forgotten time.Time
}

// maxRecentGrants bounds the organizations in recentGrants.last.
const maxRecentGrants = 10_000

func (g *recentGrants) note(org ledger.OrgID, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.last == nil {
		g.last = make(map[ledger.OrgID]time.Time)
	}
	if _, known := g.last[org]; !known && len(g.last) >= maxRecentGrants {
		g.forget(now)
	}
	g.last[org] = now
}

// forget evicts expired entries. The caller holds mu. If all entries are recent, it drops them
// all and counts them for every organization: a stop may then wait needlessly, but never too
// briefly.
func (g *recentGrants) forget(now time.Time) {
	for org, at := range g.last {
		if now.Sub(at) >= ledger.LeaseRunOut {
			delete(g.last, org)
		}
	}
	if len(g.last) >= maxRecentGrants {
		clear(g.last)
		g.forgotten = now
	}
}

// since reports whether the organization may have been granted anything after t.
func (g *recentGrants) since(org ledger.OrgID, t time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.forgotten.After(t) || g.last[org].After(t)
}
