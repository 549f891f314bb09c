package service

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"

	"countersign/internal/canon"
	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/verify"
)

// LedgerIdentity identifies the ledger in a database.
type LedgerIdentity = store.LedgerRecord

// Ledger returns the identity of the ledger; ErrNotFound before it has one.
func (s *Service) Ledger(ctx context.Context) (*LedgerIdentity, error) {
	identity, err := s.store.Ledger(ctx)
	return identity, visible(err)
}

// LedgerMemory is a watch that can start to watch a ledger.
type LedgerMemory interface {
	verify.LedgerWatch
	// Adopt starts to watch a ledger. It returns keyring.ErrOtherLedger if another one is
	// watched.
	Adopt(ledger uuid.UUID) error
}

// AdoptLedger gives a ledger an id if it has none, and makes the memory watch it if it watches
// none. An empty memory does not adopt a ledger that has receipts, because it cannot know how
// many there must be: the operator must accept that ledger explicitly.
func (o *Operator) AdoptLedger(ctx context.Context, memory LedgerMemory) error {
	lost := false
	if memory.Blank() {
		var err error
		if lost, err = o.holdsReceipts(ctx); err != nil {
			return err
		}
	}
	identity, err := o.service.store.Ledger(ctx)
	switch {
	case err == nil, lost && errors.Is(err, store.ErrNotFound):
	case errors.Is(err, ledger.ErrStateTampered) && (lost || memory.Ledger() != uuid.Nil):
		// The row was forged. The audit reports it, and nothing changes.
		return nil
	case errors.Is(err, store.ErrNotFound):
		// The ledger is new, or the row of a watched ledger was deleted.
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

// identify gives a ledger without an id its first one: the given id or, if that is zero, a
// random one. Of several replicas that do so concurrently, the first wins.
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
		_, sealed, err := o.service.judge.Heads.Sealed(ctx, org.ID)
		if err != nil || sealed {
			return sealed, visible(err)
		}
	}
	return false, nil
}

// AcceptLedger returns the identity of the ledger, as an operator accepts it. A missing or
// forged identity is replaced by the watched one, or a new one.
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

// Restoration is the result of restoring a ledger.
type Restoration struct {
	Ledger        uuid.UUID              `json:"ledger"`
	Parent        *uuid.UUID             `json:"parent"` // null if it is not known
	Organizations []RestoredOrganization `json:"organizations"`
}

// RestoredOrganization describes what an organization has and what it has lost.
type RestoredOrganization struct {
	Organization string    `json:"organization"`
	ID           uuid.UUID `json:"organization_id"`
	Receipts     int64     `json:"receipts"`
	ReceiptsLost int64     `json:"receipts_lost"` // known to be acknowledged, and not in this ledger
	Acts         int64     `json:"acts"`          // before the act about the restoration
	ActsLost     int64     `json:"acts_lost"`
	// Missing reports that the organization is not in the ledger at all.
	Missing bool `json:"missing"`
	// Diverged reports that the ledger is at least as long as what was acknowledged, but has
	// other receipts or acts.
	Diverged bool `json:"diverged"`

	end keyring.Seen
}

// Ends returns the current ends of the organizations' ledgers.
func (r *Restoration) Ends() map[uuid.UUID]keyring.Seen {
	ends := make(map[uuid.UUID]keyring.Seen)
	for _, org := range r.Organizations {
		if !org.Missing {
			ends[org.ID] = org.end
		}
	}
	return ends
}

// Restore gives a restored older ledger a new id, and records in each organization's audit log
// what was lost. watched is the ledger that was watched, and seen is what was acknowledged of
// it; what was signed in transparency logs was acknowledged, too. If an audit log cannot be
// written, the others still are, and the result is returned together with the error.
func (o *Operator) Restore(ctx context.Context, watched uuid.UUID, seen map[uuid.UUID]keyring.Seen) (*Restoration, error) {
	orgs, err := o.Organizations(ctx)
	if err != nil {
		return nil, err
	}
	var signed map[uuid.UUID]int64
	if o.service.logMarks != nil {
		signed = o.service.logMarks.Signed()
	}
	result := &Restoration{Organizations: []RestoredOrganization{}}
	for _, org := range orgs {
		restored, err := o.survey(ctx, org, seen[org.ID.UUID], signed[org.ID.UUID])
		if err != nil {
			return nil, err
		}
		result.Organizations = append(result.Organizations, *restored)
	}
	if err := o.renew(ctx, result, watched); err != nil {
		return nil, err
	}
	missing := missingFrom(orgs, seen, signed)
	var failed []error
	for i := range result.Organizations {
		restored := &result.Organizations[i]
		if err := o.logRestoration(ctx, result, restored, len(missing)); err != nil {
			failed = append(failed, fmt.Errorf("the audit log of %s does not say that it was restored: %w", restored.Organization, err))
		}
	}
	result.Organizations = append(result.Organizations, missing...)
	return result, errors.Join(failed...)
}

