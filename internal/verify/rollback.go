package verify

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"countersign/internal/evidence"
	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// Heads compares the database with what was acknowledged. It finds a database, an organization or
// an audit log that is older than that, and a ledger that is not the watched one.
type Heads struct {
	*reader
	watch HeadWatch // nil without one
	// ledgers is watch if it implements LedgerWatch, otherwise nil.
	ledgers  LedgerWatch
	logMarks *keyring.LogMarks // nil without them

	missing atomic.Pointer[[]uuid.UUID] // organizations that are watched but not stored
	// Results of the last check for an unknown ledger: whether there are receipts although the
	// watch is empty, and the stored ledger's id, or nil.
	unremembered atomic.Bool
	stored       atomic.Pointer[uuid.UUID]
}

// HeadWatch records outside the database which receipts were acknowledged.
type HeadWatch interface {
	Seen(org uuid.UUID) (keyring.Seen, bool)
	All() map[uuid.UUID]keyring.Seen
	Note(org uuid.UUID, now keyring.Seen)
	// Flush makes everything that was noted durable.
	Flush() error
}

// Behind reports whether a head that is locked must not advance: it is older than what was
// acknowledged, an organization is missing, so that no head in this database can be assumed to be
// the newest, or the ledger is not recognized.
func (h *Heads) Behind(head *ledger.Head) bool {
	if h.watch == nil {
		return false
	}
	seen, _ := h.watch.Seen(head.Org.UUID)
	return older(head, seen) || h.behindLog(head) || h.incomplete() || h.unrecognized()
}

// Current reads an organization's head, and reports whether it is behind, as Behind does. The caller
// does not keep others from sealing: what they acknowledge after the head was read is no rollback.
func (h *Heads) Current(ctx context.Context, org ledger.OrgID) (head *ledger.Head, behind bool, err error) {
	var seen keyring.Seen
	if h.watch != nil {
		seen, _ = h.watch.Seen(org.UUID)
	}
	signed := h.signedReceipts(org)
	if head, err = h.Of(ctx, org); err != nil || h.watch == nil {
		return head, false, err
	}
	return head, older(head, seen) || head.Count < signed && h.behindLog(head) || h.incomplete() || h.unrecognized(), nil
}

// behindLog reports whether fewer receipts are stored than the organization's log was signed
// with. A process that dies leaves a heads file that is a second old, and no such mark.
func (h *Heads) behindLog(head *ledger.Head) bool {
	if head.Count >= h.signedReceipts(head.Org) {
		return false
	}
	// An operator may have accepted it just now. A file that cannot be read has not changed.
	_ = h.logMarks.Reload()
	return head.Count < h.signedReceipts(head.Org)
}

