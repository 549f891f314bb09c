package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"countersign/internal/keyring"
	"countersign/internal/service"
)

// opened is a store with its keys and the service on top.
type opened struct {
	store   migratingStore
	ring    *keyring.Ring   // nil where a command does without
	newKeys bool            // the key file was made just now
	heads   *keyring.Heads  // nil where a command does without
	chains  *keyring.Chains // likewise
	service *service.Service
}

func (o *opened) close() error {
	if o.service != nil {
		o.service.Close()
	}
	return o.store.Close()
}

func (o *opened) operator() *service.Operator { return o.service.Operator() }

// openService opens everything for a server and brings the schema up to date.
func (s *storage) openService(ctx context.Context, config service.Config) (*opened, error) {
	return s.openWith(ctx, config, true)
}

// openWith opens or makes everything and makes sure that the keys are the store's
// own.
func (s *storage) openWith(ctx context.Context, config service.Config, upgrade bool) (*opened, error) {
	db, err := s.openMigrated(ctx, upgrade)
	if err != nil {
		return nil, err
	}
	o := &opened{store: db}
	if o.ring, o.newKeys, err = s.makeRing(ctx, db); err != nil {
		return nil, errors.Join(err, o.close())
	}
	headsErr := s.openMemory(o)
	s.start(o, config)
	if err := o.operator().AdoptKeys(ctx, o.ring); err != nil {
		return nil, errors.Join(err, o.close())
	}
	if headsErr != nil { // said only now: with wrong keys nothing fits
		return nil, errors.Join(headsErr, o.close())
	}
	if err := o.checkSealed(ctx); err != nil {
		return nil, errors.Join(err, o.close())
	}
	if err := o.operator().AdoptLedger(ctx, forgivingHeads{o.heads}); err != nil {
		return nil, errors.Join(s.explainLedger(err), o.close())
	}
	return o, nil
}

// forgivingHeads are heads whose file cannot be written, perhaps. A server says so by
// itself, and serves.
type forgivingHeads struct{ *keyring.Heads }

// Adopt fails only where another ledger is watched.
func (h forgivingHeads) Adopt(ledger uuid.UUID) error {
	if err := h.Heads.Adopt(ledger); errors.Is(err, keyring.ErrOtherLedger) {
		return err
	}
	return nil
}

// explainLedger says what to do where the file of heads is one of another ledger.
func (s *storage) explainLedger(err error) error {
	if !errors.Is(err, keyring.ErrOtherLedger) {
		return err
	}
	return fmt.Errorf("the file of heads %s watches another ledger than the one in this database: find the database that it belongs to, or name this one's file with --heads; if the database was replaced or restored on purpose, run countersign rollback accept", s.headsFile())
}

// checkLedger refuses to change a ledger that the file of heads is not about.
func (s *storage) checkLedger(ctx context.Context, o *opened) error {
	stored, err := o.service.Ledger(ctx)
	if err != nil { // it has none yet, or one that somebody wrote: nothing is known against it
		return nil //nolint:nilerr // the audit names it
	}
	if watched := o.heads.Ledger(); watched != uuid.Nil && watched != stored.ID {
		return s.explainLedger(keyring.ErrOtherLedger)
	}
	return nil
}

// errUnsealed says that a database is from before its rows had authenticators, or named
// the act that changed them last.
var errUnsealed = errors.New("this database is from before its rows were authenticated, or told from older ones: stop every server on it, make a backup, and run countersign migrate --trust-existing once")

// checkSealed refuses a database that was not taken over yet. Once it was, a row
// without an authenticator is one that somebody changed: it is refused by itself, and
// the others are served.
func (o *opened) checkSealed(ctx context.Context) error {
	if o.ring.SealedRows() && o.ring.NumberedRows() {
		return nil
	}
	unsealed, err := o.operator().Unsealed(ctx)
	if err == nil && unsealed > 0 {
		err = errUnsealed
	}
	return err
}

// start puts the service on top.
//
//nolint:contextcheck,nolintlint // the service ends with its Close, not with the context that opened it; contextcheck looks here
func (s *storage) start(o *opened, config service.Config) {
	config.Store = o.store
	if o.ring != nil { // a nil *Ring would not be a nil interface
		config.Keys, config.Secrets = o.ring, o.ring
	}
	if o.heads != nil {
		config.Watch = o.heads
	}
	if o.chains != nil {
		config.Chains = o.chains
	}
	if !s.embedded() {
		config.Committers = 4
	}
	o.service = service.New(config)
}

// openDirectory opens a store that is there, for what needs no master key: to
// look at organizations and API keys.
func (s *storage) openDirectory(ctx context.Context) (*opened, error) {
	db, err := s.openStore(ctx)
	if err != nil {
		return nil, err
	}
	o := &opened{store: db}
	s.start(o, service.Config{})
	return o, nil
}

// openAdministration opens a store that is there together with its keys, to
// change what the audit log tells of.
func (s *storage) openAdministration(ctx context.Context) (*opened, error) {
	o, err := s.openKeyed(ctx, "the audit log cannot be written without it")
	if err != nil {
		return nil, err
	}
	if err := errors.Join(o.checkSealed(ctx), s.checkLedger(ctx, o)); err != nil {
		return nil, errors.Join(err, o.close())
	}
	return o, nil
}

// openAcceptance is openAdministration for whoever decides which ledger is the right
// one.
func (s *storage) openAcceptance(ctx context.Context) (*opened, error) {
	o, err := s.openKeyed(ctx, "the audit log cannot be written without it")
	if err != nil {
		return nil, err
	}
	if err := o.checkSealed(ctx); err != nil {
		return nil, errors.Join(err, o.close())
	}
	return o, nil
}

// openEvidence opens a store that is there together with its keys, changing
// nothing in either.
func (s *storage) openEvidence(ctx context.Context) (*opened, error) {
	return s.openKeyed(ctx, "nothing can be verified without it")
}

// openKeyed opens a store that is there with the keys that belong to it; loss
// says what cannot be done without them.
func (s *storage) openKeyed(ctx context.Context, loss string) (*opened, error) {
	db, err := s.openStore(ctx)
	if err != nil {
		return nil, err
	}
	o := &opened{store: db}
	if o.ring, err = keyring.Open(s.keyFile()); err != nil {
		if errors.Is(err, keyring.ErrNotFound) {
			err = fmt.Errorf("%w: %s; name it with --keys", err, loss)
		}
		return nil, errors.Join(err, o.close())
	}
	headsErr := s.openMemory(o)
	s.start(o, service.Config{})
	if err := o.operator().AdoptKeys(ctx, knownKeys{o.ring}); err != nil {
		return nil, errors.Join(err, o.close())
	}
	if headsErr != nil {
		return nil, errors.Join(headsErr, o.close())
	}
	if _, err := o.operator().RecognizeLedger(ctx, o.heads); err != nil {
		return nil, errors.Join(err, o.close())
	}
	return o, nil
}

// knownKeys is a ring that has no keys to add: adopting it only compares.
type knownKeys struct{ *keyring.Ring }

func (knownKeys) IDs() []string { return nil }
