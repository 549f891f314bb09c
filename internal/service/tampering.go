package service

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"countersign/internal/cache"
	"countersign/internal/canon"
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

// reportTimeout bounds how long a request waits until its finding is stored and the notice is
// queued.
const reportTimeout = 10 * time.Second

const (
	reminderDays = 7 // after which an open finding is reported again
	oneDay       = 24 * time.Hour
)

// reportTampering stores a finding and queues a notice of it, unless the finding was
// acknowledged or some replica has queued a notice recently.
func (s *findingService) reportTampering(ctx context.Context, id ledger.OrgID, t *verify.Tampering) error {
	// The notice is queued even if the caller has disconnected.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reportTimeout)
	defer cancel()
	open, err := s.keep(ctx, id, t)
	if err == nil && !open {
		return nil
	}
	return errors.Join(err, s.notifyUnlessRecent(ctx, id, t))
}

func (s *findingService) notifyUnlessRecent(ctx context.Context, id ledger.OrgID, t *verify.Tampering) error {
	name, _, err := s.dueNotice(ctx, id, t)
	if err != nil || name == "" {
		return visible(err)
	}
	return s.queueTamperNotice(ctx, id, t, name)
}

// dueNotice returns the job name for a notice of a finding, or "" if one was queued recently;
// again reports whether one was ever queued. Repeated calls on one day are answered from
// memory.
func (s *findingService) dueNotice(ctx context.Context, id ledger.OrgID, t *verify.Tampering) (name string, again bool, err error) {
	today := s.now().Period(oneDay)
	finding := t.Name() + "/"
	name = fmt.Sprintf("%s%06d", finding, today) // padded, so that names sort by day
	if s.notified.knows(id, name) {
		return "", true, nil
	}
	last, err := s.store.LastJobName(ctx, id, finding, "")
	if err != nil || last == "" {
		return name, false, err
	}
	day, err := strconv.ParseInt(strings.TrimPrefix(last, finding), 10, 64)
	if err == nil && day <= today && today-day < reminderDays {
		s.notified.add(id, name)
		return "", true, nil
	}
	return name, true, nil
}

// queueTamperNotice does not lock the organization: tampering with it must not block the
// notice.
func (s *findingService) queueTamperNotice(ctx context.Context, id ledger.OrgID, t *verify.Tampering, name string) error {
	s.log.Error("tampering was found: keep the database as it is, and run countersign audit", "check", string(t.Check))
	org, err := s.store.Organization(ctx, id)
	if err != nil {
		return visible(err)
	}
	if found, err := s.hasTamperRecipient(ctx, org); err != nil || !found {
		return visible(err) // the job's name stays unused until there is a recipient
	}
	n := tamperNotice(t, org, s.now())
	n.Link = s.link(n)
	body, err := n.Encode()
	if err != nil {
		return fmt.Errorf("encode a notice of tampering: %w", err)
	}
	err = s.committer.commit(ctx, &queueJobs{[]*store.Job{{Org: id, Kind: JobNotice, RunAt: n.At, Body: body, Once: name}}})
	if err == nil {
		s.notified.add(id, name)
	}
	return err
}

// reportOrLog is reportTampering for callers that continue if it fails.
func (s *findingService) reportOrLog(ctx context.Context, id ledger.OrgID, t *verify.Tampering) {
	if err := s.reportTampering(ctx, id, t); err != nil {
		s.log.Error("reporting tampering failed: it is reported when it is found again", "check", string(t.Check), "error", err)
	}
}

func (s *findingService) hasTamperRecipient(ctx context.Context, org *ledger.Organization) (bool, error) {
	if len(s.tamperRecipients(org)) > 0 {
		return true, nil
	}
	endpoints, err := s.store.EndpointsToWarn(ctx, org.ID)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(endpoints, func(e *store.WebhookRecord) bool { return subscribes(e, notify.LedgerTamperFound) }), nil
}

// tamperRecipients lists the recipients of e-mail about tampering: the fallback approvers.
// Settings that fail authentication name nobody.
func (s *findingService) tamperRecipients(org *ledger.Organization) []string {
	if !org.Authentic(s.keys) {
		return nil
	}
	return org.Settings.FallbackApprovers
}

