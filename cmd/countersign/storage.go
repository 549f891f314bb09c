package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"countersign/internal/keyring"
	"countersign/internal/service"
	"countersign/internal/store"
	"countersign/internal/store/postgres"
	"countersign/internal/store/sqlite"
)

// storage says where records and keys are. Every command that works on a store
// has these flags.
type storage struct {
	Data     string `help:"Folder of the embedded database and the key file." default:"./data" type:"path"`
	Database string `help:"PostgreSQL address (postgres://…) to use instead of the embedded database."`
	Keys     string `help:"File of the master keys; the default is keys.json in the data folder." type:"path"`
}

// migratingStore is a store with its schema's affairs.
type migratingStore interface {
	store.Store
	Migrate(ctx context.Context) error
	SchemaVersion(ctx context.Context) (current, latest int64, err error)
}

func (s *storage) keyFile() string {
	if s.Keys != "" {
		return s.Keys
	}
	return filepath.Join(s.Data, "keys.json")
}

func (s *storage) embedded() bool { return s.Database == "" }

func (s *storage) open(ctx context.Context) (migratingStore, error) {
	if !s.embedded() {
		return postgres.Open(ctx, s.Database)
	}
	if err := os.MkdirAll(s.Data, 0o700); err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	return sqlite.Open(ctx, filepath.Join(s.Data, "countersign.db"))
}

// openRing opens the key file, making one only for a store that no key has ever
// signed in.
func (s *storage) openRing(ctx context.Context, db store.Store) (*keyring.Ring, error) {
	ring, err := keyring.Open(s.keyFile())
	if !errors.Is(err, keyring.ErrNotFound) {
		return ring, err
	}
	known, checkErr := db.KeyChecks(ctx)
	if checkErr != nil {
		return nil, checkErr
	}
	if len(known) > 0 {
		return nil, fmt.Errorf("%w: this store was signed in with another key file; restore it there or point --keys at it", err)
	}
	if err := os.MkdirAll(filepath.Dir(s.keyFile()), 0o700); err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	return keyring.Create(s.keyFile(), randomness, time.Now())
}

// opened is a store with its keys and the service on top.
type opened struct {
	store   migratingStore
	ring    *keyring.Ring
	service *service.Service
}

func (o *opened) close() error {
	if o.service != nil {
		o.service.Close()
	}
	return o.store.Close()
}

// openService opens everything, brings the schema up to date and makes sure that
// the keys are the store's own.
func (s *storage) openService(ctx context.Context, config service.Config) (*opened, error) {
	db, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	o := &opened{store: db}
	if err := db.Migrate(ctx); err != nil {
		return nil, errors.Join(err, o.close())
	}
	if o.ring, err = s.openRing(ctx, db); err != nil {
		return nil, errors.Join(err, o.close())
	}
	config.Store, config.Keys = db, o.ring
	if !s.embedded() {
		config.Committers = 4
	}
	o.service = service.New(config)
	if err := o.service.Operator().AdoptKeys(ctx, o.ring); err != nil {
		return nil, errors.Join(err, o.close())
	}
	return o, nil
}
