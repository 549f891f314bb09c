package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"countersign/internal/keyring"
	"countersign/internal/service"
)

// Opened is an open store with its keys and its service.
type Opened struct {
	Store   Database
	Ring    *keyring.Ring     // nil if opened without keys
	NewKeys bool              // the key file was just created
	Heads   *keyring.Heads    // nil if opened without keys, or unwatched
	Chains  *keyring.Chains   // likewise
	marks   *keyring.LogMarks // likewise
	Service *service.Service
}

// Close stops the service, which commits queued writes, and closes the store.
func (o *Opened) Close() error {
	if o.Service != nil {
		o.Service.Close()
	}
	return o.Store.Close()
}

// Operator returns the use cases of the operator.
func (o *Opened) Operator() *service.Operator { return o.Service.Operator() }

// OpenForServing opens or creates a store for a server and migrates its schema.
func (s *Storage) OpenForServing(p *Process, config service.Config) (*Opened, error) {
	return s.OpenOrCreate(p, config, true)
}

// OpenOrCreate opens or creates a store with its keys, and checks that they belong
// together.
func (s *Storage) OpenOrCreate(p *Process, config service.Config, upgrade bool) (*Opened, error) {
	db, err := s.openMigrated(p, upgrade)
	if err != nil {
		return nil, err
	}
	o := &Opened{Store: db}
	if o.Ring, o.NewKeys, err = s.makeRing(p.Ctx, db); err != nil {
		return nil, errors.Join(err, o.Close())
	}
	headsErr := s.openMemory(o)
	s.start(o, config)
	if err := o.Operator().AdoptKeys(p.Ctx, o.Ring); err != nil {
		return nil, errors.Join(err, o.Close())
	}
	if headsErr != nil { // reported after wrong keys, which would cause it
		return nil, errors.Join(headsErr, o.Close())
	}
	if err := o.checkSealed(p.Ctx); err != nil {
		return nil, errors.Join(err, o.Close())
	}
	if err := o.Operator().AdoptLedger(p.Ctx, forgivingHeads{o.Heads}); err != nil {
		return nil, errors.Join(s.explainLedger(err), o.Close())
	}
	return o, nil
}

// forgivingHeads ignores that the heads file cannot be written: a server logs this
// itself, and still serves.
type forgivingHeads struct{ *keyring.Heads }

// Adopt fails only if the heads file is about another ledger.
func (h forgivingHeads) Adopt(ledger uuid.UUID) error {
	if err := h.Heads.Adopt(ledger); errors.Is(err, keyring.ErrOtherLedger) {
		return err
	}
	return nil
}

// explainLedger adds what to do if the heads file is about another ledger.
func (s *Storage) explainLedger(err error) error {
	if !errors.Is(err, keyring.ErrOtherLedger) {
		return err
	}
	return fmt.Errorf("the heads file %s is about another ledger than the one in this database: find the database that it belongs to, or name this one's file with --heads; if the database was replaced or restored on purpose, run countersign rollback accept", s.HeadsFile())
}

// checkLedger fails if the heads file is about another ledger.
func (s *Storage) checkLedger(ctx context.Context, o *Opened) error {
	stored, err := o.Service.Ledger(ctx)
	if err != nil { // the ledger has no id yet, or a forged one: there is nothing to compare
		return nil //nolint:nilerr // the audit names it
	}
	if watched := o.Heads.Ledger(); watched != uuid.Nil && watched != stored.ID {
		return s.explainLedger(keyring.ErrOtherLedger)
	}
	return nil
}

// errUnsealed is returned for a database that is older than row authenticators, or than
// row authenticators that name the last change.
var errUnsealed = errors.New("the rows of this database are not authenticated yet: stop every server on it, make a backup, and run countersign migrate --trust-existing once")

// checkSealed fails if rows have no authenticators and were never trusted. Once the rows
// of a database were trusted, a row without an authenticator was changed by someone: that
// row is refused, and the others are served.
func (o *Opened) checkSealed(ctx context.Context) error {
	if o.Ring.SealedRows() && o.Ring.NumberedRows() {
		return nil
	}
	unsealed, err := o.Operator().Unsealed(ctx)
	if err == nil && unsealed > 0 {
		err = errUnsealed
	}
	return err
}

