package console

import (
	"encoding/json"
	"fmt"
	"net/http"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

// mark tells one standing of an approval from the next, for a page that asks whether it
// still shows the latest.
func mark(view *service.ApprovalView) string {
	votes := 0
	for _, voter := range view.Voters {
		if voter.Discounted == "" {
			votes++
		}
	}
	return fmt.Sprintf("%s-%d-%t", view.Status, votes, view.Killed)
}

// standing is what the page of an approval asks for while somebody looks at it.
type standing struct {
	Mark string `json:"mark"`
	Open bool   `json:"open"`
	Says string `json:"says"`
	Next string `json:"next,omitempty"` // address of the next one to decide
}

// showStanding answers the script of an approval's page. The page works without it.
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
	now := standing{Mark: mark(view), Open: view.Status.Open(), Says: saysStanding(view)}
	if !now.Open {
		next, err := v.nextWaiting(caller, id)
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

// saysStanding is for somebody who sees an earlier standing.
func saysStanding(view *service.ApprovalView) string {
	by := ""
	if view.Reviewer != nil {
		by = " by " + given(view.Reviewer.Name).Text
	}
	switch view.Status {
	case ledger.ApprovalApproved:
		return "This was approved" + by + " meanwhile."
	case ledger.ApprovalDenied:
		return "This was denied" + by + " meanwhile."
	case ledger.ApprovalTimedOut:
		return "This has expired meanwhile."
	case ledger.ApprovalCancelled:
		return "This was cancelled meanwhile."
	}
	return "Something about this changed meanwhile."
}

// nextApproval is what is offered to somebody who is done with one.
type nextApproval struct {
	ID        ledger.ApprovalID
	Statement statement
	More      count // that wait besides
}

// nextWaiting finds the most urgent approval, other than the given one, that the caller
// can decide; nil where there is none.
func (v *visit) nextWaiting(caller *service.Caller, than ledger.ApprovalID) (*nextApproval, error) {
	if !caller.Role.Includes(ledger.RoleMember) {
		return nil, nil
	}
	list, err := v.listWaiting(caller)
	if err != nil {
		return nil, err
	}
	var next *nextApproval
	for _, row := range list.Rows {
		switch {
		case row.ID == than || !choiceOf(caller, row.ApprovalView).Approve:
		case next == nil:
			next = &nextApproval{ID: row.ID, Statement: state(row.ApprovalView, row.Recipients), More: count{Over: list.Over}}
		default:
			next.More.N++
		}
	}
	return next, nil
}
