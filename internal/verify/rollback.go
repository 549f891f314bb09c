package verify

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"countersign/internal/evidence"
	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// HeadWatch records outside the database which receipts were acknowledged.
type HeadWatch interface {
	Seen(org uuid.UUID) (keyring.Seen, bool)
	All() map[uuid.UUID]keyring.Seen
	Note(org uuid.UUID, now keyring.Seen)
	// Flush makes everything that was noted durable.
	Flush() error
}

// Behind reports whether a head must not advance: it is older than what was acknowledged, an
// organization is missing, so that no head in this database can be assumed to be the newest, or the
// ledger is not recognized.
func (j *Judge) Behind(head *ledger.Head) bool {
	if j.watch == nil {
		return false
	}
	seen, _ := j.watch.Seen(head.Org.UUID)
	return older(head, seen) || j.behindLog(head) || j.incomplete() || j.unrecognized()
}

// behindLog reports whether fewer receipts are stored than the organization's log was signed
// with. A process that dies leaves a heads file that is a second old, and no such mark.
func (j *Judge) behindLog(head *ledger.Head) bool {
	if head.Count >= j.signedReceipts(head.Org) {
		return false
	}
	// An operator may have accepted it just now. A file that cannot be read has not changed.
	_ = j.logMarks.Reload()
	return head.Count < j.signedReceipts(head.Org)
}

// signedReceipts is how many receipts an organization's log was signed with, as far as is
// known outside the database.
func (j *Judge) signedReceipts(org ledger.OrgID) int64 {
	if j.logMarks == nil {
		return 0
	}
	_, mark, _ := j.logMarks.Of(org.UUID) // zero where there is none
	return mark.Size
}

// older reports whether a head is not from the ledger that was acknowledged. A head with the same
// count but another hash is a different history. If nothing was acknowledged, or an empty ledger
// was accepted, no head is older.
func older(head *ledger.Head, seen keyring.Seen) bool {
	if seen.Count == 0 {
		return false
	}
	return head.Count < seen.Count || (head.Count == seen.Count && (head.Last == nil || *head.Last != seen.Last))
}

// incomplete reports whether the last check found a watched organization missing. An operator's
// acceptance clears it immediately.
func (j *Judge) incomplete() bool {
	missing := j.missing.Load()
	return missing != nil && slices.ContainsFunc(*missing, func(org uuid.UUID) bool {
		_, watched := j.watch.Seen(org)
		return watched
	})
}

// NoteHeads records the heads that a batch has acknowledged.
func (j *Judge) NoteHeads(heads []*ledger.Head) {
	if j.watch == nil {
		return
	}
	for _, head := range heads {
		if head.Last != nil {
			j.watch.Note(head.Org.UUID, keyring.Seen{Count: head.Count, Last: *head.Last, Slug: j.remembered(head.Org)})
		}
	}
}

// NoteLogs records the ends of audit logs durably.
func (j *Judge) NoteLogs(logs []*ledger.ActLog) error {
	if j.watch == nil {
		return nil
	}
	for _, log := range logs {
		j.watch.Note(log.Org.UUID, keyring.Seen{Acts: log.End(), Slug: j.remembered(log.Org)})
	}
	return j.watch.Flush()
}

// remembered returns the watch's name for an organization, or reads it from the store the first
// time. The name is only for display, so failures are ignored.
func (j *Judge) remembered(id ledger.OrgID) string {
	if seen, _ := j.watch.Seen(id.UUID); seen.Slug != "" {
		return seen.Slug
	}
	ctx, cancel := context.WithTimeout(context.Background(), namingTimeout)
	defer cancel()
	org, err := j.store.Organization(ctx, id)
	if err != nil {
		return ""
	}
	return org.Slug
}

// namingTimeout is short because requests wait for it.
const namingTimeout = time.Second

// Rollback says that an organization's ledger or audit log is older than what was acknowledged.
type Rollback struct {
	Organization string    `json:"organization"`
	ID           uuid.UUID `json:"organization_id"`
	Acknowledged int64     `json:"receipts_acknowledged"`
	Stored       int64     `json:"receipts_stored"`
	// ActsAcknowledged and ActsStored are the same counts for the audit log.
	ActsAcknowledged int64 `json:"acts_acknowledged"`
	ActsStored       int64 `json:"acts_stored"`
	// Missing says that the organization is not in the database. Organization is then its recorded
	// name, which another organization may use by now.
	Missing bool `json:"missing"`
	// Unremembered says that there are receipts but no records of what was acknowledged: the heads
	// file was lost, or was never on this machine.
	Unremembered bool `json:"unremembered"`
	// OtherLedger says that the watch belongs to another ledger than the stored one, whose id is
	// then ID. It concerns all organizations and names none.
	OtherLedger bool `json:"other_ledger"`
}

// OfActsAlone reports whether only the audit log differs: the receipts are those that were
// acknowledged, or none was.
func (r *Rollback) OfActsAlone() bool {
	return (r.Acknowledged == 0 || r.Acknowledged == r.Stored) && r.ActsAcknowledged != r.ActsStored
}