// start starts the service on an open store.
//
//nolint:contextcheck,nolintlint // the service ends with its Close, not with the context that opened it; contextcheck looks here
func (s *Storage) start(o *Opened, config service.Config) {
	config.Store = o.Store
	if o.Ring != nil { // a nil *Ring in an interface is not nil
		config.Keys, config.Secrets, config.LogKeys = o.Ring, o.Ring, o.Ring
	}
	config.LogMarks = o.marks
	if config.Signing != nil {
		config.Signing.Keys = o.Ring
	}
	if o.Heads != nil {
		config.Watch = o.Heads
	}
	if o.Chains != nil {
		config.Chains = o.Chains
	}
	if !s.Embedded() {
		config.Committers = 4
	}
	o.Service = service.New(config)
}

// OpenWithoutKeys opens an existing store for reading what needs no master key, such as
// the list of organizations.
func (s *Storage) OpenWithoutKeys(p *Process) (*Opened, error) {
	db, err := s.OpenStore(p)
	if err != nil {
		return nil, err
	}
	o := &Opened{Store: db}
	s.start(o, service.Config{})
	return o, nil
}

// OpenForChanges opens an existing store with its keys, for changes that are entered
// into the audit log.
func (s *Storage) OpenForChanges(p *Process) (*Opened, error) {
	o, err := s.OpenForRecovery(p)
	if err != nil {
		return nil, err
	}
	if err := s.checkLedger(p.Ctx, o); err != nil {
		return nil, errors.Join(err, o.Close())
	}
	return o, nil
}

// OpenForRecovery is OpenForChanges without the check that the heads file is about this
// ledger, for the commands that resolve such a mismatch.
func (s *Storage) OpenForRecovery(p *Process) (*Opened, error) {
	o, err := s.OpenWithKeys(p, "the audit log cannot be written without it")
	if err != nil {
		return nil, err
	}
	if err := o.checkSealed(p.Ctx); err != nil {
		return nil, errors.Join(err, o.Close())
	}
	return o, nil
}

// OpenForReading opens an existing store with its keys and changes neither.
func (s *Storage) OpenForReading(p *Process) (*Opened, error) {
	return s.OpenWithKeys(p, "nothing can be verified without it")
}

// OpenWithKeys opens an existing store with its keys. The error for a missing key file
// says what cannot be done without it, which is loss.
func (s *Storage) OpenWithKeys(p *Process, loss string) (o *Opened, err error) {
	defer func() { err = Inconclusive(err) }()
	db, err := s.OpenStore(p)
	if err != nil {
		return nil, err
	}
	o = &Opened{Store: db}
	if o.Ring, err = s.OpenKeys(loss); err != nil {
		return nil, errors.Join(err, o.Close())
	}
	headsErr := s.openMemory(o)
	s.start(o, service.Config{})
	if err := o.Operator().AdoptKeys(p.Ctx, knownKeys{o.Ring}); err != nil {
		return nil, errors.Join(err, o.Close())
	}
	if headsErr != nil {
		return nil, errors.Join(headsErr, o.Close())
	}
	return o, nil
}

// OpenUnwatched starts the service on a restored store without the heads file and the marks
// of the logs, which are about the previous database. It closes db if it fails.
func (s *Storage) OpenUnwatched(p *Process, db Database) (o *Opened, err error) {
	defer func() { err = Inconclusive(err) }()
	o = &Opened{Store: db}
	if o.Ring, err = s.OpenKeys("nothing can be verified without it"); err != nil {
		return nil, errors.Join(err, o.Close())
	}
	s.start(o, service.Config{})
	if err := o.Operator().AdoptKeys(p.Ctx, knownKeys{o.Ring}); err != nil {
		return nil, errors.Join(err, o.Close())
	}
	if err := o.checkSealed(p.Ctx); err != nil {
		return nil, errors.Join(err, o.Close())
	}
	return o, nil
}

// WatchLogs restarts the service of an unwatched store with the marks of the logs, for closing
// the logs where they were last signed.
func (s *Storage) WatchLogs(o *Opened) (err error) {
	if o.marks, err = keyring.OpenLogMarks(keyring.LogMarksFile(s.HeadsFile()), o.Ring); err != nil {
		return Inconclusive(err)
	}
	o.Service.Close()
	s.start(o, service.Config{})
	return nil
}

// knownKeys is a ring that lists no keys to add, so that adopting it only compares.
type knownKeys struct{ *keyring.Ring }

func (knownKeys) IDs() []string { return nil }
