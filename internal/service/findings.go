package service

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"countersign/internal/canon"
	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/verify"
)

// Finding is a record of tampering.
type Finding = store.FindingRecord

// findingService stores findings of tampering, notifies organizations of them, and schedules
// checks of their ledgers.
type findingService struct {
	*shared
	notified     nameSet             // notices that are known to be queued
	keptToday    nameSet             // findings that are known to have been stored today
	known        knownFindings       // the last read of the findings table
	ledgerChecks ledgerChecks        // when each ledger was last checked to its end
	pending      chan pendingFinding // stored by the goroutine of keepPendingFindings
	unkept       sync.WaitGroup      // findings in pending or being stored; tests wait for it
}

const (
	// maxFindings bounds the open findings of one organization, so that changing every row
	// of a large ledger does not fill the audit log. Further ones are still reported, and an
	// audit names them.
	maxFindings = 1000
	// maxFindingsRead bounds how many findings of an organization are read.
	maxFindingsRead = 20_000
	// maxForgedFindings bounds how many rows that the service did not write are shown.
	maxForgedFindings = 100
	// knownFor is how long the findings that were read are cached.
	knownFor = 3 * time.Second
)

// keep stores a finding, and reports whether it is unacknowledged. It works despite further
// tampering: if the organization or its audit log fails authentication, the row is written
// without an act. When a finding was last seen is renewed once a day, and with each check of a chain
// that fails: receipts are shown by whether that is later than the check that passed.
func (s *findingService) keep(ctx context.Context, id ledger.OrgID, t *verify.Tampering) (open bool, err error) {
	evidence, err := s.evidenceOf(ctx, t)
	if err != nil {
		return true, visible(err)
	}
	ref := store.FindingRef{Org: id, Name: t.Name()}
	finding, err := s.store.Finding(ctx, ref)
	switch {
	case errors.Is(err, store.ErrNotFound):
		if full, err := s.full(ctx, id); err != nil || full {
			return true, visible(err)
		}
	case err != nil:
		return true, visible(err)
	case !finding.Tampered && slices.Equal(finding.Evidence, evidence) && s.now() < finding.SeenAt.Add(oneDay) && !t.OfChain():
		return finding.Open(), nil
	}
	op := &keepFinding{ref: ref, tampering: t, evidence: evidence, logged: id != ledger.OrgID{}}
	err = s.committer.commit(ctx, op)
	if err != nil && op.logged && !errors.Is(err, store.ErrUnavailable) && !errors.Is(err, store.ErrOutcomeUnknown) {
		op = &keepFinding{ref: ref, tampering: t, evidence: evidence}
		err = s.committer.commit(ctx, op)
	}
	if err != nil {
		return true, err
	}
	s.known.forget()
	return op.open, nil
}

// evidenceOf returns the digest that an acknowledgement applies to. A row that failed in a
// request has no stable digest, so it counts as new each day.
func (s *findingService) evidenceOf(ctx context.Context, t *verify.Tampering) ([]byte, error) {
	evidence, err := s.judge.Findings.Evidence(ctx, t)
	if err == nil && t.Check == ledger.CheckRow {
		evidence = fmt.Appendf(evidence, " %d", s.now().Period(oneDay))
	}
	return evidence, err
}

// full reports whether an organization has reached maxFindings. Forged rows and acknowledged
// findings do not count, so that filling the table does not keep real findings out.
func (s *findingService) full(ctx context.Context, id ledger.OrgID) (bool, error) {
	list, _, err := s.findingsOf(ctx, id)
	if err != nil {
		return false, err
	}
	count := 0
	for _, finding := range list {
		if !finding.Tampered && finding.Open() {
			count++
		}
	}
	return count >= maxFindings, nil
}

// keepFinding writes a finding's row. It also appends an act to the audit log if the finding
// is new or its evidence differs from the acknowledged one.
type keepFinding struct {
	ref       store.FindingRef
	tampering *verify.Tampering
	evidence  []byte
	logged    bool // append an act, if the audit log is intact
	open      bool // result: the finding is unacknowledged
}

