package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/notify"
	"countersign/internal/store"
	"countersign/internal/verify"
)

func tamperNotice(t *verify.Tampering, org *ledger.Organization, now ledger.Time) *notify.Notice {
	n := &notify.Notice{Kind: notify.LedgerTamperFound, At: now, Organization: org.Slug, Status: string(t.Check)}
	if t.Receipt != (ledger.ReceiptID{}) {
		n.ReceiptID = t.Receipt.String()
	}
	if t.Approval != (ledger.ApprovalID{}) {
		n.ApprovalID = t.Approval.String()
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

// tell keeps a finding, and queues a notice of it unless it was acknowledged or one was
// queued lately, whichever replica made it.
func (s *Service) tell(ctx context.Context, id ledger.OrgID, t *verify.Tampering) error {
	// The caller may be gone; the notice is worth writing all the same.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tellTimeout)
	defer cancel()
	open, err := s.keep(ctx, id, t)
	if err == nil && !open {
		return nil
	}
	return errors.Join(err, s.tellLately(ctx, id, t))
}

func (s *Service) tellLately(ctx context.Context, id ledger.OrgID, t *verify.Tampering) error {
	name, _, err := s.untold(ctx, id, t)
	if err != nil || name == "" {
		return visible(err)
	}
	return s.tellAs(ctx, id, t, name)
}

// untold is the name under which a finding is to be told, "" when it was told
// lately; again, when it was told before at all. Asked once more on the same day,
// what was told lately costs nothing.
func (s *Service) untold(ctx context.Context, id ledger.OrgID, t *verify.Tampering) (name string, again bool, err error) {
	today := int64(s.now() / oneDay)
	finding := t.Name() + "/"
	name = fmt.Sprintf("%s%06d", finding, today) // days in order by their names as well
	if s.told.knows(id, name) {
		return "", true, nil
	}
	last, err := s.store.LastJobName(ctx, id, finding, "")
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
func (s *Service) tellAs(ctx context.Context, id ledger.OrgID, t *verify.Tampering, name string) error {
	s.log.Error("tampering was found: keep the database as it is, and run countersign audit", "check", string(t.Check))
	org, err := s.store.Organization(ctx, id)
	if err != nil {
		return visible(err)
	}
	if heard, err := s.hearsOfTampering(ctx, org); err != nil || !heard {
		return visible(err) // its name stays free until there is someone to tell
	}
	n := tamperNotice(t, org, s.now())
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
func (s *Service) tellOrLog(ctx context.Context, id ledger.OrgID, t *verify.Tampering) {
	if err := s.tell(ctx, id, t); err != nil {
		s.log.Error("nobody was told of the tampering that was found: the next look at it tries again", "check", string(t.Check), "error", err)
	}
}

func (s *Service) hearsOfTampering(ctx context.Context, org *ledger.Organization) (bool, error) {
	if len(s.guardians(org)) > 0 {
		return true, nil
	}
	endpoints, err := s.store.EndpointsToWarn(ctx, org.ID)
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
			if t := verify.Proven(v); t != nil {
				s.tellOrLog(ctx, org, t)
			}
		}
		return v, err
	}
}

// tellOfAudit tells the organization of what an audit has found.
func (s *Service) tellOfAudit(ctx context.Context, org ledger.OrgID, audit *verify.LedgerAudit) {
	if audit == nil || audit.AuditReport == nil || audit.Break == nil {
		return
	}
	if err := s.tellOfBreaks(ctx, org, audit.AuditReport, audit.HeadCount); err != nil {
		s.log.Error("nobody was told of the tampering that was found: the next look at it tries again", "check", string(audit.Break.Check), "error", err)
	}
}

// tellOfBreaks tells of what a report names. What was done to findings comes first: to
// keep the other may put the row back that is missing.
func (s *Service) tellOfBreaks(ctx context.Context, org ledger.OrgID, report *verify.AuditReport, counted int64) error {
	var failed []error
	for _, found := range append([]*ledger.Break{report.Further, report.Break}, report.PutBack...) {
		if found == nil {
			continue
		}
		t, err := s.judge.Broken(ctx, org, found, counted)
		if err != nil {
			t = &verify.Tampering{Check: found.Check, Place: found.Detail}
		}
		failed = append(failed, s.tell(ctx, org, t))
	}
	return errors.Join(failed...)
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

// tamperReporter tells an organization of what a look over its ledger has found.
type tamperReporter struct{ service *Service }

func (r tamperReporter) Keep(ctx context.Context, org ledger.OrgID, t *verify.Tampering) (open bool, err error) {
	return r.service.keep(ctx, org, t)
}

func (r tamperReporter) Untold(ctx context.Context, org ledger.OrgID, t *verify.Tampering) (name string, again bool, err error) {
	return r.service.untold(ctx, org, t)
}

func (r tamperReporter) Tell(ctx context.Context, org ledger.OrgID, t *verify.Tampering, name string) error {
	return r.service.tellAs(ctx, org, t, name)
}
