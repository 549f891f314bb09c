package main

import (
	"net/url"
	"strings"
	"time"

	"countersign/internal/ledger"
)

type webhooksCommands struct {
	List webhooksListCommand `cmd:"" help:"List the endpoints that receive notifications."`
}

type webhooksListCommand struct{ listFlags }

// webhookEntry is an endpoint as the API shows it.
type webhookEntry struct {
	ID        string    `json:"webhook_id"`
	Integrity string    `json:"integrity"` // "failed" where nothing but the id is told
	URL       string    `json:"url"`
	Events    []string  `json:"events"`
	Status    string    `json:"status"`
	CreatedAt time.Time `json:"created_at"`
}

// Run lists endpoints.
func (c *webhooksListCommand) Run(p *process) error {
	api, err := c.connect(p)
	if err != nil {
		return misused(err)
	}
	list, raw, err := readList[webhookEntry](p.ctx, api, "/v1/webhooks", make(url.Values), c.Limit)
	if err != nil {
		return err
	}
	rows := make([][]string, len(list))
	for i := range list {
		e := &list[i]
		if e.Integrity == string(ledger.IntegrityFailed) {
			rows[i] = cells(e.ID, changedOutside, "", "", "")
			continue
		}
		events := strings.Join(e.Events, ", ")
		if events == "" {
			events = "everything"
		}
		rows[i] = cells(e.ID, e.URL, events, e.Status, e.CreatedAt.UTC().Format(time.RFC3339))
	}
	return p.printList(c.JSON, raw, "No webhook.", []string{"ID", "URL", "EVENTS", "STATUS", "CREATED"}, rows)
}
