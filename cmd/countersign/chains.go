package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"countersign/internal/ledger"
)

type chainsCommands struct {
	List chainsListCommand `cmd:"" help:"List chains, newest first."`
	Show chainsShowCommand `cmd:"" help:"Show a chain and its events."`
}

type chainsListCommand struct {
	listFlags
	Status      string `help:"Only chains with this status." placeholder:"STATUS" env:"-"`
	Environment string `help:"Only chains of this environment." placeholder:"NAME" env:"-"`
	External    string `name:"external-id" help:"Only chains with this identifier of yours." placeholder:"ID" env:"-"`
}

// chainEntry is a chain as the API shows it.
type chainEntry struct {
	ID          string    `json:"id"`
	Integrity   string    `json:"integrity"` // "failed" where nothing but the id is told
	Name        string    `json:"name"`
	Environment string    `json:"environment"`
	Status      string    `json:"status"`
	StartedAt   time.Time `json:"started_at"`
	Actions     int64     `json:"total_actions"`
	Agents      []string  `json:"agents_involved"`
	Receipt     *string   `json:"receipt_id"`
}

// Run lists chains.
func (c *chainsListCommand) Run(p *process) error {
	api, err := c.connect(p)
	if err != nil {
		return misused(err)
	}
	query := make(url.Values)
	for name, value := range map[string]string{"status": c.Status, "environment": c.Environment, "external_chain_id": c.External} {
		if value != "" {
			query.Set(name, value)
		}
	}
	list, raw, err := readList[chainEntry](p.ctx, api, "/v1/chains", query, c.Limit)
	if err != nil {
		return err
	}
	rows := make([][]string, len(list))
	for i := range list {
		e := &list[i]
		if e.Integrity == string(ledger.IntegrityFailed) {
			rows[i] = cells(e.ID, changedOutside, "", "", "", "")
			continue
		}
		rows[i] = cells(e.ID, e.Name, e.Environment, e.Status, strconv.FormatInt(e.Actions, 10), e.StartedAt.UTC().Format(time.RFC3339))
	}
	return p.printList(c.JSON, raw, "No chain.", []string{"ID", "NAME", "ENVIRONMENT", "STATUS", "ACTIONS", "STARTED"}, rows)
}

type chainsShowCommand struct {
	remote
	ID   string `arg:"" help:"The chain's id."`
	JSON bool   `name:"json" help:"Print JSON." env:"-"`
}

// eventEntry is an event as the API shows it.
type eventEntry struct {
	Sequence  int64     `json:"sequence"`
	Integrity string    `json:"integrity"`
	Agent     string    `json:"agent_name"`
	Type      string    `json:"action_type"`
	Action    string    `json:"action_name"`
	Decision  string    `json:"policy_decision"`
	Status    string    `json:"status"`
	Rule      *string   `json:"policy_name"`
	At        time.Time `json:"recorded_at"`
}

// Run shows a chain with its events.
func (c *chainsShowCommand) Run(p *process) error {
	if _, err := ledger.ParseID(c.ID); err != nil {
		return misused(fmt.Errorf("a chain's id has the form 8-4-4-4-12; countersign chains list shows them"))
	}
	api, err := c.connect(p)
	if err != nil {
		return misused(err)
	}
	var text json.RawMessage
	if err := api.call(p.ctx, http.MethodGet, "/v1/chains/"+c.ID, nil, &text); err != nil {
		return err
	}
	var chain chainEntry
	if err := json.Unmarshal(text, &chain); err != nil {
		return unclear(err)
	}
	events, raw, err := readList[eventEntry](p.ctx, api, "/v1/chains/"+c.ID+"/events", make(url.Values), mostListed)
	if err != nil {
		return err
	}
	if c.JSON {
		return p.printJSON(map[string]any{"chain": text, "events": raw})
	}
	fmt.Fprintf(p.out, "%s  %s, %s, %s, %d actions, started %s\n", chain.ID, visible(chain.Name), visible(chain.Environment), chain.Status, chain.Actions, chain.StartedAt.UTC().Format(time.RFC3339))
	if chain.Receipt != nil {
		fmt.Fprintf(p.out, "receipt %s\n", *chain.Receipt)
	}
	rows := make([][]string, len(events))
	for i := range events {
		e := &events[i]
		rule := ""
		if e.Rule != nil {
			rule = *e.Rule
		}
		if e.Integrity == string(ledger.IntegrityFailed) {
			rows[i] = cells(strconv.FormatInt(e.Sequence, 10), changedOutside, "", "", "", "", "", "")
			continue
		}
		rows[i] = cells(strconv.FormatInt(e.Sequence, 10), e.At.UTC().Format(time.RFC3339), e.Agent, e.Type, e.Action, e.Decision, e.Status, rule)
	}
	return p.printList(false, raw, "No event.", []string{"NO", "AT", "AGENT", "TYPE", "ACTION", "DECISION", "STATUS", "RULE"}, rows)
}
