package review

import (
	"cmp"
	"net/url"
	"strings"
	"time"

	"countersign/internal/cli"
)

// WebhooksCommands are the commands for webhooks.
type WebhooksCommands struct {
	List       webhooksListCommand      `cmd:"" help:"List the endpoints that receive notifications, oldest first."`
	Deliveries webhookDeliveriesCommand `cmd:"" help:"List the attempts to deliver to a webhook, newest first."`
	Redeliver  webhookRedeliverCommand  `cmd:"" help:"Redeliver a message from a webhook's delivery log."`
	Test       webhookTestCommand       `cmd:"" help:"Deliver a test to a webhook and print the result; exit status 1 if it failed."`
}

type webhooksListCommand struct{ listFlags }

// WebhookEntry is an endpoint in the API's form.
type WebhookEntry struct {
	ID        string    `json:"webhook_id"`
	URL       string    `json:"url"`
	Events    []string  `json:"events"`
	Status    string    `json:"status"`
	CreatedAt time.Time `json:"created_at"`
}

// Run lists endpoints.
func (c *webhooksListCommand) Run(p *cli.Process) error {
	return runList(p, &c.listFlags, "/v1/webhooks", make(url.Values), table[WebhookEntry]{
		header: []string{"ID", "URL", "EVENTS", "STATUS", "CREATED"},
		row: func(e *WebhookEntry) []string {
			if e.Status == "tampered" { // the server sends only the id
				return cli.Cells(e.ID, changedOutside, "", "", "")
			}
			return cli.Cells(e.ID, e.URL, cmp.Or(strings.Join(e.Events, ", "), "everything"), e.Status, cli.FormatTime(e.CreatedAt))
		},
		empty: "There are no webhooks.",
	})
}
