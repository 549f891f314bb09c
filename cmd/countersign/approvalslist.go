package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

type approvalsListCommand struct {
	remote
	Status string        `help:"Which to list: ${enum}." enum:"waiting,pending,escalated,approved,denied,timed_out,cancelled,all" default:"waiting" env:"-"`
	Watch  bool          `help:"Stay, and show the list again when it has changed." env:"-"`
	Every  time.Duration `help:"How often to look with --watch." default:"2s" env:"-"`
	JSON   bool          `name:"json" help:"Print JSON." env:"-"`

	chains map[string]*chainLine // that were looked up
}

// Run lists approvals.
func (c *approvalsListCommand) Run(p *process) error {
	if c.Watch && (c.JSON || c.Every < 100*time.Millisecond) {
		return misused(fmt.Errorf("--watch goes without --json, and looks at most ten times a second"))
	}
	api, err := c.connect(p)
	if err != nil {
		return misused(err)
	}
	c.chains = make(map[string]*chainLine)
	shown, err := c.show(p, api, "")
	if err != nil || !c.Watch {
		return err
	}
	ticker := time.NewTicker(c.Every)
	defer ticker.Stop()
	for {
		select {
		case <-p.ctx.Done():
			return nil
		case <-ticker.C:
		}
		if shown, err = c.show(p, api, shown); err != nil && p.ctx.Err() == nil {
			return err
		}
	}
}

// show prints the list unless it is the one that was shown before, and returns
// what tells the two apart.
func (c *approvalsListCommand) show(p *process, api *apiClient, before string) (string, error) {
	list, raw, err := c.read(p, api)
	if err != nil {
		return before, err
	}
	if c.JSON {
		if raw == nil {
			raw = []json.RawMessage{}
		}
		return "", p.printJSON(raw)
	}
	var now strings.Builder
	for i := range list {
		fmt.Fprintln(&now, list[i].ID, list[i].Status, list[i].Votes, list[i].Waiting != nil && *list[i].Waiting)
	}
	identity := now.String() + "."
	if identity == before {
		return before, nil
	}
	if before != "" {
		fmt.Fprintln(p.out)
	}
	if len(list) == 0 {
		if c.Status == "all" {
			p.say("There is no approval.")
			return identity, nil
		}
		p.say("No approval is " + plainStatus(c.Status) + ".")
		return identity, nil
	}
	if !slices.Contains([]string{"waiting", "pending", "escalated"}, c.Status) {
		return identity, printSettled(p, list)
	}
	for i := range list {
		if err := api.lookUp(p.ctx, c.chains, &list[i]); err != nil {
			return before, err
		}
	}
	return identity, printWaiting(p, list, time.Now())
}

func (c *approvalsListCommand) read(p *process, api *apiClient) ([]approval, []json.RawMessage, error) {
	switch c.Status {
	case "waiting":
		return api.waiting(p.ctx)
	case "all":
		return api.approvals(p.ctx, "", mostApprovals)
	}
	return api.approvals(p.ctx, c.Status, mostApprovals)
}

func printWaiting(p *process, list []approval, now time.Time) error {
	rows := make([][]string, len(list))
	for i := range list {
		a := &list[i]
		if a.tampered() {
			rows[i] = tamperedRow(a, 11)
			continue
		}
		rows[i] = cells(a.short(), chainText(a), a.AgentName, a.ActionName, amountText(a.AmountUSD), domainsText(a),
			ruleText(a), decidersText(a), timeLeft(a, now), clientText(a, now), a.Reason)
	}
	return p.printTable([]string{"ID", "CHAIN", "AGENT", "ACTION", "AMOUNT", "DOMAINS", "RULE", "WHO MAY DECIDE", "TIME LEFT", "CLIENT", "REASON"}, rows)
}

// tamperedRow stands for an approval of which nothing but the id is told.
func tamperedRow(a *approval, columns int) []string {
	row := slices.Repeat([]string{nothing}, columns)
	row[0], row[columns-1] = a.short(), "changed outside the service: run countersign audit on the server"
	return row
}

func printSettled(p *process, list []approval) error {
	rows := make([][]string, len(list))
	for i := range list {
		a := &list[i]
		if a.tampered() {
			rows[i] = tamperedRow(a, 10)
			continue
		}
		by, at := nothing, nothing
		if a.Reviewer != nil {
			by = reviewerText(a)
		} else if a.DeniedBy != nil {
			by = "a rule"
		}
		if a.DecidedAt != nil {
			at = momentText(*a.DecidedAt)
		}
		rows[i] = cells(a.short(), a.AgentName, a.ActionName, amountText(a.AmountUSD), domainsText(a), ruleText(a), plainStatus(a.Status), by, at, a.Reason)
	}
	return p.printTable([]string{"ID", "AGENT", "ACTION", "AMOUNT", "DOMAINS", "RULE", "STATUS", "BY", "AT", "REASON"}, rows)
}

// cells are texts as one line of a table holds them.
func cells(texts ...string) []string {
	const longest = 70
	for i, text := range texts {
		texts[i] = visible(strings.ReplaceAll(cut(text, longest), "\n", " "))
	}
	return texts
}

func plainStatus(status string) string { return strings.ReplaceAll(status, "_", " ") }

// timeLeft is how long a person has.
func timeLeft(a *approval, now time.Time) string {
	if !a.open() {
		return spanText(0)
	}
	text := spanText(a.ExpiresAt.Sub(now))
	if a.Status == "escalated" {
		text += " (escalated)"
	}
	return text
}

// clientText says whether somebody still waits for the decision, as far as the
// server tells.
func clientText(a *approval, now time.Time) string {
	switch {
	case a.Waiting == nil:
		return nothing
	case *a.Waiting:
		return "waiting"
	case a.LastPolledAt == nil:
		return "never asked"
	}
	// The server's clock may be ahead of this one's.
	return "asked " + spanText(max(now.Sub(*a.LastPolledAt), time.Second)) + " ago"
}

// spanText rounds down to what matters at a glance.
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

func cut(text string, limit int) string {
	if runes := []rune(text); len(runes) > limit {
		return string(runes[:limit-1]) + "…"
	}
	return text
}