// reportProven returns a function that reports the tampering that a verification proves, and
// returns its arguments unchanged.
func (s *findingService) reportProven(ctx context.Context, org ledger.OrgID) func(*ledger.Verification, error) (*ledger.Verification, error) {
	return func(v *ledger.Verification, err error) (*ledger.Verification, error) {
		if err == nil {
			if t := verify.FromVerification(v); t != nil {
				s.reportOrLog(ctx, org, t)
			}
		}
		return v, err
	}
}

// reportAudit reports what an audit has found to the organization.
func (s *findingService) reportAudit(ctx context.Context, org ledger.OrgID, audit *verify.LedgerAudit) {
	if audit == nil || audit.AuditReport == nil || audit.Break == nil {
		return
	}
	if err := s.reportBreaks(ctx, org, audit.AuditReport, audit.HeadCount); err != nil {
		s.log.Error("reporting tampering failed: it is reported when it is found again", "check", string(audit.Break.Check), "error", err)
	}
}

// reportBreaks reports the breaks of an audit. Those of findings come first, because storing
// the others may restore a missing row.
func (s *findingService) reportBreaks(ctx context.Context, org ledger.OrgID, report *verify.AuditReport, counted int64) error {
	var failed []error
	for _, found := range append([]*ledger.Break{report.Further, report.Break}, report.RolledBack...) {
		if found == nil {
			continue
		}
		t, err := s.judge.Findings.FromBreak(ctx, org, found, counted)
		if err != nil {
			t = &verify.Tampering{Check: found.Check, Place: found.Detail}
		}
		failed = append(failed, s.reportTampering(ctx, org, t))
	}
	return errors.Join(failed...)
}

// nameSet caches names that are known to be stored, to save reads. Names may be evicted: the
// store is authoritative.
type nameSet struct {
	names *cache.Cache[string, struct{}]
}

// nameSetBytes bounds a nameSet: about ten thousand names.
const nameSetBytes = 4 << 20

func newNameSet() nameSet { return nameSet{cache.New[string, struct{}](nameSetBytes)} }

func (n *nameSet) knows(org ledger.OrgID, name string) bool {
	_, known := n.names.Get(org.String() + name)
	return known
}

func (n *nameSet) add(org ledger.OrgID, name string) {
	n.names.Put(org.String()+name, struct{}{}, len(name))
}

// tamperReporter implements verify.Reporter for self-checks.
type tamperReporter struct{ service *findingService }

func (r tamperReporter) Save(ctx context.Context, org ledger.OrgID, t *verify.Tampering) (open bool, err error) {
	return r.service.keep(ctx, org, t)
}

func (r tamperReporter) DueNotice(ctx context.Context, org ledger.OrgID, t *verify.Tampering) (name string, again bool, err error) {
	return r.service.dueNotice(ctx, org, t)
}

func (r tamperReporter) Notify(ctx context.Context, org ledger.OrgID, t *verify.Tampering, name string) error {
	return r.service.queueTamperNotice(ctx, org, t, name)
}

// JobCheck checks a part of an organization's ledger and is then queued again for the next
// part. Body: see encodeCheckProgress.
const JobCheck = "ledger.check"

// checkStart is the progress of a check that has not begun.
var checkStart = verify.CheckProgress{From: 1}

const (
	checkPause = time.Minute // between the jobs of one pass
	checkSlack = time.Hour   // how late a job may be before it counts as lost
)

func encodeCheckProgress(p verify.CheckProgress) []byte {
	w := canon.BeginObject(nil)
	w.Int("from", p.From)
	w.Int("looked", p.Checked)
	w.Int("reminded", p.Reminded)
	w.Int("told", p.Notified)
	return w.End()
}

