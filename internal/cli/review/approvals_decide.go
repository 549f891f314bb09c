package review

import (
	"errors"
	"fmt"
	"strings"

	"countersign/internal/cli"
)

// decision is shared by the approve and deny commands.
type decision struct {
	cli.Remote
	ID      string `arg:"" name:"approval_id" help:"The approval's id, or its first characters, as approvals list shows them."`
	Comment string `help:"Why, for the record." env:"-"`
	Yes     bool   `help:"Do not ask for confirmation." short:"y" env:"-"`
	JSON    bool   `name:"json" help:"Print JSON." env:"-"`
}

type (
	approveCommand struct{ decision }
	denyCommand    struct{ decision }
)

// Run approves.
func (c *approveCommand) Run(p *cli.Process) error { return c.decide(p, "approve") }

// Run denies.
func (c *denyCommand) Run(p *cli.Process) error { return c.decide(p, "deny") }

// decide shows the approval, asks for confirmation, and sends the decision with the hash of the
// payload that was shown: a person is responsible for what they saw.
func (c *decision) decide(p *cli.Process, verb string) error {
	api, err := c.Connect(p)
	if err != nil {
		return cli.Usage(err)
	}
	a, err := FindApproval(p.Ctx, api, c.ID)
	if err != nil {
		return err
	}
	if !a.Open() {
		return c.settled(p, a, verb)
	}
	hash, err := PayloadHash(a)
	if err != nil {
		return err
	}
	if err := LookUpChains(p.Ctx, api, make(map[string]*ChainLine), a); err != nil {
		return err
	}
	if a.Chain.tampered {
		return errTampered
	}
	if err := ShowApproval(p.Err, a, hash); err != nil {
		return err
	}
	if !c.Yes {
		if err := p.Confirm(strings.ToUpper(verb[:1]) + verb[1:] + " this?"); err != nil {
			return err
		}
	}
	decided, err := SendDecision(p.Ctx, api, a, verb, c.Comment, hash)
	if err != nil {
		return err
	}
	return c.print(p, decided)
}

// settled reports the outcome of a decided approval. Repeating the same decision is harmless.
func (c *decision) settled(p *cli.Process, a *Approval, verb string) error {
	before := "already " + settledText(a)
	if (a.Status == "approved" && verb == "approve") || (a.Status == "denied" && verb == "deny") {
		p.Notef("%s", before)
		return c.print(p, a)
	}
	return errors.New(before)
}

// settledText says how an approval ended, by whom and when.
func settledText(a *Approval) string {
	switch a.Status {
	case "timed_out":
		return "expired at " + cli.FormatTime(a.ExpiresAt) + ": the action has to be recorded again"
	case "cancelled":
		if a.Comment != nil {
			return "cancelled: the client gave up before anyone decided (" + cli.OneLine(*a.Comment) + ")"
		}
		return "cancelled: its chain was completed before anyone decided"
	}
	text := a.Status + " by " + reviewerText(a)
	if a.DeniedBy != nil {
		text = "denied because the rules changed while it waited: " + cli.OneLine(a.DeniedBy.Reason)
	}
	if a.DecidedAt != nil {
		text += " at " + cli.FormatTime(*a.DecidedAt)
	}
	return text + "; the first decision stands"
}

func reviewerText(a *Approval) string {
	if a.Reviewer == nil || a.Reviewer.Name == "" {
		return "an unnamed reviewer"
	}
	return cli.OneLine(a.Reviewer.Name)
}

func (c *decision) print(p *cli.Process, a *Approval) error {
	if c.JSON {
		return p.PrintJSON(struct {
			ID     string `json:"id"`
			Status string `json:"status"`
			Votes  int    `json:"votes"`
		}{a.ID, a.Status, a.Votes})
	}
	fmt.Fprintf(p.Out, "%s  %s  %s\n", a.Status, a.short(), cli.OneLine(a.ActionName))
	if a.Open() && a.TwoPerson {
		p.Notef("This takes two people: another one has to approve it too.")
	}
	return nil
}
