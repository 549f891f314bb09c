package service

import (
	"context"
	"errors"
	"sync"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// Caller is who a request comes from.
type Caller struct {
	Key  ledger.KeyID
	Org  ledger.OrgID
	Role ledger.Role
	Name string

	// secret is the hash of the secret that the caller showed; nil for a browser's
	// session, which ends with its key and not with a secret.
	secret *[32]byte
	// ends is when the secret stops being accepted if nobody changes the key before;
	// nil: never.
	ends *ledger.Time
	// remembered says that the key was not read for this request. A use case
	// that commits confirms it in its transaction, every other reads it afresh,
	// so a revoked key ends with the next request on every replica.
	remembered bool
}

var (
	errUnknownKey = ledger.Errorf(ledger.CodeUnauthenticated, "the API key is unknown or revoked: ask an admin for a new one")
	errKeyExpired = ledger.Errorf(ledger.CodeKeyExpired, "the API key has expired: ask an admin for a new one")
	errOldSecret  = ledger.Errorf(ledger.CodeKeyExpired, "the API key was rotated and this secret of it has expired: use the new one, or ask an admin to rotate the key again")
)

// usable refuses a key that is revoked or expired, and a secret that is not, or no
// longer, one of the key's.
func usable(key *ledger.KeyRecord, secret *[32]byte, now ledger.Time) error {
	switch previous := key.Previous; {
	case key.RevokedAt != nil:
		return errUnknownKey
	case !key.Active(now):
		return errKeyExpired
	case secret == nil || *secret == key.Hash:
		return nil
	case previous == nil || *secret != previous.Hash: // it was rotated twice since
		return errUnknownKey
	case now >= previous.ExpiresAt:
		return errOldSecret
	}
	return nil
}

// Authenticate finds who holds an API key.
func (s *Service) Authenticate(ctx context.Context, text string) (*Caller, error) {
	key, err := ledger.ParseAPIKey(text)
	if err != nil {
		return nil, ledger.Errorf(ledger.CodeMalformedKey, "this is not an API key of this service: %v", err)
	}
	hash := key.Hash()
	if caller := s.callers.get(hash); caller != nil {
		if caller.ends == nil || s.now() < *caller.ends {
			return caller, nil
		}
		s.callers.forget(caller.Key) // the store says why it ended
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
	remembered := *caller
	remembered.remembered = true
	s.callers.put(hash, &remembered)
	return caller, nil
}

// Remembers reports whether a key has been authenticated lately. It says nothing
// of what the key may do now.
func (s *Service) Remembers(text string) bool {
	key, err := ledger.ParseAPIKey(text)
	return err == nil && s.callers.get(key.Hash()) != nil
}

func callerOf(key *ledger.KeyRecord) *Caller {
	return &Caller{Key: key.ID, Org: key.Org, Role: key.Role, Name: key.Name}
}

// authorize is the one way into every use case that reads.
func (s *Service) authorize(ctx context.Context, caller *Caller, role ledger.Role) error {
	if caller.remembered {
		if err := s.confirm(ctx, caller); err != nil {
			return err
		}
	}
	return caller.require(role)
}

// confirm reads the key once more.
func (s *Service) confirm(ctx context.Context, caller *Caller) error {
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

// admit holds a caller against its key as it is stored now, and notes the use.
func (s *Service) admit(key *ledger.KeyRecord, caller *Caller, now ledger.Time) error {
	err := usable(key, caller.secret, now)
	// What a caller may do is what its key's row said when it was read. A row that says
	// something else is another key's.
	if err == nil && (key.Org != caller.Org || key.Role != caller.Role || key.Name != caller.Name) {
		err = errUnknownKey
	}
	if err != nil {
		if caller.secret != nil { // a session is not remembered
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
	return ledger.Errorf(ledger.CodeForbidden, "this needs the role %s; the key has the role %s: use a key of that role", role, c.Role)
}

// longestWait shortens a wait to the time for which the caller's secret is good.
func (c *Caller) longestWait(wait time.Duration, now ledger.Time) time.Duration {
	if c.ends == nil {
		return wait
	}
	// Compared in milliseconds: a far end is more than a Duration holds.
	left := max(*c.ends-now, 0)
	if left >= ledger.Time(wait.Milliseconds()) {
		return wait
	}
	return time.Duration(left) * time.Millisecond
}

// owns reports whether the caller may see or write a chain: everyone of its
// organization but agents, who see what their own key opened.
func (c *Caller) owns(chain *ledger.Chain) bool {
	return chain.Org == c.Org && (c.Role != ledger.RoleAgent || chain.OpenedBy == c.Key)
}

// callerCache remembers callers by the hash of their key.
type callerCache struct {
	mu      sync.RWMutex
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