func decodeCheckProgress(body []byte) (p verify.CheckProgress, err error) {
	v, err := canon.Parse(body)
	if err != nil {
		return p, fmt.Errorf("unreadable ledger check job: %w", err)
	}
	for name, field := range map[string]*int64{"from": &p.From, "looked": &p.Checked, "reminded": &p.Reminded, "told": &p.Notified} {
		member, _ := v.Get(name)
		*field, _ = member.Int()
	}
	p.From = max(p.From, 1)
	return p, nil
}

// checkJob returns a job without a stream: a job that an attacker postponed must not block its
// replacement.
func checkJob(org ledger.OrgID, place verify.CheckProgress, runAt ledger.Time) *store.Job {
	return &store.Job{Org: org, Kind: JobCheck, RunAt: runAt, Body: encodeCheckProgress(place)}
}

// QueueChecks ensures that each organization's ledger is checked regularly. Each check queues
// the next one. QueueChecks queues the first, and replaces one that was lost. Checks are
// spread over the interval. The job's name keeps replicas from queueing it twice.
func (s *findingService) QueueChecks(ctx context.Context, every time.Duration) error {
	return s.queueMissing(ctx, JobCheck, every, func(org ledger.OrgID, runAt ledger.Time) *store.Job {
		return checkJob(org, checkStart, runAt)
	})
}

// queueMissing queues a job of a kind for each organization that has none due within the
// interval.
func (s *findingService) queueMissing(ctx context.Context, kind string, every time.Duration, job func(org ledger.OrgID, runAt ledger.Time) *store.Job) error {
	orgs, err := s.organizations(ctx)
	if err != nil {
		return err
	}
	now := s.now()
	coming, err := s.store.JobsDue(ctx, kind, now, now.Add(every+checkSlack))
	if err != nil {
		return visible(err)
	}
	var jobs []*store.Job
	for _, org := range orgs {
		if coming[org.ID] == 0 {
			random := int64(binary.BigEndian.Uint64(org.ID.UUID[8:]) >> 2) // without the UUID's variant bits
			missing := job(org.ID, now.Add(ledger.Milliseconds(random%max(every.Milliseconds(), 1))))
			missing.Once = fmt.Sprint(kind, "/", now.Period(checkSlack))
			jobs = append(jobs, missing)
		}
	}
	if len(jobs) == 0 {
		return nil
	}
	return s.committer.commit(ctx, &queueJobs{jobs})
}

// CheckLedger checks the next part of a ledger, reports what is broken, and queues the next
// check: after checkPause or, at the end of the ledger, after the given interval.
func (j *Jobs) CheckLedger(ctx context.Context, job *store.Job, every time.Duration) error {
	place, err := decodeCheckProgress(job.Body)
	if err != nil {
		return err
	}
	org, err := j.service.store.Organization(ctx, job.Org)
	if err != nil {
		return visible(err)
	}
	next, done, err := j.service.judge.CheckNext(ctx, org, place, tamperReporter{j.service.findingService})
	if err != nil {
		return visible(err)
	}
	whole := j.service.ledgerChecks.fromTheStart(job.Org, place)
	follow := []*store.Job{checkJob(job.Org, next, j.service.now().Add(checkPause))}
	if done {
		if whole {
			j.service.ledgerChecks.end(job.Org, j.service.now())
		}
		if follow, err = j.nextRound(ctx, job.Org, every); err != nil {
			return visible(err)
		}
	}
	err = j.service.store.FinishJob(ctx, job, follow)
	if err == nil && whole && !done {
		j.service.ledgerChecks.queued(job.Org, next, j.service.now())
	}
	return err
}

// nextRound returns the first job of the next pass, or none if there is one already: of two
// concurrent passes, one ends. If both end because each saw the other, QueueChecks queues a
// new one.
func (j *Jobs) nextRound(ctx context.Context, org ledger.OrgID, every time.Duration) ([]*store.Job, error) {
	now := j.service.now()
	coming, err := j.service.store.JobsDue(ctx, JobCheck, now, now.Add(every+checkSlack))
	if err != nil || coming[org] > 1 {
		return nil, err
	}
	return []*store.Job{checkJob(org, checkStart, now.Add(every))}, nil
}

