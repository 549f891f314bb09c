package policy

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"countersign/internal/cli"
	"countersign/internal/policy"
)

// policySource selects a set: a file, or a pack that comes with the program.
type policySource struct {
	File string `arg:"" optional:"" help:"The policy set, YAML or JSON." type:"path"`
	Pack string `help:"A built-in set instead of a file: starter." placeholder:"NAME" env:"-"`
}

// read returns the set. place is for errors.
func (s *policySource) read() (place string, text []byte, err error) {
	switch {
	case (s.File == "") == (s.Pack == ""):
		return "", nil, cli.Usage(errors.New("name a file, or a built-in set with --pack"))
	case s.File != "":
		text, err = readPolicyFile(s.File)
		return s.File, text, cli.Inconclusive(err)
	}
	text, ok := policy.Pack(s.Pack)
	if !ok {
		return "", nil, cli.Usage(fmt.Errorf("there is no pack %q; choose from %s", s.Pack, strings.Join(policy.Packs(), ", ")))
	}
	return s.Pack + ".yaml", text, nil
}

type policyPutCommand struct {
	policySource
	cli.Remote
	JSON bool `name:"json" help:"Print JSON." env:"-"`
}

// PutPolicy is a set in force in the API's form.
type PutPolicy struct {
	Version string `json:"version"`
	Rules   int    `json:"rule_count"`
}

// Run puts a set in force.
func (c *policyPutCommand) Run(p *cli.Process) error {
	place, text, err := c.read()
	if err != nil {
		return err
	}
	api, err := c.Connect(p)
	if err != nil {
		return cli.Usage(err)
	}
	body := cli.RawBody{ContentType: "application/json", Data: text}
	if documentOf(place, text).YAML {
		body.ContentType = "application/yaml"
	}
	var put PutPolicy
	if err := api.Call(p.Ctx, http.MethodPut, "/v1/policies", body, &put); err != nil {
		return err
	}
	if c.JSON {
		return p.PrintJSON(put)
	}
	fmt.Fprintf(p.Out, "%s is in force: %s\n", put.Version, cli.Count(put.Rules, "rule"))
	return nil
}

type policySimulateCommand struct {
	policySource
	cli.Remote
	Since     time.Duration `help:"Only chains opened within this time, such as 168h; the default is all." env:"-"`
	MaxEvents int           `help:"How many events to decide again." default:"10000" env:"-"`
	JSON      bool          `name:"json" help:"Print JSON." env:"-"`
}

// simulation is what would have been decided differently, in the API's form.
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

// Run decides recorded events again with a set that is not in force.
func (c *policySimulateCommand) Run(p *cli.Process) error {
	place, text, err := c.read()
	if err != nil {
		return err
	}
	set, problems, err := parsePolicy(place, text)
	if err != nil {
		return cli.Inconclusive(err)
	}
	if set == nil {
		return cli.Inconclusive(fmt.Errorf("the set is not valid: %s", problems[0]))
	}
	api, err := c.Connect(p)
	if err != nil {
		return cli.Usage(err)
	}
	// A set in JSON is also valid YAML.
	request := map[string]any{"policy": string(text), "max_events": c.MaxEvents}
	if c.Since > 0 {
		request["since"] = time.Now().Add(-c.Since).UTC().Format(time.RFC3339)
	}
	var found simulation
	if err := api.Call(p.Ctx, http.MethodPost, "/v1/policies/simulate", request, &found); err != nil {
		return err
	}
	if c.JSON {
		return p.PrintJSON(found)
	}
	return found.print(p)
}

func (s *simulation) print(p *cli.Process) error {
	part := ""
	if !s.Complete {
		part = "the newest "
	}
	fmt.Fprintf(p.Out, "%d of %s%s in %s would have been decided differently\n", s.Changed, part, cli.Count(s.Events, "event"), cli.Count(s.Chains, "chain"))
	for _, change := range s.Changes {
		fmt.Fprintf(p.Out, "  %d: %s instead of %s\n", change.Count, change.To, change.From)
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
		rows[i] = cli.Cells(e.Chain, strconv.FormatInt(e.Sequence, 10), e.Agent, e.Action, e.From, e.To, rule)
	}
	return p.PrintTable([]string{"CHAIN", "NO", "AGENT", "ACTION", "WAS", "WOULD BE", "RULE"}, rows)
}
