package ledger

import (
	"fmt"

	"countersign/internal/canon"
)

func appendApprovals(dst []byte, approvals []*Approval) []byte {
	return appendObjects(dst, approvals, func(w *canon.ObjectWriter, approval **Approval) {
		a := *approval
		w.String("action_name", a.ActionName)
		w.String("agent_name", a.AgentName)
		w.String("approval_hash", FormatHash(a.Hash()))
		writeID(w, "approval_id", a.ID.UUID)
		writeTimeOrNull(w, "decided_at", a.DecidedAt)
		writeTime(w, "requested_at", a.RequestedAt)
		w.String("status", string(a.Status))
	})
}

// Failure says why a chain failed.
type Failure struct{ Type, Message string }

// Completion is a request to seal a chain.
type Completion struct {
	Failed  bool
	Failure *Failure
	// Abandoned says that the service itself seals the chain. No request can set it.
	Abandoned bool
}

// ParseCompletion reads the body of a request that completes a chain. The zero Value means no body.
func ParseCompletion(v canon.Value) (*Completion, error) {
	if v.IsNull() {
		return &Completion{}, nil
	}
	f := canon.NewFields(v)
	c := &Completion{Failed: f.OneOf("outcome", string(ChainCompleted), string(ChainFailed)) == string(ChainFailed)}
	if failure := f.Nested("error"); failure != nil {
		c.Failure = &Failure{
			Type:    failure.RequiredName("type", maxName),
			Message: withoutSecrets(failure.Text("message", maxText)),
		}
		f.Join(failure)
		if !c.Failed {
			f.Fault("error", `goes with "outcome": "failed"`)
		}
	}
	if err := f.Err(); err != nil {
		return nil, err
	}
	return c, nil
}

const actionTypeFailure = "chain_failure"

// Sealing is a chain to be sealed, with everything needed for that.
type Sealing struct {
	Keys       Keys
	Head       *OpenHead // the organization's head; Seal adds the receipt to it
	Slug       string    // slug of the organization
	Chain      *Chain
	State      *ChainState // Seal advances it
	Summary    *Summary    // must cover every event of the chain
	Approvals  []*Approval // all approvals of the chain, none open, ordered by the sequence of their events
	Completion *Completion
	ID         ReceiptID // id of the new receipt
	Now        Time
}

// Seal completes a chain: it advances the chain's state and the organization's head, and returns
// the receipt with the record to store. If it returns an error, nothing has changed.
func Seal(s *Sealing) (*Receipt, *SealedReceipt, error) {
	head, chain, state := &s.Head.head, s.Chain, s.State
	if err := state.Open(); err != nil {
		return nil, nil, err
	}
	if s.Summary.Folded != state.Actions {
		return nil, nil, fmt.Errorf("summary covers %d of %d events", s.Summary.Folded, state.Actions)
	}
	if int64(len(s.Approvals)) != state.Approvals {
		return nil, nil, fmt.Errorf("%d of %d approvals are stored: %w", len(s.Approvals), state.Approvals, ErrStateTampered)
	}
	now := Later(s.Now, state.LastAt)
	// A state that predates the counting of markers counts them as actions.
	state.Markers, state.Agents = s.Summary.markers, s.Summary.agents()
	receipt := &Receipt{
		ID: s.ID, Number: ReceiptNumber(now, head.Count+1), Sequence: head.Count + 1,
		Chain: chain.ID, Organization: s.Slug, Environment: chain.Environment, ExternalID: chain.ExternalID, Mode: s.Summary.mode(),
		Summary:   s.describe(),
		StartedAt: chain.StartedAt, CompletedAt: now, GeneratedAt: now,
		Agents: state.Agents, Actions: state.ActionsTaken(), Metrics: state.Metrics, Approvals: s.Approvals,
		Events:        s.Completion.lines(s.Summary.lines, now),
		PolicyVersion: state.PolicyVersion, PreviousHash: head.Last,
		Metadata: chain.Metadata, EventsDigest: state.Digest,
	}
	stored := &SealedReceipt{StoredReceipt: &StoredReceipt{
		ID: s.ID, Org: chain.Org, Sequence: receipt.Sequence, Chain: chain.ID, Body: receipt.sign(s.Keys, chain.Org),
	}}
	if head.Last != nil {
		stored.PreviousHash = head.Last[:]
	}
	stored.hash = stored.StoredReceipt.Hash()
	s.Head.add(stored)
	state.Status = ChainCompleted
	if s.Completion.Failed {
		state.Status = ChainFailed
	}
	id := s.ID
	state.LastAt, state.CompletedAt, state.Receipt, state.Failure, state.Abandoned = now, &now, &id, s.Completion.Failure, s.Completion.Abandoned
	return receipt, stored, nil
}

// lines returns the summary's lines, plus one with the error type for a failed chain.
func (c *Completion) lines(lines []SummaryLine, now Time) []SummaryLine {
	if !c.Failed {
		return lines
	}
	name := "unknown"
	if c.Failure != nil {
		name = c.Failure.Type
	}
	failure := SummaryLine{ActionType: actionTypeFailure, ActionName: name, Count: 1, FirstAt: now, LastAt: now}
	return append(lines[:len(lines):len(lines)], failure)
}
