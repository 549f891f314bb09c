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

// Organization finds the caller's organization.
func (s *accountService) Organization(ctx context.Context, caller *Caller) (*ledger.Organization, error) {
	if err := s.authorize(ctx, caller, ledger.RoleMember); err != nil {
		return nil, err
	}
	return s.organization(ctx, caller.Org)
}

// organization finds an organization that is as the last act has left it.
func (s *shared) organization(ctx context.Context, id ledger.OrgID) (*ledger.Organization, error) {
	org, err := s.store.CurrentOrganization(ctx, id)
	return org, visible(err)
}

// organizations lists all organizations. One that fails authentication is listed, too, so
// that its ledger is checked, and is noted as a finding.
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

// UpdateOrganization replaces the settings that the request names, and returns when nothing
// that was allowed under the old ones can begin.
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
			return nil, err // nothing is changed
		}
		if patched.Settings.AbandonHours() != org.Settings.AbandonHours() {
			// The new setting applies now, and not from the next job on.
			b.changes.NewJobs = append(b.changes.NewJobs, abandonJob(org.ID, "", b.now))
		}
		said, err := organizationAuditEntry(org, &patched)
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
	f := canon.NewFields(v)
	request := &KeyRequest{
		Name: f.Name("name", maxKeyName), Role: ledger.Role(f.OneOf("role", string(ledger.RoleAgent), string(ledger.RoleMember), string(ledger.RoleAdmin))),
		Agents: ledger.ReadAgentNames(f, "agents", maxKeyAgents), Owner: f.Name("owner", maxKeyName), ExpiresAt: ledger.ReadTime(f, "expires_at"),
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
func (s *accountService) CreateAPIKey(ctx context.Context, caller *Caller, request *KeyRequest) (*NewKey, error) {
	if err := caller.require(ledger.RoleAdmin); err != nil {
		return nil, err
	}
	return s.issueKey(ctx, caller, caller.Org, request)
}

// issueKey issues a key as a caller, or as the operator where caller is nil. If two keys of
// one name are issued at once, each may be seen only after both are stored: then both are
// revoked, and neither text is returned.
func (s *accountService) issueKey(ctx context.Context, caller *Caller, org ledger.OrgID, request *KeyRequest) (*NewKey, error) {
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

// nameFree refuses the name of another active key. Lists of approvers contain names, so only
// agents, which decide nothing, may share one.
func (s *accountService) nameFree(ctx context.Context, org ledger.OrgID, request *KeyRequest, own ledger.KeyID) error {
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
			return fault.Errorf(fault.CodeNameTaken,
				"an active key has the name %q already, and names say who may approve: choose another name, or revoke that key first", key.Name)
		}
	}
	return nil
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

// keyAuditEntry names an API key and, where it has ended, from what to what.
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
		Agents: request.Agents, Owner: request.Owner, ExpiresAt: request.ExpiresAt,
	}
	return &NewKey{Record: record, Text: text}, nil
}

// newSecret makes the text of an API key.
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
		s.findings.noticeFailing(ctx, caller.Org)
	}
	return keys, visible(err)
}

// noticeFailing keeps what fails of an organization's rows that belong to no chain.
func (s *findingService) noticeFailing(ctx context.Context, org ledger.OrgID) {
	const most = 20 // the daily look finds the others
	failing, err := s.store.FailingRows(ctx, org, most)
	if err != nil {
		s.log.Error("rows that fail could not be listed: the daily look tries again", "error", err)
	}
	for i := range failing {
		s.noteFinding(pendingFinding{org: org, tampering: verify.RowChanged(&failing[i]), tell: true})
	}
}

// RevokeAPIKey revokes a key, and returns when nothing that it was allowed can begin.
// Repeating it changes nothing.
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

// revocation is the act that ends a key, and the key's record once it is committed.
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
			return nil, nil // the first moment stands
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

// ActivateKillSwitch stops everything. When it returns, no replica allows an action, because
// it has waited for those being recorded, and no client begins one that was allowed before,
// because it has waited for their leases. Repeating it changes nothing: the first reason
// stays.
func (s *accountService) ActivateKillSwitch(ctx context.Context, caller *Caller, reason string) (*ledger.KillSwitch, error) {
	return s.switchTo(ctx, caller, true, reason)
}

