package service

import (
	"context"
	"fmt"

	"countersign/internal/canon"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// Rotation asks for a new secret of an API key.
type Rotation struct {
	Key ledger.KeyID
	// Overlap is how long the secret before is still accepted, in milliseconds.
	Overlap ledger.Time
	// IdempotencyKey makes a retry find the rotation instead of making another; ""
	// for none.
	IdempotencyKey string
}

// MaxOverlap is the longest time for which a replaced secret is still accepted, in
// milliseconds: a week.
const MaxOverlap = ledger.Time(7 * 24 * 60 * 60 * 1000)

// ParseOverlap reads the body of a request that rotates an API key; the zero Value
// stands for no body.
func ParseOverlap(v canon.Value) (ledger.Time, error) {
	if v.IsNull() {
		return 0, nil
	}
	f := ledger.NewFields(v)
	seconds := f.Int("overlap_seconds", 0, int64(MaxOverlap/1000))
	return ledger.Time(seconds * 1000), f.Err()
}

// RotateAPIKey replaces a key's secret. The new text is returned once: a retry
// under the same idempotency key finds the key without it.
func (s *Service) RotateAPIKey(ctx context.Context, caller *Caller, rotation *Rotation) (*NewKey, error) {
	if err := caller.require(ledger.RoleAdmin); err != nil {
		return nil, err
	}
	return s.rotateKey(ctx, caller, caller.Org, rotation)
}

// rotateKey rotates a key as a caller, or as the operator where there is none. The
// text of the answer is empty where the rotation was made before.
func (s *Service) rotateKey(ctx context.Context, caller *Caller, org ledger.OrgID, rotation *Rotation) (*NewKey, error) {
	if rotation.Overlap < 0 || rotation.Overlap > MaxOverlap {
		return nil, ledger.Invalid(ledger.FieldError{Pointer: "/overlap_seconds", Detail: fmt.Sprintf("must be an integer from 0 to %d", int64(MaxOverlap/1000))})
	}
	text, parsed, err := s.newSecret()
	if err != nil {
		return nil, err
	}
	made := &NewKey{}
	ref := store.RotationRef{Org: org, Key: rotation.IdempotencyKey}
	op := &act{caller: caller, actor: ledger.ActorOperator, org: org}
	op.needs = func(needs *store.Needs) {
		needs.Keys = append(needs.Keys, rotation.Key)
		if rotation.IdempotencyKey != "" {
			needs.Rotations = append(needs.Rotations, ref)
		}
	}
	op.change = func(b *batch, _ *ledger.Organization) (*deed, error) {
		key, err := b.keyOf(org, rotation.Key)
		if err != nil {
			return nil, err
		}
		if b.tampered(ref) {
			return nil, fmt.Errorf("a rotation of an API key fails its authenticator: %w", ledger.ErrStateTampered)
		}
		if earlier := b.loaded.Rotations[ref]; earlier != nil && rotation.IdempotencyKey != "" {
			if earlier.Key != rotation.Key || earlier.Overlap != rotation.Overlap {
				return nil, ledger.Errorf(ledger.CodeIdempotencyConflict, "this Idempotency-Key made another rotation already: use a new key for a new rotation")
			}
			*made = NewKey{Record: key}
			return nil, nil
		}
		if status := key.Status(b.now); status != ledger.APIKeyActive {
			return nil, ledger.Errorf(ledger.CodeAPIKeyEnded, "the key is %s, and a new secret would not bring it back: make a new key", status)
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
		*made = NewKey{Record: &rotated, Text: text}
		return keyDeed(ledger.ActKeyRotate, &rotated, "", ""), nil
	}
	// Without an overlap the secret in use ends here, which is a stop.
	if err := s.commitStop(ctx, op); err != nil {
		return nil, err
	}
	s.callers.forget(rotation.Key)
	return made, nil
}

// expiryJob has the expiry of a key entered into the audit log. The key ends by
// itself, whether or not the job is done.
func expiryJob(key *ledger.KeyRecord) *store.Job {
	return &store.Job{Org: key.Org, Kind: JobKeyExpiry, RunAt: *key.ExpiresAt, Body: []byte(key.ID.String())}
}

// KeyExpiry enters the expiry of an API key into the audit log, once, unless the key
// was revoked before.
func (j *Jobs) KeyExpiry(ctx context.Context, job *store.Job) error {
	id, err := ledger.ParseID(string(job.Body))
	if err != nil {
		return fmt.Errorf("an expiry without a key: %w", err)
	}
	keyID := ledger.KeyID{UUID: id}
	op := &act{actor: ledger.ActorService, org: job.Org}
	op.needs = func(needs *store.Needs) { needs.Keys = append(needs.Keys, keyID) }
	op.change = func(b *batch, _ *ledger.Organization) (*deed, error) {
		key, err := b.keyOf(job.Org, keyID)
		if err != nil || key.ExpiryLogged || key.Status(b.now) != ledger.APIKeyExpired {
			return nil, nil //nolint:nilerr // there is no key whose expiry could be told of
		}
		expired := *key
		expired.ExpiryLogged = true
		b.putKey(&expired)
		return keyDeed(ledger.ActKeyExpire, &expired, string(ledger.APIKeyActive), string(ledger.APIKeyExpired)), nil
	}
	if err := j.service.committer.commit(ctx, op); err != nil {
		return err
	}
	j.service.callers.forget(keyID)
	return j.Finish(ctx, job)
}