func (o *keepFinding) tenant() ledger.OrgID { return o.ref.Org }

func (o *keepFinding) size() int { return smallOperation }

func (o *keepFinding) changed() store.FindingRef {
	return store.FindingRef{Org: o.ref.Org, Name: verify.FindingChanged(o.ref.Name).Name()}
}

func (o *keepFinding) need(needs *store.Needs) {
	needs.Findings = append(needs.Findings, o.ref, o.changed())
	if o.logged {
		needs.Govern = append(needs.Govern, o.ref.Org)
		needs.Logs = append(needs.Logs, o.ref.Org)
	}
}

func (o *keepFinding) plan(b *batch) error {
	before := b.loaded.Findings[o.ref]
	if before != nil && before.Tampered {
		// The row is about to be replaced, so the change to it must be recorded as a
		// finding.
		if known := b.loaded.Findings[o.changed()]; known == nil || known.Tampered || !known.Open() {
			changed := verify.FindingChanged(o.ref.Name)
			if err := o.put(b, newFinding(o.changed(), changed, changed.DescriptionDigest(), b.now)); err != nil {
				return err
			}
		}
		before = nil
	}
	if before == nil {
		o.open = true
		return o.put(b, newFinding(o.ref, o.tampering, o.evidence, b.now))
	}
	finding := *before
	finding.SeenAt, finding.Evidence = max(finding.SeenAt, b.now), o.evidence
	if slices.Equal(before.Evidence, o.evidence) || before.Open() {
		o.open = before.Open()
		b.putFinding(&finding)
		return nil
	}
	finding.AcknowledgedAt, finding.AcknowledgedBy, finding.Reason = nil, "", ""
	o.open = true
	return o.put(b, &finding)
}

func newFinding(ref store.FindingRef, t *verify.Tampering, evidence []byte, now ledger.Time) *store.FindingRecord {
	kind, subject := t.About()
	return &store.FindingRecord{
		Org: ref.Org, Name: ref.Name, Check: string(t.Check), Kind: kind, Subject: printable(subject), Evidence: evidence, FoundAt: now, SeenAt: now,
	}
}

// put writes a finding together with its act.
func (o *keepFinding) put(b *batch, finding *store.FindingRecord) error {
	if o.logged && b.mayLog(finding.Org) {
		if err := b.logFinding(ledger.ActorService, ledger.ActTamperingFound, finding, nil); err != nil {
			return err
		}
	}
	b.putFinding(finding)
	return nil
}

func (b *batch) putFinding(finding *store.FindingRecord) {
	b.loaded.Findings[finding.Ref()] = finding
	b.findings[finding.Ref()] = true
}

// mayLog reports whether the service may append an act of its own. The organization must be as
// the last act left it: sealing another version would hide that it was reset.
func (b *batch) mayLog(id ledger.OrgID) bool {
	log := b.loaded.Logs[id]
	org, err := b.org(id)
	if err != nil || log == nil || !log.Authentic(b.service.keys) {
		return false
	}
	controls, err := org.Hash()
	return err == nil && controls == log.Controls
}

// logFinding appends an act about a finding. Its detail repeats the row, so that either can be
// read without the other.
func (b *batch) logFinding(actor ledger.Actor, action string, finding *store.FindingRecord, reason *string) error {
	before, err := b.org(finding.Org)
	if err != nil {
		return err
	}
	org := *before
	return b.enact(actor, &org, &auditEntry{action: action, target: verify.FindingID(finding.Name), detail: details(func(w *canon.ObjectWriter) {
		w.String("about", finding.Subject)
		w.String("check", finding.Check)
		w.String("evidence", hex.EncodeToString(finding.Evidence))
		w.String("kind", finding.Kind)
		if reason != nil {
			w.String("reason", *reason)
		}
	})})
}

// knownFindings caches the findings of all organizations.
type knownFindings struct {
	mu    sync.Mutex // guards the fields below; held while the table is read
	read  foundSet
	until time.Time
}

