package service

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"sync"
	"time"

	"countersign/internal/cache"
	"countersign/internal/canon"
	"countersign/internal/evidence"
	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// Caller identifies the sender of a request.
type Caller struct {
	Key  ledger.KeyID
	Org  ledger.OrgID
	Role ledger.Role
	Name string

	// secret is the hash of the secret that the caller presented; nil for a browser session,
	// which ends with its key and not with a secret.
	secret *[32]byte
	// ends is when the secret expires if the key is not changed before; nil for never.
	ends *ledger.Time
	// slackMember is the Slack member who the caller is, as the key must name them; "" for callers that do
	// not come from Slack.
	slackMember string
	// signInAs is who opened the caller's session by single sign-on, as the key must name them; "" for
	// callers without such a session.
	signInAs string
	// cached reports that the key was not read for this request. A use case
	// that commits confirms the key in its transaction, and any other reads it again, so a
	// revoked key fails at its next request on every replica.
	cached bool
}

var (
	errUnknownKey = fault.Errorf(fault.CodeUnauthenticated, "the API key is unknown or revoked: ask an admin for a new one")
	errKeyExpired = fault.Errorf(fault.CodeKeyExpired, "the API key has expired: ask an admin for a new one")
	// errNotThisMember is for a member whom the key named when it was found.
	errNotThisMember = fault.Errorf(fault.CodeUnauthenticated, "the API key is no longer for this Slack member: ask an admin")
	// errNotThisIdentity is for a session of somebody whom the key named when it was opened.
	errNotThisIdentity = fault.Errorf(fault.CodeUnauthenticated, "the API key is no longer for whoever opened this session: sign in again, or ask an admin")
	errOldSecret       = fault.Errorf(fault.CodeKeyExpired, "the API key was rotated and this secret of it has expired: use the new one, or ask an admin to rotate the key again")
)

// usable refuses a key that is revoked or expired, and a secret that does not belong to the
// key or has expired.
func usable(key *ledger.KeyRecord, secret *[32]byte, now ledger.Time) error {
	switch previous := key.Previous; {
	case key.RevokedAt != nil:
		return errUnknownKey
	case !key.Active(now):
		return errKeyExpired
	case secret == nil || *secret == key.Hash:
		return nil
	case previous == nil || *secret != previous.Hash: // the key was rotated twice since
		return errUnknownKey
	case now >= previous.ExpiresAt:
		return errOldSecret
	}
	return nil
}

// Authenticate returns the caller that an API key belongs to.
func (s *accountService) Authenticate(ctx context.Context, text string) (*Caller, error) {
	key, err := ledger.ParseAPIKey(text)
	if err != nil {
		return nil, fault.Errorf(fault.CodeMalformedKey, "this is not an API key of this service: %v", err)
	}
	hash := key.Hash()
	if caller := s.callers.get(hash); caller != nil {
		if caller.ends == nil || s.now() < *caller.ends {
			return caller, nil
		}
		s.callers.forget(caller.Key) // read the reason from the store
	}
	record, err := s.store.KeyByHash(ctx, hash)
	if errors.Is(err, store.ErrNotFound) {
		return nil, errUnknownKey
	}
	if err != nil {
		return nil, visible(err)
	}
	now := s.now()
	if err := usable(record, &hash, now); err != nil {
		return nil, err
	}
	s.keyUses.note(record.ID, now)
	caller := callerOf(record)
	caller.secret, caller.ends = &hash, record.ExpiresAt
	if previous := record.Previous; previous != nil && hash == previous.Hash && (caller.ends == nil || previous.ExpiresAt < *caller.ends) {
		caller.ends = &previous.ExpiresAt
	}
	cached := *caller
	cached.cached = true
	s.callers.put(hash, &cached)
	return caller, nil
}

// AuthenticatedRecently reports whether a key was authenticated recently. The key may have been
// revoked since.
func (s *accountService) AuthenticatedRecently(text string) bool {
	key, err := ledger.ParseAPIKey(text)
	return err == nil && s.callers.get(key.Hash()) != nil
}

