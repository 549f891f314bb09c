package review

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"countersign/internal/cli"
)

type approvalsListCommand struct {
	cli.Remote
	searchFlags
	Status string        `help:"Which to list: ${enum}." enum:"waiting,pending,escalated,approved,denied,timed_out,cancelled,all" default:"waiting" env:"-"`
	Watch  bool          `help:"Keep running, and print the list again when it changes." env:"-"`
	Every  time.Duration `help:"How often to check with --watch." default:"2s" env:"-"`
	JSON   bool          `name:"json" help:"Print JSON." env:"-"`

	chains map[string]*ChainLine // looked up so far
}

// Run lists approvals.
func (c *approvalsListCommand) Run(p *cli.Process) error {
	if c.Watch && (c.JSON || c.Every < 100*time.Millisecond) {
		return cli.Usage(fmt.Errorf("--watch cannot be combined with --json, and --every must be at least 100ms"))
	}
	api, err := c.Connect(p)
	if err != nil {
		return cli.Usage(err)
	}
	c.chains = make(map[string]*ChainLine)
	shown, err := c.show(p, api, "")
	if err != nil || !c.Watch {
		return err
	}
	return c.watch(p, api, shown)
}

// watch shows the list whenever it changes. It says why it cannot be read, once, and tries again
// after a pause that grows.
func (c *approvalsListCommand) watch(p *cli.Process, api *cli.Client, shown string) (err error) {
	const maxPause = 30 * time.Second
	pause, why := c.Every, ""
	for {
		select {
		case <-p.Ctx.Done():
			return nil
		case <-time.After(pause):
		}
		shown, err = c.show(p, api, shown)
		switch {
		case p.Ctx.Err() != nil:
			return nil //nolint:nilerr // it was told to end
		case err == nil:
			if why != "" {
				p.Notef("The server answers again.")
			}
			pause, why = c.Every, ""
		case !passes(err):
			return err
		default:
			if why != err.Error() {
				why = err.Error()
				p.Notef("The list cannot be read and may be out of date; trying again: %s", cli.OneLine(why))
			}
			pause = max(c.Every, min(2*pause, maxPause))
		}
	}
}

// passes reports whether a request that failed may succeed later: the server cannot be reached, is
// overloaded, or something else answers in its place.
func passes(err error) bool {
	var refused *cli.APIError
	if errors.As(err, &refused) {
		return refused.Status >= http.StatusInternalServerError || refused.Status == http.StatusTooManyRequests || refused.Status == http.StatusRequestTimeout
	}
	var unanswered *cli.ExitError
	return errors.As(err, &unanswered)
}

// show prints the list unless it is the one that was shown before. It returns a text that
// identifies the list.
func (c *approvalsListCommand) show(p *cli.Process, api *cli.Client, before string) (string, error) {
	read, err := c.read(p, api)
	if err != nil {
		return before, err
	}
	if c.JSON {
		return "", p.PrintJSON(read.raw)
	}
	list := read.list
	var now strings.Builder
	for i := range list {
		fmt.Fprintln(&now, list[i].ID, list[i].Status, list[i].Votes, list[i].Waiting != nil && *list[i].Waiting)
	}
	identity := now.String() + "."
	if identity == before {
		return before, nil
	}
	if before != "" {
		fmt.Fprintln(p.Out)
	}
	if len(list) == 0 {
		if c.Status == "all" {
			p.Notef("There are no approvals.")
			return identity, nil
		}
		p.Notef("No approval is " + plainStatus(c.Status) + ".")
		return identity, nil
	}
	if !slices.Contains([]string{"waiting", "pending", "escalated"}, c.Status) {
		return identity, printSettled(p, list)
	}
	for i := range list {
		if err := LookUpChains(p.Ctx, api, c.chains, &list[i]); err != nil {
			return before, err
		}
	}
	return identity, printWaiting(p, list, time.Now())
}

func (c *approvalsListCommand) read(p *cli.Process, api *cli.Client) (read readApprovals, err error) {
	which := ""
	switch c.Status {
	case "waiting":
		which = " of each status"
		read, err = waitingApprovals(p.Ctx, api, c.query())
	case "all":
		read, err = approvalsOf(p.Ctx, api, "", c.query())
	default:
		read, err = approvalsOf(p.Ctx, api, c.Status, c.query())
	}
	if read.more && !c.Watch {
		p.Notef("These are only the newest %d approvals%s; --since and --until select others.", maxApprovals, which)
	}
	return read, err
}

func printWaiting(p *cli.Process, list []Approval, now time.Time) error {
	rows := make([][]string, len(list))
	for i := range list {
		a := &list[i]
		if a.tampered() {
			rows[i] = tamperedRow(a, 11)
			continue
		}
		rows[i] = cli.Cells(a.short(), chainText(a), a.AgentName, a.ActionName, amountText(a.AmountUSD), domainsText(a),
			ruleText(a), decidersText(a), timeLeft(a, now), clientText(a, now), a.Reason)
	}
	return p.PrintTable([]string{"ID", "CHAIN", "AGENT", "ACTION", "AMOUNT", "DOMAINS", "RULE", "WHO MAY DECIDE", "TIME LEFT", "CLIENT", "REASON"}, rows)
}

// tamperedRow is the row of an approval of which only the id is known.
func tamperedRow(a *Approval, columns int) []string {
	row := slices.Repeat([]string{cli.None}, columns)
	row[0], row[columns-1] = a.short(), "changed outside the service: run countersign audit on the server"
	return row
}

func printSettled(p *cli.Process, list []Approval) error {
	rows := make([][]string, len(list))
	for i := range list {
		a := &list[i]
		if a.tampered() {
			rows[i] = tamperedRow(a, 10)
			continue
		}
		by, at := cli.None, cli.None
		if a.Reviewer != nil {
			by = reviewerText(a)
		} else if a.DeniedBy != nil {
			by = "a rule"
		}
		if a.DecidedAt != nil {
			at = cli.FormatTime(*a.DecidedAt)
		}
		rows[i] = cli.Cells(a.short(), a.AgentName, a.ActionName, amountText(a.AmountUSD), domainsText(a), ruleText(a), plainStatus(a.Status), by, at, a.Reason)
	}
	return p.PrintTable([]string{"ID", "AGENT", "ACTION", "AMOUNT", "DOMAINS", "RULE", "STATUS", "BY", "AT", "REASON"}, rows)
}

func plainStatus(status string) string { return strings.ReplaceAll(status, "_", " ") }

// timeLeft is how long a person has.
func timeLeft(a *Approval, now time.Time) string {
	if !a.Open() {
		return spanText(0)
	}
	text := spanText(a.ExpiresAt.Sub(now))
	if a.Status == "escalated" {
		text += " (escalated)"
	}
	return text
}

// clientText says whether a client is still waiting for the decision, according to the server.
func clientText(a *Approval, now time.Time) string {
	switch {
	case a.Waiting == nil:
		return cli.None
	case *a.Waiting:
		return "waiting"
	case a.LastPolledAt == nil:
		return "never asked"
	}
	// The server's clock may be ahead of this one.
	return "asked " + spanText(max(now.Sub(*a.LastPolledAt), time.Second)) + " ago"
}

// spanText formats a duration, rounded down for reading at a glance.
func spanText(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d <= 0:
		return "none"
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 2*day:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd", d/day)
}
