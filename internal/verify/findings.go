package verify

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash"
	"math"
	"strings"

	"countersign/internal/evidence"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// Kinds of subjects of a finding.
const (
	AboutReceipt  = "receipt"
	AboutApproval = "approval"
	AboutPlace    = "place"
)

const namePrefix = "tampering/"

// FindingID returns the id of the finding with the given name.
func FindingID(name string) string { return strings.TrimPrefix(name, namePrefix) }

// FindingName returns the name of the finding with the given id.
func FindingName(id string) string { return namePrefix + id }

// WellFormed reports whether name could be the result of Tampering.Name. An attacker can store a
// row under any name, and no act mentions a name that is not well-formed.
func WellFormed(name string) bool {
	id, ok := strings.CutPrefix(name, namePrefix)
	sum, err := hex.DecodeString(id)
	return ok && err == nil && len(sum) == sha256.Size && strings.ToLower(id) == id
}

// findingLabel returns how another finding refers to this one.
func findingLabel(name string) string {
	if WellFormed(name) {
		return FindingID(name)
	}
	sum := sha256.Sum256([]byte(name))
	return "that nobody made, " + hex.EncodeToString(sum[:8]) + ","
}

// FindingDeleted returns the tampering for a deleted finding.
func FindingDeleted(name string) *Tampering {
	return &Tampering{Check: ledger.CheckFindings, Place: "the finding " + findingLabel(name) + " was deleted"}
}

// FindingChanged returns the tampering for a finding that is not what the service wrote.
func FindingChanged(name string) *Tampering {
	return &Tampering{Check: ledger.CheckFindings, Place: "the finding " + findingLabel(name) + " was changed"}
}

// RowChanged returns the tampering for a row outside any chain that is not what the service wrote.
func RowChanged(row *evidence.Failing) *Tampering {
	done := " was changed outside the service"
	if row.RolledBack {
		done = " is older than the audit log says: it was put back"
	}
	t := &Tampering{Check: ledger.CheckRegistry, Place: "the " + string(row.Kind) + " " + row.ID + done, Digest: row.Digest[:]}
	switch row.Kind {
	case evidence.FailingKey:
		t.Check, t.Place = ledger.CheckAccess, t.Place+", and opens nothing"
	case evidence.FailingWebhook:
		t.Place += ", and is told nothing"
	case evidence.FailingJob:
		t.Check, t.Place = ledger.CheckQueue, t.Place+", or written there, and is not done"
	case evidence.FailingCounter:
		t.Check, t.Place = ledger.CheckBudgets, t.Place+", and lets nothing happen that is held against it"
	case evidence.FailingFullCheck:
		t.Place += ", and says nothing"
	case evidence.FailingImported:
		t.Place += ", and is shown as failed"
	case evidence.FailingDelivery:
		t.Place += ", and is not delivered again"
	}
	return t
}

// About returns the subject of the tampering.
func (t *Tampering) About() (kind, subject string) {
	switch {
	case t.Receipt != ledger.ReceiptID{}:
		return AboutReceipt, t.Receipt.String()
	case t.Approval != ledger.ApprovalID{}:
		return AboutApproval, t.Approval.String()
	}
	return AboutPlace, t.Place
}

// Evidence returns a digest of what is stored about the subject of the tampering: a receipt with
// its chain, events and approvals, an approval with its event, or a single row. An acknowledgement
// is valid as long as the digest is unchanged. If the subject is none of these, the digest covers
// only the description.
func (f *Findings) Evidence(ctx context.Context, t *Tampering) ([]byte, error) {
	d := digest{sha256.New()}
	d.bytes(t.DescriptionDigest())
	var err error
	switch {
	case t.Receipt == ledger.ReceiptID{} && t.Approval == ledger.ApprovalID{}:
		if t.Digest == nil {
			return t.DescriptionDigest(), nil
		}
		d.bytes(t.Digest)
	case t.Receipt != ledger.ReceiptID{}:
		err = f.digestReceipt(ctx, d, t.Receipt)
	default:
		err = f.digestApproval(ctx, d, t.Approval)
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) { // the digest ends where something is missing
		return nil, err
	}
	return d.Sum(nil), nil
}

