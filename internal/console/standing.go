package console

import (
	"encoding/json"
	"fmt"
	"net/http"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

// mark identifies the state of an approval, so that a page can tell whether it is still current.
func mark(view *service.ApprovalView) string {
	return fmt.Sprintf("%s-%d-%t", view.Status, view.Counting(), view.Killed)
}

// standing is the current state of an approval, for which its page polls.
type standing struct {
	Mark string `json:"mark"`
	Open bool   `json:"open"`
	Says string `json:"says"`           // to show if Mark has changed
	Next string `json:"next,omitempty"` // address of the next approval to decide
}

// showStanding answers the script of an approval's page. The page also works without the script.
func showStanding(v *visit) error {
	if v.caller == nil {
		return fault.Errorf(fault.CodeUnauthenticated, "you are not signed in, or your session has ended")
	}
	caller := v.caller
	id, err := v.approvalID()
	if err != nil {
		return err
	}
	view, err := v.approval(caller, id)
	if err != nil {
		return err
	}
	now := standing{Mark: mark(view), Open: view.Status.Open(), Says: changeNotice(view)}
	if !now.Open {
		next, _, err := v.nextWaiting(caller, id)
		if err != nil {
			return err
		}
		if next != nil {
			now.Next = "/approvals/" + next.ID.String()
		}
	}
	body, err := json.Marshal(now)
	if err != nil {
		return err
	}
	v.write(http.StatusOK, "application/json", body)
	return nil
}

// changeNotice returns the message for somebody whose page shows an earlier state.
func changeNotice(view *service.ApprovalView) string {
	by := ""
	if view.Reviewer != nil {
		by = " by " + agentText(view.Reviewer.Name).Text
	}
	switch view.Status {
	case ledger.ApprovalApproved:
		return "This has been approved" + by + "."
	case ledger.ApprovalDenied:
		return "This has been denied" + by + "."
	case ledger.ApprovalTimedOut:
		return "This has expired."
	case ledger.ApprovalCancelled:
		return "This has been cancelled."
	}
	switch { // it still waits
	case view.Killed:
		return "The kill switch is active now: nothing can be approved."
	case view.Counting() > 0:
		return "One approval has been given. A second person has to approve."
	case view.Status == ledger.ApprovalEscalated:
		return "This is escalated now: nobody has decided yet."
	}
	return "This has changed, but still waits."
}

// nextApproval is the next approval that a reviewer can decide.
type nextApproval struct {
	ID        ledger.ApprovalID
	Statement statement
	More      count // further approvals that wait
}

// nextWaiting returns the most urgent approval, other than the given one, that the caller can approve.
// If there is none, it returns nil and what to say instead.
func (v *visit) nextWaiting(caller *service.Caller, than ledger.ApprovalID) (next *nextApproval, none string, err error) {
	if !caller.Role.Includes(ledger.RoleMember) {
		return nil, "", nil
	}
	list, err := v.listWaiting(caller)
	if err != nil {
		return nil, "", err
	}
	none = "Nothing else is waiting for you."
	if list.Over {
		none = "None of the most urgent approvals is for you to approve. More are waiting."
	}
	for _, row := range list.Rows {
		choice := choiceOf(caller, row.ApprovalView)
		switch {
		case row.ID == than:
		case !choice.Approve && choice.Deny:
			none = "Others are waiting that you can deny, but not approve at present."
		case !choice.Approve:
		case next == nil:
			next = &nextApproval{ID: row.ID, Statement: statementOf(row.ApprovalView, row.Recipients), More: count{Over: list.Over}}
		default:
			next.More.N++
		}
	}
	return next, none, nil
}