// foundSet is a list of findings, sorted by organization and name. It is never modified.
type foundSet struct {
	list []*store.FindingRecord
	more bool // there are more than were read
}

func (k *knownFindings) forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.until = time.Time{}
}

// findings returns the findings of all organizations, at most a few seconds old. A finding
// is never deleted, so an open one that disappears is itself a finding.
func (s *findingService) findings(ctx context.Context) (foundSet, error) {
	s.known.mu.Lock()
	defer s.known.mu.Unlock()
	if time.Now().Before(s.known.until) {
		return s.known.read, nil
	}
	read, err := s.readFindings(ctx)
	if err != nil {
		return foundSet{}, err
	}
	if !read.more {
		for _, deleted := range missing(s.known.read.list, read.list) {
			s.noteFinding(pendingFinding{org: deleted.Org, tampering: verify.FindingDeleted(deleted.Name), notify: true})
		}
	}
	s.known.read, s.known.until = read, time.Now().Add(knownFor)
	return read, nil
}

// readFindings reads the findings of each organization separately, so that filling the table
// for one hides none of the others.
func (s *findingService) readFindings(ctx context.Context) (read foundSet, err error) {
	ids, err := s.foundIn(ctx)
	if err != nil {
		return foundSet{}, err
	}
	for _, id := range ids {
		list, more, err := s.findingsOf(ctx, id)
		if err != nil {
			return foundSet{}, err
		}
		read.list, read.more = append(read.list, list...), read.more || more
	}
	return read, nil
}

// foundIn lists the organizations that may have findings: the stored ones, and others that
// occur in the findings table. If the organizations cannot be read, it returns the latter.
func (s *findingService) foundIn(ctx context.Context) ([]ledger.OrgID, error) {
	seen := map[ledger.OrgID]bool{{}: true} // findings of no organization
	orgs, err := s.store.Organizations(ctx)
	if err != nil {
		s.log.Error("reading the organizations failed: run countersign audit", "error", err)
	}
	for _, org := range orgs {
		seen[org.ID] = true
	}
	for after, n := (store.FindingRef{}), 0; n < maxFindingOrgs; n++ {
		next, err := s.store.Findings(ctx, after, 1)
		if err != nil {
			return nil, err
		}
		if len(next) == 0 {
			break
		}
		seen[next[0].Org] = true
		following, ok := idAfter(next[0].Org)
		if !ok {
			break
		}
		after = store.FindingRef{Org: following}
	}
	return slices.SortedFunc(maps.Keys(seen), func(a, b ledger.OrgID) int { return bytes.Compare(a.UUID[:], b.UUID[:]) }), nil
}

// maxFindingOrgs bounds how many organizations are searched for in the findings table.
const maxFindingOrgs = 1000

// idAfter returns the next id, or false after the last.
func idAfter(id ledger.OrgID) (ledger.OrgID, bool) {
	for i := len(id.UUID) - 1; i >= 0; i-- {
		if id.UUID[i]++; id.UUID[i] != 0 {
			return id, true
		}
	}
	return id, false
}

// findingsOf reads the findings of one organization, and reports whether there are more. It
// returns at most maxForgedFindings rows that the service did not write.
func (s *findingService) findingsOf(ctx context.Context, id ledger.OrgID) (list []*store.FindingRecord, more bool, err error) {
	const page = 500
	after, forged := store.FindingRef{Org: id}, 0
	switch nameless, err := s.store.Finding(ctx, after); { // the first page starts after it
	case err == nil:
		list, forged = append(list, nameless), 1
	case !errors.Is(err, store.ErrNotFound):
		return nil, false, err
	}
	for range maxFindingsRead / page {
		findings, err := s.store.Findings(ctx, after, page)
		if err != nil {
			return nil, false, err
		}
		for _, finding := range findings {
			switch {
			case finding.Org != id:
				return list, false, nil
			case finding.Tampered && forged >= maxForgedFindings:
				more = true
			default:
				list = append(list, finding)
			}
			if finding.Tampered {
				forged++
			}
		}
		if len(findings) < page || findings[len(findings)-1].Ref() == after {
			return list, more, nil // a page that ends where it started has rows with forged names
		}
		after = findings[len(findings)-1].Ref()
	}
	return list, true, nil
}

