package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"countersign/internal/canon"
	"countersign/internal/evidence"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// inspectActs walks the audit log. It checks the log's end against the current organization, and
// the policy sets against the acts that put them. An act may be appended between the
// reads, so a difference counts only if the log has not grown. A log that is too long is not walked.
func (a *audit) inspectActs(ctx context.Context) (*ledger.Break, error) {
	for {
		end, err := a.actLog(ctx)
		if err != nil || a.tooLong(end) {
			return nil, err
		}
		walked, fault, err := a.walkActs(ctx)
		if err != nil {
			return nil, err
		}
		org, err := a.store.Organization(ctx, a.org.ID)
		if err != nil {
			return nil, err
		}
		if fault == nil {
			fault = walked.Finish(end, org, a.keys)
		}
		if fault == nil { // what the log says is known, whatever is wrong with what it is about
			a.records, a.recordsUntil, a.imports, a.votes, a.anchors = walked.records, end.End(), walked.imports, walked.votes, walked.anchors
			if fault, err = a.inspectPolicies(ctx, walked.puts); err != nil {
				return nil, err
			}
		}
		if fault == nil {
			a.acts.Store(walked.Checked)
			return nil, nil
		}
		again, err := a.actLog(ctx)
		if err != nil {
			return nil, err
		}
		if end == nil || again == nil || again.Count == end.Count {
			return &ledger.Break{Check: ledger.CheckAuditLog, Detail: fault.Error()}, nil
		}
	}
}

// actLog returns the end of the audit log, or nil if there is none.
func (a *audit) actLog(ctx context.Context) (*ledger.ActLog, error) {
	end, err := a.store.ActLog(ctx, a.org.ID)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	return end, err
}

// tooLong reports whether an audit log has more acts than this check reads. An end that is not
// authentic says nothing: as many acts are then read as the limit allows.
func (a *audit) tooLong(end *ledger.ActLog) bool {
	return a.maxActs > 0 && end != nil && end.Count > a.maxActs && end.Authentic(a.keys)
}

// walkedActs is what the log says, in particular about policy sets and anchors.
type walkedActs struct {
	ledger.ActWalk
	puts    map[string]*ledger.Act   // by version
	anchors []madeAnchor             // in the order of the log
	records map[ledger.Record]string // the kind of the act that last changed each
	imports map[string]loggedImport
	votes   map[string][]ledger.KeyID // who has said yes to approvals that stayed open, by id
}

func (a *audit) walkActs(ctx context.Context) (walked *walkedActs, fault, err error) {
	walked = &walkedActs{
		puts: make(map[string]*ledger.Act), records: make(map[ledger.Record]string), imports: make(map[string]loggedImport), votes: make(map[string][]ledger.KeyID),
	}
	err = a.store.ScanActs(ctx, a.org.ID, func(stored *ledger.StoredAct) error {
		if fault = walked.Step(stored); fault != nil {
			return errBroken
		}
		if a.maxActs > 0 && walked.Checked > a.maxActs {
			fault = errors.New("more acts are stored than the audit log counts")
			return errBroken
		}
		var act *ledger.Act
		if act, fault = ledger.DecodeAct(stored.Body); fault != nil {
			return errBroken
		}
		for _, record := range act.Records() {
			walked.records[record] = act.Action
		}
		walked.noteVote(act)
		if act.Action == evidence.ActPutPolicy {
			walked.puts[act.Target] = act
		}
		if act.Action == ledger.ActApprovalsImport {
			if walked.imports[act.Target], fault = readImport(act); fault != nil {
				return errBroken
			}
		}
		if act.Action == ledger.ActAnchorMade {
			var made madeAnchor
			if made, fault = readMadeAnchor(act); fault != nil {
				return errBroken
			}
			walked.anchors = append(walked.anchors, made)
		}
		return nil
	})
	if errors.Is(err, errBroken) {
		err = nil
	}
	return walked, fault, err
}

// noteVote keeps who has said yes to an approval that stayed open because two must. What an operator
// has accepted may lack votes.
func (w *walkedActs) noteVote(act *ledger.Act) {
	switch act.Action {
	case ledger.ActApprovalApprove:
		detail, err := canon.Parse(act.Detail)
		status, _ := detail.Get("status")
		to, _ := status.Get("to")
		if err == nil && ledger.ApprovalStatus(to.Str()).Open() {
			w.votes[act.Target] = append(w.votes[act.Target], act.Actor.Key)
			return
		}
		delete(w.votes, act.Target)
	case ledger.ActApprovalDeny, ledger.ActApprovalCancel, ledger.ActApprovalOverrule:
		delete(w.votes, act.Target)
	case ledger.ActRollbackAccept, ledger.ActLedgerRestore:
		clear(w.votes)
	}
}

// bindsPolicy reports whether an act's detail matches a policy set. The detail may contain more,
// such as the version that the set replaced.
func bindsPolicy(detail []byte, record *store.PolicyRecord) bool {
	said, err := canon.Parse(detail)
	if err != nil {
		return false
	}
	wanted, err := canon.Parse(evidence.PolicyDetail(record))
	if err != nil {
		return false
	}
	for _, member := range wanted.Members() {
		if got, ok := said.Get(member.Name); !ok || !bytes.Equal(got.Append(nil), member.Value.Append(nil)) {
			return false
		}
	}
	return true
}

// inspectPolicies requires exactly the sets that were put, unchanged.
func (a *audit) inspectPolicies(ctx context.Context, puts map[string]*ledger.Act) (fault, err error) {
	records, err := a.store.Policies(ctx, a.org.ID, 0, len(puts)+1)
	if err != nil {
		return nil, err
	}
	slices.Reverse(records)
	for i, record := range records {
		put := puts[record.Version]
		if put == nil || record.Number != int64(i)+1 {
			return fmt.Errorf("policy set %d is not one that was put", record.Number), nil
		}
		if put.At != record.CreatedAt || put.Actor.Name != record.CreatedBy || !bindsPolicy(put.Detail, record) {
			return fmt.Errorf("policy set %s is not as it was put", record.Version), nil
		}
		if _, unreadable := evidence.ReadPolicy(record); unreadable != nil {
			return unreadable, nil
		}
	}
	if len(records) < len(puts) {
		return fmt.Errorf("%d policy sets were put, %d are stored", len(puts), len(records)), nil
	}
	return nil, nil
}