func callerOf(key *ledger.KeyRecord) *Caller {
	return &Caller{Key: key.ID, Org: key.Org, Role: key.Role, Name: key.Name}
}

// authorize confirms the caller's key and checks its role. Every use case that reads starts
// with it.
func (s *shared) authorize(ctx context.Context, caller *Caller, role ledger.Role) error {
	if caller.cached {
		if err := s.confirm(ctx, caller); err != nil {
			return err
		}
	}
	return caller.require(role)
}

// confirm reads the caller's key again and checks the caller against it.
func (s *shared) confirm(ctx context.Context, caller *Caller) error {
	key, err := s.store.Key(ctx, caller.Key)
	if errors.Is(err, store.ErrNotFound) {
		s.callers.forget(caller.Key)
		return errUnknownKey
	}
	if err != nil {
		return visible(err)
	}
	return s.admit(key, caller, s.now())
}

// admit checks a caller against its stored key, and records the use.
func (s *shared) admit(key *ledger.KeyRecord, caller *Caller, now ledger.Time) error {
	err := usable(key, caller.secret, now)
	// These columns of a key never change, so a row that differs belongs to another key.
	if err == nil && (key.Org != caller.Org || key.Role != caller.Role || key.Name != caller.Name) {
		err = errUnknownKey
	}
	if err == nil && caller.slackMember != "" && key.SlackMember != caller.slackMember {
		err = errNotThisMember
	}
	if err == nil && caller.signInAs != "" && key.SignInAs != caller.signInAs {
		err = errNotThisIdentity
	}
	if err != nil {
		if caller.secret != nil { // sessions are not cached
			s.callers.forget(caller.Key)
		}
		return err
	}
	s.keyUses.note(key.ID, now)
	return nil
}

func (c *Caller) require(role ledger.Role) error {
	if c.Role.Includes(role) {
		return nil
	}
	return fault.Errorf(fault.CodeForbidden, "this needs the role %s; the key has the role %s: use a key of that role", role, c.Role)
}

// longestWait shortens a wait to the time for which the caller's secret is valid.
func (c *Caller) longestWait(wait time.Duration, now ledger.Time) time.Duration {
	if c.ends == nil {
		return wait
	}
	return min(wait, max(c.ends.Sub(now), 0))
}

// owns reports whether the caller may read and write a chain. An agent may use chains that its
// own key opened; all others may use every chain of their organization.
func (c *Caller) owns(chain *ledger.Chain) bool {
	return chain.Org == c.Org && (c.Role != ledger.RoleAgent || chain.OpenedBy == c.Key)
}

// callerCache caches callers by the hash of their secret.
type callerCache struct {
	mu      sync.RWMutex // guards callers
	callers map[[32]byte]*Caller
}

const maxCachedCallers = 10_000

func (c *callerCache) get(hash [32]byte) *Caller {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.callers[hash]
}

func (c *callerCache) put(hash [32]byte, caller *Caller) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.callers == nil || len(c.callers) >= maxCachedCallers {
		c.callers = make(map[[32]byte]*Caller)
	}
	c.callers[hash] = caller
}

func (c *callerCache) forget(key ledger.KeyID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for hash, caller := range c.callers {
		if caller.Key == key {
			delete(c.callers, hash)
		}
	}
}

// lastUses records when things were last used until a flush stores it: a read must not cost a
// write.
type lastUses[ID comparable] struct {
	mu   sync.Mutex // guards last
	last map[ID]ledger.Time
}

// maxLastUses bounds the entries. Further ones are ignored until the next flush.
const maxLastUses = 10_000

func (u *lastUses[ID]) note(id ID, at ledger.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.last == nil {
		u.last = make(map[ID]ledger.Time)
	}
	if earlier, known := u.last[id]; at > earlier && (known || len(u.last) < maxLastUses) {
		u.last[id] = at
	}
}

func (u *lastUses[ID]) take() map[ID]ledger.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	taken := u.last
	u.last = nil
	return taken
}

