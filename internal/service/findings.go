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

	"countersign/internal/canon"
	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/verify"
)

// Finding is tampering that the service knows of.
type Finding = store.FindingRecord

const (
	// mostFindings bounds what is kept of one organization: whoever changes every row
	// of a large ledger must not fill the audit log by having it looked at. What is
	// beyond it is still told, and named by an audit.
	mostFindings = 1000
	// mostKnown bounds what is read of an organization.
	mostKnown = 20_000
	// mostForged bounds what is shown of rows that the service did not write.
	mostForged = 100
	// knownFor is how long what was read is shown.
	knownFor = 3 * time.Second
)

// keep keeps a finding, and reports whether nobody has acknowledged it yet. Nothing
// that was tampered with keeps it from that: where the organization or its audit log
// cannot be believed the row stands alone, without an act.
func (s *Service) keep(ctx context.Context, id ledger.OrgID, t *verify.Tampering) (open bool, err error) {
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
	case !finding.Tampered && slices.Equal(finding.Evidence, evidence) && s.now()-finding.SeenAt < oneDay:
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

// evidenceOf is the digest by which an acknowledgement holds. Of a row that requests
// come upon nothing tells whether it is the same: it is another one each day.
func (s *Service) evidenceOf(ctx context.Context, t *verify.Tampering) ([]byte, error) {
	evidence, err := s.judge.Evidence(ctx, t)
	if err == nil && t.Check == ledger.CheckRow {
		evidence = fmt.Appendf(evidence, " %d", s.now()/oneDay)
	}
	return evidence, err
}

// full reports whether no more findings of an organization are kept. Rows that the
// service did not write, and those that somebody has acknowledged, take up no room:
// whoever fills the table must not keep others out of it.
func (s *Service) full(ctx context.Context, id ledger.OrgID) (bool, error) {
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
	return count >= mostFindings, nil
}

// keepFinding puts a finding's row, and enters it into the audit log when it is new or
// its evidence is not the one that was acknowledged.
type keepFinding struct {
	ref       store.FindingRef
	tampering *verify.Tampering
	evidence  []byte
	logged    bool // with an act, where the log can take one
	open      bool // the outcome: nobody has acknowledged it
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
		// The row is about to be replaced: that it was changed must stand somewhere.
		if known := b.loaded.Findings[o.changed()]; known == nil || known.Tampered || !known.Open() {
			changed := verify.FindingChanged(o.ref.Name)
			if err := o.put(b, newFinding(o.changed(), changed, changed.Words(), b.now)); err != nil {
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

// put writes a finding with the act that says so.
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

// mayLog reports whether an act can be entered that nobody asked for. The organization
// must be the one that the last act has left: to seal another would hide that it was
// put back.
func (b *batch) mayLog(id ledger.OrgID) bool {
	log := b.loaded.Logs[id]
	org, err := b.org(id)
	if err != nil || log == nil || !log.Authentic(b.service.keys) {
		return false
	}
	controls, err := org.Hash()
	return err == nil && controls == log.Controls
}

// logFinding enters an act about a finding. Its detail says what the row says, so that
// neither is needed to read the other.
func (b *batch) logFinding(actor ledger.Actor, action string, finding *store.FindingRecord, reason *string) error {
	before, err := b.org(finding.Org)
	if err != nil {
		return err
	}
	org := *before
	return b.enact(actor, &org, &deed{action: action, target: verify.FindingID(finding.Name), detail: details(func(w *canon.ObjectWriter) {
		w.String("about", finding.Subject)
		w.String("check", finding.Check)
		w.String("evidence", hex.EncodeToString(finding.Evidence))
		w.String("kind", finding.Kind)
		if reason != nil {
			w.String("reason", *reason)
		}
	})})
}

// knownFindings is what was last read of the findings of all organizations.
type knownFindings struct {
	mu    sync.Mutex
	read  foundSet
	until time.Time
}

// foundSet is findings by organization and name. It is replaced and never changed.
type foundSet struct {
	list []*store.FindingRecord
	more bool // there are more than are read
}

func (k *knownFindings) forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.until = time.Time{}
}

// findings are those of all organizations, a few seconds old at most. A finding is never
// deleted: one that was open and is gone is a finding itself.
func (s *Service) findings(ctx context.Context) (foundSet, error) {
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
		for _, gone := range missing(s.known.read.list, read.list) {
			s.notice(metTampering{org: gone.Org, tampering: verify.FindingDeleted(gone.Name), tell: true})
		}
	}
	s.known.read, s.known.until = read, time.Now().Add(knownFor)
	return read, nil
}

// readFindings reads the findings of each organization by itself, so that whoever fills
// the table for one hides nothing of the others.
func (s *Service) readFindings(ctx context.Context) (read foundSet, err error) {
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

// foundIn are the organizations that there may be findings of: those that there are, and
// some that there are not, by what stands in the table. Organizations that cannot be read
// keep nobody from the findings of the others.
func (s *Service) foundIn(ctx context.Context) ([]ledger.OrgID, error) {
	seen := map[ledger.OrgID]bool{{}: true} // findings of no organization
	orgs, err := s.store.Organizations(ctx)
	if err != nil {
		s.log.Error("the organizations could not be read: run countersign audit", "error", err)
	}
	for _, org := range orgs {
		seen[org.ID] = true
	}
	for after, n := (store.FindingRef{}), 0; n < mostGone; n++ {
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

// mostGone bounds how many organizations are looked for in the table of findings.
const mostGone = 1000

// idAfter is the id that follows one, false after the last.
func idAfter(id ledger.OrgID) (ledger.OrgID, bool) {
	for i := len(id.UUID) - 1; i >= 0; i-- {
		if id.UUID[i]++; id.UUID[i] != 0 {
			return id, true
		}
	}
	return id, false
}

// findingsOf reads the findings of one organization. There are more where somebody has
// put them there: of those that the service did not write only a few are read.
func (s *Service) findingsOf(ctx context.Context, id ledger.OrgID) (list []*store.FindingRecord, more bool, err error) {
	const page = 500
	after, forged := store.FindingRef{Org: id}, 0
	switch nameless, err := s.store.Finding(ctx, after); { // pages begin behind it
	case err == nil:
		list, forged = append(list, nameless), 1
	case !errors.Is(err, store.ErrNotFound):
		return nil, false, err
	}
	for range mostKnown / page {
		findings, err := s.store.Findings(ctx, after, page)
		if err != nil {
			return nil, false, err
		}
		for _, finding := range findings {
			switch {
			case finding.Org != id:
				return list, false, nil
			case finding.Tampered && forged >= mostForged:
				more = true
			default:
				list = append(list, finding)
			}
			if finding.Tampered {
				forged++
			}
		}
		if len(findings) < page || findings[len(findings)-1].Ref() == after {
			return list, more, nil // a page that ends where it began is of rows whose names lie
		}
		after = findings[len(findings)-1].Ref()
	}
	return list, true, nil
}

// missing are the findings of an earlier list that a later one lacks. Rows that failed
// their authenticators are nobody's word.
func missing(before, after []*store.FindingRecord) (gone []*store.FindingRecord) {
	if len(before) == 0 {
		return nil
	}
	there := make(map[store.FindingRef]bool, len(after))
	for _, finding := range after {
		there[finding.Ref()] = true
	}
	for _, finding := range before {
		if !finding.Tampered && !there[finding.Ref()] {
			gone = append(gone, finding)
		}
	}
	return gone
}

// OpenFindings counts the findings of the whole installation that nobody has
// acknowledged.
func (s *Service) OpenFindings(ctx context.Context) (int, error) {
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

// Findings are those of the caller's organization, those that are open first, then the
// newest.
func (s *Service) Findings(ctx context.Context, caller *Caller) ([]*Finding, error) {
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

// metTampering is tampering that somebody came upon who must not wait until it is kept.
type metTampering struct {
	org       ledger.OrgID
	tampering *verify.Tampering
	tell      bool // the organization, as well
}

// mostMet is how many may wait. What is beyond it is met again, or found by the daily
// check.
const mostMet = 64

// NoteTampering keeps, some time later, that a request or a job came upon a row that is
// not as the service wrote it. Other errors are none of its business. The zero
// organization stands for one that is not known.
func (s *Service) NoteTampering(org ledger.OrgID, err error) {
	var back *chainBackError
	if errors.As(err, &back) {
		s.notice(metTampering{org: back.back.Org, tampering: back.back.Tampering(), tell: true})
		return
	}
	var own *ledger.Error
	if errors.Is(err, ledger.ErrStateTampered) || errors.As(err, &own) && own.Code == ledger.CodeEvidenceTampered {
		s.notice(metTampering{org: org, tampering: &verify.Tampering{Check: ledger.CheckRow, Place: rowOf(err)}, tell: org != ledger.OrgID{}})
	}
}

// notice queues what was met unless this process knows that it is kept today. It never
// waits.
func (s *Service) notice(met metTampering) {
	if s.kept.knows(met.org, s.keptName(met.tampering)) {
		return
	}
	s.noticing.Add(1)
	select {
	case s.met <- met:
	default:
		s.noticing.Done()
	}
}

func (s *Service) keptName(t *verify.Tampering) string {
	return fmt.Sprint(t.Name(), "/", s.now()/oneDay)
}

// keepMet keeps what was met, one after the other, until the service ends.
func (s *Service) keepMet(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case met := <-s.met:
			s.keepOne(ctx, met)
			s.noticing.Done()
		}
	}
}

func (s *Service) keepOne(ctx context.Context, met metTampering) {
	name := s.keptName(met.tampering)
	if s.kept.knows(met.org, name) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, tellTimeout)
	defer cancel()
	open, err := s.keep(ctx, met.org, met.tampering)
	if err == nil {
		s.kept.add(met.org, name)
	}
	if met.tell && open {
		err = errors.Join(err, s.tellLately(ctx, met.org, met.tampering))
	}
	if err != nil && ctx.Err() == nil {
		s.log.Error("tampering was found and could not be kept: the next look at it tries again", "check", string(met.tampering.Check), "error", err)
	}
}

// rowOf is what an error says of the row that failed, without what is said of each.
func rowOf(err error) string {
	var wrapped *cause
	if errors.As(err, &wrapped) {
		err = wrapped.inner
	}
	return printable(strings.TrimSuffix(err.Error(), ": "+ledger.ErrStateTampered.Error()))
}

// printable is the beginning of a text that somebody else may have written.
func printable(text string) string {
	const most = 500 // bytes
	var b strings.Builder
	for _, r := range text {
		if b.Len() >= most {
			break
		}
		if !unicode.IsPrint(r) {
			r = '?'
		}
		b.WriteRune(r)
	}
	return b.String()
}
