package review

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"countersign/internal/canon"
	"countersign/internal/classify"
	"countersign/internal/cli"
	"countersign/internal/ledger"
)

// PayloadHash returns the hash of the payload that is shown. It must match the approval's hash.
func PayloadHash(a *Approval) (string, error) {
	payload, err := canon.Parse(a.Payload)
	if err != nil || payload.IsNull() {
		return "", errors.New("the action's payload was erased, so there is nothing to base a decision on")
	}
	hash := ledger.PayloadHash(payload.Append(nil))
	if hash != a.PayloadSHA256 {
		return "", errors.New("the payload that the server shows is not the one that the approval is about: do not decide, and run countersign audit on the server")
	}
	return hash, nil
}

// ShowApproval prints what a person needs for the decision.
func ShowApproval(w io.Writer, a *Approval, hash string) error {
	var payload bytes.Buffer
	if err := json.Indent(&payload, a.Payload, "  ", "  "); err != nil {
		return err
	}
	for _, line := range [][2]string{
		{"agent", a.AgentName},
		{"action", a.ActionName + " (" + a.ActionType + ")"},
		{"chain", chainText(a)},
		{"amount", amountText(a.AmountUSD)},
		{"domains", domainsText(a)},
		{"rule", ruleText(a)},
		{"reason", a.Reason},
		{"deciders", decidersText(a)},
		{"status", a.Status},
		{"left", timeLeft(a, time.Now())},
		{"client", clientText(a, time.Now())},
	} {
		fmt.Fprintf(w, "%-8s %s\n", line[0], cli.OneLine(line[1]))
	}
	for _, voter := range a.Voters {
		text := voter.Reviewer.Name + " approved"
		if voter.Discounted != nil {
			text += ", which does not count any more: " + *voter.Discounted
		}
		fmt.Fprintf(w, "%-8s %s\n", "vote", cli.OneLine(text))
	}
	for _, rule := range a.Matched {
		fmt.Fprintf(w, "%-8s %s\n", "matched", cli.OneLine(fmt.Sprintf("%s (%s): %s", rule.Name, plainStatus(rule.Decision), rule.Reason)))
	}
	fmt.Fprintf(w, "payload\n  %s\nsha256   %s\n", cli.Printable(payload.String()), hash)
	if len(a.Unbound) > 0 {
		fmt.Fprintf(w, "unbound  %s: removed from the payload without a digest, so it cannot be proven later\n", cli.OneLine(someOf(a.Unbound, cli.None)))
	}
	return nil
}

func chainText(a *Approval) string {
	switch {
	case a.Chain == nil:
		return cli.None
	case a.Chain.tampered:
		return changedOutside
	}
	return a.Chain.Name + " (" + a.Chain.Environment + ")"
}

func amountText(amount *float64) string {
	if amount == nil {
		return cli.None
	}
	return cli.Dollars(*amount)
}

func ruleText(a *Approval) string {
	if a.PolicyName == nil {
		return cli.None
	}
	return *a.PolicyName
}

// domainsText lists the external domains of the action. It classifies the payload like the service,
// so that it describes exactly what is shown.
func domainsText(a *Approval) string {
	payload, err := canon.Parse(a.Payload)
	if err != nil {
		return cli.None
	}
	found := classify.Classify(classify.Input{ActionType: a.ActionType, ActionName: a.ActionName, Payload: payload})
	return someOf(classify.ASCIIDomains(found.ExternalDomains), cli.None)
}

func decidersText(a *Approval) string {
	text := someOf(a.Approvers, "any member or admin")
	if len(a.Approvers) > 0 && len(a.Fallback) > 0 {
		when := "; once it has escalated also "
		if a.EscalatedAt != nil {
			when = "; since it escalated also "
		}
		text += when + someOf(a.Fallback, cli.None)
	}
	if a.TwoPerson {
		text += fmt.Sprintf("; two people, %d so far", a.Votes)
	}
	return text
}

// someOf lists a readable number of names.
func someOf(names []string, otherwise string) string {
	const most = 20
	if len(names) == 0 {
		return otherwise
	}
	text := strings.Join(names[:min(most, len(names))], ", ")
	if more := len(names) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
