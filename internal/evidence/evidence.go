// Package evidence authenticates the rows between the service and the database. An attacker with
// write access to the database can write any row, but cannot compute its authenticator without a
// master key. So rows are sealed when they are written and checked when they are read, and a row that
// fails is refused before anything depends on it. Events, approvals, counters, chain states and heads
// are sealed and opened by package ledger, which decodes them; Store refuses the rest itself.
//
// The service uses a Store of this package and no other.
package evidence

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"countersign/internal/cache"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// port is the plain database. The embedded field is unexported so that callers cannot bypass a
// Store.
type port = store.Store

// Store is a database whose rows are authenticated when written and when read. A test lists the
// methods that Store does not override, each with the reason: their rows are authenticated where
// they are decoded, carry no authority, or are not authenticated yet.
type Store struct {
	port
	// Jobs must be set before the store is used.
	Jobs JobRules
	// Remembered returns the end of an audit log that was recorded outside the database, or the
	// zero value if there is none. It is optional and must be set before the store is used.
	Remembered func(ledger.OrgID) ledger.LogEnd

	keys  ledger.Keys
	sound *cache.Cache[ledger.KeyID, *ledger.KeyRecord] // API keys that were found authentic
	orgs  *cache.Cache[*ledger.Organization, [32]byte]  // records that were found authentic, and the hash of their controls in the log
	logs  logs

	turns atomic.Int64 // how often anchors or findings were written through this store
}

// Epoch is a time in which nobody else wrote to the database, and this process wrote no anchor and
// found no tampering. The rest of what it writes leaves a sealed chain, its receipt and its links to
// both neighbours as they are. So what was found about them in an epoch holds to its end.
type Epoch struct{ commits, turns int64 }

// Known reports whether the store could tell. Two unknown epochs are not the same.
func (e Epoch) Known() bool { return e.commits != 0 }

// Epoch returns the current epoch. It must be called before the rows are read about which it is to
// tell something.
func (s *Store) Epoch() Epoch {
	turns := s.turns.Load()
	return Epoch{s.port.Epoch(), turns}
}

// Sizes of the caches of rows that were found authentic, in bytes.
const (
	maxKeyCache = 1 << 20
	maxOrgCache = 4 << 20
)

// New returns a Store that authenticates the rows of db. Without keys, no sealed row can be read.
func New(db store.Store, keys ledger.Keys) *Store {
	return &Store{
		port: db, keys: keys, sound: cache.New[ledger.KeyID, *ledger.KeyRecord](maxKeyCache), orgs: cache.New[*ledger.Organization, [32]byte](maxOrgCache),
		logs: logs{memory: make(map[ledger.OrgID]*logMemory)},
	}
}

// tampered says that a row is not what the service wrote.
func tampered(what string) error {
	return fmt.Errorf("%s fails its authenticator: %w", what, ledger.ErrStateTampered)
}

var errNoKeys = errors.New("rows cannot be authenticated without the master keys: name the key file with --keys")

func (s *Store) seal(org ledger.OrgID, purpose ledger.Purpose, record []byte) []byte {
	return ledger.Authenticate(s.keys, org, purpose, record)
}

// check verifies a record's authenticator.
func (s *Store) check(what string, org ledger.OrgID, purpose ledger.Purpose, mac, record []byte) error {
	if s.keys == nil {
		return errNoKeys
	}
	if !ledger.Authentic(s.keys, org, purpose, mac, record) {
		return tampered(what)
	}
	return nil
}

// Transact implements store.Writer. A row that fails is removed from what was loaded and named in
// Loaded.Tampered. Only the operations that need it are refused, not the others in the transaction.
func (s *Store) Transact(ctx context.Context, needs *store.Needs, plan func(*store.Loaded) (*store.Changes, error)) error {
	if s.keys == nil {
		return errNoKeys
	}
	known, err := s.prepare(ctx, needs)
	if err != nil {
		return err
	}
	var suspects []ledger.OrgID
	var changes *store.Changes
	err = s.port.Transact(ctx, needs, func(loaded *store.Loaded) (*store.Changes, error) {
		loaded.Tampered, loaded.Behind = nil, nil
		var err error
		if suspects, err = s.verifyLogs(loaded, known); err != nil {
			return nil, err
		}
		if err := s.admit(loaded); err != nil {
			return nil, err
		}
		if changes, err = plan(loaded); err != nil || changes == nil {
			return changes, err
		}
		return changes, s.sealAll(changes)
	})
	if changes != nil && len(changes.Anchors)+len(changes.Findings) > 0 {
		s.turns.Add(1) // whatever became of the commit
	}
	if err == nil && changes != nil {
		s.committed(changes)
	}
	for _, org := range suspects {
		// The result is kept in the log's memory. The operations were refused anyway.
		_ = s.catchUp(ctx, org)
	}
	return err
}