// signedReceipts is how many receipts an organization's log was signed with, as far as is
// known outside the database.
func (h *Heads) signedReceipts(org ledger.OrgID) int64 {
	if h.logMarks == nil {
		return 0
	}
	_, mark, _ := h.logMarks.Of(org.UUID) // zero where there is none
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
func (h *Heads) incomplete() bool {
	missing := h.missing.Load()
	return missing != nil && slices.ContainsFunc(*missing, func(org uuid.UUID) bool {
		_, watched := h.watch.Seen(org)
		return watched
	})
}

// Note records the heads that a batch has acknowledged.
func (h *Heads) Note(heads []*ledger.Head) {
	if h.watch == nil {
		return
	}
	for _, head := range heads {
		if head.Last != nil {
			h.watch.Note(head.Org.UUID, keyring.Seen{Count: head.Count, Last: *head.Last, Slug: h.remembered(head.Org)})
		}
	}
}

// NoteActs records the ends of audit logs durably.
func (h *Heads) NoteActs(logs []*ledger.ActLog) error {
	if h.watch == nil {
		return nil
	}
	for _, log := range logs {
		h.watch.Note(log.Org.UUID, keyring.Seen{Acts: log.End(), Slug: h.remembered(log.Org)})
	}
	return h.watch.Flush()
}

// remembered returns the watch's name for an organization, or reads it from the store the first
// time. The name is only for display, so failures are ignored.
func (h *Heads) remembered(id ledger.OrgID) string {
	if seen, _ := h.watch.Seen(id.UUID); seen.Slug != "" {
		return seen.Slug
	}
	ctx, cancel := context.WithTimeout(context.Background(), namingTimeout)
	defer cancel()
	org, err := h.store.Organization(ctx, id)
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

	onlyActs bool
}

// OnlyActs reports whether only the audit log differs: the receipts are those that were
// acknowledged, or none was.
func (r *Rollback) OnlyActs() bool { return r.onlyActs }

// Rollbacks returns the organizations whose ledger is not the one that this server has issued
// receipts for. While an organization is missing, no receipts are sealed for any. With an error, the
// ledgers of some organizations could not be read.
func (h *Heads) Rollbacks(ctx context.Context) ([]Rollback, error) {
	// Read the watch before the database, so that an organization that seals its first receipt in
	// the meantime does not count as missing.
	var watched map[uuid.UUID]keyring.Seen
	if h.watch != nil {
		watched = h.watch.All()
	}
	blank := h.ledgers != nil && h.ledgers.Blank()
	orgs, err := h.store.Organizations(ctx)
	if err != nil {
		return nil, err
	}
	var found []Rollback
	var reading Tolerance
	for _, org := range orgs {
		if !reading.Exhausted() {
			rollback, err := h.compare(ctx, org, watched[org.ID.UUID])
			reading.Note(err)
			if rollback != nil {
				found = append(found, *rollback)
			}
		}
		delete(watched, org.ID.UUID)
	}
	unknown, err := h.unknown(ctx, orgs, blank)
	reading.Note(err)
	return append(append(found, h.noteMissing(watched)...), unknown...), reading.First
}

// noteMissing remembers and returns the organizations that are watched but not stored.
func (h *Heads) noteMissing(watched map[uuid.UUID]keyring.Seen) []Rollback {
	if h.watch == nil {
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
	h.missing.Store(&missing)
	slices.SortFunc(found, func(a, b Rollback) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	return found
}

func (h *Heads) rollback(ctx context.Context, org *ledger.Organization) (*Rollback, error) {
	var seen keyring.Seen
	if h.watch != nil {
		seen, _ = h.watch.Seen(org.ID.UUID)
	}
	return h.compare(ctx, org, seen)
}

// compare checks an organization's ledger against what was recorded before it is read. Receipts
// sealed after that are no rollback.
func (h *Heads) compare(ctx context.Context, org *ledger.Organization, seen keyring.Seen) (*Rollback, error) {
	known, signed := seen.Acts, int64(0)
	if here := h.store.KnownEnd(org.ID); here.Count > known.Count {
		known = here
	}
	if h.watch != nil {
		signed = h.signedReceipts(org.ID)
	}
	if seen.Count == 0 && known.Count == 0 && signed == 0 {
		return nil, nil
	}
	head, err := h.Of(ctx, org.ID)
	if err != nil {
		return nil, err
	}
	end, err := h.store.ActLog(ctx, org.ID)
	if errors.Is(err, store.ErrNotFound) {
		end, err = &ledger.ActLog{Org: org.ID}, nil
	}
	if err != nil {
		return nil, err
	}
	behind, err := h.logBehind(ctx, end, known)
	if err != nil {
		return nil, err
	}
	other, err := h.otherReceipts(ctx, head, seen)
	shorter := head.Count < signed && h.behindLog(head)
	if err != nil || !behind && !other && !shorter {
		return nil, err
	}
	return &Rollback{
		Organization: org.Slug, ID: org.ID.UUID, Acknowledged: max(seen.Count, signed), Stored: head.Count, ActsAcknowledged: known.Count, ActsStored: end.Count,
		onlyActs: !other && !shorter,
	}, nil
}

// otherReceipts reports whether a ledger is not the one that was recorded.
func (h *Heads) otherReceipts(ctx context.Context, head *ledger.Head, seen keyring.Seen) (bool, error) {
	if seen.Count == 0 || older(head, seen) {
		return seen.Count > 0, nil
	}
	same := false
	err := h.store.ScanReceipts(ctx, head.Org, seen.Count, seen.Count, func(r *ledger.StoredReceipt) error {
		same = r.Hash() == seen.Last
		return nil
	})
	return !same, err
}

// logBehind reports whether an audit log is not the one that was known before. A log whose end
// fails, or that does not lead to its end, was changed rather than rolled back; the audit reports
// that.
func (h *Heads) logBehind(ctx context.Context, end *ledger.ActLog, known ledger.LogEnd) (bool, error) {
	if known.Count == 0 || end.End() == known {
		return false, nil
	}
	if end.Count > known.Count {
		acts, err := h.store.Acts(ctx, end.Org, known.Count+1, 1)
		if err != nil || len(acts) == 1 && acts[0].Sequence == known.Count && acts[0].Hash() == known.Last {
			return false, err
		}
	}
	err := h.store.CheckLog(ctx, end.Org)
	if errors.Is(err, evidence.ErrRolledBack) {
		return true, nil
	}
	if errors.Is(err, ledger.ErrStateTampered) {
		return false, nil
	}
	return false, err
}

// Of returns an organization's head, or an empty one if it is missing.
func (h *Heads) Of(ctx context.Context, org ledger.OrgID) (*ledger.Head, error) {
	head, err := h.store.Head(ctx, org)
	if errors.Is(err, store.ErrNotFound) {
		return &ledger.Head{Org: org}, nil
	}
	return head, err
}
