package console

import (
	"fmt"
	"net/http"
	"slices"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

// approvalPage is what a reviewer decides by.
type approvalPage struct {
	*service.ApprovalView
	Now        ledger.Time
	Statement  statement
	Recipients recipients
	Mark       string             // of the standing that the page shows
	Chain      *service.ChainView // nil for those who see no chains
	Metadata   []field            // of the chain
	Before     []eventRow         // the last events of the chain before this one
	Fields     []field            // the payload; nil where only the document can be shown
	Document   document
	Choice     choice
	Typed      string   // the comment as it was sent, when the decision was refused
	Refusal    *refusal // why it was
	Verdict    *verdictView
	Next       *nextApproval // once this one is settled; nil where none waits
	Share      *shareForm    // nil for all but admins
}

// Earlier is how many events of the chain came before those that are shown.
func (p *approvalPage) Earlier() int64 { return p.Sequence - 1 - int64(len(p.Before)) }

// mostBefore is how many events are shown that came before the one to decide.
const mostBefore = 5

// choice is what the person who looks can do. It is for the page alone: who may
// decide is judged where the decision is taken.
type choice struct {
	Approve, Deny bool
	Why           string // not all of it
}

// verdictView is what verifying a decision came to.
type verdictView struct {
	Overall   ledger.Overall
	Signature ledger.Standing
	Key       ledger.KeyStanding
}

func showApproval(v *visit) error {
	caller, err := v.signedIn()
	if err != nil {
		return err
	}
	id, err := v.approvalID()
	if err != nil {
		return err
	}
	page, err := v.approvalPage(caller, id)
	if err != nil {
		return err
	}
	return v.showDecision(http.StatusOK, page)
}

var errNoApproval = fault.Errorf(fault.CodeNotFound, "your organization has no such approval, or it is not yours to see")

func (v *visit) approvalID() (ledger.ApprovalID, error) {
	id, err := ledger.ParseID(v.r.PathValue("approval_id"))
	if err != nil {
		return ledger.ApprovalID{}, errNoApproval
	}
	return ledger.ApprovalID{UUID: id}, nil
}

func (v *visit) showDecision(status int, page *approvalPage) error {
	if page.Status.Open() { // its script asks whether it still stands as it is shown
		v.w.Header().Set("Content-Security-Policy", contentPolicy+"; connect-src 'self'")
	}
	return v.show(status, "approval.html", page.Statement.String(), page)
}

func (v *visit) approval(caller *service.Caller, id ledger.ApprovalID) (*service.ApprovalView, error) {
	view, err := v.console.service.Approval(v.r.Context(), caller, id, 0)
	if codeOf(err) == fault.CodeNotFound {
		return nil, errNoApproval
	}
	return view, err
}

func (v *visit) approvalPage(caller *service.Caller, id ledger.ApprovalID) (*approvalPage, error) {
	view, err := v.approval(caller, id)
	if err != nil {
		return nil, err
	}
	page := &approvalPage{
		ApprovalView: view, Now: v.console.service.Now(), Mark: mark(view), Recipients: findRecipients(view.Payload),
		Fields: fieldsOf(view.Payload, longestPayload), Document: layOut(view.Payload, longestPayload), Choice: choiceOf(caller, view),
	}
	page.Statement = state(view, page.Recipients)
	if !caller.Role.Includes(ledger.RoleMember) {
		return page, nil
	}
	if err := v.loadContext(caller, page); err != nil {
		return nil, err
	}
	if !view.Status.Open() {
		if page.Next, err = v.nextWaiting(caller, id); err != nil {
			return nil, err
		}
	}
	if page.Verdict, err = v.verdictOn(caller, view); err != nil {
		return nil, err
	}
	page.Share = v.shareForm(caller, ledger.ArtifactApproval, id.UUID)
	return page, nil
}

// loadContext reads the chain that the action is in, and what happened in it before.
func (v *visit) loadContext(caller *service.Caller, page *approvalPage) (err error) {
	if page.Chain, err = v.console.service.Chain(v.r.Context(), caller, page.ApprovalView.Chain); err != nil {
		return err
	}
	page.Metadata = fieldsOf(page.Chain.Metadata, longestDocument)
	first := max(page.Sequence-mostBefore, 1)
	if first == page.Sequence {
		return nil
	}
	events, err := v.console.service.Events(v.r.Context(), caller, page.Chain.ID, first-1, int(page.Sequence-first))
	for _, event := range events {
		page.Before = append(page.Before, rowOfEvent(event))
	}
	return err
}

func (v *visit) verdictOn(caller *service.Caller, view *service.ApprovalView) (*verdictView, error) {
	if view.Approval.Status.Open() {
		return nil, nil
	}
	verified, err := v.console.service.VerifyApproval(v.r.Context(), caller, view.ID)
	if err != nil {
		return nil, err
	}
	overall, _ := verified.Conclude()
	return &verdictView{Overall: overall, Signature: verified.Signature.Standing, Key: verified.Key}, nil
}

func choiceOf(caller *service.Caller, view *service.ApprovalView) choice {
	voted := slices.ContainsFunc(view.Voters, func(v service.Voter) bool { return v.Reviewer.Key == caller.Key && v.Discounted == "" })
	switch {
	case !view.Status.Open():
		return choice{}
	case !caller.Role.Includes(ledger.RoleMember):
		return choice{Why: "A person decides this, and you are signed in with an agent’s key."}
	case caller.Key == view.RequestedBy:
		return choice{Why: "You are signed in with the key that recorded this action, and nobody decides their own: another person has to."}
	case !view.Admits(caller.Name):
		return choice{Why: fmt.Sprintf("The policy names who may decide this: %s. You are signed in as %q.", view.Deciders(), caller.Name)}
	case voted:
		return choice{Deny: true, Why: "You gave the first of two approvals. Another person has to give the second; you can still deny."}
	case view.Killed:
		return choice{Deny: true, Why: "The kill switch is active: nothing can be approved until an admin deactivates it. You can deny."}
	default:
		return choice{Approve: true, Deny: true}
	}
}

func approve(v *visit) error { return v.decide(true) }

func deny(v *visit) error { return v.decide(false) }

func (v *visit) decide(approve bool) error {
	caller, err := v.member()
	if err != nil {
		return err
	}
	id, err := v.approvalID()
	if err != nil {
		return err
	}
	sent, err := v.form(maxText)
	if err != nil {
		return err
	}
	refused := v.takeVerdict(caller, id, approve, sent)
	if refused == nil {
		v.seeOther("/approvals/" + id.String())
		return nil
	}
	why := refusalOf(refused)
	if why == nil {
		return refused
	}
	page, err := v.approvalPage(caller, id)
	if err != nil {
		return err
	}
	page.Refusal, page.Typed = why, sent.text("comment")
	return v.showDecision(why.Status, page)
}

// takeVerdict decides about the payload that the form was made for, and about no
// other: a form always says which.
func (v *visit) takeVerdict(caller *service.Caller, id ledger.ApprovalID, approve bool, sent form) error {
	seen := sent.text("payload_sha256")
	if seen == "" {
		return fault.Errorf(fault.CodeInvalid, "the form does not say which payload was read; read it below and decide there")
	}
	body, err := request(map[string]any{"comment": optional(sent.text("comment")), "payload_sha256": seen})
	if err != nil {
		return err
	}
	verdict, err := ledger.ParseVerdict(body, approve)
	if err != nil {
		return err
	}
	_, err = v.console.service.DecideApproval(v.r.Context(), caller, id, verdict)
	return err
}
