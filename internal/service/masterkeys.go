package service

import (
	"context"
	"errors"
	"fmt"

	"countersign/internal/canon"
	"countersign/internal/ledger"
)

// Fingerprinter tells master keys apart without showing them.
type Fingerprinter interface {
	IDs() []string
	Fingerprint(keyID string) ([32]byte, bool)
}

// AdoptKeys holds the keys on the ring against those that have signed in this
// store and remembers new ones. A store is never served without a key that
// signed in it: its receipts would seem forged.
func (o *Operator) AdoptKeys(ctx context.Context, ring Fingerprinter) error {
	known, err := o.service.store.KeyChecks(ctx)
	if err != nil {
		return visible(err)
	}
	for id, fingerprint := range known {
		held, ok := ring.Fingerprint(id)
		if !ok {
			return fmt.Errorf("the key file lacks the master key %s, which has signed in this store: restore the key file that belongs to it", id)
		}
		if held != fingerprint {
			return fmt.Errorf("the key file's master key %s is not the one that has signed in this store: restore the key file that belongs to it", id)
		}
	}
	for _, id := range ring.IDs() {
		if _, ok := known[id]; ok {
			continue
		}
		fingerprint, _ := ring.Fingerprint(id)
		if err := o.service.store.AddKeyCheck(ctx, id, fingerprint); err != nil {
			return visible(err)
		}
	}
	return nil
}

// RecordRotation enters into the audit log of every organization that new
// signatures are made under another master key. One log that cannot be written
// keeps no other from saying so.
func (o *Operator) RecordRotation(ctx context.Context, previous, current string) error {
	orgs, err := o.Organizations(ctx)
	if err != nil {
		return err
	}
	var failed []error
	for _, org := range orgs {
		err := o.service.committer.commit(ctx, &act{actor: ledger.ActorOperator, org: org.ID, change: func(*batch, *ledger.Organization) (*deed, error) {
			return &deed{action: ledger.ActMasterKeyRotate, target: current, detail: details(func(w *canon.ObjectWriter) { moved(w, "key", previous, current) })}, nil
		}})
		if err != nil {
			failed = append(failed, fmt.Errorf("the audit log of %s does not say that the master key was rotated: %w", org.Slug, err))
		}
	}
	return errors.Join(failed...)
}
