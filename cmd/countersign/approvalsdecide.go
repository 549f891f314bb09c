package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
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
		return misused(err)
	}
	a, err := api.find(p.ctx, c.ID)
	if err != nil {
		return err
	}
	if !a.open() {
		return c.settled(p, a, verb)
	}
	hash, err := payloadHash(a)
	if err != nil {
		return err
	}
	if err := api.lookUp(p.ctx, make(map[string]*chainLine), a); err != nil {
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

// settled says what has become of an approval. To decide it again as it was decided
// is harmless.
func (c *decision) settled(p *process, a *approval, verb string) error {
	before := "already " + settledText(a)
	if (a.Status == "approved" && verb == "approve") || (a.Status == "denied" && verb == "deny") {
		p.say("%s", before)
		return c.print(p, a)
	}
	return errors.New(before)
}

// settledText is how an approval ended, by whom and when.
func settledText(a *approval) string {
	switch a.Status {
	case "timed_out":
		return "expired at " + momentText(a.ExpiresAt) + ": the action has to be recorded again"
	case "cancelled":
		return "cancelled: its chain was completed before anyone decided"
	}
	text := a.Status + " by " + reviewerText(a)
	if a.DeniedBy != nil {
		text = "denied because the rules changed while it waited: " + visible(a.DeniedBy.Reason)
	}
	if a.DecidedAt != nil {
		text += " at " + momentText(*a.DecidedAt)
	}
	return text + "; the first decision stands"
}

func reviewerText(a *approval) string {
	if a.Reviewer == nil || a.Reviewer.Name == "" {
		return "somebody without a name"
	}
	return visible(a.Reviewer.Name)
}

func momentText(at time.Time) string { return at.UTC().Format(time.RFC3339) }

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