// survey compares an organization's ledger with what was acknowledged of it, and with the
// number of receipts that its log was signed with.
func (o *Operator) survey(ctx context.Context, org *ledger.Organization, seen keyring.Seen, signed int64) (*RestoredOrganization, error) {
	end, err := o.end(ctx, org)
	if err != nil {
		return nil, err
	}
	restored := &RestoredOrganization{
		Organization: org.Slug, ID: org.ID.UUID, end: end,
		Receipts: end.Count, ReceiptsLost: max(0, seen.Count-end.Count, signed-end.Count),
		Acts: end.Acts.Count, ActsLost: max(0, seen.Acts.Count-end.Acts.Count),
	}
	restored.Diverged, err = o.diverged(ctx, org, end, seen)
	return restored, err
}

// end returns the end of an organization's ledger.
func (o *Operator) end(ctx context.Context, org *ledger.Organization) (keyring.Seen, error) {
	end := keyring.Seen{Slug: org.Slug}
	head, err := o.service.judge.Heads.Of(ctx, org.ID)
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

// diverged reports whether a ledger is at least as long as what was acknowledged, but has other
// content.
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

// logRestoration records the restoration in an organization's audit log. It does not name the
// missing organizations: an audit log is only for its own organization.
func (o *Operator) logRestoration(ctx context.Context, result *Restoration, restored *RestoredOrganization, missing int) error {
	org := ledger.OrgID{UUID: restored.ID}
	closing, err := o.closingOf(ctx, org)
	if err != nil {
		return err
	}
	detail := details(func(w *canon.ObjectWriter) {
		w.Int("acts", restored.Acts)
		w.Int("acts_lost", restored.ActsLost)
		if restored.Diverged {
			w.Bool("diverged", true)
		}
		w.String("ledger", result.Ledger.String())
		closing.describe(w)
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
	err = o.service.committer.commit(ctx, &act{org: org, actor: ledger.ActorOperator, change: func(b *batch, _ *ledger.Organization) (*auditEntry, error) {
		closing.apply(b)
		return &auditEntry{action: ledger.ActLedgerRestore, target: restored.Organization, detail: detail}, nil
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

// missingFrom lists the organizations that were acknowledged or signed but are not stored.
func missingFrom(orgs []*ledger.Organization, seen map[uuid.UUID]keyring.Seen, signed map[uuid.UUID]int64) []RestoredOrganization {
	known := make(map[uuid.UUID]keyring.Seen, len(seen))
	maps.Copy(known, seen)
	for id, receipts := range signed {
		head := known[id]
		head.Count = max(head.Count, receipts)
		known[id] = head
	}
	for _, org := range orgs {
		delete(known, org.ID.UUID)
	}
	var missing []RestoredOrganization
	for id, head := range known {
		if head.Count+head.Acts.Count > 0 {
			missing = append(missing, RestoredOrganization{
				Organization: cmp.Or(head.Slug, id.String()), ID: id, ReceiptsLost: head.Count, ActsLost: head.Acts.Count, Missing: true,
			})
		}
	}
	slices.SortFunc(missing, func(a, b RestoredOrganization) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	return missing
}

// Diverged returns the slugs of the organizations whose ledger has diverged from what was
// seen.
func (o *Operator) Diverged(ctx context.Context, seen map[uuid.UUID]keyring.Seen) ([]string, error) {
	orgs, err := o.Organizations(ctx)
	if err != nil {
		return nil, err
	}
	var diverged []string
	for _, org := range orgs {
		restored, err := o.survey(ctx, org, seen[org.ID.UUID], 0)
		if err != nil {
			return nil, err
		}
		if restored.Diverged {
			diverged = append(diverged, org.Slug)
		}
	}
	return diverged, nil
}

// AcceptRollbacks accepts the database as it is, for an operator who has restored it on
// purpose, and records that in the audit log. accept resets what the watch has seen of an
// organization.
func (o *Operator) AcceptRollbacks(ctx context.Context, found []verify.Rollback, accept func(org uuid.UUID, now keyring.Seen) error) error {
	var missing []verify.Rollback
	for _, rollback := range found {
		if rollback.OtherLedger {
			if err := o.acceptOther(ctx); err != nil {
				return fmt.Errorf("accept another ledger: %w", err)
			}
			continue
		}
		if rollback.Missing {
			missing = append(missing, rollback)
			continue
		}
		now, err := o.acceptOlder(ctx, &rollback)
		if err == nil {
			err = accept(rollback.ID, now)
		}
		if err == nil {
			err = o.acknowledgeRollback(ctx, rollback.Organization)
		}
		if err != nil {
			return fmt.Errorf("accept the ledger of %s: %w", rollback.Organization, err)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if err := o.acceptMissing(ctx, missing); err != nil {
		return fmt.Errorf("accept that organizations are missing: %w", err)
	}
	for _, rollback := range missing {
		if err := errors.Join(o.endLogs(rollback.ID), accept(rollback.ID, keyring.Seen{})); err != nil {
			return fmt.Errorf("accept that %s is missing: %w", rollback.Organization, err)
		}
	}
	return nil
}

// AcceptChains accepts chains as they are, for an operator who has restored them on purpose, and
// records that in the audit logs of their organizations. accept resets what the watch has seen
// of an organization's chains.
func (o *Operator) AcceptChains(ctx context.Context, found []*verify.ChainRollback, accept func(org uuid.UUID) error) error {
	orgs, err := o.Organizations(ctx)
	if err != nil {
		return err
	}
	slugs := make(map[ledger.OrgID]string, len(orgs))
	for _, org := range orgs {
		slugs[org.ID] = org.Slug
	}
	chains := make(map[ledger.OrgID]int64)
	for _, back := range found {
		chains[back.Org]++
	}
	for org, count := range chains {
		slug, known := slugs[org]
		if known {
			err = o.logAcceptance(ctx, org, slug, &closing{}, func(w *canon.ObjectWriter) { w.Int("chains", count) })
		}
		if err == nil {
			err = accept(org.UUID)
		}
		if err == nil && known {
			err = o.acknowledgeRollback(ctx, slug)
		}
		if err != nil {
			return fmt.Errorf("accept the chains of %s: %w", cmp.Or(slug, org.String()), err)
		}
	}
	return nil
}

// acknowledgeRollback acknowledges the findings about the rollback: accepting it implies having
// examined them.
func (o *Operator) acknowledgeRollback(ctx context.Context, slug string) error {
	findings, err := o.Findings(ctx, slug)
	if err != nil {
		return err
	}
	for _, finding := range findings {
		// The transparency log of a restored database is older, too, and was closed.
		accepted := finding.Check == string(ledger.CheckRollback) || finding.Check == string(ledger.CheckTransparency)
		if accepted && finding.Open() {
			if err := o.Acknowledge(ctx, finding, "the database was accepted as it is"); err != nil {
				return err
			}
		}
	}
	return nil
}

// acceptOlder records the acceptance of a ledger in its organization's audit log, and returns
// the end of that ledger.
func (o *Operator) acceptOlder(ctx context.Context, rollback *verify.Rollback) (keyring.Seen, error) {
	org := ledger.OrgID{UUID: rollback.ID}
	head, err := o.service.judge.Heads.Of(ctx, org)
	if err != nil {
		return keyring.Seen{}, visible(err)
	}
	now := keyring.Seen{Count: head.Count}
	if head.Last != nil {
		now.Last = *head.Last
	}
	closing, err := o.closingOf(ctx, org)
	if err == nil {
		err = o.endLogs(rollback.ID)
	}
	if err != nil {
		return keyring.Seen{}, err
	}
	o.service.store.AcceptLog(org)
	err = o.logAcceptance(ctx, org, rollback.Organization, closing, func(w *canon.ObjectWriter) {
		w.Int("acts_acknowledged", rollback.ActsAcknowledged)
		w.Int("acts_stored", rollback.ActsStored)
		closing.describe(w)
		if !rollback.Unremembered {
			w.Int("receipts_acknowledged", rollback.Acknowledged)
		}
		w.Int("receipts_stored", head.Count)
		if rollback.Unremembered {
			w.Bool("unremembered", true)
		}
	})
	now.Acts = o.service.store.KnownEnd(org)
	return now, err
}

// acceptOther records in every audit log that the ledger is not the one that was watched. The
// caller makes the watch follow it.
func (o *Operator) acceptOther(ctx context.Context) error {
	orgs, err := o.Organizations(ctx)
	if err != nil {
		return err
	}
	for _, org := range orgs {
		closing, err := o.closingOf(ctx, org.ID)
		if err == nil {
			err = o.endLogs(org.ID.UUID)
		}
		if err == nil {
			err = o.logAcceptance(ctx, org.ID, org.Slug, closing, func(w *canon.ObjectWriter) {
				closing.describe(w)
				w.Bool("other_ledger", true)
			})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// acceptMissing records the acceptance in the audit log of every remaining organization,
// because sealing was blocked for all. It does not name the missing ones: an audit log is only
// for its own organization.
func (o *Operator) acceptMissing(ctx context.Context, missing []verify.Rollback) error {
	orgs, err := o.Organizations(ctx)
	if err != nil {
		return err
	}
	for _, org := range orgs {
		err := o.logAcceptance(ctx, org.ID, org.Slug, &closing{}, func(w *canon.ObjectWriter) {
			w.Int("organizations_missing", int64(len(missing)))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (o *Operator) logAcceptance(ctx context.Context, org ledger.OrgID, slug string, closing *closing, detail func(*canon.ObjectWriter)) error {
	return o.service.committer.commit(ctx, &act{org: org, actor: ledger.ActorOperator, change: func(b *batch, _ *ledger.Organization) (*auditEntry, error) {
		closing.apply(b)
		return &auditEntry{action: ledger.ActRollbackAccept, target: slug, detail: details(detail)}, nil
	}})
}