// acknowledged reports whether an operator has acknowledged the tampering as it is stored now. However
// many rows somebody forges, and an operator leaves in place, they hide no others from a check that
// names a bounded number.
func (f *Findings) acknowledged(ctx context.Context, org ledger.OrgID, t *Tampering) (bool, error) {
	finding, err := f.store.Finding(ctx, store.FindingRef{Org: org, Name: t.Name()})
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	if err != nil || finding.Tampered || finding.Open() {
		return false, err
	}
	stored, err := f.Evidence(ctx, t)
	return err == nil && bytes.Equal(stored, finding.Evidence), err
}

// DescriptionDigest returns a digest of the description of the tampering.
func (t *Tampering) DescriptionDigest() []byte {
	sum := sha256.Sum256([]byte(t.Name()))
	return sum[:]
}

func (f *Findings) digestReceipt(ctx context.Context, d digest, id ledger.ReceiptID) error {
	receipt, err := f.store.Receipt(ctx, id)
	if err != nil {
		return err
	}
	d.bytes(receipt.Org.UUID[:], receipt.Chain.UUID[:], receipt.PreviousHash, receipt.Body)
	d.int(receipt.Sequence)
	chain, err := f.store.Chain(ctx, receipt.Chain)
	if err != nil {
		return err
	}
	d.bytes(chain.Org.UUID[:], chain.OpenedBy.UUID[:], chain.Body, chain.State, chain.MAC)
	d.text(chain.ExternalID, chain.Environment, chain.IdempotencyKey, string(chain.Status))
	err = f.store.EachPage(ctx, receipt.Chain, math.MinInt64, func(events []*ledger.StoredEvent) error {
		for _, event := range events {
			d.event(event)
		}
		return nil
	})
	if err != nil {
		return err
	}
	addenda, err := f.store.Addenda(ctx, receipt.Chain, math.MinInt64, math.MaxInt64)
	if err != nil {
		return err
	}
	for _, addendum := range addenda {
		d.int(addendum.Position)
		d.int(addendum.Sequence)
		d.bytes(addendum.Body)
	}
	approvals, err := f.store.Approvals(ctx, store.ApprovalQuery{Org: receipt.Org, Chain: &receipt.Chain, Limit: math.MaxInt32})
	if err != nil {
		return err
	}
	for _, approval := range approvals {
		d.approval(approval)
	}
	return nil
}

func (f *Findings) digestApproval(ctx context.Context, d digest, id ledger.ApprovalID) error {
	approval, err := f.store.Approval(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		imported, err := f.store.DigestImported(ctx, id)
		if err == nil {
			d.bytes(imported[:])
		}
		return err
	}
	if err != nil {
		return err
	}
	d.approval(approval)
	event, err := f.store.Event(ctx, store.EventAt{Chain: approval.Chain, Sequence: approval.Sequence})
	if err == nil {
		d.event(event)
	}
	return err
}

// digest hashes values with their lengths, so that no two rows have the same bytes.
type digest struct{ hash.Hash }

func (d digest) bytes(values ...[]byte) {
	for _, value := range values {
		d.int(int64(len(value)))
		d.Write(value)
	}
}

func (d digest) text(values ...string) {
	for _, value := range values {
		d.bytes([]byte(value))
	}
}

func (d digest) int(n int64) {
	d.Write(binary.BigEndian.AppendUint64(nil, uint64(n))) //nolint:gosec // all 64 bits are kept
}

func (d digest) event(e *ledger.StoredEvent) {
	d.int(e.Sequence)
	d.text(e.IdempotencyKey)
	d.bytes(e.Body, e.Payload, e.Redactions, e.MAC)
}

