package service

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"countersign/internal/canon"
	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/verify"
)

// LedgerIdentity says which ledger a database holds.
type LedgerIdentity = store.LedgerRecord

// Ledger is which ledger the database holds; ledger.ErrNotFound before that was decided.
func (s *Service) Ledger(ctx context.Context) (*LedgerIdentity, error) {
	identity, err := s.store.Ledger(ctx)
	return identity, visible(err)
}

// LedgerMemory is a watch that takes over the ledger that it meets.
type LedgerMemory interface {
	verify.LedgerWatch
	// Adopt is keyring.ErrOtherLedger where it watches another.
	Adopt(ledger uuid.UUID) error
	// Suspend keeps it blank until an operator has looked at the ledger.
	Suspend()
}

// RecognizeLedger reports whether a ledger holds receipts of which nothing at all is
// remembered, and then keeps the memory as blank as it is: what is done meanwhile must
// not pass for a memory of the rest. It changes nothing in the database.
func (o *Operator) RecognizeLedger(ctx context.Context, memory LedgerMemory) (lost bool, err error) {
	if !memory.Blank() {
		return false, nil
	}
	lost, err = o.holdsReceipts(ctx)
	if lost {
		memory.Suspend()
	}
	return lost, err
}

// AdoptLedger gives a ledger its id, where it has none, and has the memory watch it,
// where it watches none. A memory without anything in it is not made one of a ledger
// that holds receipts: what it would vouch for it has never seen. Then the operator
// has to say so.
func (o *Operator) AdoptLedger(ctx context.Context, memory LedgerMemory) error {
	lost, err := o.RecognizeLedger(ctx, memory)
	if err != nil {
		return err
	}
	identity, err := o.service.store.Ledger(ctx)
	switch {
	case err == nil, lost && errors.Is(err, store.ErrNotFound):
	case errors.Is(err, ledger.ErrStateTampered) && (lost || memory.Ledger() != uuid.Nil):
		// What somebody wrote there is nobody's word. The audit names it, and everything else
		// is as it was.
		return nil
	case errors.Is(err, store.ErrNotFound):
		// One that is watched lost its row.
		if identity, err = o.identify(ctx, memory.Ledger()); err != nil {
			return visible(err)
		}
	default:
		return visible(err)
	}
	if lost {
		return nil
	}
	return memory.Adopt(identity.ID)
}

// identify gives a ledger without an id its first. Of replicas that do so at once, one
// decides.
func (o *Operator) identify(ctx context.Context, id uuid.UUID) (*LedgerIdentity, error) {
	if id == uuid.Nil {
		id = o.service.randomID()
	}
	identity := &LedgerIdentity{ID: id, CreatedAt: o.service.now()}
	err := o.service.store.PutLedger(ctx, identity, uuid.Nil)
	if errors.Is(err, store.ErrExists) {
		return o.service.store.Ledger(ctx)
	}
	return identity, err
}

func (o *Operator) holdsReceipts(ctx context.Context) (bool, error) {
	orgs, err := o.Organizations(ctx)
	if err != nil {
		return false, err
	}
	for _, org := range orgs {
		_, sealed, err := o.service.judge.Sealed(ctx, org.ID)
		if err != nil || sealed {
			return sealed, visible(err)
		}
	}
	return false, nil
}

// AcceptLedger is the ledger that the database holds, as an operator accepts it: one that
// has no id, or one that somebody wrote, is given the one that is watched, or a new one.
func (o *Operator) AcceptLedger(ctx context.Context, watched uuid.UUID) (*LedgerIdentity, error) {
	identity, err := o.service.store.Ledger(ctx)
	switch {
	case errors.Is(err, store.ErrNotFound):
		identity, err = o.identify(ctx, watched)
	case errors.Is(err, ledger.ErrStateTampered):
		if watched == uuid.Nil {
			watched = o.service.randomID()
		}
		identity = &LedgerIdentity{ID: watched, CreatedAt: o.service.now()}
		err = o.service.store.ReplaceLedger(ctx, identity)
	}
	return identity, visible(err)
}

// Restoration is what came of restoring a ledger.
type Restoration struct {
	Ledger        uuid.UUID              `json:"ledger"`
	Parent        *uuid.UUID             `json:"parent"` // null where it was not known
	Organizations []RestoredOrganization `json:"organizations"`
}