// flush stores the uses recorded since the last flush. If that fails, they are kept for the
// next one.
func (u *lastUses[ID]) flush(ctx context.Context, write func(context.Context, map[ID]ledger.Time) error) error {
	taken := u.take()
	if len(taken) == 0 {
		return nil
	}
	if err := write(ctx, taken); err != nil {
		for id, at := range taken {
			u.note(id, at)
		}
		return visible(err)
	}
	return nil
}

// FlushKeyUse stores when API keys were last used. The worker calls it once a minute, and the
// server when it shuts down.
func (s *accountService) FlushKeyUse(ctx context.Context) error {
	return s.keyUses.flush(ctx, s.store.TouchKeys)
}

// Rotation is a request for a new secret of an API key.
type Rotation struct {
	Key ledger.KeyID
	// Overlap is how long the replaced secret is still accepted, in whole seconds.
	Overlap time.Duration
	// IdempotencyKey makes a retry return the same rotation instead of rotating again; ""
	// for none.
	IdempotencyKey string
}

// MaxOverlap is the longest time that a replaced secret is still accepted.
const MaxOverlap = 7 * 24 * time.Hour

// ParseOverlap reads the body of a request that rotates an API key. The zero Value stands for
// an empty body.
func ParseOverlap(v canon.Value) (time.Duration, error) {
	if v.IsNull() {
		return 0, nil
	}
	f := canon.NewFields(v)
	seconds := f.Int("overlap_seconds", 0, int64(MaxOverlap/time.Second))
	return time.Duration(seconds) * time.Second, f.Err()
}

// RotateAPIKey replaces a key's secret. The new text is returned once: a retry with the same
// idempotency key returns the key without it.
func (s *accountService) RotateAPIKey(ctx context.Context, caller *Caller, rotation *Rotation) (*NewKey, error) {
	if err := caller.require(ledger.RoleAdmin); err != nil {
		return nil, err
	}
	return s.rotateKey(ctx, caller, caller.Org, rotation)
}

// rotateKey rotates a key on behalf of the caller, or of the operator if caller is nil. The
// returned text is empty if an earlier request made the rotation.
func (s *accountService) rotateKey(ctx context.Context, caller *Caller, org ledger.OrgID, rotation *Rotation) (*NewKey, error) {
	if rotation.Overlap < 0 || rotation.Overlap > MaxOverlap {
		return nil, fault.Invalid(fault.FieldError{Pointer: "/overlap_seconds", Detail: fmt.Sprintf("must be an integer from 0 to %d", int64(MaxOverlap/time.Second))})
	}
	text, parsed, err := s.newSecret()
	if err != nil {
		return nil, err
	}
	result := &NewKey{}
	ref := store.RotationRef{Org: org, Key: rotation.IdempotencyKey}
	op := &act{caller: caller, actor: ledger.ActorOperator, org: org}
	op.needs = func(needs *store.Needs) {
		needs.Keys = append(needs.Keys, rotation.Key)
		if rotation.IdempotencyKey != "" {
			needs.Rotations = append(needs.Rotations, ref)
		}
	}
	op.change = func(b *batch, _ *ledger.Organization) (*auditEntry, error) {
		key, err := b.keyOf(org, rotation.Key)
		if err != nil {
			return nil, err
		}
		if b.tampered(ref) {
			return nil, fmt.Errorf("a rotation of an API key fails its authenticator: %w", ledger.ErrStateTampered)
		}
		if earlier := b.loaded.Rotations[ref]; earlier != nil && rotation.IdempotencyKey != "" {
			if earlier.Key != rotation.Key || earlier.Overlap != rotation.Overlap {
				return nil, fault.Errorf(fault.CodeIdempotencyConflict, "this Idempotency-Key made another rotation already: use a new key for a new rotation")
			}
			*result = NewKey{Record: key}
			return nil, nil
		}
		if status := key.Status(b.now); status != ledger.APIKeyActive {
			return nil, fault.Errorf(fault.CodeAPIKeyEnded, "the key is %s, and a new secret would not bring it back: make a new key", status)
		}
		rotated := *key
		rotated.Rotate(parsed, b.now, rotation.Overlap)
		b.putKey(&rotated)
		if rotation.IdempotencyKey != "" {
			record := &store.RotationRecord{
				Org: org, Key: rotation.Key, IdempotencyKey: rotation.IdempotencyKey, Overlap: rotation.Overlap, RotatedAt: b.now,
			}
			b.loaded.Rotations[ref] = record
			b.changes.NewRotations = append(b.changes.NewRotations, record)
		}
		*result = NewKey{Record: &rotated, Text: text}
		return keyAuditEntry(ledger.ActKeyRotate, &rotated, "", ""), nil
	}
	// Without an overlap the secret in use ends now, which is a stop.
	if err := s.commitStop(ctx, op); err != nil {
		return nil, err
	}
	s.callers.forget(rotation.Key)
	return result, nil
}