// missing returns the findings of before that are not in after. It ignores rows that failed
// authentication.
func missing(before, after []*store.FindingRecord) (deleted []*store.FindingRecord) {
	if len(before) == 0 {
		return nil
	}
	present := make(map[store.FindingRef]bool, len(after))
	for _, finding := range after {
		present[finding.Ref()] = true
	}
	for _, finding := range before {
		if !finding.Tampered && !present[finding.Ref()] {
			deleted = append(deleted, finding)
		}
	}
	return deleted
}

// OpenFindings counts the unacknowledged findings of all organizations.
func (s *findingService) OpenFindings(ctx context.Context) (int, error) {
	known, err := s.findings(ctx)
	if err != nil {
		return 0, visible(err)
	}
	count := 0
	for _, finding := range known.list {
		if finding.Open() {
			count++
		}
	}
	return count, nil
}

// Findings lists the findings of the caller's organization: open ones first, then the
// newest.
func (s *findingService) Findings(ctx context.Context, caller *Caller) ([]*Finding, error) {
	if err := s.authorize(ctx, caller, ledger.RoleMember); err != nil {
		return nil, err
	}
	known, err := s.findings(ctx)
	if err != nil {
		return nil, visible(err)
	}
	return sortedFindings(known.list, func(f *Finding) bool { return f.Org == caller.Org }), nil
}

func sortedFindings(list []*Finding, want func(*Finding) bool) (found []*Finding) {
	for _, finding := range list {
		if want(finding) {
			found = append(found, finding)
		}
	}
	slices.SortStableFunc(found, func(a, b *Finding) int {
		switch {
		case a.Open() != b.Open():
			if a.Open() {
				return -1
			}
			return 1
		case a.FoundAt != b.FoundAt:
			return int(min(max(b.FoundAt-a.FoundAt, -1), 1))
		}
		return strings.Compare(a.Name, b.Name)
	})
	return found
}

// pendingFinding is tampering that a request or job has found. It is stored asynchronously, so
// that the request does not wait.
type pendingFinding struct {
	org       ledger.OrgID
	tampering *verify.Tampering
	notify    bool // also notify the organization
}

// maxPendingFindings bounds the queue. Further findings are dropped: they are found again,
// at the latest by the daily self-check.
const maxPendingFindings = 64

// NoteTampering records, asynchronously, that a request or job has read a row that fails
// authentication. It ignores other errors. The zero organization stands for an unknown one.
func (s *findingService) NoteTampering(org ledger.OrgID, err error) {
	var rolledBack *chainRollbackError
	if errors.As(err, &rolledBack) {
		s.noteFinding(pendingFinding{org: rolledBack.rollback.Org, tampering: rolledBack.rollback.Tampering(), notify: true})
		return
	}
	var own *fault.Error
	if errors.Is(err, ledger.ErrStateTampered) || errors.As(err, &own) && own.Code == fault.CodeEvidenceTampered {
		s.noteFinding(pendingFinding{org: org, tampering: &verify.Tampering{Check: ledger.CheckRow, Place: rowOf(err)}, notify: org != ledger.OrgID{}})
	}
}

// noteFinding queues a finding to be stored, unless this process has stored it today. It never
// blocks: if the queue is full, the finding is dropped.
func (s *findingService) noteFinding(pending pendingFinding) {
	if s.keptToday.knows(pending.org, s.todaysName(pending.tampering)) {
		return
	}
	s.unkept.Add(1)
	select {
	case s.pending <- pending:
	default:
		s.unkept.Done()
	}
}

func (s *findingService) todaysName(t *verify.Tampering) string {
	return fmt.Sprint(t.Name(), "/", s.now().Period(oneDay))
}

