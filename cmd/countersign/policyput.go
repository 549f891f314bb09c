package main

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"countersign/internal/policy"
)

// policySource names a set: a file, or a pack that comes with the program.
type policySource struct {
	File string `arg:"" optional:"" help:"The policy set, YAML or JSON." type:"path"`
	Pack string `help:"A set that comes with this program instead of a file: starter." placeholder:"NAME" env:"-"`
}

// read returns the set. Its place is for errors.
func (s *policySource) read() (place string, text []byte, err error) {
	switch {
	case (s.File == "") == (s.Pack == ""):
		return "", nil, misused(errors.New("name a file, or a set that comes with this program with --pack"))
	case s.File != "":
		text, err = readPolicyFile(s.File)
		return s.File, text, unclear(err)
	}
	text, ok := policy.Pack(s.Pack)
	if !ok {
		return "", nil, misused(fmt.Errorf("there is no pack %q; choose from %s", s.Pack, strings.Join(policy.Packs(), ", ")))
	}
	return s.Pack + ".yaml", text, nil
}

type policyPutCommand struct {
	policySource
	remote
	JSON bool `name:"json" help:"Print JSON." env:"-"`
}

// putPolicy is a set in force, as the API shows it.
type putPolicy struct {
	Version string `json:"version"`
	Rules   int    `json:"rule_count"`
}

// Run puts a set in force.
func (c *policyPutCommand) Run(p *process) error {
	place, text, err := c.read()
	if err != nil {
		return err
	}
	api, err := c.connect(p)
	if err != nil {
		return misused(err)
	}
	body := rawBody{"application/json", text}
	if documentOf(place, text).YAML {
		body.kind = "application/yaml"
	}
	var put putPolicy
	if err := api.call(p.ctx, http.MethodPut, "/v1/policies", body, &put); err != nil {
		return err
	}
	if c.JSON {
		return p.printJSON(put)
	}
	fmt.Fprintf(p.out, "%s is in force: %d rules\n", put.Version, put.Rules)
	return nil
}

type policySimulateCommand struct {
	policySource
	remote
	Since     time.Duration `help:"Only chains opened within this time, such as 168h; all of them without it." env:"-"`
	MaxEvents int           `help:"How many events to look at." default:"10000" env:"-"`
	JSON      bool          `name:"json" help:"Print JSON." env:"-"`
}

// simulation is what would have been decided differently, as the API tells it.
type simulation struct {
	Version  string `json:"policy_version"`
	Events   int    `json:"events"`
	Chains   int    `json:"chains"`
	Changed  int    `json:"changed"`
	Complete bool   `json:"complete"`
	Changes  []struct {
		From  string `json:"from"`
		To    string `json:"to"`
		Count int    `json:"count"`
	} `json:"changes"`
	Examples []struct {
		Chain    string    `json:"chain_id"`
		Sequence int64     `json:"sequence"`
		Agent    string    `json:"agent_name"`
		Action   string    `json:"action_name"`
		At       time.Time `json:"recorded_at"`
		From     string    `json:"policy_decision"`
		To       string    `json:"candidate_decision"`
		Rule     *string   `json:"policy_name"`
		Reason   string    `json:"decision_reason"`
	} `json:"examples"`
}

// Run decides recorded events again under a set that is not in force.
func (c *policySimulateCommand) Run(p *process) error {
	place, text, err := c.read()
	if err != nil {
		return err
	}
	set, problems, err := parsePolicy(place, text)
	if err != nil {
		return unclear(err)
	}
	if set == nil {
		return unclear(fmt.Errorf("the set is not valid: %s", problems[0]))
	}
	api, err := c.connect(p)
	if err != nil {
		return misused(err)
	}
	// A set in JSON is YAML too.
	request := map[string]any{"policy": string(text), "max_events": c.MaxEvents}
	if c.Since > 0 {
		request["since"] = time.Now().Add(-c.Since).UTC().Format(time.RFC3339)
	}
	var found simulation
	if err := api.call(p.ctx, http.MethodPost, "/v1/policies/simulate", request, &found); err != nil {
		return err
	}
	if c.JSON {
		return p.printJSON(found)
	}
	return found.print(p)
}

func (s *simulation) print(p *process) error {
	part := ""
	if !s.Complete {
		part = "the newest "
	}
	fmt.Fprintf(p.out, "%d of %s%d events in %d chains would have been decided differently\n", s.Changed, part, s.Events, s.Chains)
	for _, change := range s.Changes {
		fmt.Fprintf(p.out, "  %d: %s instead of %s\n", change.Count, change.To, change.From)
	}
	if len(s.Examples) == 0 {
		return nil
	}
	rows := make([][]string, len(s.Examples))
	for i := range s.Examples {
		e := &s.Examples[i]
		rule := ""
		if e.Rule != nil {
			rule = *e.Rule
		}
		rows[i] = cells(e.Chain, strconv.FormatInt(e.Sequence, 10), e.Agent, e.Action, e.From, e.To, rule)
	}
	return p.printTable([]string{"CHAIN", "NO", "AGENT", "ACTION", "WAS", "WOULD BE", "RULE"}, rows)
}