// expiryJob returns the job that enters a key's expiry into the audit log. The key expires
// whether or not the job runs.
func expiryJob(key *ledger.KeyRecord) *store.Job {
	return &store.Job{Org: key.Org, Kind: JobKeyExpiry, RunAt: *key.ExpiresAt, Body: []byte(key.ID.String())}
}

// KeyExpiry enters the expiry of an API key into the audit log once, unless the key was
// revoked before. It fails, to be retried, while the key was changed or deleted outside the
// service.
func (j *Jobs) KeyExpiry(ctx context.Context, job *store.Job) error {
	id, err := ledger.ParseID(string(job.Body))
	if err != nil {
		return fmt.Errorf("expiry job without the id of a key: %w", err)
	}
	keyID := ledger.KeyID{UUID: id}
	op := &act{actor: ledger.ActorService, org: job.Org}
	op.needs = func(needs *store.Needs) { needs.Keys = append(needs.Keys, keyID) }
	op.change = func(b *batch, _ *ledger.Organization) (*auditEntry, error) {
		key, err := b.keyOf(job.Org, keyID)
		switch {
		case errors.Is(err, fault.ErrNotFound): // the service deletes no keys
			return nil, fmt.Errorf("an API key that expires is missing: %w", ledger.ErrStateTampered)
		case err != nil:
			return nil, err
		case key.ExpiryLogged || key.Status(b.now) != ledger.APIKeyExpired:
			return nil, nil
		}
		expired := *key
		expired.ExpiryLogged = true
		b.putKey(&expired)
		return keyAuditEntry(ledger.ActKeyExpire, &expired, string(ledger.APIKeyActive), string(ledger.APIKeyExpired)), nil
	}
	if err := j.service.committer.commit(ctx, op); err != nil {
		return err
	}
	j.service.callers.forget(keyID)
	return j.Finish(ctx, job)
}

// signingKeyService manages the keys that sign decisions on approvals.
type signingKeyService struct {
	*shared
	signers *cache.Cache[ledger.SigningKeyID, ed25519.PrivateKey]
}

const signingKeyLabel = "signing-key/"

// newSigningKey generates a key. Its private half is sealed with the key ring.
func (s *signingKeyService) newSigningKey(org ledger.OrgID, name string) (*store.SigningKeyRecord, error) {
	seed := s.entropy()
	private := ed25519.NewKeyFromSeed(seed[:])
	now := s.now()
	id := ledger.SigningKeyID{UUID: s.timedID(now)}
	sealed, err := s.secrets.Seal(org.UUID, signingKeyLabel+id.String(), seed[:])
	if err != nil {
		return nil, fmt.Errorf("seal a signing key: %w", err)
	}
	key := &store.SigningKeyRecord{
		ID: id, Org: org, Name: name,
		Public: private.Public().(ed25519.PublicKey), Private: sealed, Status: ledger.SigningActive, CreatedAt: now,
	}
	return key, nil
}

var errRegistry = fmt.Errorf("a signing key fails its authenticator: %w", ledger.ErrStateTampered)

// signerCacheBytes bounds the cached private keys: about a thousand.
const signerCacheBytes = 300 << 10

