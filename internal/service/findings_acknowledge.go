package service

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/verify"
)

// Findings are those of an organization, or of the whole installation without a slug,
// those that are open first.
func (o *Operator) Findings(ctx context.Context, slug string) ([]*Finding, error) {
	want := func(*Finding) bool { return true }
	if slug != "" {
		org, err := o.organization(ctx, slug)
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

// maxReason is how long the reason of an acknowledgement may be, in bytes.
const maxReason = 1000

// Acknowledge says that a person has looked at a finding: it is not told or shown as
// open again while its evidence stays as it is. The act in the audit log stands apart
// from the row.
func (o *Operator) Acknowledge(ctx context.Context, finding *Finding, reason string) error {
	switch reason = strings.TrimSpace(reason); {
	case reason == "":
		return ledger.Errorf(ledger.CodeInvalid, "say why with --reason: what was looked at, and what was found")
	case len(reason) > maxReason || !utf8.ValidString(reason):
		return ledger.Errorf(ledger.CodeInvalid, "the reason must be text of at most %d bytes", maxReason)
	}
	err := o.service.committer.commit(ctx, &acknowledge{ref: finding.Ref(), reason: reason})
	o.service.known.forget()
	return err
}

// acknowledge closes a finding together with the act that says so.
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

var errNoLog = ledger.Errorf(ledger.CodeEvidenceTampered,
	"the organization or its audit log was changed outside the service, and nothing can be entered there: repair that first; countersign audit says what it is")

func (o *acknowledge) plan(b *batch) error {
	before := b.loaded.Findings[o.ref]
	if before == nil {
		return ledger.Errorf(ledger.CodeNotFound, "there is no finding with that id; countersign tampering list shows those there are")
	}
	if !before.Open() {
		return nil
	}
	if !before.Tampered {
		finding := *before
		return o.close(b, &finding)
	}
	// Nothing that the row says can be believed: what is acknowledged is that it was
	// changed.
	changed := verify.FindingChanged(o.ref.Name)
	if verify.WellFormed(o.ref.Name) {
		return o.close(b, newFinding(o.ref, changed, nil, b.now))
	}
	ref := store.FindingRef{Org: o.ref.Org, Name: changed.Name()}
	if err := o.close(b, newFinding(ref, changed, changed.Words(), b.now)); err != nil {
		return err
	}
	forged := newFinding(o.ref, changed, nil, b.now)
	o.sign(forged, b.now)
	b.putFinding(forged)
	return nil
}

// close acknowledges a finding with an act. One that belongs to no organization has no
// audit log: its row stands alone.
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

// shortestID is how much of a finding's id names it.
const shortestID = 8

// ShortFindingID is the beginning of a finding's id, for people.
func ShortFindingID(finding *Finding) string {
	const shown = 12
	id := verify.FindingID(finding.Name)
	return id[:min(len(id), shown)]
}

// FindingByID finds the one finding whose id begins with a text.
func FindingByID(findings []*Finding, id string) (*Finding, error) {
	if len(id) < shortestID {
		return nil, ledger.Errorf(ledger.CodeInvalid, "give at least %d characters of the finding's id; countersign tampering list shows them", shortestID)
	}
	var found *Finding
	for _, finding := range findings {
		if !strings.HasPrefix(verify.FindingID(finding.Name), id) {
			continue
		}
		if found != nil {
			return nil, ledger.Errorf(ledger.CodeInvalid, "more than one finding begins with %q: give more of the id, or name the organization with --org", id)
		}
		found = finding
	}
	if found == nil {
		return nil, ledger.Errorf(ledger.CodeNotFound, "there is no finding %q; countersign tampering list --all shows those there are", id)
	}
	return found, nil
}

// ReportAudit keeps what an audit has found, and tells the organization. It writes,
// where an audit only reads; the verdict stands whatever becomes of it.
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
	return o.service.tellOfBreaks(ctx, org, report, counted)
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
	return o.service.tell(ctx, receipt.Org, &verify.Tampering{Check: failure.Name, Receipt: id})
}
