package service

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/notify"
	"countersign/internal/store"
)

// tampering is proof that evidence was changed outside the service: which check
// failed, and on what.
type tampering struct {
	check    ledger.Check
	receipt  ledger.ReceiptID  // zero: it is about none that is stored
	approval ledger.ApprovalID // likewise
	place    string            // what it is about, where it is about neither
}

// name is the same for the same finding, whoever comes upon it.
func (t *tampering) name() string {
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%s\n%s\n%s", t.check, t.receipt, t.approval, t.place)
	return "tampering/" + hex.EncodeToString(h.Sum(nil))
}

func (t *tampering) notice(org *ledger.Organization, now ledger.Time) *notify.Notice {
	n := &notify.Notice{Kind: notify.LedgerTamperFound, At: now, Organization: org.Slug, Status: string(t.check)}
	if t.receipt != (ledger.ReceiptID{}) {
		n.ReceiptID = t.receipt.String()
	}
	if t.approval != (ledger.ApprovalID{}) {
		n.ApprovalID = t.approval.String()
	}
	return n
}

// tellTimeout bounds how long an answer waits for the notice of what it says.
const tellTimeout = 10 * time.Second

// A finding that still stands, or stands again, is told again after so many days.
const (
	reminderDays = 7
	oneDay       = ledger.Time(24 * time.Hour / time.Millisecond)
)

// tell queues a notice of a finding unless one was queued lately, whichever replica
// made it.
func (s *Service) tell(ctx context.Context, id ledger.OrgID, t *tampering) error {
	// The caller may be gone; the notice is worth writing all the same.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tellTimeout)
	defer cancel()
	name, _, err := s.untold(ctx, id, t)
	if err != nil || name == "" {
		return visible(err)
	}
	return s.tellAs(ctx, id, t, name)
}

// untold is the name under which a finding is to be told, "" when it was told
// lately; again, when it was told before at all. Asked once more on the same day,
// what was told lately costs nothing.
func (s *Service) untold(ctx context.Context, id ledger.OrgID, t *tampering) (name string, again bool, err error) {
	today := int64(s.now() / oneDay)
	finding := t.name() + "/"
	name = fmt.Sprintf("%s%06d", finding, today) // days in order by their names as well
	if s.told.knows(id, name) {
		return "", true, nil
	}
	last, err := s.store.LastJobName(ctx, id, finding)
	if err != nil || last == "" {
		return name, false, err
	}
	day, err := strconv.ParseInt(strings.TrimPrefix(last, finding), 10, 64)
	if err == nil && day <= today && today-day < reminderDays {
		s.told.add(id, name)
		return "", true, nil
	}
	return name, true, nil
}

// tellAs does not load the organization to be changed: what someone did to that
// must not keep the notice back.
func (s *Service) tellAs(ctx context.Context, id ledger.OrgID, t *tampering, name string) error {
	s.log.Error("tampering was found: keep the database as it is, and run countersign audit", "check", string(t.check))
	org, err := s.store.Organization(ctx, id)
	if err != nil {
		return visible(err)
	}
	if heard, err := s.hearsOfTampering(ctx, org); err != nil || !heard {
		return visible(err) // its name stays free until there is someone to tell
	}
	n := t.notice(org, s.now())
	n.Link = s.link(n)
	body, err := n.Encode()
	if err != nil {
		return fmt.Errorf("encode a notice of tampering: %w", err)
	}
	err = s.committer.commit(ctx, &queueJobs{[]*store.Job{{Org: id, Kind: JobNotice, RunAt: n.At, Body: body, Once: name}}})
	if err == nil {
		s.told.add(id, name)
	}
	return err
}

// tellOrLog is for those who have an answer to give, with or without a notice.
func (s *Service) tellOrLog(ctx context.Context, id ledger.OrgID, t *tampering) {
	if err := s.tell(ctx, id, t); err != nil {
		s.log.Error("nobody was told of the tampering that was found: the next look at it tries again", "check", string(t.check), "error", err)
	}
}

func (s *Service) hearsOfTampering(ctx context.Context, org *ledger.Organization) (bool, error) {
	if len(s.guardians(org)) > 0 {
		return true, nil
	}
	endpoints, err := s.store.Webhooks(ctx, org.ID)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(endpoints, func(e *store.WebhookRecord) bool { return wants(e, notify.LedgerTamperFound) }), nil
}

// guardians are told of tampering by e-mail: the people whom the organization names
// for when nobody else answers. Settings that were changed outside the service
// name nobody.
func (s *Service) guardians(org *ledger.Organization) []string {
	if !org.Authentic(s.keys) {
		return nil
	}
	return org.Settings.FallbackApprovers
}

// telling passes a verification on and tells the organization of what it proves.
func (s *Service) telling(ctx context.Context, org ledger.OrgID) func(*ledger.Verification, error) (*ledger.Verification, error) {
	return func(v *ledger.Verification, err error) (*ledger.Verification, error) {
		if err == nil {
			if t := proven(v); t != nil {
				s.tellOrLog(ctx, org, t)
			}
		}
		return v, err
	}
}

// proven is the tampering that a verification proves, nil where it failed in
// nothing.
func proven(v *ledger.Verification) *tampering {
	overall, reason := v.Conclude()
	if overall != ledger.VerdictFailed {
		return nil
	}
	t := &tampering{check: ledger.Check(reason)}
	if i := slices.IndexFunc(v.Checks, func(c ledger.CheckResult) bool { return c.Status == ledger.CheckFail }); i >= 0 {
		t.check = v.Checks[i].Name
	}
	if v.Artifact == ledger.ArtifactReceipt {
		t.receipt.UUID = v.ID
	} else {
		t.approval.UUID = v.ID
	}
	return t
}

// tellOfAudit tells the organization of what an audit has found.
func (s *Service) tellOfAudit(ctx context.Context, org ledger.OrgID, audit *LedgerAudit) {
	if audit == nil || audit.AuditReport == nil || audit.Break == nil {
		return
	}
	t, err := s.broken(ctx, org, audit.Break, audit.HeadCount)
	if err != nil {
		t = &tampering{check: audit.Break.Check, place: audit.Break.Detail}
	}
	s.tellOrLog(ctx, org, t)
}

// broken is the tampering behind a break. One among the receipts that were counted
// when the audit began is about the receipt in that place. One behind them is
// about something without a receipt, whose place moves on as others are sealed:
// then what is said of it tells it from others.
func (s *Service) broken(ctx context.Context, org ledger.OrgID, found *ledger.Break, counted int64) (*tampering, error) {
	t := &tampering{check: found.Check, place: found.Detail}
	if found.Sequence < 1 || found.Sequence > counted {
		return t, nil
	}
	t.place = fmt.Sprint("receipt ", found.Sequence)
	receipts, err := s.store.Receipts(ctx, org, found.Sequence+1, 1)
	if err != nil {
		return nil, err
	}
	if len(receipts) == 1 && receipts[0].Sequence == found.Sequence {
		t.receipt, t.place = receipts[0].ID, ""
	}
	return t, nil
}

// toldNames remembers what this process knows to be queued, to spare a look
// each time that it comes up. The store has the last word.
type toldNames struct {
	mu    sync.Mutex
	names map[string]struct{}
}

const maxToldNames = 10_000

func (t *toldNames) knows(org ledger.OrgID, name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, known := t.names[org.String()+name]
	return known
}

func (t *toldNames) add(org ledger.OrgID, name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.names == nil || len(t.names) >= maxToldNames {
		t.names = make(map[string]struct{})
	}
	t.names[org.String()+name] = struct{}{}
}
