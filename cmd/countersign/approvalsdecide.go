package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"

	"countersign/internal/canon"
	"countersign/internal/ledger"
)

// decision is what approving and denying have in common.
type decision struct {
	remote
	ID      string `arg:"" name:"approval_id" help:"The approval's id, or its first characters, as approvals list shows them."`
	Comment string `help:"Why, for the record." env:"-"`
	Yes     bool   `help:"Do not ask." short:"y" env:"-"`
	JSON    bool   `name:"json" help:"Print JSON." env:"-"`
}

type (
	approveCommand struct{ decision }
	denyCommand    struct{ decision }
)

// Run approves.
func (c *approveCommand) Run(p *process) error { return c.decide(p, "approve") }

// Run denies.
func (c *denyCommand) Run(p *process) error { return c.decide(p, "deny") }

// decide shows what is about to be decided, asks, and sends the verdict together
// with the hash of what was shown: a person answers for what they saw.
func (c *decision) decide(p *process, verb string) error {
	api, err := c.connect(p)
	if err != nil {
		return unclear(err)
	}
	a, err := api.find(p.ctx, c.ID)
	if err != nil {
		return err
	}
	hash, err := payloadHash(a)
	if err != nil {
		return err
	}
	if err := showApproval(p.errOutput, a, hash); err != nil {
		return err
	}
	if !c.Yes {
		if err := p.confirm(strings.ToUpper(verb[:1]) + verb[1:] + " this?"); err != nil {
			return err
		}
	}
	decided, err := api.decide(p.ctx, a, verb, c.Comment, hash)
	if err != nil {
		return err
	}
	return c.print(p, decided)
}

func (c *decision) print(p *process, a *approval) error {
	if c.JSON {
		return p.printJSON(struct {
			ID     string `json:"id"`
			Status string `json:"status"`
			Votes  int    `json:"votes"`
		}{a.ID, a.Status, a.Votes})
	}
	fmt.Fprintf(p.out, "%s  %s  %s\n", a.Status, a.short(), visible(a.ActionName))
	if a.open() && a.TwoPerson {
		p.say("This takes two people: another one has to approve it too.")
	}
	return nil
}

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

func showApproval(w io.Writer, a *approval, hash string) error {
	var payload bytes.Buffer
	if err := json.Indent(&payload, a.Payload, "  ", "  "); err != nil {
		return err
	}
	policyName := "-"
	if a.PolicyName != nil {
		policyName = *a.PolicyName
	}
	for _, line := range [][2]string{
		{"agent", a.AgentName},
		{"action", a.ActionName + " (" + a.ActionType + ")"},
		{"amount", amountText(a.AmountUSD)},
		{"policy", policyName},
		{"reason", a.Reason},
		{"status", a.Status},
		{"left", timeLeft(a, time.Now())},
	} {
		fmt.Fprintf(w, "%-8s %s\n", line[0], visible(line[1]))
	}
	fmt.Fprintf(w, "payload\n  %s\nsha256   %s\n", visible(payload.String()), hash)
	return nil
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

var errNotAsked = errors.New("nobody is there to ask: standard input is no terminal; give --yes to decide without being asked")

// confirm asks a person at a terminal.
func (p *process) confirm(question string) error {
	if !isTerminal(p.in) {
		return unclear(errNotAsked)
	}
	if !ask(p.in, p.errOutput, question) {
		return errors.New("nothing was decided")
	}
	return nil
}

// ask wants a plain yes; anything else is a no.
func ask(in io.Reader, out io.Writer, question string) bool {
	fmt.Fprintf(out, "%s [y/N] ", question)
	answer, err := bufio.NewReader(io.LimitReader(in, 100)).ReadString('\n')
	answer = strings.ToLower(strings.TrimSpace(answer))
	return err == nil && (answer == "y" || answer == "yes")
}