// ledgerChecks records, for this process only, when each ledger was last checked to its end.
// It does not depend on the queue, whose rows an attacker may delete.
type ledgerChecks struct {
	mu      sync.Mutex // guards ledgers
	ledgers map[ledger.OrgID]*ledgerCheck
}

// ledgerCheck is the progress of the checks of one ledger.
type ledgerCheck struct {
	ended ledger.Time          // last complete check; before the first, when tracking began
	tried ledger.Time          // last check because ended was too old; 0 for never
	place verify.CheckProgress // where that check continues
	// next is where the queued check continues of which this process has done every part so far.
	next verify.CheckProgress
}

// of returns the entry of a ledger, and creates it if needed. The caller holds mu.
func (r *ledgerChecks) of(org ledger.OrgID, now ledger.Time) *ledgerCheck {
	if r.ledgers == nil {
		r.ledgers = make(map[ledger.OrgID]*ledgerCheck)
	}
	if r.ledgers[org] == nil {
		r.ledgers[org] = &ledgerCheck{ended: now, place: checkStart, next: checkStart}
	}
	return r.ledgers[org]
}

func (r *ledgerChecks) end(org ledger.OrgID, now ledger.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.of(org, now)
	known.ended, known.place, known.next = now, checkStart, checkStart
}

// fromTheStart reports whether a queued check that continues at a place has checked everything
// before it in this process. A job says only where it continues: a copy of one that was finished,
// put back each day, would otherwise keep the beginning of a ledger from ever being checked.
func (r *ledgerChecks) fromTheStart(org ledger.OrgID, place verify.CheckProgress) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.ledgers[org]
	return place == checkStart || known != nil && known.next == place
}

// queued records where a check continues that this process has done from its start.
func (r *ledgerChecks) queued(org ledger.OrgID, next verify.CheckProgress, now ledger.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.of(org, now).next = next
}

// overdue lists the ledgers that were not checked to their end within one and a half
// intervals, least recently tried first. It also returns the age of the oldest check.
func (r *ledgerChecks) overdue(orgs []*ledger.Organization, every time.Duration, now ledger.Time) (late []*ledger.Organization, oldest time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, org := range orgs {
		age := now.Sub(r.of(org.ID, now).ended)
		oldest = max(oldest, age)
		if age > every+every/2 {
			late = append(late, org)
		}
	}
	slices.SortStableFunc(late, func(a, b *ledger.Organization) int {
		return cmp.Compare(r.of(a.ID, now).tried, r.of(b.ID, now).tried)
	})
	return late, oldest
}

func (r *ledgerChecks) begin(org ledger.OrgID, now ledger.Time) verify.CheckProgress {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.of(org, now)
	known.tried = now
	return known.place
}

func (r *ledgerChecks) moveOn(org ledger.OrgID, place verify.CheckProgress, now ledger.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.of(org, now).place = place
}

// overdueTime bounds how long one call checks overdue ledgers.
const overdueTime = 10 * time.Second

// CheckOverdue checks the next part of each ledger whose queued checks do not finish: jobs are
// rows, and an attacker may delete them as often as they are queued. It returns the age of the
// oldest finished check. A process does not see checks that other replicas have finished, so
// each replica checks every ledger itself from time to time.
func (s *findingService) CheckOverdue(ctx context.Context, every time.Duration) (oldest time.Duration, err error) {
	orgs, err := s.store.Organizations(ctx)
	if err != nil {
		return 0, visible(err)
	}
	began := s.now()
	late, oldest := s.ledgerChecks.overdue(orgs, every, began)
	var failed []error
	for i, org := range late {
		if i > 0 && s.now() > began.Add(overdueTime) {
			break
		}
		next, done, err := s.judge.CheckNext(ctx, org, s.ledgerChecks.begin(org.ID, began), tamperReporter{s})
		switch {
		case err != nil:
			failed = append(failed, visible(err))
		case done:
			s.ledgerChecks.end(org.ID, s.now())
		default:
			s.ledgerChecks.moveOn(org.ID, next, began)
		}
	}
	return oldest, errors.Join(failed...)
}
