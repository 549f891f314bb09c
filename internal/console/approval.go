package console

import (
	"fmt"
	"net/http"
	"slices"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

// approvalPage is the page on which a reviewer decides.
type approvalPage struct {
	*service.ApprovalView
	Now        ledger.Time
	Statement  statement
	Recipients recipients
	Mark       string             // identifies the state that the page shows
	Chain      *service.ChainView // nil for agents, who see no chains
	Metadata   []field            // of the chain
	Before     []eventRow         // the last events of the chain before this one
	Fields     []field            // the payload; nil if it can be shown only as a document
	Document   document
	Choice     choice
	Typed      string   // the comment as it was sent, if the decision was refused
	Refusal    *refusal // why the decision was refused
	Verdict    *verdictView
	Next       *nextApproval // set if this approval is decided and another one waits
	None       string        // said if Next is not set
	Share      *shareForm    // nil unless the caller is an admin
}

// Earlier returns the number of events before those in Before.
func (p *approvalPage) Earlier() int64 { return p.Sequence - 1 - int64(len(p.Before)) }

// maxBefore is the number of events in approvalPage.Before.
const maxBefore = 5

// choice says which buttons the page shows. It grants nothing: the service checks who may decide.
type choice struct {
	Approve, Deny bool
	Why           string // a button is missing
}

// verdictView is the result of verifying a decision.
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

var errNoApproval = fault.Errorf(fault.CodeNotFound, "your organization has no such approval, or you may not see it")

func (v *visit) approvalID() (ledger.ApprovalID, error) {
	id, err := ledger.ParseID(v.r.PathValue("approval_id"))
	if err != nil {
		return ledger.ApprovalID{}, errNoApproval
	}
	return ledger.ApprovalID{UUID: id}, nil
}

func (v *visit) showDecision(status int, page *approvalPage) error {
	if page.Status.Open() {
		v.allowPolling()
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
		Fields: fieldsOf(view.Payload, maxPayload), Document: layOut(view.Payload, maxPayload), Choice: choiceOf(caller, view),
	}
	page.Statement = statementOf(view, page.Recipients)
	if !caller.Role.Includes(ledger.RoleMember) {
		return page, nil
	}
	if err := v.loadContext(caller, page); err != nil {
		return nil, err
	}
	if !view.Status.Open() {
		if page.Next, page.None, err = v.nextWaiting(caller, id); err != nil {
			return nil, err
		}
	}
	if page.Verdict, err = v.verdictOn(caller, view); err != nil {
		return nil, err
	}
	page.Share = v.shareForm(caller, ledger.ArtifactApproval, id.UUID)
	return page, nil
}

// loadContext loads the chain of the action and the chain's last events before it.
func (v *visit) loadContext(caller *service.Caller, page *approvalPage) (err error) {
	if page.Chain, err = v.console.service.Chain(v.r.Context(), caller, page.ApprovalView.Chain); err != nil {
		return err
	}
	page.Metadata = fieldsOf(page.Chain.Metadata, maxDocument)
	// The service returns fewer events than asked for if their payloads are large.
	for last := max(page.Sequence-1-maxBefore, 0); last < page.Sequence-1; {
		events, err := v.console.service.Events(v.r.Context(), caller, page.Chain.ID, last, int(page.Sequence-1-last))
		if err != nil || len(events) == 0 {
			return err
		}
		for _, event := range events {
			row := rowOfEvent(event)
			row.Payload = nil // it is not shown
			page.Before = append(page.Before, row)
		}
		last = events[len(events)-1].Sequence
	}
	return nil
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
		return choice{Why: "You are signed in with an agent’s key. Only people can decide."}
	case caller.Key == view.RequestedBy:
		return choice{Why: "This action was recorded with your own key. Another person has to decide. Give each agent a key of its own."}
	case !view.Admits(caller.Name):
		return choice{Why: fmt.Sprintf("By policy, only these may decide: %s. You are signed in as %q.", view.Deciders(), caller.Name)}
	case voted:
		return choice{Deny: true, Why: "You gave the first of two approvals. Another person has to give the second. You can still deny."}
	case view.Killed:
		return choice{Deny: true, Why: "The kill switch is active. Nothing can be approved until an admin deactivates it. You can deny."}
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

// takeVerdict decides the approval if its payload is still the one that the form showed.
func (v *visit) takeVerdict(caller *service.Caller, id ledger.ApprovalID, approve bool, sent form) error {
	seen := sent.text("payload_sha256")
	if seen == "" {
		return fault.Errorf(fault.CodeInvalid, "the form does not say which payload you read; read it below and decide there")
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