// CreateOrganization implements store.Directory.
func (s *Store) CreateOrganization(ctx context.Context, org *ledger.Organization, head *ledger.Head, with *store.Changes) error {
	if err := s.sealAll(with); err != nil {
		return err
	}
	err := s.port.CreateOrganization(ctx, org, head, with)
	if err == nil {
		s.committed(with)
	}
	return err
}

// admit removes everything from loaded that is not what the service wrote.
func (s *Store) admit(loaded *store.Loaded) error {
	for _, err := range [...]error{
		admitAll(loaded, loaded.Keys, requireCurrent(s, loaded, s.checkKey, keyRef)),
		admitAll(loaded, loaded.Rotations, s.checkRotation),
		admitAll(loaded, loaded.Tokens, requireCurrent(s, loaded, s.checkToken, tokenRef)),
		admitAll(loaded, loaded.Issued, requireCurrent(s, loaded, s.checkToken, tokenRef)),
		admitAll(loaded, loaded.Imported, requireCurrent(s, loaded, s.checkImported, importedRef)),
	} {
		if err != nil {
			return err
		}
	}
	// A tampered endpoint keeps its entry, reduced to its id, so that an admin can delete it.
	for id, webhook := range loaded.Webhooks {
		err := requireCurrent(s, loaded, s.checkWebhook, webhookRef)(webhook)
		if errors.Is(err, ledger.ErrStateTampered) {
			loaded.Webhooks[id] = tamperedWebhook(webhook)
		} else if err != nil {
			return err
		}
	}
	for ref, finding := range loaded.Findings {
		judged, err := s.judged(finding)
		if err != nil {
			return err
		}
		loaded.Findings[ref] = judged
	}
	check := requireCurrent(s, loaded, s.checkSigningKey, signingKeyRef)
	for _, keys := range loaded.SigningKeys {
		for i, key := range keys {
			if err := check(key); errors.Is(err, ledger.ErrStateTampered) {
				keys[i] = tamperedSigningKey(key)
			} else if err != nil {
				return err
			}
		}
	}
	if read := loaded.Policy; read != nil {
		check := requireCurrent(s, loaded, s.checkPolicy, policyRef)
		loaded.Policy = func(org ledger.OrgID, number int64) (*store.PolicyRecord, error) {
			policy, err := read(org, number)
			if err == nil {
				err = check(policy)
			}
			if err != nil {
				return nil, err
			}
			return policy, nil
		}
	}
	return nil
}

// requireCurrent returns a check that a row loaded in a transaction is authentic and current. Rows
// of organizations that the transaction did not load are not used by it, and nothing is decided for
// an organization that is behind, so both pass.
func requireCurrent[R any](s *Store, loaded *store.Loaded, check func(R) error, name func(R) recordRef) func(R) error {
	return func(row R) error {
		if err := check(row); err != nil {
			return err
		}
		n := name(row)
		if loaded.Orgs[n.org] == nil || slices.Contains(loaded.Behind, n.org) {
			return nil
		}
		return s.checkCurrent(n)
	}
}

// admitAll deletes the rows that fail from one map and adds them to loaded.Tampered.
func admitAll[K comparable, R any](loaded *store.Loaded, rows map[K]R, check func(R) error) error {
	for id, row := range rows {
		if err := check(row); errors.Is(err, ledger.ErrStateTampered) {
			delete(rows, id)
			loaded.Tampered = append(loaded.Tampered, id)
		} else if err != nil {
			return err
		}
	}
	return nil
}

// sealAll authenticates everything that is about to be written.
func (s *Store) sealAll(changes *store.Changes) error {
	sealed := len(changes.NewKeys) + len(changes.Keys) + len(changes.NewRotations) + len(changes.Webhooks) + len(changes.NewPolicies) +
		len(changes.NewTokens) + len(changes.RevokedTokens) + len(changes.SigningKeys) + len(changes.Findings) + len(changes.Anchors) +
		len(changes.NewImported) + len(changes.Transparency)
	if sealed > 0 && s.keys == nil {
		return errNoKeys
	}
	if sealed > 0 {
		if err := assignActs(changes); err != nil {
			return err
		}
	}
	for _, log := range changes.Logs {
		changes.Signals = append(changes.Signals, log.Org.UUID)
	}
	sealEach(s.sealKey, changes.NewKeys, changes.Keys)
	sealEach(s.sealRotation, changes.NewRotations)
	sealEach(s.sealWebhook, changes.Webhooks)
	sealEach(s.sealPolicy, changes.NewPolicies)
	sealEach(s.sealToken, changes.NewTokens, changes.RevokedTokens)
	sealEach(s.sealSigningKey, changes.SigningKeys)
	sealEach(s.sealFinding, changes.Findings)
	sealEach(s.sealAnchor, changes.Anchors)
	sealEach(s.sealImported, changes.NewImported)
	sealEach(s.sealTransparencyLog, changes.Transparency)
	var err error
	changes.NewJobs, err = s.sealJobs(changes.NewJobs)
	return err
}

func sealEach[R any](seal func(R), lists ...[]R) {
	for _, rows := range lists {
		for _, row := range rows {
			seal(row)
		}
	}
}