// keepPendingFindings stores pending findings one at a time, until ctx ends.
func (s *findingService) keepPendingFindings(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case pending := <-s.pending:
			s.keepPending(ctx, pending)
			s.unkept.Done()
		}
	}
}

func (s *findingService) keepPending(ctx context.Context, pending pendingFinding) {
	name := s.todaysName(pending.tampering)
	if s.keptToday.knows(pending.org, name) {
		return
	}
	limited, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	open, err := s.keep(limited, pending.org, pending.tampering)
	if err == nil {
		s.keptToday.add(pending.org, name)
	}
	if pending.notify && open {
		err = errors.Join(err, s.notifyUnlessRecent(limited, pending.org, pending.tampering))
	}
	if err != nil && ctx.Err() == nil { // otherwise the service is stopping
		s.log.Error("storing a finding of tampering failed: it is stored when it is found again", "check", string(pending.tampering.Check), "error", err)
	}
}

// rowOf returns the part of a tampering error that describes the row.
func rowOf(err error) string {
	var wrapped *cause
	if errors.As(err, &wrapped) {
		err = wrapped.inner
	}
	return printable(strings.TrimSuffix(err.Error(), ": "+ledger.ErrStateTampered.Error()))
}

// printable returns the beginning of an untrusted text, without control characters.
func printable(text string) string {
	const maxBytes = 500
	var b strings.Builder
	for _, r := range text {
		if b.Len() >= maxBytes {
			break
		}
		if !unicode.IsPrint(r) {
			r = '?'
		}
		b.WriteRune(r)
	}
	return b.String()
}

// Findings lists the findings of an organization, or of all organizations if slug is empty,
// open ones first.
func (o *Operator) Findings(ctx context.Context, slug string) ([]*Finding, error) {
	want := func(*Finding) bool { return true }
	if slug != "" {
		org, err := o.Organization(ctx, slug)
		if err != nil {
			return nil, err
		}
		want = func(f *Finding) bool { return f.Org == org.ID }
	}
	read, err := o.service.readFindings(ctx)
	if err != nil {
		return nil, visible(err)
	}
	return sortedFindings(read.list, want), nil
}

// maxReason bounds the reason of an acknowledgement, in bytes.
const maxReason = 1000

// Acknowledge records that a person has examined a finding. The finding is then neither
// reported nor shown as open as long as its evidence stays the same. The act in the audit log
// does not depend on the row.
func (o *Operator) Acknowledge(ctx context.Context, finding *Finding, reason string) error {
	switch reason = strings.TrimSpace(reason); {
	case reason == "":
		return fault.Errorf(fault.CodeInvalid, "say why with --reason: what was looked at, and what was found")
	case len(reason) > maxReason || !utf8.ValidString(reason):
		return fault.Errorf(fault.CodeInvalid, "the reason must be text of at most %d bytes", maxReason)
	}
	err := o.service.committer.commit(ctx, &acknowledge{ref: finding.Ref(), reason: reason})
	o.service.known.forget()
	return err
}

// acknowledge closes a finding and appends the act about it.
type acknowledge struct {
	ref    store.FindingRef
	reason string
}

func (o *acknowledge) tenant() ledger.OrgID { return o.ref.Org }

func (o *acknowledge) size() int { return smallOperation }

func (o *acknowledge) need(needs *store.Needs) {
	needs.Findings = append(needs.Findings, o.ref)
	if (o.ref.Org != ledger.OrgID{}) {
		needs.Govern = append(needs.Govern, o.ref.Org)
		needs.Logs = append(needs.Logs, o.ref.Org)
	}
}

var errNoLog = fault.Errorf(fault.CodeEvidenceTampered,
	"the organization or its audit log was changed outside the service, and nothing can be entered there: repair that first; countersign audit says what it is")