// RestoredOrganization says what an organization has left.
type RestoredOrganization struct {
	Organization string    `json:"organization"`
	ID           uuid.UUID `json:"organization_id"`
	Receipts     int64     `json:"receipts"`
	ReceiptsLost int64     `json:"receipts_lost"` // acknowledged, as far as is remembered, and not in this ledger
	Acts         int64     `json:"acts"`          // before the one that says that it was restored
	ActsLost     int64     `json:"acts_lost"`
	// Missing says that the ledger does not know the organization at all.
	Missing bool `json:"missing"`
	// Diverged says that the ledger is as long as what was acknowledged, or longer, and
	// holds other receipts or acts.
	Diverged bool `json:"diverged"`

	end keyring.Seen
}

// Ends is where the organizations' ledgers end now.
func (r *Restoration) Ends() map[uuid.UUID]keyring.Seen {
	ends := make(map[uuid.UUID]keyring.Seen)
	for _, org := range r.Organizations {
		if !org.Missing {
			ends[org.ID] = org.end
		}
	}
	return ends
}

// Restore makes of a ledger that was put back one of its own, with a new id, and enters
// into each organization's audit log what was lost by it. seen is what was
// acknowledged, of the ledger watched. A log that cannot be written keeps no other from
// saying so: the result stands beside such an error.
func (o *Operator) Restore(ctx context.Context, watched uuid.UUID, seen map[uuid.UUID]keyring.Seen) (*Restoration, error) {
	orgs, err := o.Organizations(ctx)
	if err != nil {
		return nil, err
	}
	result := &Restoration{Organizations: []RestoredOrganization{}}
	for _, org := range orgs {
		restored, err := o.survey(ctx, org, seen[org.ID.UUID])
		if err != nil {
			return nil, err
		}
		result.Organizations = append(result.Organizations, *restored)
	}
	if err := o.renew(ctx, result, watched); err != nil {
		return nil, err
	}
	missing := missingFrom(orgs, seen)
	var unsaid []error
	for i := range result.Organizations {
		restored := &result.Organizations[i]
		if err := o.enterRestoration(ctx, result, restored, len(missing)); err != nil {
			unsaid = append(unsaid, fmt.Errorf("the audit log of %s does not say that it was restored: %w", restored.Organization, err))
		}
	}
	result.Organizations = append(result.Organizations, missing...)
	return result, errors.Join(unsaid...)
}

// survey holds one organization against what was acknowledged of it.
func (o *Operator) survey(ctx context.Context, org *ledger.Organization, seen keyring.Seen) (*RestoredOrganization, error) {
	end, err := o.end(ctx, org)
	if err != nil {
		return nil, err
	}
	restored := &RestoredOrganization{
		Organization: org.Slug, ID: org.ID.UUID, end: end,
		Receipts: end.Count, ReceiptsLost: max(0, seen.Count-end.Count),
		Acts: end.Acts.Count, ActsLost: max(0, seen.Acts.Count-end.Acts.Count),
	}
	restored.Diverged, err = o.diverged(ctx, org, end, seen)
	return restored, err
}

// end is where an organization's ledger ends.
func (o *Operator) end(ctx context.Context, org *ledger.Organization) (keyring.Seen, error) {
	end := keyring.Seen{Slug: org.Slug}
	head, err := o.service.judge.Head(ctx, org.ID)
	if err != nil {
		return end, visible(err)
	}
	if end.Count = head.Count; head.Last != nil {
		end.Last = *head.Last
	}
	log, err := o.service.store.ActLog(ctx, org.ID)
	if errors.Is(err, store.ErrNotFound) {
		return end, nil
	}
	if err != nil {
		return end, visible(err)
	}
	if end.Acts.Count = log.Count; log.Last != nil {
		end.Acts.Last = *log.Last
	}
	return end, nil
}

