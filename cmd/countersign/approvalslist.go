package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

type approvalsListCommand struct {
	remote
	Status string        `help:"Which to list: ${enum}." enum:"waiting,pending,escalated,approved,denied,timed_out,cancelled" default:"waiting" env:"-"`
	Watch  bool          `help:"Stay, and show the list again when it has changed." env:"-"`
	Every  time.Duration `help:"How often to look with --watch." default:"2s" env:"-"`
	JSON   bool          `name:"json" help:"Print JSON." env:"-"`
}

// Run lists approvals.
func (c *approvalsListCommand) Run(p *process) error {
	if c.Watch && (c.JSON || c.Every < 100*time.Millisecond) {
		return unclear(fmt.Errorf("--watch goes without --json, and looks at most ten times a second"))
	}
	api, err := c.connect(p)
	if err != nil {
		return unclear(err)
	}
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
		fmt.Fprintln(&now, list[i].ID, list[i].Status, list[i].Votes)
	}
	identity := now.String() + "."
	if identity == before {
		return before, nil
	}
	if before != "" {
		fmt.Fprintln(p.out)
	}
	if len(list) == 0 {
		p.say("No approval is " + strings.ReplaceAll(c.Status, "_", " ") + ".")
		return identity, nil
	}
	return identity, printApprovals(p, list, time.Now())
}

func (c *approvalsListCommand) read(p *process, api *apiClient) ([]approval, []json.RawMessage, error) {
	if c.Status == "waiting" {
		return api.waiting(p.ctx)
	}
	return api.approvals(p.ctx, c.Status, mostApprovals)
}

func printApprovals(p *process, list []approval, now time.Time) error {
	rows := make([][]string, len(list))
	for i := range list {
		a := &list[i]
		rows[i] = []string{a.short(), visible(a.AgentName), visible(a.ActionName), amountText(a.AmountUSD), timeLeft(a, now), visible(cut(a.Reason, 70))}
	}
	return p.printTable([]string{"ID", "AGENT", "ACTION", "AMOUNT", "TIME LEFT", "REASON"}, rows)
}

func amountText(amount *float64) string {
	if amount == nil {
		return "-"
	}
	return fmt.Sprintf("$%.2f", *amount)
}

// timeLeft is how long a person has, or what has become of the approval.
func timeLeft(a *approval, now time.Time) string {
	if !a.open() {
		return strings.ReplaceAll(a.Status, "_", " ")
	}
	text := spanText(a.ExpiresAt.Sub(now))
	if a.Status == "escalated" {
		text += " (escalated)"
	}
	return text
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
