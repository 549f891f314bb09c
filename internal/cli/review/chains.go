package review

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"countersign/internal/cli"
	"countersign/internal/ledger"
)

// ChainsCommands are the commands for chains.
type ChainsCommands struct {
	List chainsListCommand `cmd:"" help:"List chains, newest first."`
	Show chainsShowCommand `cmd:"" help:"Show a chain and its events."`
}

type chainsListCommand struct {
	listFlags
	decidedFlags
	Status      string `help:"Only chains with this status: active, auto_paused, completed or failed." placeholder:"STATUS" env:"-"`
	Environment string `help:"Only chains of this environment." placeholder:"NAME" env:"-"`
	External    string `name:"external-id" help:"Only chains with this external identifier." placeholder:"ID" env:"-"`
}

// chainEntry is a chain in the API's form.
type chainEntry struct {
	ID          string    `json:"id"`
	Integrity   string    `json:"integrity"` // "failed" if only the id is returned
	Name        string    `json:"name"`
	Environment string    `json:"environment"`
	Status      string    `json:"status"`
	StartedAt   time.Time `json:"started_at"`
	Actions     int64     `json:"total_actions"`
	Agents      []string  `json:"agents_involved"`
	Receipt     *string   `json:"receipt_id"`
}

// Run lists chains.
func (c *chainsListCommand) Run(p *cli.Process) error {
	query := c.query()
	setNonEmpty(query, map[string]string{"status": c.Status, "environment": c.Environment, "external_chain_id": c.External})
	return runList(p, &c.listFlags, "/v1/chains", query, table[chainEntry]{
		header: []string{"ID", "NAME", "ENVIRONMENT", "STATUS", "ACTIONS", "STARTED"},
		row: func(e *chainEntry) []string {
			if integrityFailed(e.Integrity) {
				return cli.Cells(e.ID, changedOutside, "", "", "", "")
			}
			return cli.Cells(e.ID, e.Name, e.Environment, e.Status, strconv.FormatInt(e.Actions, 10), cli.FormatTime(e.StartedAt))
		},
		empty: "There are no chains.",
	})
}

type chainsShowCommand struct {
	cli.Remote
	ID   string `arg:"" help:"The chain's id."`
	JSON bool   `name:"json" help:"Print JSON." env:"-"`
}

// EventEntry is an event in the API's form.
type EventEntry struct {
	Sequence  int64     `json:"sequence"`
	Integrity string    `json:"integrity"`
	Agent     string    `json:"agent_name"`
	Type      string    `json:"action_type"`
	Action    string    `json:"action_name"`
	Decision  string    `json:"policy_decision"`
	Status    string    `json:"status"`
	Rule      *string   `json:"policy_name"`
	At        time.Time `json:"recorded_at"`
	Approval  *struct {
		Status string `json:"status"`
	} `json:"approval"` // nil until the wait for a person has ended
}

// standing is the status of the action now. Status stays what was recorded first.
func (e *EventEntry) standing() string {
	if e.Approval != nil {
		return e.Approval.Status
	}
	return e.Status
}

// Run shows a chain with its events.
func (c *chainsShowCommand) Run(p *cli.Process) error {
	if _, err := ledger.ParseID(c.ID); err != nil {
		return cli.Usage(fmt.Errorf("a chain's id has the form 8-4-4-4-12; countersign chains list lists them"))
	}
	api, err := c.Connect(p)
	if err != nil {
		return cli.Usage(err)
	}
	var text json.RawMessage
	if err := api.Call(p.Ctx, http.MethodGet, "/v1/chains/"+c.ID, nil, &text); err != nil {
		return err
	}
	var chain chainEntry
	if err := json.Unmarshal(text, &chain); err != nil {
		return cli.Inconclusive(err)
	}
	events, raw, err := readList[EventEntry](p.Ctx, api, "/v1/chains/"+c.ID+"/events", make(url.Values), maxListed+1)
	if err != nil {
		return err
	}
	if len(events) > maxListed {
		events, raw = events[:maxListed], raw[:maxListed]
		p.Notef("These are only the first %d events of the chain; GET /v1/chains/%s/events of the API lists all of them.", maxListed, c.ID)
	}
	if c.JSON {
		return p.PrintJSON(map[string]any{"chain": text, "events": raw})
	}
	fmt.Fprintf(p.Out, "%s  %s, %s, %s, %s, started %s\n", chain.ID, cli.OneLine(chain.Name), cli.OneLine(chain.Environment), chain.Status,
		cli.Count(chain.Actions, "action"), cli.FormatTime(chain.StartedAt))
	if chain.Receipt != nil {
		fmt.Fprintf(p.Out, "receipt %s\n", *chain.Receipt)
	}
	return table[EventEntry]{
		header: []string{"NO", "AT", "AGENT", "TYPE", "ACTION", "DECISION", "STATUS", "RULE"},
		row: func(e *EventEntry) []string {
			number := strconv.FormatInt(e.Sequence, 10)
			if integrityFailed(e.Integrity) {
				return cli.Cells(number, changedOutside, "", "", "", "", "", "")
			}
			rule := ""
			if e.Rule != nil {
				rule = *e.Rule
			}
			return cli.Cells(number, cli.FormatTime(e.At), e.Agent, e.Type, e.Action, e.Decision, e.standing(), rule)
		},
		empty: "The chain has no events.",
	}.print(p, events)
}