func (s *signingKeyService) privateKey(record *store.SigningKeyRecord) (ed25519.PrivateKey, error) {
	if key, ok := s.signers.Get(record.ID); ok {
		return key, nil
	}
	seed, err := s.secrets.Open(record.Org.UUID, signingKeyLabel+record.ID.String(), record.Private)
	if err != nil || len(seed) != ed25519.SeedSize {
		return nil, fmt.Errorf("a signing key cannot be opened: %w", ledger.ErrStateTampered)
	}
	key := ed25519.NewKeyFromSeed(seed)
	if !key.Public().(ed25519.PublicKey).Equal(ed25519.PublicKey(record.Public)) {
		return nil, fmt.Errorf("a signing key was exchanged: %w", ledger.ErrStateTampered)
	}
	s.signers.Put(record.ID, key, len(key))
	return key, nil
}

// sign signs an ended approval with the organization's newest active key. There is always one,
// so a registry without any was tampered with.
func (b *batch) sign(approval *ledger.Approval) error {
	if b.service.secrets == nil {
		return nil
	}
	if !evidence.AllAuthentic(b.loaded.SigningKeys[approval.Org]) {
		return errRegistry
	}
	var newest *store.SigningKeyRecord
	for _, key := range b.loaded.SigningKeys[approval.Org] {
		if key.Status == ledger.SigningActive {
			newest = key
		}
	}
	if newest == nil {
		return fmt.Errorf("no key is left to sign with: %w", ledger.ErrStateTampered)
	}
	private, err := b.service.privateKey(newest)
	if err != nil {
		return err
	}
	approval.Sign(newest.ID, private)
	return nil
}

// SigningKeyRequest is a request to create a signing key or to import a historical one.
type SigningKeyRequest struct {
	Name   string
	Public ed25519.PublicKey // of a historical key; nil for a new one
}

// ParseSigningKeyRequest reads the body of a request that creates or imports a signing key.
// The zero Value stands for an empty body.
func ParseSigningKeyRequest(v canon.Value) (*SigningKeyRequest, error) {
	request := &SigningKeyRequest{}
	if v.IsNull() {
		return request, nil
	}
	f := canon.NewFields(v)
	request.Name = f.Name("name", 200)
	if text := f.Text("public_key", 200); f.Has("public_key") {
		key, err := base64.StdEncoding.DecodeString(text)
		if err != nil || len(key) != ed25519.PublicKeySize {
			f.Fault("public_key", "must be the 32 bytes of an Ed25519 public key in base64")
		}
		request.Public = key
	}
	return request, f.Err()
}

const maxSigningKeys = 100

// CreateSigningKey adds a key to the registry: a new one, which signs from now on, or the
// public half of a historical one.
func (s *signingKeyService) CreateSigningKey(ctx context.Context, caller *Caller, request *SigningKeyRequest) (*store.SigningKeyRecord, error) {
	if err := caller.require(ledger.RoleAdmin); err != nil {
		return nil, err
	}
	var key *store.SigningKeyRecord
	action := ledger.ActSigningKeyCreate
	if request.Public != nil {
		action = ledger.ActSigningKeyImport
		key = &store.SigningKeyRecord{
			ID: ledger.SigningKeyID{UUID: s.timedID(s.now())}, Org: caller.Org, Name: request.Name,
			Public: request.Public, Status: ledger.SigningHistorical, CreatedAt: s.now(),
		}
	} else {
		var err error
		if key, err = s.newSigningKey(caller.Org, request.Name); err != nil {
			return nil, err
		}
	}
	err := s.changeSigningKeys(ctx, &act{caller: caller, org: caller.Org}, func(b *batch, keys []*store.SigningKeyRecord) (*auditEntry, error) {
		if len(keys) >= maxSigningKeys {
			return nil, fault.Errorf(fault.CodeInvalid, "there are %d signing keys, the most there can be", maxSigningKeys)
		}
		b.putSigningKey(key)
		return signingKeyAuditEntry(action, key, "", nil), nil
	})
	if err != nil {
		return nil, err
	}
	return key, nil
}