func (d digest) approval(a *store.ApprovalRecord) {
	d.bytes(a.ID.UUID[:], a.Org.UUID[:], a.Chain.UUID[:], a.OpenedBy.UUID[:], a.Body, a.MAC)
	d.int(a.Sequence)
	d.int(int64(a.RequestedAt))
	d.text(string(a.Status))
}

// inspectFindings checks the stored findings against the audit log: each finding in the log has a
// row, and both agree on its acknowledgement. Acts and rows are written together, so a difference
// counts only if the log has not grown. inspectActs checks the log itself. Findings are not checked
// against a log that is too long.
func (a *audit) inspectFindings(ctx context.Context) (*ledger.Break, error) {
	for {
		before, err := a.actLog(ctx)
		if err != nil || a.tooLong(before) {
			return nil, err
		}
		found, err := a.compareFindings(ctx)
		if err != nil || found == nil {
			return nil, err
		}
		after, err := a.actLog(ctx)
		if err != nil {
			return nil, err
		}
		if before == nil || after == nil || before.Count == after.Count {
			return &ledger.Break{Check: found.Check, Detail: found.Place}, nil
		}
	}
}

func (a *audit) compareFindings(ctx context.Context) (*Tampering, error) {
	acts, order, err := a.findingActs(ctx)
	if err != nil {
		return nil, err
	}
	for _, name := range order {
		finding, err := a.store.Finding(ctx, store.FindingRef{Org: a.org.ID, Name: name})
		if errors.Is(err, store.ErrNotFound) {
			return FindingDeleted(name), nil
		}
		if err != nil {
			return nil, err
		}
		if finding.Tampered || !acts[name].agrees(finding) {
			return FindingChanged(name), nil
		}
	}
	return a.changedFinding(ctx)
}

// findingAct is the last act about a finding.
type findingAct struct {
	acknowledged bool
	evidence     string // the acknowledged evidence, in hex
}

func (f findingAct) agrees(finding *store.FindingRecord) bool {
	if finding.Open() == f.acknowledged {
		return false
	}
	return finding.Open() || hex.EncodeToString(finding.Evidence) == f.evidence
}

// findingActs returns the last act about each finding, and the findings in the order in which they
// were made. Acts are canonical and start with their action, so in a long log only these few are
// decoded.
func (a *audit) findingActs(ctx context.Context) (acts map[string]findingAct, order []string, err error) {
	acts = make(map[string]findingAct)
	read := int64(0)
	err = a.store.ScanActs(ctx, a.org.ID, func(stored *ledger.StoredAct) error {
		if read++; a.maxActs > 0 && read > a.maxActs {
			return errBroken
		}
		if !bytes.HasPrefix(stored.Body, []byte(`{"action":"tampering.`)) {
			return nil
		}
		act, fault := ledger.DecodeAct(stored.Body)
		if fault != nil || act.Action != ledger.ActTamperingFound && act.Action != ledger.ActTamperingAcknowledge {
			return nil //nolint:nilerr // inspectActs names an act that cannot be read
		}
		name := FindingName(act.Target)
		if _, known := acts[name]; !known {
			order = append(order, name)
		}
		acts[name] = findingAct{acknowledged: act.Action == ledger.ActTamperingAcknowledge, evidence: evidence.FindingEvidence(act.Detail)}
		return nil
	})
	if errors.Is(err, errBroken) {
		err = nil
	}
	return acts, order, err
}

// changedFinding returns a changed finding of the organization, even if the audit log does not
// mention it.
func (a *audit) changedFinding(ctx context.Context) (*Tampering, error) {
	const page, most = 200, 10_000
	after := store.FindingRef{Org: a.org.ID}
	for range most / page {
		findings, err := a.store.Findings(ctx, after, page)
		if err != nil {
			return nil, err
		}
		for _, finding := range findings {
			switch {
			case finding.Org != a.org.ID:
				return nil, nil
			case finding.Tampered:
				return FindingChanged(finding.Name), nil
			}
			after = finding.Ref()
		}
		if len(findings) < page {
			return nil, nil
		}
	}
	return nil, nil
}
