package main

import (
	"fmt"
	"net/http"
	"time"
)

type killSwitchCommands struct {
	Show killSwitchShowCommand `cmd:"" default:"1" help:"Say whether everything is stopped."`
	On   killSwitchOnCommand   `cmd:"" help:"Stop every agent of the organization; answered when nothing more begins."`
	Off  killSwitchOffCommand  `cmd:"" help:"Let agents act again."`
}

type killSwitchShowCommand struct {
	remote
	JSON bool `name:"json" help:"Print JSON." env:"-"`
}

type killSwitchOnCommand struct {
	remote
	Reason string `arg:"" help:"One line for everyone who is stopped by it."`
	JSON   bool   `name:"json" help:"Print JSON." env:"-"`
}

type killSwitchOffCommand struct {
	remote
	JSON bool `name:"json" help:"Print JSON." env:"-"`
}

// killSwitch is as the API shows it.
type killSwitch struct {
	Active    bool       `json:"active"`
	Reason    *string    `json:"reason"`
	ChangedAt *time.Time `json:"changed_at"`
	ChangedBy *string    `json:"changed_by"`
}

// Run shows the kill switch.
func (c *killSwitchShowCommand) Run(p *process) error {
	return turnKillSwitch(p, &c.remote, http.MethodGet, "", nil, c.JSON)
}

// Run stops everything.
func (c *killSwitchOnCommand) Run(p *process) error {
	return turnKillSwitch(p, &c.remote, http.MethodPost, "/activate", map[string]string{"reason": c.Reason}, c.JSON)
}

// Run lets agents act again.
func (c *killSwitchOffCommand) Run(p *process) error {
	return turnKillSwitch(p, &c.remote, http.MethodPost, "/deactivate", nil, c.JSON)
}

func turnKillSwitch(p *process, server *remote, method, path string, body any, asJSON bool) error {
	api, err := server.connect(p)
	if err != nil {
		return misused(err)
	}
	var now killSwitch
	if err := api.call(p.ctx, method, "/v1/kill-switch"+path, body, &now); err != nil {
		return err
	}
	if asJSON {
		return p.printJSON(now)
	}
	state := "off: agents may act"
	if now.Active {
		state = "ON: nothing is allowed"
	}
	if now.Reason != nil {
		state += fmt.Sprintf(" (%s)", visible(*now.Reason))
	}
	if now.ChangedAt != nil && now.ChangedBy != nil {
		state += fmt.Sprintf(", since %s by %s", now.ChangedAt.UTC().Format(time.RFC3339), visible(*now.ChangedBy))
	}
	fmt.Fprintln(p.out, state)
	return nil
}