func (o *acknowledge) plan(b *batch) error {
	before := b.loaded.Findings[o.ref]
	if before == nil {
		return fault.Errorf(fault.CodeNotFound, "there is no finding with that id; countersign tampering list shows those there are")
	}
	if !before.Open() {
		return nil
	}
	if !before.Tampered {
		finding := *before
		return o.close(b, &finding)
	}
	// The row's content cannot be trusted: only the change of the row is acknowledged.
	changed := verify.FindingChanged(o.ref.Name)
	if verify.WellFormed(o.ref.Name) {
		return o.close(b, newFinding(o.ref, changed, nil, b.now))
	}
	ref := store.FindingRef{Org: o.ref.Org, Name: changed.Name()}
	if err := o.close(b, newFinding(ref, changed, changed.DescriptionDigest(), b.now)); err != nil {
		return err
	}
	forged := newFinding(o.ref, changed, nil, b.now)
	o.sign(forged, b.now)
	b.putFinding(forged)
	return nil
}

// close acknowledges a finding with an act. A finding without an organization has no audit
// log, so only its row is written.
func (o *acknowledge) close(b *batch, finding *store.FindingRecord) error {
	o.sign(finding, b.now)
	if (o.ref.Org != ledger.OrgID{}) {
		if !b.mayLog(o.ref.Org) {
			return errNoLog
		}
		if err := b.logFinding(ledger.ActorOperator, ledger.ActTamperingAcknowledge, finding, &o.reason); err != nil {
			return err
		}
	}
	b.putFinding(finding)
	return nil
}

func (o *acknowledge) sign(finding *store.FindingRecord, now ledger.Time) {
	finding.AcknowledgedAt, finding.AcknowledgedBy, finding.Reason = &now, ledger.ActorOperator.Name, o.reason
}

// minFindingPrefix is how many characters of a finding's id must be given to select it.
const minFindingPrefix = 8

// ShortFindingID returns the beginning of a finding's id, for people.
func ShortFindingID(finding *Finding) string {
	const shown = 12
	id := verify.FindingID(finding.Name)
	return id[:min(len(id), shown)]
}

// FindingByID returns the only finding whose id begins with the given text.
func FindingByID(findings []*Finding, id string) (*Finding, error) {
	if len(id) < minFindingPrefix {
		return nil, fault.Errorf(fault.CodeInvalid, "give at least %d characters of the finding's id; countersign tampering list shows them", minFindingPrefix)
	}
	var found *Finding
	for _, finding := range findings {
		if !strings.HasPrefix(verify.FindingID(finding.Name), id) {
			continue
		}
		if found != nil {
			return nil, fault.Errorf(fault.CodeInvalid, "more than one finding begins with %q: give more of the id, or name the organization with --org", id)
		}
		found = finding
	}
	if found == nil {
		return nil, fault.Errorf(fault.CodeNotFound, "there is no finding %q; countersign tampering list --all shows those there are", id)
	}
	return found, nil
}

// ReportAudit stores and reports what an audit has found. The audit itself only reads, and its
// verdict does not depend on whether this succeeds.
func (o *Operator) ReportAudit(ctx context.Context, org ledger.OrgID, report *verify.AuditReport) error {
	if report == nil || report.Break == nil {
		return nil
	}
	counted := int64(0)
	head, err := o.service.store.Head(ctx, org)
	switch {
	case err == nil:
		counted = head.Count
	case !errors.Is(err, store.ErrNotFound):
		return visible(err)
	}
	return o.service.reportBreaks(ctx, org, report, counted)
}

// ReportVerdict is ReportAudit for the verdict on one receipt.
func (o *Operator) ReportVerdict(ctx context.Context, id ledger.ReceiptID, verdict *verify.Verdict) error {
	failure := verdict.FirstFailure()
	if failure == nil {
		return nil
	}
	receipt, err := o.service.store.Receipt(ctx, id)
	if err != nil {
		return fmt.Errorf("read the receipt again: %w", visible(err))
	}
	return o.service.reportTampering(ctx, receipt.Org, &verify.Tampering{Check: failure.Name, Receipt: id})
}