// diverged reports whether a ledger that goes as far as what was acknowledged holds
// something else there.
func (o *Operator) diverged(ctx context.Context, org *ledger.Organization, end, seen keyring.Seen) (bool, error) {
	other := false
	if seen.Count > 0 && seen.Count <= end.Count {
		other = true
		err := o.service.store.ScanReceipts(ctx, org.ID, seen.Count, seen.Count, func(r *ledger.StoredReceipt) error {
			other = r.Hash() != seen.Last
			return nil
		})
		if err != nil {
			return false, visible(err)
		}
	}
	if seen.Acts.Count > 0 && seen.Acts.Count <= end.Acts.Count {
		acts, err := o.service.store.Acts(ctx, org.ID, seen.Acts.Count+1, 1)
		if err != nil {
			return false, visible(err)
		}
		other = other || len(acts) == 0 || acts[0].Hash() != seen.Acts.Last
	}
	return other, nil
}

// renew gives the ledger a new id.
func (o *Operator) renew(ctx context.Context, result *Restoration, watched uuid.UUID) error {
	identity := &LedgerIdentity{ID: o.service.randomID(), Parent: watched, CreatedAt: o.service.now()}
	before, err := o.service.store.Ledger(ctx)
	switch {
	case err == nil:
		identity.Parent = before.ID
	case errors.Is(err, store.ErrNotFound), errors.Is(err, ledger.ErrStateTampered):
	default:
		return visible(err)
	}
	if err := o.service.store.ReplaceLedger(ctx, identity); err != nil {
		return visible(err)
	}
	result.Ledger = identity.ID
	if identity.Parent != uuid.Nil {
		result.Parent = &identity.Parent
	}
	return nil
}

// enterRestoration enters into an organization's audit log that it was restored. It
// names none of the missing ones: an audit log is for its own organization alone.
func (o *Operator) enterRestoration(ctx context.Context, result *Restoration, restored *RestoredOrganization, missing int) error {
	org := ledger.OrgID{UUID: restored.ID}
	detail := details(func(w *canon.ObjectWriter) {
		w.Int("acts", restored.Acts)
		w.Int("acts_lost", restored.ActsLost)
		if restored.Diverged {
			w.Bool("diverged", true)
		}
		w.String("ledger", result.Ledger.String())
		if missing > 0 {
			w.Int("organizations_missing", int64(missing))
		}
		if result.Parent == nil {
			w.Null("parent")
		} else {
			w.String("parent", result.Parent.String())
		}
		w.Int("receipts", restored.Receipts)
		w.Int("receipts_lost", restored.ReceiptsLost)
	})
	err := o.service.committer.commit(ctx, &act{org: org, actor: ledger.ActorOperator, change: func(*batch, *ledger.Organization) (*deed, error) {
		return &deed{action: ledger.ActLedgerRestore, target: restored.Organization, detail: detail}, nil
	}})
	if err != nil {
		return err
	}
	if err := o.acknowledgeRollback(ctx, restored.Organization); err != nil {
		return err
	}
	restored.end, err = o.end(ctx, &ledger.Organization{ID: org, Slug: restored.Organization})
	return err
}

// missingFrom lists the organizations that were acknowledged and are not stored.
func missingFrom(orgs []*ledger.Organization, seen map[uuid.UUID]keyring.Seen) []RestoredOrganization {
	stored := make(map[uuid.UUID]bool, len(orgs))
	for _, org := range orgs {
		stored[org.ID.UUID] = true
	}
	var missing []RestoredOrganization
	for id, head := range seen {
		if !stored[id] && head.Count+head.Acts.Count > 0 {
			missing = append(missing, RestoredOrganization{
				Organization: cmp.Or(head.Slug, id.String()), ID: id, ReceiptsLost: head.Count, ActsLost: head.Acts.Count, Missing: true,
			})
		}
	}
	slices.SortFunc(missing, func(a, b RestoredOrganization) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	return missing
}

// Diverged names the organizations whose ledger goes as far as another memory of it and
// holds something else there.
func (o *Operator) Diverged(ctx context.Context, seen map[uuid.UUID]keyring.Seen) ([]string, error) {
	orgs, err := o.Organizations(ctx)
	if err != nil {
		return nil, err
	}
	var diverged []string
	for _, org := range orgs {
		restored, err := o.survey(ctx, org, seen[org.ID.UUID])
		if err != nil {
			return nil, err
		}
		if restored.Diverged {
			diverged = append(diverged, org.Slug)
		}
	}
	return diverged, nil
}
