package review

import (
	"fmt"
	"net/http"
	"time"

	"countersign/internal/cli"
)

// KillSwitchCommands are the commands for the kill switch.
type KillSwitchCommands struct {
	Show killSwitchShowCommand `cmd:"" default:"1" help:"Show whether the kill switch is active."`
	On   killSwitchOnCommand   `cmd:"" help:"Stop every agent of the organization; returns when no new action can start."`
	Off  killSwitchOffCommand  `cmd:"" help:"Let agents act again."`
}

type killSwitchShowCommand struct {
	cli.Remote
	JSON bool `name:"json" help:"Print JSON." env:"-"`
}

type killSwitchOnCommand struct {
	cli.Remote
	Reason string `arg:"" help:"One line that is shown to everyone who is stopped."`
	JSON   bool   `name:"json" help:"Print JSON." env:"-"`
}

type killSwitchOffCommand struct {
	cli.Remote
	JSON bool `name:"json" help:"Print JSON." env:"-"`
}

// KillSwitch is the state of the kill switch in the API's form.
type KillSwitch struct {
	Active    bool       `json:"active"`
	Reason    *string    `json:"reason"`
	ChangedAt *time.Time `json:"changed_at"`
	ChangedBy *string    `json:"changed_by"`
}

// Run shows the kill switch.
func (c *killSwitchShowCommand) Run(p *cli.Process) error {
	return turnKillSwitch(p, &c.Remote, http.MethodGet, "", nil, c.JSON)
}

// Run activates the kill switch.
func (c *killSwitchOnCommand) Run(p *cli.Process) error {
	return turnKillSwitch(p, &c.Remote, http.MethodPost, "/activate", map[string]string{"reason": c.Reason}, c.JSON)
}

// Run deactivates the kill switch.
func (c *killSwitchOffCommand) Run(p *cli.Process) error {
	return turnKillSwitch(p, &c.Remote, http.MethodPost, "/deactivate", nil, c.JSON)
}

func turnKillSwitch(p *cli.Process, server *cli.Remote, method, path string, body any, asJSON bool) error {
	api, err := server.Connect(p)
	if err != nil {
		return cli.Usage(err)
	}
	var now KillSwitch
	if err := api.Call(p.Ctx, method, "/v1/kill-switch"+path, body, &now); err != nil {
		return err
	}
	if asJSON {
		return p.PrintJSON(now)
	}
	state := "off: agents may act"
	if now.Active {
		state = "ON: nothing is allowed"
	}
	if now.Reason != nil {
		state += fmt.Sprintf(" (%s)", cli.OneLine(*now.Reason))
	}
	if now.ChangedAt != nil && now.ChangedBy != nil {
		state += fmt.Sprintf(", since %s by %s", now.ChangedAt.UTC().Format(time.RFC3339), cli.OneLine(*now.ChangedBy))
	}
	fmt.Fprintln(p.Out, state)
	return nil
}