// SigningKeys lists the registry, oldest first.
func (s *signingKeyService) SigningKeys(ctx context.Context, caller *Caller) ([]*store.SigningKeyRecord, error) {
	if err := s.authorize(ctx, caller, ledger.RoleAdmin); err != nil {
		return nil, err
	}
	keys, err := s.store.SigningKeys(ctx, caller.Org)
	return keys, visible(err)
}

// RetireSigningKey stops using a key for signing. Its signatures stay trusted. The last active
// key gets a successor.
func (s *signingKeyService) RetireSigningKey(ctx context.Context, caller *Caller, id ledger.SigningKeyID) (*store.SigningKeyRecord, error) {
	if err := caller.require(ledger.RoleAdmin); err != nil {
		return nil, err
	}
	return s.changeKeyStatus(ctx, &act{caller: caller, org: caller.Org}, id, ledger.ActSigningKeyRetire, func(key *store.SigningKeyRecord, now ledger.Time) error {
		switch key.Status {
		case ledger.SigningRetired, ledger.SigningRevoked:
			return nil
		case ledger.SigningHistorical, ledger.SigningConfirmed:
			return fault.Errorf(fault.CodeKeyState, "a historical key signs nothing: there is nothing to retire")
		}
		key.Status, key.RetiredAt = ledger.SigningRetired, &now
		return nil
	})
}

// RevokeSigningKey marks a key as no longer trusted.
func (s *signingKeyService) RevokeSigningKey(ctx context.Context, caller *Caller, id ledger.SigningKeyID) (*store.SigningKeyRecord, error) {
	if err := caller.require(ledger.RoleAdmin); err != nil {
		return nil, err
	}
	return s.changeKeyStatus(ctx, &act{caller: caller, org: caller.Org}, id, ledger.ActSigningKeyRevoke, func(key *store.SigningKeyRecord, now ledger.Time) error {
		if key.Status != ledger.SigningRevoked {
			key.Status, key.RevokedAt = ledger.SigningRevoked, &now
		}
		return nil
	})
}

// ConfirmSigningKey confirms that a historical key is authentic: its signatures are trusted
// from now on.
func (s *signingKeyService) ConfirmSigningKey(ctx context.Context, caller *Caller, id ledger.SigningKeyID) (*store.SigningKeyRecord, error) {
	if err := caller.require(ledger.RoleAdmin); err != nil {
		return nil, err
	}
	return s.changeKeyStatus(ctx, &act{caller: caller, org: caller.Org}, id, ledger.ActSigningKeyConfirm, confirmKey)
}

// RetractSigningKey retracts the confirmation of a key.
func (s *signingKeyService) RetractSigningKey(ctx context.Context, caller *Caller, id ledger.SigningKeyID) (*store.SigningKeyRecord, error) {
	if err := caller.require(ledger.RoleAdmin); err != nil {
		return nil, err
	}
	return s.changeKeyStatus(ctx, &act{caller: caller, org: caller.Org}, id, ledger.ActSigningKeyRetract, retractKey)
}

func confirmKey(key *store.SigningKeyRecord, _ ledger.Time) error {
	if key.Status != ledger.SigningHistorical && key.Status != ledger.SigningConfirmed {
		return fault.Errorf(fault.CodeKeyState, "the key is %s: only a historical key can be confirmed", key.Status)
	}
	key.Status = ledger.SigningConfirmed
	return nil
}

func retractKey(key *store.SigningKeyRecord, _ ledger.Time) error {
	if key.Status != ledger.SigningHistorical && key.Status != ledger.SigningConfirmed {
		return fault.Errorf(fault.CodeKeyState, "the key is %s: there is no confirmation to take back", key.Status)
	}
	key.Status = ledger.SigningHistorical
	return nil
}

