package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"

	"countersign/internal/canon"
	"countersign/internal/classify"
	"countersign/internal/ledger"
)

// payloadHash is the hash of the payload as it is shown, which has to be the one
// that the server speaks of.
func payloadHash(a *approval) (string, error) {
	payload, err := canon.Parse(a.Payload)
	if err != nil || payload.IsNull() {
		return "", errors.New("the action's payload is not there any more, so nobody can see what they would decide")
	}
	hash := ledger.PayloadHash(payload.Append(nil))
	if hash != a.PayloadSHA256 {
		return "", errors.New("the payload that the server shows is not the one that the approval is about: do not decide, and run countersign audit on the server")
	}
	return hash, nil
}

// showApproval is what a person decides by.
func showApproval(w io.Writer, a *approval, hash string) error {
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
		fmt.Fprintf(w, "%-8s %s\n", line[0], visible(line[1]))
	}
	for _, voter := range a.Voters {
		text := voter.Reviewer.Name + " approved"
		if voter.Discounted != nil {
			text += ", which does not count any more: " + *voter.Discounted
		}
		fmt.Fprintf(w, "%-8s %s\n", "vote", visible(text))
	}
	for _, rule := range a.Matched {
		fmt.Fprintf(w, "%-8s %s\n", "matched", visible(fmt.Sprintf("%s (%s): %s", rule.Name, plainStatus(rule.Decision), rule.Reason)))
	}
	fmt.Fprintf(w, "payload\n  %s\nsha256   %s\n", visible(payload.String()), hash)
	if len(a.Unbound) > 0 {
		fmt.Fprintf(w, "unbound  %s: taken out of the payload, and nobody can prove later what stood there\n", visible(someOf(a.Unbound, nothing)))
	}
	return nil
}

const nothing = "-"

func chainText(a *approval) string {
	if a.Chain == nil {
		return nothing
	}
	return a.Chain.Name + " (" + a.Chain.Environment + ")"
}

func amountText(amount *float64) string {
	if amount == nil {
		return nothing
	}
	return dollars(*amount)
}

// dollars writes an amount as the console does.
func dollars(amount float64) string { return ledger.MoneyOf(amount).Display() + " USD" }

func ruleText(a *approval) string {
	if a.PolicyName == nil {
		return nothing
	}
	return *a.PolicyName
}

// domainsText names where the action would go. It is found in the payload as the
// service finds it, so that it is said of what is shown.
func domainsText(a *approval) string {
	payload, err := canon.Parse(a.Payload)
	if err != nil {
		return nothing
	}
	found := classify.Classify(classify.Input{ActionType: a.ActionType, ActionName: a.ActionName, Payload: payload})
	return someOf(found.ExternalDomains, nothing)
}

func decidersText(a *approval) string {
	text := someOf(a.Approvers, "any member or admin")
	if len(a.Approvers) > 0 && len(a.Fallback) > 0 {
		when := "; once it has escalated also "
		if a.EscalatedAt != nil {
			when = "; since it escalated also "
		}
		text += when + someOf(a.Fallback, nothing)
	}
	if a.TwoPerson {
		text += fmt.Sprintf("; two people, %d so far", a.Votes)
	}
	return text
}

// someOf lists as many as a person reads.
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

// visible makes characters that a terminal would obey, or hide, show as escapes:
// names and payloads are words that an agent chose.
func visible(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case r == '\n' || unicode.IsPrint(r):
			b.WriteRune(r)
		case r <= 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
	}
	return b.String()
}
