// Package evidence stands between the use cases and the database. Whoever can write
// the database can write any row; he cannot make its authenticator, for he has no
// master key. So what is written here is sealed, and what is read here is held against
// its seal, and a row that fails is refused before anyone can act on it.
//
// The service holds a Store of this package and no other.
package evidence

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"countersign/internal/cache"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// port is the database as it is. Its name keeps others from reaching it through a Store.
type port = store.Store

// Store is a database whose rows are authenticated on their way in and out. The
// methods that it does not replace are listed in a test, each with the reason: their rows
// authenticate themselves where they are decoded, or carry no authority, or are not
// authenticated yet.
type Store struct {
	port
	// Jobs is set before the store is used.
	Jobs JobRules
	// Remembered tells which end of an audit log was remembered outside the database, the
	// zero value for none; optional, and set before the store is used.
	Remembered func(ledger.OrgID) ledger.LogEnd

	keys  ledger.Keys
	sound *cache.Cache[ledger.KeyID, *ledger.KeyRecord]
	orgs  *cache.Cache[ledger.OrgID, soundOrg]
	logs  logs
}

// soundInUse bounds what is remembered of rows that were found authentic, in bytes.
const (
	soundInUse = 1 << 20
	orgsInUse  = 4 << 20
)

// New puts the authentication of rows in front of a database. Without keys nothing
// that is sealed can be read.
func New(db store.Store, keys ledger.Keys) *Store {
	return &Store{
		port: db, keys: keys, sound: cache.New[ledger.KeyID, *ledger.KeyRecord](soundInUse), orgs: cache.New[ledger.OrgID, soundOrg](orgsInUse),
		logs: logs{memory: make(map[ledger.OrgID]*logMemory)},
	}
}

// tampered says that a row is not as the service wrote it.
func tampered(what string) error {
	return fmt.Errorf("%s fails its authenticator: %w", what, ledger.ErrStateTampered)
}

var errNoKeys = errors.New("rows cannot be authenticated without the master keys: name the key file with --keys")

// seal returns a record's authenticator.
func (s *Store) seal(org ledger.OrgID, purpose ledger.Purpose, record []byte) []byte {
	return ledger.Authenticate(s.keys, org, purpose, record)
}

// check holds a record against its authenticator.
func (s *Store) check(what string, org ledger.OrgID, purpose ledger.Purpose, mac, record []byte) error {
	if s.keys == nil {
		return errNoKeys
	}
	if !ledger.Authentic(s.keys, org, purpose, mac, record) {
		return tampered(what)
	}
	return nil
}

// Transact implements store.Writer. A row that fails is not among what is loaded, and
// Loaded.Tampered names it: the operation that needs it is refused, and the others of
// the same transaction are not.
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
		if suspects, err = s.holdLogs(loaded, known); err != nil {
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
	if err == nil && changes != nil {
		s.committed(changes)
	}
	for _, org := range suspects {
		// What it finds stands in the memory of the log; the operations were refused anyway.
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

// admit takes out of what was loaded whatever is not as the service wrote it.
func (s *Store) admit(loaded *store.Loaded) error {
	for _, err := range [...]error{
		admitAll(loaded, loaded.Keys, holding(s, loaded, s.checkKey, numberedKey)),
		admitAll(loaded, loaded.Rotations, s.checkRotation),
		admitAll(loaded, loaded.Tokens, holding(s, loaded, s.checkToken, numberedToken)),
		admitAll(loaded, loaded.Issued, holding(s, loaded, s.checkToken, numberedToken)),
		admitAll(loaded, loaded.Imported, holding(s, loaded, s.checkImported, numberedImported)),
	} {
		if err != nil {
			return err
		}
	}
	// The place of an endpoint is kept, with nothing but its id: an admin must be able to
	// delete one that was tampered with.
	for id, webhook := range loaded.Webhooks {
		err := holding(s, loaded, s.checkWebhook, numberedWebhook)(webhook)
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
	check := holding(s, loaded, s.checkSigningKey, numberedSigningKey)
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
		check := holding(s, loaded, s.checkPolicy, numberedPolicy)
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

// holding is a check that a row of a transaction is authentic and the newest. A row of an
// organization that was not loaded is nobody's in this transaction, and of one that is
// behind nothing is decided.
func holding[R any](s *Store, loaded *store.Loaded, check func(R) error, name func(R) numbered) func(R) error {
	return func(row R) error {
		if err := check(row); err != nil {
			return err
		}
		n := name(row)
		if loaded.Orgs[n.org] == nil || slices.Contains(loaded.Behind, n.org) {
			return nil
		}
		return s.held(n)
	}
}

// admitAll takes the rows of one map out that fail, and names them.
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

// sealAll authenticates what is about to be written.
func (s *Store) sealAll(changes *store.Changes) error {
	sealed := len(changes.NewKeys) + len(changes.Keys) + len(changes.NewRotations) + len(changes.Webhooks) + len(changes.NewPolicies) +
		len(changes.NewTokens) + len(changes.RevokedTokens) + len(changes.SigningKeys) + len(changes.Findings) + len(changes.Anchors) +
		len(changes.NewImported) + len(changes.Transparency)
	if sealed > 0 && s.keys == nil {
		return errNoKeys
	}
	if sealed > 0 {
		if err := number(changes); err != nil {
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