// SigningKeys lists the registry of an organization, oldest first.
func (o *Operator) SigningKeys(ctx context.Context, slug string) ([]*store.SigningKeyRecord, error) {
	org, err := o.Organization(ctx, slug)
	if err != nil {
		return nil, err
	}
	keys, err := o.service.store.SigningKeys(ctx, org.ID)
	return keys, visible(err)
}

// ConfirmSigningKey is Service.ConfirmSigningKey for the operator.
func (o *Operator) ConfirmSigningKey(ctx context.Context, slug string, id ledger.SigningKeyID) (*store.SigningKeyRecord, error) {
	return o.changeKeyStatus(ctx, slug, id, ledger.ActSigningKeyConfirm, confirmKey)
}

// RetractSigningKey is Service.RetractSigningKey for the operator.
func (o *Operator) RetractSigningKey(ctx context.Context, slug string, id ledger.SigningKeyID) (*store.SigningKeyRecord, error) {
	return o.changeKeyStatus(ctx, slug, id, ledger.ActSigningKeyRetract, retractKey)
}

func (o *Operator) changeKeyStatus(ctx context.Context, slug string, id ledger.SigningKeyID, action string, change func(*store.SigningKeyRecord, ledger.Time) error) (*store.SigningKeyRecord, error) {
	org, err := o.Organization(ctx, slug)
	if err != nil {
		return nil, err
	}
	key, err := o.service.changeKeyStatus(ctx, &act{actor: ledger.ActorOperator, org: org.ID}, id, action, change)
	if errors.Is(err, fault.ErrNotFound) {
		return nil, fault.Errorf(fault.CodeNotFound, "there is no such signing key in %s; countersign signing-keys list shows those there are", org.Slug)
	}
	return key, err
}

// changeKeyStatus changes a key's status. An organization is never left without an active key:
// the last one gets a successor in the same act.
func (s *signingKeyService) changeKeyStatus(ctx context.Context, op *act, id ledger.SigningKeyID, action string, change func(*store.SigningKeyRecord, ledger.Time) error) (*store.SigningKeyRecord, error) {
	successor, err := s.newSigningKey(op.org, "")
	if err != nil {
		return nil, err
	}
	var changed store.SigningKeyRecord
	err = s.changeSigningKeys(ctx, op, func(b *batch, keys []*store.SigningKeyRecord) (*auditEntry, error) {
		active := 0
		var found *store.SigningKeyRecord
		for _, key := range keys {
			if key.Status == ledger.SigningActive {
				active++
			}
			if key.ID == id {
				found = key
			}
		}
		if found == nil {
			return nil, fault.ErrNotFound
		}
		changed = *found
		if err := change(&changed, b.now); err != nil || changed.Status == found.Status {
			return nil, err
		}
		b.putSigningKey(&changed)
		from, next := found.Status, (*store.SigningKeyRecord)(nil)
		if from == ledger.SigningActive && active == 1 {
			next = successor
			b.putSigningKey(next)
		}
		return signingKeyAuditEntry(action, &changed, from, next), nil
	})
	if err != nil {
		return nil, err
	}
	return &changed, nil
}

func (s *signingKeyService) changeSigningKeys(ctx context.Context, op *act, change func(*batch, []*store.SigningKeyRecord) (*auditEntry, error)) error {
	op.needs = func(needs *store.Needs) { needs.SigningKeys = append(needs.SigningKeys, op.org) }
	op.change = func(b *batch, org *ledger.Organization) (*auditEntry, error) {
		keys := b.loaded.SigningKeys[org.ID]
		if !evidence.AllAuthentic(keys) {
			return nil, errRegistry
		}
		return change(b, keys)
	}
	return s.committer.commit(ctx, op)
}

// putSigningKey sets a key's new state, for later operations of the batch and for the store.
func (b *batch) putSigningKey(key *store.SigningKeyRecord) {
	b.changes.SigningKeys = append(b.changes.SigningKeys, key)
	keys := b.loaded.SigningKeys[key.Org]
	for i := range keys {
		if keys[i].ID == key.ID {
			keys[i] = key
			return
		}
	}
	b.loaded.SigningKeys[key.Org] = append(keys, key)
}