// DeactivateKillSwitch lets agents act again. Repeating it changes nothing.
func (s *accountService) DeactivateKillSwitch(ctx context.Context, caller *Caller) (*ledger.KillSwitch, error) {
	return s.switchTo(ctx, caller, false, "")
}

func (s *accountService) switchTo(ctx context.Context, caller *Caller, active bool, reason string) (*ledger.KillSwitch, error) {
	action, kind, govern := ledger.ActKillSwitchDeactivate, notify.KillSwitchDeactivated, s.govern
	if active {
		action, kind, govern = ledger.ActKillSwitchActivate, notify.KillSwitchActivated, s.governStop
	}
	var result ledger.KillSwitch
	err := govern(ctx, caller, func(b *batch, org *ledger.Organization) (*auditEntry, error) {
		k := &org.Controls.KillSwitch
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

// killSwitchAuditEntry says why the switch is active, or what it was active for.
func killSwitchAuditEntry(action string, before, after *ledger.KillSwitch) *auditEntry {
	word := func(k *ledger.KillSwitch) string {
		if k.Active {
			return "active"
		}
		return "inactive"
	}
	return &auditEntry{action: action, detail: details(func(w *canon.ObjectWriter) {
		if before.Active {
			w.StringOrNull("activated_at", moment(before.ChangedAt))
			w.StringOrNull("activated_by", before.ChangedBy)
			w.StringOrNull("activated_for", before.Reason)
		} else {
			w.StringOrNull("reason", after.Reason)
		}
		writeChange(w, "status", word(before), word(after))
	})}
}

// Sign-in links open the console in a browser; a session follows them.
const (
	signInLifetime  = ledger.Time(30 * 60 * 1000)
	sessionLifetime = ledger.Time(12 * 60 * 60 * 1000)
	signInPrefix    = "csl_"
	sessionPrefix   = "css_"
)

// CreateSignIn makes a one-time link that signs a browser in as a key of the
// caller's organization.
func (s *accountService) CreateSignIn(ctx context.Context, caller *Caller, key ledger.KeyID) (ledger.Secret, error) {
	if err := caller.require(ledger.RoleAdmin); err != nil {
		return ledger.Secret{}, err
	}
	return s.createSignIn(ctx, caller, caller.Org, key)
}

// createSignIn makes a link as a caller, or as the operator where caller is nil. The act is
// entered first: if the link is then not stored, the log has an entry too many, and never
// one too few.
func (s *accountService) createSignIn(ctx context.Context, caller *Caller, org ledger.OrgID, id ledger.KeyID) (ledger.Secret, error) {
	text := ledger.NewOpaqueToken(signInPrefix, s.entropy())
	link := &store.SignIn{Hash: ledger.HashToken(text.Reveal()), Key: id.UUID, Org: org, ExpiresAt: s.now() + signInLifetime}
	made := &act{
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
			return signInAuditEntry(ledger.ActSignInCreate, key, link.ExpiresAt, link, nil), nil
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

// signInAuditEntry names the link and the session that an act is about; nil for none.
func signInAuditEntry(action string, key *ledger.KeyRecord, expires ledger.Time, link, session *store.SignIn) *auditEntry {
	return &auditEntry{action: action, target: key.ID.String(), detail: details(func(w *canon.ObjectWriter) {
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

var errBadLink = fault.Errorf(fault.CodeUnauthenticated, "this sign-in link was used, has expired or never existed; ask an admin for a new one, or make one with countersign keys sign-in KEY_ID")

// SignIn uses a sign-in link and opens a session. The act is entered first, and marks the
// link as used: a copy of the link that an attacker restores opens nothing. If the session
// cannot be stored then, the link is used up.
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
func (s *accountService) enterSignIn(ctx context.Context, link, session *store.SignIn) (int64, error) {
	key, err := s.store.Key(ctx, ledger.KeyID{UUID: link.Key})
	if err != nil {
		return 0, err
	}
	use := &act{caller: callerOf(key), org: key.Org, change: func(*batch, *ledger.Organization) (*auditEntry, error) {
		if key.Org != link.Org || !s.store.SignInHeld(link) {
			return nil, errBadLink
		}
		return signInAuditEntry(ledger.ActSignInUse, key, session.ExpiresAt, link, session), nil
	}}
	err = s.committer.commit(ctx, use)
	if errors.Is(err, errUnknownKey) { // it was revoked after the link was made
		return 0, errBadLink
	}
	return use.number, err
}

// SessionCaller finds the caller of a browser session.
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
	if err := s.admit(key, caller, s.now()); err != nil {
		return nil, err
	}
	return caller, nil
}

// SignOut ends a session and enters that into the audit log. Whatever becomes of the
// entry, the session ends.
func (s *accountService) SignOut(ctx context.Context, session string) error {
	hash := ledger.HashToken(session)
	entered := s.enterSignOut(ctx, hash)
	return errors.Join(visible(s.store.CloseSession(ctx, hash)), entered)
}

// enterSignOut enters the end of a session, by the key that it acted for. One that has
// ended already, or whose key has, has nothing to enter.
func (s *accountService) enterSignOut(ctx context.Context, hash [32]byte) error {
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
		return signInAuditEntry(ledger.ActSignInEnd, key, in.ExpiresAt, nil, in), nil
	}})
	if errors.Is(err, errUnknownKey) {
		return nil
	}
	return err
}

// commitStop commits an act that can make decisions stricter. It returns when nothing that
// was allowed before can begin: every allow is a lease, and all leases have expired. The act
// is in force from its commit on, whether or not the caller waits. An act that changed
// nothing waits, too, because the caller of the act that did may not have received its
// answer.
func (s *shared) commitStop(ctx context.Context, op *act) error {
	if err := s.committer.commitFirst(ctx, op); err != nil {
		return err
	}
	return s.waitForLeases(ctx, op.org)
}

// waitForLeases waits until the allows and leases that an organization was given before
// this call have run out. The moment counts from here, after the commit: an approval
// is read without a lock, and may have been shown as it was until then.
func (s *shared) waitForLeases(ctx context.Context, org ledger.OrgID) error {
	if s.alone && !s.grants.since(org, time.Now().Add(-ledger.LeaseRunOut)) {
		return nil
	}
	if err := s.delay(ctx, ledger.LeaseRunOut); err != nil {
		shown := fault.Errorf(fault.CodeOutcomeUnknown,
			"the change is in force, but what was allowed before it may still begin within a second: send the same request again to be told when it cannot")
		return &cause{shown, fmt.Errorf("wait for leases: %w", err)}
	}
	return nil
}

// delay waits for a span of time, or until the caller gives up.
func delay(ctx context.Context, span time.Duration) error {
	timer := time.NewTimer(span)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// noteGrant records that an organization is given an allow or a lease, or may be. It is
// called inside the transaction that decides, and by readers without a lock before they
// read: so a stop that has committed sees every earlier grant. A client counts a lease from
// when it sent its request, which is earlier.
func (s *shared) noteGrant(org ledger.OrgID) {
	if s.alone {
		s.grants.note(org, time.Now())
	}
}

// recentGrants remembers when each organization was last given an allow or a lease,
// by the monotonic clock. It is used by a process that serves its store alone.
type recentGrants struct {
	mu   sync.Mutex // guards the fields below
	last map[ledger.OrgID]time.Time
	// forgotten is the latest grant that is not in last. Grants of a process that served the
	// store before are no later than the start of this one.
	forgotten time.Time
}

// maxRecentGrants bounds the organizations that are remembered one by one.
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

// forget makes room. The caller holds mu. If all entries are recent, they count for every
// organization: a stop may then wait needlessly, but never too little.
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

// since reports whether the organization may have been given anything after a moment.
func (g *recentGrants) since(org ledger.OrgID, moment time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.forgotten.After(moment) || g.last[org].After(moment)
}
