package service

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"sync"

	"countersign/internal/canon"
	"countersign/internal/evidence"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

const signingKeyLabel = "signing-key/"

// newSigningKey makes a key whose private half only the key ring can read back.
func (s *Service) newSigningKey(org ledger.OrgID, name string) (*store.SigningKeyRecord, error) {
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

// signers keeps private keys that are in use.
type signers struct {
	mu   sync.Mutex
	keys map[ledger.SigningKeyID]ed25519.PrivateKey
}

const maxSigners = 1000

func (s *Service) privateKey(record *store.SigningKeyRecord) (ed25519.PrivateKey, error) {
	s.signers.mu.Lock()
	defer s.signers.mu.Unlock()
	if key, ok := s.signers.keys[record.ID]; ok {
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
	if s.signers.keys == nil || len(s.signers.keys) >= maxSigners {
		s.signers.keys = make(map[ledger.SigningKeyID]ed25519.PrivateKey)
	}
	s.signers.keys[record.ID] = key
	return key, nil
}

// sign signs an approval that has ended with the organization's newest active
// key. There always is one: a registry without was emptied by someone else.
func (b *batch) sign(approval *ledger.Approval) error {
	if b.service.secrets == nil {
		return nil
	}
	if !evidence.Genuine(b.loaded.SigningKeys[approval.Org]) {
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

// SigningKeyRequest asks for a new key, or brings a historical one.
type SigningKeyRequest struct {
	Name   string
	Public ed25519.PublicKey // of a historical key, nil for a new one
}

// ParseSigningKeyRequest reads the body of a request that creates or imports a
// signing key; the zero Value stands for no body.
func ParseSigningKeyRequest(v canon.Value) (*SigningKeyRequest, error) {
	request := &SigningKeyRequest{}
	if v.IsNull() {
		return request, nil
	}
	f := ledger.NewFields(v)
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

// CreateSigningKey adds a key to the registry: a new one, which signs from now
// on, or the public half of one that signed before.
func (s *Service) CreateSigningKey(ctx context.Context, caller *Caller, request *SigningKeyRequest) (*store.SigningKeyRecord, error) {
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
	err := s.changeSigningKeys(ctx, &act{caller: caller, org: caller.Org}, func(b *batch, keys []*store.SigningKeyRecord) (*deed, error) {
		if len(keys) >= maxSigningKeys {
			return nil, ledger.Errorf(ledger.CodeInvalid, "there are %d signing keys, the most there can be", maxSigningKeys)
		}
		b.putSigningKey(key)
		return signingKeyDeed(action, key, "", nil), nil
	})
	if err != nil {
		return nil, err
	}
	return key, nil
}

// SigningKeys lists the registry, oldest first.
func (s *Service) SigningKeys(ctx context.Context, caller *Caller) ([]*store.SigningKeyRecord, error) {
	if err := s.authorize(ctx, caller, ledger.RoleAdmin); err != nil {
		return nil, err
	}
	keys, err := s.store.SigningKeys(ctx, caller.Org)
	return keys, visible(err)
}

// RetireSigningKey ends a key's signing; what it signed stays trusted. The last
// active key has a successor first.
func (s *Service) RetireSigningKey(ctx context.Context, caller *Caller, id ledger.SigningKeyID) (*store.SigningKeyRecord, error) {
	if err := caller.require(ledger.RoleAdmin); err != nil {
		return nil, err
	}
	return s.moveSigningKey(ctx, &act{caller: caller, org: caller.Org}, id, ledger.ActSigningKeyRetire, func(key *store.SigningKeyRecord, now ledger.Time) error {
		switch key.Status {
		case ledger.SigningRetired, ledger.SigningRevoked:
			return nil
		case ledger.SigningHistorical, ledger.SigningConfirmed:
			return ledger.Errorf(ledger.CodeKeyState, "a historical key signs nothing: there is nothing to retire")
		}
		key.Status, key.RetiredAt = ledger.SigningRetired, &now
		return nil
	})
}

// RevokeSigningKey says that a key must not be trusted any more.
func (s *Service) RevokeSigningKey(ctx context.Context, caller *Caller, id ledger.SigningKeyID) (*store.SigningKeyRecord, error) {
	if err := caller.require(ledger.RoleAdmin); err != nil {
		return nil, err
	}
	return s.moveSigningKey(ctx, &act{caller: caller, org: caller.Org}, id, ledger.ActSigningKeyRevoke, func(key *store.SigningKeyRecord, now ledger.Time) error {
		if key.Status != ledger.SigningRevoked {
			key.Status, key.RevokedAt = ledger.SigningRevoked, &now
		}
		return nil
	})
}

// ConfirmSigningKey says that a historical key is what it claims to be: what it signed is
// trusted from then on.
func (s *Service) ConfirmSigningKey(ctx context.Context, caller *Caller, id ledger.SigningKeyID) (*store.SigningKeyRecord, error) {
	if err := caller.require(ledger.RoleAdmin); err != nil {
		return nil, err
	}
	return s.moveSigningKey(ctx, &act{caller: caller, org: caller.Org}, id, ledger.ActSigningKeyConfirm, confirmKey)
}

// RetractSigningKey takes back that a key was confirmed.
func (s *Service) RetractSigningKey(ctx context.Context, caller *Caller, id ledger.SigningKeyID) (*store.SigningKeyRecord, error) {
	if err := caller.require(ledger.RoleAdmin); err != nil {
		return nil, err
	}
	return s.moveSigningKey(ctx, &act{caller: caller, org: caller.Org}, id, ledger.ActSigningKeyRetract, retractKey)
}

func confirmKey(key *store.SigningKeyRecord, _ ledger.Time) error {
	if key.Status != ledger.SigningHistorical && key.Status != ledger.SigningConfirmed {
		return ledger.Errorf(ledger.CodeKeyState, "the key is %s: only a historical key can be confirmed", key.Status)
	}
	key.Status = ledger.SigningConfirmed
	return nil
}

func retractKey(key *store.SigningKeyRecord, _ ledger.Time) error {
	if key.Status != ledger.SigningHistorical && key.Status != ledger.SigningConfirmed {
		return ledger.Errorf(ledger.CodeKeyState, "the key is %s: there is no confirmation to take back", key.Status)
	}
	key.Status = ledger.SigningHistorical
	return nil
}

// SigningKeys lists the registry of an organization, oldest first.
func (o *Operator) SigningKeys(ctx context.Context, slug string) ([]*store.SigningKeyRecord, error) {
	org, err := o.organization(ctx, slug)
	if err != nil {
		return nil, err
	}
	keys, err := o.service.store.SigningKeys(ctx, org.ID)
	return keys, visible(err)
}

// ConfirmSigningKey is the same for the operator.
func (o *Operator) ConfirmSigningKey(ctx context.Context, slug string, id ledger.SigningKeyID) (*store.SigningKeyRecord, error) {
	return o.moveSigningKey(ctx, slug, id, ledger.ActSigningKeyConfirm, confirmKey)
}

// RetractSigningKey is the same for the operator.
func (o *Operator) RetractSigningKey(ctx context.Context, slug string, id ledger.SigningKeyID) (*store.SigningKeyRecord, error) {
	return o.moveSigningKey(ctx, slug, id, ledger.ActSigningKeyRetract, retractKey)
}

func (o *Operator) moveSigningKey(ctx context.Context, slug string, id ledger.SigningKeyID, action string, move func(*store.SigningKeyRecord, ledger.Time) error) (*store.SigningKeyRecord, error) {
	org, err := o.organization(ctx, slug)
	if err != nil {
		return nil, err
	}
	key, err := o.service.moveSigningKey(ctx, &act{actor: ledger.ActorOperator, org: org.ID}, id, action, move)
	if errors.Is(err, ledger.ErrNotFound) {
		return nil, ledger.Errorf(ledger.CodeNotFound, "there is no such signing key in %s; countersign signing-keys list shows those there are", org.Slug)
	}
	return key, err
}

// moveSigningKey changes a key's status. An organization is never left without a
// key that signs: the last active one has a successor in the same act.
func (s *Service) moveSigningKey(ctx context.Context, op *act, id ledger.SigningKeyID, action string, end func(*store.SigningKeyRecord, ledger.Time) error) (*store.SigningKeyRecord, error) {
	successor, err := s.newSigningKey(op.org, "")
	if err != nil {
		return nil, err
	}
	var ended store.SigningKeyRecord
	err = s.changeSigningKeys(ctx, op, func(b *batch, keys []*store.SigningKeyRecord) (*deed, error) {
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
			return nil, ledger.ErrNotFound
		}
		ended = *found
		if err := end(&ended, b.now); err != nil || ended.Status == found.Status {
			return nil, err
		}
		b.putSigningKey(&ended)
		from, next := found.Status, (*store.SigningKeyRecord)(nil)
		if from == ledger.SigningActive && active == 1 {
			next = successor
			b.putSigningKey(next)
		}
		return signingKeyDeed(action, &ended, from, next), nil
	})
	if err != nil {
		return nil, err
	}
	return &ended, nil
}

func (s *Service) changeSigningKeys(ctx context.Context, op *act, change func(*batch, []*store.SigningKeyRecord) (*deed, error)) error {
	op.needs = func(needs *store.Needs) { needs.SigningKeys = append(needs.SigningKeys, op.org) }
	op.change = func(b *batch, org *ledger.Organization) (*deed, error) {
		keys := b.loaded.SigningKeys[org.ID]
		if !evidence.Genuine(keys) {
			return nil, errRegistry
		}
		return change(b, keys)
	}
	return s.committer.commit(ctx, op)
}

// putSigningKey writes a key and lets the batch's later operations see it.
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