// Rollbacks returns the organizations whose ledger is not the one that this server has issued
// receipts for. While an organization is missing, no receipts are sealed for any.
func (j *Judge) Rollbacks(ctx context.Context) ([]Rollback, error) {
	// Read the watch before the database, so that an organization that seals its first receipt in
	// the meantime does not count as missing.
	var watched map[uuid.UUID]keyring.Seen
	if j.watch != nil {
		watched = j.watch.All()
	}
	blank := j.ledgers != nil && j.ledgers.Blank()
	orgs, err := j.store.Organizations(ctx)
	if err != nil {
		return nil, err
	}
	var found []Rollback
	for _, org := range orgs {
		rollback, err := j.compare(ctx, org, watched[org.ID.UUID])
		if err != nil {
			return nil, err
		}
		if rollback != nil {
			found = append(found, *rollback)
		}
		delete(watched, org.ID.UUID)
	}
	unknown, err := j.unknown(ctx, orgs, blank)
	if err != nil {
		return nil, err
	}
	return append(append(found, j.noteMissing(watched)...), unknown...), nil
}

// noteMissing remembers and returns the organizations that are watched but not stored.
func (j *Judge) noteMissing(watched map[uuid.UUID]keyring.Seen) []Rollback {
	if j.watch == nil {
		return nil
	}
	var found []Rollback
	var missing []uuid.UUID
	for org, seen := range watched {
		if seen.Count > 0 || seen.Acts.Count > 0 {
			missing = append(missing, org)
			found = append(found, Rollback{
				Organization: cmp.Or(seen.Slug, org.String()), ID: org, Acknowledged: seen.Count, ActsAcknowledged: seen.Acts.Count, Missing: true,
			})
		}
	}
	j.missing.Store(&missing)
	slices.SortFunc(found, func(a, b Rollback) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	return found
}

func (j *Judge) rollback(ctx context.Context, org *ledger.Organization) (*Rollback, error) {
	var seen keyring.Seen
	if j.watch != nil {
		seen, _ = j.watch.Seen(org.ID.UUID)
	}
	return j.compare(ctx, org, seen)
}

// compare checks an organization's ledger against what was recorded before it is read. Receipts
// sealed after that are no rollback.
func (j *Judge) compare(ctx context.Context, org *ledger.Organization, seen keyring.Seen) (*Rollback, error) {
	known, signed := seen.Acts, int64(0)
	if here := j.store.KnownEnd(org.ID); here.Count > known.Count {
		known = here
	}
	if j.watch != nil {
		signed = j.signedReceipts(org.ID)
	}
	if seen.Count == 0 && known.Count == 0 && signed == 0 {
		return nil, nil
	}
	head, err := j.Head(ctx, org.ID)
	if err != nil {
		return nil, err
	}
	end, err := j.store.ActLog(ctx, org.ID)
	if errors.Is(err, store.ErrNotFound) {
		end, err = &ledger.ActLog{Org: org.ID}, nil
	}
	if err != nil {
		return nil, err
	}
	behind, err := j.logBehind(ctx, end, known)
	if err != nil {
		return nil, err
	}
	other, err := j.otherReceipts(ctx, head, seen)
	shorter := head.Count < signed && j.behindLog(head)
	if err != nil || !behind && !other && !shorter {
		return nil, err
	}
	return &Rollback{
		Organization: org.Slug, ID: org.ID.UUID, Acknowledged: max(seen.Count, signed), Stored: head.Count, ActsAcknowledged: known.Count, ActsStored: end.Count,
	}, nil
}

// otherReceipts reports whether a ledger is not the one that was recorded.
func (j *Judge) otherReceipts(ctx context.Context, head *ledger.Head, seen keyring.Seen) (bool, error) {
	if seen.Count == 0 || older(head, seen) {
		return seen.Count > 0, nil
	}
	same := false
	err := j.store.ScanReceipts(ctx, head.Org, seen.Count, seen.Count, func(r *ledger.StoredReceipt) error {
		same = r.Hash() == seen.Last
		return nil
	})
	return !same, err
}

// logBehind reports whether an audit log is not the one that was known before. A log whose end
// fails, or that does not lead to its end, was changed rather than rolled back; the audit reports
// that.
func (j *Judge) logBehind(ctx context.Context, end *ledger.ActLog, known ledger.LogEnd) (bool, error) {
	if known.Count == 0 || end.End() == known {
		return false, nil
	}
	if end.Count > known.Count {
		acts, err := j.store.Acts(ctx, end.Org, known.Count+1, 1)
		if err != nil || len(acts) == 1 && acts[0].Sequence == known.Count && acts[0].Hash() == known.Last {
			return false, err
		}
	}
	err := j.store.CheckLog(ctx, end.Org)
	if errors.Is(err, evidence.ErrRolledBack) {
		return true, nil
	}
	if errors.Is(err, ledger.ErrStateTampered) {
		return false, nil
	}
	return false, err
}

// Head returns an organization's head, or an empty one if it is missing.
func (j *Judge) Head(ctx context.Context, org ledger.OrgID) (*ledger.Head, error) {
	head, err := j.store.Head(ctx, org)
	if errors.Is(err, store.ErrNotFound) {
		return &ledger.Head{Org: org}, nil
	}
	return head, err
}
